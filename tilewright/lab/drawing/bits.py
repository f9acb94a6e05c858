"""Number formats: a number's bits as boxes, what they mean, and all formats with their value ranges."""
from __future__ import annotations

from math import log10
from typing import Any

from tilewright.lab.drawing.pen import Svg

PARTS = {"sign": "red", "exponent": "blue", "mantissa": "green", "number": "violet"}
LOWEST, HIGHEST = -45, 45       # powers of ten of the axis of ranges; what goes beyond is drawn to the edge


def parts(format: Any) -> list[tuple[str, int]]:
    """(what, how many bits) from the highest bit down; of integers and others one part."""
    if not hasattr(format, "mantissa"):
        return [("number", format.bits)]
    fields = [("sign", int(format.signed)), ("exponent", format.exponent), ("mantissa", format.mantissa)]
    return [(what, bits) for what, bits in fields if bits]


def row(pen: Svg, x: float, y: float, format: Any, size: float, digits: str = "", high: float = 0,
        named: bool = False, numbered: bool = False) -> float:
    """A number's bits as boxes with these digits in them, named and numbered if that is asked for; where it ends."""
    at, left, high = 0, x, high or size
    for what, bits in parts(format):
        for _ in range(bits):
            pen.rect(left, y, size, high, PARTS[what], 0.3, "edge", 0.7)
            if digits:
                pen.text(left + size/2, y + high/2 + 5, digits[at], 14, anchor="middle", mono=True)
            if numbered:
                pen.text(left + size/2, y + high + pen.least + 3, str(format.bits - 1 - at), 0, "soft", "middle")
            at, left = at + 1, left + size
        if named:
            pen.text(left - bits*size/2, y - 7, what if bits > 1 else what[0], 13, PARTS[what], "middle", True)
    return left


def pattern(format: Any, bits: int, title: str, steps: bool = True) -> Svg:
    """One bit pattern: boxes, and the steps to its value."""
    from tilewright.formats.patterns import explain
    pen = Svg(title, width=480)
    size = max(min(420 / format.bits, 40), 24)
    row(pen, 0, 0, format, size, f"{bits:0{format.bits}b}", named=True, numbered=True)
    y = size + 46
    for line in str(explain(format, bits)).splitlines()[not steps:]:
        pen.text(0, y, line.replace("  ", "\u00a0\u00a0"), 13, mono=True)
        y += 20
    return pen


def one(format: Any, bits: int | None) -> Svg:
    """A number of any format, or the format."""
    if bits is not None:
        return pattern(format, bits, f"{format.name} {bits:#x}")
    if hasattr(format, "mantissa") and format.signed:
        return general(format, f"The bits of {format.name}")
    return table([format.name])


def general(format: Any, title: str) -> Svg:
    """How a format of floating-point numbers divides its bits, and what each part counts as."""
    pen = Svg(title, width=480)
    size = max(min(420 / format.bits, 34), 24)
    row(pen, 0, 0, format, size, named=True, numbered=True)
    y = size + 48
    e, m, b = format.exponent, format.mantissa, format.bias
    lines = [f"{format.name}: {format.bits} bits, of which 1 sign, {e} exponent, {m} mantissa",
             f"E = the exponent bits as a whole number, 0 to {2**e - 1}",
             f"M = the mantissa bits as a whole number, of {2**m}",
             f"E > 0:  value = (-1)^S * 2^(E - {b}) * (1 + M/{2**m})",
             f"E = 0:  value = (-1)^S * 2^(1 - {b}) * (0 + M/{2**m})"]
    for line in lines:
        pen.text(0, y, line, 13, mono=True)
        y += 21
    return pen


def number_line(format: Any, bits: int, title: str) -> Svg:
    """All positive numbers of a small format on a line, with their bits, and one of them decoded."""
    from tilewright.formats.patterns import explain, spelled
    pen, wide = Svg(title, 480), 440
    patterns = range(2**(format.bits - 1))
    pen.line(0, 0, wide + 10, 0, "ink", 1.4, arrow=True)
    for at in patterns:
        value = format.decode(at)
        x = value / format.largest * wide
        exponent = format.fields(at)[1]
        pen.line(x, -6, x, 6, PARTS["exponent"], 2)
        pen.text(x, -12 - 16*(at % 2), f"{value:g}", 12, anchor="middle")
        pen.text(x + 4, 16, spelled(format, at), 12, ("violet", "blue", "green", "orange")[exponent % 4], "end",
                 mono=True, turned=True)
    y = 110
    row(pen, 0, y, format, 30, f"{bits:0{format.bits}b}", named=True)
    for i, line in enumerate(str(explain(format, bits)).splitlines()):
        pen.text(150, y + 4 + 19*i, line.replace("  ", "\u00a0\u00a0"), 12, mono=True)
    return pen


def table(names: list[str] | None = None) -> Svg:
    """Formats as boxes of bits, to one scale, each with its range on an axis of powers of ten."""
    from tilewright.formats import FORMATS
    from tilewright.lab.drawing import format_table
    chosen = [FORMATS[name] for name in names or FORMATS]
    chosen = [f for f in chosen if not hasattr(f, "part")]      # a complex number is two of these
    pen = Svg("Number formats: their bits, and the values between the least and the largest", width=640)
    size, left, wide, high = 4.4, 80, 190, 34
    axis = left + 64*size + 26
    for name, hue in PARTS.items():
        pen.rect(left + list(PARTS).index(name)*110, -42, 11, 11, hue, 0.3, hue)
        pen.text(left + list(PARTS).index(name)*110 + 17, -32, name if name != "number" else "whole", 12, "soft")
    for exponent in range(-40, 41, 20):
        x = axis + (exponent - LOWEST) / (HIGHEST - LOWEST) * wide
        pen.line(x, -8, x, high*len(chosen), "edge")
        pen.text(x, -12, f"1e{exponent}" if exponent else "1", 0, "soft", "middle")
    for i, f in enumerate(chosen):
        y = i * high
        pen.text(0, y + 16, f.name, 13, bold=True)
        row(pen, left, y + 4, f, size, high=15)
        pen.text(left, y + 30, format_table.bounds(f), 0, "soft")
        low = getattr(f, "smallest_subnormal", 1)
        ends = [(max(min(log10(v), HIGHEST), LOWEST) - LOWEST) / (HIGHEST - LOWEST) for v in (low, f.largest or 1)]
        pen.rect(axis + ends[0]*wide, y + 5, max((ends[1] - ends[0])*wide, 2), 12,
                 PARTS["number" if len(parts(f)) == 1 else "exponent"], 0.6)
    return pen
