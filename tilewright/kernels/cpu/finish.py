"""Finishing a tile of C: the sums, in the type in which they were added up, are rounded to a narrower format.

The five loops call it for each tile of the last block of k, right after the micro-kernel, so that it finds the tile in
L1. Floats are rounded to nearest, ties to even, and once, with the bits that NumPy's and ml_dtypes' astype would give;
of integers the lowest bits are kept.
"""
from __future__ import annotations

from struct import pack, unpack

from tilewright.formats import FORMATS, Float
from tilewright.formats.table import F32
from tilewright.ir import Function, Kernel, Type, Value, f16, f32, i8, i16, i32, i64, ptr, vec
from tilewright.kernels.cpu.jobs import finish_name
from tilewright.targets.base import CpuTarget


def emit_finish(target: CpuTarget, NR: int, RESULT: str) -> Function:
    """C[i ... i + rows, j ... j + cols] = tile[rows, cols] in the format RESULT; the tile's rows are NR >= cols long.

    C's rows are contiguous, and ldc of its elements apart.
    """
    T, S = f32 if isinstance(FORMATS[RESULT], Float) else i32, stored_as(RESULT)
    V = target.lanes(T.bytes)
    k = Kernel(finish_name(NR, RESULT), tile=ptr(T), c=ptr(S), ldc=i64, i=i64, j=i64, rows=i64, cols=i64)
    tile, c, ldc, i, j, rows, cols = k.args
    tile, c = tile.view(NR, 1), c.view(ldc, 1)

    def store(masks: list[Value] | list[None]) -> None:
        with k.loop(rows) as r:
            for g, mask in enumerate(masks):
                sums = k.load(tile.at(r, g*V), vec(T, V), mask=mask)
                k.store(c.at(i + r, j + g*V), narrowed(k, sums, RESULT), S.bytes, mask)

    with k.when(cols.equals(NR)):
        store([None] * (NR // V))
    with k.otherwise():
        store([k.lanes_below(cols - g*V, V) for g in range(NR // V)])
    return k.function


def stored_as(RESULT: str) -> Type:
    return f16 if RESULT == "f16" else {8: i8, 16: i16}[FORMATS[RESULT].bits]


def narrowed(k: Kernel, x: Value, RESULT: str) -> Value:
    """A vector of sums as it is stored."""
    f, S = FORMATS[RESULT], vec(stored_as(RESULT), x.type.length)
    return k.cast(nearest(k, x, f) if isinstance(f, Float) and RESULT != "f16" else x, S)


def nearest(k: Kernel, x: Value, f: Float) -> Value:
    """The patterns in format f of the numbers nearest to those of x, f32, by arithmetic on their bits."""
    INTS, cut = vec(i32, x.type.length), F32.mantissa - f.mantissa
    bits = k.bits_as(x, INTS)
    size, sign = bits & 0x7FFFFFFF, (bits >> F32.bits - f.bits) & -1 << f.bits - 1
    # What is cut off carries into the last place that stays if it is more than half of that, or half of it and the
    # place is odd. A carry out of the mantissa raises the exponent, which is right, too.
    y = (size + (((size >> cut) & 1) + ((1 << cut - 1) - 1))) >> cut
    if f.exponent < F32.exponent:
        y = y - (F32.bias - f.bias << f.mantissa)
        # Below the smallest normal number the last place stays where it is: adding a number with the same last place
        # rounds to it.
        large = f.smallest_subnormal / F32.eps
        fixed = k.bits_as(k.bits_as(size, x.type) + large, INTS) - pattern(large)
        y = k.select(size < pattern(f.smallest_normal), fixed, y)
        y = k.select(y > f.largest_pattern, f.infs[0] if f.infs else nan_of(f), y)
    y = k.select(size > F32.infs[0], nan_of(f), y)
    return y | sign if len(f.zeros) > 1 else k.select(y.equals(0), y, y | sign)


def nan_of(f: Float) -> int:
    """Its quiet nan."""
    return f.infs[0] | 1 << f.mantissa - 1 if f.infs else f.nans[0].start


def pattern(x: float) -> int:
    """The bits of an f32."""
    return int(unpack("=i", pack("=f", x))[0])
