"""C with very few rows: rows of B stream by, several at once, and each is read once and as it lies in memory."""
from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.kernels.cpu.in_place import job_fields, split
from tilewright.kernels.cpu.jobs import STREAM
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.targets.base import CpuTarget

COLUMNS = 16 << 10           # bytes of a row of C that stay in L1 while all of B's rows pass


def emit_stream(target: CpuTarget, dtype: str, ROWS: int, DEPTH: int) -> Function:
    """stream(job, part): a run of columns of C[ROWS, n] = A[ROWS, k] @ B[k, n] + beta * C, beta being 0 or 1.

    There is no alpha: C holds parts of the sums until the last row of B has passed, so emit_scale of finish.py does it.

    DEPTH rows of B at a time, and ROWS x DEPTH elements of A in registers meanwhile. B's and C's rows are contiguous.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    VT = vec(T, V)
    k = Kernel(f"stream_{dtype}_{ROWS}x{DEPTH}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, STREAM, T)
    a, b, c = g.a.view(g.rsa, g.csa), g.b.view(g.ldb, 1), g.c.view(g.ldc, 1)
    lo, hi = (x*V for x in split(k.ceil_div(g.n, V), g.parts, part))
    hi = k.min(hi, g.n)

    def row_by_row(j: Value, width: Value, each: Callable) -> None:
        """each(j, mask) for every vector of columns j ... j + width."""
        whole = j + width // V * V
        with k.loop(whole, j, V) as jv:
            each(jv, None)
        with k.when(width % V > 0):
            each(whole, k.lanes_below(width % V, V))

    def add(p: Value, DEPTH: int, j: Value, width: Value) -> None:
        """C += A[:, p ... p + DEPTH] @ B[p ... p + DEPTH, :]"""
        a_reg = [[k.broadcast(a[i, p + d], V) for d in range(DEPTH)] for i in range(ROWS)]

        def columns(jv: Value, mask: Value | None) -> None:
            acc = [k.load(c.at(i, jv), VT, T.bytes, mask) for i in range(ROWS)]
            for d in range(DEPTH):
                k.prefetch(b.at(p + d + DEPTH, jv), locality=2)     # the rows that come next
            for d in range(DEPTH):
                b_reg = k.load(b.at(p + d, jv), VT, T.bytes, mask)
                for i in range(ROWS):
                    acc[i] = k.fma(a_reg[i][d], b_reg, acc[i])
            for i in range(ROWS):
                k.store(c.at(i, jv), acc[i], T.bytes, mask)
        row_by_row(j, width, columns)

    with k.loop(hi, lo, COLUMNS // T.bytes) as j:
        width = k.min(hi - j, COLUMNS // T.bytes)

        def clear(jv: Value, mask: Value | None) -> None:
            for i in range(ROWS):
                k.store(c.at(i, jv), k.constant(VT, 0.0), T.bytes, mask)
        with k.when(g.beta == 0.0):
            row_by_row(j, width, clear)
        deep = g.k // DEPTH * DEPTH
        with k.loop(deep, step=DEPTH) as p:
            add(p, DEPTH, j, width)
        with k.loop(g.k, deep) as p:
            add(p, 1, j, width)
    return k.function
