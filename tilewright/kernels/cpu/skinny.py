"""Products with few rows or few columns of C: the long operand is read once, in its own order in memory, without
packing.

    emit_stream     few rows: rows of B pass by, several at once
    emit_dots       few columns: dot products along k, several at once, so that A is read once
    emit_scale      a block of C after the product, for algorithms that add up in several passes (stream) and so cannot
                    scale: alpha times a sum is not the sum of alpha times its parts if one of these, or alpha, is inf
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.kernels.cpu.jobs import DOTS, OF_PROLOGUE, SCALE, STREAM
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_fields, split
from tilewright.kernels.cpu.prepared import Prepared, suffix
from tilewright.kernels.narrow import memory_type
from tilewright.targets.cpu import CpuTarget

COLUMNS = 16 << 10           # bytes of a row of C that stay in L1 while all of B's rows pass
ONE_ROW = 64 << 10           # of C's only row, in L2: longer runs of B's rows are worth more than L1


def emit_stream(target: CpuTarget, dtype: str, ROWS: int, DEPTH: int, SOURCE: str = "",
                PROLOGUE: tuple[Any, ...] = ()) -> Function:
    """stream(job, part): a run of columns of C[ROWS, n] = A[ROWS, k] @ B[k, n] + beta * C, beta being 0 or 1.

    There is no alpha: C holds parts of the sums until the last row of B has passed, so emit_scale does it.

    DEPTH rows of B at a time, and ROWS x DEPTH elements of A in registers meanwhile. B's and C's rows are contiguous.

    SOURCE      B's format, if PROLOGUE, the fields of a jobs.Prepare, makes numbers of its elements as they are read

    The rows that come next are prefetched into L2, except for one row of C on AVX2. On a Zen 3 B of 4096 x 4096 and
    4096 x 11008 ran at 0.83 and 0.98 of OpenBLAS with prefetches and runs of 16 KB, at 0.93 and 1.07 without them, by
    whole cache lines, in runs of 64 KB.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    PREFETCH = ROWS > 1 or target.tile_registers != 16
    RUN, TOGETHER = (COLUMNS, 1) if PREFETCH else (ONE_ROW, target.line // target.vector_bytes)
    VT = vec(T, V)
    k = Kernel(f"stream_{dtype}_{ROWS}x{DEPTH}{_of(SOURCE, PROLOGUE)}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, STREAM if PROLOGUE else STREAM[:-OF_PROLOGUE], T, **_source("b", SOURCE))
    elements = _prepared(k, target, SOURCE, PROLOGUE, g, "b")
    a, b, c = g.a.view(g.rsa, g.csa), g.b.view(g.ldb, 1), g.c.view(g.ldc, 1)
    lo, hi = (x*V for x in split(k.ceil_div(g.n, V), g.parts, part))
    hi = k.min(hi, g.n)

    def row_by_row(j: Value, width: Value, each: Callable, TOGETHER: int = 1) -> None:
        """each(j, count, vectors) for all vectors of columns j ... j + width, TOGETHER at a time as long as they are
        whole; count: of the columns of a vector that is not."""
        end = j
        for COUNT in sorted({TOGETHER, 1}, reverse=True):
            begin, end = end, j + width // (COUNT*V) * (COUNT*V)
            with k.loop(end, begin, COUNT*V) as jv:
                each(jv, None, COUNT)
        with k.when(width % V > 0):
            each(end, width % V, 1)

    def add(p: Value, DEPTH: int, j: Value, width: Value) -> None:
        """C += A[:, p ... p + DEPTH] @ B[p ... p + DEPTH, :]"""
        a_reg = [[k.broadcast(a[i, p + d], V) for d in range(DEPTH)] for i in range(ROWS)]

        def columns(jv: Value, count: Value | None, COUNT: int) -> None:
            mask = None if count is None else k.lanes_below(count, V)
            places = [(i, jv + v*V if v else jv) for v in range(COUNT) for i in range(ROWS)]
            acc = [k.load(c.at(*place), VT, T.bytes, mask) for place in places]
            for d in range(DEPTH if PREFETCH else 0):
                k.prefetch(b.at(p + d + DEPTH, jv), locality=2)
            for d in range(DEPTH):
                for v in range(COUNT):
                    j = places[v*ROWS][1]
                    b_reg = (elements.sums(b.at(p + d, j), j, p + d, count, T) if elements else
                             k.load(b.at(p + d, j), VT, T.bytes, mask))
                    for i in range(ROWS):
                        acc[v*ROWS + i] = k.fma(a_reg[i][d], b_reg, acc[v*ROWS + i])
            for place, x in zip(places, acc):
                k.store(c.at(*place), x, T.bytes, mask)
        row_by_row(j, width, columns, TOGETHER)

    with k.loop(hi, lo, RUN // T.bytes) as j:
        width = k.min(hi - j, RUN // T.bytes)

        def clear(jv: Value, count: Value | None, COUNT: int) -> None:
            mask = None if count is None else k.lanes_below(count, V)
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


def _of(SOURCE: str, PROLOGUE: tuple[Any, ...]) -> str:
    """Of the name of a kernel."""
    return f"_from_{SOURCE}{suffix(PROLOGUE)}" if PROLOGUE else ""


def _source(role: str, SOURCE: str) -> dict[str, Any]:
    return {role: memory_type(SOURCE)} if SOURCE else {}


def _prepared(k: Kernel, target: CpuTarget, SOURCE: str, PROLOGUE: tuple[Any, ...], g: SimpleNamespace, role: str
              ) -> Prepared | None:
    """What reads the operand `role`, if it has a prologue: from its first line and step of k on."""
    if not PROLOGUE:
        return None
    first = k.constant(i64, 0)
    return Prepared(k, target, SOURCE, PROLOGUE, SimpleNamespace(line=first, step=first, index=g.index,
                                                                 beside=getattr(g, f"{role}_beside")))


def emit_dots(target: CpuTarget, dtype: str, ROWS: int, COLS: int, SOURCE: str = "",
              PROLOGUE: tuple[Any, ...] = ()) -> Function:
    """dots(job, part): a run of rows of C[m, COLS] = alpha * A[m, k] @ B[k, COLS] + beta * C, ROWS at a time.

    A's rows and B's columns are contiguous (ldb: from one column to the next). The k products of an element are added
    in V lanes and these in a tree, whatever the rows around it are. SOURCE, PROLOGUE: of A, as emit_stream's of B.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    VT = vec(T, V)
    k = Kernel(f"dots_{dtype}_{ROWS}x{COLS}{_of(SOURCE, PROLOGUE)}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, DOTS if PROLOGUE else DOTS[:-OF_PROLOGUE], T, **_source("a", SOURCE))
    elements = _prepared(k, target, SOURCE, PROLOGUE, g, "a")
    a, b, out = g.a.view(g.lda, 1), g.b.view(g.ldb, 1), Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta)
    columns = [b.at(j, 0) for j in range(COLS)]
    lo, hi = split(g.m, g.parts, part)
    whole = g.k // V * V

    def put(i: Value, j: int, x: Value, read_c: bool) -> None:
        out.at(i, j).put(x, read_c)

    def rows_at(i: Value, ROWS: int) -> None:
        rows = [a.at(i + r, 0) for r in range(ROWS)]
        acc = k.tile(ROWS, COLS, VT)

        def multiply(p: Value, count: Value | None) -> None:
            mask = None if count is None else k.lanes_below(count, V)
            b_reg = [k.load(column + p, VT, T.bytes, mask) for column in columns]
            for r in range(ROWS):
                a_reg = (elements.sums(rows[r] + p, i + r, p, count, T, along=True) if elements else
                         k.load(rows[r] + p, VT, T.bytes, mask))
                for j in range(COLS):
                    acc[r, j] = k.fma(a_reg, b_reg[j], acc[r, j])
        with k.loop(whole, step=V) as p:
            multiply(p, None)
        with k.when(whole < g.k):
            multiply(whole, g.k - whole)
        for r in range(ROWS):
            for j in range(COLS):
                out.cases_of_beta(partial(put, i + r, j, out.scaled(k.sum(acc[r, j]))))

    in_blocks(k, (lo, hi), ROWS, rows_at)
    return k.function


def in_blocks(k: Kernel, rows: tuple[Value, Value], ROWS: int, rows_at: Callable[[Value, int], None]) -> None:
    """rows_at(i, rows) for ROWS rows at once, and the last ones by themselves."""
    lo, hi = rows
    full = lo + (hi - lo) // ROWS * ROWS
    with k.loop(full, lo, ROWS) as i:
        rows_at(i, ROWS)
    with k.loop(hi, full) as i:
        rows_at(i, 1)


def column_runs(k: Kernel, COLS: int, WIDE: int, columns_at: Callable[[Value, Value, int, int, bool], None]
                ) -> Callable[[Value, int], None]:
    """rows_at(i, rows) of `in_blocks` by columns_at(i, j, rows, columns, first) for runs of up to WIDE of COLS columns,
    of one length but for the first run, which may be shorter."""
    WIDTH = -(-COLS // -(-COLS // WIDE))
    FIRST = COLS % WIDTH

    def rows_at(i: Value, ROWS: int) -> None:
        if FIRST:
            columns_at(i, k.constant(i64, 0), ROWS, FIRST, True)
        with k.loop(k.constant(i64, COLS), FIRST, WIDTH) as j:
            columns_at(i, j, ROWS, WIDTH, not FIRST)
    return rows_at


def emit_scale(target: CpuTarget, dtype: str) -> Function:
    """scale(job, part): a block of C[m, n] = alpha * S + beta * C. beta = 0 never reads C; S may be C itself then."""
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    k = Kernel(f"scale_{dtype}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, SCALE, T, s=T)
    s, out = g.s.view(g.lds, 1), Out(k, g.c.view(g.ldc, 1), g.alpha, g.beta)
    i_lo, i_hi = split(g.m, g.row_parts, part // g.col_parts)
    j_lo, j_hi = (x*V for x in split(k.ceil_div(g.n, V), g.col_parts, part % g.col_parts))
    j_hi = k.min(j_hi, g.n)
    whole = j_lo + (j_hi - j_lo) // V * V

    def rows(read_c: bool) -> None:
        def vector(i: Value, j: Value, mask: Value | None) -> None:
            sums = k.load(s.at(i, j), vec(T, V), T.bytes, mask)
            out.at(i, j).put(out.scaled(sums), read_c, mask)

        with k.loop(i_hi, i_lo) as i:
            with k.loop(whole, j_lo, V) as j:
                vector(i, j, None)
            with k.when(whole < j_hi):
                vector(i, whole, k.lanes_below(j_hi - whole, V))
    out.cases_of_beta(rows)
    return k.function
