"""Tiles of attention's operands on their way to shared memory by `cp.async`, and from there to registers by `ldmatrix`.

A tile lies as for `wgmma` (wgmma_tiles.SmemTile): blocks of at most 128 contiguous bytes by all rows, in which the
16-byte piece c of row r is the piece c ^ r % 8 (of 64 and 32 bytes: of the line of 128 bytes that rows share). So the
eight rows of a matrix that `ldmatrix` reads, and eight pieces that neighbouring threads copy, have all banks once.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from tilewright.ir import Kernel, Value, i32
from tilewright.kernels.nvidia.wgmma_tiles import SmemTile

PIECE, LINE, PERIOD = 16, 128, 8        # bytes of a copy; of all banks; rows after which the swizzle repeats


def moved(tile: SmemTile, row: Value) -> Value:
    """What numbers of pieces in this row of a block are changed by (xor)."""
    return row >> (LINE // tile.SWIZZLE).bit_length() - 1 & tile.SWIZZLE // PIECE - 1


class Copies:
    """A tile that all threads copy, pieces of 16 bytes each."""

    def __init__(self, k: Kernel, tile: SmemTile, t: Value, THREADS: int) -> None:
        self.k, self.tile, self.THREADS = k, tile, THREADS
        self.ACROSS = tile.SWIZZLE // PIECE                 # threads side by side in a row of a block
        self.ROWS = tile.BLOCK // tile.SWIZZLE
        self.piece, self.row, self.block = t % self.ACROSS, t // self.ACROSS, k.constant(i32, 0)
        if THREADS // self.ACROSS % self.ROWS == 0:
            self.block = self.row // self.ROWS
            self.row = self.row - self.block*self.ROWS

    def request(self, smem: Value, source: Callable[[Value], Value], there: Callable[[Value], Value],
                ld: Value | None = None, limit: Value | None = None) -> None:
        """Start copies to the tile at `smem`. source(row): where that row begins in memory; there(row): whether there
        is one: else it becomes zeros. `ld`: elements from a row to the next, if they are evenly apart. `limit`: bytes
        of a row that are there, a multiple of 16."""
        k, tile, apart = self.k, self.tile, self.THREADS // self.ACROSS
        BLOCKS = tile.BYTES // tile.BLOCK
        places: dict[int, tuple[Value, Value]] = {}
        for first in range(0, self.ROWS*BLOCKS, apart):     # of the rows of all blocks, one after another
            number, below = divmod(first, self.ROWS)
            if self.ROWS % apart == 0 or apart % self.ROWS == 0:        # blocks and rows are constants apart
                block, row = self.block + number, self.row + below
            else:
                at = self.row + first
                block = at // self.ROWS
                row, below = at - block*self.ROWS, first
            if below not in places:                         # no register for each multiple of ld
                before = places.get(below - apart) if self.ROWS % apart == 0 else None
                begin = source(row) if ld is None or before is None else before[0] + ld*apart
                places[below] = begin, there(row)
            begin, inside = places[below]
            along = self.piece*PIECE + block*tile.SWIZZLE
            to = smem + (block*tile.BLOCK + row*tile.SWIZZLE + (self.piece ^ moved(tile, row))*PIECE)
            inside = inside if limit is None else inside & (along < limit)
            complete = first + apart <= self.ROWS*BLOCKS
            with nullcontext() if complete else k.when(block < BLOCKS):
                k.cp_async(to, begin + along // tile.ITEM, PIECE, k.select(inside, k.constant(i32, PIECE), 0))


class Matrices:
    """Fragments of a tile, sixteen rows and 32 bytes of them at a time: what one `ldmatrix` brings.

    OF_A        registers in the order of an instruction's A: rows 0 to 7, 8 to 15, then the second 16 bytes of both;
                else of B for two instructions: both halves of 32 bytes of the first eight rows, then of the others
    TRANSPOSED  rows are steps of k, of 16 bits: B for two instructions, of eight columns each
    """

    def __init__(self, k: Kernel, tile: SmemTile, lane: Value, first: Value | None = None, OF_A: bool = False,
                 TRANSPOSED: bool = False) -> None:
        """`first`: a multiple of 16, the row that counts as the first one."""
        self.k, self.tile, self.TRANSPOSED = k, tile, TRANSPOSED
        matrix, r = lane // 8, lane % 8
        below, along = (matrix % 2, matrix // 2) if OF_A or TRANSPOSED else (matrix // 2, matrix % 2)
        row = r + below*8
        self.lane = (row if first is None else row + first)*tile.SWIZZLE
        self.moved = along ^ moved(tile, r)
        self.places: dict[int, Value] = {}

    def read(self, smem: Value, rows: int, step: int) -> tuple[Value, ...]:
        """Four registers of the sixteen rows from `rows` on, and the 32 bytes number `step` of each."""
        tile = self.tile
        block, inside = divmod(step*2*PIECE, tile.SWIZZLE)
        if inside not in self.places:
            self.places[inside] = self.lane + (self.moved ^ inside // PIECE)*PIECE
        return self.k.ldmatrix(smem + self.places[inside] + (rows*tile.SWIZZLE + block*tile.BLOCK), 4, self.TRANSPOSED)
