"""grouped_matmul with weights of few bits and packed ones: few rows of a group read them once, more are packed."""

from __future__ import annotations

import ml_dtypes
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "trans"), [("i8", False), ("i4", True), ("i4", False), ("u4", True),
                                             ("e4m3fn", False), ("mxfp4", True), ("nvfp4", False), ("mxfp6", True)])
def test_weights_are_those_of_matmul(kind, trans):
    """With f32 to its rounding, with bf16 as matmul of the group alone has it; rows after the last offset are 0."""
    q = weights(kind, 70, 128, trans)
    a = small_integers(1, (ENDS[-1] + 2, 128), np.float32) / 3
    found, wanted = tw.grouped_matmul(a, q, ENDS, trans_b=trans, threads=2), exact(a, q, trans)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * abs(wanted).max())
    if kind == "e4m3fn":
        return
    narrow = tw.grouped_matmul(a.astype(ml_dtypes.bfloat16), q, ENDS, trans_b=trans, out_dtype="bf16")
    assert narrow.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(narrow.astype(float), exact(a.astype(ml_dtypes.bfloat16), q, trans), rtol=0,
                               atol=2e-2 * abs(wanted).max())


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


def test_weights_with_an_epilogue():
    """Of each group too: sums of few rows are finished by pieces of their own."""
    q, bias = weights("i4", 70, 96, True), small_integers(3, (len(SIZES), 70), np.float32)
    a = small_integers(4, (ENDS[-1], 96), np.float32)
    y, sums, largest = tw.grouped_matmul(
        a, q, ENDS, trans_b=True, alpha=2, operands={"bias": bias}, threads=2,
        epilogue=lambda acc, bias: (y := tw.relu(acc + bias), tw.row_sum(y), tw.column_max(y)))
    wanted = np.maximum(2*exact(a, q, True) + np.repeat(bias, SIZES, 0), 0)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * wanted.max())
    np.testing.assert_allclose(sums, wanted.sum(1), rtol=1e-5)
    np.testing.assert_allclose(largest, [wanted[lo:hi].max(0, initial=0) for lo, hi in zip(STARTS, ENDS)], rtol=1e-5,
                               atol=1e-5)


@pytest.mark.parametrize("dtype", ["f4", "i1"])
def test_packed_stacks(dtype):
    a, b = small_integers(5, (ENDS[-1], 70), dtype), small_integers(6, (len(SIZES), 70, 90), dtype)
    packed = tw.pack(b, rows=20)
    found = tw.grouped_matmul(a, packed, ENDS, threads=3)
    np.testing.assert_array_equal(found, tw.grouped_matmul(a, b, ENDS))
    np.testing.assert_array_equal(tw.grouped_matmul(a[:7], packed, [3, 3, 5, 7])[3:5], tw.matmul(a[3:5], packed)[2])


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


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_reductions_beside_packed_stacks(dtype):
    """Every tile leaves a number for each of its rows, though pieces of packed stacks are cut along rows alone."""
    a, b = small_integers(5, (ENDS[-1], 16), dtype), small_integers(6, (len(SIZES), 16, 200), dtype)
    found = tw.grouped_matmul(a, tw.pack(b), ENDS, epilogue=lambda acc: (acc, tw.row_max(acc), tw.column_sum(acc)))
    wanted = [np.matmul(a[lo:hi].astype(int), x.astype(int)) for lo, hi, x in zip(STARTS, ENDS, b)]
    assert np.array_equal(found[0], np.concatenate(wanted))
    assert np.array_equal(found[1], np.concatenate([x.max(1) for x in wanted]))
    assert np.array_equal(found[2], [x.sum(0) for x in wanted])


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4", "nvfp4", "mxfp6"])
def test_one_group_of_few_rows(kind):
    """There is no group whose blocks have to be decoded."""
    q = tw.quantize(np.ones((1, 2, 64), np.float32), kind)
    assert np.array_equal(tw.grouped_matmul(np.ones((1, 64), np.float32), q, [1], trans_b=True), [[64, 64]])
