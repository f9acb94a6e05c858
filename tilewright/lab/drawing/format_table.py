"""Formats as text: the table and the details that `tilewright formats` prints, and docs/formats.md has."""

from __future__ import annotations

import math

from tilewright.formats.patterns import number, spelled
from tilewright.formats.records import Bool, Complex, Float, Format, Integer, Specials
from tilewright.formats.table import ALSO_CALLED, FORMATS, BlockFormat, accumulator

HEADINGS = ("format", "bits", "shape", "bias", "range", "normal", "subnormal", "zero", "nan", "inf", "packed")
LONG = 10  # bits of a group that the table shows in full
LISTED = 16  # patterns of a format that are listed with their values


def rows() -> list[tuple[str, ...]]:
    """The table: a row of HEADINGS per format. S is either sign; a dash is what a format does not have."""
    return [row(f) for f in FORMATS.values()]


def row(f: Format) -> tuple[str, ...]:
    first = (f.name, str(f.bits))
    if not isinstance(f, Float):
        return (*first, shape(f), "-", bounds(f), *["-"] * 5, packed(f))
    subnormal = power(f.smallest_subnormal) if f.smallest_subnormal < f.smallest_normal else "-"
    limits = (bounds(f), power(f.smallest_normal), subnormal)
    return (*first, shape(f), str(f.bias), *limits, zeros(f), nans(f), infs(f), packed(f))


def shape(f: Format) -> str:
    """Exponent and mantissa bits as they are written everywhere: E4M3."""
    match f:
        case Float():
            return f"E{f.exponent}M{f.mantissa}"
        case Complex():
            return f"2 {f.part}"
        case Integer():
            return "signed" if f.signed else "unsigned"
    return "0 or 1"


def bounds(f: Format) -> str:
    if isinstance(f, Float) and not f.signed:
        return f"{power(f.smallest)} to {power(f.largest)}"
    if isinstance(f, (Float, Complex)):
        return f"±{f.largest:.6g}"
    if isinstance(f, Bool):
        return "False, True"
    if f.bits < 32:
        return f"{f.smallest} to {f.largest}"
    return f"{f'-{power(-f.smallest)}' if f.smallest else '0'} to {power(f.largest + 1)} - 1"


def packed(f: Format) -> str:
    """How many numbers fill how many bytes."""
    elements, size = f.packing
    return f"{elements} in {size} B"


def power(value: float) -> str:
    """The power of two that this is, or that lies below it."""
    return f"2^{math.frexp(value)[1] - 1}"


def zeros(f: Float) -> str:
    return _signs(f, [f.zeros[0]] * len(f.zeros)) if f.zeros else "-"


def infs(f: Float) -> str:
    return _signs(f, [f.infs[0]] * len(f.infs)) if f.infs else "-"


def nans(f: Float) -> str:
    """Sign, exponent and mantissa of every nan."""
    if not f.nans:
        return "-"
    if f.specials is Specials.IEEE:  # the mantissas that are not inf's
        return " ".join(_signs(f, f.infs).split()[:2] + ["≠0"])
    return _signs(f, [run.start for run in f.nans])


def _signs(f: Float, patterns: tuple[int, ...] | list[int]) -> str:
    """A pattern with S for its sign if there are two of them, which differ in the sign; long groups cut short."""
    groups = spelled(f, patterns[0]).split()
    if len(patterns) == 2:
        groups[0] = "S"
    return " ".join(f"{group[0]}…{group[-1]}" if len(group) > LONG else group for group in groups)


def details(f: Format) -> list[tuple[str, str]]:
    """One format, line by line: (what, that)."""
    library = "NumPy" if f.dtype.isbuiltin == 1 else "ml_dtypes"  # 2: registered by another package
    lines = [("bits", f"{f.bits}: {_division(f)}"), ("dtype", f"{f.numpy_name}, of {library}")]
    if f.name in ALSO_CALLED:
        lines += [("also called", ", ".join(ALSO_CALLED[f.name]))]
    if isinstance(f, Float):
        lines += [("exponent bias", str(f.bias)), *_limits(f)]
        lines += [("zero", zeros(f)), ("nan", nans(f)), ("inf", infs(f)), ("specials", f.specials.value)]
        lines += [("gap at 1", f"{power(f.eps)} = {number(f.eps)}")]
    else:
        lines += [("range", bounds(f))]
    lines += [("packed", packed(f)), ("added up in", accumulator(f).name)]
    lines += [("defined in", f.source)]
    if 2**f.bits <= LISTED:
        lines += [("values", "")]
        lines += [(f"  {spelled(f, pattern)}", number(f.decode(pattern))) for pattern in range(2**f.bits)]
    return lines


def block_details(f: BlockFormat) -> list[tuple[str, str]]:
    """One block-scaled format, likewise."""
    lines = [("elements", f"{f.element}, of which {f.block} share a scale"), ("scale", f"{f.scale}, a byte a block")]
    if not f.mx:
        lines += [("scale of all", "f32, one for the whole array")]
    return [
        *lines,
        ("bits", f"{number(f.bits)} a number, with its share of the scale"),
        ("largest element", f"{number(f.element.largest)} = {_exact(f.element.largest)}"),
        ("packed", f"{f.block} in {f.block_bytes} B"),
        ("added up in", "f32"),
        ("defined in", f.source),
    ]


def _division(f: Format) -> str:
    match f:
        case Float():
            return f"{f'{int(f.signed)} sign, ' if f.signed else ''}{f.exponent} exponent, {f.mantissa} mantissa"
        case Complex():
            return f"the real part, {f.part}, in the lower half and the imaginary part in the upper"
        case Integer():
            return "two's complement" if f.signed else "unsigned"
    return "a whole byte for 0 or 1"


def _limits(f: Float) -> list[tuple[str, str]]:
    """The limits with their patterns."""
    top = min([2 ** (f.exponent + f.mantissa), *f.infs, *(run.start for run in f.nans)]) - 1
    normal = 2**f.mantissa if f.signed else 0
    limits = [("largest", top), ("smallest normal", normal)] + [("smallest subnormal", 1)] * (normal > 1)
    return [(what, f"{number(f.decode(pattern))} = {_exact(f.decode(pattern))}, {spelled(f, pattern)}")
            for what, pattern in limits]


def _exact(value: float) -> str:
    """A positive float as a power of two times 1 to 2."""
    part = 2 * math.frexp(value)[0]
    return power(value) + (f" * {number(part)}" if part != 1 else "")
