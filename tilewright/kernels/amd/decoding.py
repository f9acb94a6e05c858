"""Packed elements of MX formats times their scale, as bf16: how a lane decodes them in its registers.

Two elements at a time, one in each half of a register, until they are numbers:

    place     the element's highest bit, its sign, becomes the highest bit of the half            v_lshlrev_b32 ...
    f16       exponent and mantissa move to where f16 has them, behind copies of the sign         v_pk_ashrrev_i16
              which are cleared, as are the bits of other elements                                v_and_b32
    power     that is the element times 2^(its bias - 15), subnormals included: times the power   v_pk_mul_f16
    scale     in f32, which holds scales and products exactly                                     v_fma_mix_f32
    bf16      the upper half of f32; two of them to a register                                    v_perm_b32

e5m2 is the upper half of f16 already, inf and NaN included. The NaN of e4m3fn would be 480, so its exponent gets
another bit: that is a NaN of f16.

What comes out is exact where bf16 has it. Elements have at most four bits, so only range can be lacking:

    too large       2^128 and more are inf: of a block whose scale is beyond 2^112 for e5m2, 2^119 for e4m3fn, 2^123 for
                    e3m2, 2^125 for e2m3 and e2m1
    too small       what is below 2^-133, the unit of bf16's subnormals, is cut off: bits of elements of a block whose
                    scale is below 2^-117 for e5m2, 2^-124 for e4m3fn; others keep everything at any scale
    NaN             a scale of 255 makes NaN of its whole block, zeros included; NaN and inf of elements stay that
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.formats import get
from tilewright.ir import Kernel, Value, f16, f32, i16, i32, vec

AT_ONCE = 16                    # elements: 16, 12 or 8 bytes
_HALVES = vec(i16, 2)
_F16: Any = get("f16")
_NAN = {"e4m3fn": 0x7F << 7}    # what is a NaN in such a half, without its sign, and does not look like one
# Vector instructions of AT_ONCE elements, as LLVM 22 has them: tests/kernels/amd/test_emulated_mx_gemm.py counts them.
INSTRUCTIONS = {"e4m3fn": 73, "e5m2": 41, "e2m3": 67, "e3m2": 67, "e2m1": 59}


def decode(k: Kernel, words: Value, scale: Value, FORMAT: str) -> list[Value]:
    """AT_ONCE elements in a vector of i32, and an e8m0 in an i32, as words of two bf16 each, in their order."""
    factor = power_of_two(k, scale)
    numbers: dict[int, Value] = {}
    for pair, elements in _placed(k, [words[e] for e in range(words.type.length)], get(FORMAT).bits):
        of_f16 = _as_f16(k, pair, FORMAT)
        for half, element in enumerate(elements):
            # an FMA, though there is nothing to add: it alone takes a half of a register as it is
            product = k.fma(k.cast(of_f16[half], f32), factor, k.constant(f32, 0.0))
            numbers[element] = k.reinterpret(product, _HALVES)
    return [k.reinterpret(k.shuffle(numbers[e], numbers[e + 1], (1, 3)), i32) for e in range(0, AT_ONCE, 2)]


def power_of_two(k: Kernel, scale: Value) -> Value:
    """2^(scale - 127) in f32, from 0 to 254; NaN of 255. The exponent, but of 0 and 255 another bit: of 2^-127, which
    is subnormal, the only one, and of what would be inf the one that makes it NaN."""
    odd = ((scale + 1) & 255) <= 1
    return k.bits_as((scale << 23) | k.select(odd, k.constant(i32, 1 << 22), 0), f32)


def _placed(k: Kernel, words: list[Value], BITS: int) -> Iterator[tuple[Value, tuple[int, int]]]:
    """Words that have an element at the top of each half, and which these are. Below are bits of others."""
    if BITS == 6:                                               # of four in 24 bits, the first two and the last two
        for e in range(0, AT_ONCE, 4):
            low, high = (k.reinterpret(_bits_from(words, e*BITS + end - 16), _HALVES) for end in (12, 24))
            pair = k.reinterpret(k.shuffle(low, high, (0, 2)), i32)
            yield pair, (e + 1, e + 3)
            yield pair << BITS, (e, e + 2)
        return
    count = 16 // BITS                                          # in a half
    for w, word in enumerate(words):
        for e in range(count):
            element = 2*count*w + e
            above = (count - 1 - e)*BITS
            yield word << above if above else word, (element, element + count)


def _bits_from(words: list[Value], bit: int) -> Value:
    """A word whose lower half is 16 bits of the stream from this one on; before its first are zeros."""
    if bit < 0:
        return words[0] << -bit
    word, shift = divmod(bit, 32)
    below = words[word] >> shift if shift else words[word]
    return below if shift <= 16 else below & ((1 << 32 - shift) - 1) | words[word + 1] << 32 - shift


def _as_f16(k: Kernel, pair: Value, FORMAT: str) -> Value:
    """Two elements, each at the top of its half, as two f16."""
    f: Any = get(FORMAT)
    narrower = _F16.exponent - f.exponent
    moved = k.reinterpret(k.reinterpret(pair, _HALVES) >> narrower, i32) if narrower else pair
    bits = moved & _both(1 << 15 | ((1 << f.exponent + f.mantissa) - 1) << _F16.mantissa - f.mantissa)
    if FORMAT in _NAN:
        carry = bits + _both((1 << 14) - _NAN[FORMAT])          # into bit 14, which nothing but a NaN reaches
        bits = bits | (carry & _both(1 << 14))
    numbers = k.reinterpret(bits, vec(f16, 2))
    return numbers * 2.0**(_F16.bias - f.bias) if f.bias != _F16.bias else numbers


def _both(half: int) -> int:
    """The same in both halves of an i32."""
    word = half << 16 | half
    return word - (1 << 32) if word >> 31 else word
