"""A or B of a GEMM on its way: tiles of global memory to shared memory, and from there a lane's fragments.

    global memory       shared memory       copied                              a fragment is read as
    i is contiguous     [CTA_K, CTA]        VECTOR elements along i             vectors along i, one step of k
    k is contiguous     [CTA_K, CTA + PAD]  transposed, element by element      the same
    k is contiguous     [CTA, CTA_K + PAD]  VECTOR elements along k             a vector along k of each row

For matrix instructions rows are padded less, or swizzled by BITS of the row (`Swizzle`); matrices.py says how, and
reads the fragments.

i stands for a row of A or a column of B. Copies are asynchronous, or pass through registers. What a CTA has beyond the
matrix along i is copied from its last row, or 0 where a thread copies of too many rows for a pointer to each, and never
stored; beyond k, which happens in the first tile alone, it is 0.

An operand with a prologue passes through registers, where it becomes what is multiplied (gpu/transform.py) before it is
stored: shared memory has the numbers of the product, whatever the operand's format is.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from math import gcd
from typing import Any

from tilewright.ir import Kernel, Tile, Value, i32, ptr, vec
from tilewright.ir.values import Variable
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import first_threads
from tilewright.kernels.nvidia.result import Partition

Place = tuple[Value, int]           # (a value, plus a constant): in elements from the beginning of the tile


@dataclass(frozen=True)
class Swizzle:
    """A tile of rows of ROW elements, PIECE of them in 16 bytes: piece c of row r is piece c ^ f(r) of its row.

    Eight pieces fill all banks once, and that many lanes read together: each a piece in the same column of a row of its
    own. f(r) is made of those bits of the row by which these rows differ, BITS, but for the lowest ones where several
    rows fit into 128 bytes. It begins at bit FIRST of a piece's number, for reads of more than one column. Without BITS
    the tile is as it is.
    """
    ROW: int
    PIECE: int
    BITS: tuple[int, ...] = ()
    FIRST: int = 0

    @property
    def PIECES(self) -> int:
        """Pieces that change places with each other."""
        return gcd(self.ROW // self.PIECE, 8)

    def _moved(self, k: Kernel, row: Value) -> Value:
        """f(row)."""
        bits = k.constant(i32, 0)
        for to, bit in enumerate([b for b in self.BITS if 1 << b >= 8 // self.PIECES], self.FIRST):
            if 1 << to < self.PIECES:
                bits = bits | (row >> bit & 1) << to
        return bits

    def places(self, k: Kernel, row: Value, column: Value, apart: Iterable[tuple[int, int]]
               ) -> dict[tuple[int, int], Place]:
        """Where elements are that are `apart`, rows and columns, from (row, column). Those that are whole periods of f
        apart share a value."""
        PERIOD, WIDTH = (2 << max(self.BITS), self.PIECES * self.PIECE) if self.BITS else (1, 1)
        values: dict[tuple[int, int], Value] = {}
        offsets = {}
        for rows, columns in apart:
            key = rows % PERIOD, columns % WIDTH
            if key not in values:
                r, c = row + key[0], column + key[1]
                values[key] = r*self.ROW + (c ^ self._moved(k, r)*self.PIECE if self.BITS else c)
            offsets[rows, columns] = values[key], (rows - key[0])*self.ROW + columns - key[1]
        return offsets


WIDEST = 16                 # bytes that a thread moves at once
POINTERS = 8                # of a thread to rows that it copies of: more take too many registers


@dataclass(frozen=True)
class Pass:
    """One copy of each thread: from which running pointer, and how far after the thread's own p and i."""
    source: int
    p: int
    i: int


class SmemOperand:
    """`extent` elements of i from `first`, by CTA_K steps of k, STAGES times in shared memory at `smem`."""

    def __init__(self, k: Kernel, T: Any, gmem: Value, ld: Value, *, along_k: bool, transposed: bool, EXTENT: int,
                 CTA_K: int, VECTOR: int, THREADS: int, ASYNC: bool, PAD: int | None = None,
                 BITS: tuple[int, ...] = (), FIRST: int = 0, BEFORE: Transform | None = None) -> None:
        """T: of elements in shared memory. BEFORE: what they become on their way there."""
        self.k, self.T, self.gmem, self.ld, self.ASYNC = k, T, gmem, ld, ASYNC
        self.EXTENT, self.CTA_K, self.THREADS = EXTENT, CTA_K, THREADS
        self.offset: Value | None = None
        self.before, self.S, self.TOGETHER = BEFORE, BEFORE.S if BEFORE else T, BEFORE.TOGETHER if BEFORE else 1
        self.along_k, self.inner_k = along_k, along_k and not transposed
        self.UNIT = 1 if along_k and transposed and ASYNC else VECTOR       # elements of one copy
        V = WIDEST // T.bytes
        if self.inner_k:
            self.STEPS = V                                                  # of k in one vector of a fragment
            self.ROW = CTA_K + V
        else:
            self.STEPS = 1
            self.ROW = EXTENT + (V - EXTENT) % (2*V) if along_k else EXTENT     # an odd number of vectors
        if PAD is not None:
            self.ROW = (CTA_K if self.inner_k else EXTENT) + PAD
        self.swizzle = Swizzle(self.ROW, V, BITS, FIRST)
        self.SIZE = (EXTENT if self.inner_k else CTA_K) * self.ROW
        self._share()

    def _share(self) -> None:
        """Who copies what: ACTIVE threads, `passes` times each. (CHUNKS threads side by side, ROWS of these.)"""
        self.rows_end = False                           # copies look whether they are beyond the last i
        U, CTA_K, EXTENT, THREADS = self.UNIT, self.CTA_K, self.EXTENT, self.THREADS
        if not self.along_k:
            self.CHUNKS = _divisor(EXTENT // U, THREADS)
            self.ROWS = _divisor(CTA_K, THREADS // self.CHUNKS)
            across = [x*self.CHUNKS*U for x in range(EXTENT // U // self.CHUNKS)]
            self.passes = [Pass(h, p, i) for p in range(0, CTA_K, self.ROWS) for h, i in enumerate(across)]
            self.sources = across
        else:
            # transposing stores of a warp: eight steps of k (or two vectors of them) by as many rows as then fit
            self.CHUNKS = _divisor(CTA_K // U, THREADS if self.inner_k else 2 if U > 1 else 8)
            self.ROWS = _divisor(EXTENT, THREADS // self.CHUNKS)
            rows = [*range(0, EXTENT, self.ROWS)]
            self.rows_end = self.inner_k and len(rows) > POINTERS           # one pointer goes on from row to row
            self.sources = [0] if self.rows_end else rows
            self.passes = [Pass(0 if self.rows_end else h, p, i) for p in range(0, CTA_K, self.CHUNKS*U)
                           for h, i in enumerate(rows)]
        self.ACTIVE = self.CHUNKS * self.ROWS

    # ---- global to shared memory

    def moved(self, offset: Value) -> SmemOperand:
        """The part of a matrix that begins `offset` elements on, by the same pointers: its tiles are requested
        before those of this one, after `begin`."""
        other = copy(self)
        other.offset = offset
        return other

    def begin(self, t: Value, first: Value, limit: Value, k_first: Value, then: Value | None = None) -> None:
        """Running pointers, at step k_first of k. `then`: how many steps they are moved on after the first tile, if not
        those that it has."""
        k, self.then = self.k, then
        chunk, row = t % self.CHUNKS * self.UNIT, t // self.CHUNKS
        self.t, self.thread_p, self.thread_i = (t, chunk, row) if self.along_k else (t, row, chunk)
        self.pointers: list[Variable] = []
        self._point(first, limit, k_first)
        row, column = (self.thread_i, self.thread_p) if self.inner_k else (self.thread_p, self.thread_i)
        self.places = self.swizzle.places(k, row, column, map(self._in_tile, self.passes))
        if not self.ASYNC:
            self.carried: Tile = k.tile(len(self.passes), 1, vec(self.S, self.UNIT // self.TOGETHER), zero=False)
        if self.before:
            self.first_i, self.limit, self.p = first + self.thread_i, limit, k.variable(i32, k_first)
            self.beside = {name: k.tile(len(self.passes), count, type, zero=False)
                           for name, (type, count) in self.before.operand_vectors(self.UNIT).items()}

    def _point(self, first: Value, limit: Value, k_first: Value) -> None:
        """A pointer for each of `sources`."""
        k = self.k
        for offset in self.sources:
            i = k.cast(first + self.thread_i + offset, limit.type)
            if self.rows_end:
                self.rows_left = limit - i
            else:
                i = k.min(i, limit - (1 if self.along_k else self.UNIT))
            p = k_first + self.thread_p
            row, column = (i, p) if self.along_k else (p, i)
            at = self.gmem.view(self.ld, 1).at(row, column if self.TOGETHER == 1 else column // self.TOGETHER)
            self.pointers.append(k.variable(ptr(self.S), at))

    def _in_tile(self, each: Pass) -> tuple[int, int]:
        """How many rows and columns of the tile in shared memory it is after the thread's own."""
        return (each.i, each.p) if self.inner_k else (each.p, each.i)

    def _at(self, smem: Value, each: Pass) -> Value:
        place, constant = self.places[self._in_tile(each)]
        return smem + place + constant

    def _copies(self, steps: Value | None) -> Iterator[tuple[int, Pass, Value]]:
        """(index, pass, where it reads). Afterwards the pointers are `steps` on, or a whole tile."""
        start = [pointer.get() for pointer in self.pointers]
        at = [*start]
        for index, step in enumerate(self.passes):
            if self.rows_end and not step.i:                        # the next steps of k, from the first row again
                at = [*start]
            here = at[step.source] + (step.p // self.TOGETHER if self.along_k else 0)
            yield index, step, here if self.offset is None else here + self.offset
            if self.rows_end or not self.along_k:
                at[step.source] += self.ld*self.ROWS                # no register for each multiple of ld
        for pointer, before, after in () if self.offset is not None else zip(self.pointers, start, at):
            if steps is not None:
                moved = steps if self.then is None else self.then
                along = moved if self.TOGETHER == 1 else moved // self.TOGETHER
                after = before + (along if self.along_k else self.ld*moved)
            elif self.along_k:
                after = before + self.CTA_K // self.TOGETHER
            pointer.set(after)

    def _valid(self, each: Pass, steps: Value | None) -> Value | None:
        """How many elements of a copy are of the matrix and before step `steps` of the tile; None: all of any tile."""
        k, valid = self.k, None
        if steps is not None:
            left = steps - self.thread_p - each.p
            valid = (k.max(k.min(left, self.UNIT), 0) if self.along_k
                     else k.select(left > 0, k.constant(i32, self.UNIT), 0))
        if self.rows_end:
            valid = k.select(self.rows_left > each.i, k.constant(i32, self.UNIT) if valid is None else valid, 0)
        return valid

    def request(self, smem: Value, steps: Value | None = None) -> None:
        """Begin to bring the next tile to `smem`: its first `steps` steps of k, and zeros after them. Without
        asynchronous copies it comes into registers, which `store_to_smem` stores."""
        self._start_copies(smem, steps) if self.ASYNC else self._load(steps)

    def _start_copies(self, smem: Value, steps: Value | None) -> None:
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            for _, step, source in self._copies(steps):
                valid = self._valid(step, steps)
                self.k.cp_async(self._at(smem, step), source, self.UNIT * self.T.bytes,
                                None if valid is None else valid * self.T.bytes)

    def _load(self, steps: Value | None) -> None:
        k, U = self.k, self.UNIT
        self.steps = steps
        with first_threads(k, self.t, self.ACTIVE, self.THREADS):
            for index, step, source in self._copies(steps):
                valid = self._valid(step, steps)
                if self.before:
                    self._load_beside(self.before, index, step)
                if valid is None:
                    self.carried[index, 0] = k.load(source, vec(self.S, U // self.TOGETHER))
                    continue
                self.carried[index, 0] = 0
                with k.when(valid > 0):
                    self.carried[index, 0] = k.load(source, vec(self.S, U // self.TOGETHER))
        if self.before:
            self.p.set(self.p.get() + (self.CTA_K if steps is None else steps))

    def _load_beside(self, before: Transform, index: int, each: Pass) -> None:
        """What the prologue reads for a copy; of elements beyond the matrix that of the last ones."""
        k, U = self.k, self.UNIT
        i = k.min(self.first_i + each.i, self.limit - (1 if self.along_k else U))
        p = self.p.get() + self.thread_p + each.p
        if self.steps is not None:
            p = k.max(k.min(p, before.g.k - (U if self.along_k else 1)), 0)
        for name, values in before.beside(i, p, U).items():
            for e, x in enumerate(values):
                self.beside[name][index, e] = x

    def _prepared(self, before: Transform, index: int, each: Pass) -> Value:
        """A copy as it is multiplied: beyond k, in the first tile, zeros."""
        k = self.k
        numbers = before.numbers(self.carried[index, 0], {
            name: [tile[index, e] for e in range(tile.cols)] for name, tile in self.beside.items()})
        if self.steps is not None:
            valid = self._valid(each, self.steps)
            assert valid is not None
            numbers = [k.select(valid > 0, x, k.constant(x.type, 0)) for x in numbers]
        return before.rounded(numbers)

    def store_to_smem(self, smem: Value) -> None:
        """Store the registers that were loaded last; asynchronous copies write to `smem` themselves."""
        if self.ASYNC:
            return
        k, transposing = self.k, self.along_k and not self.inner_k and self.UNIT > 1
        with first_threads(k, self.t, self.ACTIVE, self.THREADS):
            for index, step in enumerate(self.passes):
                at = self._at(smem, step)
                vector = self._prepared(self.before, index, step) if self.before else self.carried[index, 0]
                if transposing:
                    for e in range(self.UNIT):
                        k.store(at + e*self.ROW, vector[e])
                else:
                    k.store(at, vector)

    def fill(self, smem: Value, steps: Value, number: float) -> None:
        """What this thread has copied of steps `steps` ... of the tile at `smem`, which are beyond k: this number in
        place of 0."""
        k, V = self.k, self.UNIT
        apart = 1 if self.inner_k else self.ROW
        with first_threads(k, self.t, self.ACTIVE, self.THREADS):
            for step in self.passes:
                at, p = self._at(smem, step), self.thread_p + step.p
                if self.along_k:
                    for e in range(V):
                        k.store(at + e*apart, k.constant(self.T, number), mask=p + e >= steps)
                else:
                    k.store(at, k.constant(vec(self.T, V), number), mask=p >= steps)

    # ---- shared memory to registers

    def after(self, smem: Value, p: Value) -> Value:
        """The tile at `smem` from step p on."""
        return smem + (p if self.inner_k else p*self.ROW)

    def fragment(self, smem: Value, own: Partition, p: int | Value) -> list[Value]:
        """The lane's vectors for steps p ... p + STEPS - 1 of the tile at `smem`; `values` takes them apart."""
        k, T, V = self.k, self.T, WIDEST // self.T.bytes
        if self.inner_k:
            return [k.load(smem + base*self.ROW + (offset*self.ROW + p), vec(T, V)) for base, offset in own.elements]
        return [k.load(smem + piece.base + (p*self.ROW + piece.offset), vec(T, piece.width)) for piece in own.pieces]

    def values(self, fragment: list[Value], p: int | Value) -> list[Value]:
        """The lane's elements at step p, which is known where vectors have several."""
        if self.inner_k:
            assert isinstance(p, int)
            return [vector[p % self.STEPS] for vector in fragment]
        return [x[e] if x.type.length > 1 else x for x in fragment for e in range(x.type.length)]


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n that is not above `most`."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)
