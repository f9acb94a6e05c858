"""Scales of rows, columns and whole operands; arrays with scales as indices, @ and np.asarray see them; packed ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.formats import BLOCK_FORMATS, FORMATS

R = np.random.default_rng(4)
X = R.standard_normal((37, 70)).astype(np.float32)
Y = R.standard_normal((70, 23)).astype(np.float32)


def whole(dtype: Any, *shape: int) -> Any:
    return R.integers(-8 if np.dtype(dtype) != np.uint8 else 0, 8, shape).astype(dtype)


def test_sums_of_integers_do_not_wrap():
    """i32 while k times the largest product fits, then i64: i8 wraps in i32 beyond k = 131,071."""
    for k in (131_071, 140_000):
        a = np.full((1, k), -128, np.int8)
        assert tw.matmul(a, a.T, scale_a=1.0)[0, 0] == np.float32(k * 2**14)
    a = np.full((1, 3), -(2**15), np.int16)
    assert tw.matmul(a, a.T, scale_b=0.5)[0, 0] == 3 * 2.0**29


def test_what_is_refused():
    a, b = whole(np.int8, 4, 32), whole(np.int8, 32, 5)
    for scales, words in (
        (np.ones(4, np.float32), r"scale_a with one scale per row of a must have the shape \(4, 1\), .* is \(4,\)"),
        (np.ones((1, 32), np.float32), r"must have the shape \(4, 1\), or 1 where all share it, .* is \(1, 32\)"),
    ):
        with pytest.raises(ValueError, match=words):
            tw.matmul(a, b, scale_a=scales)
    with pytest.raises(ValueError, match=r"scale_b with one scale per column of b must have the shape \(1, 5\)"):
        tw.matmul(a, b, scale_b=np.ones((5, 1), np.float32))
    one = np.ones((4, 1), np.float32)
    with pytest.raises(TypeError, match="must be of a floating-point format where operands have scales, not int32"):
        tw.matmul(a, b, scale_a=one, out_dtype="i32")
    with pytest.raises(TypeError, match="out has dtype int32, to which a result of dtype float32 cannot be cast"):
        tw.matmul(a, b, np.zeros((4, 5), np.int32), scale_a=one)
    with pytest.raises(ValueError, match=r"out must have the result's shape \(4, 5\), but its shape is \(5, 5\)"):
        tw.matmul(a, b, np.zeros((5, 5)), scale_a=one)
    with pytest.raises(ValueError, match=r"c must broadcast to the result's shape \(4, 5\)"):
        tw.matmul(a, b, scale_a=one, beta=1, c=np.ones((3, 5)))
    with pytest.raises(TypeError, match="operands with scales must be real"):
        tw.matmul(a.astype(complex), b, scale_a=one)
    with pytest.raises(ValueError, match="a and b must agree in k"):
        tw.matmul(a, b[1:], scale_a=one)


def test_sums_of_integers_are_exact():
    """Beyond 2^24, which f32 does not hold: they are brought to floats once."""
    a, b = np.full((3, 4000), 127, np.int8), np.full((4000, 5), 127, np.int8)
    b[0, 0] = 126
    scale = np.full((3, 1), 2.0**-20, np.float32)
    got = tw.matmul(a, b, scale_a=scale, scale_b=1.0, epilogue=lambda acc: acc)
    np.testing.assert_array_equal(got, (a.astype(np.int64) @ b).astype(np.float32) * np.float32(2.0**-20))


def test_what_goes_with_no_scales():
    a, b = tw.quantize(X, "i8", axis=-1), tw.quantize(Y, "i8", axis=-2)
    with pytest.raises(ValueError, match="c must be None where rows or columns of an operand have scales"):
        tw.matmul(a, b, beta=1, c=np.zeros((37, 23), np.float32), epilogue=lambda acc: acc)
    with pytest.raises(ValueError, match="prologue_a and prologue_b must be None where rows or columns"):
        tw.matmul(a.elements, b.elements, scale_a=np.ones((37, 1), np.float32), prologue_b=lambda b: b * 2)


# ---- quantize to whole rows and columns


@pytest.mark.parametrize("name", ["i8", "i4", "i16", "u8", "e4m3fn", "e5m2", "e2m1", "f16"])
@pytest.mark.parametrize("axis", [-1, 0, None])
def test_quantize_by_the_largest_number(name, axis):
    f = FORMATS[name]
    x = np.abs(X) if name[0] == "u" else X
    q = tw.quantize(x, name, axis=axis)
    assert isinstance(q, tw.Scaled)
    amax = np.abs(x).max(axis, keepdims=True)
    np.testing.assert_array_equal(q.scales, (amax.astype(np.float64) / float(f.largest)).astype(np.float32))
    assert q.elements.dtype == f.dtype
    assert q.shape == x.shape
    numbers = tw.dequantize(q, "f64")
    step = q.scales
    if name[0] not in "iu":
        step = np.maximum(np.abs(numbers), q.scales * float(f.smallest_normal)) * 2.0**-f.mantissa
    assert (np.abs(numbers - x) <= 0.502 * step).all()  # x / scale is rounded to f32 before
    np.testing.assert_array_equal(np.asarray(q), tw.dequantize(q))
    assert tw.dequantize(q, "bf16").dtype == ml_dtypes.bfloat16


def test_what_quantize_does_with_the_special():
    q = tw.quantize(np.array([[0.0, 0, 0], [1, -2, 1e-42], [3e38, -1e38, 0]], np.float32), "i8")
    assert q.scales[0] == 1
    np.testing.assert_array_equal(q.elements, [[0, 0, 0], [64, -127, 0], [127, -42, 0]])
    x = np.array([1, np.nan, np.inf, -4])
    for name, inf in (("e5m2", np.inf), ("e4m3fn", np.nan)):
        q = tw.quantize(x, name)
        np.testing.assert_array_equal(np.asarray(q)[1:3], [np.nan, inf])
        assert np.asarray(q)[3] == pytest.approx(-4)
    with pytest.raises(ValueError, match="x holds nan once, and i8 has no nan"):
        tw.quantize(x[:2], "i8")
    with pytest.raises(ValueError, match="x holds negative numbers, and u8 has none"):
        tw.quantize(x[3:], "u8")
    with pytest.raises(TypeError, match="format must be of integers of at most 16 bits or floats of smaller range"):
        tw.quantize(x, "i32")
    with pytest.raises(ValueError, match=r"format must be one of mxfp8, .*; or integers of at most 16 bits or"):
        tw.quantize(x, "int3")
    with pytest.raises(ValueError, match="axis must be an integer for mxfp4"):
        tw.quantize(x, "mxfp4", axis=None)


@pytest.mark.parametrize("name", ["i8", "i4", "e4m3fn"])
def test_products_of_them(name):
    a, b = tw.quantize(X, name), tw.quantize(Y, name, axis=-2)
    exact = tw.dequantize(a, "f64") @ tw.dequantize(b, "f64")
    got = tw.matmul(a, b)
    assert got.dtype == np.float32
    bound = 80 * 2.0**-24 * (np.abs(tw.dequantize(a, "f64")) @ np.abs(tw.dequantize(b, "f64")))
    assert (np.abs(got - exact) <= bound).all()
    np.testing.assert_array_equal(got, tw.matmul(a.elements, b.elements, scale_a=a.scales, scale_b=b.scales))
    np.testing.assert_array_equal(got, a @ b)
    np.testing.assert_allclose(got, (b.T @ a.T).T, atol=1e-5)  # scales are multiplied in another order
    np.testing.assert_array_equal(got, tw.matmul(a, tw.quantize(Y.T, name), trans_b=True))
    packed = tw.pack(b)
    np.testing.assert_array_equal(got, tw.matmul(a, packed))
    np.testing.assert_array_equal(got[:1], tw.matmul(a[:1], packed))
    np.testing.assert_allclose(X @ b, X @ np.asarray(b), atol=1e-4)
    np.testing.assert_allclose(tw.matmul(X, tw.pack(b, a="f32")), X @ b, atol=1e-5)
    with pytest.raises(ValueError, match=rf"of b that share a scale must be those along k, .*'{name}', axis=-2"):
        tw.matmul(a, tw.quantize(Y, name))
    with pytest.raises(ValueError, match="b is a Scaled, which has its own scales: scale_b must be None"):
        tw.matmul(a, b, scale_b=1)
    with pytest.raises(ValueError, match="b is packed with scales, which has its own scales"):
        tw.matmul(a, packed, scale_b=2)


# ---- pack(Quantized)


def test_products_with_packed_blocks_decode_nothing(monkeypatch):
    """Few rows decode in registers what is packed as it is; panels are decoded."""
    q = tw.quantize(Y, "mxfp4", axis=-2)
    weights, panels = tw.pack(q), tw.pack(q, plan=tw.pack(Y).plan)
    monkeypatch.setattr("tilewright.formats.decoding.scaled", None)
    assert tw.matmul(X[:9], weights).shape == (9, 23)
    assert tw.matmul(X, panels).shape == (37, 23)


# ---- a Quantized where arrays are expected


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_indices_and_transposes(name):
    x = R.standard_normal((3, 96, 5)).astype(np.float32)
    q = tw.quantize(x, name, axis=1)
    block, numbers = q.format.block, tw.dequantize(q)
    np.testing.assert_array_equal(np.asarray(q.T), numbers.T)
    keys = [1, (slice(None), slice(block, 2 * block)), (Ellipsis, slice(1, 4)), (0, slice(block, None), 3),
            (slice(None, None, -2), slice(0, 96), -1), (..., 2), slice(0, 0), (0, slice(96, None))]
    for key in keys:
        got = q[key]
        assert isinstance(got, tw.Quantized)
        assert got.shape == numbers[key].shape
        np.testing.assert_array_equal(np.asarray(got), numbers[key])
    assert (q.ndim, q.size, len(q), str(q.dtype)) == (3, 1440, 3, name)
    for key in ((0, 5), (0, slice(3, None)), (0, slice(0, 7)), (0, slice(0, 96, 2))):
        with pytest.raises(IndexError, match=rf"along axis -2, the blocked one, .* whole blocks of {block}, such as "):
            q[key]
    for key in ([0, 1], None, np.array([0]), True):
        with pytest.raises(TypeError, match="indexed by integers and slices, not by"):
            q[key]
    with pytest.raises(IndexError, match="4 indices for an array of 3 axes"):
        q[0, 0, 0, 0]


def test_they_are_arrays_to_numpy():
    q = tw.quantize(Y, "nvfp4", axis=-2)
    np.testing.assert_array_equal(np.asarray(q), tw.dequantize(q))
    assert np.asarray(q).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(q, np.float64), tw.dequantize(q, "f64"))
    assert np.asarray(q, np.float16).dtype == np.float16
    with pytest.raises(ValueError, match="copy must not be False"):
        np.array(q, copy=False)
    np.testing.assert_array_equal(X @ q, tw.matmul(X, q))
    np.testing.assert_array_equal(q.T @ X.T, tw.matmul(q.T, X.T))
    i = tw.quantize(X, "i4")
    np.testing.assert_array_equal(np.asarray(i[3:9, ::2]), np.asarray(i)[3:9, ::2])
    np.testing.assert_array_equal(np.asarray(i[4]), np.asarray(i)[4])
    np.testing.assert_array_equal(np.asarray(i.T), np.asarray(i).T)
