"""A or B of a product in shared memory (of a CPU: on the stack): rows of k, or of rows of A and columns of B, as the
products read them, swizzled where ldmatrix does.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilewright.blocks.block import Block, cast
from tilewright.blocks.exchange import held_as, written
from tilewright.blocks.layout import Layout
from tilewright.ir import Value, f32, i8, i32
from tilewright.kernels.nvidia.matrices import arranged
from tilewright.kernels.nvidia.swizzle import Swizzle

if TYPE_CHECKING:
    from tilewright.blocks.program import Program

WIDEST, PANEL = 16, 128         # bytes of one access, and of a row that wgmma takes
ALIGN = 1024                    # bytes: where an operand may begin


class Operand:
    """At `at` in rows of `row` elements. `inner_k`: k is contiguous. `how`: rows are "padded" by `pad` elements, or
    swizzled for "ldmatrix", or in panels for "wgmma", one after the other: rows of up to 128 bytes, which the
    instruction's descriptor calls the swizzle."""

    def __init__(self, p: Program, block: Block, of_b: bool, inner_k: bool, how: str, pad: int = 0) -> None:
        self.p, self.of_b, self.inner_k, self.T = p, of_b, inner_k, held_as(block.type)
        self.inner = int(inner_k) if not of_b else int(not inner_k)             # the dimension that is contiguous
        self.CTA_K = block.shape[0 if of_b else 1]
        rows, extent, self.how = block.shape[1 - self.inner], block.shape[self.inner], how
        options: dict[str, Any] = {"PAD": pad}
        if how == "ldmatrix":
            options = arranged(self.T.bits, inner_k, of_b)
        elif how == "wgmma":
            options = {"PAD": min(PANEL // self.T.bytes - extent, 0), "BITS": (0, 1, 2)}
        self.row, self.rows = extent + options["PAD"], rows
        self.size = rows * max(extent, self.row)
        self.swizzle = Swizzle(self.row, max(WIDEST // self.T.bytes, 1), options.get("BITS", ()),
                               options.get("FIRST", 0))
        self.at: Value

    def write(self, block: Block) -> None:
        """Write a block to this operand's memory. All threads that hold an element write it."""
        k, p, layout = self.p.ir, self.p, block.content.layout
        if p.vector:
            written(p, block.content, self.at, {1 - self.inner: self.row, self.inner: 1}, self.T)
            return
        values = block.content.values
        count = 0
        while count < len(layout.registers) and layout.registers[count] == (self.inner, count) and (
                2 << count) * self.T.bytes <= WIDEST:
            count += 1
        step = 1 << count
        owner = p.owner(layout)
        for r, place in self.places(layout, step):
            k.store(place, values[r] if step == 1 else k.pack(*values[r:r + step]), mask=owner)

    def places(self, layout: Layout, step: int) -> Iterator[tuple[int, Value]]:
        """Where each run of so many registers is."""
        row, column = (_value(self.p, layout, dim) for dim in (1 - self.inner, self.inner))
        apart = [(layout.register_offset(r, 1 - self.inner), layout.register_offset(r, self.inner))
                 for r in range(0, layout.count, step)]
        if self.how == "wgmma":             # a column of a later panel is one of later rows
            row, column = row + column // self.row * self.rows, column % self.row
            apart = [(i + j // self.row * self.rows, j % self.row) for i, j in apart]
        swizzled = self.swizzle.places(self.p.ir, row, column, apart)
        for r, at in zip(range(0, layout.count, step), apart):
            value, constant = swizzled[at]
            yield r, self.at + value + constant


def stored(p: Program, blocks: tuple[Block, Block], along_k: tuple[bool, bool], *, wide: bool, how: str, pad: int
           ) -> list[Operand]:
    """Both operands, written by the threads that hold them and ready to be read. `along_k` for each: whether k is
    contiguous there. `wide`: numbers of 16 bits as f32, of 8 as i32."""
    if wide:
        blocks = tuple(cast(x, i32 if x.type == i8 else f32) for x in blocks)           # type: ignore[assignment]
    operands = [p.loads.stages.get(x.content.load) or Operand(p, x, of_b == 1, along, how, pad)
             for of_b, (x, along) in enumerate(zip(blocks, along_k))]
    own = [(x, block) for x, block in zip(operands, blocks) if block.content.load not in p.loads.stages]
    if not own:
        return operands
    if p.vector:
        for x, block in [*own]:
            stack = block.content.stack
            if stack and stack.strides == {1 - x.inner: x.row, x.inner: 1}:         # it is there already
                x.at = stack.at
                own.remove((x, block))
            else:
                x.at = p.ir.local(f"operand{len(p.ir.function.arrays)}", x.size, x.T)
    else:
        sizes = [-(-x.size * x.T.bytes // ALIGN) * ALIGN for x, _ in own]
        room = p.room(i8, sum(sizes))
        for (x, _), start in zip(own, (0, sizes[0])):
            x.at = (room + start).as_(x.T)
    p.meet(writing=True)
    for x, block in own:
        x.write(block)
    if how == "wgmma":
        p.ir.fence_async()
    p.meet(writing=False)
    return operands


def contiguous(layout: Layout) -> int:
    """The dimension along which a thread, or else lanes have neighbours."""
    near = [place for place in (*layout.registers[:1], *layout.lanes) if place and place[1] == 0]
    return near[0][0] if near else 1


def _value(p: Program, layout: Layout, dim: int) -> Value:
    coordinate = p.coordinate(layout, dim)
    return coordinate if isinstance(coordinate, Value) else p.ir.constant(i32, coordinate)
