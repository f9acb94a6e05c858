"""Scales of a block-scaled operand on their way to the Matrix Cores by LDS: they come there as the elements do.

A word has the scales of four blocks, of one row. LDS keeps the words that a lane needs side by side, those of all the
rows that it hands scales over for, so that it reads them at once; it shifts its block's into the bytes that
instructions name. As copies land lane after lane, each reads the word that belongs to its place.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.atoms.mfma import SCALED
from tilewright.ir import Kernel, Value, i8, i32, i64, ptr, vec
from tilewright.kernels.amd.lds_tile import LANES
from tilewright.kernels.amd.scales import WORD, some


class ScaleTile:
    """Of EXTENT rows of a workgroup's tile, for waves of WARP rows, in instructions of MFMA rows; CTA_K steps of k.

    Scales of a row are multiples of WORD apart, and so is what a workgroup begins with along k.
    """

    def __init__(self, k: Kernel, gmem: Value, ld: Value, *, EXTENT: int, WARP: int, MFMA: int, CTA_K: int,
                 THREADS: int) -> None:
        self.k, self.gmem, self.ld = k, gmem, k.cast(ld, i64)
        self.MFMA, self.GROUPS, self.THREADS = MFMA, LANES // MFMA, THREADS
        self.TILES, self.WORDS = WARP // MFMA, CTA_K // SCALED // WORD
        self.LANE = self.TILES * self.WORDS                             # words of a lane
        self.COPIES = -(-EXTENT * self.WORDS // THREADS)
        self.SIZE = self.COPIES * THREADS * WORD

    def begin(self, t: Value, first: Value, limit: Value, block: Value) -> None:
        """For rows from `first` on of `limit`, and blocks from `block` on."""
        k = self.k
        self.t = t
        self.address = k.variable(ptr(i8), self.gmem + (k.cast(first, i64)*self.ld + k.cast(block, i64)))
        self.words, self.rows = [], []
        for copy in range(self.COPIES):
            place = t + copy*self.THREADS
            lane, mine = place // self.LANE, place % self.LANE
            row = lane // self.MFMA * (self.TILES*self.MFMA) + mine // self.WORDS * self.MFMA + lane % self.MFMA
            self.words.append(mine % self.WORDS)
            self.rows.append(k.cast(k.min(first + row, limit - 1) - first, i64)*self.ld)
        self.carried = [k.variable(i32) for _ in range(self.COPIES)]

    def shifted(self, word: Value) -> Value:
        """With this lane's block where the instructions look for it."""
        return word >> (self.group*8)

    def part(self, first: Value, lane: Value) -> None:
        """A lane reads for a wave whose rows begin at `first`."""
        self.group = lane // self.MFMA
        self.lane_start = (first // self.TILES + lane % self.MFMA) * (self.LANE*WORD)

    def fetch_some(self, steps: Value) -> None:
        """The first tile's: 1 for the blocks that are not there, whose elements are 0."""
        there = steps // SCALED
        at = self.address.get()
        for row, word, carried in zip(self.rows, self.words, self.carried, strict=True):
            carried.set(some(self.k, at + row, word*WORD, there))
        self.address.set(at + self.k.cast(there, i64))

    def stashes(self, smem: Value) -> list[list[Callable[[], None]]]:
        def stash(copy: int) -> None:
            self.k.store((smem + (self.t + copy*self.THREADS)*WORD).as_(i32), self.carried[copy].get())
        return [[partial(stash, copy)] for copy in range(self.COPIES)]

    def turn(self) -> None:
        """The tile before has been multiplied."""

    def start(self, smem: Value) -> list[Callable[[], None]]:
        """Start to copy the tile at the pointer straight to LDS at `smem`."""
        k, wave, base = self.k, self.t // LANES, self.address.get()

        def copy(number: int) -> Callable[[], None]:
            gmem = base + (self.rows[number] + k.cast(self.words[number]*WORD, i64))
            return lambda: k.lds_load(smem + (wave*(LANES*WORD) + number*(self.THREADS*WORD)), gmem, WORD, base=base)
        return [copy(number) for number in range(self.COPIES)]

    def advance(self, more: Value) -> None:
        """To the next tile, if there are more."""
        k = self.k
        self.address.set(self.address.get() + k.cast(k.select(more, k.constant(i32, self.WORDS*WORD), 0), i64))

    def reads(self, smem: Value) -> list[Callable[[], list[Value]]]:
        """Words of this lane: for each of a wave's tiles those along k."""
        k = self.k
        SIZE = next(size for size in (4, 2, 1) if self.LANE % size == 0)

        def read(number: int) -> list[Value]:
            at = (smem + (self.lane_start + number*WORD)).as_(i32)
            found = k.load(at, vec(i32, SIZE)) if SIZE > 1 else k.load(at)
            return [found[e] for e in range(SIZE)] if SIZE > 1 else [found]
        return [lambda number=number: read(number) for number in range(0, self.LANE, SIZE)]  # type: ignore[misc]
