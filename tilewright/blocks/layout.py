"""Who holds which element of a block, and blocks in another layout, through shared memory (on a CPU: the stack); and
reductions: within threads, then across lanes, then across warps.

Each bit of a register's, a lane's or a warp's number is a bit of a coordinate: extents are powers of two. On a GPU a
lane is a thread and a register one number of it. On a CPU a register is a vector, its elements are the lanes, and the
one thread takes the parts of all warps, one after the other. A bit of a lane's or a warp's number that is None makes no
difference: those that differ in it hold the same elements.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.ir import Value, i1, i8, i16, vec

if TYPE_CHECKING:
    from tilewright.blocks.block import Block
    from tilewright.blocks.program import Program

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


WIDEST = 16                     # bytes that a thread of a GPU moves at once


def converted(block: Block, layout: Layout) -> Registers:
    """The registers of a dense block by another layout of the same dimensions."""
    p, content = block.program, block.content
    own = content.layout
    if own == layout:
        return content
    if (own.lanes, own.warps) == (layout.lanes, layout.warps) and not content.stack:
        return Registers(layout, tuple(content.values[own.number(layout, r)] for r in range(layout.count)))
    return exchanged(p, content, layout, held_as(block.type))


def held_as(type: Any) -> Any:
    """The type of a number's bits in memory and in registers."""
    return i16 if str(type) == "bf16" else type


def exchanged(p: Program, content: Registers, layout: Layout, T: Any) -> Registers:
    """Written by one layout and read by the other: rows one after the other, 16 bytes apart from each other. On a CPU
    what is on the stack is read there."""
    k, own, E = p.ir, content.layout, i8 if T == i1 else T
    dims = sorted({place[0] for place in (*own.registers, *own.threads) if place})
    if content.stack:
        room, strides = content.stack.at, content.stack.strides
    else:
        extents = {dim: 1 << 1 + max(bit for d, bit in (x for x in (*own.registers, *own.threads) if x) if d == dim)
                   for dim in dims}
        strides, size = {}, 1
        for dim in reversed(dims):
            strides[dim] = size
            size = size * extents[dim] + (0 if p.vector or dim == dims[0] else WIDEST // E.bytes)
        room = p.room(E, size)
        p.meet(writing=True)
        with k.when(owner) if (owner := p.owner(own)) is not None else nullcontext():
            written(p, content, room, strides, E)
        p.meet(writing=False)

    def read() -> Iterator[Value]:
        for r, length in _pieces(p, layout, strides, E):
            x = loaded_from(p, room, layout, strides, r, E) if p.vector else k.load(
                room + _place(p, layout, strides, r), vec(E, length))
            for y in [x] if p.vector or length == 1 else [x[e] for e in range(length)]:
                yield y != 0 if T == i1 else y
    return p.registers(layout, T, read)


def written(p: Program, content: Registers, room: Value, strides: dict[int, int], E: Any) -> None:
    """The registers of all warps to memory."""
    k, layout = p.ir, content.layout
    with p.turns(layout):
        values = p.held(content)
        if E == i8 and values[0].type.scalar == i1:
            values = [k.cast(x, vec(i8, x.type.length)) for x in values]
        for r, length in _pieces(p, layout, strides, E):
            x = values[r] if p.vector or length == 1 else k.pack(*values[r:r + length])
            stored_at(p, room, layout, strides, r, x, None if p.vector else True)


def _pieces(p: Program, layout: Layout, strides: dict[int, int], E: Any) -> list[tuple[int, int]]:
    """(register, how many registers lie side by side in memory)."""
    last = next((dim for dim, stride in strides.items() if stride == 1), -1)
    if p.vector:
        return [(r, 1) for r in range(layout.count)]
    count = 0
    while count < len(layout.registers) and layout.registers[count] == (last, count) and E.bytes << count < WIDEST:
        count += 1
    return [(r, 1 << count) for r in range(0, layout.count, 1 << count)]


def _place(p: Program, layout: Layout, strides: dict[int, int], register: int, lane: int = 0) -> Any:
    offset: Any = sum((layout.register_offset(register, dim) + layout.lane(lane, dim))*stride
                     for dim, stride in strides.items())
    for dim, stride in strides.items():
        thread = p.coordinate(layout, dim)
        if isinstance(thread, Value):
            offset = p.memoized((layout.threads, dim, stride), thread.__mul__, stride) + offset
    return offset


def stored_at(p: Program, room: Value, layout: Layout, strides: dict[int, int], r: int, x: Value,
              near: bool | None = None) -> None:
    """A register to memory where elements are so far apart."""
    near = _near(layout, strides) if near is None else near
    if near:
        p.ir.store(room + _place(p, layout, strides, r), x, align=None if not p.vector else x.type.scalar.bytes)
        return
    for lane in range(x.type.length):
        p.ir.store(room + _place(p, layout, strides, r, lane), x[lane])


def loaded_from(p: Program, room: Value, layout: Layout, strides: dict[int, int], r: int, E: Any) -> Value:
    """The reverse, on a CPU."""
    k = p.ir
    if _near(layout, strides):
        return k.load(room + _place(p, layout, strides, r), vec(E, layout.length), align=E.bytes)
    return k.pack(*(k.load(room + _place(p, layout, strides, r, lane)) for lane in range(layout.length)))


def _near(layout: Layout, strides: dict[int, int]) -> bool:
    """Are a CPU's lanes neighbours in memory?"""
    return all(place is not None and strides.get(place[0]) == 1 and place[1] == n
               for n, place in enumerate(layout.lanes))


# ---- reductions

def reduced(block: Block, axis: int, f: Callable[[Value, Value], Value]) -> Registers:
    """f of all elements along a dimension that the block covers: what is left, that dimension gone from its layout."""
    p, content, T = block.program, block.content, block.type
    before = content.layout
    axis_of = [at for at, place in enumerate(before.warps) if place and place[0] == axis]
    parts = {at: (axis, bit) for bit, at in enumerate(axis_of)}      # each warp's part, one after the other
    left = tuple(place for place in before.registers if place[0] != axis)
    lanes = tuple(None if place and place[0] == axis else place for place in before.lanes)
    own = Layout(left, lanes if any(lanes) or not p.vector else (),
                 tuple(parts.get(at, place) for at, place in enumerate(before.warps)), p.vector)

    def registers() -> list[Value]:
        values = _within_threads(before, p.held(content), axis, f)
        if p.vector and lanes != before.lanes:
            return [_across_vector(p, x, f) for x in values]
        for bit, place in enumerate(before.lanes):
            if place and place[0] == axis:
                values = [f(x, p.ir.lane_xor(x, 1 << bit)) for x in values]
        return values
    registers_left = p.registers(own, T, registers)
    if not parts:
        return registers_left
    warps = tuple(None if at in parts else place for at, place in enumerate(before.warps))
    wanted = replace(own, registers=(*left, *parts.values()), warps=warps if any(warps) or not p.vector else ())
    every = exchanged(p, registers_left, wanted, T)
    return p.registers(replace(wanted, registers=left), T, lambda: _within_threads(wanted, p.held(every), axis, f))


def _within_threads(layout: Layout, values: Sequence[Value], axis: int, f: Any) -> list[Value]:
    """By halves."""
    places, reduced = [*layout.registers], [*values]
    while (at := next((n for n, place in enumerate(places) if place[0] == axis), None)) is not None:
        reduced = [f(reduced[r], reduced[r | 1 << at]) for r in range(len(reduced)) if not r >> at & 1]
        del places[at]
    return reduced


def _across_vector(p: Program, x: Value, f: Any) -> Value:
    while x.type.length > 2:
        half = x.type.length // 2
        x = f(p.ir.shuffle(x, x, range(half)), p.ir.shuffle(x, x, range(half, 2*half)))
    return f(x[0], x[1])
