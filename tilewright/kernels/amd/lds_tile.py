"""A tile of A or B in LDS, and from there a lane's part of it for the Matrix Core.

k runs along the rows, whatever the layout of the matrix: a row holds CTA_K elements of one row of A, or of one column
of B, in pieces of 16 bytes, which is what a lane reads at once. Pieces change places within their rows, so that neither
lanes that read the same piece of many rows nor lanes that write many rows meet in the same banks.

Of 6-bit elements a lane reads 24 bytes, which are kept in two places: the lower 16 as a piece, like those of 4-bit
elements, and the upper 8 in rows of their own (`UpperBytes`), so that both reads are without conflicts.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Kernel, Value, i32, vec

WORD = vec(i32, 4)
PIECE = WORD.bytes          # what a lane moves at once
LANES = 64
LINE = 8                    # pieces that lie in different banks
CHUNK, LOWER = 24, 16       # bytes of 32 elements of 6 bits, and of their lower part
UPPER = vec(i32, 2)


# What bits 2, 3, 4 ... of a row add to its swizzle, by its pieces. A phase of a wave's read (targets.banks) has rows 0
# to 3 with 20 to 23, or with tiles of 16 rows 4 to 7 of the next pieces; on gfx950 also 12 to 15 and 24 to 27, or 12 to
# 15 and 8 to 11 of the next pieces. These make all such pieces lie in banks of their own.
_TWIST = {2: (1, 1, 0), 4: (2, 3, 1), 8: (4, 5, 2), 16: (12, 4, 8)}
# The same for tiles that are written every 2, 4, 8 or 16 rows: a phase has eight rows of the same piece, or four of two
# pieces that follow each other, so what three neighbouring bits add, or two and piece 1, must be independent.
_TWIST_K_STRIDED = {2: (1, 3, 4, 2, 1), 4: (2, 7, 4, 2, 1), 8: (4, 5, 2, 4, 1), 16: (12, 5, 10, 4, 1)}


def swizzle(row: Any, PIECES: int, K_STRIDED: bool) -> Any:
    """By what the pieces of a row are XORed, of numbers and of values; of disjoint bits of a row it is the XOR of each.

    Bits of a row above the fourth, of K_STRIDED tiles above the sixth, do not count: a lane's address for rows further
    on is a constant away.
    """
    swizzled = row % 4 // max(LINE // PIECES, 1)
    for bit, twist in enumerate((_TWIST_K_STRIDED if K_STRIDED else _TWIST)[min(PIECES, 16)], 2):
        swizzled = swizzled ^ row // (1 << bit) % 2 * twist
    return swizzled


def swizzled_piece(piece: Any, PIECES: int) -> Any:
    """Where a piece is in its row before the swizzle: in its place, but of 16 the upper eight in pairs that changed.

    So lanes that write every other piece of such a row reach all banks. It is its own inverse, and linear: of XORed
    pieces it is the XOR of each.
    """
    return piece ^ piece // 8 if PIECES > 8 else piece


class LdsTile:
    """EXTENT rows by CTA_K steps of k, of elements of BITS bits. K_STRIDED: it is written down its rows.

    Short rows share a line of 128 bytes, and a K_STRIDED tile's pieces change places within all of it.
    """

    def __init__(self, k: Kernel, *, BITS: int, EXTENT: int, CTA_K: int, K_STRIDED: bool = False) -> None:
        self.k, self.BITS, self.EXTENT, self.CTA_K, self.K_STRIDED = k, BITS, EXTENT, CTA_K, K_STRIDED
        self.ROW = CTA_K * BITS // 8                            # bytes
        self.CHUNK = CHUNK if BITS == 6 else PIECE              # of a row, for each piece
        self.PIECES = self.ROW // self.CHUNK
        if self.PIECES & (self.PIECES - 1):
            raise ValueError(f"{CTA_K} elements of {BITS} bits are rows of {self.PIECES} pieces, no power of two")
        self.LDS_ROW = self.PIECES * PIECE
        self.SHARED = max(LINE // self.PIECES, 1)               # rows of a line
        self.SIZE = EXTENT * self.LDS_ROW
        self.upper = UpperBytes(k, EXTENT, self.PIECES, self.SIZE) if BITS == 6 else None
        if self.upper:
            self.SIZE += self.upper.SIZE

    def lds_address(self, smem: Value, row: Value, byte: Value) -> Value:
        """Where byte `byte` of row `row` is kept."""
        number, rest = byte // self.CHUNK, byte % self.CHUNK
        piece = row % self.SHARED*self.PIECES + swizzled_piece(number, self.PIECES) ^ self.swizzled(row)
        at = smem + (row // self.SHARED*(self.SHARED*self.LDS_ROW) + piece*PIECE + rest)
        if self.upper:
            return self.k.select(rest < LOWER, at, self.upper.lds_address(smem, row, number) + (rest - LOWER))
        return at

    def swizzled(self, row: Any) -> Any:
        return swizzle(row, self.PIECES, self.K_STRIDED)

    def lane_addresses(self, first: Value, lane: Value, ROWS: int, STEP: int) -> None:
        """A lane reads for instructions that take ROWS rows: row lane % ROWS of those from `first` on, which has no bit
        in common with the rows of the wave after it. STEP: of k in one instruction."""
        self.ROWS, self.GROUPS, self.STEP = ROWS, LANES // ROWS, STEP
        self.group, self.lane_row = lane // ROWS, lane % ROWS
        row = first + self.lane_row
        self.lane_start = row // self.SHARED*(self.SHARED*self.LDS_ROW)
        self.hidden = row % self.SHARED*self.PIECES + self.group ^ self.swizzled(row)
        self.BYTES_LANE = STEP*self.BITS // 8 // self.GROUPS            # of an instruction
        self.addresses: dict[int, Value] = {}
        for read in range(self.PIECES // self.GROUPS):
            for tile in range((128 if self.K_STRIDED else 32) // ROWS):
                variant = self._variant(read, tile)
                if variant not in self.addresses:
                    self.addresses[variant] = self.lane_start + (self.hidden ^ variant)*PIECE
        if self.upper:
            self.upper.lane_addresses(first, lane, ROWS, self.GROUPS)

    def _variant(self, read: int, tile: int) -> int:
        """By what a lane's piece of this read and these rows is XORed, beside what depends on the lane."""
        return int(swizzled_piece(read*self.GROUPS, self.PIECES) ^ self.swizzled(tile*self.ROWS))

    @property
    def READS(self) -> int:
        """Instructions whose operands are read together: one, or as many as a piece of a lane is for."""
        return max(self.CHUNK // self.BYTES_LANE, 1)

    def read(self, smem: Value, tile: int, step: int) -> list[Value]:
        """For READS instructions from `step` on, the lane's part of rows tile*ROWS ...: vectors of 32-bit words."""
        k = self.k
        count = max(self.BYTES_LANE // self.CHUNK, 1)                   # pieces of one instruction
        pieces = []
        for e in range(count):
            read = step // self.READS * count + e
            at = self.addresses[self._variant(read, tile)] + tile*self.ROWS*self.LDS_ROW
            pieces.append(k.load((smem + at).as_(i32), WORD))
        if self.upper:
            upper = self.upper.read(smem, tile, step)
            return [k.pack(*(pieces[0][e] for e in range(4)), *(upper[e] for e in range(2)))]
        if count > 1:
            return [k.shuffle(pieces[0], pieces[1], range(8))]
        words = 4 // self.READS
        return [k.shuffle(pieces[0], pieces[0], range(e*words, (e + 1)*words)) if words > 1 else pieces[0][e]
                for e in range(self.READS)] if self.READS > 1 else pieces


def swizzled_row(row: Value, block: int | Value) -> Value:
    """Where a row's upper bytes are among those of its block."""
    return row ^ block % 2 * 16


class UpperBytes:
    """The upper 8 of the 24 bytes of 32 elements of 6 bits, for EXTENT rows of BLOCKS such blocks, at an offset in the
    tile: those of the same block row after row.

    One phase of an 8-byte read (targets.banks) covers 32 rows (MFMA 32), or 16 rows of two neighbouring blocks (MFMA
    16). In odd blocks the two halves of 32 rows are swapped, so that both cases are free of conflicts.
    """

    def __init__(self, k: Kernel, EXTENT: int, BLOCKS: int, offset: int) -> None:
        self.k, self.EXTENT, self.BLOCKS, self.offset = k, EXTENT, BLOCKS, offset
        self.SIZE = EXTENT*BLOCKS*UPPER.bytes

    def lds_address(self, smem: Value, row: Value, block: Value) -> Value:
        return smem + ((block*self.EXTENT + swizzled_row(row, block))*UPPER.bytes + self.offset)

    def lane_addresses(self, first: Value, lane: Value, ROWS: int, GROUPS: int) -> None:
        """Compute where each lane reads its first elements, as LdsTile.lane_addresses does."""
        self.ROWS, self.GROUPS = ROWS, GROUPS
        group, row = lane // ROWS, lane % ROWS
        self.starts = [(group*self.EXTENT + first + swizzled_row(row + tile*ROWS, group))*UPPER.bytes + self.offset
                       for tile in range(32 // ROWS)]

    def read(self, smem: Value, tile: int, step: int) -> Value:
        """The upper bytes of the block that the lane's group multiplies in this instruction."""
        start = self.starts[tile % len(self.starts)]
        far = (step*self.GROUPS*self.EXTENT + tile // len(self.starts) * 32) * UPPER.bytes
        return self.k.load((smem + (start + far)).as_(i32), UPPER)
