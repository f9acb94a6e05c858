"""Copy a matrix from any strides to any strides, from one format to another, scaled.

Lanes go along the columns. The caller names rows and columns so that the destination's columns have the smaller stride.
"""
from __future__ import annotations

from tilewright import formats
from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i32, i64, ptr
from tilewright.kernels.narrow import memory_type, narrowed, scaled, widened

COLUMNS, ROWS = 32, 8       # of a workgroup
WORDS = "f64", "f32", "i32", "i64"          # formats that are a kernel's own types


def computed_in(SOURCE: str, TARGET: str) -> Type:
    """The type of the scale, and of its product."""
    if "f64" in (SOURCE, TARGET):
        return f64
    if isinstance(formats.FORMATS[TARGET], formats.Integer):
        return i64 if "i64" in (SOURCE, TARGET) else i32
    return f32


def emit_copy(SOURCE: str = "f32", TARGET: str = "f32", WARP: int = 32) -> Function:
    """target[z, i, j] = scale * source[z, i, j], in TARGET's format; scale = 0 writes zeros and never reads the source.

    Floats become the nearest one, ties to even, integers their lowest bits; from f64 to formats of 16 bits and fewer
    by way of f32. Strides in elements, of any sign, from matrix to matrix (mss, mst), row to row and column to column.
    Source and target may be the same matrices. The grid covers the columns along x and the matrices along z; rows are
    dealt out to as many workgroups as it has along y. WARP: lanes of a warp on the target.
    """
    C = computed_in(SOURCE, TARGET)
    k = Kernel(f"copy_{SOURCE}_{TARGET}", threads=(COLUMNS, ROWS), warp=WARP, noalias=False, rows=i64, columns=i64,
               scale=C, source=ptr(memory_type(SOURCE)), rss=i64, css=i64, target=ptr(memory_type(TARGET)), rst=i64,
               cst=i64, mss=i64, mst=i64)
    rows, columns, scale, source, rss, css, target, rst, cst, mss, mst = k.args
    (x, y), (block_x, block_y) = k.thread, k.block
    source, target = (at + k.cast(k.block_z, i64)*apart for at, apart in ((source, mss), (target, mst)))
    j = k.cast(block_x, i64)*COLUMNS + x
    value = k.variable(C, 0)                                    # which stays unless something is read
    with k.when(j < columns):
        with k.loop(rows, start=k.cast(block_y*ROWS + y, i64), step=k.cast(k.grid[1]*ROWS, i64)) as i:
            with k.when(scale != 0):
                value.set(scaled(k, _wide(k, source[i*rss + j*css], SOURCE, C), scale))
            target[i*rst + j*cst] = _narrow(k, value.get(), TARGET)
    return k.function


def _wide(k: Kernel, x: Value, SOURCE: str, C: Type) -> Value:
    if SOURCE in WORDS:
        return k.cast(x, C)
    return k.cast(widened(k, x, SOURCE, f32 if C == f64 else C), C)


def _narrow(k: Kernel, x: Value, TARGET: str) -> Value:
    if TARGET in WORDS:
        return k.cast(x, memory_type(TARGET))
    x = k.cast(x, f32) if x.type == f64 else x
    return narrowed(k, k.pack(x, x), TARGET)[0]                 # elements of vectors are bits, not indices


def grid(rows: int, columns: int) -> tuple[int, int]:
    """Workgroups for a matrix of this size."""
    return -(-columns // COLUMNS), min(-(-rows // ROWS), 65535)
