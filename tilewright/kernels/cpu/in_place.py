"""GEMM without packing, for problems where packing costs more than it saves: m, n or k small.

    for pc: k, kc at a time
      for jr, ir (or ir, jr: the longer side outside, so that the panels of the shorter one stay in cache)
        micro-kernel that reads A and B where they are

A batch is one more loop outside of these, since a small product takes less time than a call of this function.

B's rows must be contiguous; A may be read by rows or by columns. With few rows and a small kc this streams B row by
row; with few columns it streams A.

`emit_small` is what the emitted builtin (entry.py) calls for a small product: it fills in the job, and no Python runs.
"""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from tilewright.ir import Function, Kernel, Type, Value, i8, i64, ptr
from tilewright.ir.values import Variable
from tilewright.kernels.cpu.jobs import DOTS, IN_PLACE, OF_PROLOGUE, PANELS, ROW_DOTS, SLACK, SMALL, STREAM
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.kernels.cpu.pool import LIMIT, job_kernel, split
from tilewright.plans.builtin import FEW_LINES, LONG, LONG_LINES
from tilewright.plans.cpu import MOST_COPIED, MOST_ROW_DOTS
from tilewright.targets.cpu import CpuTarget

SPLITS = 4              # parts for each thread, at most: a delayed thread does fewer
CLAIM = 16              # what a tile takes, in times of what claiming a part of several takes


def emit_in_place(target: CpuTarget, dtype: str, MR: int, NV: int) -> Function:
    """in_place(job, part): C = alpha * A @ B + beta * C for one block of C, or of each C in a share of the batch."""
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    NR = NV * V
    k, g, part = job_kernel(f"in_place_{dtype}_{MR}x{NR}", IN_PLACE, T)
    a_row, a_col = k.select(g.by_rows != 0, g.lda, 1), k.select(g.by_rows != 0, 1, g.lda)

    m_panels, n_panels = k.ceil_div(g.m, MR), k.ceil_div(g.n, NR)
    height, taller = g.m // m_panels, g.m % m_panels            # panels of equal height, the first ones one row more
    blocks = g.row_parts * g.col_parts
    share, block = part // blocks, part % blocks
    q_lo, q_hi = split(m_panels, g.row_parts, block // g.col_parts)
    j_lo, j_hi = split(n_panels, g.col_parts, block % g.col_parts)
    first, last = split(g.batch, g.batch_parts, share)

    def product(index: Value, a: Value, b: Value, c: Value, next_a: Value, next_b: Value, more: Value) -> None:
        """One of the batch; `next_a` and `next_b` are the next one's operands, if there are `more`."""
        def tile(pc: Value, kc: Value, beta: Value, q: Value, jr: Value, *, columns_outside: bool) -> None:
            j = jr * NR
            cols = k.min(g.n - j, NR)
            i, h = q*height + k.min(q, taller), height + k.select(q < taller, k.constant(i64, 1), 0)
            kernel = k.load(g.table + kernel_index(k, h, cols, V, NV), ptr(i8))
            # the first panel of rows asks for the rows of B that come next, the second one for the next A
            inside, leaving = pc + kc < g.k, more & (pc + kc == g.k)
            to_a = leaving & (q == q_lo + 1)
            to_b = (inside | leaving if columns_outside else leaving) & (q == q_lo)
            ahead = k.select(to_a, next_a + j, k.select(inside, b.at(pc + kc, j), next_b.at(0, j)))
            step = k.select(to_b, g.ldb, k.select(to_a, g.lda, 0))
            k.call(kernel, kc, a.at(i, pc), g.lda, b.at(pc, j), g.ldb, c.at(i, j), g.ldc, cols, g.alpha, beta, ahead,
                   step)
            with k.when((g.finish != 0) & (pc + kc == g.k)):
                k.call(g.finish, c.at(i, j), g.ldc, c.at(0, 0 - g.first), g.ldc, i, j + g.first, h, cols, q,
                       jr + g.first // NR, g.alpha, g.index + index, g.operands)

        with k.loop(g.k, step=g.kc) as pc:
            kc = k.min(g.kc, g.k - pc)
            beta = k.select(pc == 0, g.beta, 1.0)
            with k.when(g.rows_outside == 0):
                with k.loop(j_hi, j_lo) as jr, k.loop(q_hi, q_lo) as q:
                    tile(pc, kc, beta, q, jr, columns_outside=True)
            with k.otherwise():
                with k.loop(q_hi, q_lo) as q, k.loop(j_hi, j_lo) as jr:
                    tile(pc, kc, beta, q, jr, columns_outside=False)

    with k.loop(last, first) as index:
        a, b, c = g.a + index*g.a_step, g.b + index*g.b_step, g.c + index*g.c_step
        product(index, a.view(a_row, a_col), b.view(g.ldb, 1), c.view(g.ldc, 1), a + g.a_step,
                (b + g.b_step).view(g.ldb, 1), index + 1 < last)
    return k.function


def kernel_index(k: Kernel, h: Value, cols: Value, V: int, NV: int) -> Value:
    """Where the micro-kernel for a tile of h rows and cols columns stands (runtime/cpu/kernel_addresses.py)."""
    masked = cols < NV*V
    if NV > 1:
        masked = masked & (cols > V//2)
    return ((h - 1)*NV + k.ceil_div(cols, V) - 1)*2 + k.select(masked, k.constant(i64, 1), 0)


def emit_panels(target: CpuTarget, dtype: str, MR: int, NV: int, DEPTH: int) -> Function:
    """panels(job, part): in_place for a small B with contiguous columns, of at most DEPTH rows. Part i is what part
    i % row_parts is in place, for panel i // row_parts of B, which is packed on the stack."""
    T = TYPES[dtype]
    NR = NV * target.lanes(T.bytes)
    k, g, part = job_kernel(f"panels_{dtype}_{MR}x{NR}", PANELS, T)
    driver = k.field(k.args[0], 8*PANELS.index("driver"), ptr(i8))
    own, panel = k.local("own", (len(IN_PLACE),), i64), k.local("panel", (DEPTH*NR + SLACK,), T)
    j = part // g.row_parts * NR
    cols = k.min(g.n - j, NR)
    k.call(emit_pack(target, dtype, NR, "along"), g.k, k.constant(i64, NR), cols, g.b + j*g.column_step,
           g.column_step, k.constant(i64, 1), panel)
    with k.loop(k.constant(i64, len(IN_PLACE))) as i:
        k.store(own + i, k.args[0].as_(i64)[i])
    for name, value in (("n", cols), ("b", panel), ("ldb", k.constant(i64, NR)), ("c", g.c + j), ("first", j),
                        ("col_parts", k.constant(i64, 1))):
        k.store(own + IN_PLACE.index(name), value)
    k.call(driver, own.as_(i8), part % g.row_parts)
    return k.function


def _parts(k: Kernel, m_panels: Value, n_panels: Value, by_panels: Value, most: Value, threads: Value
           ) -> tuple[Value, Value]:
    """How many parts rows and columns of C are divided into, at most about `most` in all, so that the busiest thread
    has the fewest tiles. By panels, columns have as many parts as panels."""
    rows, columns, least = k.variable(i64, 1), k.variable(i64, 1), k.variable(i64, (1 << 62))
    tried = k.variable(i64, k.select(by_panels, n_panels, 1))
    with k.while_(lambda: tried.get() <= n_panels):
        c = tried.get()
        height = k.min(k.ceil_div(m_panels * c, most), m_panels)
        r = k.ceil_div(m_panels, height)
        tiles = k.ceil_div(r * c, threads) * (height * k.ceil_div(n_panels, c) * CLAIM) + r*c
        with k.when(tiles < least.get()):
            for variable, value in (least, tiles), (rows, r), (columns, c):
                variable.set(value)
        tried.set(k.select(c == n_panels, n_panels + 1, k.min(2*c, n_panels)))
    return rows.get(), columns.get()


def _team(k: Kernel, s: SimpleNamespace, volume: Value, decline_when: Callable[[Value], None]) -> Variable:
    """Record: threads for so many multiplications."""
    team = k.variable(i64, 1)
    with k.when(volume >= s.parallel_above):
        limit = k.load(s.pool.as_(i64) + LIMIT // 8)            # 0: the number depends on the caller: Python decides
        decline_when(limit == 0)
        team.set(k.max(k.min(limit, volume // (2*s.grain)), 1))
    return team


def _run(k: Kernel, s: SimpleNamespace, driver: Value, job: Value, parts: Value, team: Value, volume: Value) -> None:
    """Record: all parts of a job, on so many threads."""
    with k.when(team > 1):
        wake = k.select(volume >= s.wake_above, team, k.select(volume >= s.wake_one, k.constant(i64, 1), 0))
        k.call(s.run_parts, s.pool, driver, job.as_(i8), parts, team, wake, result=i64)
    with k.otherwise():
        with k.loop(parts) as part:
            k.call(driver, job.as_(i8), part)


def _with_vector(k: Kernel, T: Type, s: SimpleNamespace, decline_when: Callable[[Value], None]) -> None:
    """Record: a product of one column, a matrix X by y, or of one row, y by X^T. `dots` multiplies rows of X, one after
    the other, by a y that is contiguous, or is copied; `stream` adds up columns of X; of two vectors, of which
    the first is not contiguous, `row_dots` takes any strides."""
    _, m, n, kk, a, rsa, csa, b, rsb, csb, c, rsc = k.args
    column, one, zero = n == 1, k.constant(i64, 1), k.constant(i64, 0)
    length, volume = k.select(column, m, n), m * n * kk
    x, row, along = k.select(column, a, b), k.select(column, rsa, csb), k.select(column, csa, rsb)
    y, step, c_step = k.select(column, b, a), k.select(column, rsb, csa), k.select(column, rsc, one)
    by_rows, both = (along == 1) | (kk == 1), length == 1
    decline_when((row == 1) & (along != 1) & (both == 0) & (length <= MOST_ROW_DOTS) & (kk >= LONG))
    apart = (c_step != 1) & (both == 0)
    decline_when((by_rows == 0) & (both == 0) & ((row != 1) | (apart & (length > MOST_COPIED))))
    team = _team(k, s, volume, decline_when)
    dots = {"m": length, "k": kk, "a": x, "lda": row, "c": c, "rsc": c_step, "csc": one, "alpha": k.constant(T, 1.0),
            "beta": k.constant(T, 0.0)}

    job, own = k.local("job_of_vectors", (len(ROW_DOTS),), i64), k.local("vector", (MOST_COPIED,), T)

    def run(driver: Value, names: tuple[str, ...], parts: Value, **fields: Value) -> None:
        for at, name in enumerate(names):
            value, field = {**fields, "parts": parts}.get(name, zero), job + at
            k.store(field.as_(T) if name in ("alpha", "beta") else field, value, align=8)
        _run(k, s, driver, job, parts, team.get(), volume)

    with k.when(by_rows):
        copied = (step != 1) & (kk > 1)
        decline_when(copied & (kk > MOST_COPIED))
        vector = k.variable(ptr(T), y)
        with k.when(copied):
            with k.loop(kk) as i:
                k.store(own + i, k.load(y + i*step))
            vector.set(own)
        run(s.dots, DOTS[:-OF_PROLOGUE], k.min(team.get(), length), **dots, b=vector.get())
        k.ret(1)
    with k.when(both):
        run(s.row_dots, ROW_DOTS, one, **dots, csa=along, b=y, ldb=step)
        k.ret(1)
    run(s.stream, STREAM[:-OF_PROLOGUE], team.get(), n=length, k=kk, a=y, csa=step, b=x, ldb=along,
        c=k.select(apart, own, c), ldc=length, beta=k.constant(T, 0.0))
    with k.when(apart):
        with k.loop(length) as i:
            k.store(c + i*c_step, own[i])
    k.ret(1)


def emit_small(target: CpuTarget, dtype: str, MR: int, NV: int, DEPTH: int) -> list[Function]:
    """small(context, m, n, k, a, rsa, csa, b, rsb, csb, c, rsc) → 1: C = A @ B is done, in place; 0: it is refused.

    A B with contiguous columns, of at most DEPTH rows, is packed on the stack a panel at a time. Refused are strides
    that in_place cannot read, products too large to stay in cache, and shapes whose micro-kernels have not been
    compiled yet: the Python function then compiles them. Products with one row or column go by `dots` and `stream`
    (skinny.py), as plans.builtin.small_way says. And `panels`.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    NR = NV * V
    k = Kernel(f"small_{dtype}_{MR}x{NR}", result=i64, noalias=False, context=ptr(i8), m=i64, n=i64, k=i64, a=ptr(T),
               rsa=i64, csa=i64, b=ptr(T), rsb=i64, csb=i64, c=ptr(T), rsc=i64)
    context, m, n, kk, a, rsa, csa, b, rsb, csb, c, rsc = k.args
    pointers = dict.fromkeys(("driver", "panels", "pool", "run_parts", "dots", "row_dots", "stream"), ptr(i8)) | \
        dict.fromkeys(("rows", "columns"), ptr(i64))
    s = SimpleNamespace(**{name: k.field(context, 8*i, pointers.get(name, i64)) for i, name in enumerate(SMALL)})

    def decline_when(condition: Value) -> None:
        with k.when(condition):
            k.ret(0)

    by_rows = (csa == 1) | (kk == 1)
    decline_when(k.min(k.min(m, n), kk) < 1)
    decline_when(k.max(k.max(n * kk, m * kk), m * n) > k.select(by_rows, s.most_elements, s.most_by_columns))
    with k.when((m == 1) | (n == 1)):
        _with_vector(k, T, s, decline_when)
    by_panels = (csb != 1) & (n != 1)
    depth = k.select(by_rows & (k.min(m, n) < FEW_LINES), k.constant(i64, LONG_LINES), DEPTH)
    decline_when(by_panels & (((rsb != 1) & (kk != 1)) | (kk > depth)))
    decline_when((csa != 1) & (kk != 1) & (rsa != 1) & (m != 1))

    m_panels, n_panels = k.ceil_div(m, MR), k.ceil_div(n, NR)
    low, high, edge = m // m_panels, k.ceil_div(m, m_panels), n % NR
    table = k.select(by_rows, s.rows, s.columns)
    for height in low, high:
        with k.when(n >= NR):
            decline_when(table[kernel_index(k, height, k.constant(i64, NR), V, NV)] == 0)
        with k.when(edge > 0):
            decline_when(table[kernel_index(k, height, edge, V, NV)] == 0)

    volume, zero, one = m * n * kk, k.constant(i64, 0), k.constant(i64, 1)
    team, row_parts, col_parts = _team(k, s, volume, decline_when), k.variable(i64, 1), k.variable(i64, 1)
    with k.when(team.get() > 1):
        most = k.min(team.get() * SPLITS, volume // s.grain)
        rows, columns = _parts(k, m_panels, n_panels, by_panels, most, team.get())
        row_parts.set(rows)
        col_parts.set(columns)

    job = k.local("job", (len(PANELS),), i64)
    lda = k.select(by_rows, rsa, csa)
    fields = {"m": m, "n": n, "k": kk, "a": a, "lda": lda, "b": b, "ldb": rsb, "c": c, "ldc": rsc,
              "alpha": k.constant(T, 1.0), "beta": k.constant(T, 0.0), "kc": kk, "batch": one,
              **dict.fromkeys(("a_step", "b_step", "c_step", "finish", "operands", "index", "first"), zero),
              "batch_parts": one,
              "row_parts": row_parts.get(), "col_parts": col_parts.get(), "by_rows": k.select(by_rows, one, 0),
              "rows_outside": k.select((m_panels >= n_panels) | (by_rows == 0), one, 0), "table": table,
              "column_step": csb, "driver": k.address(s.driver)}
    for name, value in fields.items():
        field = job + PANELS.index(name)
        k.store(field.as_(T) if name in ("alpha", "beta") else field, value, align=8)

    driver = k.variable(ptr(i8), s.driver)
    with k.when(by_panels):
        driver.set(s.panels)
        col_parts.set(n_panels)
    _run(k, s, driver.get(), job, row_parts.get() * col_parts.get(), team.get(), volume)
    k.ret(1)
    return [k.function, emit_panels(target, dtype, MR, NV, DEPTH)]
