"""Weight-only products: floating-point activations by weights of few bits with groups of scales."""
from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiled import packed_weights
from tilewright.compiler import llvm
from tilewright.kernels.cpu.weight_pairs import emit_pairs
from tilewright.kernels.cpu.weights import emit_dots
from tilewright.plans import few_rows

RNG = np.random.default_rng(18)
ROUNDING = {np.float32: 2.0**-24, ml_dtypes.bfloat16: 2.0**-8, np.float16: 2.0**-10}    # of weights, and of a result


def checked(found, x, q, dtype=np.float32):
    """Of the sum over k of the products' sizes: a rounding of each weight, of each sum and of the result."""
    weights, x = tw.dequantize(q, "f64"), np.asarray(x, np.float64)
    exact, size = x @ weights, np.abs(x) @ np.abs(weights)
    k = x.shape[-1]
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= ((k + 3)*2.0**-24 + ROUNDING[dtype]) * size).all(), (q, dtype)


@pytest.mark.parametrize(("name", "zero"), [("i8", False), ("u4", True), ("e4m3fn", False)])
def test_rows_of_every_type_by_weights(name, zero):
    w = RNG.standard_normal((300, 34), np.float32)
    q = tw.quantize(w, name, axis=-2, group=128, zero_points=zero)          # the last group has 44
    x = RNG.standard_normal((33, 300), np.float32)
    checked(tw.matmul(x, q), x, q)


F32, BF16 = np.float32, ml_dtypes.bfloat16
CASES = [("i8", {"group": 64}, F32, 1), ("i8", {}, BF16, 1), ("u4", {"group": 128, "zero_points": True}, BF16, 2),
         ("i4", {"group": 32}, F32, 9), ("i4", {"group": 32}, BF16, 1), ("e2m1", {"group": 64}, F32, 1),
         ("mxfp4", {}, BF16, 1), ("nvfp4", {}, F32, 1), ("i8", {"group": 128}, BF16, 5), ("mxfp4", {}, BF16, 16)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "how", "dtype", "m"), CASES)
def test_few_rows_read_weights_once(name, how, dtype, m):
    """By rows and by columns, of k and n that end within a vector, a group and a byte. Nothing is rounded to bf16."""
    w, x = RNG.standard_normal((259, 70), np.float32), RNG.standard_normal((m, 259)).astype(dtype)
    for q, options in ((tw.quantize(w, name, axis=-2, **how), {}),
                       (tw.quantize(w.T, name, axis=-1, **how), {"trans_b": True})):
        found = tw.matmul(x, q, **options)
        checked(found, x, q.T if options else q)
        out = np.zeros((m, 70), dtype)
        assert tw.matmul(x, q, out, threads=2, **options) is out
        assert (out == found.astype(dtype)).all()


def calls_of(function):
    """How many Python functions a call of this one calls."""
    found = []
    sys.setprofile(lambda frame, event, argument: found.append(frame) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(found)


@pytest.mark.parametrize(("name", "how", "dtype", "m"), [*CASES[1::2], ("bf16", {}, BF16, 1), ("bf16", {}, BF16, 5)])
def test_few_rows_with_an_epilogue(name, how, dtype, m, monkeypatch):
    """In the job of the product: its bits, and few more Python functions than a product by itself calls."""
    monkeypatch.setattr(few_rows, "LARGE", 1)
    w, x = RNG.standard_normal((259, 70), np.float32), RNG.standard_normal((m, 259)).astype(dtype)
    bias, res, gates = (RNG.standard_normal(shape, np.float32) for shape in ((70,), (m, 70), (m, 35)))
    for q, options in ((w.astype(BF16) if name == "bf16" else tw.quantize(w, name, axis=-2, **how), {}),
                       (w.T.astype(BF16) if name == "bf16" else tw.quantize(w.T, name, axis=-1, **how),
                        {"trans_b": True})):
        for threads in 1, 2:
            def alone(q=q, options=options, threads=threads):
                return tw.matmul(x, q, threads=threads, **options)

            def fused(out=None, q=q, options=options, threads=threads):
                return tw.matmul(x, q, out, threads=threads, epilogue=lambda acc, bias, res: acc + bias - res,
                                 operands={"res": res, "bias": bias}, **options)
            assert (fused() == alone() + bias - res).all()
            assert (fused(np.empty((m, 70), np.float32)) == fused()).all()
            pairs = tw.matmul(x, q, threads=threads, epilogue=lambda acc, g: tw.pairs(acc)[0] * tw.pairs(acc)[1] + g,
                              operands={"g": gates}, **options)
            assert np.allclose(pairs, alone()[:, ::2] * alone()[:, 1::2] + gates, rtol=1e-5, atol=1e-4)
            assert calls_of(fused) - calls_of(alone) <= 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "how", "k", "group"), [
    ("i8", {}, 31, 20), ("u4", {"zero_points": True}, 31, 24), ("i8", {}, 290, 24), ("i4", {}, 33, 17)])
def test_groups_that_end_inside_a_partial_vector(name, how, k, group):
    """The last vector of k has the end of one group and a part of the next one."""
    w = RNG.standard_normal((40, k), np.float32)
    q = tw.quantize(w, name, axis=-1, group=group, **how)
    for m, dtype in ((3, np.float32), (9, np.float32), (9, ml_dtypes.bfloat16)):
        x = RNG.standard_normal((m, k), np.float32).astype(dtype)
        checked(tw.matmul(x, q, trans_b=True), x, q.mT, dtype)
    x = tw.quantize(RNG.standard_normal((5, k), np.float32), "i8", group=group)
    assert np.allclose(tw.matmul(x, q, trans_b=True), tw.dequantize(x, "f64") @ tw.dequantize(q, "f64").T, atol=1e-4)


@pytest.mark.parametrize("name", ["i4", "e2m1"])
def test_one_byte_of_elements(name):
    """Where elements take a single byte along an axis, strides do not say which axis that is. Scales of each step of k
    are not read with elements of 4 bits."""
    for n, k, trans in ((3, 2, True), (3, 1, True), (2, 3, False), (34, 2, True)):
        w = np.abs(RNG.standard_normal((n, k) if trans else (k, n), np.float32))
        for axis in -1, -2:                                             # scales of all of k, or of all of n
            q, x = tw.quantize(w, name, axis=axis, nibbles=True), RNG.standard_normal((2, k), np.float32)
            checked(tw.matmul(x, q, trans_b=trans), x, q.mT if trans else q)


@pytest.mark.parametrize("name", ["i8", "mxfp8"])
def test_alpha_and_plans_with_few_rows(name):
    x, q = np.ones((3, 64), np.float32), tw.quantize(np.ones((64, 32), np.float32), name, axis=-2)
    for alpha in 1, 2, 0.5:
        assert np.array_equal(tw.matmul(x, q, alpha=alpha), np.full((3, 32), 64*alpha)), alpha
    with pytest.raises(ValueError, match="in_place 1x3 cannot run"):
        tw.matmul(x, q, plan="in_place 1x3")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("m", [1, 5, 8, 33, 65])
def test_rows_of_bf16_by_a_large_matrix(m, by_rows):
    """Read once where it lies, up to as many rows as that is faster; into an array of either format."""
    k, n = 1030, 1043
    x, w = RNG.standard_normal((m, k)).astype(BF16), RNG.standard_normal((k, n)).astype(BF16)
    given = np.ascontiguousarray(w.T) if by_rows else w
    exact, size = (f(x.astype(np.float64)) @ f(w.astype(np.float64)) for f in (np.array, np.abs))
    found = tw.matmul(x, given, trans_b=by_rows, threads=2)
    assert (np.abs(found - exact) <= (k + 3) * 2.0**-24 * size).all()
    for dtype in (F32, BF16):
        out = np.zeros((m, n), dtype)
        assert tw.matmul(x, given, out, trans_b=by_rows, threads=2) is out
        assert (out == found.astype(dtype)).all()


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


def test_layouts_vectors_batches_and_what_follows():
    w = RNG.standard_normal((34, 128), np.float32)
    q = tw.quantize(w, "i4", axis=-1, group=32)                             # as a linear layer stores it
    x = RNG.standard_normal((2, 3, 128)).astype(ml_dtypes.bfloat16)
    y = tw.matmul(x, q, trans_b=True)
    assert y.dtype == np.float32
    checked(y, x, q.T, ml_dtypes.bfloat16)
    assert (tw.matmul(x, q.T) == y).all()
    out = np.zeros(34, np.float32)
    assert tw.matmul(x[0, 0], q.T, out) is out
    checked(out, x[0, 0], q.T, ml_dtypes.bfloat16)
    checked(tw.matmul(q, np.asarray(x[0, 0], "f4")), np.asarray(x[0, 0], "f4"), q.T)
    z = tw.matmul(x, q.T, epilogue=lambda acc, r: acc + r, operands={"r": np.float32(2)}, alpha=2)
    checked((z - 2) / 2, x, q.T, ml_dtypes.bfloat16)


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
