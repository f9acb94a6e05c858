"""C with very few rows: rows of B stream by, several at once, and each is read once and as it lies in memory."""
from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.kernels.cpu.in_place import job_fields, split
from tilewright.kernels.cpu.jobs import STREAM
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.targets.cpu import CpuTarget

COLUMNS = 16 << 10           # bytes of a row of C that stay in L1 while all of B's rows pass
ONE_ROW = 64 << 10           # of C's only row, in L2: longer runs of B's rows are worth more than L1


def emit_stream(target: CpuTarget, dtype: str, ROWS: int, DEPTH: int) -> Function:
    """stream(job, part): a run of columns of C[ROWS, n] = A[ROWS, k] @ B[k, n] + beta * C, beta being 0 or 1.

    There is no alpha: C holds parts of the sums until the last row of B has passed, so emit_scale of finish.py does it.

    DEPTH rows of B at a time, and ROWS x DEPTH elements of A in registers meanwhile. B's and C's rows are contiguous.

    The rows that come next are prefetched into L2, except for one row of C on AVX2. On a Zen 3 B of 4096 x 4096 and
    4096 x 11008 ran at 0.83 and 0.98 of OpenBLAS with prefetches and runs of 16 KB, at 0.93 and 1.07 without them, by
    whole cache lines, in runs of 64 KB.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    PREFETCH = ROWS > 1 or target.vector_bytes == target.line
    RUN, TOGETHER = (COLUMNS, 1) if PREFETCH else (ONE_ROW, target.line // target.vector_bytes)
    VT = vec(T, V)
    k = Kernel(f"stream_{dtype}_{ROWS}x{DEPTH}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, STREAM, T)
    a, b, c = g.a.view(g.rsa, g.csa), g.b.view(g.ldb, 1), g.c.view(g.ldc, 1)
    lo, hi = (x*V for x in split(k.ceil_div(g.n, V), g.parts, part))
    hi = k.min(hi, g.n)

    def row_by_row(j: Value, width: Value, each: Callable, TOGETHER: int = 1) -> None:
        """each(j, mask, vectors) for all vectors of columns j ... j + width, TOGETHER at a time as long as they are
        whole."""
        end = j
        for COUNT in sorted({TOGETHER, 1}, reverse=True):
            begin, end = end, j + width // (COUNT*V) * (COUNT*V)
            with k.loop(end, begin, COUNT*V) as jv:
                each(jv, None, COUNT)
        with k.when(width % V > 0):
            each(end, k.lanes_below(width % V, V), 1)

    def add(p: Value, DEPTH: int, j: Value, width: Value) -> None:
        """C += A[:, p ... p + DEPTH] @ B[p ... p + DEPTH, :]"""
        a_reg = [[k.broadcast(a[i, p + d], V) for d in range(DEPTH)] for i in range(ROWS)]

        def columns(jv: Value, mask: Value | None, COUNT: int) -> None:
            places = [(i, jv + v*V if v else jv) for v in range(COUNT) for i in range(ROWS)]
            acc = [k.load(c.at(*place), VT, T.bytes, mask) for place in places]
            for d in range(DEPTH if PREFETCH else 0):
                k.prefetch(b.at(p + d + DEPTH, jv), locality=2)
            for d in range(DEPTH):
                for v in range(COUNT):
                    b_reg = k.load(b.at(p + d, places[v*ROWS][1]), VT, T.bytes, mask)
                    for i in range(ROWS):
                        acc[v*ROWS + i] = k.fma(a_reg[i][d], b_reg, acc[v*ROWS + i])
            for place, x in zip(places, acc):
                k.store(c.at(*place), x, T.bytes, mask)
        row_by_row(j, width, columns, TOGETHER)

    with k.loop(hi, lo, RUN // T.bytes) as j:
        width = k.min(hi - j, RUN // T.bytes)

        def clear(jv: Value, mask: Value | None, COUNT: int) -> None:
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
