"""Counts of large launches from small ones: the lecture's four kernels for square matrices, whose one size decides the
grid and the depth, and a kernel of two loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Kernel, f32, i32, ptr
from tilewright.lab.measure import launch_counts as counts
from tilewright.lab.tuner import bound, kernels, trial
from tilewright.runtime.parametric import spelled
from tilewright.targets import target

SM = target("sm_86")
EXACT = ("fma", "load", "load shared", "store", "barrier", "passes", "sectors loaded", "sectors stored", "waits",
         "flops")


def begin(name, T, V):
    k = Kernel(name, threads=(T, T), n=i32, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    n, *matrices = k.args
    (tx, ty), (bx, by) = k.thread, k.block
    return k, n, (by * T + ty) * V, (bx * T + tx) * V, *(x.view(n, 1) for x in matrices)


def finish(k, acc, c, i0, j0, V):
    for x in range(V):
        for y in range(V):
            c[i0 + x, j0 + y] = acc[x, y]
    return k.function


def multiply(k, acc, column, row):
    for i, x in enumerate(column):
        for j, y in enumerate(row):
            acc[i, j] = k.fma(x, y, acc[i, j])


def emit_v1(L=32):
    k, n, i, j, a, b, c = begin("v1", L, 1)
    acc = k.tile(1, 1, f32)
    with k.loop(n) as p:
        multiply(k, acc, [a[i, p]], [b[p, j]])
    return finish(k, acc, c, i, j, 1)


def emit_v15(L=32, V=4):
    k, n, i0, j0, a, b, c = begin("v1_5", L // V, V)
    for x in range(V):
        acc = k.tile(1, V, f32)
        with k.loop(n) as p:
            multiply(k, acc, [a[i0 + x, p]], [b[p, j0 + y] for y in range(V)])
        for y in range(V):
            c[i0 + x, j0 + y] = acc[0, y]
    return k.function


def emit_v2(L=32, V=4):
    k, n, i0, j0, a, b, c = begin("v2", L // V, V)
    acc = k.tile(V, V, f32)
    with k.loop(n) as p:
        multiply(k, acc, [a[i0 + x, p] for x in range(V)], [b[p, j0 + y] for y in range(V)])
    return finish(k, acc, c, i0, j0, V)


def emit_v3(L=32, S=8, V=4):
    T = L // V
    k, n, i0, j0, a, b, c = begin("v3", T, V)
    a_smem, b_smem = k.smem("a_smem", (L, S), f32), k.smem("b_smem", (S, L), f32)
    (tx, ty), (bx, by), acc = k.thread, k.block, k.tile(V, V, f32)
    with k.loop(n, step=S) as p0:
        k.barrier()
        for x in (ty * T + tx + j * T * T for j in range(L * S // (T * T))):
            a_smem[x // S, x % S] = a[by * L + x // S, p0 + x % S]
            b_smem[x // L, x % L] = b[p0 + x // L, bx * L + x % L]
        k.barrier()
        for p in range(S):
            multiply(k, acc, [a_smem[ty * V + x, p] for x in range(V)], [b_smem[p, tx * V + y] for y in range(V)])
    return finish(k, acc, c, i0, j0, V)


def emit_rows(L=32):
    """Sums of n rows of m numbers, each added up twice; only m is a depth."""
    k = Kernel("rows", threads=L, n=i32, m=i32, x=ptr(f32), y=ptr(f32))
    _, m, x, y = k.args
    row, acc = k.block[0] * L + k.thread[0], k.variable(f32, 0)
    for _ in range(2):
        with k.loop(m) as p:
            acc.set(acc.get() + x[row * m + p])
    y[row] = acc.get()
    return k.function


def square(emit, L):
    return tw.kernel(L=(L,), grid=lambda L, n: (n // L, n // L), tile=lambda L: {"n": L},
                     arrays=lambda n: {"a": (n, n), "b": (n, n), "c": (n, n)})(emit)


def counted(kernel, *args):
    task = trial.Task(kernel, SM, kernel._names(SM, args))
    made, _ = trial.trial_of(task, spelled(kernel.configurations[0]))
    assert not made.refused
    return task, made


@pytest.mark.parametrize("emit", [emit_v1, emit_v15, emit_v2, emit_v3])
def test_one_size_may_decide_the_grid_and_the_depth(emit):
    """Counted whole at 4 tiles, and at 1024 two operations for each of n³ terms."""
    L, n = 8, 32
    kernel, args = square(emit, L), (n, *np.ones((3, n, n), np.float32))
    _, made = counted(kernel, *args)
    whole = counts.run(kernel.function(SM, L=L), list(args), (n // L, n // L), "sm_86")
    for kind in EXACT:
        assert made.launch.counts.get(kind, 0) == pytest.approx(whole[kind]), kind
    n, L = 1024, 32
    kernel = square(emit, L)
    task, made = counted(kernel, n, *np.ones((3, n, n), np.float32))
    assert made.launch.counts["flops"] == 2 * n**3
    assert 2 * n**3 / kernels.priced(task, made).seconds < SM.flops()


@pytest.mark.parametrize(("n", "m"), [(32, 5), (48, 40), (64, 40), (320, 7)])
def test_a_size_of_the_grid_and_one_of_the_depth(n, m):
    kernel = tw.kernel(L=(32,), grid=lambda L, n: n // L, tile=lambda L: {"n": L, "m": 8},
                       arrays=lambda n, m: {"x": (n, m), "y": (n,)})(emit_rows)
    args = n // 32 * 32, m, np.ones((n, m), np.float32), np.zeros(n, np.float32)
    _, made = counted(kernel, *args)
    whole = counts.run(kernel.function(SM, L=32), list(args), n // 32, "sm_86")
    for kind in ("float", "load", "store", "waits", "flops"):
        assert made.launch.counts.get(kind, 0) == pytest.approx(whole[kind]), kind


def test_no_bound_is_above_the_peak_of_the_chip():
    """Of counts that are wrong, and of instructions that have no price of their own."""
    launch = bound.Launch({"fma": 1.0, "flops": 1e12}, peak=SM.flops())
    cost = bound.bound(launch, SM)
    assert cost.seconds == 1e12 / SM.flops()
    assert cost.bound == bound.PEAK
    assert bound.bound(replace(launch, peak=0.0), SM).seconds < cost.seconds
