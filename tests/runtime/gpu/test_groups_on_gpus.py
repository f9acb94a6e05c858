"""Groups of unequal size on a GPU: one launch that reads offsets, on the fake driver; every family of kernels."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import aligned, machine
from tilewright.compiled import grouped
from tilewright.plans import gpu

pytestmark = pytest.mark.sampled

SIZES = [20, 0, 33, 1]
ENDS = np.cumsum(SIZES).astype(np.int32)
STARTS = ENDS - SIZES


@pytest.fixture
def on(monkeypatch):
    found = machine(monkeypatch, "sm_90a")
    found.machine.attributes |= {"MULTIPROCESSOR_COUNT": 2}         # so that CTAs of wgmma stay for several tiles
    return found


def ints(seed, shape, dtype="f4"):
    return aligned(small_integers(seed, shape, np.float32).astype(dtype))


def by_rows(a, b):
    return np.concatenate([a[lo:hi].astype(float) @ x.astype(float) for lo, hi, x in zip(STARTS, ENDS, b)])


PLANS = {
    "simt": ("f4", "simt 32x32x16 warp=32x32 thread=8x4 stages=3"),
    "mma": (ml_dtypes.bfloat16, "mma 32x32x32 warp=16x32 stages=3 vector=8 vector_c=2"),
    "wgmma": (ml_dtypes.bfloat16, "wgmma 64x32x64 stages=2 warpgroups=1"),
    "turns": (ml_dtypes.bfloat16, "wgmma 64x32x64 stages=2 warpgroups=2 pingpong cluster=2x1"),
    "swap": (ml_dtypes.bfloat16, "wgmma 16x128x64 stages=2 warpgroups=2 swap vector_c=1"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("plan", PLANS)
def test_groups_of_rows_are_one_launch(on, plan):
    """With operands of each group, of rows and of columns; what is after the last offset is 0, whatever was there."""
    dtype, text = PLANS[plan]
    a, b = ints(0, (56, 48), dtype), ints(1, (4, 40, 48), dtype).swapaxes(1, 2)
    bias, rows = ints(2, (4, 40)), ints(3, (56, 1))
    out = aligned(np.full((56, 40), 7, np.float32))
    tw.grouped_matmul(on.array(a), on.array(b), on.array(ENDS), on.array(out), plan=text, alpha=2, out_dtype="f32",
                      epilogue=lambda acc, bias, rows: acc * rows + bias,
                      operands={"bias": on.array(bias), "rows": on.array(rows)})
    on.finish()
    wanted = 2 * by_rows(a, b) * rows[: ENDS[-1]] + np.repeat(bias, SIZES, 0)
    np.testing.assert_array_equal(out[: ENDS[-1]], wanted)
    assert (out[ENDS[-1] :] == 0).all()
    assert len(on.machine.launches) == 1


def placed(x, apart, shift=0, order="n"):
    """x with rows (or columns) this many elements apart, `shift` elements past a multiple of 16 bytes."""
    rows = x if order == "n" else x.T
    memory = aligned(np.zeros(len(rows)*apart + shift, x.dtype))[shift:]
    there = np.lib.stride_tricks.as_strided(memory, rows.shape, (apart*x.itemsize, x.itemsize))
    there[...] = rows
    return there if order == "n" else there.T


BF16 = ml_dtypes.bfloat16


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "m", "k", "apart", "shift", "order", "ends"), [
    ("f4", 5, 30, 38, 0, "n", [0, 0, 3, 5, 5]), ("f4", 3, 27, 30, 1, "n", [1, 2, 2]),
    (BF16, 2, 1, 17, 0, "n", [0, 1, 2]), (BF16, 5, 31, 32, 1, "n", [1, 2, 2, 2, 4]),
    (BF16, 9, 1, 9, 0, "t", [0, 3, 4, 7, 9]), (BF16, 36, 17, 40, 8, "t", [11, 20, 25, 34, 36])])
def test_few_rows_of_wider_matrices(on, dtype, m, k, apart, shift, order, ends):
    """As many groups as rows, rows in a wider A, result and operand of the epilogue; columns, of which groups begin
    anywhere."""
    a, b, n = placed(ints(0, (m, k), dtype), apart, shift, order), ints(1, (len(ends), k, 21), dtype), 21
    more, out = placed(ints(2, (m, n)), 29), placed(np.zeros((m, n), np.float32), 27)
    tw.grouped_matmul(on.array(a), on.array(b), on.array(aligned(np.int32(ends))), on.array(out), out_dtype="f32",
                      epilogue=lambda acc, more: acc + more, operands={"more": on.array(more)})
    on.finish()
    of = np.searchsorted(ends, np.arange(ends[-1]), "right")
    wanted = [x @ b[g].astype(float) for x, g in zip(a.astype(float), of)] + more[: ends[-1]]
    np.testing.assert_array_equal(out[: ends[-1]], wanted)


def test_groups_by_columns_are_not_copied_by_tensor_maps(on):
    """Whose tiles begin at multiples of 16 bytes, and groups anywhere."""
    a, b, ends = placed(ints(0, (88, 64), "f2"), 96, order="t"), ints(1, (3, 64, 32), "f2"), [7, 70, 88]
    given = on.array(a), on.array(b), on.array(aligned(np.int32(ends)))
    with pytest.raises(ValueError, match="A must begin at a multiple of 16 bytes"):
        tw.grouped_matmul(*given, out_dtype="f32", plan="wgmma 64x32x64 stages=2 warpgroups=1")
    found = tw.grouped_matmul(*given, out_dtype="f32")
    on.finish()
    of = np.searchsorted(ends, np.arange(88), "right")
    np.testing.assert_array_equal(found.host, [x @ b[g].astype(float) for x, g in zip(a.astype(float), of)])


def test_few_steps_of_k_of_wider_matrices(on):
    """Of as many groups as steps."""
    a, b, ends = placed(ints(0, (20, 3)), 23, order="t"), placed(ints(1, (3, 24)), 29), [1, 1, 3]
    found = tw.grouped_matmul(on.array(a), on.array(b), on.array(aligned(np.int32(ends))))
    on.finish()
    np.testing.assert_array_equal(found.host, [a[:, lo:hi] @ b[lo:hi] for lo, hi in ((0, 1), (1, 1), (1, 3))])


def test_no_groups(on):
    none = tw.grouped_matmul(on.array(ints(6, (56, 16))), on.array(ints(7, (0, 16, 24))), on.array(ENDS[:0]))
    on.finish()
    assert (none.host == 0).all()


@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16], ids=str)
def test_rows_have_the_same_bits_in_other_groups(on, dtype):
    """One row for each group, too, for which the planner has other kernels, and rows of a wider matrix."""
    rng = np.random.default_rng(0)
    a, b = (aligned(rng.standard_normal(shape).astype(dtype)) for shape in ((56, 72), (4, 40, 72)))
    how = {"batch_invariant": True, "out_dtype": "f32", "trans_b": True}
    whole = tw.grouped_matmul(on.array(a), on.array(b), on.array(ENDS), **how)
    wide = aligned(np.zeros((3, 80), dtype))
    wide[1:, :72] = a[30:32]
    found = tw.grouped_matmul(on.array(wide[:, :72]), on.array(b[1:3]), on.array(np.int32([1, 3])), **how)
    on.finish()
    np.testing.assert_array_equal(found.host[1:], whole.host[30:32])
    with pytest.raises(ValueError, match="plan must be None"):
        tw.grouped_matmul(on.array(a), on.array(b), on.array(ENDS), plan=PLANS["simt"][1], **how)


def test_steps_of_k_have_the_same_bits_in_other_groups(on):
    rng = np.random.default_rng(0)
    a, b = (aligned(rng.standard_normal(shape).astype(np.float32)) for shape in ((20, 56), (56, 24)))
    whole = tw.grouped_matmul(on.array(a), on.array(b), on.array(ENDS), batch_invariant=True)
    found = tw.grouped_matmul(on.array(aligned(a[3:5, 20:53])), on.array(aligned(b[20:53])), on.array(np.int32([33])),
                              batch_invariant=True)
    on.finish()
    np.testing.assert_array_equal(found.host[0], whole.host[2, 3:5])


def test_rows_of_einsum_have_the_same_bits(on):
    rng = np.random.default_rng(0)
    x, w = (aligned(rng.standard_normal(shape).astype(np.float32)) for shape in ((3, 40, 33), (33, 20)))
    every, one = slice(None), slice(5, 6)
    for text, at in (("xyk,kn->xyn", (every, one)), ("xyk,kn->nxy", (every, every, one))):
        whole, found = (tw.einsum(text, on.array(a), on.array(w), batch_invariant=True)
                        for a in (x, aligned(x[:, 5:6])))
        on.finish()
        np.testing.assert_allclose(whole.host, np.einsum(text, x, w), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(found.host, whole.host[at])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "trans", "inside"), [
    ("i8", False, True), ("i4", True, True), ("u4", False, True), ("nvfp4", False, True), ("i8", False, False),
    ("mxfp4", True, False)])
def test_weights_of_few_bits(on, monkeypatch, kind, trans, inside):
    """Decoded by the kernel's copies, or by one pass, whatever the number of groups."""
    monkeypatch.setattr(grouped, "decodes_inside", lambda *_: inside)
    how = {"i4": {"group": 16}, "u4": {"group": 16, "zero_points": True}}.get(kind, {})
    x = small_integers(8, (4, 24, 32) if trans else (4, 32, 24), np.float32)
    q = tw.quantize(x, kind, axis=-1 if trans else -2, **how)
    parts = {name: on.array(aligned(y)) for name in ("elements", "scales", "zeros")
             if (y := getattr(q, name, None)) is not None}
    a = ints(9, (56, 32), ml_dtypes.bfloat16)
    found = tw.grouped_matmul(on.array(a), replace(q, **parts), on.array(ENDS), trans_b=trans, out_dtype="f32")
    on.finish()
    b = tw.dequantize(q)
    wanted = by_rows(a, b.swapaxes(1, 2) if trans else b)
    np.testing.assert_allclose(found.host[: ENDS[-1]], wanted, rtol=0, atol=1e-2 * abs(wanted).max())
    assert len(on.machine.launches) == (1 if inside else 2)


def test_the_main_loop_on_amd_is_that_of_batches():
    target, problem = tw.target("gfx950"), tw.Gemm(256, 4096, 4096, "bf16", "bf16", "bf16", "nt", 64)
    plan = grouped.plan_for(gpu.planner(target).shape_of(problem), target, "m")
    found, batch = grouped.kernel(problem, target, plan, "m", 16384), tw.compile(problem, target, plan)
    assert "no spills" in str(found.resources)
    assert str(found.resources).split(", ")[0] == str(batch.resources).split(", ")[0]
    for what in ("matrix", "vector", "lds", "global"):
        assert found.loop().counts[what] == batch.loop().counts[what]


def test_quantized_results(on):
    """Of rows of no group, too."""
    a, b = ints(6, (56, 32)), ints(7, (4, 32, 64))
    q = tw.grouped_matmul(on.array(a), on.array(b), on.array(ENDS), epilogue=lambda acc: acc, out_dtype="mxfp8")
    on.finish()
    quantized = tw.quantize(np.concatenate((by_rows(a, b), np.zeros((2, 64)))), "mxfp8")
    np.testing.assert_array_equal(q.elements.host, quantized.elements)
    np.testing.assert_array_equal(q.scales.host, quantized.scales)
