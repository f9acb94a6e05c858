"""Files of packed operands (runtime/cpu/packed.py): products have the same bits, and other files are refused."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.cpu.packed import FIELDS, FILE

RNG = np.random.default_rng(5)
BF16 = ml_dtypes.bfloat16
OPERANDS = {
    "f32": (RNG.standard_normal((70, 45), np.float32), None), "stack": (RNG.standard_normal((2, 3, 33, 20)), None),
    "i8": (RNG.integers(-9, 9, (129, 66)).astype(np.int8), None), "bf16": (RNG.random((66, 40)).astype(BF16), None),
    "fp8": (RNG.random((30, 20)).astype(ml_dtypes.float8_e4m3fn), "bf16"), "c64": (RNG.random((20, 9)) + 1j, "c64"),
    "empty": (np.zeros((0, 5), np.float32), None),
    "scales": (tw.quantize(RNG.standard_normal((64, 50)), "i8", axis=-2), "i8")}


@pytest.mark.parametrize("name", OPERANDS)
def test_a_file_has_the_same_panels(name, tmp_path):
    b, a = OPERANDS[name]
    b = b.astype(np.complex64) if name == "c64" else b
    packed = tw.pack(b, a=a)
    packed.save(tmp_path / "b")
    read = tw.load(tmp_path / "b")
    assert str(read) == str(packed)
    assert read.plan == packed.plan
    for m in (1, 7, 40):
        x = RNG.integers(-3, 4, (m, b.shape[-2])).astype(packed.a)
        assert tw.matmul(x, read).tobytes() == tw.matmul(x, packed).tobytes()


def test_a_plan_that_was_asked_for_stays(tmp_path):
    packed = tw.pack(np.ones((100, 60), np.float32), plan="packed 6x16 mc=6 nc=16 kc=40", target="x86-avx2")
    if tw.detect().name != "x86-avx2":
        packed.save(tmp_path / "b")
        with pytest.raises(ValueError, match="was packed for x86-avx2, and this process multiplies by code for"):
            tw.load(tmp_path / "b")
        return
    packed.save(tmp_path / "b")
    assert (tw.matmul(np.ones((3, 100), np.float32), tw.load(tmp_path / "b")) == 100).all()


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "b"
    tw.pack(np.ones((64, 48), np.float32)).save(path)
    good = path.read_bytes()
    magic = b"tilewright panels 1\n"
    assert good.startswith(magic)
    index, arrays = FILE.load(path, FIELDS)
    for words, content in {"is truncated": good[:-1], "damaged: its checksum": good[:-70] + b"x" + good[-69:],
                           "is a file of packed panels of version 2, and this tilewright reads version 1: pack":
                           good.replace(magic, magic.replace(b"1", b"2")),
                           "no bundle of tilewright": b"what" + good}.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            tw.load(path)
    for change, words in (({"target": "sm_1"}, "is for sm_1, a target that this tilewright has not"),
                          ({"plan": "in_place 4x16"}, "damaged"), ({"shape": [6400, 48]}, "bytes of panels, and this"),
                          ({"word": "f31"}, "panels of f31"), ({"dtype": "f31"}, "damaged"),
                          ({"takes": []}, "damaged"), ({"asked": 1}, "asked must be bool")):
        del index["arrays"]
        FILE.save(path, index | change, arrays)
        with pytest.raises(ValueError, match=words):
            tw.load(path)
        index["arrays"] = []


@pytest.mark.parametrize(("b", "plan", "digest"), [
    (np.arange(35*40, dtype=np.float32).reshape(35, 40), "packed 6x16 mc=6 nc=16 kc=20", "c14daeca82630926"),
    ((np.arange(35*40) % 251 - 125).astype(np.int8).reshape(35, 40), "packed 4x16 mc=4 nc=16 kc=16",
     "0db09989dacf7878")])
def test_panels_of_this_version(b, plan, digest):
    """Where panels are packed otherwise than when these digests were taken, the version of packed.FILE has to rise."""
    packed = tw.pack(b, plan=plan, target="zen3")
    assert FILE.version == 1
    assert hashlib.sha256(packed._panels[:packed.nbytes].tobytes()).hexdigest()[:16] == digest
