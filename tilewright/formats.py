"""Number formats: one frozen record each, from which every limit of the format is derived.

A record says how the bits of one number are divided; what follows from that (largest value, epsilon, NumPy dtype) is
computed from it and never typed in. f32 and f64 are the formats this version multiplies; adding a format means adding
a row to the table at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: sign, `exponent` bits, `mantissa` bits, biased by `bias`."""

    name: str  # the short name used in problems, plans and kernel names: "f32"
    numpy_name: str  # what np.dtype() calls it
    exponent: int  # exponent bits
    mantissa: int  # explicit mantissa bits, the hidden one not counted
    bias: int  # value of the exponent field that means 2^0
    source: str  # where the encoding is defined

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def itemsize(self) -> int:
        """Bytes of one number in memory."""
        return self.bits // 8

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        import numpy as np

        return np.dtype(self.numpy_name)

    @property
    def eps(self) -> float:
        """The gap between 1 and the next larger number; a rounding errs by at most half of it, relatively."""
        return 2.0**-self.mantissa

    @property
    def largest(self) -> float:
        """The largest finite number: all mantissa bits set, the last exponent being that of inf and nan."""
        return (2.0 - self.eps) * 2.0 ** (2**self.exponent - 2 - self.bias)

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        return self.smallest_normal * self.eps

    def __str__(self) -> str:
        return self.name


IEEE754 = "IEEE 754-2019, table 3.5"

FORMATS = {
    f.name: f
    for f in (
        #      name   numpy      e   m   bias  source
        Format("f32", "float32", 8, 23, 127, IEEE754),
        Format("f64", "float64", 11, 52, 1023, IEEE754),
    )
}

_BY_NUMPY_NAME = {f.numpy_name: f for f in FORMATS.values()}


def find(what: object) -> Format | None:
    """The format called `what`, or None: a record, a short or NumPy name, a dtype or a scalar type.

    NumPy's one-letter codes are not accepted: its "f16" and "i8" count bytes where ours count bits.
    """
    if isinstance(what, Format):
        return what
    if isinstance(what, str):
        return FORMATS.get(what) or _BY_NUMPY_NAME.get(what)
    import numpy as np

    if isinstance(what, (np.dtype, type)):
        return _BY_NUMPY_NAME.get(np.dtype(what).name)
    return None


def get(what: object, argument: str = "format") -> Format:
    """As `find`, but an unknown format is a ValueError that names the argument and what it may be."""
    found = find(what)
    if found is None:
        raise ValueError(f"{argument} must be one of {', '.join(FORMATS)}, not {what!r}")
    return found


def promote(*formats: Format) -> Format:
    """The format in which mixed operands are multiplied: the one NumPy would choose."""
    import numpy as np

    return get(np.result_type(*(f.dtype for f in formats)))
