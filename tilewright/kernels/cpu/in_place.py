"""GEMM without packing, for problems where packing costs more than it saves: m, n or k small.

    for pc: k, kc at a time
      for jr, ir (or ir, jr: the longer side outside, so that the panels of the shorter one stay in cache)
        micro-kernel that reads A and B where they are

A batch is one more loop outside of these, since a small product takes less time than a call of this function.

B's rows must be contiguous; A may be read by rows or by columns. With few rows and a small kc this streams B row by
row, which is how memory likes to be read; with few columns it streams A.
"""
from __future__ import annotations

from types import SimpleNamespace

from tilewright.ir import Function, Kernel, Type, Value, i8, i64, ptr
from tilewright.kernels.cpu.jobs import IN_PLACE, offsets
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.targets.cpu import CpuTarget


def emit_in_place(target: CpuTarget, dtype: str, MR: int, NV: int) -> Function:
    """in_place(job, part): C = alpha * A @ B + beta * C for one block of C, or of each C in a share of the batch."""
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    NR = NV * V
    k = Kernel(f"in_place_{dtype}_{MR}x{NR}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, IN_PLACE, T)
    a_row, a_col = k.select(g.by_rows != 0, g.lda, 1), k.select(g.by_rows != 0, 1, g.lda)

    m_panels, n_panels = k.ceil_div(g.m, MR), k.ceil_div(g.n, NR)
    height, taller = g.m // m_panels, g.m % m_panels            # panels of equal height, the first ones one row more
    blocks = g.row_parts * g.col_parts
    share, block = part // blocks, part % blocks
    q_lo, q_hi = split(m_panels, g.row_parts, block // g.col_parts)
    j_lo, j_hi = split(n_panels, g.col_parts, block % g.col_parts)
    first, last = split(g.batch, g.batch_parts, share)

    def product(a: Value, b: Value, c: Value, next_a: Value, next_b: Value, more: Value) -> None:
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
        product(a.view(a_row, a_col), b.view(g.ldb, 1), c.view(g.ldc, 1), a + g.a_step, (b + g.b_step).view(g.ldb, 1),
                index + 1 < last)
    return k.function


def kernel_index(k: Kernel, h: Value, cols: Value, V: int, NV: int) -> Value:
    """Where the micro-kernel for a tile of h rows and cols columns stands (runtime/cpu/kernel_addresses.py)."""
    masked = cols < NV*V
    if NV > 1:
        masked = masked & (cols > V//2)
    return ((h - 1)*NV + k.ceil_div(cols, V) - 1)*2 + k.select(masked, k.constant(i64, 1), 0)


def job_fields(k: Kernel, job: Value, fields: tuple[str, ...], T: Type, C: Type | None = None,
               **others: Type) -> SimpleNamespace:
    """The fields of a job as values, by name; operands are pointers to T, but for `others`. C: what alpha and beta are,
    if not of type T."""
    types = dict.fromkeys(("a", "b", "c", "a_space", "b_space", "sums"), ptr(T)) | \
        dict.fromkeys(("pack_a", "pack_b", "barriers", "finish"), ptr(i8)) | \
        {"alpha": C or T, "beta": C or T, "table": ptr(i64)} | {name: ptr(S) for name, S in others.items()}
    where = offsets(fields)
    return SimpleNamespace(**{name: k.field(job, where[name], types.get(name, i64)) for name in fields})


def split(total: Value, ways: Value, rank: Value) -> tuple[Value, Value]:
    """The share [lo, hi) of `rank` when `total` things are dealt out in `ways` nearly equal runs."""
    return total*rank // ways, total*(rank + 1) // ways
