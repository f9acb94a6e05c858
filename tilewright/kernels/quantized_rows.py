"""Rows of floats in 8 bits with a scale for each, in one kernel: activations on their way to a product of fp8.

    scale    the row's largest size / the format's largest number, an f32 of at least 2^-126
    element  number * (1 / scale), to nearest even; what exceeds the largest number becomes it, and a nan stays one

A row with a nan has a scale that is one. Sizes are compared as whole numbers, of which that of a nan is the largest.
Rounding by arithmetic takes three quarters of the kernel's instructions on a GPU: CONVERT has it done by one.
"""
from __future__ import annotations

from tilewright.formats import FORMATS, Float
from tilewright.ir import Function, Kernel, f32, i8, i32, i64, ptr
from tilewright.ir.ops import core
from tilewright.kernels.elementwise import each, each_row, fold, once
from tilewright.kernels.narrow import memory_type, nearest, number

SIZE = 0x7FFFFFFF           # of the bits of an f32: all but its sign
LEAST, MOST = 2.0**-126, 2.0**126       # of scales that are numbers


def emit_quantize_rows(FORMAT: str = "bf16", RESULT: str = "e4m3fn", THREADS: int | None = 512, WARP: int = 32,
                       BY: str = "cta", CONVERT: bool = False) -> Function:
    """y[i, j] = x[i, j] / scales[i] for i < rows, j < cols, all contiguous.

    FORMAT   of x: f32, bf16 or f16
    RESULT   of y, as patterns: a float of 8 bits
    THREADS  of a CTA; None: a function for one CPU thread
    BY       who has a row: a "cta" or a "warp"
    CONVERT  by NVIDIA's instruction for e4m3fn, from sm_89 on
    """
    f = FORMATS[RESULT]
    assert isinstance(f, Float)
    k = Kernel(f"quantize_rows_{FORMAT}_{RESULT}", threads=THREADS, warp=WARP, rows=i64, cols=i64,
               x=ptr(memory_type(FORMAT)), y=ptr(i8), scales=ptr(f32))
    rows, cols, x, y, scales = k.args
    x, y = x.view(cols, 1), y.view(cols, 1)
    with each_row(k, rows, BY) as row:
        largest = fold(k, cols, k.max, 0, lambda j: k.bits_as(number(k, x[row, j], FORMAT, f32), i32) & SIZE)
        scale = k.bits_as(largest, f32) / f.largest
        scale = k.select(scale < LEAST, k.constant(f32, LEAST), scale)
        zero, one = (k.constant(f32, x) for x in (0, 1))
        factor = k.select(scale > MOST, zero, k._op(core.RECIPROCAL, f32, scale, one))
        with each(k, cols) as j:
            quotient = number(k, x[row, j], FORMAT, f32) * factor
            if CONVERT:
                y[row, j] = k.cast(k.round_e4m3(quotient), i8)
            else:
                quotient = k.select(quotient > f.largest, k.constant(f32, f.largest), quotient)
                quotient = k.select(quotient < -f.largest, k.constant(f32, -f.largest), quotient)
                y[row, j] = k.cast(nearest(k, quotient, f), i8)
        with once(k):
            scales[row] = scale
    return k.function
