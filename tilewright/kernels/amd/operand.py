"""A or B of a GEMM on its way to the Matrix Cores: from global memory to a tile in LDS.

    k is contiguous     pieces are copied as they are, through registers or straight into LDS
    i is contiguous     a thread loads vectors along i from some steps of k, transposes them in its registers, and
                        writes pieces, or halves and quarters of them

i stands for a row of A or a column of B. What a workgroup has beyond the matrix along i is copied from its last row,
and never stored; beyond k, which happens in the first tile alone, it is 0.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilewright.ir import Kernel, Type, Value, i8, i16, i32, i64, ptr, vec
from tilewright.ir.values import Variable
from tilewright.kernels.amd.lds_tile import (
    CHUNK,
    LANES,
    LOWER,
    PIECE,
    UPPER,
    WORD,
    LdsTile,
    swizzled_piece,
    swizzled_row,
)
from tilewright.kernels.amd.pipeline import Buffered, Direct, Do
from tilewright.kernels.gpu.work import first_threads

UPPER_WORDS = UPPER.bytes // 4
QUAD = vec(i8, 4)                               # bytes of a register
_BITS = {1: i8, 2: i16, 4: i32, 8: i64}         # elements, as far as copying goes


@dataclass(frozen=True)
class Pass:
    """One copy of each thread: from which running pointer, and how far after it in bytes; to which row and byte."""
    source: int
    offset: int
    row: int
    byte: int


@dataclass(frozen=True)
class Copy:
    """One copy of each lane straight into LDS: from how far after the running address, to which place in the tile."""
    source: Value
    place: int                  # of the first thread's, in bytes
    bytes: int


class LdsOperand(LdsTile, Buffered, Direct):
    """A tile that is copied; the rows of the matrix lie `ld` units of UNIT bytes apart.

    Units are what can be loaded alone: by default elements, but of the narrow ones that come in blocks, 8 bytes.
    """

    def __init__(self, k: Kernel, gmem: Value, ld: Value, *, BITS: int, along_k: bool, EXTENT: int, CTA_K: int,
                 THREADS: int, VECTOR: int = 16, UNIT: int | None = None) -> None:
        super().__init__(k, BITS=BITS, EXTENT=EXTENT, CTA_K=CTA_K, K_STRIDED=not along_k)
        self.gmem, self.along_k, self.THREADS = gmem, along_k, THREADS
        self.E = UNIT or BITS // 8
        self.T = _BITS[self.E]
        self.ld = k.cast(ld, i64) * self.E
        copies = [EXTENT*self.PIECES] + ([EXTENT*self.PIECES*UPPER_WORDS] if self.upper else [])
        self.direct = along_k and not any(count % THREADS for count in copies)     # whether it can go straight into LDS
        self._share_along() if along_k else self._share_across(VECTOR)

    def _share_along(self) -> None:
        """CHUNKS threads to a row, each with so many bytes of it."""
        pieces = self.ROW // PIECE
        self.CHUNKS = pieces & -pieces
        self.BYTES = self.ROW // self.CHUNKS
        ROWS = min(self.THREADS // self.CHUNKS, self.EXTENT)
        self.ACTIVE = ROWS * self.CHUNKS
        self.sources = [*range(0, self.EXTENT, ROWS)]
        self.passes = [Pass(h, byte, row, byte) for h, row in enumerate(self.sources)
                       for byte in range(0, self.BYTES, PIECE)]

    def _share_across(self, VECTOR: int) -> None:
        """A thread transposes BLOCK_K steps of BLOCK_I elements: a block that leaves work for all threads, as large as
        such blocks get, and of these one that takes the fewest loads and stores."""
        WIDEST, E = PIECE // self.E, self.E
        widths = [width for width in (1, 2, 4, 8, 16) if width <= min(WIDEST, VECTOR, self.EXTENT // 4)]
        depths = [depth for depth in (1, 2, 4, 8, 16) if 4 // E <= depth <= WIDEST]
        shared = self.EXTENT*self.CTA_K // self.THREADS
        self.BLOCK_I, self.BLOCK_K = min(
            ((width, depth) for width in widths for depth in depths),
            key=lambda block: (block[0]*block[1] > shared, -block[0]*block[1], sum(block), -block[0]))
        blocks = self.EXTENT // self.BLOCK_I
        self.CHUNKS = min(blocks, self.THREADS)
        ROWS = min(self.THREADS // self.CHUNKS, self.CTA_K // self.BLOCK_K)            # of BLOCK_K steps
        self.ACTIVE = ROWS * self.CHUNKS
        self.PARTS = min(PIECE // (self.BLOCK_K*self.E), ROWS)         # rows of a piece
        across = [*range(0, self.EXTENT, self.CHUNKS*self.BLOCK_I)]
        steps = [*range(0, self.CTA_K, ROWS*self.BLOCK_K)]
        self.sources = [*across]
        self.passes = [Pass(h, p, i, p*self.E) for p in steps for h, i in enumerate(across)]

    def begin(self, t: Value, first: Value, limit: Value, k_first: Value) -> None:
        """For rows from `first` on of `limit`, from step k_first of k on: the workgroup's running address, and how far
        after it each thread's sources are."""
        k = self.k
        self.t = t
        chunk, row = self._shared_out(t)
        start, first64 = k.cast(k_first, i64), k.cast(first, i64)
        if self.along_k:
            self.thread_i, self.thread_byte = row, chunk*self.BYTES
            far = first64*self.ld + start*self.BITS // 8
            self.offsets = [k.cast(k.min(first + row + offset, limit - 1) - first, i64)*self.ld
                            + k.cast(self.thread_byte, i64) for offset in self.sources]
        else:
            self.thread_i, self.thread_p = chunk*self.BLOCK_I, row*self.BLOCK_K
            self.thread_byte = self.thread_p*self.E
            far = start*self.ld + first64*self.E
            self.offsets = [k.cast(self.thread_p, i64)*self.ld + k.cast(
                k.min(first + self.thread_i + offset, limit - self.BLOCK_I) - first, i64)*self.E
                for offset in self.sources]
        self.address = k.variable(ptr(i8), self.gmem.as_(i8) + far)
        self.copies = self._copies(first, limit) if self.direct else []
        self.COPIES = len(self.copies)
        steps = 1 if self.along_k else self.BLOCK_K
        self.carried = [[k.variable(WORD if self.along_k else row_type(self.T, self.BLOCK_I)) for _ in range(steps)]
                        for _ in self.passes]

    def _shared_out(self, t: Value) -> tuple[Value, Value]:
        """Which chunk of which row is this thread's. Eight threads have chunks, then come the parts of a piece, so that
        those that write to LDS in one pass have all of its banks."""
        if self.along_k:
            return t % self.CHUNKS, t // self.CHUNKS
        NEAR = min(self.CHUNKS, 8)
        near, part, far = t % NEAR, t // NEAR % self.PARTS, t // (NEAR*self.PARTS)
        FAR = self.CHUNKS // NEAR
        return near + far % FAR*NEAR, part + far // FAR*self.PARTS

    def _advance(self, steps: Value) -> None:
        """The running address, by so many steps of k."""
        steps = self.k.cast(steps, i64)
        self.address.set(self.address.get() + (steps*self.BITS // 8 if self.along_k else steps*self.ld))

    def loads(self, more: Value) -> list[list[Do]]:
        """Load the next tile into registers, those of each pass; there is `more` after it, or the same will come
        again."""
        base = self.address.get()
        loads: list[list[Do]] = [
            [partial(self._load, base, part, step, register) for step, register in enumerate(registers)]
            for part, registers in zip(self.passes, self.carried, strict=True)]
        steps = partial(self.k.select, more, self.k.constant(i32, self.CTA_K), 0)
        return [*loads, [lambda: self._advance(steps())]]

    def _load(self, base: Value, each: Pass, step: int, register: Variable) -> None:
        k, TYPE = self.k, register.tile.type
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            at = base + self.offsets[each.source]
            at = at + each.offset if self.along_k else at + k.constant(i64, each.offset + step)*self.ld
            register.set(k.load(at.as_(TYPE.scalar), TYPE, align=self.E))

    def load_first_tile(self, steps: Value) -> None:
        """Load the first tile, of which only so many steps are there: zeros stand for the others."""
        k = self.k
        last = k.max(steps - 1, 0)
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            base = self.address.get()
            for part, registers in zip(self.passes, self.carried, strict=True):
                at = base + self.offsets[part.source]
                if self.along_k:
                    registers[0].set(self._some_elements(at, part, steps))
                    continue
                for step, register in enumerate(registers):
                    p = self.thread_p + (part.offset + step)
                    here = at + k.cast(k.min(p, last) - self.thread_p, i64)*self.ld
                    TYPE = register.tile.type
                    x = k.load(here.as_(TYPE.scalar), TYPE, align=self.E)
                    register.set(k.select(p < steps, x, k.constant(TYPE, 0)))
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

    def stores_to_lds(self, smem: Value) -> list[list[Do]]:
        """Write the registers to the tile of LDS at `smem`, those of each pass."""
        if self.along_k:
            return [[partial(self._store_to_lds, smem, number)] for number in range(len(self.passes))]
        columns = range(0, self.BLOCK_I, 2)
        return [[partial(self._store_transposed, smem, number, e) for e in columns]
                for number in range(len(self.passes))]

    def _store_to_lds(self, smem: Value, number: int) -> None:
        k, part, piece = self.k, self.passes[number], self.carried[number][0].get()
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            at = self.lds_address(smem, self.thread_i + part.row, self.thread_byte + part.byte).as_(i32)
            if self.upper:                                      # the halves may lie apart
                upper = self.lds_address(smem, self.thread_i + part.row, self.thread_byte + (part.byte + 8)).as_(i32)
                k.store(at, k.shuffle(piece, piece, range(2)))
                k.store(upper, k.shuffle(piece, piece, range(2, 4)))
            else:
                k.store(at, piece)

    def _store_transposed(self, smem: Value, number: int, first: int) -> None:
        k, part, rows = self.k, self.passes[number], [x.get() for x in self.carried[number]]
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            for i, column in enumerate(transposed(k, rows, self.T, first), part.row + first):
                at = self.lds_address(smem, self.thread_i + i, self.thread_byte + part.byte)
                k.store(at.as_(column.type.scalar), column)

    def _copies(self, first: Value, limit: Value) -> list[Copy]:
        """Copies of a tile straight into LDS, where the lanes of a wave fill places in a row: each lane reads the piece
        that belongs to its place; upper bytes of 6-bit elements by the word."""
        k, t = self.k, self.t

        def source(row: Value, byte: Value) -> Value:
            return k.cast(k.min(first + row, limit - 1) - first, i64)*self.ld + k.cast(byte, i64)
        copies = []
        for done in range(0, self.EXTENT*self.PIECES, self.THREADS):
            row, place = t // self.PIECES + done // self.PIECES, t % self.PIECES
            piece = swizzled_piece(place ^ self.swizzled(row), self.PIECES)
            copies.append(Copy(source(row, piece*self.CHUNK), done*PIECE, PIECE))
        for done in range(0, self.EXTENT*self.PIECES*UPPER_WORDS if self.upper else 0, self.THREADS):
            place = t // UPPER_WORDS + done // UPPER_WORDS
            block = place // self.EXTENT
            byte = block*CHUNK + (LOWER + t % UPPER_WORDS * 4)
            row = swizzled_row(place % self.EXTENT, block)
            copies.append(Copy(source(row, byte), self.EXTENT*self.LDS_ROW + done*4, 4))
        return copies

    def start(self, smem: Value) -> list[Do]:
        """Start to copy the tile at the running address straight to LDS at `smem`: what is to be done, in this order.
        """
        k, wave, base = self.k, self.t // LANES, self.address.get()

        def copy(each: Copy) -> Do:
            return lambda: k.lds_load(smem + (wave*(LANES*each.bytes) + each.place), base + each.source, each.bytes,
                                      base=base)
        return [copy(piece) for piece in self.copies]

    def advance(self, more: Value) -> None:
        """To the next tile, if there are more."""
        self._advance(self.k.select(more, self.k.constant(i32, self.CTA_K), 0))


# ---- a block of elements in a thread's registers: what came row by row is handed on column by column


def row_type(T: Type, count: int) -> Type:
    """The type in which so many elements of a row wait: bytes as words, since LLVM 22 takes vectors of them apart."""
    return vec(i32, count // 4) if T == i8 and count % 4 == 0 else vec(T, count)


def transposed(k: Kernel, rows: list[Value], T: Type, first: int) -> list[Value]:
    """Rows of elements T, as `row_type` says: two columns from an even one on, or the only one, each as one value."""
    length = rows[0].type.length
    if T == i8 and rows[0].type.scalar == i32:
        quads = [k.reinterpret(row[first // 4] if length > 1 else row, QUAD) for row in rows]
        return _bytes(k, quads, first % 4)
    return [_side_by_side(k, [x[first + e] for x in rows] if length > 1 else rows) for e in range(min(length, 2))]


def _bytes(k: Kernel, rows: list[Value], first: int) -> list[Value]:
    """Columns 0 and 1, or 2 and 3, of a multiple of four rows of four bytes, four by four in two steps: pairs of two
    rows, then pairs of pairs. Each makes a register of two (v_perm_b32)."""
    columns: tuple[list[Value], list[Value]] = [], []
    for r in range(0, len(rows), 4):
        x, y = (k.shuffle(rows[r + e], rows[r + e + 1], (first, first + 4, first + 1, first + 5)) for e in (0, 2))
        for column, both in zip(columns, ((0, 1, 4, 5), (2, 3, 6, 7)), strict=True):
            column.append(k.reinterpret(k.shuffle(x, y, both), i32))
    return [_side_by_side(k, column) for column in columns]


def _side_by_side(k: Kernel, column: list[Value]) -> Value:
    return k.pack(*column) if len(column) > 1 else column[0]
