"""A or B straight into LDS where k is strided: the tile has the layout of memory in LDS, and the reads of LDS transpose
it, on chips that have such reads.

i stands for a row of A or a column of B, and is contiguous. A row of the tile is a step of k: EXTENT elements along i.
Sixteen lanes read sixteen elements of some steps, four or eight, and each gets those of one i (ir.ops.amd); two such
reads are the 16 bytes along k that a lane reads at once of other tiles (lds_tile), and belong to the same steps. So
both kinds can be multiplied with each other.

Pieces of 16 bytes are copied as they are, and swizzled within their rows. One phase of a read is half a wave, which has
to find all 64 banks (256 bytes); it touches

    instruction     lanes       steps of k                          elements of each
    32 x 32         0 to 31     4 (16 bits) or 8 (8 bits)           32
    16 x 16         0 to 15     the same                            16
                    16 to 31    the same, two reads further on      16

Assumption: a transposing read of 8 bytes has the phases of a plain one (not published). Every sixteen lanes find 32
banks as well, as they must if reads go by quarters.

What a workgroup has beyond the matrix along i is copied from its last piece, which ends with the matrix, and never
stored; beyond k, which happens in the first tile alone, it is 0.
"""
from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.ir import Kernel, Value, i8, i16, i32, i64, ptr, vec
from tilewright.ir.ops.amd import TOGETHER, TRANSPOSED_BYTES
from tilewright.kernels.amd.lds_tile import LANES, PIECE, WORD
from tilewright.kernels.amd.pipeline import Direct, Do

LINE = 16                   # pieces that lie in different banks
_TYPES = {8: i8, 16: i16}


def swizzle(step: Any, PIECES: int, STEPS: int) -> Any:
    """By what the pieces of a row are XORed, of numbers and of values: by those bits of its step in which the rows of a
    half wave differ, the lowest in the highest place. Rows that share a line lie apart by themselves. Which half of the
    line it is counts in the lowest place too: sixteen lanes have the same banks in both halves."""
    swizzled = step // max(LINE // PIECES // 2, 1) % 2 * (8 // STEPS)
    for place, bit in zip((8, 4, 2, 1), (*range(STEPS.bit_length() - 1), STEPS.bit_length())):
        if place < PIECES:
            swizzled = swizzled ^ step // (1 << bit) % 2 * place
    return swizzled


class KStridedOperand(Direct):
    """CTA_K rows of EXTENT elements of BITS bits, 8 or 16. The matrix has rows of whole pieces, `ld` elements apart."""

    def __init__(self, k: Kernel, gmem: Value, ld: Value, *, BITS: int, EXTENT: int, CTA_K: int, THREADS: int) -> None:
        self.k, self.gmem, self.EXTENT, self.THREADS = k, gmem, EXTENT, THREADS
        self.E, self.T = BITS // 8, _TYPES[BITS]
        self.ROW = EXTENT * self.E                              # bytes
        self.PIECES = self.ROW // PIECE
        if self.PIECES & (self.PIECES - 1):
            raise ValueError(f"{EXTENT} elements of {BITS} bits are rows of {self.PIECES} pieces, no power of two")
        self.SIZE = CTA_K * self.ROW
        self.STEPS = TRANSPOSED_BYTES // self.E                            # of k, of one read
        self.ld = k.cast(ld, i64) * self.E
        self.tile = self.ld * CTA_K                             # bytes from one to the next
        self.COPIES = CTA_K*self.PIECES // THREADS              # that a wave makes of one tile
        self.direct = not CTA_K*self.PIECES % THREADS           # whether all threads have something to copy

    def begin(self, t: Value, first: Value, limit: Value, k_first: Value) -> None:
        """For rows from `first` on of `limit`, from step k_first of k on: the workgroup's running address, and which
        step and which bytes of it each of a thread's copies brings."""
        k, E = self.k, self.E
        self.t = t
        self.address = k.variable(ptr(i8), self.gmem.as_(i8) + (k.cast(k_first, i64)*self.ld + k.cast(first, i64)*E))
        self.steps = [t // self.PIECES + copy*self.THREADS // self.PIECES for copy in range(self.COPIES)]
        elements = [(t % self.PIECES ^ self.swizzled(step)) * (PIECE // E) for step in self.steps]
        self.bytes = [k.cast(k.min(first + i, limit - PIECE // E) - first, i64)*E for i in elements]
        self.carried = [k.variable(WORD) for _ in range(self.COPIES)]

    def load_first_tile(self, steps: Value) -> None:
        """The first tile, of which only so many steps are there: zeros stand for the others."""
        k, base, last = self.k, self.address.get(), self.k.max(steps - 1, 0)
        for step, byte, register in zip(self.steps, self.bytes, self.carried, strict=True):
            at = base + (k.cast(k.min(step, last), i64)*self.ld + byte)
            register.set(k.select(step < steps, k.load(at.as_(i32), WORD, align=self.E), k.constant(WORD, 0)))
        self.address.set(base + k.cast(steps, i64)*self.ld)

    def stores_to_lds(self, smem: Value) -> list[list[Do]]:
        """Write what was fetched to the tile of LDS at `smem`, where the direct copies would land."""
        def store_to_lds(copy: int) -> None:
            place = self.t*PIECE + copy*self.THREADS*PIECE
            self.k.store((smem + place).as_(i32), self.carried[copy].get())
        return [[partial(store_to_lds, copy)] for copy in range(self.COPIES)]

    def start(self, smem: Value) -> list[Do]:
        """Start to copy the tile at the running address straight to LDS at `smem`: what is to be done, in this order.
        """
        k, wave, base = self.k, self.t // LANES, self.address.get()

        def copy(number: int) -> None:
            gmem = base + (k.cast(self.steps[number], i64)*self.ld + self.bytes[number])
            k.lds_load(smem + (wave*(LANES*PIECE) + number*(self.THREADS*PIECE)), gmem, PIECE, base=base)
        return [partial(copy, number) for number in range(self.COPIES)]

    def advance(self, more: Value) -> None:
        """To the next tile, if there are more."""
        self.address.set(self.address.get() + self.k.select(more, self.tile, 0))

    # ---- LDS to registers

    def swizzled(self, step: Any) -> Any:
        return swizzle(step, self.PIECES, self.STEPS)

    def lane_addresses(self, first: Value, lane: Value, ROWS: int, STEP: int) -> None:
        """A lane reads for instructions that take ROWS rows and columns and STEP steps of k, from `first` on, which has
        no bit in common with where the wave's tiles lie after it."""
        self.ROWS, self.GROUPS = ROWS, LANES // ROWS
        self.HALVES = STEP // (self.STEPS*self.GROUPS)          # reads of an operand
        self.READS = max(2 // self.HALVES, 1)                   # instructions whose operands are read together
        WIDE = TOGETHER // self.STEPS                           # lanes of a row
        place = lane % TOGETHER
        step = lane // ROWS * (2*self.STEPS) + place // WIDE
        byte = (first + lane % ROWS // TOGETHER * TOGETHER)*self.E + place % WIDE * TRANSPOSED_BYTES
        hidden, start = byte // PIECE ^ self.swizzled(step), step*self.ROW + byte % PIECE
        TILE = ROWS * self.E // PIECE                           # pieces of one instruction's tile
        self.addresses = {piece: start + (hidden ^ piece)*PIECE for piece in range(0, min(self.PIECES, LINE), TILE)}

    def read(self, smem: Value, tile: int, step: int) -> list[Value]:
        """For READS instructions from `step` on, the lane's part of rows tile*ROWS ...: vectors of 32-bit words."""
        k = self.k
        far, piece = divmod(tile * self.ROWS * self.E // PIECE, LINE)
        at = self.addresses[piece] + far*LINE*PIECE
        first = step*self.HALVES // 2                           # of pairs of reads, which lie GROUPS pairs apart

        def half(number: int) -> Value:
            steps = ((first + number // 2)*2*self.GROUPS + number % 2) * self.STEPS
            return k.reinterpret(k.load_transposed((smem + (at + steps*self.ROW)).as_(self.T)), vec(i32, 2))
        words = [half(number) for number in range(max(self.HALVES, 2))]
        while len(words) > self.READS:
            words = [k.shuffle(x, y, range(2*x.type.length)) for x, y in zip(words[::2], words[1::2])]
        return words
