"""C with very few columns: dot products along k, several at once, so that A is read once and as it lies in memory."""
from __future__ import annotations

from functools import partial

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.kernels.cpu.in_place import job_fields, split
from tilewright.kernels.cpu.jobs import DOTS
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.targets.cpu import CpuTarget


def emit_dots(target: CpuTarget, dtype: str, ROWS: int, COLS: int) -> Function:
    """dots(job, part): a run of rows of C[m, COLS] = alpha * A[m, k] @ B[k, COLS] + beta * C, ROWS at a time.

    A's rows and B's columns are contiguous (ldb: from one column to the next).

    The k products of an element are added in V lanes and these in a tree, whatever the rows around it are.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    VT = vec(T, V)
    k = Kernel(f"dots_{dtype}_{ROWS}x{COLS}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, DOTS, T)
    a, b, out = g.a.view(g.lda, 1), g.b.view(g.ldb, 1), Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta)
    columns = [b.at(j, 0) for j in range(COLS)]
    lo, hi = split(g.m, g.parts, part)
    whole = g.k // V * V

    def put(i: Value, j: int, x: Value, read_c: bool) -> None:
        out.at(i, j).put(x, read_c)

    def rows_at(i: Value, ROWS: int) -> None:
        rows = [a.at(i + r, 0) for r in range(ROWS)]
        acc = k.tile(ROWS, COLS, VT)

        def multiply(p: Value, mask: Value | None) -> None:
            b_reg = [k.load(column + p, VT, T.bytes, mask) for column in columns]
            for r in range(ROWS):
                a_reg = k.load(rows[r] + p, VT, T.bytes, mask)
                for j in range(COLS):
                    acc[r, j] = k.fma(a_reg, b_reg[j], acc[r, j])
        with k.loop(whole, step=V) as p:
            multiply(p, None)
        with k.when(whole < g.k):
            multiply(whole, k.lanes_below(g.k - whole, V))
        for r in range(ROWS):
            for j in range(COLS):
                out.cases_of_beta(partial(put, i + r, j, out.scaled(k.sum(acc[r, j]))))

    full = lo + (hi - lo) // ROWS * ROWS
    with k.loop(full, lo, ROWS) as i:
        rows_at(i, ROWS)
    with k.loop(hi, full) as i:
        rows_at(i, 1)
    return k.function
