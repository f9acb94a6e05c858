"""What a number format is: frozen records of how the bits are divided, and everything that follows from that.

Largest values, gaps and the encodings of nan, inf and zero are computed from a record's few fields and never typed in;
so is `decode`, which uses no library's arithmetic, so that the tests can hold ml_dtypes against it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import TYPE_CHECKING, Any

from tilewright import forks
from tilewright.forks import cached_property

if TYPE_CHECKING:
    import numpy as np


class Format(ABC):
    """What the records of all kinds have in common."""

    name: str  # the short name used in problems, plans and kernel names: "f32"
    numpy_name: str  # what NumPy, or ml_dtypes, calls it
    source: str  # where the encoding is defined

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of one number, packed as closely as it may be."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest finite number."""

    @property
    @abstractmethod
    def smallest(self) -> float:
        """The most negative finite number, or the smallest one if none is negative."""

    @abstractmethod
    def decode(self, pattern: int) -> complex:
        """The number that a bit pattern stands for, exactly, as a Python bool, int, float or complex."""

    @property
    def itemsize(self) -> int:
        """Bytes of one number in an array: fewer than 8 bits take a byte, unless they are packed."""
        return -(-self.bits // 8)

    @property
    def packing(self) -> tuple[int, int]:
        """(elements, bytes) of the smallest group that fills whole bytes: four numbers of 6 bits fill three."""
        shared = math.gcd(self.bits, 8)
        return 8 // shared, self.bits // shared

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype; ml_dtypes is imported for those that only it has."""
        with forks.building:
            import numpy as np

            try:
                return np.dtype(self.numpy_name)
            except TypeError:
                import ml_dtypes

                return np.dtype(getattr(ml_dtypes, self.numpy_name))

    def check(self, pattern: int, argument: str = "pattern") -> int:
        """The pattern, if it is one: TypeError or ValueError otherwise."""
        try:
            value = index(pattern)
        except TypeError:
            raise TypeError(f"{argument} must be an integer, not {pattern!r}") from None
        if not 0 <= value < 2**self.bits:
            shown = f"{value:#x}" if value >= 0 else str(value)
            raise ValueError(
                f"{argument} must be 0 to {2**self.bits - 1:#x} for {self}, which has {self.bits} bits, not {shown}"
            )
        return value

    def __str__(self) -> str:
        return self.name


class Specials(Enum):
    """Which encodings of a floating-point format are no ordinary numbers; the letters are those of the names."""

    IEEE = "the last exponent is inf (mantissa 0) and nan (the others)"
    FN = "finite: no inf, and nan only where all bits but the sign are 1"
    FNUZ = "finite, unsigned zero: no inf, and the only nan is where -0 would be"
    NONE = "neither inf nor nan"
    SCALE = "no sign, no zero, no subnormals: powers of two, and nan where all bits are 1"


@dataclass(frozen=True)
class Float(Format):
    """A binary floating-point format: sign, `exponent` bits, `mantissa` bits, biased by `bias`."""

    name: str
    numpy_name: str
    exponent: int  # exponent bits
    mantissa: int  # explicit mantissa bits, the hidden one not counted
    bias: int  # value of the exponent field that means 2^0
    specials: Specials
    source: str

    @cached_property
    def signed(self) -> bool:
        return self.specials is not Specials.SCALE

    @property
    def bits(self) -> int:
        return self.signed + self.exponent + self.mantissa

    @property
    def eps(self) -> float:
        """The gap between 1 and the next larger number; a rounding errs by at most half of it, relatively."""
        return 2.0**-self.mantissa

    @property
    def largest_pattern(self) -> int:
        """The pattern of the largest finite number: the one before the first inf or nan."""
        return min([self._sign, *self.infs, *(run.start for run in self.nans)]) - 1

    @property
    def largest(self) -> float:
        return self.decode(self.largest_pattern)

    @property
    def smallest(self) -> float:
        return -self.largest if self.signed else self.smallest_normal

    @property
    def least_exponent(self) -> int:
        """The least exponent of a normal number. Field 0 means subnormals, with the exponent of field 1, where there
        are any."""
        return (1 if self.signed else 0) - self.bias

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.least_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number; of a format without subnormals it is the smallest normal one."""
        return self.smallest_normal * self.eps

    @cached_property
    def _sign(self) -> int:
        """The value of the sign bit in a pattern: as many patterns are positive."""
        return 2 ** (self.exponent + self.mantissa)

    @cached_property
    def nans(self) -> tuple[range, ...]:
        """Every pattern that is nan, in runs."""
        sign = self._sign
        last = {Specials.IEEE: 2**self.mantissa - 1, Specials.FN: 1, Specials.SCALE: 1}.get(self.specials, 0)
        if self.specials is Specials.FNUZ:
            return (range(sign, sign + 1),)
        runs = (range(sign - last, sign), range(2 * sign - last, 2 * sign))
        return runs[: (1 + self.signed) * (last > 0)]

    @cached_property
    def infs(self) -> tuple[int, ...]:
        """The patterns of inf and -inf."""
        inf = self._sign - 2**self.mantissa
        return (inf, inf + self._sign) if self.specials is Specials.IEEE else ()

    @cached_property
    def zeros(self) -> tuple[int, ...]:
        """The patterns of 0 and -0."""
        return {Specials.SCALE: (), Specials.FNUZ: (0,)}.get(self.specials, (0, self._sign))

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """Sign, exponent field and mantissa field of a pattern."""
        rest, mantissa = divmod(self.check(pattern), 2**self.mantissa)
        sign, exponent = divmod(rest, 2**self.exponent)
        return sign, exponent, mantissa

    def kind(self, pattern: int) -> str:
        """What a pattern is: "nan", "inf", "zero", "subnormal" or "normal"."""
        if any(self.check(pattern) in run for run in self.nans):
            return "nan"
        if pattern in self.infs:
            return "inf"
        if pattern in self.zeros:
            return "zero"
        return "subnormal" if self.signed and self.fields(pattern)[1] == 0 else "normal"

    def decode(self, pattern: int) -> float:
        kind = self.kind(pattern)
        sign, exponent, mantissa = self.fields(pattern)
        hidden = 2**self.mantissa if kind == "normal" else 0
        power = max(exponent - self.bias, self.least_exponent)
        size = {"nan": math.nan, "inf": math.inf}.get(kind, math.ldexp(hidden + mantissa, power - self.mantissa))
        return -size if sign and kind != "nan" else size


@dataclass(frozen=True)
class Integer(Format):
    """Two's complement, or unsigned."""

    name: str
    numpy_name: str
    width: int
    signed: bool
    source: str

    @property
    def bits(self) -> int:
        return self.width

    @property
    def largest(self) -> int:
        return 2 ** (self.width - self.signed) - 1

    @property
    def smallest(self) -> int:
        return -(2 ** (self.width - 1)) if self.signed else 0

    def decode(self, pattern: int) -> int:
        return self.check(pattern) - (2**self.width if pattern > self.largest else 0)


@dataclass(frozen=True)
class Bool(Format):
    """A truth value in a byte, as C and NumPy keep it: 0 or 1; whatever else is found there reads as true."""

    name: str
    numpy_name: str
    source: str

    @property
    def bits(self) -> int:
        return 8

    @property
    def largest(self) -> bool:
        return True

    @property
    def smallest(self) -> bool:
        return False

    def decode(self, pattern: int) -> bool:
        return self.check(pattern) != 0


@dataclass(frozen=True)
class Complex(Format):
    """Two numbers of one floating-point format; the real part is in the lower bits, which lie first in memory."""

    name: str
    numpy_name: str
    part: Float
    source: str

    @property
    def bits(self) -> int:
        return 2 * self.part.bits

    @property
    def eps(self) -> float:
        return self.part.eps

    @property
    def largest(self) -> float:
        """The largest finite real or imaginary part. Other limits are those of a part, too."""
        return self.part.largest

    @property
    def smallest(self) -> float:
        return self.part.smallest

    @property
    def smallest_normal(self) -> float:
        return self.part.smallest_normal

    @property
    def smallest_subnormal(self) -> float:
        return self.part.smallest_subnormal

    def parts(self, pattern: int) -> tuple[int, int]:
        """The patterns of the real and of the imaginary part."""
        imaginary, real = divmod(self.check(pattern), 2**self.part.bits)
        return real, imaginary

    def decode(self, pattern: int) -> complex:
        real, imaginary = self.parts(pattern)
        return complex(self.part.decode(real), self.part.decode(imaginary))
