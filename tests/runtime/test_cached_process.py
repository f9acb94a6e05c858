"""A process whose kernels are cached multiplies without a compiler: no emitter, no IR, no LLVM, no other engine.
`tilewright.matmul` itself is machine code of the CPU (api/builtin.py), on whatever device it multiplies."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.helpers.processes import printed
from tilewright.compiler import lld

CPU = """
import numpy as np
a, b = np.ones((70, 40), np.float32), np.ones((40, 68), np.float32)
"""
GPU = """
import importlib, sys, pytest
double = importlib.import_module("tests.doubles." + {double!r})
double.install(pytest.MonkeyPatch(), **{options!r})
if {cached}:  # what the double has imported does not count
    setattr(double.Functions, {launch!r}, lambda *_: ({success},))
    double.recorded = lambda name, image: None
    for name in list(sys.modules):
        if name.startswith(("llvmlite", "tilewright.ir", "tilewright.kernels", "tilewright.simulator",
                            "tilewright.compiler.llvm")):
            del sys.modules[name]
import numpy as np
from tilewright.runtime.gpu import arrays
platform = arrays.{platform}
on = platform.driver.device(0)
a, b = (arrays.DeviceArray(platform, on, shape, "f4") for shape in ((72, 40), (40, 64)))
for x in (a, b):
    x.memory = platform.driver.Memory.upload(on, np.ones(x.shape, "f4"))
"""
PRODUCT = """
import sys
{matmul}
c = matmul(a, b)
assert c.shape == (a.shape[0], b.shape[1])
print(*sorted(sys.modules))
"""
PLACES = {"cpu": {}, "nvidia": {"double": "fake_cuda", "platform": "CUDA", "options": {}, "launch": "cuLaunchKernelEx",
                                "success": "double.SUCCESS"},
          "amd": {"double": "fake_hip", "platform": "HIP", "options": {"arch": "gfx942"},
                  "launch": "hipModuleLaunchKernel", "success": "double.hipError_t.hipSuccess"}}
ENGINES = {"cpu": ("tilewright.runtime.cpu.engine", "tilewright.runtime.cpu.recipe", "tilewright.compiled.cpu"),
           "nvidia": ("tilewright.runtime.cuda", "tilewright.plans.nvidia", "tilewright.compiled.nvidia"),
           "amd": ("tilewright.runtime.hip", "tilewright.plans.amd", "tilewright.compiled.amd")}
COMPILER = ("llvmlite", "tilewright.compiler.llvm", "tilewright.compiler.gate", "tilewright.ir", "tilewright.inspect",
            "tilewright.simulator", "tilewright.lab")
CONTRACT = ("tilewright.kernels", "tilewright.kernels.cpu",
            "tilewright.kernels.cpu.jobs", "tilewright.kernels.cpu.abi")  # no emitter
PUBLIC, FUNCTION = "from tilewright import matmul", "from tilewright.api.products import matmul"


def loaded(place: str, cache: str, cached: bool, matmul: str) -> list[str]:
    """The modules of a process that has multiplied there."""
    script = CPU if place == "cpu" else GPU.format(cached=cached, **PLACES[place])
    return printed(script + PRODUCT.format(matmul=matmul), TILEWRIGHT_CACHE_DIR=cache).split()


def inside(modules: list[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if f"{name}.".startswith(tuple(f"{package}." for package in packages))]


def needs(place: str) -> None:
    """Skip where the place's package is missing."""
    if place == "nvidia":
        pytest.importorskip("cuda.bindings")
    if place == "amd":
        lld.find()


@pytest.mark.parametrize("place", PLACES)
def test_a_cached_product_needs_no_compiler(place, tmp_path):
    needs(place)
    first = loaded(place, str(tmp_path), False, PUBLIC)
    assert {"llvmlite.binding", "tilewright.ir.builder", "tilewright.compiler.gate"} <= {*first}
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept
    others = tuple(name for other, names in ENGINES.items() if other != place for name in names)
    for matmul in (PUBLIC, FUNCTION):
        then = loaded(place, str(tmp_path), True, matmul)
        assert inside(then, ENGINES[place])
        assert inside(then, COMPILER) == []
        assert inside(then, others) == []
        assert [name for name in inside(then, ("tilewright.kernels",)) if name not in CONTRACT] == []
    assert {path.name for path in tmp_path.iterdir()} == kept, "a cached process compiled another kernel"


@pytest.mark.parametrize("place", ["nvidia", "amd"])
def test_a_product_of_a_bundle_needs_no_compiler(place, tmp_path):
    """And no cache: nothing is there, and nothing is put there. tests/compiler/test_bundles.py has the CPU's."""
    needs(place)
    target = {"nvidia": "sm_90a", "amd": "gfx942"}[place]
    path, cache = tmp_path / "kernels.twk", tmp_path / "cache"
    tw.build([tw.Gemm(72, 64, 40)], path, target, workers=1)
    then = loaded(place, str(cache), True, f"import tilewright\ntilewright.load({str(path)!r})\n{PUBLIC}")
    assert inside(then, ENGINES[place])
    assert inside(then, COMPILER) == []
    assert not cache.exists(), "something was compiled"
