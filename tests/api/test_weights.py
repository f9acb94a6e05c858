"""Weight-only products: floating-point activations by weights of few bits with groups of scales."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiled import packed_weights
from tilewright.compiler import llvm
from tilewright.formats.conversion import pack
from tilewright.formats.scaled import Nibbles
from tilewright.kernels.cpu.weight_pairs import emit_pairs
from tilewright.kernels.cpu.weights import emit_dots

RNG = np.random.default_rng(18)
ROUNDING = {np.float32: 2.0**-24, ml_dtypes.bfloat16: 2.0**-8, np.float16: 2.0**-10}    # of weights, and of a result


def checked(found, x, q, dtype=np.float32):
    """Of the sum over k of the products' sizes: a rounding of each weight, of each sum and of the result."""
    weights, x = tw.dequantize(q, "f64"), np.asarray(x, np.float64)
    exact, size = x @ weights, np.abs(x) @ np.abs(weights)
    k = x.shape[-1]
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= ((k + 3)*2.0**-24 + ROUNDING[dtype]) * size).all(), (q, dtype)


@pytest.mark.parametrize("name", ["i8", "mxfp8"])
def test_alpha_and_plans_with_few_rows(name):
    x, q = np.ones((3, 64), np.float32), tw.quantize(np.ones((64, 32), np.float32), name, axis=-2)
    for alpha in 1, 2, 0.5:
        assert np.array_equal(tw.matmul(x, q, alpha=alpha), np.full((3, 32), 64*alpha)), alpha
    with pytest.raises(ValueError, match="in_place 1x3 cannot run"):
        tw.matmul(x, q, plan="in_place 1x3")


def test_kernels_use_the_instructions_meant():
    """16 weights by VPERMD and 32 by VPERMW for each multiply-add, and nothing is spilled."""
    prologue = "b:int s:float; float b; mul %0 s; -> %1", ("f32:n1:128",), "f32"
    plain, pairs = tw.target("x86-avx512"), tw.target("sapphirerapids").extended
    for function, target, look_up, multiply in (
            (emit_dots(plain, "f32", 4, 1, "i4x2", prologue), plain, "vpermd", "vfmadd"),
            (emit_pairs(pairs, 4, 1, "i4x2", prologue), pairs, "vpermw", "vdpbf16ps")):
        code = llvm.assembly(function, target)
        assert 4*4 <= code.count(look_up) <= code.count(multiply), function.name
        assert not any("zmm" in line and "(%rsp)" in line for line in code.splitlines()), function.name


def test_what_cannot_be_combined():
    w = RNG.standard_normal((64, 32), np.float32)
    q, x = tw.quantize(w, "i4", axis=-2, group=32), RNG.standard_normal((2, 64), np.float32)
    for wrong, error, words in [
            (lambda: tw.matmul(x, tw.quantize(w, "i4", axis=-1, group=16)), ValueError, "groups of b must be along k"),
            (lambda: tw.matmul(tw.quantize(x, "mxfp8"), q), TypeError, "a is mxfp8, and the other operand has groups"),
            (lambda: tw.matmul(x, q, scale_b=2.0), ValueError, "b is a Scaled, which has its own scales"),
            (lambda: tw.matmul(x, q, prologue_b=lambda b: b), ValueError, "prologue_b must be None with it"),
            (lambda: tw.matmul(x.astype(complex), q), TypeError, "real floating-point"),
            (lambda: tw.matmul(x, q, algorithm="fastest"), ValueError, "algorithm= is not supported with a prologue")]:
        with pytest.raises(error, match=words):
            wrong()


# ---- packed

@pytest.mark.parametrize(("name", "how"), [("u4", {"group": 64, "zero_points": True}), ("nvfp4", {})])
def test_packed_weights_stay_narrow_and_are_saved(name, how, tmp_path, monkeypatch):
    """From either layout, for any rows, by blocks of columns where there are many; and from a file."""
    w = RNG.standard_normal((260, 200), np.float32)
    q = tw.quantize(w, name, axis=-2, **how)
    packed, other = tw.pack(q), tw.pack(tw.quantize(w.T, name, axis=-1, **how), trans_b=True)
    assert packed.shape == (260, 200)
    assert packed.nbytes <= q.nbytes < w.nbytes / 6
    packed.save(tmp_path / "w")
    read = tw.load(tmp_path / "w")
    assert isinstance(read, tw.PackedWeights)
    assert str(read) == str(packed)
    monkeypatch.setattr(packed_weights, "DECODED", 1 << 16)
    for m in (1, 40):
        x = RNG.standard_normal((m, 260), np.float32)
        found = tw.matmul(x, packed)
        checked(found, x, q)
        assert (tw.matmul(x, other) == found).all()
        out = np.zeros((m, 200), np.float32)
        assert tw.matmul(x, read, out) is out
        assert (out == found).all()


def test_files_of_packed_weights_that_are_refused(tmp_path):
    packed, path = tw.pack(tw.quantize(RNG.standard_normal((64, 32)), "i4", axis=-2, group=32)), tmp_path / "w"
    packed.save(path)
    good = path.read_bytes()
    magic = b"tilewright weights 1\n"
    cases = {"is truncated": good[:-1], "is damaged: its checksum": good[:-70] + b"x" + good[-69:],
             "is a file of packed weights of version 2, and this tilewright reads version 1":
             good.replace(magic, magic.replace(b"1", b"2")),
             "has been written to": good + b"x",
             "is truncated: it has 25 bytes": good[:25]}
    for words, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            tw.load(path)
    names = {"x86-avx512", "x86-avx2"} - {packed.target}
    packed_weights.PackedWeights(packed.weights, names.pop()).save(path)
    with pytest.raises(ValueError, match=r"was packed for x86-.*, and this process multiplies by code for x86-"):
        tw.load(path)
    on_gpu = tw.pack(tw.quantize(RNG.standard_normal((64, 32)), "i4", axis=-2, group=32), target="sm_90a")
    on_gpu.save(path)
    assert tw.load(path).target == "sm_90a"
    x = np.ones((2, 64), np.float32)
    for wrong, error, words in [(lambda: tw.matmul(x, on_gpu), ValueError, "b was packed for sm_90a"),
                                (lambda: tw.matmul(x, packed, trans_b=True), ValueError, "cannot be transposed"),
                                (lambda: tw.matmul(packed, x.T), TypeError, "weights cannot be used as an array"),
                                (lambda: tw.pack(packed), TypeError, "packed weights cannot be used as an array"),
                                (lambda: tw.pack(tw.quantize(x, "mxfp4")), ValueError, "blocks of b must be along k")]:
        with pytest.raises(error, match=words):
            wrong()


def test_both_operands_of_half_bytes_with_an_odd_row_are_repeated():
    """What is decoded of such rows is a view with gaps, all of whose memory a repeated call needs, too."""
    rng = np.random.default_rng(11)
    for _ in range(3):
        a, b = (rng.integers(-7, 8, shape).astype(ml_dtypes.int4) for shape in ((100, 7), (7, 3)))
        scales = [np.exp2(rng.integers(-2, 2, shape)).astype(np.float32) for shape in ((100, 1), (1, 3))]
        x, y = (tw.Scaled(pack(z), s, None, 8, Nibbles("i4", -1, z.shape[-1])) for z, s in zip((a, b), scales))
        wanted = (a.astype(float) * scales[0]) @ (b.astype(float) * scales[1])
        np.testing.assert_array_equal(tw.matmul(x, y), wanted)
