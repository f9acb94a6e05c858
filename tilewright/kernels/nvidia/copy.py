"""Copy a matrix from any strides to any strides, from f32 or f64 to either, scaled: what a GEMM leaves to others.

Lanes go along the columns. Whoever calls it names rows and columns so that the destination's columns lie closer.
"""

from __future__ import annotations

from tilewright.ir import Function, Kernel, f32, f64, i64, ptr

TYPES = {"f32": f32, "f64": f64}
COLUMNS, ROWS = 32, 8  # of a CTA


def emit_copy(SOURCE: str = "f32", TARGET: str = "f32") -> Function:
    """target[i, j] = scale * source[i, j], in TARGET's type; scale = 0 writes zeros and never reads the source.

    Strides in elements, of any sign. Source and target may be the same matrix. The grid covers the columns; rows are
    dealt out to as many CTAs as it has along y.
    """
    S, T = TYPES[SOURCE], TYPES[TARGET]
    k = Kernel(f"copy_{SOURCE}_{TARGET}", threads=(COLUMNS, ROWS), noalias=False, rows=i64, columns=i64, scale=T,
               source=ptr(S), rss=i64, css=i64, target=ptr(T), rst=i64, cst=i64)
    rows, columns, scale, source, rss, css, target, rst, cst = k.args
    (x, y), (block_x, block_y) = k.thread, k.block
    j = k.cast(block_x, i64) * COLUMNS + x
    value = k.variable(T, 0.0)  # which stays unless something is read
    with k.when(j < columns):
        with k.loop(rows, start=k.cast(block_y * ROWS + y, i64), step=k.cast(k.grid[1] * ROWS, i64)) as i:
            with k.when(scale != 0.0):
                value.set(scale * k.cast(source[i * rss + j * css], T))
            target[i * rst + j * cst] = value.get()
    return k.function


def grid(rows: int, columns: int) -> tuple[int, int]:
    """CTAs for a matrix of this size."""
    return -(-columns // COLUMNS), min(-(-rows // ROWS), 65535)
