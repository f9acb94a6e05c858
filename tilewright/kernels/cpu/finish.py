"""Sums that were left in memory become C: scaled, and rounded if C's format is narrower, once and by way of out.Out.

    emit_finish     a tile, which the five loops have just completed and which is still in L1
    emit_scale      a block of C after the product, for drivers that add up in several passes (stream.py) and so cannot
                    scale: alpha times a sum is not the sum of alpha times its parts if one of these, or alpha, is inf

Floats are rounded to nearest, ties to even, with the bits that NumPy's and ml_dtypes' astype would give; of integers
the lowest bits are kept.
"""
from __future__ import annotations

from tilewright.formats import FORMATS, Float
from tilewright.ir import Function, Kernel, Value, f32, i8, i32, i64, ptr, vec
from tilewright.kernels.cpu.in_place import job_fields, split
from tilewright.kernels.cpu.jobs import SCALE, finish_name, scale_name
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.narrow import memory_type
from tilewright.targets.cpu import CpuTarget


def emit_finish(target: CpuTarget, NR: int, RESULT: str) -> Function:
    """C[i ... i + rows, j ... j + cols] = alpha * tile[rows, cols] in the format RESULT; the tile's rows are NR >= cols
    long.

    C's rows are contiguous, and ldc of its elements apart.
    """
    T, S = f32 if isinstance(FORMATS[RESULT], Float) else i32, memory_type(RESULT)
    V = target.lanes(T.bytes)
    k = Kernel(finish_name(NR, RESULT), tile=ptr(T), c=ptr(S, strided=True), ldc=i64, i=i64, j=i64, rows=i64, cols=i64,
               alpha=T)
    tile, c, ldc, i, j, rows, cols, alpha = k.args
    tile, out = tile.view(NR, 1), Out(k, c.view(ldc, 1), alpha, RESULT=RESULT)

    def store(masks: list[Value] | list[None]) -> None:
        with k.loop(rows) as r:
            for g, mask in enumerate(masks):
                sums = k.load(tile.at(r, g*V), vec(T, V), mask=mask)
                out.at(i + r, j + g*V).put(out.scaled(sums), mask=mask)

    with k.when(cols == NR):
        store([None] * (NR // V))
    with k.otherwise():
        store([k.lanes_below(cols - g*V, V) for g in range(NR // V)])
    return k.function


def emit_scale(target: CpuTarget, dtype: str) -> Function:
    """scale(job, part): a block of C[m, n] = alpha * S + beta * C. beta = 0 never reads C; S may be C itself then."""
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    k = Kernel(scale_name(dtype), noalias=False, job=ptr(i8), part=i64)
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
