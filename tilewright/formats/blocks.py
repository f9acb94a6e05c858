"""Block-scaled formats: numbers of few bits that share a scale with their neighbours, as records.

A number in them is an element times the scale of its block, so that it has no bit pattern of its own: these are no
rows of FORMATS. MX formats are those of OCP: 32 elements, and a power of two in e8m0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.formats.records import Float, Specials
from tilewright.formats.table import FORMATS, MX

NVFP4 = (
    "NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference, "
    "developer.nvidia.com/blog/introducing-nvfp4-for-efficient-and-accurate-low-precision-inference"
)


@dataclass(frozen=True)
class BlockFormat:
    """`block` neighbouring elements of one format and a scale for all of them: value = scale * element."""

    name: str
    element: Float
    scale: Float
    block: int  # elements that share a scale
    source: str

    @property
    def emax(self) -> int:
        """The exponent of the largest element: 8 of e4m3fn, whose largest number is 1.75 * 2^8."""
        return math.frexp(self.element.largest)[1] - 1

    @property
    def mx(self) -> bool:
        """Are scales powers of two? Else they are relative to a scale of the whole array."""
        return self.scale.specials is Specials.SCALE

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's elements, packed: 32, 24 or 16 for 32 of 8, 6 and 4 bits."""
        return self.block * self.element.bits // 8

    @property
    def bits(self) -> float:
        """Bits of memory that a number takes, with its share of the scale: 4.25 in mxfp4."""
        return self.element.bits + self.scale.bits / self.block

    def blocks(self, length: int) -> int:
        """How many blocks `length` numbers take; the last one may be filled up with zeros."""
        return -(-length // self.block)

    def __str__(self) -> str:
        return self.name


def _mx(name: str, element: str) -> BlockFormat:
    return BlockFormat(name, _float(element), _float("e8m0"), 32, MX)


def _float(name: str) -> Float:
    found = FORMATS[name]
    assert isinstance(found, Float)
    return found


BLOCK_FORMATS = {
    f.name: f
    for f in (
        _mx("mxfp8", "e4m3fn"),
        _mx("mxfp8_e5m2", "e5m2"),
        _mx("mxfp6", "e2m3"),
        _mx("mxfp6_e3m2", "e3m2"),
        _mx("mxfp4", "e2m1"),
        BlockFormat("nvfp4", _float("e2m1"), _float("e4m3fn"), 16, NVFP4),
    )
}

# The names that say the element where one of two is meant without it, and OCP's.
_ALSO = {"mxfp8_e4m3": "mxfp8", "mxfp6_e2m3": "mxfp6", "mxfp4_e2m1": "mxfp4"}


def block_format(what: object, argument: str = "format") -> BlockFormat:
    """The block format called `what`, or `what` itself; ValueError for anything else."""
    if isinstance(what, BlockFormat):
        return what
    found = BLOCK_FORMATS.get(_ALSO.get(what, what)) if isinstance(what, str) else None
    if found is None:
        raise ValueError(f"{argument} must be one of {', '.join((*BLOCK_FORMATS, *_ALSO))}, not {what!r}")
    return found
