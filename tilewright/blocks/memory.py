"""Loads and stores of blocks: who moves which elements, so that lanes go along what is contiguous, in the widest
accesses that alignment and masks allow.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any

from tilewright.blocks.block import Addresses, Block, _alike, cast, elementwise, promoted, shape_of
from tilewright.blocks.index import FAR
from tilewright.blocks.layout import Layout, Registers, held_as
from tilewright.blocks.tensor import Operand
from tilewright.ir import Value, i1, i32, vec

if TYPE_CHECKING:
    from tilewright.blocks.program import Program

WIDEST, SECTOR = 16, 32         # bytes that a thread moves at once, and that move together


class Access:
    """A block of pointers, and the conditions under which they are used."""

    def __init__(self, pointers: Block, mask: Any, what: str) -> None:
        if not isinstance(pointers, Block) or not isinstance(pointers.content, Addresses):
            described = pointers.type if isinstance(pointers, Block) else repr(pointers)
            raise TypeError(f"{what} takes pointers, made of a parameter and offsets, not {described}")
        p = self.p = pointers.program
        self.mask = None if mask is None else p.block(mask)
        if self.mask is not None and self.mask.type != i1:
            raise TypeError(f"the mask of a {what} is a block of conditions, such as offsets < n, not {self.mask.type}")
        self.shape = shape_of(f"{what} with a mask", pointers, *(() if self.mask is None else (self.mask,)))
        self.pointers = pointers.broadcast(self.shape)
        self.mask = None if self.mask is None else self.mask.broadcast(self.shape)
        self.T = pointers.type.element
        self.base, self.offset, self.align = self.pointers.content.base, self.pointers.content.offset, \
            self.pointers.content.align

    @property
    def contiguous(self) -> int | None:
        """The dimension along which neighbours are neighbours in memory."""
        for dim, term in self.offset.terms.items():
            if not term.curve and isinstance(term.stride, int) and term.stride == 1 and self.shape[dim] > 1:
                return dim
        return None

    def side_by_side(self) -> int:
        """Elements that one access of a GPU's thread may have."""
        along, bytes = self.contiguous, self.T.bytes
        if along is None:
            return 1
        count = gcd(FAR, self.offset.multiple, max(self.align // bytes, 1), self.shape[along])
        for dim, term in self.offset.terms.items():
            if dim != along:
                count = gcd(count, 1 if term.curve else term.multiple)
        if self.mask is not None:
            count = gcd(count, min(x.uniform(along) for x in self.mask.content)
                        if isinstance(self.mask.content, tuple) else 1)
        return min(count & -count, WIDEST // bytes)

    def layout(self, shape: Any = None) -> Layout:
        return self.p.blocked(self.shape if shape is None else shape, self.T, self.contiguous, self.side_by_side())

    def address(self, layout: Layout, r: int, lane: int = 0) -> Value:
        # The shared part first: the rest is the same in all rounds of a loop
        shared = self.p.memoized((self.base.id, self.offset), self.base.__add__, self.offset.scalar)
        return shared + replace(self.offset, scalar=0).evaluate(self.p, layout, r, lane)

    def length(self, layout: Layout) -> int:
        """Registers that one access moves in this layout."""
        along, count = self.contiguous, 0
        most = self.side_by_side()
        while count < len(layout.registers) and layout.registers[count] == (along, count) and 2 << count <= most:
            count += 1
        return 1 << count


def load(pointers: Any, mask: Any = None, other: Any = None) -> Block:
    """The elements at these addresses; where the mask is false nothing is read, and the element is `other`, or 0."""
    access = Access(pointers, mask, "load")
    p, k, T = access.p, access.p.ir, held_as(access.T)
    dims = access.pointers.dims | (access.mask.dims if access.mask is not None else set())
    layout = access.layout(tuple(extent if dim in dims else 1 for dim, extent in enumerate(access.shape)))
    number = p.loads.number(access, layout, other)
    if number in p.loads.stages:
        if p.ahead:
            _copy(access, layout, p.loads.stages[number])
        return Block(p, access.shape, access.T, Registers(layout, (), number))
    if p.ahead:
        return p.nothing(access.shape, access.T, layout)
    mask = None if access.mask is None else access.mask.laid(layout)

    def loaded() -> Iterator[Value]:
        masks, step = None if mask is None else mask.values(layout), 1 if p.vector else access.length(layout)
        for r in range(0, layout.count, step):
            condition = None if masks is None else masks[r]
            if p.vector and layout.length > 1:
                yield _vector(access, layout, r, condition, T)
            else:
                x = k.load(access.address(layout, r), vec(T, step), mask=condition)
                yield from [x] if step == 1 else [x[e] for e in range(step)]
    block = p.new_block(access.shape, access.T, layout, loaded, number)
    if access.mask is None or other is None or (isinstance(other, (int, float)) and other == 0):
        return block
    wide, = promoted(p, "other=", block)
    default = cast(p.block(other), wide.type)
    return cast(chosen(p, access.shape, [x.broadcast(access.shape) for x in (access.mask, wide, default)]), access.T)


def _copy(access: Access, layout: Layout, operand: Operand) -> None:
    """Start to copy the block to shared memory, where zeros are written for what is masked."""
    p, k, step = access.p, access.p.ir, access.length(layout)
    bytes, masks = step * access.T.bytes, None if access.mask is None else access.mask.values(layout)
    with k.when(owner) if (owner := p.owner(layout)) is not None else nullcontext():
        for r, place in operand.places(layout, step):
            valid = None if masks is None else k.select(masks[r], k.constant(i32, bytes), 0)
            k.cp_async(place, access.address(layout, r), bytes, valid)


def _vector(access: Access, layout: Layout, r: int, mask: Value | None, T: Any) -> Value:
    """Load a CPU's vector, or its elements one by one where they are no neighbours."""
    k, near = access.p.ir, access.contiguous is not None and layout.across(access.contiguous)
    if near:
        if mask is not None and mask.type.length == 1:
            mask = k.broadcast(mask, layout.length)
        return k.load(access.address(layout, r), vec(T, layout.length), align=T.bytes, mask=mask)
    if not any(layout.across(dim) for dim in access.offset.terms):
        one = k.load(access.address(layout, r), T, mask=mask if mask is not None and mask.type.length == 1 else None)
        return one if mask is None or mask.type.length == 1 else k.select(
            mask, k.broadcast(one, layout.length), k.constant(vec(T, layout.length), 0))
    conditions = [None] * layout.length if mask is None else [
        mask if mask.type.length == 1 else mask[lane] for lane in range(layout.length)]
    return k.pack(*(k.load(access.address(layout, r, lane), T, mask=conditions[lane]) for lane in range(layout.length)))


def store(pointers: Any, value: Any, mask: Any = None) -> None:
    """Elements to these addresses, in the type that the pointers have, where the mask is true."""
    access = Access(pointers, mask, "store")
    p, k, T = access.p, access.p.ir, access.T
    p.loads.written.add(access.base.id)
    if p.ahead:
        return
    block = value if isinstance(value, Block) else p.constant(value, T)
    if shape_of("store", access.pointers, block) != access.shape:
        raise ValueError(f"store takes a block of the pointers' shape, {list(access.shape)}, or one that can be "
                         f"broadcast to it, not {list(block.shape)}")
    block = cast(block, T).broadcast(access.shape)
    layout = access.layout()
    own = block.content.layout if isinstance(block.content, Registers) and block.dims == {
        dim for dim, extent in enumerate(access.shape) if extent > 1} else None
    if own is not None and (p.vector or _run(own, access.contiguous) * T.bytes >= SECTOR):
        layout = own
    block, mask = block.laid(layout), None if access.mask is None else access.mask.laid(layout)
    with p.turns(layout), k.when(owner) if (owner := p.owner(layout)) is not None else nullcontext():
        values, masks = block.values(layout), None if mask is None else mask.values(layout)
        step = 1 if p.vector else access.length(layout)
        for r in range(0, layout.count, step):
            condition = None if masks is None else masks[r]
            if p.vector and layout.length > 1:
                _store_vector(access, layout, r, values[r], condition)
            else:
                x = values[r] if step == 1 else k.pack(*values[r:r + step])
                k.store(access.address(layout, r), x, mask=condition)


def _run(layout: Layout, along: int | None) -> int:
    """Neighbours along a dimension that one instruction of a warp moves together."""
    bits = {place[1] for place in (*layout.registers, *layout.lanes) if place and place[0] == along}
    count = 0
    while count in bits:
        count += 1
    return 1 << count


def _store_vector(access: Access, layout: Layout, r: int, x: Value, mask: Value | None) -> None:
    k = access.p.ir
    if x.type.length == 1:
        x = k.broadcast(x, layout.length)
    if access.contiguous is not None and layout.across(access.contiguous):
        if mask is not None:
            mask, = [_alike(k, [mask, k.constant(vec(i1, layout.length), True)], lambda m, _: m)]
        k.store(access.address(layout, r), x, align=x.type.scalar.bytes, mask=mask)
        return
    for lane in range(layout.length):
        k.store(access.address(layout, r, lane), x[lane],
                mask=None if mask is None else mask if mask.type.length == 1 else mask[lane])


def chosen(p: Program, shape: Any, blocks: list[Block]) -> Block:
    """The second block where the first one, of conditions, holds, else the third."""
    return elementwise(p, shape, p.ir.select, blocks, blocks[1].type)
