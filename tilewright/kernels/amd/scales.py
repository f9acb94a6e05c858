"""Scales of a block-scaled operand on their way to the Matrix Cores: from global memory to registers, a tile ahead.

A lane hands over the scale of its row and of one block of 32 along k: block s*G + g of the tile for instruction s and
lane group g, of G. It loads whole words of four blocks and shifts its own into the bytes that the instruction names.
"""
from __future__ import annotations

from tilewright.ir import Kernel, Value, i8, i32, i64, ptr
from tilewright.kernels.amd.operand import LANES
from tilewright.kernels.atoms.mfma import SCALED

WORD = 4                # blocks of a register
ONE = 127               # the pattern of scale 1


class Scales:
    """For TILES tiles of MFMA rows, from row `first` on of `limit`, and CTA_K steps of k."""
    SIZE = 0            # bytes of LDS

    def __init__(self, k: Kernel, gmem: Value, ld: Value, lane: Value, first: Value, limit: Value, block: Value, *,
                 MFMA: int, TILES: int, CTA_K: int) -> None:
        self.k, self.GROUPS, self.TILES, self.BLOCKS = k, LANES // MFMA, TILES, CTA_K // SCALED
        self.group = lane // MFMA
        self.WORDS = self.BLOCKS // WORD
        self.pointers = []
        for tile in range(TILES):
            row = k.min(first + lane % MFMA + tile*MFMA, limit - 1)
            self.pointers.append(k.variable(ptr(i8), gmem + (k.cast(row, i64)*ld + k.cast(block, i64))))
        self.carried, self.current = (k.tile(TILES, self.WORDS, i32) for _ in range(2))

    def fetch(self, more: Value) -> None:
        k = self.k
        for tile, pointer in enumerate(self.pointers):
            at = pointer.get()
            for word in range(self.WORDS):
                self.carried[tile, word] = k.load((at + word*WORD).as_(i32), i32, align=1)
        self._advance(k.select(more, k.constant(i32, self.BLOCKS), 0))

    def fetch_some(self, steps: Value) -> None:
        """The first tile's: 1 for the blocks that are not there, whose elements are 0."""
        k = self.k
        there = steps // SCALED
        last = k.max(there - 1, 0)
        for tile, pointer in enumerate(self.pointers):
            at = pointer.get()
            for word in range(self.WORDS):
                found = k.constant(i32, 0)
                for e in range(WORD):
                    block = k.constant(i32, word*WORD + e)
                    byte = k.cast(k.load(at + k.cast(k.min(block, last), i64)), i32) & 255
                    found = found | (k.select(block < there, byte, k.constant(i32, ONE)) << 8*e)
                self.carried[tile, word] = found
        self._advance(there)

    def _advance(self, blocks: Value) -> None:
        for pointer in self.pointers:
            pointer.set(pointer.get() + self.k.cast(blocks, i64))

    def stash(self, smem: Value) -> None:
        """What was loaded last is for the next tile."""
        self.following = {ij: self.carried[ij] for ij in self.carried.registers}

    def turn(self) -> None:
        for (tile, word), x in self.following.items():
            self.current[tile, word] = x >> (self.group*8)

    COPIES = 0

    def start(self, smem: Value, more: Value) -> None:
        """Registers do as well: what was loaded a tile ago is for the next one."""
        self.stash(smem)
        self.fetch(more)

    def byte(self, step: int) -> int:
        """Of the word, which has the lane's scale for this instruction of the tile."""
        return step*self.GROUPS % WORD

    def word(self, tile: int, step: int) -> Value:
        return self.current[tile, step*self.GROUPS // WORD]
