"""Rows of floats in 8 bits with a scale for each, in one kernel: activations on their way to a product of fp8.

    scale    the row's largest size / the format's largest number, an f32 of at least 2^-126
    element  number / scale, to nearest even; what exceeds the largest number becomes it, and a nan stays one

A row with a nan has a scale that is one. Sizes are compared as whole numbers, of which that of a nan is the largest.
"""
from __future__ import annotations

from tilewright.formats import FORMATS, Float
from tilewright.ir import Function, Kernel, f32, i8, i32, i64, ptr
from tilewright.kernels.elementwise import each, each_row, fold, once
from tilewright.kernels.narrow import memory_type, nearest, number

SIZE = 0x7FFFFFFF           # of the bits of an f32: all but its sign
LEAST = 2.0**-126           # of scales


def emit_quantize_rows(FORMAT: str = "bf16", RESULT: str = "e4m3fn", THREADS: int | None = 512, WARP: int = 32
                       ) -> Function:
    """y[i, j] = x[i, j] / scales[i] for i < rows, j < cols, all contiguous.

    FORMAT   of x: f32, bf16 or f16
    RESULT   of y, as patterns: a float of 8 bits
    THREADS  of a CTA, which has a row; None: a function for one CPU thread
    """
    f = FORMATS[RESULT]
    assert isinstance(f, Float)
    k = Kernel(f"quantize_rows_{FORMAT}_{RESULT}", threads=THREADS, warp=WARP, rows=i64, cols=i64,
               x=ptr(memory_type(FORMAT)), y=ptr(i8), scales=ptr(f32))
    rows, cols, x, y, scales = k.args
    x, y = x.view(cols, 1), y.view(cols, 1)
    with each_row(k, rows) as row:
        largest = fold(k, cols, k.max, 0, lambda j: k.bits_as(number(k, x[row, j], FORMAT, f32), i32) & SIZE)
        scale = k.bits_as(largest, f32) / f.largest
        scale = k.select(scale < LEAST, k.constant(f32, LEAST), scale)
        with each(k, cols) as j:
            quotient = number(k, x[row, j], FORMAT, f32) / scale
            quotient = k.select(quotient > f.largest, k.constant(f32, f.largest), quotient)
            quotient = k.select(quotient < -f.largest, k.constant(f32, -f.largest), quotient)
            y[row, j] = k.cast(nearest(k, quotient, f), i8)
        with once(k):
            scales[row] = scale
    return k.function
