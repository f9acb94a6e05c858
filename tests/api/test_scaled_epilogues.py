"""Scales of rows of a and columns of b with an epilogue, whose first parameter is then the scaled sums."""
from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

RNG = np.random.default_rng(3)
A, B = RNG.standard_normal((2, 21, 90), np.float32), RNG.standard_normal((90, 34), np.float32)
BIAS = RNG.standard_normal(34).astype(np.float32)


def paired(acc):
    gate, up = tw.pairs(acc)
    return tw.silu(gate) * up


@pytest.mark.parametrize("name", ["i8", "e4m3fn"])
def test_scaled_sums_are_what_it_takes(name):
    a, b = tw.quantize(A, name, axis=-1), tw.quantize(B, name, axis=-2)
    exact = tw.dequantize(a, "f64") @ tw.dequantize(b, "f64")
    np.testing.assert_array_equal(tw.matmul(a, b, epilogue=lambda acc: acc), tw.matmul(a, b))
    found, largest = tw.matmul(a, b, alpha=2, epilogue=lambda acc, bias: (y := tw.gelu(acc + bias), tw.row_amax(y)),
                               operands={"bias": BIAS})
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, tw.gelu(2*exact + BIAS), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(largest, np.abs(found).max(axis=-1))
    gate, up = exact[..., 0::2], exact[..., 1::2]
    np.testing.assert_allclose(tw.matmul(a, b, epilogue=paired), gate / (1 + np.exp(-gate)) * up, rtol=1e-4, atol=1e-4)
    narrow = tw.matmul(a[0], b, epilogue=lambda acc, s: acc * s, operands={"s": 0.25}, out_dtype="e4m3fn")
    assert narrow.dtype == tw.quantize(A, "e4m3fn").elements.dtype
    packed = tw.pack(b, a=name)
    np.testing.assert_array_equal(tw.matmul(a, packed, epilogue=paired), tw.matmul(a, b, epilogue=paired))


def test_sums_of_integers_are_exact():
    """Beyond 2^24, which f32 does not hold: they are brought to floats once."""
    a, b = np.full((3, 4000), 127, np.int8), np.full((4000, 5), 127, np.int8)
    b[0, 0] = 126
    scale = np.full((3, 1), 2.0**-20, np.float32)
    got = tw.matmul(a, b, scale_a=scale, scale_b=1.0, epilogue=lambda acc: acc)
    np.testing.assert_array_equal(got, (a.astype(np.int64) @ b).astype(np.float32) * np.float32(2.0**-20))


def test_what_goes_with_neither():
    a, b = tw.quantize(A[0], "i8", axis=-1), tw.quantize(B, "i8", axis=-2)
    with pytest.raises(ValueError, match="c must be None where rows or columns of an operand have scales"):
        tw.matmul(a, b, beta=1, c=np.zeros((21, 34), np.float32), epilogue=lambda acc: acc)
    with pytest.raises(ValueError, match="prologue_a and prologue_b must be None where rows or columns"):
        tw.matmul(a.elements, b.elements, scale_a=np.ones((21, 1), np.float32), prologue_b=lambda b: b * 2)
