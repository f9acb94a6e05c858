"""Products with few rows or few columns of C: the long operand is read once, in its own order, without packing.

    emit_stream     few rows: rows of B pass by, several at once
    emit_dots       few columns: dot products along k, several at once, so that A is read once
    emit_row_dots   few rows and columns, and B's rows are contiguous, not its columns
    emit_each       a batch of one of these: one after the other
    emit_scale      a block of C after the product, for algorithms that add up in several passes (stream) and so cannot
                    scale: alpha times a sum is not the sum of alpha times its parts if one of these, or alpha, is inf
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Type, Value, i8, i16, i32, i64, ptr, vec
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_fields, job_kernel, split
from tilewright.kernels.cpu.prepared import Prepared, suffix
from tilewright.kernels.narrow import memory_type, widened
from tilewright.plans.cpu import MOST_COPIED, dot_sums, row_dot_sums
from tilewright.targets.cpu import CpuTarget

COLUMNS = 16 << 10           # bytes of a row of C that stay in L1 while all of B's rows pass
FEWEST_KEPT, MOST_KEPT = 4, 16          # columns, from which dot products go by blocks of k, and the most rows
ONE_ROW = 64 << 10           # of C's only row, in L2: longer runs of B's rows are worth more than L1


def emit_stream(target: CpuTarget, dtype: str, ROWS: int, DEPTH: int, SOURCE: str = "",
                PROLOGUE: tuple[Any, ...] = ()) -> Function:
    """stream(job, part): a run of columns of C[ROWS, n] = A[ROWS, k] @ B[k, n] + beta * C, beta being 0 or 1.

    There is no alpha: C holds parts of the sums until the last row of B has passed, so emit_scale does it.

    DEPTH rows of B at a time, and ROWS x DEPTH elements of A in registers meanwhile. B's and C's rows are contiguous.

    SOURCE      B's format, if PROLOGUE, the fields of a jobs.Prepare, makes numbers of its elements as they are read

    The rows that come next are prefetched into L2, except for one row of C. On a Zen 3 B of 4096 x 4096 and
    4096 x 11008 ran at 0.83 and 0.98 of OpenBLAS with prefetches and runs of 16 KB, at 0.93 and 1.07 without them, by
    whole cache lines, in runs of 64 KB; on a Xeon with AVX-512 B of 300 x 300 and 8 x 100000 ran at 0.84 and 0.86 with
    prefetches, at 1.13 and 0.99 without.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    PREFETCH = ROWS > 1
    RUN, TOGETHER = (COLUMNS, 1) if PREFETCH else (ONE_ROW, target.line // target.vector_bytes)
    VT = vec(T, V)
    k, g, part = job_kernel(f"stream_{dtype}_{ROWS}x{DEPTH}{_of(SOURCE, PROLOGUE)}",
                            jobs.STREAM if PROLOGUE else jobs.STREAM[:-jobs.OF_PROLOGUE], T, **_source("b", SOURCE))
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
    """The suffix of the name of a kernel with a prologue."""
    return f"_from_{SOURCE}{suffix(PROLOGUE)}" if PROLOGUE else ""


def _between(dtype: str, *formats: str) -> str:
    """The suffix of the name of a kernel whose operands and result have other formats than dtype."""
    return "_".join(["", *(x or dtype for x in formats)]) if any(formats) else ""


def _loaded(k: Kernel, at: Value, FORMAT: str, T: Type, V: int, mask: Value | None) -> Value:
    """V numbers as numbers of T, widened if FORMAT names another."""
    S = memory_type(FORMAT) if FORMAT else T
    x = k.load(at, vec(S, V) if V > 1 else S, S.bytes, mask)
    return widened(k, x, FORMAT, T) if FORMAT else x


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
              PROLOGUE: tuple[Any, ...] = (), OTHER: str = "", RESULT: str = "") -> Function:
    """dots(job, part): a run of rows of C[m, COLS] = alpha * A[m, k] @ B[k, COLS] + beta * C, ROWS at a time.

    A's rows and B's columns are contiguous (ldb: from one column to the next). SOURCE, PROLOGUE: of A, as emit_stream's
    of B. Without a prologue SOURCE and OTHER are the formats of A and B, if these are not `dtype`, and are widened as
    they are loaded; RESULT is C's.

    An element has SUMS sums of V lanes, whatever the rows around it are: vector i of k is added to sum i % SUMS, but
    what is left beyond a multiple of SUMS vectors to the first one. At the end sums are added in a tree, then lanes.
    With one sum each addition of one row's would wait for the one before it.

    With several columns, and rows for a few tiles, k goes by in blocks for which B's columns stay in L1, and sums wait
    on the stack; the order of additions is the same. On a Xeon 8 x 8 by 100,000 in f64 took 0.45 of the time.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    VT = vec(T, V)
    of_formats = _of(SOURCE, PROLOGUE) if PROLOGUE else _between(dtype, SOURCE, OTHER, RESULT)
    k, g, part = job_kernel(f"dots_{dtype}_{ROWS}x{COLS}{of_formats}",
                            jobs.DOTS if PROLOGUE else jobs.DOTS[:-jobs.OF_PROLOGUE], T,
                            **_source("a", SOURCE), **_source("b", OTHER), **_source("c", RESULT))
    elements = _prepared(k, target, SOURCE, PROLOGUE, g, "a")
    a, b, out = g.a.view(g.lda, 1), g.b.view(g.ldb, 1), out_of(k, g, RESULT)
    columns = [b.at(j, 0) for j in range(COLS)]
    lo, hi = split(g.m, g.parts, part)
    SUMS = 1 if PROLOGUE else dot_sums(COLS)
    BLOCKED = COLS >= FEWEST_KEPT and not PROLOGUE
    full_end = g.k // V * V
    together = g.k // (SUMS*V) * (SUMS*V)
    DEPTH = target.l1d * 2 // 3 // (COLS * T.bytes) // V * V
    kept = k.local("kept", (MOST_KEPT*COLS*V,), T) if BLOCKED else None

    def rows_at(i: Value, ROWS: int, begin: Value | int = 0, whole: Value = full_end, end: Value = g.k,
                last: Value | None = None) -> None:
        """Steps begin ... end of k, whole vectors up to `whole`; `last`, of blocks: whether sums are complete then."""
        rows = [a.at(i + r, 0) for r in range(ROWS)]
        sums = [k.tile(ROWS, COLS, VT) for _ in range(SUMS)]
        acc = sums[0]
        places = {} if last is None else {(r, j): kept + ((i - lo + r)*COLS + j)*V
                                          for r in range(ROWS) for j in range(COLS)}
        for (r, j), at in places.items():
            acc[r, j] = k.load(at, VT)

        def multiply(p: Value, count: Value | None, SUM: int = 0) -> None:
            mask, acc = None if count is None else k.lanes_below(count, V), sums[SUM]
            b_reg = [_loaded(k, column + p, OTHER, T, V, mask) for column in columns]
            for r in range(ROWS):
                a_reg = (elements.sums(rows[r] + p, i + r, p, count, T, along=True) if elements else
                         _loaded(k, rows[r] + p, SOURCE, T, V, mask))
                for j in range(COLS):
                    acc[r, j] = k.fma(a_reg, b_reg[j], acc[r, j])

        def finish() -> None:
            for r in range(ROWS):
                for j in range(COLS):
                    total, row = k.sum(in_tree([acc[r, j] for acc in sums])), i + r
                    out.put(out.scaled(total), row, j)
        if SUMS > 1:
            with k.loop(together, step=SUMS*V) as p:
                for SUM in range(SUMS):
                    multiply(p + SUM*V if SUM else p, None, SUM)
        with k.loop(whole, together if SUMS > 1 else begin, V) as p:
            multiply(p, None)
        with k.when(whole < end):
            multiply(whole, end - whole)
        if last is None:
            finish()
            return
        for (r, j), at in places.items():
            k.store(at, acc[r, j])
        with k.when(last):
            finish()

    if not BLOCKED:
        in_blocks(k, (lo, hi), ROWS, rows_at)
        return k.function
    with k.when((g.k > DEPTH) & (hi - lo > ROWS) & (hi - lo <= MOST_KEPT)):
        with k.loop((hi - lo) * COLS) as place:
            k.store(kept + place*V, k.constant(VT, 0))
        with k.loop(g.k, step=DEPTH) as begin:
            end = k.min(begin + DEPTH, g.k)
            full_end = begin + (end - begin) // V * V
            in_blocks(k, (lo, hi), ROWS, partial(rows_at, begin=begin, whole=full_end, end=end, last=end == g.k))
    with k.otherwise():
        in_blocks(k, (lo, hi), ROWS, rows_at)
    return k.function


def out_of(k: Kernel, g: SimpleNamespace, RESULT: str) -> Out:
    """C of dot products, in the format RESULT if that is not the one of their sums."""
    def combined(old: Value, x: Value) -> Value:
        return k.fma(g.beta, widened(k, old, RESULT, x.type), x)
    return Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta, RESULT, combined if RESULT else None)


def emit_row_dots(target: CpuTarget, dtype: str, ROWS: int, COLS: int, SOURCE: str = "", OTHER: str = "",
                  RESULT: str = "") -> Function:
    """row_dots(job, part): C[m, COLS] = alpha * A[m, k] @ B[k, COLS] + beta * C, ROWS at a time, where B's rows are
    contiguous (ldb: from one to the next), and A's strides any: a step of k is a column of A by a row of B. SOURCE,
    OTHER, RESULT: the formats of A, B and C, as emit_dots'.

    A row of C has row_dot_sums sums: step i of k is added to sum i % SUMS, but what is left beyond a multiple of SUMS
    steps to the first one. At the end sums are added in a tree. It is as emit_dots' for the same reason.
    """
    T = TYPES[dtype]
    V = min(1 << (COLS - 1).bit_length(), target.lanes(T.bytes))
    VT, NV, SUMS = vec(T, V) if V > 1 else T, -(-COLS // V), row_dot_sums(ROWS)
    k, g, part = job_kernel(f"row_dots_{dtype}_{ROWS}x{COLS}{_between(dtype, SOURCE, OTHER, RESULT)}", jobs.ROW_DOTS, T,
                            **_source("a", SOURCE), **_source("b", OTHER), **_source("c", RESULT))
    a, b, out = g.a.view(g.lda, g.csa), g.b.view(g.ldb, 1), out_of(k, g, RESULT)
    line = k.local("line", (NV*V,), T)
    LAST = COLS - (NV - 1)*V
    masks = [k.lanes_below(k.constant(i64, LAST), V) if v == NV - 1 and LAST < V else None for v in range(NV)]

    def rows_at(i: Value, ROWS: int) -> None:
        sums = [k.tile(ROWS, NV, VT) for _ in range(SUMS)]

        def multiply(p: Value, SUM: int) -> None:
            row = [_loaded(k, b.at(p, v*V), OTHER, T, V, mask) for v, mask in enumerate(masks)]
            for r in range(ROWS):
                number = widened(k, a[i + r, p], SOURCE, T) if SOURCE else a[i + r, p]
                number = k.broadcast(number, V) if V > 1 else number
                for v in range(NV):
                    sums[SUM][r, v] = k.fma(number, row[v], sums[SUM][r, v])
        together = g.k // SUMS * SUMS
        with k.loop(together, step=SUMS) as p:
            for SUM in range(SUMS):
                multiply(p + SUM if SUM else p, SUM)
        with k.loop(g.k, together) as p:
            multiply(p, 0)

        def put(r: int, read_c: bool) -> None:
            with k.loop(k.constant(i64, COLS)) as j:
                out.place(i + r, j).put(out.scaled(line[j]), read_c)
        for r in range(ROWS):
            for v in range(NV):
                k.store(line + v*V, in_tree([acc[r, v] for acc in sums]), T.bytes)
            out.cases_of_beta(partial(put, r))

    in_blocks(k, split(g.m, g.parts, part), ROWS, rows_at)
    return k.function


def in_tree(sums: list[Value]) -> Value:
    """Record: the sum of a power of two of sums, neighbours first."""
    while len(sums) > 1:
        sums = [x + y for x, y in zip(sums[::2], sums[1::2])]
    return sums[0]


def emit_copied(target: CpuTarget, size: int) -> Function:
    """copied(job, part): a driver's part with a column B, of elements of `size` bytes, that is not contiguous
    (jobs.COPIED)."""
    T = {1: i8, 2: i16, 4: i32, 8: i64}[size]
    k = Kernel(f"copied_{8*size}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, jobs.COPIED, T, driver=i8, copies=T)
    own, given = k.local("own", (jobs.MOST_EACH,), i64), job.as_(i64) + len(jobs.COPIED)
    vector = k.variable(ptr(T), k.local("vector", (MOST_COPIED,), T))
    with k.when(k.address(g.copies) != 0):
        vector.set(g.copies + part*g.steps)
    with k.loop(g.fields) as i:
        k.store(own + i, given[i])
    column = k.load((given + g.at_b).as_(ptr(T)))
    together = g.steps // 4 * 4
    with k.loop(together, step=4) as i:
        for x in [(i + u, k.load(column + (i + u)*g.step)) for u in range(4)]:
            k.store(vector.get() + x[0], x[1])
    with k.loop(g.steps, together) as i:
        k.store(vector.get() + i, k.load(column + i*g.step))
    k.store(own + g.at_b, k.address(vector.get()))
    k.call(g.driver, own.as_(i8), part)
    return k.function


def emit_each(target: CpuTarget) -> Function:
    """each(job, part): a share of a batch of products, by a driver that takes one of them. jobs.EACH says what is
    where."""
    k = Kernel("each", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, jobs.EACH, i8, driver=i8)
    own, given = k.local("own", (jobs.MOST_EACH,), i64), job.as_(i64) + len(jobs.EACH)
    with k.loop(g.fields) as i:
        k.store(own + i, given[i])
    first, last = split(g.batch, g.batch_parts, part // g.within)
    with k.loop(last, first) as index:
        for at, step in (g.at_a, g.a_step), (g.at_b, g.b_step), (g.at_c, g.c_step):
            k.store(own + at, given[at] + index*step)
        k.call(g.driver, own.as_(i8), part % g.within)
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
    k, g, part = job_kernel(f"scale_{dtype}", jobs.SCALE, T, s=T)
    s, out = g.s.view(g.lds, 1), Out(k, g.c.view(g.ldc, 1), g.alpha, g.beta)
    i_lo, i_hi = split(g.m, g.row_parts, part // g.col_parts)
    j_lo, j_hi = (x*V for x in split(k.ceil_div(g.n, V), g.col_parts, part % g.col_parts))
    j_hi = k.min(j_hi, g.n)
    full_end = j_lo + (j_hi - j_lo) // V * V

    def rows(read_c: bool) -> None:
        def vector(i: Value, j: Value, mask: Value | None) -> None:
            sums = k.load(s.at(i, j), vec(T, V), T.bytes, mask)
            out.place(i, j).put(out.scaled(sums), read_c, mask)

        with k.loop(i_hi, i_lo) as i:
            with k.loop(full_end, j_lo, V) as j:
                vector(i, j, None)
            with k.when(full_end < j_hi):
                vector(i, full_end, k.lanes_below(j_hi - full_end, V))
    out.cases_of_beta(rows)
    return k.function
