"""Layers of GPTQ, AWQ and fp8, packed here by the published descriptions of their formats."""

import ml_dtypes
import numpy as np
import pytest

from tilewright import checkpoints
from tilewright.checkpoints import gptq, safetensors

N, K, GROUP = 32, 128, 32
RNG = np.random.default_rng(0)
EACH = np.arange(K) // GROUP
SCALES = (RNG.random((N, K // GROUP)) / 64).astype(np.float16)


def words(codes, bits, order=None):
    """Numbers of so many bits along the first axis as int32 words, from the lowest bits on."""
    out = np.zeros((len(codes) * bits // 32, *codes.shape[1:]), np.uint64)
    big = np.zeros((len(codes) * bits // 32 + 1, *codes.shape[1:]), np.uint64)
    for i, x in enumerate(codes):
        at = i if order is None else i // 8 * 8 + order.index(i % 8)
        word, shift = divmod(at * bits, 32)
        value = x.astype(np.uint64) << np.uint64(shift)
        big[word] |= value & np.uint64(0xFFFFFFFF)
        big[word + 1] |= value >> np.uint64(32)
    out[:] = big[:-1]
    return out.astype(np.uint32).view(np.int32)


def loaded(tmp_path, tensors, config, name="layer.weight"):
    file = tmp_path / "x.safetensors"
    safetensors.save(file, {f"layer.{part}": x for part, x in tensors.items()} | {"layer.bias": np.ones(N, np.float16)})
    found = checkpoints.load(file, config)
    assert {*found} == {name, "layer.bias"}
    return found[name]


def check(weight, numbers, products=True, within=2e-6):
    """The numbers, and products of one row and of many."""
    assert np.array_equal(weight.dequantize().view(np.uint32), numbers.astype(np.float32).view(np.uint32))
    for rows in (1, 20) if products else ():
        x = RNG.standard_normal((rows, K)).astype(np.float32)
        right = x.astype(float) @ numbers.astype(float).T
        assert np.abs(weight.matmul(x) - right).max() <= within * np.abs(x).sum(1).max() * np.abs(numbers).max()


def gptq_tensors(bits, ordered=False, less=1, symmetric=False, groups=K // GROUP):
    """A layer, and its numbers."""
    codes, zeros = RNG.integers(0, 1 << bits, (N, K)), RNG.integers(1, 1 << bits, (N, groups))
    if symmetric:
        zeros[:] = 1 << bits - 1
    index = np.arange(K) // (K // groups)
    index = RNG.permutation(index) if ordered else index
    scales = SCALES[:, :groups]
    numbers = (codes - zeros[:, index]) * scales.astype(np.float32)[:, index]
    return {"qweight": words(codes.T, bits), "qzeros": words(zeros - less, bits).T.copy(),
            "scales": scales.T.copy(), "g_idx": index.astype(np.int32)}, numbers


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq(bits, ordered, tmp_path):
    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": ordered}
    tensors, numbers = gptq_tensors(bits, ordered)
    weight = loaded(tmp_path, tensors, config)
    check(weight, numbers, bits >= 4)
    assert (weight.order is not None) == ordered
    if bits == 4:
        for name, x in gptq.tensors(weight).items():
            assert np.array_equal(x, tensors[name]), name
    tensors, numbers = gptq_tensors(bits, ordered, less=0)
    check(loaded(tmp_path, tensors, {**config, "checkpoint_format": "gptq_v2"}), numbers, False)
    tensors, numbers = gptq_tensors(bits, ordered, symmetric=True)
    weight = loaded(tmp_path, tensors, config)
    assert weight.numbers.zeros is None
    check(weight, numbers, bits == 4)
    tensors, numbers = gptq_tensors(bits, groups=1)
    check(loaded(tmp_path, tensors, {**config, "group_size": -1}), numbers, False)


def test_what_of_gptq_is_refused(tmp_path):
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    tensors, _ = gptq_tensors(4)
    for change, more, why in (
            ({"bits": 5}, {}, "layer has 5 bits: GPTQ's layers are taken with 2, 3, 4, 8"),
            ({"checkpoint_format": "marlin"}, {}, "stored in the layout 'marlin' of a kernel"),
            ({}, {"g_idx": np.zeros(K, np.int32)}, "groups of 128 to 128 inputs: they are taken where each has 32")):
        with pytest.raises(ValueError, match=why):
            loaded(tmp_path, {**tensors, **more}, {**config, **change})
    with pytest.raises(ValueError, match="none of GPTQ's layers of 4 bits"):
        gptq.tensors(loaded(tmp_path, gptq_tensors(8)[0], {**config, "bits": 8}))


def test_awq(tmp_path):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    codes, zeros = RNG.integers(0, 16, (N, K)), RNG.integers(0, 16, (N, K // GROUP))
    tensors = {"qweight": words(codes, 4, order).T.copy(), "qzeros": words(zeros, 4, order).T.copy(),
               "scales": SCALES.T.copy()}
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    numbers = (codes - zeros[:, EACH]) * SCALES.astype(np.float32)[:, EACH]
    check(loaded(tmp_path, tensors, config), numbers)
    for change, why in (({"version": "gemv"}, "AWQ's layout 'gemv' of a kernel"), ({"bits": 8}, "AWQ's layers have 4")):
        with pytest.raises(ValueError, match=why):
            loaded(tmp_path, tensors, {**config, **change})


@pytest.mark.parametrize("block", [(16, 64), (24, 48), (N // 4, K // N * 8), (8, K * 8 // N)])
def test_fp8_by_blocks(block, tmp_path):
    """The last blocks may be smaller, and there may be as many blocks as outputs."""
    weight = RNG.standard_normal((N, K)).astype(ml_dtypes.float8_e4m3fn)
    scales = RNG.random((-(-N // block[0]), -(-K // block[1]))).astype(np.float32)
    numbers = weight.astype(np.float32) * scales.repeat(block[0], 0)[:N].repeat(block[1], 1)[:, :K]
    config = {"quant_method": "fp8", "weight_block_size": list(block)}
    check(loaded(tmp_path, {"weight": weight, "weight_scale_inv": scales}, config), numbers)


def test_scales_and_words_that_do_not_fit_are_refused(tmp_path):
    weight, scales = np.ones((N, K), ml_dtypes.float8_e4m3fn), np.ones((2, 2), np.float32)
    fp8 = {"quant_method": "fp8", "weight_block_size": [N // 2, K // 2]}
    for given, config, why in (
            (np.ones((3, 2), np.float32), fp8, r"scales \(3, 2\) for a weight"), (scales[:1], fp8, r"scales \(1, 2\)"),
            (scales, {**fp8, "weight_block_size": [0, 8]}, r"blocks of \[0, 8\], not of two whole numbers")):
        with pytest.raises(ValueError, match=f"layer has {why}"):
            loaded(tmp_path, {"weight": weight, "weight_scale_inv": given}, config)
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    tensors, _ = gptq_tensors(4, True)
    for name, x, why in (("qzeros", None, "'qzeros' is missing"), ("qweight", "<i8", "words of int32, not int64"),
                         ("qzeros", 1, "must be in"), ("g_idx", 1, f"g_idx has {K - 1} inputs"),
                         ("g_idx", "<f4", "not a group, 0 or more, for each"), ("scales", (), "not enough values")):
        old = tensors[name]
        new = {} if x is None else {name: old[..., x:] if x == 1 else old.astype(x) if x else old.ravel()}
        with pytest.raises(ValueError, match=f"layer.*{why}"):
            loaded(tmp_path, {**{key: y for key, y in tensors.items() if key != name}, **new}, config)


def test_other_methods_of_floats(tmp_path):
    weight = RNG.standard_normal((N, K)).astype(ml_dtypes.float8_e4m3fn)
    scales = RNG.random((N, 1)).astype(np.float32)
    for scale in (scales, scales[0]):
        found = loaded(tmp_path, {"weight": weight, "weight_scale": scale}, {"quant_method": "fbgemm_fp8"})
        check(found, weight.astype(np.float32) * scale)
    pairs = RNG.integers(0, 256, (N, K // 2), dtype=np.uint8)
    elements = np.stack((pairs & 15, pairs >> 4), -1).reshape(N, K).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    small = RNG.random((N, K // 16)).astype(ml_dtypes.float8_e4m3fn)
    found = loaded(tmp_path, {"weight": pairs, "weight_scale": small, "weight_scale_2": np.float32(0.25)},
                   {"quant_method": "modelopt"})
    assert found.exact
    check(found, elements * small.astype(np.float32).repeat(16, 1) * np.float32(0.25))
    exponents = RNG.integers(120, 130, (2, N, K // 32)).astype(np.uint8)
    stack = np.stack((pairs, pairs[::-1])).reshape(2, N, K // 32, 16)
    file = tmp_path / "x.safetensors"
    safetensors.save(file, {"experts_blocks": stack, "experts_scales": exponents, "norm": np.ones(3)})
    found = checkpoints.load(file, {"quant_method": "mxfp4"})
    assert {*found} == {"experts", "norm"}
    wanted = np.stack((elements, elements[::-1])) * np.ldexp(np.float32(1), exponents.astype(int) - 127).repeat(32, 2)
    assert np.array_equal(found["experts"].dequantize(), wanted)


def test_methods_that_are_refused(tmp_path):
    file = tmp_path / "x.safetensors"
    safetensors.save(file, {"a.weight": np.ones((2, 2))})
    for method, why in (("bitsandbytes", "are not taken: its numbers are from a table of 16"),
                        ("torchao", "are not taken: its files are torch's objects"),
                        ("new", "are not taken, but those of gptq, awq, compressed-tensors, fp8")):
        with pytest.raises(ValueError, match=f"checkpoints quantized by '{method}' {why}"):
            checkpoints.load(file, {"quant_method": method})


@pytest.mark.parametrize(("name", "text", "why"), [
    ("config.json", "[", "is no JSON"), ("config.json", "[1]", "must be an object of JSON, not"),
    ("config.json", '{"quantization_config": [1]}', "quantization_config that is no object"),
    ("quant_config.json", "nan", "is no JSON"),
    ("model.safetensors.index.json", '{"weight_map": 3}', "names of files in this folder"),
    ("model.safetensors.index.json", '{"weight_map": {"a": "../x.safetensors"}}', "names of files in this folder"),
])
def test_files_beside_that_are_damaged(name, text, why, tmp_path):
    safetensors.save(tmp_path / "model.safetensors", {"a": np.ones(2)})
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}.*{why}"):
        checkpoints.load(tmp_path)
    with pytest.raises(TypeError, match="config must be a mapping"):
        checkpoints.load(tmp_path / "model.safetensors", [1])


def test_the_config_beside_the_file(tmp_path):
    tensors, numbers = gptq_tensors(4)
    safetensors.save(tmp_path / "model.safetensors", {f"layer.{part}": x for part, x in tensors.items()})
    for name, text in (("quantize_config.json", '{"bits": 4, "group_size": 32}'),
                       ("config.json", '{"quantization_config": '
                                       '{"quant_method": "gptq", "bits": 4, "group_size": 32}}')):
        (tmp_path / name).write_text(text)
        assert np.array_equal(checkpoints.load(tmp_path)["layer.weight"].dequantize(), numbers.astype(np.float32))
        assert "gptq" in repr(checkpoints.load(tmp_path))
        (tmp_path / name).unlink()


def test_outputs_in_another_order():
    weight, index = gptq.weight("x", gptq_tensors(4)[0], {"group_size": GROUP}), RNG.permutation(N)
    assert np.array_equal(weight.rows(index).dequantize(), weight.dequantize()[index])
