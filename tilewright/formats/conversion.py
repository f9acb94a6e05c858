"""Conversion of arrays from any format to any other, in two modes that the caller names; and packed bits.

Every conversion rounds once, to the nearest number, ties to even. ml_dtypes casts what has more digits than f32 by way
of f32, which rounds twice: 1 + 2^-4 + 2^-40 becomes 1 in e4m3fn, and not 1.125. Here f64 and long integers become f32
rounded to odd first, from which rounding to nearest gives what it gives from the number itself, as f32 has two bits
more than any target (Boldo and Melquiond, Emulation of FMA and Correctly Rounded Sums, 2008). What becomes e8m0 is
rounded in f64, since ml_dtypes rounds all numbers between its two smallest ones up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.formats.records import Complex, Float, Format, Integer
from tilewright.formats.table import array_format, get

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


def convert(x: ArrayLike, fmt: object, *, saturate: bool) -> Array:
    """`x` in the format `fmt`: a new array of its dtype (fp4 and fp6 unpacked, a number a byte).

    saturate=True   what is too large, inf included, becomes the largest number of its sign, as OCP's saturating mode
                    has it; a nan stays one.
    saturate=False  what is too large becomes what ml_dtypes' and NumPy's casts make of it: inf where the format has
                    it (IEEE formats and e5m2), else nan (e4m3fn, both fnuz, e8m0), else the largest number (fp6, fp4).
                    Integers keep their lowest bits, as NumPy's do.

    A nan for a format without one is a ValueError in either mode: fp6, fp4, integers. OCP leaves the case open, and
    any number would hide the mistake (ml_dtypes makes it -0). So is inf for an integer that does not saturate.
    e8m0 has powers of two only: 3 becomes 4, the nearest (a tie goes up), what is too small becomes the smallest, and
    nan is all that is left for 0 and for negative numbers, in either mode.
    Floating point becomes integers by rounding too, not by cutting off; np.trunc first, to have that.
    A complex x needs a complex format (TypeError); in it both parts are converted alone. As bool, all but 0 is true.
    """
    target = get(fmt, "fmt")
    array = np.asarray(x)
    source = array_format(array)
    if isinstance(target, Complex):
        result = np.zeros(array.shape, target.dtype)
        part = source.part if isinstance(source, Complex) else source
        result.real = _to_float(array.real, part, target.part, saturate)
        if isinstance(source, Complex):
            result.imag = _to_float(array.imag, part, target.part, saturate)
        return result
    if isinstance(source, Complex):
        raise TypeError(f"x is {source} and {target} has no imaginary part; convert x.real, or to c64 or c128")
    if isinstance(target, Float):
        return _to_float(array, source, target, saturate)
    if isinstance(target, Integer):
        return _to_integer(array, source, target, saturate)
    return array.astype(target.dtype)


def _to_float(x: Array, source: Format, target: Float, saturate: bool) -> Array:
    with np.errstate(all="ignore"):
        in_f32 = source.bits <= 16 or source.name == "f32"      # which holds every number of these formats
        if in_f32 and target.name not in ("f64", "e8m0"):  # NumPy and ml_dtypes round once from here
            wide = x.astype(np.float32)
        else:
            long = source.name in ("i64", "u64") and target.name != "f64"
            wide = to_odd(x) if long else x.astype(np.float64)
            if target.name == "e8m0":
                wide = _nearest(wide, target)
            elif target.name not in ("f64", "f32", "f16"):  # those NumPy casts to by itself
                wide = _odd_f32(wide)
        if not target.nans:
            _refuse(np.isnan(wide), "nan", target)
        if saturate:
            wide = np.clip(wide, -target.largest, target.largest)
        return np.asarray(wide.astype(target.dtype))


def _nearest(x: Array, target: Float) -> Array:
    """f64 rounded to as many digits as e8m0 has, as f64, without an upper limit."""
    x = np.where(x > 0, np.maximum(x, target.smallest), x)  # nothing lies between 0 and the smallest number
    exponent = np.frexp(x)[1] - 1
    unit = np.maximum(exponent, target.least_exponent) - target.mantissa
    return np.asarray(np.ldexp(np.rint(np.ldexp(x, -unit)), unit))


def _odd_f32(x: Array) -> Array:
    """f64 as f32, rounded to odd: what is cut off, of numbers beyond f32's range too, leaves a last bit of 1."""
    narrow = np.asarray(x, np.float32)
    bits = narrow.view(np.int32)
    bits -= np.abs(narrow) > np.abs(x)  # rounded away from zero: the neighbour of smaller size
    bits |= (narrow != x) & ~np.isnan(x)
    return narrow


def to_odd(x: Array) -> Array:
    """64-bit integers as f64, rounded to odd: what is cut off leaves a last bit of 1, so that no tie is seen later."""
    kept = x & ~x.dtype.type(0x7FF)  # 53 bits
    odd = np.where(kept == x, kept, kept | x.dtype.type(0x800))
    long = (x >= 2**53) | (x <= (-(2**53) if x.dtype.kind == "i" else 0))
    return np.where(long, odd, x).astype(np.float64)


def _to_integer(x: Array, source: Format, target: Integer, saturate: bool) -> Array:
    if not isinstance(source, Float):
        integers = x.astype(np.uint64 if source.name == "u64" else np.int64)
        if saturate:
            limits = np.iinfo(integers.dtype)
            integers = np.clip(integers, max(target.smallest, int(limits.min)), min(target.largest, int(limits.max)))
        return np.asarray(integers.astype(target.dtype))
    rounded = np.rint(x.astype(np.float64))
    _refuse(np.isnan(rounded), "nan", target)
    if not saturate:
        _refuse(np.isinf(rounded), "inf", target)
    # The largest i64 is no f64, but the number after it is: compare with that one.
    above, below = rounded >= float(target.largest + 1), rounded < float(target.smallest)
    size = np.fmod(np.abs(np.where(above | below, 0, rounded) if saturate else rounded), 2.0**64).astype(np.uint64)
    with np.errstate(over="ignore"):  # of a single number NumPy would say that -0 overflows
        result = np.where(rounded < 0, ~size + np.uint64(1), size).astype(target.dtype)
    if saturate:
        result = np.where(above, np.array(target.largest).astype(target.dtype), result)
        result = np.where(below, np.array(target.smallest).astype(target.dtype), result)
    return np.asarray(result)


def _refuse(found: Any, what: str, target: Format) -> None:
    count = int(np.count_nonzero(found))
    if count:
        times = "once" if count == 1 else f"{count} times"
        raise ValueError(f"x holds {what} {times}, and {target} has no {what}")


# ---- numbers of 2, 4 and 6 bits in whole bytes: ml_dtypes keeps one in a byte, matrix instructions want them packed
#
# Along the last axis the patterns of all elements are one long stream of bits, lowest bits first: two numbers of 4 bits
# in a byte, the first in the low half; four of 2 bits; and of 6 bits four in three bytes, the second one straddling the
# first two. The last byte is filled up with zeros. Formats of whole bytes come out as their bytes, the lowest first.

def packed_bytes(fmt: Format, count: int) -> int:
    """Bytes that `count` numbers take when they are packed."""
    return -(-count * fmt.bits // 8)


def pack(x: ArrayLike) -> Bytes:
    """An array [..., n] of any format's dtype as uint8 [..., packed_bytes(n)]: nothing is converted, see `convert`."""
    array = np.asarray(x)
    fmt = array_format(array)
    if array.ndim == 0:
        raise ValueError("x must have at least 1 axis, along which to pack")
    count = array.shape[-1]
    if fmt.bits % 8 == 0:
        plain = np.ascontiguousarray(array, fmt.dtype)
        return plain.view(np.uint8).reshape(*array.shape[:-1], packed_bytes(fmt, count))
    patterns = np.ascontiguousarray(array).view(np.uint8) & (2**fmt.bits - 1)
    elements, size = fmt.packing
    wide: Any = np.uint8 if size == 1 else np.uint32
    groups = _in_groups(patterns, elements)
    word: Any = groups[..., 0].astype(wide)
    for i in range(1, elements):
        word |= groups[..., i].astype(wide, copy=False) << wide(fmt.bits * i)
    bytes_of_words = np.stack([(word >> wide(8 * i)).astype(np.uint8) for i in range(size)], axis=-1)
    return _joined(bytes_of_words)[..., : packed_bytes(fmt, count)]


def unpack(packed: ArrayLike, fmt: object, count: int | None = None) -> Array:
    """What `pack` was given: [..., count] of the format's dtype from uint8 [..., bytes].

    Without a count, as many numbers as the bytes hold, padding included. ValueError if there are fewer than `count`.
    """
    f, array = get(fmt, "fmt"), np.asarray(packed)
    if array.dtype != np.uint8 or array.ndim == 0:
        raise ValueError(f"packed must be an array of uint8 with at least 1 axis, not {array.dtype} {array.shape}")
    held = array.shape[-1] * 8 // f.bits
    if count is None:
        count = held
    elif not 0 <= count <= held:
        raise ValueError(f"count must be 0 to {held}, which is what {array.shape[-1]} bytes of {f} hold, not {count}")
    elements, size = f.packing
    if f.bits % 8 == 0:
        return np.ascontiguousarray(array[..., : count * size]).view(f.dtype)
    groups = _in_groups(array, size).astype(np.uint32)
    word = sum((groups[..., i] << (8 * i) for i in range(size)), np.uint32(0))
    patterns = np.stack([(word >> (f.bits * i)) & (2**f.bits - 1) for i in range(elements)], axis=-1)
    return np.ascontiguousarray(_joined(patterns.astype(np.uint8))[..., :count]).view(f.dtype)


def _in_groups(x: Bytes, length: int) -> Bytes:
    """The last axis cut into groups of this length, with zeros behind the end."""
    missing = -x.shape[-1] % length
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], missing), np.uint8)], axis=-1) if missing else x
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // length, length)


def _joined(groups: Bytes) -> Bytes:
    """The last two axes as one."""
    return groups.reshape(*groups.shape[:-2], groups.shape[-2] * groups.shape[-1])
