"""Stacks of matrices: NumPy's broadcasting, one call of emitted code for many small products, and the bits of each."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tilewright as tw
from tests.helpers.arrays import small_integers, storages
from tests.helpers.fenced import fenced
from tilewright.compiler import llvm
from tilewright.kernels.cpu.batches import emit_batches
from tilewright.plans.cpu import CpuPlan
from tilewright.runtime.cpu import batches, engine, recipe
from tilewright.runtime.cpu.host import host
from tilewright.runtime.cpu.pool import Pool
from tilewright.runtime.cpu.recipe import SHARES
from tilewright.targets import detect

LANES = detect().lanes(4)


@st.composite
def stacks(draw):
    """(a, b, what out may be) with leading axes that broadcast, stored in any way: whole numbers, so sums are exact."""
    lead = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    m, n, k = (draw(st.integers(1, 20)) for _ in range(3))
    dtype = draw(st.sampled_from([np.float32, np.float64]))

    def operand(seed, sizes):
        axes = tuple(draw(st.sampled_from([extent, extent, 1])) for extent in lead)
        shape = (*axes[draw(st.integers(0, len(axes))) :], *sizes)
        return draw(storages(len(shape))).hold(small_integers(seed, shape, dtype))

    a, b = operand(0, (m, k)), operand(1, (k, n))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n)
    return a, b, draw(storages(len(shape), broadcast=False)).hold(np.full(shape, np.nan, dtype))


@given(stacks(), st.integers(1, 3))
def test_numpys_broadcasting(operands, threads):
    a, b, out = operands
    want = np.matmul(a, b)
    assert np.array_equal(tw.matmul(a, b, threads=threads), want)
    assert tw.matmul(a, b, out, threads=threads) is out
    assert np.array_equal(out, want)
    tw.gemm(2, a, b, -1, out, threads=threads)
    assert np.array_equal(out, want)


PLANS = [f"in_place 6x{LANES}", f"in_place 6x{LANES} kc=8", f"in_place 4x{LANES} ways=2x1x1 swap",
         f"packed 6x{LANES} mc=12 kc=8 nc={2 * LANES}", f"packed 6x{LANES} mc=12 kc=8 nc={2 * LANES} ways=1x2x1",
         f"in_place 6x{LANES} copy"]


@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("batch", [1, 3, 2 * SHARES, 50])
@pytest.mark.parametrize("pool", ["free", "taken"])
def test_each_product_has_the_bits_of_gemm(batch, text, pool, monkeypatch):
    plan, rng = CpuPlan.parse(text), np.random.default_rng(batch)
    a, b, c = (rng.standard_normal((batch, *sizes)).astype(np.float32) for sizes in ((23, 31), (31, 45), (23, 45)))
    monkeypatch.setattr(recipe, "FORK_FLOPS", 0)  # however small: on all threads
    monkeypatch.setattr(recipe, "WAKE_FLOPS", 0)
    if pool == "taken":
        run_parts = Pool.run_parts
        monkeypatch.setattr(Pool, "run_team", lambda *args: False)
        monkeypatch.setattr(Pool, "run_parts", lambda self, fn, job, parts, *_: run_parts(self, fn, job, parts, 1, 0))
    if plan.swap:
        a = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
    one_b = b[:1].repeat(batch, 0)
    for alpha, beta in (1.0, 0.0), (0.5, 2.0):
        for y, same in (b, b), (np.broadcast_to(b[:1], b.shape), one_b):
            want = c.copy()
            for i in range(batch):
                engine.gemm(a[i], same[i], want[i], alpha, beta, plan=plan, threads=plan.threads)
            for threads in {plan.threads, 1, 2, 5}:
                got = c.copy()
                engine.gemm(a, y, got, alpha, beta, plan=plan, threads=threads)
                assert got.tobytes() == want.tobytes(), (threads, alpha, beta)
                columns = np.full((batch, 45, 23), np.nan, np.float32).swapaxes(1, 2)  # C^T lies by rows
                gaps = np.full((batch, 23, 90), np.nan, np.float32)[:, :, ::2]  # and here neither does
                for other in (columns, gaps) if plan.algorithm == "packed" else (gaps,):
                    engine.gemm(a, y, other, alpha, 0.0, plan=plan, threads=threads)
                    np.testing.assert_allclose(other, alpha * (a @ y), rtol=1e-3, atol=1e-4)


def test_many_small_products_are_one_call_of_emitted_code(monkeypatch):
    calls = []
    engine.forget()  # calls that are repeated
    run = batches.do
    monkeypatch.setattr(batches, "do", lambda recipe, work, *at: (calls.append(work.parts), run(recipe, work, *at))[1])
    a, b = (small_integers(seed, (1000, 16, 16), np.float32) for seed in (0, 1))
    for threads, parts in (1, 1), (2, 2 * SHARES):
        for x, y in (a, b), (a.swapaxes(1, 2), b), (a[0], b), (a[::-3], b[:334]):
            calls.clear()
            assert np.array_equal(tw.matmul(x, y, threads=threads), x @ y)
            assert calls == [parts]
    calls.clear()
    tw.matmul(a[:4], b[:4], threads=2)  # too little work for a second thread
    assert calls == [1]


@pytest.mark.parametrize(("dtype", "m", "n", "k"), [
    ("f4", 32, 19, 16), ("f8", 9, 12, 31), ("c8", 4, 4, 4), ("c16", 7, 9, 5)])
def test_code_for_one_small_size_gives_the_bits_of_each_product(dtype, m, n, k, monkeypatch):
    """A by rows and by columns, on one thread and several, again as a repeated call, and nothing outside is touched."""
    rng, batch = np.random.default_rng(m), batches.SEVERAL
    a, b = (rng.standard_normal((batch, *shape)).astype(dtype) for shape in ((m, k), (k, n)))
    if dtype[0] == "c":
        a, b = a * (1 + 2j), b * (3 - 1j)
    own, run = [], batches.do
    monkeypatch.setattr(batches, "do",
                        lambda recipe, work, *at: (own.append(bool(work.layout)), run(recipe, work, *at))[1])
    engine.forget()  # calls that are repeated
    wide = a.astype("c16") @ b.astype("c16")
    for x in fenced(a), fenced(a.swapaxes(1, 2)).swapaxes(1, 2):
        out = fenced(np.full((batch, m, n), np.nan, a.dtype))
        wanted = np.stack([tw.matmul(x[i], b[i]) for i in range(batch)])
        np.testing.assert_allclose(wanted, wide, rtol=1e-4, atol=1e-4)
        for threads in 1, 2, 2:
            out[...] = np.nan
            tw.matmul(x, fenced(b), out, threads=threads)
            assert out.tobytes() == wanted.tobytes()
            assert tw.matmul(x, b, threads=threads).tobytes() == wanted.tobytes()
        assert own[-1]


@pytest.mark.parametrize(("dtype", "n", "complex"), [("f32", 12, True), ("f64", 24, False)])
def test_code_for_one_small_size_spills_nothing(dtype, n, complex):
    for name in "x86-avx512", "x86-avx2":
        chip = tw.target(name)
        text = llvm.assembly([emit_batches(chip, dtype, n, n, n, True, complex)], chip)
        assert "vfmadd" in text
        assert not re.findall(r"\(%rsp\).*%[xyz]mm|[xyz]mm.*\(%rsp\)", text)


@pytest.mark.parametrize(("batch", "whole"), [(1, False), (2, True), (3, False), (20, True), (21, True)])
def test_packed_products_go_whole_to_threads_that_would_not_idle(monkeypatch, batch, whole):
    teams, shared = [], []
    run, run_parts = Pool.run_team, Pool.run_parts
    monkeypatch.setattr(recipe, "WAKE_FLOPS", 0)
    monkeypatch.setattr(Pool, "run_team", lambda self, fn, *rest: (teams.append(fn), run(self, fn, *rest))[1])
    monkeypatch.setattr(Pool, "run_parts", lambda self, fn, *rest: (shared.append(fn), run_parts(self, fn, *rest))[1])
    plan = CpuPlan.parse(f"packed 6x{LANES} mc=12 kc=8 nc={2 * LANES} ways=1x2x1")
    a, b = (small_integers(seed, (batch, 40, 40), np.float32) for seed in (0, 1))
    c = np.empty_like(a)
    engine.gemm(a, b, c, plan=plan, threads=2)
    assert np.array_equal(c, a @ b)
    batched = host.address("gemm:emit_batch", detect())
    assert (shared == [batched] and not teams) if whole else (len(teams) == batch and not shared)


def test_nan_and_inf_stay_in_their_product():
    a, b = np.ones((40, 9, 9), np.float32), np.ones((40, 9, 9), np.float32)
    a[7, 3, 2], b[21, 5, 4], a[30] = np.nan, np.inf, 0
    b[30, 1, 1] = np.inf
    got = tw.matmul(a, b)
    with np.errstate(invalid="ignore"):
        want = a @ b
    assert np.array_equal(got, want, equal_nan=True)
    assert np.isnan(got).any(axis=(1, 2)).nonzero()[0].tolist() == [7, 30]


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("n", [1, 7, 16, 33])
def test_nothing_outside_of_the_operands_is_touched(n, end):
    a, b = (fenced(small_integers(seed, (12, n, n), np.float32), end) for seed in (0, 1))
    c = fenced(np.full((12, n, n), np.nan, np.float32), end)
    for threads in 1, 2:
        tw.matmul(a, b, c, threads=threads)
        assert np.array_equal(c, a @ b)
        tw.matmul(a[::-1], b[:1], c[::-1], threads=threads)
        assert np.array_equal(c, (a[::-1] @ b[:1])[::-1])


def test_out_may_overlap_the_operands():
    x = small_integers(0, (30, 8, 8), np.float64)
    for where in (slice(1, 30), slice(0, 29)):
        held = x.copy()
        a, out = held[:29], held[where]
        want = a @ x[1:]
        assert tw.matmul(a, x[1:], out) is out
        assert np.array_equal(out, want)
