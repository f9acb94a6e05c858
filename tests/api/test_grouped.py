"""grouped_matmul on CPUs: groups of rows and of steps of k, against float64 and against matmul of each group alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tilewright.api import grouped as api

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


@pytest.mark.parametrize(("dtype", "threads"), [
    ("f4", 1), ("f8", 3), (ml_dtypes.bfloat16, 3), ("i1", 3), ("c8", 2)], ids=str)
def test_formats_are_exact_on_integers(dtype, threads):
    a, b = ints(0, (ENDS[-1] + 2, 20), dtype), ints(1, (5, 20, 37), dtype)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    out_dtype = "i32" if dtype == "i1" else None
    found = tw.grouped_matmul(a, b, ENDS, threads=threads, out_dtype=out_dtype)
    assert found.dtype == tw.matmul(a, b[0], out_dtype=out_dtype).dtype
    np.testing.assert_array_equal(found.astype(wide), by_rows(a, b, wide))     # the last two rows are 0

    if dtype in ("f8", "c8", "i1"):
        return
    a, b = ints(2, (8, ENDS[-1] + 2), dtype), ints(3, (ENDS[-1] + 2, 37), dtype)
    found = tw.grouped_matmul(a, b, ENDS.astype(np.int64), threads=threads, out_dtype=out_dtype)
    wanted = [a[:, lo:hi].astype(wide) @ b[lo:hi].astype(wide) for lo, hi in zip(STARTS, ENDS)]
    np.testing.assert_array_equal(found.astype(wide), wanted)


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


@pytest.mark.parametrize(("dtype", "threads"), [("f4", 1), ("f8", 2), (ml_dtypes.bfloat16, 2)], ids=str)
def test_calls_like_an_earlier_one(monkeypatch, dtype, threads):
    """Take neither rules nor plans, have the bits of calls that do, and the same errors."""
    a, b = (RNG.standard_normal(shape).astype(dtype) for shape in ((300, 70), (4, 70, 20)))
    out, how = np.empty((300, 20), np.float64 if dtype == "f8" else np.float32), {"threads": threads}
    tw.grouped_matmul(a, b, [1, 2, 3, 4], out, **how)
    tw.grouped_matmul(a, b, [1, 2, 3, 4], **how)
    for ends in ([0, 9, 200, 300], np.int32([7, 7, 8, 290]), [0, 0, 0, 0], np.array([3, 3, 4, 300])):
        wanted = tw.grouped_matmul(a, b, ends, np.asfortranarray(out), **how)       # which is not remembered
        with monkeypatch.context() as patched:
            patched.setattr(api, "product", lambda *_: pytest.fail("by the rules"))
            np.testing.assert_array_equal(tw.grouped_matmul(a, b, ends, **how), wanted)
            out[...] = np.nan
            assert tw.grouped_matmul(a, b, ends, out, **how) is out
            np.testing.assert_array_equal(out, wanted)
    with pytest.raises(ValueError, match="must not descend"):
        tw.grouped_matmul(a, b, [3, 2, 5, 6], **how)
    with pytest.raises(ValueError, match="each of b's 4 groups"):
        tw.grouped_matmul(a, b, [3, 5], **how)
    with pytest.raises(TypeError, match="integers"):
        tw.grouped_matmul(a, b, [0.0, 1.0, 2.0, 3.0], **how)


def function(acc, bias, scale, row, full):
    y = (acc + bias) * scale * row + full
    return y, tw.row_sum(y), tw.column_max(y), acc


@pytest.mark.parametrize(("dtype", "threads"), [("f4", 3), ("i1", 2)], ids=str)
def test_epilogues(dtype, threads):
    """Operands of each group, of rows and of the whole; reductions; no element of a is read where alpha is 0."""
    a, b = ints(4, (ENDS[-1], 20), dtype), ints(5, (5, 38, 20), dtype)
    full, row = ints(6, (ENDS[-1], 38), "f4"), ints(7, (ENDS[-1], 1), "f4")
    bias, scale = ints(8, (5, 38), "f4"), ints(9, (5, 1, 1), "f4")
    group = np.repeat(np.arange(5), SIZES)
    for alpha in (2, 0):
        product = alpha * by_rows(a, b.swapaxes(1, 2))
        wanted = (product + bias[group]) * scale[group][:, 0] * row + full
        y, sums, largest, acc = tw.grouped_matmul(
            a, b, ENDS, trans_b=True, alpha=alpha, threads=threads, epilogue=function, out_dtype=("f32", "f32"),
            operands={"bias": bias, "scale": scale, "row": row, "full": full})
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(acc, product)
        np.testing.assert_array_equal(sums, wanted.sum(1))
        np.testing.assert_array_equal(largest, [wanted[group == g].max(0) if n else np.zeros(38)
                                                for g, n in enumerate(SIZES)])


def test_pairs_and_quantised_results():
    a, b = RNG.standard_normal((ENDS[-1], 20), np.float32), RNG.standard_normal((5, 20, 70), np.float32)
    product = by_rows(a, b)

    def swiglu(acc):
        gate, up = tw.pairs(acc)
        return tw.silu(gate) * up
    gate, up = product[:, 0::2], product[:, 1::2]
    np.testing.assert_allclose(tw.grouped_matmul(a, b, ENDS, epilogue=swiglu, threads=2),
                               gate / (1 + np.exp(-gate)) * up, rtol=1e-4, atol=1e-4)
    scales = RNG.random((5, 1, 1), np.float32) + 1
    narrow = tw.grouped_matmul(a, b, ENDS, epilogue=lambda acc, s: acc / s, operands={"s": scales}, out_dtype="e4m3fn")
    assert narrow.dtype == ml_dtypes.float8_e4m3fn
    np.testing.assert_allclose(narrow.astype(float), product / np.repeat(scales[:, 0], SIZES, 0), rtol=0.07, atol=0.01)


def test_along_k_with_an_epilogue():
    a, b = ints(10, (9, ENDS[-1]), "f4"), ints(11, (ENDS[-1], 37), "f4")
    bias = ints(12, (5, 1, 37), "f4")
    y, sums = tw.grouped_matmul(a, b, ENDS, epilogue=lambda acc, bias: (acc + bias, tw.row_sum(acc)),
                                operands={"bias": bias}, threads=2)
    wanted = np.stack([a[:, lo:hi] @ b[lo:hi] for lo, hi in zip(STARTS, ENDS)])
    np.testing.assert_array_equal(y, wanted + bias)
    np.testing.assert_array_equal(sums, wanted.sum(2))


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_out_and_strides(layout):
    a, b = ints(13, (2 * ENDS[-1], 40), "f4")[::-2, ::-2], ints(14, (5, 74, 40), "f4")[::-1, ::2, ::2]
    out = np.full((2 * ENDS[-1], 37), np.nan, "f4", order="F" if layout == "F" else "C")
    out = out[::2] if layout == "strided" else out[: ENDS[-1]]
    assert tw.grouped_matmul(a, b, ENDS, out, trans_b=True) is out
    np.testing.assert_array_equal(out, by_rows(a, b.swapaxes(1, 2)))
    square = ints(15, (ENDS[-1], ENDS[-1]), "f4")
    wanted, b = square.copy(), ints(16, (5, ENDS[-1], ENDS[-1]), "f4")
    tw.grouped_matmul(square, b, ENDS, square)                          # over its own operand
    np.testing.assert_array_equal(square, by_rows(wanted, b))


def test_nothing_to_multiply():
    assert tw.grouped_matmul(np.ones((4, 3)), np.ones((0, 3, 5)), np.zeros(0, int)).tolist() == [[0.0] * 5] * 4
    assert tw.grouped_matmul(np.ones((4, 0)), np.ones((2, 0, 5)), [1, 4]).tolist() == [[0.0] * 5] * 4
    assert tw.grouped_matmul(np.ones((4, 3)), np.ones((2, 3, 5)), [0, 0]).tolist() == [[0.0] * 5] * 4
    assert tw.grouped_matmul(np.ones((4, 3)), np.ones((3, 5)), [0, 0]).tolist() == [[[0.0] * 5] * 4] * 2
    assert tw.grouped_matmul(np.ones((4, 3)), np.ones((2, 3, 0)), [2, 4]).shape == (4, 0)


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
    tw.grouped_matmul(a[:4], b, [4], plan="stream 4x4", out=out[:4])
    assert np.array_equal(out, np.repeat([33, 7], [4, 1])[:, None] + np.zeros(40))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 2, 3), (3, 1, 2), (2, 40, 17)])
@pytest.mark.parametrize("how", [{"deterministic": True}, {"batch_invariant": True}], ids=str)
def test_reproducible_groups_of_integers(m, n, k, how):
    """The planner's first choices for these copy b, which no group's plan may."""
    a, b = (np.arange(np.prod(shape), dtype=np.int32).reshape(shape) for shape in ((m, k), (1, n, k)))
    assert np.array_equal(tw.grouped_matmul(a, b, [m], trans_b=True, **how), a @ b[0].T)


def test_indices_of_groups_that_several_threads_share():
    """Pieces of a group begin at other rows and columns than the group."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((90, 290), np.float32), rng.standard_normal((2, 290, 100), np.float32)
    y, rows, columns = tw.grouped_matmul(a, b, [70, 90], threads=3, epilogue=lambda acc: (
        acc, tw.row_argmax(acc), tw.column_argmin(acc)))
    assert np.array_equal(rows, y.argmax(1))
    assert np.array_equal(columns, [y[:70].argmin(0), y[70:].argmin(0)])
