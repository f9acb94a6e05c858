"""The last step of an epilogue's reductions: rows or columns of a matrix, combined in the same order in every run.

    rows        a workgroup has one: its threads every so many elements, then their warps (kernels/reductions.py)
    columns     a workgroup has COLUMNS of them, and its groups of threads every so many rows
"""
from __future__ import annotations

import math
from typing import Any

from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Function, Kernel, Value, i64, ptr
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.reductions import reduce

COLUMNS, GROUPS = 32, 16        # of a workgroup
START = {"sum": 0.0, "amax": 0.0, "max": -math.inf, "min": math.inf}


def emit_reduce(FORMAT: str = "f32", HOW: str = "sum", ALONG: str = "row", WARP: int = 32) -> Function:
    """target[z, i] = all of row i of source[z], or of its column i, combined: HOW is sum, max, min or amax, of which a
    NaN is the result if there is one. FORMAT: f32 or f64, of both.

    Source and target have contiguous rows of `columns` and of results; matrices follow each other. The grid: a
    workgroup for each row, or for each COLUMNS columns, and along y for each matrix.
    """
    T = memory_type(FORMAT)
    k = Kernel(f"reduce_{FORMAT}_{ALONG}_{HOW}", threads=COLUMNS*GROUPS, warp=WARP, rows=i64, columns=i64,
               source=ptr(T), target=ptr(T))
    rows, columns, source, target = k.args
    t, i, z = k.thread[0], k.cast(k.block[0], i64), k.cast(k.block[1], i64)
    source, total = source + z*(rows*columns), k.variable(T, START[HOW])

    def combined(x: Value, y: Value) -> Value:
        found: Value = OPERATIONS["add" if HOW == "sum" else HOW.removeprefix("a")].record(k, x, y)
        return found

    def take(x: Any) -> None:
        total.set(combined(total.get(), k.abs(x) if HOW == "amax" else x))
    if ALONG == "row":
        with k.loop(columns, start=k.cast(t, i64), step=COLUMNS*GROUPS) as j:
            take(source[i*columns + j])
        found = reduce(k, combined, total.get(), "cta")
        with k.when(t == 0):
            target[z*rows + i] = found
        return k.function
    lane, group = t % COLUMNS, t // COLUMNS
    column, parts = i*COLUMNS + lane, k.smem("parts", (GROUPS, COLUMNS), T)
    with k.when(column < columns):
        with k.loop(rows, start=k.cast(group, i64), step=GROUPS) as j:
            take(source[j*columns + column])
    parts[group, lane] = total.get()
    k.barrier()
    with k.when((group == 0) & (column < columns)):
        found = parts[0, lane]
        for other in range(1, GROUPS):
            found = combined(found, parts[other, lane])
        target[z*columns + column] = found
    return k.function
