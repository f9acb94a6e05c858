"""A matrix of a matrix instruction in the registers of a wave's lanes: which element is where, and the way from
registers to the matrix and back."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.forks import cached_property
from tilewright.formats import get, unpack
from tilewright.ir.types import Type

Layout = Callable[[Any, Any], tuple[Any, Any]]          # (lane, element) → (row, column)
Place = Callable[[Any, Any], Any]                       # (lane, element) → which of several matrices
# Formats of operands that are f32 of which 19 bits count: AMD rounds them, to nearest; NVIDIA drops the other 13.
ROUNDED = {"xf32": "f32", "tf32": "f32"}


@dataclass(frozen=True, eq=False)
class Fragment:
    """A matrix, or `blocks` of them, spread over a wave: every lane has `elements` of it, side by side in `type`.

    Calling it gives (row, column) of an element: of numbers, arrays or values of a kernel.
    """
    format: str                 # "f16", "e4m3fn": FORMATS has it; or one of ROUNDED
    rows: int
    columns: int
    blocks: int
    elements: int
    type: Type                  # of all that one lane holds
    layout: Layout
    block: Place
    wave: int = 64              # lanes

    def __call__(self, lane: Any, element: Any) -> tuple[Any, Any]:
        return self.layout(lane, element)

    @cached_property
    def bits(self) -> int: return get(ROUNDED.get(self.format, self.format)).bits

    @property
    def registers(self) -> int:
        """32-bit registers of a lane."""
        return self.type.bytes // 4

    def bits_of(self, element: int) -> list[tuple[int, int, int]]:
        """Where an element is in its lane, lowest bits first: (register, first bit, last bit). Some of 6 bits are in
        two registers, and those of f64 are in pairs."""
        first, end = element * self.bits, (element + 1) * self.bits
        return [(r, max(first - 32*r, 0), min(end - 32*r, 32) - 1) for r in range(first // 32, (end - 1)//32 + 1)]

    @cached_property
    def places(self) -> tuple[Any, Any, Any]:
        """Block, row and column of every (lane, element): three arrays [lanes, elements]."""
        lane, element = np.arange(self.wave)[:, None], np.arange(self.elements)[None]
        shape = (self.wave, self.elements)
        return tuple(np.broadcast_to(x, shape) for x in (self.block(lane, element), *self.layout(lane, element)))  # type: ignore[return-value]

    @cached_property
    def where(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        """(block, row, column) → (lane, element): the other way. ValueError unless each element is in one place."""
        block, row, column = (x.ravel().tolist() for x in self.places)
        places = {place: divmod(at, self.elements) for at, place in enumerate(zip(block, row, column))}
        everything = self.blocks * self.rows * self.columns
        if len(places) != self.wave * self.elements or len(places) != everything or not all(
                0 <= b < self.blocks and 0 <= r < self.rows and 0 <= c < self.columns for b, r, c in places):
            raise ValueError(f"the layout does not cover {self.blocks} times {self.rows} x {self.columns} once")
        return places

    def matrix(self, held: Any) -> Any:
        """The matrices [groups, blocks, rows, columns] of which these are the lanes' registers: [groups, lanes], or
        [length, groups, lanes] of a vector. In f64, which holds every format but i64 exactly."""
        groups = held.shape[-2]
        words = np.ascontiguousarray(np.moveaxis(held, 0, -1) if self.type.length > 1 else held[..., None])
        octets = words.view(np.uint8).reshape(groups, self.wave, -1)
        numbers = unpack(octets, ROUNDED.get(self.format, self.format), self.elements)
        if self.format == "xf32":
            numbers = to_19_bits(numbers)
        elif self.format == "tf32":
            numbers = truncated(numbers)
        result = np.empty((groups, self.blocks, self.rows, self.columns))
        block, row, column = self.places
        result[:, block, row, column] = numbers
        return result

    def lanes(self, matrix: Any) -> Any:
        """The registers that hold these matrices."""
        block, row, column = self.places
        numbers = np.ascontiguousarray(matrix[:, block, row, column].astype(get(self.format).dtype))
        words = numbers.view(self.type.scalar.numpy)
        return np.moveaxis(words, -1, 0) if self.type.length > 1 else words[..., 0]


def truncated(x: Any) -> Any:
    """tf32 of f32: the lowest 13 bits are dropped."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def tf32(x: Any) -> Any:
    """f32 as copies by a tensor map of type TFLOAT32 round them, subnormal numbers too, as seen on an H200; a NaN is
    0x7FFFE000."""
    return np.where(np.isnan(x), np.uint32(0x7FFFE000).view(np.float32), to_19_bits(x))


def to_19_bits(x: Any) -> Any:
    """f32 rounded to 1 + 8 + 10 bits, to nearest, ties to even; inf and nan stay what they are."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)
