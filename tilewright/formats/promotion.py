"""The format in which operands of different formats meet."""

from __future__ import annotations

from functools import cache
from itertools import combinations

from tilewright.formats.records import Bool, Complex, Float, Format, Integer
from tilewright.formats.table import FORMATS, get


def promote(*formats: object) -> Format:
    """The format in which mixed operands meet, whatever their order: the one NumPy would choose.

    For its own formats that is numpy.result_type, and for those of ml_dtypes what ml_dtypes has taught NumPy; it is
    not always a format that holds all of both operands (i8 with e2m1 gives e2m1). Where NumPy refuses any two of them,
    as it does f16 and bf16, it is the narrowest format that does hold every number of all operands (of integers, the
    narrowest integer format), the first in the table of several; and f64 where none does, or c128 if one is complex.
    """
    import numpy as np

    if not formats:
        raise ValueError("promote needs at least 1 format")
    found = [get(each) for each in formats]
    dtypes = [f.dtype for f in found]
    try:
        for pair in combinations(dtypes, 2):  # of three, NumPy refuses some in one order and not in another
            np.result_type(*pair)
        return get(np.result_type(*dtypes))
    except TypeError:
        return narrowest(*found)


def accumulator(*formats: object) -> Format:
    """The format in which products of such operands, for such a result, are added up: f32, f64, i32, i64, c64 or c128.

    It holds every product of two narrow floats, and 32 or 64 bits of a sum of integers, which is all of it modulo the
    result's 2^bits. Integers for an integer result are never added up as floats, though i64 and u64 meet in f64.
    """
    if integral(*formats):
        return FORMATS["i64" if max(get(f).bits for f in formats) > 32 else "i32"]
    common = promote(*formats)
    if isinstance(common, Complex):
        return common
    return FORMATS["f64" if common.bits > 32 else "f32"]


def integral(*formats: object) -> bool:
    """Are all of these integers, or bool?"""
    return all(isinstance(get(f), (Integer, Bool)) for f in formats)


def rank(format: object) -> int:
    """NumPy's kinds in order, bool, integer, float, complex: what is of one may be cast to the same or a later one."""
    found = get(format)
    return next(i for i, kind in enumerate((Bool, Integer, Float, Complex)) if isinstance(found, kind))


def narrowest(*formats: Format) -> Format:
    """The format of fewest bits that holds every number of all of these; f64 or c128 if none does, as in NumPy.

    Integers meet in integers, though a small float would often do.
    """
    whole = all(isinstance(each, Integer) for each in formats)
    eligible = [f for f in FORMATS.values() if isinstance(f, Integer) or not whole]
    holding = [f for f in eligible if all(holds(f, each) for each in formats)]
    widest = "c128" if any(isinstance(each, Complex) for each in formats) else "f64"
    return min(holding, key=lambda f: f.bits, default=FORMATS[widest])


@cache
def holds(wide: Format, narrow: Format) -> bool:
    """Is every number of `narrow`, inf and nan included, one of `wide`? The sign of a zero does not count."""
    if wide == narrow:
        return True
    if isinstance(wide, Complex):
        return holds(wide.part, narrow.part if isinstance(narrow, Complex) else narrow)
    if narrow.smallest < wide.smallest or narrow.largest > wide.largest or isinstance(narrow, Complex):
        return False
    if isinstance(wide, Float):
        digits, unit = _digits(narrow)
        specials = not isinstance(narrow, Float) or (
            len(wide.nans) >= min(len(narrow.nans), 1) and len(wide.infs) >= len(narrow.infs)
        )
        zero = bool(wide.zeros) or (isinstance(narrow, Float) and not narrow.zeros)
        return specials and zero and digits <= wide.mantissa + 1 and unit >= wide.smallest_subnormal
    return isinstance(wide, Integer) and not isinstance(narrow, Float)


def _digits(f: Format) -> tuple[int, float]:
    """How many binary digits the numbers of a format have at most, and the unit of which all are multiples."""
    if isinstance(f, Float):
        return f.mantissa + 1, f.smallest_subnormal
    return int(f.largest).bit_length(), 1.0
