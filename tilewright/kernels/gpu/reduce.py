"""The last step of an epilogue's reductions: rows or columns of a matrix, combined in the same order in every run.

    rows        a workgroup has one: its threads every so many elements, then their warps (kernels/reductions.py)
    columns     a workgroup has COLUMNS of them, and its groups of threads every so many rows
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.expressions.program import INDICES
from tilewright.ir import Function, Kernel, Value, i32, i64, ptr
from tilewright.kernels.expression import Part, both, indices, nothing, part
from tilewright.kernels.gpu import groups
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.reductions import reduce

COLUMNS, GROUPS = 32, 16        # of a workgroup


def emit_reduce(FORMAT: str = "f32", HOW: str = "sum", ALONG: str = "row", WARP: int = 32, GROUPED: bool = False
                ) -> Function:
    """target[z, i] = all of row i of source[z], or of its column i, combined: HOW is sum, max, min or amax, of which a
    NaN is the result if there is one, or argmin or argmax: its index, as an integer of as many bits. FORMAT: f32, f64,
    i32 or i64, of source.

    Source and target have contiguous rows of `columns` and of results; matrices follow each other. The grid: a
    workgroup for each row, or for each COLUMNS columns, and along y for each matrix.

    GROUPED     of columns: matrix z is rows offsets[z - 1] ... offsets[z] of the one source (gpu/groups.py); of none
                the results are 0
    """
    T = memory_type(FORMAT)
    more: dict[str, Any] = {"offsets": ptr(i32)} if GROUPED else {}
    k = Kernel(f"reduce_{FORMAT}_{ALONG}_{HOW}{'_groups' if GROUPED else ''}", threads=COLUMNS*GROUPS, warp=WARP,
               rows=i64, columns=i64, source=ptr(T), target=ptr(indices(T) if HOW in INDICES else T), **more)
    rows, columns, source, target = k.args[:4]
    t, i, z = k.thread[0], k.cast(k.block[0], i64), k.cast(k.block[1], i64)
    if GROUPED:
        g = SimpleNamespace(offsets=k.args[4])
        begin = k.cast(groups.begin(k, g, k.block[1]), i64)
        rows, source = k.cast(groups.end(k, g, k.block[1]), i64) - begin, source + begin*columns
    else:
        source = source + z*(rows*columns)
    total = [k.variable(x.type, x) for x in nothing(k, HOW, T)]

    def combined(x: Part, y: Part) -> Part:
        return both(k, HOW, x, y)

    def now() -> Part:
        return tuple(x.get() for x in total)

    def take(x: Any, index: Value) -> None:
        for variable, new in zip(total, combined(now(), part(k, HOW, x, index))):
            variable.set(new)
    if ALONG == "row":
        with k.loop(columns, start=k.cast(t, i64), step=COLUMNS*GROUPS) as j:
            take(source[i*columns + j], j)
        state = reduce(k, combined, now(), "cta")
        with k.when(t == 0):
            target[z*rows + i] = state[-1]
        return k.function
    lane, group = t % COLUMNS, t // COLUMNS
    column = i*COLUMNS + lane
    parts = [k.smem(f"parts{e}" if e else "parts", (GROUPS, COLUMNS), x.type) for e, x in enumerate(now())]
    with k.when(column < columns):
        with k.loop(rows, start=k.cast(group, i64), step=GROUPS) as j:
            take(source[j*columns + column], j)
    for array, x in zip(parts, now()):
        array[group, lane] = x
    k.barrier()
    with k.when((group == 0) & (column < columns)):
        state = tuple(array[0, lane] for array in parts)
        for other in range(1, GROUPS):
            state = combined(state, tuple(array[other, lane] for array in parts))
        target[z*columns + column] = k.select(rows > 0, state[-1], k.constant(state[-1].type, 0)) if GROUPED else (
            state[-1])
    return k.function
