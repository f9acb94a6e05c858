"""Numbers of narrow formats in a kernel: made wide enough to be multiplied or added to, and sums rounded to them.

Numbers come as they lie in memory: f16 as that, all others as integers of their size.
"""
from __future__ import annotations

from struct import pack, unpack

from tilewright.formats import FORMATS, Complex, Float, Integer
from tilewright.formats.table import F32
from tilewright.ir import Kernel, Type, Value, f16, f32, f64, i8, i16, i32, i64, vec

TINY = "i4", "u4", "i2", "u2", "e2m1", "e2m3", "e3m2"


def memory_type(FORMAT: str) -> Type:
    """The type of a format's numbers in memory, as kernels load and store them: f16, f32, f64; of complex numbers that
    of their parts; of all others integers of their size, which of formats of less than 8 bits is a byte."""
    record = FORMATS[FORMAT]
    if isinstance(record, Complex):
        return memory_type(record.part.name)
    return {"f16": f16, "f32": f32, "f64": f64}.get(FORMAT) or {8: i8, 16: i16, 32: i32, 64: i64}[max(record.bits, 8)]


def widened(k: Kernel, x: Value, SOURCE: str, T: Type) -> Value:
    """Numbers of a narrower format in the type that they are multiplied in, all of which that type holds."""
    if SOURCE in TINY or SOURCE == "e8m0":
        return k.cast(tiny(k, x, SOURCE), vec(T, x.type.length))
    if SOURCE.startswith("e"):
        return k.cast(fp8_as_f32(k, x, SOURCE), vec(T, x.type.length))
    if SOURCE == "bf16":                                    # the upper half of an f32
        x = k.bits_as(k.cast(x, vec(i32, x.type.length)) << 16, vec(f32, x.type.length))
    elif SOURCE in ("u8", "u16"):
        x = k.cast(x, vec(i32, x.type.length))
        mask = k.constant(i32, 0xFF if SOURCE == "u8" else 0xFFFF)
        x = x & (k.broadcast(mask, x.type.length) if x.type.length > 1 else mask)
    return k.cast(x, vec(T, x.type.length))


def number(k: Kernel, x: Value, FORMAT: str, T: Type) -> Value:
    """Numbers of a format in memory as numbers of a type, that of a kind of the expression's numbers."""
    n = x.type.length
    if T.bits == 1:
        return x != k.constant(x.type, 0)
    if FORMAT == "u32":
        x = k.cast(x, vec(i64, n)) & k.constant(vec(i64, n), (1 << 32) - 1)
    elif FORMAT not in ("f32", "f64", "i32", "i64", "u64", "bool"):
        return widened(k, x, FORMAT, T)
    return k.cast(x, vec(T, n))


def tiny(k: Kernel, x: Value, SOURCE: str) -> Value:
    """Numbers of fewer than 8 bits, the lowest of a byte, as i32 or f32; and powers of two, e8m0, as f32."""
    n, f = x.type.length, FORMATS[SOURCE]
    bits = k.cast(x, vec(i32, n)) & splat(k, i32, (1 << f.bits) - 1, n)
    if isinstance(f, Integer):
        half = splat(k, i32, 1 << f.bits - 1, n)
        return (bits ^ half) - half if f.signed else bits
    assert isinstance(f, Float)
    if SOURCE == "e8m0":
        power = k.bits_as(k.select(bits == splat(k, i32, 0, n), splat(k, i32, pattern(f.smallest), n), bits << 23),
                          vec(f32, n))
        return k.select(bits == splat(k, i32, 0xFF, n), splat(k, f32, float("nan"), n), power)
    half = splat(k, i32, 1 << f.bits - 1, n)
    number = k.bits_as((bits & (half - splat(k, i32, 1, n))) << F32.mantissa - f.mantissa, vec(f32, n))
    number = number * splat(k, f32, 2.0 ** (F32.bias - f.bias), n)     # which makes subnormal patterns whole numbers
    return k.select(bits < half, number, -number)


def fp8_as_f32(k: Kernel, x: Value, SOURCE: str) -> Value:
    """By way of f16, of which e5m2 is the upper half; the exponent of e4m3 has a bit less and another bias there.

    Subnormal numbers of e4m3 are some of f16's, which processors convert at full speed. e5m2fnuz has a number where
    f16 has inf, and goes by way of f32.
    """
    n = x.type.length
    bits = k.cast(x, vec(i16, n))
    if SOURCE == "e5m2":
        return k.cast(k.bits_as(bits << 8, vec(f16, n)), vec(f32, n))
    if SOURCE == "e5m2fnuz":
        wide = k.cast(x, vec(i32, n))
        sign, rest = wide & splat(k, i32, -1 << 31, n), (wide & splat(k, i32, 0x7F, n)) << 21
        number = k.bits_as(sign | rest, vec(f32, n)) * splat(k, f32, 2.0 ** (127 - 16), n)
        return k.select(wide == splat(k, i32, -0x80, n), splat(k, f32, float("nan"), n), number)
    sign, rest = bits & splat(k, i16, -0x8000, n), (bits & splat(k, i16, 0x7F, n)) << 7
    number = k.cast(k.bits_as(sign | rest, vec(f16, n)), vec(f32, n))
    bias, nan = {"e4m3fn": (7, 0x7F), "e4m3fnuz": (8, -0x80)}[SOURCE]
    is_nan = bits == splat(k, i16, -0x80, n) if nan < 0 else rest == splat(k, i16, nan << 7, n)
    return k.select(is_nan, splat(k, f32, float("nan"), n), number * splat(k, f32, 2.0 ** (15 - bias), n))


def splat(k: Kernel, T: Type, number: float, length: int) -> Value:
    return k.constant(vec(T, length), number)


def scaled(k: Kernel, x: Value, by: Value, plus: Value | None = None) -> Value:
    """x * by + plus of numbers that are data: of integers the lowest bits, as elements of vectors have them on a GPU,
    where an i32 by itself is an index and has to fit."""
    if x.type.scalar.is_float:
        return x * by if plus is None else k.fma(by, x, plus)
    x, by = k.pack(x, x), k.broadcast(by, 2)
    return (x * by if plus is None else k.fma(by, x, k.pack(plus, plus)))[0]


def narrowed(k: Kernel, x: Value, RESULT: str) -> Value:
    """A vector of sums as it is stored."""
    f, S = FORMATS[RESULT], vec(memory_type(RESULT), x.type.length)
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
    return y | sign if len(f.zeros) > 1 else k.select(y == 0, y, y | sign)


def terms_of(k: Kernel, bits: Value, MANTISSA: int, COUNT: int) -> list[Value]:
    """The bits of f32s below `too_large` → those of COUNT terms whose sum they are (plans.words.TERMS): f32s with so
    many bits of a mantissa, whose other bits are 0; the first is the largest."""
    CUT, FLOATS = F32.mantissa - MANTISSA, vec(f32, bits.type.length)
    terms, x = [], k.bits_as(bits, FLOATS)
    for _ in range(COUNT):
        bits = k.bits_as(x, bits.type)
        term = (bits + ((bits >> CUT) & 1) + ((1 << CUT - 1) - 1)) & -1 << CUT      # to nearest, even on ties
        terms.append(term)
        x = x - k.bits_as(term, FLOATS)                                             # exact
    return terms


def too_large(MANTISSA: int) -> int:
    """The bits of an f32 from which on it becomes infinite when its mantissa is rounded to so many bits, or is no
    number."""
    return F32.infs[0] - (1 << F32.mantissa - MANTISSA - 1)


def nan_of(f: Float) -> int:
    """Its quiet nan; 0 if it has none."""
    return f.infs[0] | 1 << f.mantissa - 1 if f.infs else f.nans[0].start if f.nans else 0


def pattern(x: float) -> int:
    """The bits of an f32."""
    return int(unpack("=i", pack("=f", x))[0])
