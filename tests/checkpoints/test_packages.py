"""Layers that AutoGPTQ packs and AutoAWQ decodes, by their modules of torch alone: what else these packages import was
made for other versions of other packages."""

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilewright.checkpoints import awq, gptq

torch = pytest.importorskip("torch", reason="torch is not installed: these packages need it")
K, N, GROUP = 128, 64, 32


def module(package: str, path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of an installed package, without what its packages import."""
    spec = PathFinder.find_spec(package) if package not in sys.modules else find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    folder, *inner = package, *path.split(".")[:-1]
    where = Path(spec.submodule_search_locations[0])
    for name, part in ((package, where), *((".".join((package, *inner[:i + 1])), where.joinpath(*inner[:i + 1]))
                                           for i in range(len(inner)))):
        empty = ModuleType(name)
        empty.__path__ = [str(part)]
        monkeypatch.setitem(sys.modules, name, empty)
    found = spec_from_file_location(f"{folder}.{path}", where.joinpath(*path.split(".")).with_suffix(".py"))
    made = module_from_spec(found)
    monkeypatch.setitem(sys.modules, found.name, made)
    found.loader.exec_module(made)
    return made


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_autogptq(bits, monkeypatch):
    """A product with ones and zeros is the weight that the package multiplies by."""
    layers = module("auto_gptq", "nn_modules.qlinear.qlinear_cuda_old", monkeypatch)
    torch.manual_seed(0)
    for ordered in (False, True):
        linear, most = torch.nn.Linear(K, N, bias=False), 2**bits - 1
        groups = linear.weight.data.view(N, -1, GROUP)
        scales = ((groups.amax(-1) - groups.amin(-1)) / most).half().float()
        zeros = (-groups.amin(-1) / scales).round().clamp(1, most)
        index = torch.arange(K) // GROUP
        index = index[torch.randperm(K)] if ordered else index
        layer = layers.QuantLinear(bits, GROUP, K, N, False, use_cuda_fp16=False, weight_dtype=torch.float32)
        layer.pack(linear, scales, zeros, index.int())
        arrays = {part: getattr(layer, part).numpy() for part in ("qweight", "qzeros", "scales", "g_idx")}
        weight = gptq.weight("x", arrays, {"bits": bits, "group_size": GROUP})
        assert np.array_equal(weight.dequantize(), layer(torch.eye(K)).float().numpy().T)
        if bits == 4:
            again = gptq.tensors(weight, np.float32)
            assert all(np.array_equal(again[part], x) for part, x in arrays.items())


def test_autoawq(monkeypatch):
    decode = module("awq", "utils.packing_utils", monkeypatch).dequantize_gemm
    rng = np.random.default_rng(0)
    words, zeros = (rng.integers(-2**31, 2**31, (rows, N // 8)).astype(np.int32) for rows in (K, K // GROUP))
    for dtype in (np.float16, np.float32):
        scales = (rng.random((K // GROUP, N)) / 50).astype(dtype)
        weight = awq.weight("x", {"qweight": words, "qzeros": zeros, "scales": scales}, {"group_size": GROUP})
        wanted = decode(*map(torch.from_numpy, (words, zeros, scales)), 4, GROUP).numpy().T
        assert np.array_equal(weight.dequantize().astype(dtype), wanted)
