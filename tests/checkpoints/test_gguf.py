"""Files of GGUF, whose numbers are those of the package gguf."""

import struct

import numpy as np
import pytest

import tilewright as tw
from tilewright import checkpoints
from tilewright.checkpoints.blocks import BLOCKS
from tilewright.checkpoints.gguf import PLAIN, TYPES

gguf = pytest.importorskip("gguf", reason="gguf is not installed: there is no reference decoder")
N, K = 24, 512
PRODUCTS = "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4"
TAKEN = [name for name, x in BLOCKS.items() if x.arrays is not None]
RNG = np.random.default_rng(0)


def raw(type: str, shape: tuple[int, ...] = (N, K)) -> np.ndarray:
    """Rows of blocks of any bits, whose scales are finite and of usual sizes."""
    numbers, size = BLOCKS[type][:2]
    x = RNG.integers(0, 256, (*shape[:-1], shape[-1] // numbers, size), dtype=np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2),
              "Q5_1": (0, 2), "MXFP4": ()}.get(type, (0,))
    for at in places:
        half = (RNG.standard_normal(x.shape[:-1]) / 64).astype(np.float16)
        x[..., at:at + 2] = half[..., None].view(np.uint8)
    if type == "MXFP4":
        x[..., 0] = RNG.integers(115, 130, x.shape[:-1])
    return x.reshape(*shape[:-1], -1)


def decoded(x: np.ndarray, type: str) -> np.ndarray:
    return gguf.quants.dequantize(x, gguf.GGMLQuantizationType[type])


def written(path, tensors: dict, **metadata) -> None:
    """A file by the package gguf: name → (type, bytes) or an array."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, x in metadata.items():
        writer.add_array(name, x) if isinstance(x, list) else writer.add_string(name, x)
    writer.add_block_count(1)
    for name, x in tensors.items():
        if isinstance(x, np.ndarray):
            writer.add_tensor(name, x)
        else:
            writer.add_tensor(name, x[1], raw_dtype=gguf.GGMLQuantizationType[x[0]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_types_and_blocks_are_those_of_the_package():
    assert {TYPES[x.value] for x in gguf.GGMLQuantizationType if x.value in TYPES} == {*TYPES.values()}
    for name in TAKEN:
        assert BLOCKS[name][:2] == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


@pytest.mark.parametrize("type", TAKEN)
def test_numbers_have_the_bits_of_the_reference(type, tmp_path):
    x, file = raw(type), tmp_path / "model.gguf"
    written(file, {"blk.0.attn_q.weight": (type, x), "blk.0.experts": (type, raw(type, (2, 3, 256)))})
    weight = checkpoints.load(file)["blk.0.attn_q.weight"]
    found, wanted = weight.dequantize(), decoded(x, type)
    if type == "MXFP4":                 # whose -0 the reference makes 0
        found = found + np.float32(0)
    assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32))
    assert weight.exact
    assert weight.source == f"gguf {type}"
    assert checkpoints.load(file)["blk.0.experts"].shape == (2, 3, 256)
    if type not in PRODUCTS:
        return
    exact = wanted.astype(np.float64)
    for rows in (1, 33):
        rows_of_x = RNG.standard_normal((rows, K)).astype(np.float32)
        found, right = weight.matmul(rows_of_x), rows_of_x @ exact.T
        assert np.abs(found - right).max() <= 2e-6 * np.abs(rows_of_x).sum(1).max() * np.abs(exact).max()
    if type == "Q4_K":
        few = weight.matmul(rows_of_x[0])
        assert few.shape == (N,)
        assert np.allclose(tw.matmul(rows_of_x[:3], tw.pack(weight.numbers.T)), right[:3], atol=1e-4)


def test_any_bits_are_those_of_the_reference():
    """Infinite, subnormal and negative scales, too."""
    for type in TAKEN:
        x = RNG.integers(0, 256, (40, BLOCKS[type].bytes), dtype=np.uint8)
        if type == "MXFP4":             # whose exponent 255 is nan by OCP's rules, and 2^128 in the reference
            x[:, 0] = np.minimum(x[:, 0], 254)
        with np.errstate(all="ignore"):
            found, wanted = tw.dequantize(checkpoints.blocks.numbers("x", type, x)), decoded(x, type)
        assert np.array_equal(found, wanted, equal_nan=True), type


def test_what_is_quantized_by_the_package():
    x = RNG.standard_normal((8, 256)).astype(np.float32)
    for type in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"):
        blocks = gguf.quants.quantize(x, gguf.GGMLQuantizationType[type])
        assert np.array_equal(tw.dequantize(checkpoints.blocks.numbers("x", type, blocks)), decoded(blocks, type))


def test_arrays_and_metadata(tmp_path):
    file = tmp_path / "model.gguf"
    norm, half = RNG.standard_normal(7).astype(np.float32), RNG.standard_normal((3, 5)).astype(np.float16)
    written(file, {"norm.weight": norm, "half": half, "q": ("Q8_0", raw("Q8_0"))}, words=["a", "bc", ""], text="ä")
    found = checkpoints.load(file)
    assert found.metadata["words"] == ["a", "bc", ""]
    assert found.metadata["text"] == "ä"
    assert found.metadata["general.architecture"] == "llama"
    assert {*found} == {"norm.weight", "half", "q"}
    assert np.array_equal(found["norm.weight"], norm)
    assert np.array_equal(found["half"], half)
    assert found["half"].dtype == np.float16
    checkpoints.save(tmp_path / "own.safetensors", found)
    again = checkpoints.load(tmp_path / "own.safetensors")
    assert np.array_equal(again["q"].dequantize(), found["q"].dequantize())
    assert np.array_equal(again["half"], half)
    assert set(PLAIN) <= set(TYPES.values())


def test_what_is_refused(tmp_path):
    file = tmp_path / "model.gguf"
    for type, why in (("IQ2_XS", "table of vectors"), ("Q8_K", "a format of activations"), ("TQ1_0", "ternary")):
        written(file, {"x": (type, RNG.integers(0, 9, (2, BLOCKS[type].bytes), dtype=np.uint8))})
        found = checkpoints.load(file)
        with pytest.raises(ValueError, match=f"x is in GGUF's {type}, which is not taken: .*{why}"):
            found["x"]
    with pytest.raises(KeyError, match="has no such weight"):
        found["y"]
    whole = file.read_bytes()
    cases = ((whole[:10], "it has 10 bytes"), (b"GGML" + whole[4:], "begins with"), (whole[:60], "is no"),
             (whole[:4] + struct.pack("<I", 9) + whole[8:], "version 2 or 3"), (whole[:-40], "ends behind the file"))
    for content, why in cases:
        file.write_bytes(content)
        with pytest.raises(ValueError, match=why):
            checkpoints.load(file)


def header(alignment=32, lengths=(32,), type=0, offset=0, metadata=b""):
    """A file with one number of metadata, and one tensor of zeros."""
    text = b"general.alignment"
    pairs = struct.pack("<Q", len(text)) + text + (metadata or struct.pack("<II", 4, alignment))
    tensor = struct.pack("<QcI", 1, b"x", len(lengths)) + struct.pack(f"<{len(lengths)}Q", *lengths)
    return struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + pairs + tensor + struct.pack("<IQ", type, offset) + bytes(256)


@pytest.mark.parametrize(("how", "why"), [
    ({"alignment": 0}, "general.alignment 0"), ({"metadata": struct.pack("<IQ", 8, 1) + b"a"}, "alignment 'a'"),
    ({"lengths": (1 << 63, 2)}, "ends behind"), ({"lengths": (1, 1 << 32, 1 << 32)}, "ends behind"),
    ({"lengths": (1 << 62, 0)}, "ends behind"), ({"type": 2, "lengths": (32, 1 << 33, 1 << 33)}, "ends behind"),
    ({"type": 2, "lengths": (31,)}, "blocks have 32 numbers"), ({"offset": 1 << 63}, "ends behind"),
    ({"type": 99}, "type 99"), ({"metadata": struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9000}, "no complete"),
])
def test_headers_that_lie(how, why, tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(header())
    assert checkpoints.load(file)["x"].shape == (32,)
    file.write_bytes(header(**how))
    with pytest.raises(ValueError, match=f"x.gguf.*{why}"):
        checkpoints.load(file)


def test_a_model_in_parts(tmp_path):
    for at, name in ((1, "a"), (2, "b")):
        written(tmp_path / f"m-0000{at}-of-00002.gguf", {name: np.full(3, at, np.float32)})
    found = checkpoints.load(tmp_path / "m-00002-of-00002.gguf")
    assert {name: x[0] for name, x in found.items()} == {"a": 1, "b": 2}
