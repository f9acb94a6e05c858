"""abs, sqrt, exp, log, tanh, erf and gelus of a kernel's values, and what the operators - and / record.

exp, log, tanh, erf and gelus are expressions over the layer's own operations, without a library or a branch: a range
reduction, a polynomial of fused multiply-adds, powers of two made of their bits. Every step is rounded as IEEE 754 says
on every target and in the simulator, so results have the same bits everywhere. Errors are measured by
bench/elementary.py, for f32 over all numbers, and held by tests/ir/test_elementary.py.

Formats of 16 bits are computed in f32 and rounded once more.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.ir.ops import core as ops
from tilewright.ir.types import Type, f32, i32, i64, vec
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel
    from tilewright.ir.ops.core import Operation


def abs(k: Kernel, x: Value) -> Value:
    """|x|; of a float its sign bit is cleared."""
    t = _number("abs", x)
    return k._op(ops.ABS, t, x) if t.is_float else k.select(x < 0, -x, x)


def popcount(k: Kernel, x: Value) -> Value:
    """How many bits of an integer are one."""
    t = _number("popcount", x)
    if t.is_float:
        raise TypeError(f"popcount takes integers, not {t}")
    return k._op(ops.POPCOUNT, t, x)


def sqrt(k: Kernel, x: Value) -> Value:
    """The square root of floats, correctly rounded: NaN of negative numbers, -0 of -0."""
    return _rounded(k, ops.SQRT, _float("sqrt", x), x)


def exp(k: Kernel, x: Value) -> Value:
    """e^x of floats, within 1 ulp; infinite from where the result overflows, subnormal and then 0 below."""
    return _through_f32(k, _exp, _float("exp", x), x)


def log(k: Kernel, x: Value) -> Value:
    """The natural logarithm of floats, within 1 ulp: -inf of 0 and -0, NaN of negative numbers."""
    return _through_f32(k, _log, _float("log", x), x)


def tanh(k: Kernel, x: Value) -> Value:
    """The hyperbolic tangent of floats, within 1.5 ulp; its sign is that of x, -0 of -0."""
    return _through_f32(k, _tanh, _float("tanh", x), x)


def erf(k: Kernel, x: Value) -> Value:
    """The error function of floats, within 1.5 ulp; its sign is that of x, -0 of -0."""
    return _through_f32(k, _erf, _float("erf", x), x)


def sigmoid(k: Kernel, x: Value) -> Value:
    """1 / (1 + e^-x) of floats, within 3 ulp; 0 below -87.3 (f64: -708), where it is almost or altogether subnormal."""
    return _through_f32(k, _sigmoid, _float("sigmoid", x), x)


def gelu(k: Kernel, x: Value) -> Value:
    """x Φ(x) of floats, Φ the normal distribution, computed as x/2 + |x/2| erf |x/√2|: within 2 ulp for x > 0, within
    2 ulp of x/2 for x < 0, where the sum cancels; 0 below -5.55 (f64: -8.42), NaN of -inf."""
    return _through_f32(k, _gelu, _float("gelu", x), x)


def gelu_tanh(k: Kernel, x: Value) -> Value:
    """x/2 + |x/2| tanh |sqrt(2/π) (x + 0.044715 x³)| of floats, within 3 ulp, of x/2 for x < 0; NaN of -inf."""
    return _through_f32(k, _gelu_tanh, _float("gelu_tanh", x), x)


# ---- what the operators of values record

def negate(k: Kernel, x: Value) -> Value:
    """-x"""
    t = _number("-", x)
    return k._op(ops.NEGATE, t, x) if t.is_float else 0 - x


def divide(k: Kernel, x: Any, y: Any) -> Value:
    """x / y of floats, correctly rounded."""
    t = next(v.type for v in (x, y) if isinstance(v, Value))
    if not isinstance(t, Type) or not t.is_float:
        raise TypeError(f"/ divides floats, not {t}: // is the quotient of indices, k.cast(x, f32) makes a float")
    return _rounded(k, ops.DIVIDE, t, k._value(x, t), k._value(y, t))


def _rounded(k: Kernel, operation: Operation, t: Type, *operands: Value) -> Value:
    """A correctly rounded operation. In f32 and rounded once more it is so in 16 bits, too: f32 has more than twice
    as many bits of precision, and two more (Figueroa, "When is double rounding innocuous?", 1995)."""
    return _through_f32(k, lambda k, *xs: k._op(operation, xs[0].type, *xs), t, *operands)


def _through_f32(k: Kernel, expression: Callable[..., Value], t: Type, *operands: Value) -> Value:
    with k._fusing(None):
        if t.bits >= 32:
            return expression(k, *operands)
        return k.cast(expression(k, *(k.cast(x, vec(f32, t.length)) for x in operands)), t)


def _number(name: str, x: Any) -> Type:
    if not isinstance(x, Value) or not isinstance(x.type, Type) or x.type.bits == 1:
        raise TypeError(f"{name} takes a number of the kernel, not {x.type if isinstance(x, Value) else repr(x)}")
    return x.type


def _float(name: str, x: Any) -> Type:
    t = _number(name, x)
    if not t.is_float:
        raise TypeError(f"{name} takes floats, not {t}: k.cast(x, f32) makes one")
    return t


# ---- the expressions, of f32 and f64

@dataclass(frozen=True)
class _Format:
    """A format, and the constants that its precision and its range decide. Coefficients, of rising powers, are minimax:
    bench/elementary.py computes them."""
    whole: Type                     # integers of as many bits
    mantissa: int                   # bits of it that are stored
    bias: int                       # of the exponent
    ln2: tuple[float, float]        # two parts; a product of the first and an exponent is exact
    per_ln2: float                  # 1 / ln 2
    exp_ends: tuple[float, float]   # e^x is 0 from here down when rounded, infinite from here up
    tanh_end: float                 # tanh x is 1 from here up when rounded
    erf_small: float                # from here up 1 - erf is one expression, below erf is a polynomial
    erf_end: float                  # erf x is 1 from here up when rounded
    exp: Sequence[float]            # (e^r - 1 - r) / r^2, |r| <= ln 2 / 2
    log: Sequence[float]            # (log((1 + s) / (1 - s)) / s - 2) / z of z = s^2, |s| <= (sqrt 2 - 1)/(sqrt 2 + 1)
    tanh: Sequence[float]           # (tanh(x) / x - 1) / y of y = x^2, |x| <= TANH_SMALL
    erf: Sequence[float]            # erf(x) / x - 1 of x^2, |x| <= erf_small
    erfc: Sequence[float]           # of x, erf_small <= x <= erf_end: f32 (1 - erf x)^(1/4), f64 -log(1 - erf x)

    @property
    def round(self) -> float:
        """Added to a small number it leaves no bits for fractions: the sum is rounded to a whole number, which its
        lowest bits are, as an integer."""
        return 1.5 * 2.0 ** self.mantissa

    @property
    def round_bits(self) -> int:
        return (self.bias + self.mantissa << self.mantissa) + (1 << self.mantissa - 1)


TANH_SMALL = 0.55                   # just beyond atanh(1/2)

# Of f32: sqrt(1 - erf(t / sqrt 2)) = 1 + t * polynomial of t, 0 <= t <= GELU_END, where its square is below 2^-25.
GELU_END = 5.55
GELU = tuple(map(float.fromhex, (
    "-0x1.988468p-2", "-0x1.45ebc0p-4", "0x1.1c34dep-5", "0x1.6446dcp-7", "-0x1.b0effep-9", "-0x1.ef4b78p-12",
    "-0x1.4f3bb8p-13", "0x1.0e402cp-12", "-0x1.611554p-14", "0x1.b9da1cp-17", "-0x1.198162p-20", "0x1.2758d4p-25")))

F32 = _Format(
    i32, 23, 127, (float.fromhex("0x1.62e4p-1"), float.fromhex("0x1.7f7d1cp-20")),
    float.fromhex("0x1.715476p0"), (-104.0, 89.0), 10.0, 1.15, 4.0,
    exp=tuple(map(float.fromhex, (
        "0x1p-1", "0x1.555490p-3", "0x1.555460p-5", "0x1.123ac4p-7", "0x1.6db38ep-10"))),
    log=tuple(map(float.fromhex, ("0x1.555556p-1", "0x1.9999ecp-2", "0x1.245c08p-2", "0x1.ddd97cp-3"))),
    tanh=tuple(map(float.fromhex, (
        "-0x1.555554p-2", "0x1.110ff4p-3", "-0x1.b9a2eep-5", "0x1.5d3e2ap-6", "-0x1.b1eec2p-8"))),
    erf=tuple(map(float.fromhex, (
        "0x1.06eba6p-3", "-0x1.81271cp-2", "0x1.ce2740p-4", "-0x1.b79e3cp-6", "0x1.5179cep-8", "-0x1.931dccp-11",
        "0x1.1f934ap-14"))),
    erfc=tuple(map(float.fromhex, (
        "0x1.017a48p0", "-0x1.3d4b1ep-2", "-0x1.f92148p-5", "-0x1.aa8264p-5", "0x1.1243fap-4", "-0x1.70358ap-6",
        "0x1.adaf54p-9", "-0x1.7efd6ep-13"))))

F64 = _Format(
    i64, 52, 1023, (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")),
    float.fromhex("0x1.71547652b82fep0"), (-746.0, 710.0), 20.0, 0.9, 5.95,
    exp=tuple(map(float.fromhex, (
        "0x1p-1", "0x1.5555555555557p-3", "0x1.5555555555558p-5", "0x1.11111111100dbp-7", "0x1.6c16c16c151fap-10",
        "0x1.a01a01abe8228p-13", "0x1.a01a01acfb134p-16", "0x1.71de02313675ep-19", "0x1.27e4ccce00c64p-22",
        "0x1.af4dea2b0662ap-26", "0x1.1f8b4b233e912p-29"))),
    log=tuple(map(float.fromhex, (
        "0x1.5555555555558p-1", "0x1.9999999995219p-2", "0x1.2492492e05192p-2", "0x1.c71c62ceabb53p-3",
        "0x1.7462ba9b2324cp-3", "0x1.39fdaa5495c25p-3", "0x1.2b60775166c9fp-3"))),
    tanh=tuple(map(float.fromhex, (
        "-0x1.5555555555555p-2", "0x1.111111111103cp-3", "-0x1.ba1ba1b9ffdcep-5", "0x1.664f48776e800p-6",
        "-0x1.226e32ff59d50p-7", "0x1.d6d33c258f71cp-9", "-0x1.7d97fc0a875cap-10", "0x1.34c743830b1c7p-11",
        "-0x1.ec2296d8fe7e3p-13", "0x1.65358f7da5a4ap-14", "-0x1.5a3c42b62cd24p-16"))),
    erf=tuple(map(float.fromhex, (
        "0x1.06eba8214db67p-3", "-0x1.812746b03790fp-2", "0x1.ce2f21a03843cp-4", "-0x1.b82ce30f5c6fp-6",
        "0x1.565bcc902aff3p-8", "-0x1.c02d9d13c3dep-11", "0x1.f9a08d3c9fa7ep-14", "-0x1.f4a1ae94987aep-17",
        "0x1.b7999b4d2019fp-20", "-0x1.4ded10bcccd98p-23", "0x1.60e07959386c7p-27"))),
    erfc=tuple(map(float.fromhex, (
        "0x1.23b082ab9a9e5p-24", "0x1.20dd68e8bea7ep0", "0x1.45f37cf6ac9eep-1", "0x1.a4ea01b2594e5p-4",
        "-0x1.39111e29978d9p-6", "-0x1.efdf21166dd15p-13", "0x1.c2c61011c664p-10", "-0x1.3977909088d46p-11",
        "0x1.f2cb4aa06080dp-17", "0x1.6c65f7cfae374p-14", "-0x1.b6bee31d5aa4ep-15", "0x1.3fc29d24da1b3p-16",
        "-0x1.51ad229fb4a0cp-18", "0x1.0d2877e005072p-20", "-0x1.43b64ccdaedd9p-23", "0x1.1e2ef81727cabp-26",
        "-0x1.5fd8b7e094565p-30", "0x1.0cf2f2e23e1a6p-34", "-0x1.8113b2c9a69b4p-40"))))


def _format(t: Type) -> _Format: return F32 if t.bits == 32 else F64


def _polynomial(k: Any, coefficients: Sequence[float], x: Value) -> Value:
    total = k.constant(x.type, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = k.fma(total, x, k.constant(x.type, c))
    return total


def _power(k: Any, exponent: Value, t: Type) -> Value:
    """2^exponent, of the lowest bits of an exponent with its bias."""
    return k.bits_as(exponent << _format(t).mantissa, t)


def _reduced_exp(k: Any, x: Value, bias: int = 0, precise: bool = False) -> tuple[Value, Value]:
    """(p, n): e^x = p 2^(n - bias) of the lowest bits of n, with one bit more than an exponent has; p from 0.7 to 1.42.
    Of a NaN p is one. `precise`: p within 0.84 ulp rather than 0.9, for expressions that lose some of it."""
    F, t = _format(x.type), x.type
    rounded = k.fma(x, k.constant(t, F.per_ln2), k.constant(t, F.round + bias))
    n = rounded - (F.round + bias)
    high, low = (k.constant(t, -part) for part in F.ln2)
    rest = k.fma(n, high, x)                                # exact
    r = k.fma(n, low, rest)
    if precise:
        lost = k.fma(n, low, rest - r)                      # r + lost has twice the precision
        p = k.fma(r*r, _polynomial(k, F.exp, r), lost) + r + 1.0
    else:
        p = _polynomial(k, (1.0, 1.0, *F.exp), r)
    return p, k.bits_as(rounded, vec(F.whole, t.length))


def _exp(k: Any, x: Value) -> Value:
    F, t = _format(x.type), x.type
    low, high = F.exp_ends
    p, n = _reduced_exp(k, k.min(high, k.max(x, low)), 2*F.bias)        # in this order a NaN stays
    # 2^n is infinite or 0 before the result is: two factors. Only the second product is rounded, if it is subnormal.
    half = n >> 1
    return p * k.bits_as(n - half << F.mantissa, t) * k.bits_as(half << F.mantissa, t)


def exp_below(k: Any, x: Value) -> Value:
    """e^x of f32 or f64 x <= 0, within 1 ulp; 0 where that is subnormal, and of -inf. Half the instructions of exp: the
    exponent's bits are 0 from where the result has to be."""
    F, t = _format(x.type), x.type
    p, n = _reduced_exp(k, k.max(x, -F.bias * math.log(2)), F.bias)         # a NaN stays
    return p * _power(k, n, t)


def _log(k: Any, x: Value) -> Value:
    """x = m 2^e, m from sqrt(1/2) to sqrt(2); f = m - 1, s = f / (2 + f), log m = f - f^2/2 + s (f^2/2 + ...), which
    is fdlibm's way; e log 2 + f is summed without an error."""
    F, t = _format(x.type), x.type
    integers = vec(F.whole, t.length)
    shift = F.mantissa + 1
    subnormal = x < 2.0 ** (1 - F.bias)
    scaled = k.select(subnormal, x * 2.0**shift, x)
    half = _root_of_half(F)
    bits = (k.bits_as(scaled, integers) & (1 << F.whole.bits - 1) - 1) - half
    m = k.bits_as((bits & (1 << F.mantissa) - 1) + half, t)
    e = k.bits_as((bits >> F.mantissa) + F.round_bits, t) - F.round
    e = k.select(subnormal, e - shift, e)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    square = f * f * 0.5
    high, low = F.ln2
    total = k.fma(e, k.constant(t, high), f)
    lost = f - (total - e*high)
    series = s * k.fma(z, _polynomial(k, F.log, z), square) - square
    result = total + (k.fma(e, k.constant(t, low), lost) + series)
    result = k.select(x < math.inf, result, x)              # of infinity, and of a NaN
    result = k.select(x <= 0.0, k.constant(t, -math.inf), result)
    return k.select(x < 0.0, k.constant(t, math.nan), result)


def _root_of_half(F: _Format) -> int:
    """The bits of sqrt(1/2)."""
    return (F.bias - 1 << F.mantissa) + int((math.sqrt(2) - 1) * 2**F.mantissa)


def _tanh(k: Any, x: Value) -> Value:
    """tanh(|x|): a polynomial near 0, elsewhere 1 - 2 / (e^2|x| + 1)."""
    F, t = _format(x.type), x.type
    size, y = k.abs(x), x * x
    small = k.fma(size*y, _polynomial(k, F.tanh, y), size)
    p, n = _reduced_exp(k, k.min(2*F.tanh_end, size + size), F.bias, precise=True)
    one = k.constant(t, 1.0)
    reciprocal = k._op(ops.RECIPROCAL, t, p * _power(k, n, t) + one, one)
    large = k.fma(k.constant(t, -2.0), reciprocal, one)
    return _signed(k, k.select(size < TANH_SMALL, small, large), x)


def _erf(k: Any, x: Value) -> Value:
    return _signed(k, _erf_of_size(k, k.abs(x)), x)


def _erf_of_size(k: Any, size: Value) -> Value:
    """erf of numbers >= 0: a polynomial near 0, elsewhere 1 - y^4 (f64: 1 - e^-y), y another one."""
    F, t = _format(size.type), size.type
    small = k.fma(size, _polynomial(k, F.erf, size*size), size)
    y = _polynomial(k, F.erfc, k.min(F.erf_end, size))
    if F is F32:
        square = y * y
        large = k.fma(-square, square, k.constant(t, 1.0))
    else:
        p, n = _reduced_exp(k, -y, F.bias)
        large = 1.0 - p * _power(k, n, t)
    return k.select(size < F.erf_small, small, large)


def _gelu(k: Any, x: Value) -> Value:
    """x/2 + |x/2| erf |x/√2|; of f32 that erf is 1 - p^2, p one polynomial for all x."""
    t, half, size = x.type, x * 0.5, k.abs(x)
    if _format(t) is F32:
        size = k.min(GELU_END, size)
        p = _polynomial(k, (1.0, *GELU), size)
        return k.fma(k.abs(half), k.fma(-p, p, k.constant(t, 1.0)), half)
    return k.fma(k.abs(half), _erf_of_size(k, size * math.sqrt(0.5)), half)


def _sigmoid(k: Any, x: Value) -> Value:
    F, t = _format(x.type), x.type
    end, one = 87.3 if F is F32 else 708.0, k.constant(t, 1.0)      # e^y is a reciprocal's normal number
    p, n = _reduced_exp(k, k.min(end, k.max(-x, -end)), F.bias)          # in this order a NaN stays
    sigmoid = k._op(ops.RECIPROCAL, t, k.fma(p, _power(k, n, t), one), one)
    return k.select(x < -end, k.constant(t, 0.0), sigmoid)


def _gelu_tanh(k: Any, x: Value) -> Value:
    """tanh is 1 - 2 / (e^y + 1); the sum hides errors of it that are small beside 1, so that e^y = p 2^n needs no more
    than a polynomial."""
    F, t, half = _format(x.type), x.type, x * 0.5
    slope, cubic = 2*math.sqrt(2/math.pi), 2*math.sqrt(2/math.pi)*0.044715
    y = k.min(2*F.tanh_end, k.abs(x*k.fma(x*x, k.constant(t, cubic), k.constant(t, slope))))
    (p, n), one = _reduced_exp(k, y, F.bias), k.constant(t, 1.0)
    reciprocal = k._op(ops.RECIPROCAL, t, k.fma(p, _power(k, n, t), one), one)
    return k.fma(k.abs(half), k.fma(k.constant(t, -2.0), reciprocal, one), half)


def _signed(k: Any, size: Value, x: Value) -> Value:
    """With the sign of x, which 0 has, too."""
    integers = vec(_format(x.type).whole, x.type.length)
    sign = k.bits_as(x, integers) & -1 << integers.scalar.bits - 1
    return k.bits_as(k.bits_as(size, integers) | sign, x.type)


# ---- gelus of f32 for results that are rounded to few bits, bf16's, f16's and fewer: a half of the instructions
#
# x/2 + |x/2| (1 - e), e = 1 - erf |x/√2|, or 1 - tanh of gelu_tanh's polynomial: e is a power of one short polynomial
# of |x|. A root of e is smooth where e decays, so that few coefficients do, and multiplying the root by itself takes
# few. Which numbers are rounded to how many bits is decided by what an expression's results are stored as
# (expressions/rounding.py), never by the chip.

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


def rounded_gelu(k: Any, name: str, bits: int, x: Value) -> Value:
    """`name`, of SHORT, of x in f32 for a result of so many bits: with an error below 0.06 ulp of such a result before
    it is rounded, where x > 0 or the result is 2^-6 or more in size; elsewhere below 2^-(bits + 9). 0 from -end down,
    NaN of -inf."""
    short, half = SHORT[name, bits], x * 0.5
    root = _polynomial(k, short.coefficients, k.min(short.end, k.abs(x)))       # in this order a NaN stays
    for _ in range(short.squares - 1):
        root = root * root
    return k.fma(k.abs(half), k.fma(-root, root, k.constant(x.type, 1.0)), half)
