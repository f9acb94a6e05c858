"""A tile of A or B in LDS as it lies in memory, where i is contiguous: reads turn it, on chips that have such.

i stands for a row of A or a column of B. A row of the tile is a step of k: EXTENT elements along i. Sixteen lanes read
sixteen elements of some steps, four or eight, and each gets those of one i (ir.turned); two such reads are the 16 bytes
along k that a lane reads at once of other tiles (lds_tile), and belong to the same steps. So both kinds can be
multiplied with each other.

Pieces of 16 bytes change places within their rows. A read goes by half waves, which have to find all 64 banks, 256
bytes: for tiles of 32 x 32 the same steps of 32 elements, for those of 16 x 16 steps of 16 elements, and as many again
two reads further along k, which are the next group's. That is how reads of 8 bytes go that do not turn; nobody has
published it of those that do. So every sixteen lanes find 32 banks as well, as they must where reads go by quarters.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Kernel, Value, i8, i16, i32, vec
from tilewright.ir.turned import BYTES, TOGETHER
from tilewright.kernels.amd.lds_tile import LANES, PIECE

LINE = 16                   # pieces that lie in different banks
_TYPES = {8: i8, 16: i16}


def swizzle(step: Any, PIECES: int, STEPS: int) -> Any:
    """By what the pieces of a row are XORed, of numbers and of values: by those bits of its step in which the rows of a
    half wave differ, the lowest in the highest place. Rows that share a line lie apart by themselves. Which half of the
    line it is counts in the lowest place too: sixteen lanes have the same banks in both halves."""
    found = step // max(LINE // PIECES // 2, 1) % 2 * (8 // STEPS)
    for place, bit in zip((8, 4, 2, 1), (*range(STEPS.bit_length() - 1), STEPS.bit_length())):
        if place < PIECES:
            found = found ^ step // (1 << bit) % 2 * place
    return found


class TurnedTile:
    """CTA_K rows of EXTENT elements of BITS bits, 8 or 16."""

    def __init__(self, k: Kernel, *, BITS: int, EXTENT: int, CTA_K: int) -> None:
        self.k, self.EXTENT, self.CTA_K = k, EXTENT, CTA_K
        self.E, self.T = BITS // 8, _TYPES[BITS]
        self.ROW = EXTENT * self.E                              # bytes
        self.PIECES = self.ROW // PIECE
        if self.PIECES & (self.PIECES - 1):
            raise ValueError(f"{EXTENT} elements of {BITS} bits are rows of {self.PIECES} pieces, no power of two")
        self.SIZE = CTA_K * self.ROW
        self.STEPS = BYTES // self.E                            # of k, of one read

    def swizzled(self, step: Any) -> Any:
        return swizzle(step, self.PIECES, self.STEPS)

    def part(self, first: Value, lane: Value, ROWS: int, STEP: int) -> None:
        """A lane reads for instructions that take ROWS rows and columns and STEP steps of k, from `first` on, which has
        no bit in common with where the wave's tiles lie after it."""
        self.ROWS, self.GROUPS = ROWS, LANES // ROWS
        self.HALVES = STEP // (self.STEPS*self.GROUPS)          # reads of an operand
        self.READS = max(2 // self.HALVES, 1)                   # instructions whose operands are read together
        WIDE = TOGETHER // self.STEPS                           # lanes of a row
        place = lane % TOGETHER
        step = lane // ROWS * (2*self.STEPS) + place // WIDE
        byte = (first + lane % ROWS // TOGETHER * TOGETHER)*self.E + place % WIDE * BYTES
        hidden, start = byte // PIECE ^ self.swizzled(step), step*self.ROW + byte % PIECE
        TILE = ROWS * self.E // PIECE                           # pieces of one instruction's tile
        self.places = {piece: start + (hidden ^ piece)*PIECE for piece in range(0, min(self.PIECES, LINE), TILE)}

    def read(self, smem: Value, tile: int, step: int) -> list[Value]:
        """For READS instructions from `step` on, the lane's part of rows tile*ROWS ...: vectors of 32-bit words."""
        k = self.k
        far, piece = divmod(tile * self.ROWS * self.E // PIECE, LINE)
        at = self.places[piece] + far*LINE*PIECE
        first = step*self.HALVES // 2                           # of pairs of reads, which lie GROUPS pairs apart

        def half(number: int) -> Value:
            steps = ((first + number // 2)*2*self.GROUPS + number % 2) * self.STEPS
            return k.reinterpret(k.load_turned((smem + (at + steps*self.ROW)).as_(self.T)), vec(i32, 2))
        words = [half(number) for number in range(max(self.HALVES, 2))]
        while len(words) > self.READS:
            words = [k.shuffle(x, y, range(2*x.type.length)) for x, y in zip(words[::2], words[1::2])]
        return words
