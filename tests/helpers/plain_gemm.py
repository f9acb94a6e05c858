"""The simplest kernel for a GEMM that the runtime takes, for tests of the runtime alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import tilewright as tw
from tilewright.compiler import artefact
from tilewright.ir import Function, Kernel, f32, f64, i32, i64, ptr

TILE = 8


@cache
def plain(DTYPE: str, LAYOUT: str, SPLIT: bool, BATCH: bool) -> Function:
    """A thread per element of C, a CTA along z per matrix of a BATCH. With SPLIT its sum passes through the workspace,
    and a counter that must be zero."""
    T = {"f32": f32, "f64": f64}[DTYPE]
    matrix, more = ptr(T, strided=True), {"workspace": ptr(T), "counters": ptr(i32)} if SPLIT else {}
    more |= {"stride_a": i64, "stride_b": i64, "stride_c": i64} if BATCH else {}
    k = Kernel(f"plain_{DTYPE}_{LAYOUT}{'_split' * SPLIT}{'_batch' * BATCH}", threads=(TILE, TILE), m=i32, n=i32, k=i32,
               alpha=T, a=matrix, lda=i64, b=matrix, ldb=i64, beta=T, c=matrix, ldc=i64, **more)
    m, n, kk, alpha, a, lda, b, ldb, beta, c, ldc, *others = k.args
    a, b, c = (x + k.cast(k.block_z, i64) * by for x, by in zip((a, b, c), others[-3:])) if BATCH else (a, b, c)
    (x, y), (block_x, block_y) = k.thread, k.block
    i, j = k.cast(block_y * TILE + y, i64), k.cast(block_x * TILE + x, i64)
    acc = k.variable(T, 0.0)
    with k.when((i < m) & (j < n)):
        with k.loop(kk) as p:
            at_a = a[i * lda + p] if LAYOUT[0] == "n" else a[p * lda + i]
            at_b = b[p * ldb + j] if LAYOUT[1] == "n" else b[j * ldb + p]
            acc.set(k.fma(at_a, at_b, acc.get()))
        if SPLIT:
            workspace, counters, *_ = others
            workspace[i * n + j] = acc.get()
            acc.set(workspace[i * n + j] + k.cast(counters[0], T))
        value = k.variable(T)
        value.set(alpha * acc.get())
        with k.when(beta != 0.0):
            value.set(k.fma(beta, c[i * ldc + j], value.get()))
        c[i * ldc + j] = value.get()
    return k.function


@dataclass(frozen=True)
class Launch:
    function: Function
    grid: tuple[int, ...]
    shared_bytes: int = 0
    workspace: int = 0
    counters: int = 0
    more: tuple[tuple[str, int], ...] = ()
    at: tuple[tuple[str, int], ...] = ()
    zero: tuple[int, int] = (0, 0)


class Compiled:
    """What the engine and `bound` ask of a compiled kernel."""

    split = False

    def __init__(self, problem: tw.Gemm, target: Any, plan: Any = None) -> None:
        self.problem, self.target, self.inner = problem, target, self  # nothing is converted
        function = plain(problem.out, problem.layout, self.split, problem.batch != 1)
        grid = -(-problem.n // TILE), -(-problem.m // TILE), problem.batch
        self.launches = (Launch(function, grid, 0, 8 * problem.m * problem.n, 4),)
        self.loadable = artefact.compiled(function, target)


class Split(Compiled):
    split = True
