"""Weight-only products: floating-point activations by weights of few bits with groups of scales."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

RNG = np.random.default_rng(18)
ROUNDING = {np.float32: 2.0**-24, ml_dtypes.bfloat16: 2.0**-8, np.float16: 2.0**-10}    # of weights, and of a result


def checked(found, x, q, dtype=np.float32):
    """Of the sum over k of the products' sizes: a rounding of each weight, of each sum and of the result."""
    weights, x = tw.dequantize(q, "f64"), np.asarray(x, np.float64)
    exact, size = x @ weights, np.abs(x) @ np.abs(weights)
    k = x.shape[-1]
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= ((k + 3)*2.0**-24 + ROUNDING[dtype]) * size).all(), (q, dtype)


@pytest.mark.parametrize(("name", "zero"),
                         [("i8", False), ("i4", True), ("u4", True), ("e2m1", False), ("e4m3fn", False)])
def test_rows_of_every_type_by_weights(name, zero):
    w = RNG.standard_normal((300, 34), np.float32)
    q = tw.quantize(w, name, axis=-2, group=128, zero_points=zero)          # the last group has 44
    x = RNG.standard_normal((33, 300), np.float32)
    checked(tw.matmul(x, q), x, q)
    checked(x[:2] @ q, x[:2], q)


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
