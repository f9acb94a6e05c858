"""grouped_matmul with weights of few bits and packed ones: few rows of a group read them once, more are packed."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tilewright.runtime.cpu import grouped

SIZES = [2, 0, 2, 19]
ENDS = np.cumsum(SIZES)
STARTS = ENDS - SIZES
KINDS = {"i8": {}, "i4": {"group": 32}, "u4": {"group": 32, "zero_points": True}, "e4m3fn": {"group": 64}, "mxfp4": {},
         "nvfp4": {}, "mxfp6": {}}


def weights(kind, n, k, trans):
    x = np.random.default_rng(n + k).standard_normal((len(SIZES), n, k) if trans else (len(SIZES), k, n))
    return tw.quantize(x.astype(np.float32), kind, axis=-1 if trans else -2, **KINDS[kind])


def exact(a, q, trans):
    b = tw.dequantize(q, "f64")
    b = b.swapaxes(1, 2) if trans else b
    found = np.zeros((len(a), b.shape[2]))
    for g, (lo, hi) in enumerate(zip(STARTS, ENDS)):
        found[lo:hi] = a[lo:hi].astype(float) @ b[g]
    return found


def test_pieces_of_columns(monkeypatch):
    """More pieces than groups: columns are divided where two elements share a byte, in both directions."""
    counts = []
    run = grouped.Program._claimed
    monkeypatch.setattr(grouped, "LEAST", 1 << 10)
    monkeypatch.setattr(grouped.Program, "_claimed", lambda program, pieces, count, *of: counts.append(count) or run(
        program, pieces, count, *of))
    for trans in (True, False):
        q = weights("i4", 330, 64, trans)
        a = small_integers(2, (ENDS[-1], 64), np.float32)
        found, wanted = tw.grouped_matmul(a, q, ENDS, trans_b=trans, threads=2), exact(a, q, trans)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * abs(wanted).max())
    assert min(counts) > len(SIZES)


@pytest.mark.parametrize("kind", ["i4", "mxfp4"])
def test_packed_weights(kind, tmp_path):
    """Which tilewright.pack arranges along k; also read from a file, and multiplied as a stack by matmul."""
    q, a = weights(kind, 70, 96, False), small_integers(7, (ENDS[-1], 96), np.float32)
    packed = tw.pack(q)
    assert packed.shape == (len(SIZES), 96, 70)
    packed.save(tmp_path / "weights")
    for each in (packed, tw.load(tmp_path / "weights")):
        found, wanted = tw.grouped_matmul(a, each, ENDS), exact(a, q, False)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * abs(wanted).max())
    stack = tw.matmul(a[:6], packed)
    np.testing.assert_allclose(stack, a[:6].astype(float) @ tw.dequantize(q, "f64"), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("change", "message"), [
    ({"b": tw.quantize(np.ones((3, 4), np.float32), "i8", axis=-2)}, r"b must be \[G, k, n\] where it has scales"),
    ({"b": tw.quantize(np.ones((2, 64, 6), np.float32), "i8", axis=-1, group=2), "a": np.ones((4, 64), np.float32)},
     "groups of b must be along k"),
    ({"b": tw.pack(np.ones((2, 3, 5), np.float32)), "trans_b": True}, "packed operands cannot be transposed"),
    ({"b": tw.pack(np.ones((2, 3, 5))), }, "pack\\(b, a="),
])
def test_errors(change, message):
    given = {"a": np.ones((4, 3), np.float32), "b": np.ones((2, 3, 5), np.float32), "offsets": [1, 4]} | change
    with pytest.raises((TypeError, ValueError), match=message):
        tw.grouped_matmul(**given)
