"""One bit pattern of a format taken apart, step by step (`explain`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tilewright.formats.records import Complex, Float, Format, Integer
from tilewright.formats.table import get

WHY = {
    "nan": "this is nan",
    "inf": "this is infinity",
    "zero": "exponent field and mantissa are 0: this is zero",
    "subnormal": "the exponent field is 0: a subnormal number, with the exponent of field 1 and without a hidden 1",
    "normal": "a normal number: a hidden 1 stands before the mantissa",
}


@dataclass(frozen=True)
class Steps:
    """What a pattern of a format means, and how one gets there."""

    format: Format
    pattern: int
    kind: str  # "normal", "subnormal", "zero", "inf", "nan"; "integer", "bool", "complex"
    value: complex  # a Python bool, int, float or complex: exact
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def explain(fmt: object, pattern: int) -> Steps:
    """The steps from a bit pattern to its value. ValueError for an unknown format or a pattern it does not have."""
    f = get(fmt, "fmt")
    f.check(pattern)
    match f:
        case Float():
            kind, lines = f.kind(pattern), _float_steps(f, pattern)
        case Integer():
            kind, lines = "integer", _integer_steps(f, pattern)
        case Complex():
            kind, lines = "complex", _complex_steps(f, pattern)
        case _:
            kind, lines = "bool", [f"{'any bit' if pattern else 'no bit'} is 1: {f.decode(pattern)}"]
    first = f"{f} {pattern:#0{2 + -(-f.bits // 4)}x} = {spelled(f, pattern)}"
    return Steps(f, pattern, kind, f.decode(pattern), (first, *lines))


def spelled(f: Format, pattern: int) -> str:
    """The bits in groups: sign, exponent, mantissa; of a complex number the imaginary part first, the upper half."""
    if isinstance(f, Complex):
        real, imaginary = f.parts(pattern)
        return f"{spelled(f.part, imaginary)} | {spelled(f.part, real)}"
    digits = f"{pattern:0{f.bits}b}"
    if not isinstance(f, Float):
        return digits
    ends = (0, int(f.signed), f.signed + f.exponent, f.bits)
    return " ".join(digits[start:end] for start, end in pairwise(ends) if end > start)


def number(value: complex) -> str:
    """A value in full: as short as it reads back, without an exponent of ten where there is room."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(value).removesuffix(".0")
    return str(value)


def _float_steps(f: Float, pattern: int) -> list[str]:
    sign, exponent, mantissa = f.fields(pattern)
    kind, value = f.kind(pattern), number(f.decode(pattern))
    lines = [f"sign      {sign}: {'negative' if sign else 'positive'}"] if f.signed else []
    lines += [f"exponent  {exponent:0{f.exponent}b} = {exponent}, bias {f.bias}"]
    if f.mantissa:
        lines += [f"mantissa  {mantissa:0{f.mantissa}b} = {mantissa}, of {2**f.mantissa}"]
    if f.signed or kind == "nan":
        lines += [WHY[kind] + (f"; in {f}: {f.specials.value}" if kind in ("nan", "inf") else "")]
    if kind in ("nan", "inf", "zero"):
        return [*lines, f"= {value}"]
    least, hidden = ("1", "0") if kind == "subnormal" else (str(exponent), "1")
    significand = f" * ({hidden} + {mantissa}/{2**f.mantissa})" if f.mantissa else ""
    power = f.least_exponent if kind == "subnormal" else exponent - f.bias
    minus = f"(-1)^{sign} * " if f.signed else ""
    lines += [f"= {minus}2^({least} - {f.bias}){significand}"]
    if f.mantissa:
        part = (kind == "normal") + mantissa / 2**f.mantissa
        lines += [f"= {'-' if sign else ''}2^{power} * {number(part)}"]
    return [*lines, f"= {value}"]


def _integer_steps(f: Integer, pattern: int) -> list[str]:
    value = f.decode(pattern)
    if not f.signed:
        return [f"unsigned: {value}"]
    top, rest = divmod(pattern, 2 ** (f.width - 1))
    sentence = f"two's complement: the first bit has the value {f.smallest}, the others are an unsigned number"
    return [sentence, f"= {top} * {f.smallest} + {rest}", f"= {value}"]


def _complex_steps(f: Complex, pattern: int) -> list[str]:
    lines = []
    for name, half in zip(("real part", "imaginary part"), f.parts(pattern)):
        where = "lower" if name == "real part" else "upper"
        lines += [f"{name}, the {where} {f.part.bits} bits:", *(f"  {line}" for line in explain(f.part, half).lines)]
    return [*lines, f"= {f.decode(pattern)}"]
