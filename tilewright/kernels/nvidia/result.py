"""A CTA's accumulators on their way to gpu/epilogue: which elements of C a lane has, and sums over slices of warps.

A lane has its rows and columns in pieces of a vector each, and pieces of neighbouring lanes lie side by side: the
lanes' vector loads from shared memory then touch adjacent banks, and their stores to C whole sectors.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tilewright.atoms.wgmma import swizzled
from tilewright.ir import Kernel, TensorMap, Tile, Type, Value, i32, vec
from tilewright.kernels.expression import Arithmetic
from tilewright.kernels.gpu.auxiliary import Scales
from tilewright.kernels.gpu.epilogue import Out, Run
from tilewright.kernels.gpu.fused import Loaded
from tilewright.kernels.gpu.split_k import Holders, finish
from tilewright.kernels.gpu.work import Work
from tilewright.plans.epilogues import slots
from tilewright.plans.nvidia_model import EXCHANGED

LANES = 32
MOST_UNROLLED = 1500        # instructions of an epilogue, which 32 KB hold with a main loop: else `Copied` has a loop
PAD = 8                     # elements after a staged row: lanes of two rows then write different banks


@dataclass(frozen=True)
class Piece:
    base: Value             # base + offset: where the lane's vector starts in the CTA's tile
    offset: int
    width: int              # its elements


@dataclass(frozen=True)
class Partition:
    """Rows or columns of a lane, in the order of its registers."""
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> list[tuple[Value, int]]:
        """(base, offset) of each of the lane's elements."""
        return [(piece.base, piece.offset + e) for piece in self.pieces for e in range(piece.width)]


def partition(warp_start: Value, lane: Value, LANES: int, THREAD: int, WIDEST: int) -> Partition:
    """THREAD elements for each of LANES lanes, from `warp_start`, in pieces of WIDEST elements and then narrower."""
    pieces, done = [], 0
    while done < THREAD:
        width = WIDEST
        while width > THREAD - done:
            width //= 2
        pieces.append(Piece(warp_start + lane*width, done*LANES, width))
        done += width
    return Partition(tuple(pieces))


def lane_grid(lane: Value, LANES_M: int, LANES_N: int) -> tuple[Value, Value]:
    """(row, column) of a lane among LANES_M x LANES_N.

    A 16-byte load from shared memory takes two passes instead of four if lanes l and l^1, or l and l^2, always read the
    same vector, and half a warp reads no more than eight. So the lowest bit of the lane says the row, the next one the
    column, and the rest of the longer side comes before the rest of the shorter one.
    """
    rows, cols = LANES_M.bit_length() - 1, LANES_N.bit_length() - 1
    order = "m" * min(rows, 1) + "n" * min(cols, 1)
    rest = "m" * (rows - min(rows, 1)), "n" * (cols - min(cols, 1))
    order += "".join(sorted(rest, key=len, reverse=True))
    extents = {}
    for side in "mn":
        coordinate, bits = lane.k.constant(lane.type, 0), 0
        run = 0                                             # consecutive bits of the lane move together
        for bit in range(len(order)):
            if order[bit] == side:
                run += 1
            if run and (bit + 1 == len(order) or order[bit + 1] != side):
                low = bit + 1 - run
                part = (lane >> low) % (1 << run) if bit + 1 < len(order) else lane >> low
                coordinate, bits, run = (part << bits) + coordinate if bits else part, bits + run, 0
        extents[side] = coordinate
    return extents["m"], extents["n"]


@dataclass(frozen=True)
class Result:
    """acc[i, j] belongs to row i of `rows` and column j of `columns`, which count from the beginning of the CTA's tile.
    """
    acc: Tile
    rows: Partition
    columns: Partition
    more: Sequence[Tile] = ()       # further fields of a state, which come after the first one of each element

    def runs(self, work: Work, VECTOR: int) -> Iterator[Run]:
        """The lane's elements, VECTOR of a row at once where it has them side by side."""
        for i, (base, offset) in enumerate(self.rows.elements):
            row, j = work.i0 + base + offset, 0
            for piece in self.columns.pieces:
                width = min(piece.width, VECTOR)
                for e in range(0, piece.width, width):
                    column = work.j0 + piece.base + (piece.offset + e)
                    yield Run(row, column, [x[i, j + d] for d in range(width) for x in (self.acc, *self.more)])
                    j += width


@dataclass(frozen=True)
class Staging:
    """Shared memory in which the lanes of a warp exchange elements of C, so that neighbouring lanes write neighbouring
    vectors of Out.VECTOR elements: whole lines of C, instead of a sector or less each.

    smem        of the warp, `size` elements for each
    rows_of     rows of the lanes in row r of the warp's lanes, in the CTA's tile
    columns     of this lane, in the warp's part of the tile, which is WARP_N wide; lane_m is its row of lanes
    PAD         elements after each row
    """
    smem: Value
    lane_m: Value
    rows_of: Callable[[Value], Partition]
    columns: Partition
    WARP_N: int
    PAD: int = PAD

    @staticmethod
    def size(LANES_M: int, WARP_N: int, PAD: int = PAD) -> int:
        """Elements of shared memory, for each warp."""
        return LANES_M * (WARP_N + PAD)

    def store(self, out: Out, work: Work, acc: Tile) -> None:
        """Stores all elements of the warp, as out.store does."""
        k, ROW, LANES_M = out.k, self.WARP_N + self.PAD, LANES * acc.cols // self.WARP_N
        VECTOR = min(out.VECTOR, EXCHANGED)
        WIDE = min(LANES*VECTOR, self.WARP_N)                   # of a row, by the lanes at once
        TOGETHER = LANES*VECTOR // WIDE                         # rows
        lane_row, lane_column = work.lane // (WIDE // VECTOR), work.lane % (WIDE // VECTOR) * VECTOR

        def read(r: Value, first: int) -> list[Value]:
            found = k.load(self.smem + lane_column + r*ROW + first, vec(acc.type, VECTOR))
            return [found[e] for e in range(VECTOR)] if VECTOR > 1 else [found]

        def put(i: int, r: Value, first: int, values: list[Value], read_c: bool) -> None:
            base, offset = self.rows_of(r).elements[i]
            row, column = work.i0 + base + offset, work.j0 + work.j1 + lane_column + first
            inside = (row < out.m) & (column < out.n)
            out.put(row, column, out.scaled(values, row, column), read_c, inside,
                    out.row(row) + out.column(column))

        def each(read_c: bool) -> None:
            for i in range(acc.rows):
                j = 0
                for piece in self.columns.pieces:
                    values = [acc[i, j + e] for e in range(piece.width)]
                    at = self.smem + self.lane_m*ROW + piece.base + piece.offset
                    k.store(at, k.pack(*values) if len(values) > 1 else values[0])
                    j += piece.width
                k.warp_barrier()
                if VECTOR == 1:                                         # unrolled, its addresses are too many
                    with k.loop(LANES_M // TOGETHER, unroll=False) as turn:
                        r = turn*TOGETHER + lane_row if TOGETHER > 1 else turn
                        for first in range(0, self.WARP_N, WIDE):
                            put(i, r, first, read(r, first), read_c)
                else:                                                   # a branch waits for no load of its own
                    rows = [lane_row + r for r in range(0, LANES_M, TOGETHER)]
                    places = [(r, first) for r in rows for first in range(0, self.WARP_N, WIDE)]
                    for (r, first), values in [(at, read(*at)) for at in places]:
                        put(i, r, first, values, read_c)
                k.warp_barrier()
        out.cases_of_beta(each)


class Blocks(Protocol):
    """Sums of a warp in the registers of a matrix instruction."""
    @property
    def shape(self) -> tuple[int, int]: ...                 # blocks of rows, and elements of each in a lane
    def element(self, i: int, e: int) -> Value: ...
    @property
    def movable(self) -> bool: ...                          # `advance` can be called
    def forget(self) -> None: ...
    def advance(self, count: int) -> None: ...              # element `count` of all blocks becomes 0, the next 1 ...


@dataclass(frozen=True)
class Copied:
    """C by way of shared memory and a tensor map: a warp writes blocks of 16 rows of ROW bytes to its buffers in turn,
    swizzled, and its first thread has each copied to C while the next one is written, or the next tile multiplied. The
    edges of C are the map's.

    ROW         a swizzle: `row` of the tile's rows
    smem        of the warp, BUFFERS times SIZE bytes at a multiple of 1024
    matrix      of a batch
    BUFFERS     1 or 2
    """
    k: Kernel
    ROW: int
    map: Value
    smem: Value
    lane: Value
    matrix: Value | None
    BUFFERS: int

    ROWS, SWIZZLES = 16, (128, 64, 32)
    SIZE = ROWS*SWIZZLES[0]

    @classmethod
    def row(cls, BYTES: int) -> int:
        """Bytes of a row in a block of a tile whose rows have so many bytes: the most that divide them; 0: none do."""
        return next((swizzle for swizzle in cls.SWIZZLES if BYTES % swizzle == 0), 0)

    @classmethod
    def map_type(cls, T: Type, ROW: int, BATCH: bool) -> TensorMap:
        return TensorMap(T, (ROW // T.bytes, cls.ROWS) + (1,)*BATCH, ROW)

    def store(self, out: Out, sums: Blocks, row: Value, column: Value, APART: int) -> None:
        """sums: of blocks of 16 rows as in atoms.nvidia, the first of them row + i*APART and column."""
        WIDTH = self.ROW // out.c.type.element.bytes * out.EACH         # columns of sums
        COUNT, ELEMENTS = sums.shape
        EACH = 2*ELEMENTS // WIDTH                                      # blocks of rows
        ONCE = BLOCKS = COUNT*EACH                                      # ONCE: of which the instructions are emitted
        if out.fused and sums.movable:
            size = WIDTH // 2 * slots(out.fused.epilogue.text)
            ONCE = max(n for n in range(1, BLOCKS + 1) if BLOCKS % n == 0 and (n == 1 or n*size <= MOST_UNROLLED))

        def some(first: Any, read_c: bool) -> None:
            for block in range(ONCE):
                number = first + block if ONCE < BLOCKS else block
                i, at = divmod(block, EACH)
                if ONCE < BLOCKS:
                    place = row + number // EACH * APART, 0, column + number % EACH * WIDTH - at*WIDTH
                else:
                    place = row, i*APART, column
                self._block(out, sums, number if ONCE % 2 else block, BLOCKS, *place, i, at*WIDTH, read_c)

        def each(read_c: bool) -> None:
            if ONCE == BLOCKS:
                some(0, read_c)
                return
            with self.k.loop(BLOCKS, step=ONCE, unroll=False) as first:
                some(first, read_c)
                with self.k.when(first < BLOCKS - ONCE):
                    sums.advance(ONCE*WIDTH // 2)
            sums.forget()
        out.cases_of_beta(each)

    def _block(self, out: Out, sums: Blocks, number: Any, COUNT: int, row: Value, down: int, column: Value, i: int,
               first: int, read_c: bool) -> None:
        """Block `number` of COUNT of C, `down` rows below this one and `first` columns behind this one. Its numbers
        come of those columns of block i of the sums."""
        k, T, lane = self.k, out.c.type.element, self.lane
        WIDTH = self.ROW // T.bytes * out.EACH
        buffer = self.smem + number % self.BUFFERS * self.SIZE
        # The copy before the last had this buffer; the first block's had the last of a tile with an odd number of them.
        last = self.BUFFERS == 1 or (COUNT % 2 == 1 and (not isinstance(number, int) or number == 0))
        with k.when(lane == 0):
            k.bulk_wait(int(not last), read=True)
        k.warp_barrier()
        start = k.uniform(column) if out.fused else column              # anew: else LLVM keeps all operands' addresses
        rows = [row + (down + half*8) + lane // 4 for half in range(2)]
        columns = {e: start + e*8 + lane % 4 * 2 for e in range(first // 8, (first + WIDTH) // 8)}
        by, memo = self._factors(out.scales, rows, columns) if out.scales else {}, dict[Any, list[Value]]()
        pairs = []
        for e in range(first // 2, (first + WIDTH) // 2, 2):
            half, pair = e // 2 % 2, e // 4
            loaded = out.fused.loaded(rows[half], columns[pair], 2, memo) if out.fused else None
            pairs.append(self._pair(out, [sums.element(i, e), sums.element(i, e + 1)], rows[half], columns[pair],
                                    read_c, by.get((half, pair)), loaded))
        self._write(buffer, pairs, T)
        k.fence_async()
        k.warp_barrier()
        at = out.column(column + first), row + down
        with k.when(lane == 0):
            k.tma_store(self.map, at if self.matrix is None else (*at, self.matrix), buffer)
            k.bulk_commit()

    @staticmethod
    def _factors(scales: Scales, rows: list[Value], columns: dict[int, Value]
                 ) -> dict[tuple[int, int], tuple[Value, list[Value]]]:
        """Factors of each half of the rows and each pair of columns, each read once."""
        by_row = [scales.row(at) for at in rows]
        by_column = {e: [scales.column(at + x) for x in range(2)] for e, at in columns.items()}
        return {(half, e): (x, pair) for half, x in enumerate(by_row) for e, pair in by_column.items()}

    def _write(self, buffer: Value, pairs: list[Value], T: Type) -> None:
        """A block: pairs of the rows of a matrix instruction, upper and lower half, 8 columns after 8 columns, or what
        an epilogue makes of each pair. Without bank conflicts: of 32 bits every other row of 128 bytes has the pairs 16
        columns further first."""
        k, lane = self.k, self.lane
        if pairs[0].type.length == 1:
            for at, x in enumerate(pairs):
                place = (lane // 4 + at % 2 * 8)*self.ROW + (lane % 4 + at // 2 * 4)*T.bytes
                k.store((buffer + swizzled(place, self.ROW)).as_(T), x)
            return
        if T.bytes == 2:
            for first in range(0, len(pairs), 4):
                place = lane % 16 * self.ROW + lane // 16 * 16 + first*8
                k.stmatrix(buffer + swizzled(place, self.ROW), [k.reinterpret(x, i32) for x in pairs[first:first + 4]])
            return
        row, odd = lane // 4 * self.ROW + lane % 4 * (2*T.bytes), lane // 4 % 2
        if T.bytes == 4 and self.ROW == 128:
            row, pairs = row + odd * 64, [k.select(odd == 1, pairs[at ^ 4], x) for at, x in enumerate(pairs)]
        for at, x in enumerate(pairs):
            place = swizzled(row + at % 2 * (8*self.ROW), self.ROW) ^ at // 2 * (8*T.bytes)
            k.store((buffer + place).as_(T), x)

    @staticmethod
    def _pair(out: Out, sums: list[Value], row: Value, column: Value, read_c: bool,
              by: tuple[Value, list[Value]] | None, loaded: Loaded | None) -> Value:
        """Two numbers of C, or one that is made of two, as they are stored; `by`: times these scales of the row and of
        the columns, `loaded`: what the epilogue reads."""
        WIDTH, found = out.VECTOR if read_c or out.fused else 2, []
        for e in range(0, 2, WIDTH):
            inside = (row < out.m) & (column + e < out.n)
            of_row = by and (by[0], by[1][e:e + WIDTH])
            values = out.scaled(sums[e:e + WIDTH], row, column + e, of_row)
            part = {x: y[e:] if len(y) > 1 else y for x, y in loaded.items()} if loaded else None
            found += out.numbers(row, column + e, values, read_c, inside, loaded=part)
        return out.rounded(found)

    def end(self) -> None:
        """Before the warp ends: its buffers have been read."""
        with self.k.when(self.lane == 0):
            self.k.bulk_wait(0, read=True)


def holders(work: Work, THREADS: int) -> Holders:
    """The warps of the first slice, THREADS threads, hold the sums in the end."""
    if work.slice is None:
        return Holders(work.t, work.t, THREADS)
    return Holders(work.t, work.t % THREADS, THREADS, work.slice == 0)


def store(k: Kernel, work: Work, out: Out, result: Result, holders: Holders, staging: Staging | None = None,
          arithmetic: Arithmetic | None = None) -> None:
    """From accumulators to C. `arithmetic`: see split_k.finish."""
    def write() -> None:
        if staging:
            k.barrier()                                                 # the tiles have been read
            staging.store(out, work, result.acc)
        else:
            out.store(partial(result.runs, work, out.VECTOR))
    finish(k, [result.acc, *result.more], work.parts, holders, write, arithmetic)


def add_slices(k: Kernel, accs: Sequence[Tile], smem: Value, work: Work, SLICES: int, holders: Holders,
               arithmetic: Arithmetic) -> None:
    """acc of slice 0 += acc of slices 1 ... SLICES - 1, through shared memory, where nothing may be left to read; of
    states with a tile for each field.

    The same thread of each slice holds the same elements of C. Nothing is to be computed between this and `store`:
    LLVM joins their branches on `holders.holds`, without which other threads would keep copies of all sums."""
    slice: Any = work.slice
    registers, T = [*accs[0].registers], smem.type.element

    def places(e: int) -> list[Value]:
        return [smem + holders.slot + (field*len(registers) + e)*holders.SLOTS for field in range(len(accs))]
    for other in range(1, SLICES):
        k.barrier()
        with k.when(slice == other):
            for e, ij in enumerate(registers):
                for acc, at in zip(accs, places(e)):
                    k.store(at, acc[ij] if acc.type == T else k.bits_as(acc[ij], T))
        k.barrier()
        with k.when(slice == 0):
            for e, ij in enumerate(registers):
                values = [k.load(at) for at in places(e)]
                theirs = tuple(x if acc.type == T else k.bits_as(x, acc.type) for acc, x in zip(accs, values))
                for acc, x in zip(accs, arithmetic.combined(tuple(acc[ij] for acc in accs), theirs)):
                    acc[ij] = x
