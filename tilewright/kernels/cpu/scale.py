"""Sums over all of k become C: for drivers that have added them up in several passes, and so could not scale them.

alpha times a sum is not the sum of alpha times its parts where one of these is inf, or alpha is.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.kernels.cpu.in_place import job_fields, split
from tilewright.kernels.cpu.jobs import SCALE, scale_name
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.targets.base import CpuTarget


def emit_scale(target: CpuTarget, dtype: str) -> Function:
    """scale(job, part): a block of C[m, n] = alpha * S + beta * C. beta = 0 never reads C; S may be C itself then."""
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    k = Kernel(scale_name(dtype), noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, SCALE, T, s=T)
    s, c = g.s.view(g.lds, 1), g.c.view(g.ldc, 1)
    i_lo, i_hi = split(g.m, g.row_parts, part // g.col_parts)
    j_lo, j_hi = (x*V for x in split(k.ceil_div(g.n, V), g.col_parts, part % g.col_parts))
    j_hi = k.min(j_hi, g.n)
    whole = j_lo + (j_hi - j_lo) // V * V

    def rows(read_c: bool) -> None:
        def vector(i: Value, j: Value, mask: Value | None) -> None:
            x = k.load(s.at(i, j), vec(T, V), T.bytes, mask) * k.broadcast(g.alpha, V)
            if read_c:
                x = k.fma(k.broadcast(g.beta, V), k.load(c.at(i, j), vec(T, V), T.bytes, mask), x)
            k.store(c.at(i, j), x, T.bytes, mask)

        with k.loop(i_hi, i_lo) as i:
            with k.loop(whole, j_lo, V) as j:
                vector(i, j, None)
            with k.when(whole < j_hi):
                vector(i, whole, k.lanes_below(j_hi - whole, V))

    with k.when(g.beta == 0.0):
        rows(read_c=False)
    with k.otherwise():
        rows(read_c=True)
    return k.function
