"""What the emitted builtin calls for a small product: choose, fill in the job, and go; no Python on the way."""
from __future__ import annotations

from types import SimpleNamespace

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr
from tilewright.kernels.cpu.in_place import kernel_index
from tilewright.kernels.cpu.jobs import IN_PLACE, SMALL
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.pool import LIMIT
from tilewright.targets.cpu import CpuTarget


def emit_small(target: CpuTarget, dtype: str, MR: int, NV: int) -> Function:
    """small(context, m, n, k, a, rsa, csa, b, rsb, csb, c, rsc) → 1: C = A @ B is done, in place; 0: take another way.

    It declines what in_place cannot read, what is too large to stay in cache, and shapes whose micro-kernels have not
    been compiled yet: the Python function then compiles them.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    NR = NV * V
    k = Kernel(f"small_{dtype}_{MR}x{NR}", result=i64, noalias=False, context=ptr(i8), m=i64, n=i64, k=i64, a=ptr(T),
               rsa=i64, csa=i64, b=ptr(T), rsb=i64, csb=i64, c=ptr(T), rsc=i64)
    context, m, n, kk, a, rsa, csa, b, rsb, csb, c, rsc = k.args
    pointers = dict.fromkeys(("driver", "pool", "run_parts"), ptr(i8)) | dict.fromkeys(("rows", "columns"), ptr(i64))
    s = SimpleNamespace(**{name: k.field(context, 8*i, pointers.get(name, i64)) for i, name in enumerate(SMALL)})

    def decline_when(condition: Value) -> None:
        with k.when(condition):
            k.ret(0)

    by_rows = (csa == 1) | (kk == 1)
    decline_when(k.min(k.min(m, n), kk) < 1)
    decline_when((csb != 1) & (n != 1))
    decline_when((csa != 1) & (kk != 1) & (rsa != 1) & (m != 1))
    decline_when(k.max(k.max(n * kk, m * kk), m * n) > s.most_elements)

    m_panels, n_panels = k.ceil_div(m, MR), k.ceil_div(n, NR)
    low, high, edge = m // m_panels, k.ceil_div(m, m_panels), n % NR
    table = k.select(by_rows, s.rows, s.columns)
    for height in low, high:
        with k.when(n >= NR):
            decline_when(table[kernel_index(k, height, k.constant(i64, NR), V, NV)] == 0)
        with k.when(edge > 0):
            decline_when(table[kernel_index(k, height, edge, V, NV)] == 0)

    team = k.variable(i64, 1)
    with k.when(m*n*kk >= s.parallel_above):
        team.set(k.load(s.pool.as_(i64) + LIMIT // 8))          # 0: only Python knows how many this caller may use
        decline_when(team.get() == 0)
    threads = team.get()
    # whichever of rows and columns leaves the busiest thread less to do
    by_col = m_panels * k.ceil_div(n_panels, threads) <= n_panels * k.ceil_div(m_panels, threads)
    zero, one = k.constant(i64, 0), k.constant(i64, 1)
    row_parts = k.select(by_col, one, k.min(threads, m_panels))
    col_parts = k.select(by_col, k.min(threads, n_panels), 1)

    job = k.local("job", (len(IN_PLACE),), i64)
    lda = k.select(by_rows, rsa, csa)
    fields = {"m": m, "n": n, "k": kk, "a": a, "lda": lda, "b": b, "ldb": rsb, "c": c, "ldc": rsc,
              "alpha": k.constant(T, 1.0), "beta": k.constant(T, 0.0), "kc": kk, "batch": one,
              **dict.fromkeys(("a_step", "b_step", "c_step"), zero), "batch_parts": one, "row_parts": row_parts,
              "col_parts": col_parts, "by_rows": k.select(by_rows, one, 0),
              "rows_outside": k.select(m_panels >= n_panels, one, 0), "table": table}
    for index, name in enumerate(IN_PLACE):
        field = job + index
        k.store(field.as_(T) if name in ("alpha", "beta") else field, fields[name], align=8)
    parts = row_parts * col_parts
    with k.when(parts == 1):
        k.call(s.driver, job.as_(i8), k.constant(i64, 0))
    with k.otherwise():
        wake = k.select(m*n*kk >= s.wake_above, one, 0)
        k.call(s.run_parts, s.pool, s.driver, job.as_(i8), parts, threads, wake, result=i64)
    k.ret(1)
    return k.function
