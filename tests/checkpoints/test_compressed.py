"""Layers that compressed-tensors has packed, whose numbers are those that it unpacks."""

from importlib.util import find_spec

import numpy as np
import pytest

from tilewright import checkpoints
from tilewright.checkpoints import safetensors

torch = pytest.importorskip("torch", reason="torch is not installed, which compressed-tensors needs")
tensors_of = pytest.importorskip("tilewright.api.tensors")
if find_spec("compressed_tensors") is None:         # whose import takes as long as the collection of all tests
    pytest.skip("compressed-tensors is not installed", allow_module_level=True)

N, K = 32, 128
INT = {"type": "int", "symmetric": True}
FLOAT = {"num_bits": 8, "type": "float", "symmetric": True}


def packed(format, args, dtype, scale_shape, tmp_path, order=None, **more):
    """(what tilewright reads, what compressed-tensors does) of a layer that it has packed."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    torch.manual_seed(0)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    scales = (torch.rand(scale_shape) / 8 + 0.01).to(dtype)
    state = {"weight": torch.randn(N, K).to(dtype), "weight_scale": scales, **more}
    if not args["symmetric"]:
        low = 1 << args["num_bits"] - 1
        state["weight_zero_point"] = torch.randint(-low, low, scale_shape, dtype=torch.int8)
    kind = BaseCompressor.get_value_from_registry(format)
    stored = kind.compress(dict(state), scheme)
    wanted = kind.decompress(dict(stored), scheme)["weight"]
    if order is not None:
        stored["weight_g_idx"] = order
    arrays = {f"model.layer.{name}": np.ascontiguousarray(tensors_of.array(x.detach().contiguous(), name))
              for name, x in stored.items()}
    file = tmp_path / "x.safetensors"
    safetensors.save(file, arrays)
    groups = {"other": {"targets": ["re:.*lm_head"], "weights": {"num_bits": 3}},
              "group_0": {"targets": ["Linear"], "weights": args}}
    config = {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}
    found = checkpoints.load(file, config)
    assert {*found} == {"model.layer.weight"}
    return found["model.layer.weight"], wanted


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
def test_integers(bits, symmetric, tmp_path):
    """In words of 32 bits, by groups and by outputs; the package computes in the scales' dtype."""
    for group, dtype in ((None, torch.float32), (32, torch.bfloat16), (32, torch.float32)):
        args = {**INT, "num_bits": bits, "symmetric": symmetric, "strategy": "group" if group else "channel",
                "group_size": group}
        found, wanted = packed("pack-quantized", args, dtype, (N, K // group if group else 1), tmp_path)
        mine = torch.from_numpy(found.dequantize())
        if dtype == torch.float32:
            assert torch.equal(mine, wanted)
        elif bits < 8:              # a difference of 8 bits from a zero point is no bf16
            assert torch.equal(mine.bfloat16(), wanted)
        if bits not in (4, 8) or group is None:
            continue
        x = np.random.default_rng(1).standard_normal((20, K)).astype(np.float32)
        right = x.astype(float) @ found.dequantize("f64").T
        for rows in (1, 20):
            assert np.allclose(found.matmul(x[:rows]), right[:rows], atol=1e-4 * (1 << bits) / 16)


def test_groups_in_another_order(tmp_path):
    index = torch.randperm(K).to(torch.int32) // 32
    args = {**INT, "num_bits": 4, "strategy": "group", "group_size": 32}
    found, _ = packed("pack-quantized", args, torch.float32, (N, K // 32), tmp_path, index)
    q, scales = found.numbers.unpacked().astype(np.float32), found.numbers.scales
    codes = np.empty_like(q)
    codes[:, found.order] = q
    assert np.array_equal(found.dequantize(), codes * scales[:, index.numpy()])


CASES = {       # format, arguments of weights, shape of scales
    "int8": ("int-quantized", {**INT, "num_bits": 8, "strategy": "channel"}, (N, 1)),
    "int8 asymmetric": ("int-quantized", {**INT, "num_bits": 8, "symmetric": False, "strategy": "channel"}, (N, 1)),
    "fp8 channel": ("float-quantized", {**FLOAT, "strategy": "channel"}, (N, 1)),
    "fp8 tensor": ("float-quantized", {**FLOAT, "strategy": "tensor"}, (1,)),
    "fp8 group": ("naive-quantized", {**FLOAT, "strategy": "group", "group_size": 32}, (N, K // 32)),
    "fp8 block": ("float-quantized", {**FLOAT, "strategy": "block", "block_structure": [16, 64]}, (N // 16, K // 64)),
    "mxfp8": ("mxfp8-quantized", {**FLOAT, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
              (N, K // 32)),
}


@pytest.mark.parametrize("case", CASES)
def test_one_element_to_a_byte(case, tmp_path):
    format, args, shape = CASES[case]
    more = {"weight_scale": torch.exp2(torch.randint(-3, 3, shape).float())} if case == "mxfp8" else {}
    found, wanted = packed(format, args, torch.float32, shape, tmp_path, **more)
    assert torch.equal(torch.from_numpy(found.dequantize()).to(wanted.dtype), wanted)


def test_blocks_of_four_bits(tmp_path):
    scales = torch.exp2(torch.randint(-3, 3, (N, K // 32)).float())
    args = {"num_bits": 4, "type": "float", "symmetric": True}
    mx = {**args, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    found, wanted = packed("mxfp4-pack-quantized", mx, torch.bfloat16, (N, K // 32), tmp_path, weight_scale=scales)
    assert torch.equal(torch.from_numpy(found.dequantize()).to(wanted.dtype), wanted)
    found, wanted = packed(
        "nvfp4-pack-quantized", {**args, "strategy": "tensor_group", "group_size": 16}, torch.bfloat16, (N, K // 16),
        tmp_path, weight_global_scale=torch.tensor([300.7]), weight_scale=torch.rand(N, K // 16) * 300)
    assert not found.exact
    mine = torch.from_numpy(found.dequantize())
    assert torch.allclose(mine.bfloat16().float(), wanted.float(), rtol=2**-7, atol=0)
    assert (mine.bfloat16() == wanted).float().mean() > 0.999


def test_what_is_refused(tmp_path):
    x = {"a.weight_packed": np.zeros((2, 2), np.int32), "a.weight_scale": np.ones((2, 1), np.float32),
         "a.weight_shape": np.array([2, 16])}
    safetensors.save(tmp_path / "x.safetensors", x)
    for config, why in (
            ({"sparsity_config": {"format": "sparse-24-bitmask"}}, r"a is sparse \(sparse-24-bitmask\)"),
            ({"transform_config": {"config_groups": {"r1": {}}}}, "needs activations that are rotated"),
            ({"config_groups": {"0": {"targets": ["Linear"], "weights": {"num_bits": 1}}}}, "taken with 2 to 8"),
            ({"config_groups": {"0": {"targets": ["a"], "weights": {"num_bits": 8}}}}, r"has words \(2, 2\)")):
        with pytest.raises(ValueError, match=why):
            checkpoints.load(tmp_path / "x.safetensors", {"quant_method": "compressed-tensors", **config})["a.weight"]
