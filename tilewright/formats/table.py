"""The formats there are, a row each, and how to find one by any of its names."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tilewright.formats.records import Bool, Complex, Float, Format, Integer, Specials

if TYPE_CHECKING:
    import numpy as np

IEEE754 = "IEEE 754-2019, table 3.5"
BFLOAT16 = "Intel 338302-001, BFLOAT16 Hardware Numerics Definition"
OFP8 = "OCP 8-bit Floating Point Specification (OFP8), 1.0"
GRAPHCORE = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks, arXiv 2206.02915"
MX = "OCP Microscaling Formats (MX) Specification, 1.0"
INTEGERS = "two's complement, or binary"
C_BOOL = "ISO C, _Bool: a byte that is 0 or 1"
C_COMPLEX = "ISO C, 6.2.5: two numbers, the real part first"

F32 = Float("f32", "float32", 8, 23, 127, Specials.IEEE, IEEE754)
F64 = Float("f64", "float64", 11, 52, 1023, Specials.IEEE, IEEE754)

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        F64,
        F32,
        #     name        numpy              e  m  bias specials          source
        Float("f16",      "float16",         5, 10, 15, Specials.IEEE,    IEEE754),
        Float("bf16",     "bfloat16",        8, 7, 127, Specials.IEEE,    BFLOAT16),
        Float("e4m3fn",   "float8_e4m3fn",   4, 3, 7,   Specials.FN,      OFP8),
        Float("e4m3fnuz", "float8_e4m3fnuz", 4, 3, 8,   Specials.FNUZ,    GRAPHCORE),
        Float("e5m2",     "float8_e5m2",     5, 2, 15,  Specials.IEEE,    OFP8),
        Float("e5m2fnuz", "float8_e5m2fnuz", 5, 2, 16,  Specials.FNUZ,    GRAPHCORE),
        Float("e2m3",     "float6_e2m3fn",   2, 3, 1,   Specials.NONE,    MX),
        Float("e3m2",     "float6_e3m2fn",   3, 2, 3,   Specials.NONE,    MX),
        Float("e2m1",     "float4_e2m1fn",   2, 1, 1,   Specials.NONE,    MX),
        Float("e8m0",     "float8_e8m0fnu",  8, 0, 127, Specials.SCALE,   MX),
        *(Integer(f"{'i' if signed else 'u'}{width}", f"{'' if signed else 'u'}int{width}", width, signed, INTEGERS)
          for width in (2, 4, 8, 16, 32, 64) for signed in (True, False)),
        Bool("bool", "bool", C_BOOL),
        Complex("c64", "complex64", F32, C_COMPLEX),
        Complex("c128", "complex128", F64, C_COMPLEX),
    )
}  # fmt: skip

# The formats that this version multiplies, in the order in which messages name them; all others are decoded,
# converted and packed.
MULTIPLIED = ("f32", "f64")

_BY_NUMPY_NAME = {f.numpy_name: f for f in FORMATS.values()}


def find(what: object, among: Collection[str] = FORMATS) -> Format | None:
    """The format called `what`, or None: a record, a short or NumPy name, a dtype or a scalar type.

    `among` are the names of those that are wanted, such as MULTIPLIED. NumPy's one-letter codes are not accepted: its
    "f16" and "i8" count bytes where ours count bits.
    """
    found = _find(what)
    return found if found is not None and found.name in among else None


def _find(what: object) -> Format | None:
    if isinstance(what, Format):
        return what
    if isinstance(what, str):
        return FORMATS.get(what) or _BY_NUMPY_NAME.get(what)
    import numpy as np

    if isinstance(what, (np.dtype, type)):
        return _BY_NUMPY_NAME.get(np.dtype(what).name)
    return None


def get(what: object, argument: str = "format", among: Collection[str] = FORMATS) -> Format:
    """As `find`, but an unknown format is a ValueError that names the argument and what it may be."""
    found = find(what, among)
    if found is None:
        raise ValueError(f"{argument} must be one of {', '.join(among)}, not {what!r}")
    return found


def of(array: np.ndarray[Any, Any], argument: str = "x") -> Format:
    """The format of an array's elements, or a TypeError."""
    found = find(array.dtype)
    if found is None:
        raise TypeError(f"{argument} must hold one of {', '.join(FORMATS)}, but its dtype is {array.dtype}")
    return found
