"""Finishing a tile of C: the sums, in the type in which they were added up, are rounded to a narrower format.

The five loops call it for each tile of the last block of k, right after the micro-kernel, so that it finds the tile in
L1. Floats are rounded to nearest, ties to even, and once, with the bits that NumPy's and ml_dtypes' astype would give;
of integers the lowest bits are kept.
"""
from __future__ import annotations

from tilewright.formats import FORMATS, Float
from tilewright.ir import Function, Kernel, Value, f32, i32, i64, ptr, vec
from tilewright.kernels.cpu.jobs import finish_name
from tilewright.kernels.narrow import narrowed, stored_as
from tilewright.targets.base import CpuTarget


def emit_finish(target: CpuTarget, NR: int, RESULT: str) -> Function:
    """C[i ... i + rows, j ... j + cols] = alpha * tile[rows, cols] in the format RESULT; the tile's rows are NR >= cols
    long.

    C's rows are contiguous, and ldc of its elements apart.
    """
    T, S = f32 if isinstance(FORMATS[RESULT], Float) else i32, stored_as(RESULT)
    V = target.lanes(T.bytes)
    k = Kernel(finish_name(NR, RESULT), tile=ptr(T), c=ptr(S, strided=True), ldc=i64, i=i64, j=i64, rows=i64, cols=i64,
               alpha=T)
    tile, c, ldc, i, j, rows, cols, alpha = k.args
    tile, c = tile.view(NR, 1), c.view(ldc, 1)

    def store(masks: list[Value] | list[None]) -> None:
        with k.loop(rows) as r:
            for g, mask in enumerate(masks):
                sums = k.load(tile.at(r, g*V), vec(T, V), mask=mask) * k.broadcast(alpha, V)
                k.store(c.at(i + r, j + g*V), narrowed(k, sums, RESULT), S.bytes, mask)

    with k.when(cols == NR):
        store([None] * (NR // V))
    with k.otherwise():
        store([k.lanes_below(cols - g*V, V) for g in range(NR // V)])
    return k.function
