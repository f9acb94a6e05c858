"""Integers and small floats with a scale, and a zero point, for each group along an axis: tilewright.quantize."""
from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.formats.scaled import Nibbles, Scaled

RNG = np.random.default_rng(17)
W = RNG.standard_normal((300, 77))
CASES = [(f, axis, zero) for f in ("i8", "u8", "i4", "u4", "i2", "e4m3fn", "e2m1") for axis in (-1, -2)
         for zero in (False, True) if not (zero and f[0] == "e")]


@pytest.mark.parametrize(("name", "axis", "zero"), CASES)
def test_numbers_of_a_group_are_the_nearest_of_its_own_scale(name, axis, zero):
    """By another formula, group by group: k = 300 has a last group of 44, and 77 columns a last byte of one."""
    w = W if zero or name[0] != "u" else np.abs(W)
    q = tw.quantize(w, name, axis=axis, group=128, zero_points=zero)
    f = tw.formats.get(name)
    found, length = tw.dequantize(q, "f64"), w.shape[axis]
    assert q.shape == w.shape
    assert q.scales.shape[axis] == -(-length // 128)
    assert (q.zeros is not None) == zero
    for start in range(0, length, 128):
        part, back = (np.moveaxis(x, axis, 0)[start:start + 128] for x in (w, found))
        low, high = np.minimum(part.min(0), 0), np.maximum(part.max(0), 0)
        step = (high - low) / (f.largest - f.smallest) if zero else np.maximum(high, -low) / f.largest
        most = step * ((1.01 if zero else 0.501) if name[0] != "e" else {"e4m3fn": 16.1, "e2m1": 1.01}[name])
        assert (np.abs(back - part) <= most).all()
    if f.bits == 4:
        assert q.elements.shape == (300, 39)
        assert q.elements.dtype == np.uint8
        assert q.nbytes == 300 * 39 + 4 * q.scales.size + (q.scales.size if zero else 0)


def test_elements_scales_and_zero_points_are_what_the_record_says():
    q = tw.quantize(W, "u4", axis=-2, group=100, zero_points=True)
    elements = q.unpacked().astype(int)
    assert q.unpacked().dtype == ml_dtypes.uint4
    assert q.zeros.dtype == np.uint8
    assert (q.elements == (elements[:, ::2] | np.pad(elements, ((0, 0), (0, 1)))[:, 1::2] << 4)).all()
    by_hand = (elements - np.repeat(q.zeros.astype(int), 100, 0)) * np.repeat(q.scales.astype(float), 100, 0)
    assert (tw.dequantize(q, "f64") == by_hand).all()
    assert (np.asarray(q) == by_hand.astype("f4")).all()
    plain = tw.quantize(W, "u4", axis=-2, group=100, zero_points=True, nibbles=False)
    assert plain.nibbles is None
    assert (tw.dequantize(plain) == tw.dequantize(q)).all()


@pytest.mark.parametrize("name", ["i8", "i4"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_views_have_the_numbers_of_views(name, axis):
    q = tw.quantize(W, name, axis=axis, group=20, zero_points=True)
    x = tw.dequantize(q)
    views = [(slice(40, 80), slice(20, 60)), (slice(None), slice(60, None)), (slice(None), slice(0, 40))]
    if axis == -2:
        views = [key[::-1] for key in views] + [(slice(0, 40), slice(4, 10))]
    else:
        views += [(3, slice(20, 40)), (slice(5, 99, 7), slice(None))]
    for key in views:
        assert (np.asarray(q[key]) == x[key]).all(), key
        assert (np.asarray(q.T[key[::-1]]) == x.T[key[::-1]]).all(), key
    stack = tw.quantize(np.stack([W, 2 * W]), name, axis=axis, group=20)
    assert (np.asarray(stack.mT) == np.asarray(stack).swapaxes(-1, -2)).all()
    assert (np.asarray(stack[1]) ==
                                                                                  np.asarray(stack)[1]).all()
    wrong = (slice(None), slice(3, 40)) if axis == -1 else (slice(10, 20), slice(None))
    with pytest.raises(IndexError, match="whole groups of 20"):
        q[wrong]


@pytest.mark.parametrize(("shape", "axis"), [((0, 4), -1), ((4, 0), -1), ((1, 1), -2), ((3, 0, 5), -2)])
def test_arrays_of_nothing_and_of_one(shape, axis):
    w = RNG.standard_normal(shape)
    for name in ("i8", "i4"):
        q = tw.quantize(w, name, axis=axis, group=32)
        assert q.shape == shape
        assert np.asarray(q).shape == shape


def test_what_may_not_be():
    q = tw.quantize(W, "i4", axis=-2, group=100, zero_points=True)
    for wrong, error, words in [
            (lambda: tw.quantize(W, "mxfp4", group=32), ValueError, "group, zero_points and nibbles must not be given"),
            (lambda: tw.quantize(W, "i4", group=0), ValueError, "group must be None, or how many .* not 0"),
            (lambda: tw.quantize(W, "i4", axis=None, group=8), ValueError, "with axis=None"),
            (lambda: tw.quantize(W, "e4m3fn", zero_points=True), ValueError, "zero points are of integers"),
            (lambda: tw.quantize(W, "i8", nibbles=True), ValueError, "of 4 bits are i4, u4, e2m1"),
            (lambda: tw.quantize(W, "u4"), ValueError, "zero_points=True"),
            (lambda: tw.quantize(W * np.nan, "i4", group=32), ValueError, "nan"),
            (lambda: replace(q, zeros=q.zeros[:2]), ValueError, r"zeros must have the shape of scales, \(3, 77\)"),
            (lambda: replace(q, zeros=q.scales.astype("f8")), TypeError, "zeros beside elements of i4 must be of i8"),
            (lambda: replace(q, group=90), ValueError, "or along one of them a number for each 90"),
            (lambda: replace(q, nibbles=Nibbles("i4", -1, 80)), ValueError, "elements must have 40 bytes"),
            (lambda: replace(q, nibbles=Nibbles("i8", -1, 77)), TypeError, "must be of i4, u4, e2m1"),
            (lambda: Scaled([1], np.ones(1, "f4")), TypeError, "elements must be an array, not list")]:
        with pytest.raises(error, match=words):
            wrong()
