"""Scales of a block-scaled operand on their way to the Matrix Cores, as streams of pipeline.py.

    Scales      from global memory to the registers of the lanes that hand them over, a tile ahead
    ScaleTile   straight into LDS, as the elements, and from there to registers

A lane hands over the scale of its row and of one block of 32 along k: block s*G + g of the tile for instruction s and
lane group g, of G. It loads whole words of four blocks and shifts its own into the bytes that the instruction names.
"""
from __future__ import annotations

from functools import partial
from itertools import pairwise

from tilewright.atoms.amd import SCALED
from tilewright.ir import Kernel, Value, i8, i32, i64, ptr, vec
from tilewright.kernels.amd.lds_tile import LANES
from tilewright.kernels.amd.pipeline import Direct, Do, Read

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

    def load(self, more: Value) -> None:
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

    def load_first_tile(self, steps: Value) -> None:
        """The first tile's: 1 for the blocks that are not there, whose elements are 0."""
        there = steps // SCALED
        for tile, pointer in enumerate(self.pointers):
            for word in range(self.WORDS):
                self.coming[0][tile, word] = load_word(self.k, pointer.get(), self.k.constant(i32, word*WORD), there)
        self._advance(there)

    def _advance(self, blocks: Value) -> None:
        for pointer in self.pointers:
            pointer.set(pointer.get() + self.k.cast(blocks, i64))

    def start(self, smem: Value) -> list[Do]:
        return [self._load]

    def advance(self, more: Value) -> None:
        """To the next tile, if there are more."""
        self._advance(self.k.select(more, self.k.constant(i32, self.BLOCKS), 0))

    def loads(self, more: Value) -> list[list[Do]]:
        return [[lambda: self.load(more)]]

    def stores_to_lds(self, smem: Value) -> list[list[Do]]:
        """They stay in registers."""
        return []

    def release_tile(self) -> None:
        """The next tile's become the current ones, shifted to where this lane's are."""
        for ij in self.current.registers:
            self.current[ij] = self.coming[0][ij] >> (self.group*8)
            for before, after in pairwise(self.coming):
                before[ij] = after[ij]

    def shifted(self, word: Value) -> Value:
        """It has been."""
        return word

    def reads(self, smem: Value) -> list[Read]:
        """The current words: for each of a wave's tiles those along k."""
        return [lambda: [self.current[tile, word] for tile in range(self.TILES) for word in range(self.WORDS)]]


class ScaleTile(Direct):
    """Scales of EXTENT rows of a workgroup's tile, for waves of WARP rows, in instructions of MFMA rows; CTA_K steps of
    k.

    LDS keeps the words that a lane needs side by side, those of all the rows that it hands scales over for, so that it
    reads them at once. As copies land lane after lane, each thread copies the word that belongs to its place. Rows of
    scales begin at multiples of WORD, and so does a workgroup's part of k.
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

    def lane_addresses(self, first: Value, lane: Value) -> None:
        """A lane reads for a wave whose rows begin at `first`."""
        self.group = lane // self.MFMA
        self.lane_start = (first // self.TILES + lane % self.MFMA) * (self.LANE*WORD)

    def load_first_tile(self, steps: Value) -> None:
        """The first tile's: 1 for the blocks that are not there, whose elements are 0."""
        there = steps // SCALED
        at = self.address.get()
        for row, word, carried in zip(self.rows, self.words, self.carried, strict=True):
            carried.set(load_word(self.k, at + row, word*WORD, there))
        self.address.set(at + self.k.cast(there, i64))

    def stores_to_lds(self, smem: Value) -> list[list[Do]]:
        def store_to_lds(copy: int) -> None:
            self.k.store((smem + (self.t + copy*self.THREADS)*WORD).as_(i32), self.carried[copy].get())
        return [[partial(store_to_lds, copy)] for copy in range(self.COPIES)]

    def start(self, smem: Value) -> list[Do]:
        """Start to copy the tile at the pointer straight to LDS at `smem`."""
        k, wave, base = self.k, self.t // LANES, self.address.get()

        def copy(number: int) -> Do:
            gmem = base + (self.rows[number] + k.cast(self.words[number]*WORD, i64))
            return lambda: k.lds_load(smem + (wave*(LANES*WORD) + number*(self.THREADS*WORD)), gmem, WORD, base=base)
        return [copy(number) for number in range(self.COPIES)]

    def advance(self, more: Value) -> None:
        """To the next tile, if there are more."""
        k = self.k
        self.address.set(self.address.get() + k.cast(k.select(more, k.constant(i32, self.WORDS*WORD), 0), i64))

    def reads(self, smem: Value) -> list[Read]:
        """Words of this lane: for each of a wave's tiles those along k."""
        k = self.k
        SIZE = next(size for size in (4, 2, 1) if self.LANE % size == 0)

        def read(number: int) -> list[Value]:
            at = (smem + (self.lane_start + number*WORD)).as_(i32)
            loaded = k.load(at, vec(i32, SIZE)) if SIZE > 1 else k.load(at)
            return [loaded[e] for e in range(SIZE)] if SIZE > 1 else [loaded]
        return [lambda number=number: read(number) for number in range(0, self.LANE, SIZE)]  # type: ignore[misc]


def load_word(k: Kernel, row: Value, first: Value, there: Value) -> Value:
    """A word of scales from `first` on, of a row of which so many are there; ONE stands for the others."""
    last = k.max(there - 1, 0)
    packed = k.constant(i32, 0)
    for e in range(WORD):
        block = first + e
        byte = k.cast(k.load(row + k.cast(k.min(block, last), i64)), i32) & 255
        packed = packed | (k.select(block < there, byte, k.constant(i32, ONE)) << 8*e)
    return packed
