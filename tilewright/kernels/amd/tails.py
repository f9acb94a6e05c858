"""The last 8 of the 24 bytes that 32 elements of 6 bits take: in LDS they lie apart from the 16 before.

So a lane reads its elements at once as 16 bytes and 8, both without conflicts: the heads lie as rows of 4-bit elements
do, and tails of the same 32 elements of k row after row. A phase of a wave's read of 8 bytes (targets.banks) has 32
rows, or 16 rows of two blocks that follow each other: of every other block, rows 0 to 15 and 16 to 31 change places.
"""
from __future__ import annotations

from tilewright.ir import Kernel, Value, i32, vec

CHUNK, HEAD = 24, 16                            # bytes of a block, and of its head
TAIL = vec(i32, 2)


def moved(row: Value, block: int | Value) -> Value:
    """Where a row's tail is among those of its block."""
    return row ^ block % 2 * 16


class Tails:
    """Of EXTENT rows of BLOCKS blocks of 32 elements, at an offset in the tile."""

    def __init__(self, k: Kernel, EXTENT: int, BLOCKS: int, offset: int) -> None:
        self.k, self.EXTENT, self.BLOCKS, self.offset = k, EXTENT, BLOCKS, offset
        self.SIZE = EXTENT*BLOCKS*TAIL.bytes

    def place(self, smem: Value, row: Value, block: Value) -> Value:
        return smem + ((block*self.EXTENT + moved(row, block))*TAIL.bytes + self.offset)

    def part(self, first: Value, lane: Value, ROWS: int, GROUPS: int) -> None:
        """As LdsTile.part."""
        self.ROWS, self.GROUPS = ROWS, GROUPS
        group, row = lane // ROWS, lane % ROWS
        self.starts = [(group*self.EXTENT + first + moved(row + tile*ROWS, group))*TAIL.bytes + self.offset
                       for tile in range(32 // ROWS)]

    def read(self, smem: Value, tile: int, step: int) -> Value:
        """Of the block that the lane's group multiplies in this instruction."""
        start = self.starts[tile % len(self.starts)]
        far = (step*self.GROUPS*self.EXTENT + tile // len(self.starts) * 32) * TAIL.bytes
        return self.k.load((smem + (start + far)).as_(i32), TAIL)
