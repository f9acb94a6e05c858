"""Who holds which element of a block: each bit of a register's, a lane's or a warp's number is a bit of a coordinate.

Extents are powers of two, so that a coordinate is made of bits. On a GPU a lane is a thread and a register one number
of it. On a CPU a register is a vector, its elements are the lanes, and the one thread takes the parts of all warps, one
after the other. A bit of a lane's or a warp's number that is None makes no difference: those that differ in it hold the
same elements.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.ir import Value

Bit = tuple[int, int]               # dimension, and which bit of the coordinate
Shape = tuple[int, ...]
AT_ONCE = 4                         # 2^4 vectors of a block are in a CPU's registers at once


def bits(extent: int) -> int: return extent.bit_length() - 1


@dataclass(frozen=True)
class Layout:
    """Lowest bits first."""
    registers: tuple[Bit, ...]
    lanes: tuple[Bit | None, ...]
    warps: tuple[Bit | None, ...] = ()
    vector: bool = False            # a CPU's: lanes are elements of a vector, or none where all would be the same

    @property
    def count(self) -> int:
        """Registers of a thread."""
        return 1 << len(self.registers)

    @property
    def length(self) -> int:
        """Lanes: on a CPU, elements of a register."""
        return 1 << len(self.lanes)

    @property
    def threads(self) -> tuple[Bit | None, ...]:
        return self.lanes + self.warps

    def register_offset(self, register: int, dim: int) -> int:
        """The part of a coordinate that a register's number decides."""
        return sum((register >> n & 1) << bit for n, (d, bit) in enumerate(self.registers) if d == dim)

    def lane(self, lane: int, dim: int) -> int:
        """The part of a coordinate that a lane of a CPU's vector decides."""
        if not self.vector:
            return 0
        return sum((lane >> n & 1) << place[1] for n, place in enumerate(self.lanes) if place and place[0] == dim)

    def number(self, other: Layout, register: int) -> int:
        """The register with the coordinates of a register of another layout."""
        return sum((other.register_offset(register, dim) >> bit & 1) << n
                   for n, (dim, bit) in enumerate(self.registers))

    def runs(self, dim: int) -> Iterator[tuple[int, int, int]]:
        """The runs of bits of the thread's number, on a CPU of the warp's: (first bit, how many bits, first bit of the
        coordinate) of each run of neighbours."""
        merged: list[list[int]] = []
        for at, place in enumerate(self.warps if self.vector else self.threads):
            if place is None or place[0] != dim:
                continue
            if merged and merged[-1][0] + merged[-1][1] == at and merged[-1][2] + merged[-1][1] == place[1]:
                merged[-1][1] += 1
            else:
                merged.append([at, 1, place[1]])
        yield from ((first, count, bit) for first, count, bit in merged)

    def across(self, dim: int) -> bool:
        """Do lanes differ in this coordinate?"""
        return any(place is not None and place[0] == dim for place in self.lanes)

    @property
    def idle(self) -> list[int]:
        """Bits of the thread's number that make no difference."""
        return [at for at, place in enumerate(self.threads) if place is None]

    def only(self, dims: Iterable[int]) -> Layout:
        """The layout of a block that is constant along all other dimensions."""
        kept = set(dims)

        def part(places: tuple[Bit | None, ...]) -> tuple[Bit | None, ...]:
            return tuple(place if place is not None and place[0] in kept else None for place in places)
        lanes, warps = (x if any(x) or not self.vector else () for x in (part(self.lanes), part(self.warps)))
        return Layout(tuple(place for place in self.registers if place[0] in kept), lanes, warps, self.vector)

    def moved(self, to: Callable[[int], int]) -> Layout:
        """With other numbers for the dimensions."""
        def part(places: tuple[Bit | None, ...]) -> tuple[Bit | None, ...]:
            return tuple(None if place is None else (to(place[0]), place[1]) for place in places)
        return Layout(tuple((to(dim), bit) for dim, bit in self.registers), part(self.lanes), part(self.warps),
                      self.vector)


def blocked(shape: Shape, order: tuple[int, ...], side_by_side: int, lanes: int, warps: int, vector: bool) -> Layout:
    """Dealt out along the dimensions in this order: `side_by_side` elements to a register's neighbours, then one such
    run to each of 2^lanes lanes, then to 2^warps warps, and what is left to further registers. A CPU's lanes are along
    the first dimension alone, then come registers, and warps for all the rest."""
    left = {dim: list(range(bits(shape[dim]))) for dim in order}

    def take(count: int, dims: tuple[int, ...] = order) -> list[Bit]:
        bits: list[Bit] = []
        for dim in dims:
            while left[dim] and len(bits) < count:
                bits.append((dim, left[dim].pop(0)))
        return bits

    def filled(count: int) -> tuple[Bit | None, ...]:
        places: list[Bit | None] = [*take(count)]
        return (*places, *[None] * (count - len(places)))
    if vector:
        across = tuple(take(lanes, order[:1]))
        return Layout(tuple(take(AT_ONCE)), across, tuple(take(64)), True)
    near = take(bits(side_by_side), order[:1])
    threads = filled(lanes), filled(warps)
    return Layout((*near, *take(64)), *threads)


@dataclass(frozen=True, eq=False)
class Registers:
    """A thread's registers of a block; numbers of bf16 are i16. `load`: by which load of a loop (`loops.Loads`)."""
    layout: Layout
    values: Sequence[Value] = ()
    load: int | None = None
    stack: Stack | None = None          # of a CPU, where there are several warps: where all registers are


@dataclass(frozen=True, eq=False)
class Stack:
    """Where elements are, by how far apart they are along each dimension."""
    at: Value
    strides: dict[int, int]

    def moved(self, to: Callable[[int], int]) -> Stack:
        return Stack(self.at, {to(dim): stride for dim, stride in self.strides.items()})
