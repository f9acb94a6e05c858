"""grouped_matmul on CPUs: bits, calls like an earlier one and errors. Values are in tests/products."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tilewright.formats import FORMATS

SIZES = [8, 0, 7, 8, 1]
ENDS = np.cumsum(SIZES).astype(np.int32)
STARTS = ENDS - SIZES
RNG = np.random.default_rng(17)


def ints(seed, shape, dtype):
    if np.dtype(dtype).kind == "c":
        return small_integers(seed, shape, dtype) + 1j * small_integers(seed + 9, shape, dtype).astype(dtype)
    return small_integers(seed, shape, dtype)


def by_rows(a, b, dtype=np.float64):
    found = np.zeros((len(a), b.shape[-1]), dtype)
    for g in range(len(SIZES)):
        found[STARTS[g] : ENDS[g]] = a[STARTS[g] : ENDS[g]].astype(dtype) @ b[g].astype(dtype)
    return found


@pytest.mark.parametrize("plan", ["packed 6x16 mc=12 kc=16 nc=32 ways=1x2x1", "in_place 5x16 kc=8"])
def test_a_group_has_the_bits_of_matmul_by_the_same_plan(plan):
    """However many threads there are, and wherever they cut."""
    a, b = RNG.standard_normal((200, 150), np.float32), RNG.standard_normal((3, 150, 101), np.float32)
    ends = np.array([101, 190, 193])
    found = [tw.grouped_matmul(a, b, ends, threads=threads, plan=plan) for threads in (1, 2, 5)]
    for g, (lo, hi) in enumerate(zip((0, *ends), ends)):
        alone = tw.matmul(a[lo:hi], b[g], plan=plan)
        for x in found:
            np.testing.assert_array_equal(x[lo:hi], alone)
    own = [tw.grouped_matmul(a, b, ends, threads=threads) for threads in (1, 2, 5)]
    assert np.array_equal(own[0], own[1])
    assert np.array_equal(own[0], own[2])


def test_out_may_be_an_operand():
    square = ints(15, (ENDS[-1], ENDS[-1]), "f4")
    wanted, b = square.copy(), ints(16, (5, ENDS[-1], ENDS[-1]), "f4")
    tw.grouped_matmul(square, b, ENDS, square)
    np.testing.assert_array_equal(square, by_rows(wanted, b))


def test_no_groups():
    assert tw.grouped_matmul(np.ones((4, 3)), np.ones((0, 3, 5)), np.zeros(0, int)).tolist() == [[0.0] * 5] * 4


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"offsets": [3, 2]}, ValueError, r"offsets\[1\] = 2 is less than offsets\[0\] = 3"),
    ({"offsets": [-1, 2]}, ValueError, r"offsets\[0\] = -1 is less than 0"),
    ({"offsets": [1, 5]}, ValueError, "must not exceed a's rows, of which there are 4, but offsets\\[-1\\] is 5"),
    ({"offsets": [1.0, 4.0]}, TypeError, "offsets must be integers"),
    ({"offsets": [1, 2, 4]}, ValueError, "each of b's 2 groups"),
    ({"b": np.ones((2, 7, 5))}, ValueError, "agree in k, but a has 3 columns and b has 7 rows"),
    ({"a": np.ones((2, 4, 3))}, ValueError, "whose rows of a are in groups"),
    ({"out": np.ones((4, 6))}, ValueError, r"out must have the result's shape \(4, 5\)"),
    ({"out": np.ones((4, 5), int)}, TypeError, "out"),
    ({"operands": {"x": 1}}, ValueError, "operands must be None"),
    ({"epilogue": lambda acc, x: acc + x, "operands": {"x": np.ones((3, 5))}}, ValueError, r"operands\['x'\]"),
    ({"a": tw.quantize(np.ones((4, 32), np.float32), "mxfp8_e4m3")}, TypeError, "a must be an array, not Quantized"),
    ({"plan": "in_place 5x16 copy"}, ValueError, "plan must read operands where they are"),
])
def test_errors(change, error, message):
    given = {"a": np.ones((4, 3)), "b": np.ones((2, 3, 5)), "offsets": [1, 4]} | change
    with pytest.raises(error, match=message):
        tw.grouped_matmul(**given)


def test_a_plan_that_writes_as_many_rows_as_it_has_registers_for():
    """Groups of five rows have the plan of six."""
    a, b = np.ones((5, 33), np.float32), np.ones((1, 33, 40), np.float32)
    with pytest.raises(ValueError, match="stream 6x2 does not"):
        tw.grouped_matmul(a, b, [5], plan="stream 6x2")
    out = np.full((5, 40), 7, np.float32)
    tw.grouped_matmul(a[:4], b, [4], plan="stream 4x2", out=out[:4])
    assert np.array_equal(out, np.repeat([33, 7], [4, 1])[:, None] + np.zeros(40))


def test_indices_of_groups_that_several_threads_share():
    """Pieces of a group begin at other rows and columns than the group."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((90, 290), np.float32), rng.standard_normal((2, 290, 100), np.float32)
    y, rows, columns = tw.grouped_matmul(a, b, [70, 90], threads=3, epilogue=lambda acc: (
        acc, tw.row_argmax(acc), tw.column_argmin(acc)))
    assert np.array_equal(rows, y.argmax(1))
    assert np.array_equal(columns, [y[:70].argmin(0), y[70:].argmin(0)])


@pytest.mark.parametrize("format", ["bf16", "f16", "e4m3fn", "i8", "i16", "f32"])
def test_groups_of_few_numbers_are_exact(format):
    """Plans that widen numbers one by one count elements along k, not words."""
    rng, dtype = np.random.default_rng(11), FORMATS[format].dtype
    for rows, k, n in ((5, 16, 5), (1, 29, 1), (3, 51, 5), (2, 13, 4), (7, 64, 7), (4, 31, 40)):
        ends = np.array([rows, rows, 2 * rows], np.int32)
        a = rng.integers(-2, 3, (2 * rows, k)).astype(dtype)
        b = rng.integers(-2, 3, (3, k, n)).astype(dtype)
        right = np.concatenate([a[:rows].astype(int) @ b[0].astype(int), a[rows:].astype(int) @ b[2].astype(int)])
        out = np.int32 if format.startswith("i") else np.float32
        for _ in range(2):
            assert (tw.grouped_matmul(a, b, ends, out_dtype=out) == right).all()
