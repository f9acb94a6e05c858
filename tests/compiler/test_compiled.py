"""Compiled kernels of all targets have one interface: what a tool reads, simulates, calls and binds."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiled.base import Compiled, CompiledGemm, Launch
from tilewright.compiled.compile import code_class, compiled
from tilewright.kernels.elementwise import emit_axpy
from tilewright.targets import target

PLANS = {"x86-avx2": "packed 6x16 mc=96 kc=256 nc=4080", "neon": "packed 8x12 mc=96 kc=256 nc=4080",
         "sm_90a": "simt 32x32x8 warp=16x32 thread=4x4 stages=2 copy=registers vector=1",
         "gfx942": "mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2 vector=4"}
FORMS = {"x86-avx2": [".ll", ".s", ".o"], "neon": [".ll", ".s", ".o"], "sm_90a": [".ll", ".ptx", ".cubin"],
         "gfx942": [".ll", ".s", ".hsaco"]}
M, N, K = 40, 32, 24


@pytest.fixture(scope="module", params=PLANS)
def kernel(request):
    return tw.compile(tw.Gemm(M, N, K, "f32"), request.param, PLANS[request.param])


@pytest.mark.sampled(2)
def test_what_can_be_read(kernel):
    name = kernel.target.name
    assert isinstance(kernel, CompiledGemm)
    assert isinstance(kernel, code_class(kernel.target))
    assert repr(kernel) == f"<{type(kernel).__name__} gemm_f32_nn_40x32x24 on {name}: {kernel.plan}>"
    assert list(kernel.forms) == FORMS[name]
    assert kernel.names == [function.name for function in kernel.functions]
    assert kernel.function is kernel.functions[-1]
    assert kernel.names[-1] in kernel.asm
    assert kernel.listing(".ll") is kernel.llvm
    assert kernel.listing(list(kernel.forms)[1]) is kernel.asm
    assert json.loads(kernel.listing(".json")) == json.loads(json.dumps(kernel.manifest))
    with pytest.raises(ValueError, match=rf"code for {name} has the forms \.ll, .*, not '\.exe'"):
        kernel.listing(".exe")


def test_the_binary(kernel):
    assert kernel.binary.startswith(b"\x7fELF")
    assert kernel.listing(list(kernel.forms)[2]) == kernel.binary


def test_resources(kernel):
    used = kernel.resources
    assert used.registers > 0
    assert used.spills == 0
    assert (used.shared > 0) == (kernel.target.name in ("sm_90a", "gfx942"))


def test_the_hot_loop(kernel):
    loop = kernel.loop()
    assert loop.function in kernel.names
    assert len(loop.text.splitlines()) > 4
    many = next(count for kind, count in loop.counts.items() if kind in ("vector FMAs", "FMAs", "matrix"))
    assert many >= 4
    assert kernel.report().startswith(f"{loop.function}: ")
    with pytest.raises(ValueError, match=r"no (kernel|function) nonsense in this (assembly|PTX); there (is|are)"):
        kernel.report("nonsense")


def test_the_manifest(kernel):
    told = kernel.manifest
    assert (told["symbol"], told["target"]) == (kernel.function.name, kernel.target.name)
    assert (told["plan"], told["problem"]) == (str(kernel.plan), str(kernel.problem))
    assert [each["name"] for each in told["arguments"]] == [name for name, _ in kernel.function.params]


def test_launches(kernel):
    (launch,) = kernel.launches
    assert isinstance(launch, Launch)
    assert launch.function is kernel.function
    assert min(launch.grid) >= 1
    assert (launch.workspace, launch.counters, launch.more) == (0, 0, ())
    (empty,) = (tw.compile(tw.Gemm(0, N, K, "f32"), kernel.target, kernel.plan),)
    assert empty.launches == ()
    assert empty.functions == ()
    assert "the product is empty: there is no code" in empty.asm
    with pytest.raises(ValueError, match="gemm_f32_nn_0x32x24 is an empty product, for which there is no code"):
        empty.binary  # noqa: B018


def test_simulation(kernel):
    """By the kernel itself, and by the public function: the same product to the last bit."""
    draw = np.random.default_rng(0)
    a, b, c = (draw.integers(-4, 5, shape).astype("f4") for shape in ((M, K), (K, N), (M, N)))
    expected = 2 * (a @ b) + 3 * c
    report = kernel.simulate(a, b, c.copy(), alpha=2.0, beta=3.0)
    np.testing.assert_array_equal(report.result, expected)
    assert report.instructions == tw.simulate(kernel, a, b, c, alpha=2.0, beta=3.0).instructions
    np.testing.assert_array_equal(c, expected)
    with pytest.raises(ValueError, match=r"a must have shape \(40, 24\)"):
        kernel.simulate(a.T, b)


def test_a_bound_call():
    """On this machine; `bound()` multiplies what the arrays hold when it is called."""
    here = tw.detect()
    kernel = tw.compile(tw.Gemm(M, N, K, "f32"), here)
    a, b = np.ones((M, K), "f4"), np.ones((K, N), "f4")
    bound = kernel.bind(a, b, alpha=0.5)
    assert bound() is bound.out
    np.testing.assert_array_equal(bound.out, np.full((M, N), K / 2))
    a[...] = 2
    np.testing.assert_array_equal(bound(), kernel(a, b, alpha=0.5))
    out = np.ones((M, N), "f4")
    assert kernel.bind(a, b, out, beta=1.0)() is out
    np.testing.assert_array_equal(out, np.full((M, N), 2*K + 1))
    with pytest.raises(ValueError, match=r"out must be given if beta is not 0, and beta is 1.0"):
        kernel.bind(a, b, beta=1.0)
    with pytest.raises(ValueError, match=r"b must have shape \(24, 32\), not \(32, 24\)"):
        kernel.bind(a, b.T)


@pytest.mark.parametrize("name", ["sm_90a", "gfx942"])
def test_recorded_functions(name):
    """Of a kernel that is no GEMM the same can be read."""
    chip = target(name)
    code = compiled(emit_axpy(128, chip.warp), chip, ("(n + 127) // 128",))
    assert isinstance(code, Compiled)
    assert code.names == ["axpy_f32"]
    assert repr(code) == f"<{type(code).__name__} axpy_f32 on {name}>"
    assert code.manifest["grid"] == ["(n + 127) // 128", 1, 1]
    assert [each["offset"] for each in code.manifest["arguments"]] == [0, 8, 16, 24]
