"""Blocks in another layout, through shared memory (on a CPU: the stack), and reductions: within threads, then across
lanes, then across warps.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.blocks.layout import Layout
from tilewright.ir import Value, i1, i8, vec

if TYPE_CHECKING:
    from tilewright.blocks.block import Block
    from tilewright.blocks.program import Program

WIDEST = 16                     # bytes that a thread of a GPU moves at once


def converted(block: Block, layout: Layout) -> tuple[Value, ...]:
    """The registers of a dense block by another layout of the same dimensions."""
    own, values = block.content.layout, block.content.values
    if own == layout:
        return tuple(values)
    if (own.lanes, own.warps) == (layout.lanes, layout.warps):
        return tuple(values[own.number(layout, r)] for r in range(layout.count))
    return tuple(exchanged(block.program, values, own, layout))


def exchanged(p: Program, values: Any, own: Layout, layout: Layout) -> list[Value]:
    """Written by one layout and read by the other: rows one after the other, 16 bytes apart from each other."""
    k, T = p.ir, values[0].type.scalar
    dims = sorted({place[0] for place in (*own.registers, *own.threads) if place})
    extents = {dim: 1 << 1 + max(bit for d, bit in (x for x in (*own.registers, *own.threads) if x) if d == dim)
               for dim in dims}
    E = i8 if T == i1 else T
    strides, size = {}, 1
    for dim in reversed(dims):
        strides[dim] = size
        size = size * extents[dim] + (0 if p.vector or dim == dims[0] else WIDEST // E.bytes)
    room = p.room(E, size)
    if T == i1:
        values = [k.cast(x, vec(i8, x.type.length)) for x in values]
    p.meet(writing=True)
    with k.when(owner) if (owner := p.owner(own)) is not None else nullcontext():
        for r, at, length in _pieces(p, own, dims, E):
            x = values[r] if p.vector or length == 1 else k.pack(*values[r:r + length])
            _store(p, room, own, strides, r, x, at)
    p.meet(writing=False)
    found: list[Value] = []
    for r, at, length in _pieces(p, layout, dims, E):
        found += _load(p, room, layout, strides, r, length, E, at)
    return [x != 0 for x in found] if T == i1 else found


def _pieces(p: Program, layout: Layout, dims: list[int], E: Any) -> list[tuple[int, bool, int]]:
    """(register, whether lanes are neighbours, how many registers lie side by side in memory)."""
    last = dims[-1] if dims else -1
    if p.vector:
        near = layout.lanes == tuple((last, bit) for bit in range(len(layout.lanes)))
        return [(r, near, 1) for r in range(layout.count)]
    count = 0
    while count < len(layout.registers) and layout.registers[count] == (last, count) and E.bytes << count < WIDEST:
        count += 1
    return [(r, True, 1 << count) for r in range(0, layout.count, 1 << count)]


def _place(p: Program, layout: Layout, strides: dict[int, int], register: int, lane: int = 0) -> Any:
    found: Any = sum((layout.at(register, dim) + layout.lane(lane, dim))*stride for dim, stride in strides.items())
    for dim, stride in strides.items():
        thread = p.coordinate(layout, dim)
        if isinstance(thread, Value):
            found = p.kept((layout.threads, dim, stride), thread.__mul__, stride) + found
    return found


def _store(p: Program, room: Value, layout: Layout, strides: dict[int, int], r: int, x: Value, near: bool) -> None:
    if near:
        p.ir.store(room + _place(p, layout, strides, r), x, align=None if not p.vector else x.type.scalar.bytes)
        return
    for lane in range(x.type.length):
        p.ir.store(room + _place(p, layout, strides, r, lane), x[lane])


def _load(p: Program, room: Value, layout: Layout, strides: dict[int, int], r: int, length: int, E: Any, near: bool
          ) -> list[Value]:
    k = p.ir
    if not near:
        return [k.pack(*(k.load(room + _place(p, layout, strides, r, lane)) for lane in range(layout.length)))]
    length = layout.length if p.vector else length
    x = k.load(room + _place(p, layout, strides, r), vec(E, length), align=E.bytes if p.vector else None)
    return [x] if p.vector or length == 1 else [x[e] for e in range(length)]


# ---- reductions

def reduced(block: Block, axis: int, f: Callable[[Value, Value], Value]) -> tuple[Layout, list[Value]]:
    """f of all elements along a dimension that the block covers: what is left, that dimension gone from its layout."""
    p, layout, values = block.program, block.content.layout, list(block.content.values)
    layout, values = _within_threads(layout, values, axis, f)
    lanes = list(layout.lanes)
    if p.vector and any(place and place[0] == axis for place in lanes):
        values, lanes = [_across_vector(p, x, f) for x in values], []
    for bit, place in enumerate(lanes):
        if place and place[0] == axis:
            values = [f(x, p.ir.lane_xor(x, 1 << bit)) for x in values]
            lanes[bit] = None
    layout = replace(layout, lanes=tuple(lanes))
    across = [at for at, place in enumerate(layout.warps) if place and place[0] == axis]
    if across:                          # each warp's part becomes a register
        parts = {at: (axis, bit) for bit, at in enumerate(across)}
        own = replace(layout, warps=tuple(parts.get(at, place) for at, place in enumerate(layout.warps)))
        wanted = replace(layout, registers=(*layout.registers, *parts.values()),
                         warps=tuple(None if at in parts else place for at, place in enumerate(layout.warps)))
        layout, values = _within_threads(wanted, exchanged(p, values, own, wanted), axis, f)
    return layout, values


def _within_threads(layout: Layout, values: list[Value], axis: int, f: Any) -> tuple[Layout, list[Value]]:
    """By halves."""
    while (at := next((n for n, place in enumerate(layout.registers) if place[0] == axis), None)) is not None:
        pairs = [r for r in range(len(values)) if not r >> at & 1]
        values = [f(values[r], values[r | 1 << at]) for r in pairs]
        layout = replace(layout, registers=layout.registers[:at] + layout.registers[at + 1:])
    return layout, values


def _across_vector(p: Program, x: Value, f: Any) -> Value:
    while x.type.length > 2:
        half = x.type.length // 2
        x = f(p.ir.shuffle(x, x, range(half)), p.ir.shuffle(x, x, range(half, 2*half)))
    return f(x[0], x[1])
