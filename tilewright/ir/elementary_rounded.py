"""gelus of f32 for results that are rounded to few bits: bf16, f16 and narrower. They take a half of the instructions.

x/2 + |x/2| (1 - e), e = 1 - erf |x/√2|, or 1 - tanh of gelu_tanh's polynomial: e is a power of one short polynomial of
|x|. A root of e is smooth where e decays, so that few coefficients do, and multiplying the root by itself takes few.
Which numbers are rounded to how many bits is decided by what an expression's results are stored as
(expressions/rounding.py), never by the chip.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.ir.elementary import _polynomial
from tilewright.ir.values import Value


@dataclass(frozen=True)
class Short:
    """`coefficients` of rising powers of |x| up to `end`, from where on e is 0 beside 1; e is the polynomial's square,
    and its square, and so on, so many times. bench/elementary.py computes them."""
    end: float
    squares: int
    coefficients: tuple[float, ...]


SHORT = {
    ("gelu", 8): Short(5.7, 2, tuple(map(float.fromhex, (
        "0x1.fff99ep-1", "-0x1.97c52ap-3", "-0x1.e8471cp-5", "0x1.dded84p-9", "0x1.d27b94p-8", "-0x1.a1ded0p-10",
        "0x1.aa46d0p-14")))),
    ("gelu", 11): Short(5.7, 3, tuple(map(float.fromhex, (
        "0x1.00000ep+0", "-0x1.98a0a0p-4", "-0x1.1c1832p-5", "-0x1.0630c8p-10", "0x1.f0de1ep-10", "-0x1.8bcf9ep-14",
        "-0x1.d91828p-16", "0x1.645848p-19")))),
    ("gelu_tanh", 8): Short(5.25, 2, tuple(map(float.fromhex, (
        "0x1.fff9e6p-1", "-0x1.96d09cp-3", "-0x1.fc4722p-5", "0x1.f12f06p-8", "0x1.41495ap-8", "-0x1.2c0204p-10",
        "0x1.2e0a9ap-14")))),
    ("gelu_tanh", 11): Short(5.25, 3, tuple(map(float.fromhex, (
        "0x1.00003ap+0", "-0x1.9902eap-4", "-0x1.177c06p-5", "-0x1.1dd5c2p-9", "0x1.ae9a1ep-9", "-0x1.a30b62p-11",
        "0x1.bd0b14p-14", "-0x1.848648p-18")))),
}
BITS = sorted({bits for _, bits in SHORT})
NAMES = {name for name, _ in SHORT}


def gelu(k: Any, name: str, bits: int, x: Value) -> Value:
    """`name`, of SHORT, of x in f32 for a result of so many bits: with an error below 0.06 ulp of such a result before
    it is rounded, where x > 0 or the result is 2^-6 or more in size; elsewhere below 2^-(bits + 9). 0 from -end down,
    NaN of -inf."""
    short, half = SHORT[name, bits], x * 0.5
    root = _polynomial(k, short.coefficients, k.min(short.end, k.abs(x)))       # in this order a NaN stays
    for _ in range(short.squares - 1):
        root = root * root
    return k.fma(k.abs(half), k.fma(-root, root, k.constant(x.type, 1.0)), half)
