"""Files of safetensors: those of the package are read, and it reads ours."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import checkpoints
from tilewright.checkpoints import safetensors

RNG = np.random.default_rng(0)
ARRAYS = {
    "a.weight": RNG.standard_normal((3, 5)).astype(np.float32), "b": np.arange(7, dtype=np.int64),
    "half": RNG.standard_normal(9).astype(np.float16), "none": np.zeros((0, 4), np.uint8), "one": np.array(2.5),
    "brain": RNG.standard_normal((2, 3)).astype(ml_dtypes.bfloat16), "true": np.array([True, False]),
    "e4m3": RNG.standard_normal((2, 3)).astype(ml_dtypes.float8_e4m3fn), "ä": np.arange(3, dtype=np.int8),
}


def test_files_of_the_package(tmp_path):
    """Ours have the bytes of its."""
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    plain = {name: x for name, x in ARRAYS.items() if x.dtype.kind != "V" and x.dtype.isbuiltin == 1}
    package.save_file(plain, tmp_path / "theirs.safetensors", {"format": "np"})
    safetensors.save(tmp_path / "ours.safetensors", plain, {"format": "np"})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    for name, x in package.load_file(tmp_path / "ours.safetensors").items():
        assert np.array_equal(x, plain[name])


def test_what_is_saved_is_loaded(tmp_path):
    file = tmp_path / "x.safetensors"
    checkpoints.save(file, ARRAYS, {"by": "hand"})
    found = checkpoints.load(file)
    assert found.metadata == {"by": "hand"}
    assert {*found} == {*ARRAYS}
    for name, x in found.items():
        assert x.dtype == ARRAYS[name].dtype
        assert x.shape == np.shape(ARRAYS[name])
        assert x.tobytes() == ARRAYS[name].tobytes()
        assert not x.flags.owndata
    before = file.read_bytes()
    found["b"][:] = 0                                       # a page of this process
    assert file.read_bytes() == before


def weights():
    x = RNG.standard_normal((6, 64)).astype(np.float32)
    yield from ((f"{format}.weight", tw.quantize(x, format)) for format in ("mxfp8", "mxfp6", "mxfp4", "nvfp4", "i8"))
    yield "i4.weight", tw.quantize(x, "i4", group=16)
    yield "u4.weight", tw.quantize(x, "u4", group=32, zero_points=True)
    scales = RNG.random((6, 2)).astype(np.float32)
    q = tw.Scaled(RNG.integers(0, 256, (6, 32), dtype=np.uint8), scales, None, 32, "u4", -scales)
    yield "minima.weight", q
    yield "order.weight", checkpoints.Weight(q, RNG.permutation(64), "gptq", False)
    yield "stack.weight", tw.quantize(RNG.standard_normal((2, 3, 64)), "mxfp4")


def test_weights_in_few_bits_are_saved_and_used_in_place(tmp_path):
    made = dict(weights())
    for at in (1, 2):
        again = made if at == 1 else checkpoints.load(tmp_path / "1.safetensors")
        checkpoints.save(tmp_path / f"{at}.safetensors", again)
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()
    found = checkpoints.load(tmp_path / "2.safetensors")
    assert {*found} == {*made}
    for name, w in made.items():
        wanted = w if isinstance(w, checkpoints.Weight) else checkpoints.Weight(w)
        assert np.array_equal(found[name].dequantize(), wanted.dequantize()), name
        assert not found[name].numbers.elements.flags.owndata
        assert (found[name].source, found[name].exact) == (wanted.source, wanted.exact)
    assert "inputs in another order" in repr(found["order.weight"])
    assert found["i4.weight"].nbytes == made["i4.weight"].nbytes
    with pytest.raises(KeyError, match="has no such weight"):
        found["i4.weight.elements"]


def test_a_folder_of_parts(tmp_path):
    made = dict(weights())
    for at, (name, w) in enumerate(made.items()):
        checkpoints.save(tmp_path / f"model-{at}.safetensors", {name: w, f"bias{at}": np.ones(at)})
    assert {*checkpoints.load(tmp_path)} == {*made} | {f"bias{at}" for at in range(len(made))}
    index = {"weight_map": {"x": "model-0.safetensors", "y": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(checkpoints.load(tmp_path)) == 4
    with pytest.raises(FileNotFoundError, match="has no files of safetensors"):
        checkpoints.load(tmp_path.joinpath("empty").mkdir() or tmp_path / "empty")


def test_what_is_no_such_file(tmp_path):
    file = tmp_path / "x.safetensors"
    safetensors.save(file, {"a": np.ones(3, np.float32)})
    whole = file.read_bytes()

    def with_header(**entry):
        text = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12], **entry}}).encode()
        return struct.pack("<Q", len(text)) + text + whole[-12:]
    for content, why in (
            (b"", "it has 0 bytes"), (whole[:9], "its header would have"),
            (whole[:8] + b"x" + whole[9:], "is no JSON"), (whole[:-4], "cannot have the bytes 0 to 12"),
            (with_header(dtype="F4"), "tensor a is of F4, which is none of"),
            (with_header(shape=[4]), "cannot have the bytes"),
            (with_header(data_offsets=[-12, 0]), "in whole numbers"),
            (with_header(shape=[1 << 33, 1 << 33, 0]), "cannot have the bytes"),
            (with_header(shape=[-1, -3]), "in whole numbers"), (with_header(shape=[3.0]), "in whole numbers"),
            (with_header(shape="3"), "in whole numbers"), (with_header(dtype=[]), "which is none of"),
            (with_header(data_offsets=[0]), "in whole numbers"), (whole + b"1234", "is no complete file"),
            (with_header(shape=[2], data_offsets=[4, 12]), "begins at byte 4"),
            (struct.pack("<Q", 9000) + b"[" * 9000, "is no JSON"), (struct.pack("<Q", 2) + b"[]", "must be an object"),
            (struct.pack("<Q", 20) + b'{"__metadata__": 13}', "no texts by name"),
            (with_header(more=1), "unexpected keyword argument 'more'")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=why):
            checkpoints.load(file)
    before = file.read_bytes()
    for given, metadata, why in (({"a": np.array(["x"])}, None, "tensor a is of <U1, which files of safetensors lack"),
                                 ({"a": np.ones(2)}, {"n": 3}, "must be texts"), ({3: np.ones(2)}, None, "be texts")):
        with pytest.raises(TypeError, match=why):
            checkpoints.save(file, given, metadata)
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(("old", "new", "why"), [
    ('"i4"', '"i9"', "must be of i4, u4, e2m1"), ('"group"', '"grouq"', "'group' is missing"), ("{", "[", "is no JSON"),
    ('"exact"', '"exakt"', "'exact' is missing"), ('"nibbles"', '"nipples"', "'nibbles' is missing"),
    ("16, 64", "16, 65", "which says"), ("w.scales", "w.skales", "NoneType"),
])
def test_what_own_files_say_of_weights_may_be_damaged(old, new, why, tmp_path):
    file = tmp_path / "x.safetensors"
    checkpoints.save(file, {"w": tw.quantize(RNG.standard_normal((16, 64)).astype(np.float32), "i4", group=16)})
    content = file.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:data])
    own = header["__metadata__"]
    own["tilewright"] = own["tilewright"].replace(old, new, 1)
    text = json.dumps({new if name == old else name: x for name, x in header.items()}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[data:])
    with pytest.raises(ValueError, match=why):
        checkpoints.load(file)["w"]
