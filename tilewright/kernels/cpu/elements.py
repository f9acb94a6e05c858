"""Elements of words: what packing makes of a number of a narrow format, as bits at the low end of an i32."""
from __future__ import annotations

from tilewright.ir import Kernel, Value, f32, i32, vec
from tilewright.kernels.narrow import splat, widened


def element(k: Kernel, x: Value, SOURCE: str, WORD: str) -> Value:
    """The bits of one step of k in a word ("i8x4", "i16x2", "bf16x2"); above them stands anything.

    x: a number as it was loaded (narrow.memory_type), or a vector of them; or its bits in a longer integer, with sign.
    """
    return bf16_bits(k, x, SOURCE) if WORD == "bf16x2" else whole_number(k, x, SOURCE)


def whole_number(k: Kernel, x: Value, SOURCE: str) -> Value:
    """i8, u8 or i16 as an i32 of the same value."""
    x = k.cast(x, vec(i32, x.type.length))
    return x & splat(k, i32, 0xFF, x.type.length) if SOURCE == "u8" else x


def bf16_bits(k: Kernel, x: Value, SOURCE: str) -> Value:
    """A number of a format whose numbers are all bf16's too: bf16 as it is, fp8 and bytes by way of f32, the upper half
    of which is the bf16."""
    length = x.type.length
    if SOURCE == "bf16":
        return k.cast(x, vec(i32, length))
    return k.bits_as(widened(k, x, SOURCE, f32), vec(i32, length)) >> 16
