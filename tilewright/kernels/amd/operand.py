"""A or B of a GEMM on its way to the Matrix Cores: global memory to LDS, and from there a lane's part of a tile.

In LDS k runs along the rows, whatever the layout of the matrix: a row holds CTA_K elements of one row of A, or of one
column of B, in pieces of 16 bytes, which is what a lane reads at once. Pieces change places within their rows, so that
neither lanes that read the same piece of many rows nor lanes that write many rows meet in the same banks.

    k is contiguous     pieces are copied as they are, through registers or straight into LDS
    i is contiguous     a thread loads vectors along i from some steps of k, turns them in its registers, and writes
                        pieces, or halves and quarters of them

i stands for a row of A or a column of B. What a workgroup has beyond the matrix along i is copied from its last row,
and never stored; beyond k, which happens in the first tile alone, it is 0.

Rows of 6-bit elements are no power of two; they are padded to an odd number of 8 bytes instead.
"""
from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tilewright.ir import Kernel, Value, i8, i16, i32, i64, ptr, vec

WORD = vec(i32, 4)
PIECE = WORD.bytes          # what a lane moves at once
HALF = vec(i32, 2)
LANES = 64
_BITS = {1: i8, 2: i16, 4: i32, 8: i64}         # elements, as far as copying goes


# What bits 2, 3 and 4 of a row add to its swizzle, by its pieces. A phase of a wave's read (targets.banks) has
# rows 0 to 3 with 20 to 23, or with tiles of 16 rows 4 to 7 of the next pieces; on gfx950 also 12 to 15 and 24 to 27,
# or 12 to 15 and 8 to 11 of the next pieces. These make all such pieces lie in banks of their own.
_TWIST = {2: (1, 1, 0), 4: (2, 3, 1), 8: (4, 5, 2), 16: (12, 4, 8)}


def swizzle(row: Any, PIECES: int) -> Any:
    """By what the pieces of a row are XORed, of numbers and of values; of disjoint bits of a row it is the XOR of each.

    Bits of a row above the fourth do not count, so that a lane's address for the next 32 rows is a constant away.
    """
    per_line = max(8 // PIECES, 1)                              # rows in 128 bytes
    four, eight, sixteen = _TWIST[min(PIECES, 16)]
    return row % 4 // per_line ^ row // 4 % 2 * four ^ row // 8 % 2 * eight ^ row // 16 % 2 * sixteen


def column(piece: Any, PIECES: int) -> Any:
    """Where a piece is in its row before the swizzle: in its place, but of 16 the upper eight in pairs that changed.

    So lanes that write every other piece of such a row reach all banks. It is its own inverse, and linear: of XORed
    pieces it is the XOR of each.
    """
    return piece ^ piece // 8 if PIECES > 8 else piece


@dataclass(frozen=True)
class Pass:
    """One copy of each thread: from which running pointer, and how far after it in bytes; to which row and byte."""
    source: int
    offset: int
    row: int
    byte: int


class Operand:
    """EXTENT rows by CTA_K steps of k, of elements of BITS bits; the matrix' rows lie `ld` units of UNIT bytes apart.

    Units are what can be loaded alone: by default elements, but of the narrow ones that come in blocks, 8 bytes.
    """

    def __init__(self, k: Kernel, gmem: Value, ld: Value, *, BITS: int, along_k: bool, EXTENT: int, CTA_K: int,
                 THREADS: int, VECTOR: int = 16, UNIT: int | None = None) -> None:
        self.k, self.gmem, self.BITS, self.along_k, self.EXTENT, self.CTA_K = k, gmem, BITS, along_k, EXTENT, CTA_K
        self.THREADS = THREADS
        self.E = UNIT or BITS // 8
        self.T = _BITS[self.E]
        self.ld = k.cast(ld, i64) * self.E
        self.ROW = CTA_K * BITS // 8                            # bytes
        self.PIECES = self.ROW // PIECE
        self.padded = self.PIECES & (self.PIECES - 1) != 0      # no power of two: rows of 6-bit elements
        self.LDS_ROW = self.ROW + HALF.bytes * self.padded
        self.SIZE = EXTENT * self.LDS_ROW
        self.direct = along_k and not self.padded               # whether it can be copied straight into LDS
        self._share_along() if along_k else self._share_across(VECTOR)

    def _share_along(self) -> None:
        """CHUNKS threads to a row, each with so many bytes of it."""
        self.CHUNKS = self.PIECES & -self.PIECES
        self.BYTES = self.ROW // self.CHUNKS
        ROWS = min(self.THREADS // self.CHUNKS, self.EXTENT)
        self.ACTIVE = ROWS * self.CHUNKS
        self.sources = [*range(0, self.EXTENT, ROWS)]
        self.passes = [Pass(h, byte, row, byte) for h, row in enumerate(self.sources)
                       for byte in range(0, self.BYTES, PIECE)]

    def _share_across(self, VECTOR: int) -> None:
        """A thread turns TURNED_K steps of TURNED_I elements, as many steps as leave work for all threads."""
        self.TURNED_I = min(PIECE, VECTOR*self.E) // self.E
        blocks = self.EXTENT // self.TURNED_I
        self.TURNED_K = next((PIECE // self.E // part for part in (1, 2, 4)
                              if PIECE // self.E // part >= 1
                              and blocks * (self.CTA_K // (PIECE // self.E // part)) >= self.THREADS),
                             max(4 // self.E, 1))
        self.CHUNKS = min(blocks, self.THREADS)
        ROWS = min(self.THREADS // self.CHUNKS, self.CTA_K // self.TURNED_K)            # of TURNED_K steps
        self.ACTIVE = ROWS * self.CHUNKS
        across = [*range(0, self.EXTENT, self.CHUNKS*self.TURNED_I)]
        steps = [*range(0, self.CTA_K, ROWS*self.TURNED_K)]
        self.sources = [*across]
        self.passes = [Pass(h, p, i, p*self.E) for p in steps for h, i in enumerate(across)]

    # ---- global memory to LDS

    def begin(self, t: Value, first: Value, limit: Value, k_first: Value) -> None:
        """For rows from `first` on of `limit`, from step k_first of k on: the workgroup's running address, and how far
        after it each thread's sources are."""
        k = self.k
        self.t = t
        chunk, row = t % self.CHUNKS, t // self.CHUNKS
        start, first64 = k.cast(k_first, i64), k.cast(first, i64)
        if self.along_k:
            self.thread_i, self.thread_byte = row, chunk*self.BYTES
            far = first64*self.ld + start*self.BITS // 8
            self.offsets = [k.cast(k.min(first + row + offset, limit - 1) - first, i64)*self.ld
                            + k.cast(self.thread_byte, i64) for offset in self.sources]
        else:
            self.thread_i, self.thread_p = chunk*self.TURNED_I, row*self.TURNED_K
            self.thread_byte = self.thread_p*self.E
            far = start*self.ld + first64*self.E
            self.offsets = [k.cast(self.thread_p, i64)*self.ld + k.cast(
                k.min(first + self.thread_i + offset, limit - self.TURNED_I) - first, i64)*self.E
                for offset in self.sources]
        self.address = k.variable(ptr(i8), self.gmem.as_(i8) + far)
        steps = 1 if self.along_k else self.TURNED_K
        self.carried = [[k.variable(WORD if self.along_k else vec(self.T, self.TURNED_I)) for _ in range(steps)]
                        for _ in self.passes]

    def _advance(self, steps: Value) -> None:
        """The running address, by so many steps of k."""
        steps = self.k.cast(steps, i64)
        self.address.set(self.address.get() + (steps*self.BITS // 8 if self.along_k else steps*self.ld))

    def fetch(self, more: Value) -> None:
        """Load the next tile into registers; there is `more` after it, or the same will come again."""
        k = self.k
        with self._some():
            base = self.address.get()
            for each, registers in zip(self.passes, self.carried, strict=True):
                at = base + self.offsets[each.source]
                if self.along_k:
                    registers[0].set(k.load((at + each.offset).as_(i32), WORD, align=self.E))
                    continue
                for step, register in enumerate(registers):
                    here = at + k.constant(i64, each.offset + step)*self.ld
                    register.set(k.load(here.as_(self.T), register.tile.type, align=self.E))
        self._advance(k.select(more, k.constant(i32, self.CTA_K), 0))

    def fetch_some(self, steps: Value) -> None:
        """The same of the first tile, of which only so many steps are there: zeros stand for the others."""
        k = self.k
        last = k.max(steps - 1, 0)
        with self._some():
            base = self.address.get()
            for each, registers in zip(self.passes, self.carried, strict=True):
                at = base + self.offsets[each.source]
                if self.along_k:
                    registers[0].set(self._some_elements(at, each, steps))
                    continue
                for step, register in enumerate(registers):
                    p = self.thread_p + (each.offset + step)
                    here = at + k.cast(k.min(p, last) - self.thread_p, i64)*self.ld
                    x = k.load(here.as_(self.T), register.tile.type, align=self.E)
                    nothing = k.constant(self.T, 0)
                    register.set(k.select(p < steps, x, k.broadcast(nothing, self.TURNED_I) if self.TURNED_I > 1
                                          else nothing))
        self._advance(steps)

    def _some_elements(self, at: Value, each: Pass, steps: Value) -> Value:
        """A piece, element by element: those that are not there are not read, but the last one instead."""
        k, E = self.k, self.E
        size = steps*self.BITS // 8                             # bytes of a row that are there
        final = k.max(size - E, 0)
        elements = []
        for e in range(PIECE // E):
            byte = self.thread_byte + (each.offset + e*E)
            x = k.load((at + k.cast(k.min(byte, final) - self.thread_byte, i64)).as_(self.T), self.T)
            elements.append(k.select(byte < size, x, k.constant(self.T, 0)))
        packed = k.pack(*elements)
        return packed if packed.type == WORD else k.reinterpret(packed, WORD)

    def stash(self, smem: Value) -> None:
        """Write the registers to the tile of LDS at `smem`."""
        k = self.k
        with self._some():
            for each, registers in zip(self.passes, self.carried, strict=True):
                if self.along_k:
                    at = self._place(smem, self.thread_i + each.row, self.thread_byte + each.byte).as_(i32)
                    whole = registers[0].get()
                    if self.padded:                             # such a row begins at a multiple of 8 bytes
                        k.store(at, k.shuffle(whole, whole, range(2)))
                        k.store(at + 2, k.shuffle(whole, whole, range(2, 4)))
                    else:
                        k.store(at, whole)
                    continue
                vectors = [register.get() for register in registers]
                for e in range(self.TURNED_I):
                    turned = [x[e] if self.TURNED_I > 1 else x for x in vectors]
                    at = self._place(smem, self.thread_i + (each.row + e), self.thread_byte + each.byte)
                    k.store(at.as_(self.T), k.pack(*turned) if len(turned) > 1 else turned[0])

    def _place(self, smem: Value, row: Value, byte: Value) -> Value:
        """Where byte `byte` of row `row` is kept."""
        if self.padded:
            return smem + (row*self.LDS_ROW + byte)
        piece = column(byte // PIECE, self.PIECES) ^ swizzle(row, self.PIECES)
        return smem + (row*self.LDS_ROW + piece*PIECE + byte % PIECE)

    def turn(self) -> None:
        """The tile before has been multiplied."""

    @property
    def COPIES(self) -> int:
        """Direct copies that a wave makes of one tile."""
        return len(self.passes)

    def start(self, smem: Value, more: Value) -> None:
        """Start to copy the tile at the pointers straight to LDS at `smem`, where the lanes of a wave fill 1024 bytes
        in a row: each lane reads the piece that belongs to its place."""
        k, wave = self.k, self.t // LANES
        base = self.address.get()
        for each in self.passes:
            byte = self.thread_byte
            moved = column(byte // PIECE ^ swizzle(self.thread_i + each.row, self.PIECES), self.PIECES)*PIECE
            gmem = base + (self.offsets[each.source] + k.cast(moved - byte, i64))
            k.lds_load(smem + (wave*(LANES*PIECE) + each.row*self.LDS_ROW), gmem, PIECE, base=base)
        self._advance(k.select(more, k.constant(i32, self.CTA_K), 0))

    def _some(self) -> Any:
        return nullcontext() if self.ACTIVE == self.THREADS else self.k.when(self.t < self.ACTIVE)

    # ---- LDS to a lane's registers

    def part(self, first: Value, lane: Value, ROWS: int, STEP: int) -> None:
        """A lane reads for instructions that take ROWS rows, from row `first` on (a multiple of 32): row lane % ROWS.
        STEP: of k in one instruction."""
        self.ROWS, self.GROUPS, self.STEP = ROWS, LANES // ROWS, STEP
        self.group, self.lane_row = lane // ROWS, lane % ROWS
        self.lane_start = (first + self.lane_row)*self.LDS_ROW
        self.hidden = self.group ^ swizzle(self.lane_row, self.PIECES) if not self.padded else self.group
        self.BYTES_LANE = STEP*self.BITS // 8 // self.GROUPS            # of an instruction
        self.places: dict[int, Value] = {}
        for read in range(self.ROW // (self.GROUPS*PIECE) if not self.padded else 0):
            for tile in range(2):
                variant = self._variant(read, tile)
                if variant not in self.places:
                    self.places[variant] = self.lane_start + (self.hidden ^ variant)*PIECE

    def _variant(self, read: int, tile: int) -> int:
        """By what a lane's piece of this read and these rows is XORed, beside what depends on the lane."""
        return int(column(read*self.GROUPS, self.PIECES) ^ swizzle(tile*self.ROWS % 32, self.PIECES))

    @property
    def READS(self) -> int:
        """Instructions whose operands are read together: one, or as many as 16 bytes of a lane are for."""
        return max(PIECE // self.BYTES_LANE, 1)

    def read(self, smem: Value, tile: int, step: int) -> list[Value]:
        """For READS instructions from `step` on, the lane's part of rows tile*ROWS ...: vectors of 32-bit words."""
        k = self.k
        if self.padded:                                                 # 24 bytes of a lane
            at = smem + (self.lane_start + self.group*24 + (tile*self.ROWS*self.LDS_ROW + step*24*self.GROUPS))
            parts = [k.load((at + HALF.bytes*e).as_(i32), HALF) for e in range(3)]
            return [k.pack(*(part[e] for part in parts for e in range(2)))]
        count = max(self.BYTES_LANE // PIECE, 1)                        # pieces of one instruction
        pieces = []
        for e in range(count):
            read = step // self.READS * count + e
            at = self.places[self._variant(read, tile)] + tile*self.ROWS*self.LDS_ROW
            pieces.append(k.load((smem + at).as_(i32), WORD))
        if count > 1:
            return [k.shuffle(pieces[0], pieces[1], range(8))]
        words = 4 // self.READS
        return [k.shuffle(pieces[0], pieces[0], range(e*words, (e + 1)*words)) if words > 1 else pieces[0][e]
                for e in range(self.READS)] if self.READS > 1 else pieces

