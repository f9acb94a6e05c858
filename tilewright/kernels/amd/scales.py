"""Scales of a block-scaled operand on their way to the Matrix Cores: from global memory to registers, a tile ahead.

A lane hands over the scale of its row and of one block of 32 along k: block s*G + g of the tile for instruction s and
lane group g, of G. It loads whole words of four blocks and shifts its own into the bytes that the instruction names.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from tilewright.atoms.mfma import SCALED
from tilewright.ir import Kernel, Value, i8, i32, i64, ptr
from tilewright.kernels.amd.lds_tile import LANES

WORD = 4                # blocks of a register
ONE = 127               # the pattern of scale 1


class Scales:
    """For TILES tiles of MFMA rows, from row `first` on of `limit`, and CTA_K steps of k from block `block` on.

    AHEAD: how many tiles after the one that is multiplied the pipeline asks for.
    """
    SIZE = 0            # bytes of LDS
    COPIES = 0

    def __init__(self, k: Kernel, gmem: Value, ld: Value, lane: Value, first: Value, limit: Value, block: Value, *,
                 MFMA: int, TILES: int, CTA_K: int, AHEAD: int) -> None:
        self.k, self.GROUPS, self.TILES, self.BLOCKS = k, LANES // MFMA, TILES, CTA_K // SCALED
        self.group = lane // MFMA
        self.WORDS = self.BLOCKS // WORD
        self.pointers = []
        for tile in range(TILES):
            row = k.min(first + lane % MFMA + tile*MFMA, limit - 1)
            self.pointers.append(k.variable(ptr(i8), gmem + (k.cast(row, i64)*ld + k.cast(block, i64))))
        self.current, *self.coming = (k.tile(TILES, self.WORDS, i32) for _ in range(1 + AHEAD))
        self.asked = 0                          # times that the kernel, as it is written, asks for a tile

    def fetch(self, more: Value) -> None:
        self._load()
        self.advance(more)

    def _load(self) -> None:
        k = self.k
        coming = self.coming[min(self.asked, len(self.coming) - 1)]
        self.asked += 1
        for tile, pointer in enumerate(self.pointers):
            at = pointer.get()
            for word in range(self.WORDS):
                coming[tile, word] = k.load((at + word*WORD).as_(i32), i32, align=1)

    def fetch_some(self, steps: Value) -> None:
        """The first tile's: 1 for the blocks that are not there, whose elements are 0."""
        there = steps // SCALED
        for tile, pointer in enumerate(self.pointers):
            for word in range(self.WORDS):
                self.coming[0][tile, word] = some(self.k, pointer.get(), self.k.constant(i32, word*WORD), there)
        self._advance(there)

    def _advance(self, blocks: Value) -> None:
        for pointer in self.pointers:
            pointer.set(pointer.get() + self.k.cast(blocks, i64))

    def start(self, smem: Value) -> list[Callable[[], None]]:
        return [self._load]

    def advance(self, more: Value) -> None:
        """To the next tile, if there are more."""
        self._advance(self.k.select(more, self.k.constant(i32, self.BLOCKS), 0))

    def fetches(self, more: Value) -> list[list[Callable[[], None]]]:
        return [[lambda: self.fetch(more)]]

    def stashes(self, smem: Value) -> list[list[Callable[[], None]]]:
        """They stay in registers."""
        return []

    def turn(self) -> None:
        """The next tile's become the current ones, shifted to where this lane's are."""
        for ij in self.current.registers:
            self.current[ij] = self.coming[0][ij] >> (self.group*8)
            for before, after in pairwise(self.coming):
                before[ij] = after[ij]

    def shifted(self, word: Value) -> Value:
        """It has been."""
        return word

    def reads(self, smem: Value) -> list[Callable[[], list[Value]]]:
        """The current words: for each of a wave's tiles those along k."""
        return [lambda: [self.current[tile, word] for tile in range(self.TILES) for word in range(self.WORDS)]]


def some(k: Kernel, row: Value, first: Value, there: Value) -> Value:
    """A word of scales from `first` on, of a row of which so many are there; ONE stands for the others."""
    last = k.max(there - 1, 0)
    found = k.constant(i32, 0)
    for e in range(WORD):
        block = first + e
        byte = k.cast(k.load(row + k.cast(k.min(block, last), i64)), i32) & 255
        found = found | (k.select(block < there, byte, k.constant(i32, ONE)) << 8*e)
    return found
