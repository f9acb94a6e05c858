"""Products of words: the operations that multiply the two or four numbers in each element of 32 bits, and add them up.

    quads        four bytes of a, without sign, by four of b, with sign, into i32
    pairs        two i16 by two i16 into i32
    bf16_pairs   two bf16 by two bf16 into f32

The integer ones are exact modulo 2^32. bf16_pairs is what Intel's manual says of VDPBF16PS and what a Zen 5 does, to
the bit: two fused multiply-adds, first of the upper halves, then of the lower ones, each rounded to nearest even
whatever MXCSR says; operands and results that are subnormal count as zeros of their sign.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.exact import flushing_multiply_add
from tilewright.ir.operations import Operation
from tilewright.ir.types import bf16, i16, vec

_BITS = {4: 128, 8: 256, 16: 512}       # of a vector of so many words
LENGTHS = tuple(_BITS)


def _sum_of_products(BITS: int, signed: bool) -> Any:
    def meaning(t: Any, c: Any, a: Any, b: Any) -> Any:
        total = np.asarray(c).astype(np.int64)
        for shift in range(0, 32, BITS):
            x = _part(a, shift, BITS) if signed else (np.asarray(a) >> shift) & ((1 << BITS) - 1)
            total = total + x.astype(np.int64) * _part(b, shift, BITS)
        return total.astype(t.numpy)[()]
    return meaning


def _part(x: Any, shift: int, BITS: int) -> Any:
    """The number with sign that stands in so many bits from `shift` on."""
    return (np.asarray(x) << 32 - BITS - shift) >> 32 - BITS


def _bf16_pairs(t: Any, c: Any, a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    upper = np.int32(-1 << 16)
    c = flushing_multiply_add((a & upper).view(np.float32), (b & upper).view(np.float32), c)
    return flushing_multiply_add((a << 16).view(np.float32), (b << 16).view(np.float32), c)


def _pairs_llvm(low: Any, t: Any, c: Any, a: Any, b: Any) -> Any:
    """A product and a sum, which LLVM makes one instruction (vpdpwssd) of where the chip has it."""
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[t.length]
    halves = [low.b.bitcast(x, low.type(vec(i16, 2 * t.length))) for x in (a, b)]
    return low.b.add(low.call(f"llvm.x86.{name}", t, *halves), c, name="pairs")


def _bf16_llvm(low: Any, t: Any, c: Any, a: Any, b: Any) -> Any:
    halves = [low.b.bitcast(x, low.type(vec(bf16, 2 * t.length))) for x in (a, b)]
    return low.call(f"llvm.x86.avx512bf16.dpbf16ps.{_BITS[t.length]}", t, c, *halves)


QUADS = Operation("quads", lambda low, t, *cab: low.call(f"llvm.x86.avx512.vpdpbusd.{_BITS[t.length]}", t, *cab),
                  _sum_of_products(8, signed=False), "fma", needs="avx512vnni or avxvnni")
PAIRS = Operation("pairs", _pairs_llvm, _sum_of_products(16, signed=True), "fma", needs="avx2")
BF16_PAIRS = Operation("bf16_pairs", _bf16_llvm, _bf16_pairs, "fma", needs="avx512bf16")
