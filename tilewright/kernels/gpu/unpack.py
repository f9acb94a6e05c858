"""Numbers of narrow formats as f32, by few instructions of a thread: what decoding costs beside loading them.

    format              instructions    how
    i8, u8              2 1/4           bytes become the lowest of 2^23 + b, of which 2^23 (of i8 + 128) is taken away
    e4m3fn, e5m2        1 1/2           the chip's conversion of two to f16, each widened; where it has one
    i4, u4, two a byte  2 1/4           the same of a digit at any place of the mantissa, multiplied by its weight there
    e2m1, two a byte    3               two at once become f16, of which they have the sign, the exponent and the first
                                        bit, each widened; and where runs have no factors multiplied by 2^14
    bf16                1               the upper half of an f32
    f16, others         1 and more      conversions, kernels/narrow.py
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.expressions import HALVES
from tilewright.ir import Kernel, Type, Value, bf16, f16, f32, i8, i32, vec
from tilewright.kernels.narrow import number, pattern, splat

PLACES = 5                      # of digits of 4 bits in the mantissa of an f32
UNITS = {"e2m1x2": 2.0**14}     # by which numbers are multiplied last
MOST = 4                        # numbers of 32 bits of a vector
EXPONENT = 0x4B000000           # the bits of 2^23, above whose last place a byte is
HIGHEST = -0x7F7F7F80           # the bits 0x80 of each byte of a word


class Held(NamedTuple):
    """Constants that instructions take from registers. The assembler would move them there each time, unless it
    cannot know them: they are computed with a number that is always 0."""

    exponent: Value             # of 2^23
    biases: list[Value]         # that digits have at each place
    pair: Value                 # 2^7 or 2^10, twice; with the highest bit of signed digits, which it turns

    @classmethod
    def constants(cls, k: Kernel, FORMAT: str, T: Type = bf16, size: Value | None = None) -> Held:
        """`size`: any size, which is not negative, as one of the kernel's parameters."""
        def constant(bits: int) -> Value:
            return k.constant(i32, bits) if size is None else (size >> 31) + bits
        biases = (-(2.0**23 * 16.0**-t + 8*(FORMAT == "i4x2")) for t in range(PLACES))
        return cls(constant(EXPONENT), [k.bits_as(constant(pattern(x)), f32) for x in biases],
                   constant((0x43004300 if T == bf16 else 0x64006400) + 0x00080008*(FORMAT == "i4x2")))


def floats(k: Kernel, x: Value, FORMAT: str, FP8: bool = False, minus: Sequence[Value] = (),
           UNSCALED: bool = False, held: Held | None = None) -> list[Value]:
    """The numbers of a vector as it is in memory. FP8: the chip converts two fp8 at once (`Kernel.fp8_pair`). `minus`:
    whole numbers of at most 2^20, one or one for each, that are subtracted, at no cost where there are fewer. FORMAT
    i4x2, u4x2, e2m1x2: two to a byte, the first one in its lower half. UNSCALED: by UNITS of the format
    less. `held`: constants in registers, from outside of loops."""
    n = x.type.length
    if FORMAT.endswith(HALVES):
        padded = x if n % 4 == 0 else k.pack(*[x if n == 1 else x[e % n] for e in range(4)])
        return [number for w, word in enumerate(words(k, padded)) for number in (
            _digits(k, word, FORMAT == "i4x2", minus[8*w:8*w + 8] if len(minus) > 8 else minus,
                    held or Held.constants(k, FORMAT)) if FORMAT not in UNITS else [
                x if UNSCALED else x*UNITS[FORMAT] for x in _small_floats(k, word)])][:2*n]
    if n % 4 == 0 and FORMAT in ("i8", "u8"):
        return _bytes(k, words(k, x), FORMAT == "i8", minus)
    decoded = _floats(k, x, FORMAT, FP8)
    return [y - minus[e % len(minus)] for e, y in enumerate(decoded)] if minus else decoded


def _floats(k: Kernel, x: Value, FORMAT: str, FP8: bool) -> list[Value]:
    n = x.type.length
    if n % 4 == 0 and FP8 and FORMAT in ("e4m3fn", "e5m2"):
        pairs = [k.reinterpret(k.fp8_pair(word, FORMAT, half), vec(f16, 2)) for word in words(k, x) for half in (0, 1)]
        return [k.cast(pair[e], f32) for pair in pairs for e in (0, 1)]
    if FORMAT == "bf16" and n % 2 == 0:
        return [k.bits_as(bits, f32) for word in words(k, x) for bits in _halves(k, word)]
    if FORMAT == "f32":
        return [x[e] for e in range(n)] if n > 1 else [x]
    return numbers(k, x, FORMAT, f32)


def numbers(k: Kernel, x: Value, FORMAT: str, T: Type) -> list[Value]:
    """Numbers of a vector as it is in memory, in any type T."""
    n = x.type.length
    wide = x if n > 1 else k.pack(x, x)                                 # elements of vectors are bits, not indices
    most = min(wide.type.length, MOST)
    parts = [wide] if wide.type.length == most else [
        k.shuffle(x, x, range(first, first + most)) for first in range(0, n, most)]
    values = [number(k, part, FORMAT, T) for part in parts]
    return [part[e] for part in values for e in range(min(n, most))]


def words(k: Kernel, x: Value) -> list[Value]:
    """A vector's bits, 32 at a time."""
    count = x.type.length * x.type.bits // 32
    packed = k.reinterpret(x, vec(i32, count) if count > 1 else i32)
    return [packed[e] for e in range(count)] if count > 1 else [packed]


def _halves(k: Kernel, word: Value) -> list[Value]:
    """Each half of a word as the upper one, the other bits 0."""
    pair = k.broadcast(word, 2)                                         # elements of vectors are bits, not indices
    return [(pair << 16)[0], (pair & splat(k, i32, -1 << 16, 2))[0]]


def _bytes(k: Kernel, each: list[Value], SIGNED: bool, minus: Sequence[Value]) -> list[Value]:
    exponent = k.reinterpret(splat(k, i32, EXPONENT, 2)[0], vec(i8, 4))
    bias = k.constant(f32, -(2.0**23 + 128*SIGNED))
    biases = [bias - x for x in minus] or [bias]                        # exact
    values = list[Value]()
    for word in each:
        if SIGNED:
            word = (k.broadcast(word, 2) ^ splat(k, i32, HIGHEST, 2))[0]
        bytes = k.reinterpret(word, vec(i8, 4))
        for e in range(4):
            biased = k.reinterpret(k.shuffle(bytes, exponent, (e, 4, 5, 7)), f32)
            values.append(biased + biases[len(values) % len(biases)])
    return values


def pairs(k: Kernel, x: Value, FORMAT: str, T: Type, minus: Sequence[Value] = (), times: Sequence[Value] = (),
          held: Held | None = None, SPREAD: bool = False, rest: Sequence[Value] = ()) -> list[Value]:
    """The numbers of a vector of FORMAT i4x2, u4x2 or e2m1x2 as words of two f16 or bf16, T, on a chip that multiplies
    those (`Kernel.fma_pair`): 0 and 4, 1 and 5, 2 and 6, 3 and 7 of each eight. An element takes 1 3/8 instructions, of
    e2m1 2 1/8, with `times` 2 5/8. `minus`: words of two whole numbers of at most 128 that are subtracted, one or
    one for each eight. `times`: those that numbers are multiplied by; products of e2m1 have to be numbers of T. `rest`:
    what scales are more than `times`. SPREAD: words have two numbers each, from bits 0 and 16 on."""
    BF16, values = T == bf16, list[Value]()
    one = k.constant(i32, 0x3F803F80 if BF16 else 0x3C003C00)
    exponent = (held or Held.constants(k, FORMAT, T)).pair
    for w, word in enumerate(words(k, x)):
        both = k.broadcast(word, 2)
        upper = k.broadcast(k.opaque((both >> 8)[0]), 2) if FORMAT == "e2m1x2" and BF16 else both
        for t in range(1 if SPREAD else 4):
            if FORMAT != "e2m1x2":                                  # 2^7 + d, or 2^10 + d, of which that is taken away
                bits = (both >> 4*t if t else both) & splat(k, i32, 0x000F000F, 2)
                bits = bits ^ k.broadcast(exponent, 2)
                bias = (128 if BF16 else 1024) + 8*(FORMAT == "i4x2")
                pattern = _pattern(T, -float(bias))
                number = k.fma_pair(bits[0], one, k.constant(i32, pattern), T)
                if minus:
                    number = k.fma_pair(minus[w % len(minus)], k.constant(i32, _pattern(T, -1.0)), number, T)
                if times:
                    less = k.fma_pair(number, rest[w % len(rest)], k.constant(i32, _pattern(T, -0.0)), T)
                    number = k.fma_pair(number, times[w % len(times)], less, T)
                values.append(number)
                continue
            if BF16:            # a digit times 2^6 and 2^12 is twice in a half, where it needs its bits and its sign
                digit = (upper if t > 1 else both) & splat(k, i32, 0x000F000F << 4*(t % 2), 2)
                bits = digit * (0x1040 >> 4*(t % 2)) & splat(k, i32, -0x7E3F7E40, 2)
            else:
                high = both << 4*(3 - t) if t < 3 else both
                bits = (high & splat(k, i32, -0x7FFF8000, 2)) | ((high >> 3) & splat(k, i32, 0x0E000E00, 2))
            unit = k.constant(i32, _pattern(T, 2.0**126 if BF16 else 2.0**14))
            zero = k.constant(i32, _pattern(T, -0.0))
            number = k.fma_pair(bits[0], unit, zero, T)
            values.append(k.fma_pair(number, times[w % len(times)], zero, T) if times else number)
    return values


def signed_bytes(k: Kernel, x: Value, held: Held) -> Value:
    """Two i8 in an i16 as a word of two bf16, on a chip that multiplies those: 2^7 and a byte's lower seven bits, less
    2^7, or 2^8 where the highest bit is set. Two instructions for each."""
    bytes, exponents = (k.reinterpret(word, vec(i8, 4)) for word in (k.cast(x, i32), held.pair))
    word = k.reinterpret(k.shuffle(bytes, exponents, (0, 5, 1, 7)), i32)
    both = k.broadcast(word, 2)                                         # elements of vectors are bits, not indices
    low, high = ((both & splat(k, i32, mask, 2))[0] for mask in (-0x00800081, -0x007F0080))
    return k.fma_pair(high, k.constant(i32, _pattern(bf16, -1.0)), low, bf16)


def twice(k: Kernel, x: Value, FORMAT: str, T: Type, FP8: bool) -> Value:
    """A scale of the format e8m0 or e4m3fn as a word of two T, which is bf16 for e8m0 and has it exactly."""
    bits = k.cast(x, i32)
    if FORMAT == "e8m0":            # the exponent of bf16; of 0 and 255, which is a NaN, the highest bit below it, too
        special = k.select((bits + 1 & 0xFE) == 0, k.constant(i32, 0x00400040), 0)
        return (bits & 0xFF)*0x00800080 | special
    number = k.reinterpret(k.fp8_pair(bits, FORMAT, 0), vec(f16, 2))[0] if FP8 else floats(k, x, FORMAT)[0]
    wide = k.cast(number, f32)
    return k.round_pair(k.pack(wide, wide), T)


def _pattern(T: Type, x: float) -> int:
    """An i32 with x twice."""
    half = int(np.asarray(x, T.numpy).view(np.uint16))
    return int(np.uint32(half | half << 16).view(np.int32))


def _digits(k: Kernel, word: Value, SIGNED: bool, minus: Sequence[Value], held: Held) -> list[Value]:
    """The eight of a word: a digit d of base 16 at place t below the highest place of the mantissa is 2^23 + d 16^t."""
    pair = k.broadcast(word, 2)
    if SIGNED:                                                          # 8 more, by the highest bit, once for all
        pair = k.broadcast(k.opaque((pair ^ splat(k, i32, -0x77777778, 2))[0]), 2)
    parts = pair, pair >> 4*PLACES
    digits = list[Value]()
    for e in range(8):
        part, t = divmod(e, PLACES)
        bits = (parts[part] & splat(k, i32, 15 << 4*t, 2)) | k.broadcast(held.exponent, 2)
        weight, bias = k.constant(f32, 16.0**-t), held.biases[t]
        bias = bias - minus[e % len(minus)] if minus else bias          # exact
        digits.append(k.fma(k.bits_as(bits[0], f32), weight, bias))
    return digits


def _small_floats(k: Kernel, word: Value) -> list[Value]:
    """The eight e2m1 of a word times 2^-14: e and e + 4 become an f16 at once."""
    floats_by_code: dict[int, Value] = {}
    pair = k.broadcast(word, 2)
    for e in range(4):
        high = pair << 4*(3 - e) if e < 3 else pair                     # the sign where that of f16 is
        bits = (high & splat(k, i32, -0x7FFF8000, 2)) | ((high >> 3) & splat(k, i32, 0x0E000E00, 2))
        halves = k.reinterpret(bits[0], vec(f16, 2))
        for half in range(2):
            floats_by_code[e + 4*half] = k.cast(halves[half], f32)
    return [floats_by_code[e] for e in range(8)]
