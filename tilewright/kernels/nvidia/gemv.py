"""A few rows or columns of C: vectors times a matrix, which is read once, 16 bytes a lane and many of them in flight.

    the matrix is contiguous along k        a warp has some elements of each vector's product: its lanes share k
    along the other index                   a lane has VECTOR elements of each, and all lanes that have the same columns
                                            (or rows) of the matrix share k
    8 vectors and more, along k             the same by matrix instructions, and warps share k as well

CTAs along z share k; the last one of those that share elements of C adds up their sums, in the order of k. Nothing goes
through shared memory before it is multiplied: the matrix has no second use, and the vectors stay in L1.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from tilewright.atoms.nvidia import mma
from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i32, i64, vec
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.scales import POINTERS
from tilewright.kernels.gpu.split_k import Holders, Split, finish
from tilewright.kernels.gpu.work import arguments, in_matrix, of_batch, parameters
from tilewright.kernels.narrow import memory_type, widened

# types of sums, by the operands' format
SUMS = {"f32": f32, "f64": f64, "f16": f32, "bf16": f32, "e4m3fn": f32, "e5m2": f32, "i8": i32, "u8": i32}
ROWS, VECTORS = 16, 8           # of a matrix instruction: of the matrix, and of vectors
APART = 4                       # sums between those of two vectors, which different banks then have
WIDEST = 16            # bytes that a thread moves at once, and between the sums of those that share k


def emit_gemv(DTYPE: str = "f32", B: str = "", LAYOUT: str = "nn", COLUMN: bool = False, VECTOR: int = 4,
              COUNT: int = 1, EXTENT: int = 0, SPLIT_K: int = 1, BATCH: bool = False, WARPS: int = 8, UNROLL: int = 8,
              OUT: str = "", SCALED: bool = False, WHEN: str = "") -> Function:
    """C = alpha * A @ B + beta * C of at most COUNT rows (or with COLUMN, columns); parameters as for any GEMM;
    beta = 0 never reads C.

    DTYPE       of A, and of B if `B` is "": f32, f64, f16, bf16; with a COUNT of 8 or more f16, bf16, or any two of i8
                and u8, or of e4m3fn and e5m2
    VECTOR      elements of the matrix that a lane loads at once: it is aligned to so many, its leading dimension and
                its size along the contiguous dimension are multiples of it. If k is contiguous in both operands that is
                true of the other one, too
    COUNT       a power of two. From 8 on matrix instructions multiply, for which k is contiguous in both operands, and
                VECTOR 16 bytes
    EXTENT      elements of each row of C that a CTA has: WARPS times a power of two where the matrix is contiguous
                along k, VECTOR times one up to 32 else; 16 times one for matrix instructions. 0: one for each warp, or
                a vector for each lane of a warp
    BATCH       of many products: see work.parameters
    WARPS       of a CTA
    UNROLL      loads of a lane in flight
    OUT         format of C, to which sums are rounded; "": DTYPE
    SCALED      scales multiply sums: see gpu/scales.py
    WHEN        see work.arguments
    """
    T, split, THREADS = SUMS[DTYPE], Split(SPLIT_K), 32*WARPS
    along_k, matrices = LAYOUT[0] == "n" if COLUMN else LAYOUT[1] == "t", COUNT >= VECTORS
    UNIT = ROWS if matrices else WARPS if along_k else VECTOR
    WIDTH = EXTENT or (WARPS if along_k else 32*VECTOR)
    if WIDTH % UNIT or (WIDTH // UNIT) & (WIDTH // UNIT - 1) or WIDTH > 32*VECTOR*WARPS or COUNT & (COUNT - 1):
        raise ValueError(f"EXTENT must be {UNIT} times a power of two, and COUNT one, not {EXTENT} and {COUNT}")
    A_TYPE, B_TYPE = memory_type(DTYPE), memory_type(B or DTYPE)
    if matrices and (LAYOUT != "nt" or VECTOR*A_TYPE.bytes != WIDEST):
        raise ValueError(f"COUNT = {COUNT} needs LAYOUT nt and VECTOR {WIDEST // A_TYPE.bytes}, not {LAYOUT} and "
                         f"{VECTOR}")
    FACTOR = None if not SCALED else f32 if T == i32 else T
    k = Kernel(f"gemv_{DTYPE}_{B or DTYPE}_{LAYOUT}_{'column' if COLUMN else 'row'}{COUNT}x{WIDTH}_v{VECTOR}_w{WARPS}"
               f"_k{SPLIT_K}{'_batch' if BATCH else ''}{f'_{OUT}' if OUT else ''}{'_scaled' if SCALED else ''}"
               f"{f'_when_{WHEN}' if WHEN else ''}", threads=THREADS, noalias=POINTERS if split.divided else True,
               **parameters(T, A_TYPE, B_TYPE, memory_type(OUT or DTYPE), split, FACTOR, BATCH, WHEN=WHEN))
    g = arguments(k, WHEN)
    size, count = (g.m, g.n) if COLUMN else (g.n, g.m)

    def tiles() -> Value:
        return k.ceil_div(size, WIDTH)
    block = in_matrix(k, g, k.block[0], tiles)
    matrix, ld, x, ld_x = (g.a, g.lda, g.b, g.ldb) if COLUMN else (g.b, g.ldb, g.a, g.lda)
    x_along_k = LAYOUT[1] == "t" if COLUMN else LAYOUT[0] == "n"
    t, zero = k.thread[0], k.constant(i32, 0)
    PIECE = 4*VECTOR if matrices else VECTOR
    share = k.ceil_div(g.k, SPLIT_K*PIECE)*PIECE                        # steps of k, for this CTA

    def vectors() -> list[Callable[[Value], Value]]:
        """Where element p of each of them is; those beyond C are the last one."""
        found: list[Callable[[Value], Value]] = []
        for number in range(COUNT):
            i = k.cast(k.min(count - 1, number), i64) if number else k.constant(i64, 0)
            base, stride = (x + i*ld_x, 1) if x_along_k else (x + i, ld_x)
            found.append(partial(lambda base, stride, p: base + k.cast(p, i64)*stride, base, stride))
        return found

    def store(sum_of: Callable[[Value], Value]) -> None:
        """Sum number i*WIDTH + j is element j of the CTA's of vector i: threads next to each other store elements next
        to each other."""
        HOLDERS, out = min(COUNT*WIDTH, THREADS), Out.of(k, g, OUT or DTYPE, SCALED=SCALED)
        acc = k.tile(1, COUNT*WIDTH // HOLDERS, T)
        with k.when(t < HOLDERS):
            for e in range(acc.cols):
                acc[0, e] = sum_of(t + e*HOLDERS)

        def write() -> None:
            for e in range(acc.cols):
                at = t + e*HOLDERS
                i, j = at // WIDTH, block*WIDTH + at % WIDTH
                with k.when((i < count) & (j < size)):
                    out.cases_of_beta(partial(put, *((j, i) if COLUMN else (i, j)), e))

        def put(row: Value, column: Value, e: int, read_c: bool) -> None:
            out.put(row, column, out.scaled([acc[0, e]], row, column), read_c, None)
        _, parts = split.parts(k, g, k.block[0], lambda: of_batch(g, tiles()))
        finish(k, acc, parts, Holders(t, t, HOLDERS, t < HOLDERS), write)

    p0 = k.block_z*share if split.divided else zero
    reading = Reading(k, DTYPE, VECTOR, COUNT, WIDTH, WARPS, UNROLL, matrix, ld, size, [] if matrices else vectors(),
                      x_along_k, block*WIDTH, p0, k.min(g.k, p0 + share))
    if matrices:
        formats = (DTYPE, B or DTYPE) if COLUMN else (B or DTYPE, DTYPE)
        store(reading.by_matrices(formats, x, ld_x, count))
    else:
        store(reading.along() if along_k else reading.across())
    return k.function


@dataclass(frozen=True)
class Reading:
    """The matrix is read, and multiplied by the vectors: from steps p0 to p1 of k, for the WIDTH elements of each
    product from `first` on, of `size`.

    vectors     where element p of each is; `x_along_k`: contiguous
    """
    k: Kernel
    DTYPE: str
    VECTOR: int
    COUNT: int
    WIDTH: int
    WARPS: int
    UNROLL: int
    matrix: Value
    ld: Value
    size: Value
    vectors: list[Callable[[Value], Value]]
    x_along_k: bool
    first: Value
    p0: Value
    p1: Value

    @property
    def T(self) -> Type:
        return SUMS[self.DTYPE]

    def along(self) -> Callable[[Value], Value]:
        """OWN elements of each product for each warp, whose lanes have every 32nd vector of k. The sums by number."""
        k, T, t, VECTOR, WIDTH = self.k, self.T, self.k.thread[0], self.VECTOR, self.WIDTH
        warp, lane, OWN = t // 32, t % 32, WIDTH // self.WARPS
        rows = [self._row(self.matrix, self.ld, self.first + warp*OWN + o, self.size) for o in range(OWN)]
        CHAINS = VECTOR if self.COUNT*OWN == 1 else 1
        sums = k.tile(self.COUNT*OWN, CHAINS, T)
        TOGETHER = VECTOR if self.x_along_k else 1                      # elements of a vector in one load

        def add(steps: list[Value]) -> None:
            loaded = [[self._loaded(row + p, VECTOR) for row in rows] for p in steps]
            for p, found in zip(steps, loaded):
                numbers = [self._wide(each) for each in found]
                for v, vector in enumerate(self.vectors):
                    factors = [y for e in range(0, VECTOR, TOGETHER)
                               for y in self._wide(self._loaded(vector(p + e), TOGETHER))]
                    for o, own in enumerate(numbers):
                        for e, (x, y) in enumerate(zip(own, factors, strict=True)):
                            at = v*OWN + o, e % CHAINS
                            sums[at] = k.fma(x, y, sums[at])
        self._unrolled(self.p0 + lane*VECTOR, 32*VECTOR, max(self.UNROLL // OWN, 1), add)
        by_warp = k.smem("by_warp", (self.COUNT, WIDTH), T)
        for v, o in product(range(self.COUNT), range(OWN)):
            total = sums[v*OWN + o, 0]
            for e in range(1, CHAINS):
                total = total + sums[v*OWN + o, e]
            total = k.warp_sum(total)
            with k.when(lane == 0):
                by_warp[v, warp*OWN + o] = total
        k.barrier()
        return lambda number: by_warp[number // WIDTH, number % WIDTH]

    def across(self) -> Callable[[Value], Value]:
        """VECTOR elements of each product for each lane; LANES lanes have different ones and take a step of k together,
        of SHARERS that take steps in turn. The sums by number."""
        k, T, t, VECTOR, COUNT = self.k, self.T, self.k.thread[0], self.VECTOR, self.COUNT
        LANES = self.WIDTH // VECTOR
        SHARERS, sharer, lane = 32*self.WARPS // LANES, t // LANES, t % LANES
        column = self.matrix + k.min(self.first + lane*VECTOR, self.size - VECTOR)
        acc = k.tile(COUNT, VECTOR, T)

        def add(steps: list[Value]) -> None:
            found = [self._loaded(column + k.cast(p, i64)*self.ld, VECTOR) for p in steps]
            factors = [[self._wide(self._loaded(vector(p), 1))[0] for vector in self.vectors] for p in steps]
            for each, of_step in zip(found, factors):
                numbers = self._wide(each)
                for v, factor in enumerate(of_step):
                    for e, x in enumerate(numbers):
                        acc[v, e] = k.fma(x, factor, acc[v, e])
        self._unrolled(self.p0 + sharer, SHARERS, self.UNROLL, add)
        TOGETHER = min(VECTOR, WIDEST // T.bytes)
        sums = k.smem("sums", (SHARERS, COUNT*self.WIDTH + WIDEST // T.bytes), T, WIDEST)
        for v, e in product(range(COUNT), range(0, VECTOR, TOGETHER)):
            values = [acc[v, e + d] for d in range(TOGETHER)]
            k.store(sums.at(sharer, v*self.WIDTH + lane*VECTOR + e), k.pack(*values) if TOGETHER > 1 else values[0])
        k.barrier()

        def total(number: Value) -> Value:
            found = sums[0, number]
            for other in range(1, SHARERS):
                found = found + sums[other, number]
            return found
        return total

    def by_matrices(self, formats: tuple[str, str], x: Value, ld_x: Value, count: Value) -> Callable[[Value], Value]:
        """Warps take pieces of k in turn, of all WIDTH rows: a lane 16 bytes of a row, whose words belong to the k of
        two instructions, and the same bytes of a vector, so that the order of k within an instruction does not matter.
        `x`: the `count` vectors. The sums by number."""
        k, T, t, COUNT, WIDTH, WARPS = self.k, self.T, self.k.thread[0], self.COUNT, self.WIDTH, self.WARPS
        warp, group, place = k.uniform(t // 32), t % 32 // 4, t % 4 * self.VECTOR
        atom = mma(*formats, "i32" if T == i32 else "f32", ROWS, VECTORS, 2*self.VECTOR)
        rows = [self._row(self.matrix, self.ld, self.first + first + group, self.size) + place
                for first in range(0, WIDTH, VECTORS)]
        columns = [self._row(x, ld_x, first + group, count) + place for first in range(0, COUNT, VECTORS)]
        acc = k.tile(WIDTH // ROWS * len(columns), 4, T)
        PIECE, TOGETHER = 4*self.VECTOR, max(self.UNROLL // len(rows), 1)

        def add(steps: list[Value], mask: Value | None = None) -> None:
            loaded = [[k.load((at + p).as_(i32), vec(i32, 4), mask=mask) for at in (*rows, *columns)] for p in steps]
            for words, half in product(loaded, (0, 2)):
                for i, j in product(range(0, len(rows), 2), range(len(columns))):
                    low, high, y = words[i], words[i + 1], words[len(rows) + j]
                    to = i // 2 * len(columns) + j
                    d = k.mma(atom, [low[half], high[half], low[half + 1], high[half + 1]], [y[half], y[half + 1]],
                              [acc[to, e] for e in range(4)])
                    for e, sum in enumerate(d):
                        acc[to, e] = sum
        whole = (self.p1 - self.p0) // (PIECE*TOGETHER)
        with k.loop(whole, start=warp, step=WARPS, unroll=False) as each:
            # CTAs begin at different k: rows at the same distance share channels of the memory, and all have one vector
            first = self.p0 + (each + k.block[0]) % whole * (PIECE*TOGETHER)
            add([first + u*PIECE for u in range(TOGETHER)])
        with k.loop(self.p1, start=self.p0 + (whole*TOGETHER + warp)*PIECE, step=WARPS*PIECE, unroll=False) as p:
            add([p], p + place < self.p1)
        sums = k.smem("sums", (WARPS, COUNT*(WIDTH + APART)), T)
        for to, e in acc.registers:
            i, j = divmod(to, len(columns))
            row, column = atom.c(t % 32, e)
            sums[warp, (column + j*VECTORS)*(WIDTH + APART) + row + i*ROWS] = acc[to, e]
        k.barrier()

        def total(number: Value) -> Value:
            at = number // WIDTH * (WIDTH + APART) + number % WIDTH
            found = sums[0, at]
            for other in range(1, WARPS):
                found = found + sums[other, at]
            return found
        return total

    def _row(self, matrix: Value, ld: Value, i: Value, size: Value) -> Value:
        return matrix + self.k.cast(self.k.min(i, size - 1), i64)*ld

    def _loaded(self, pointer: Value, COUNT: int) -> Value:
        return self.k.load(pointer, vec(memory_type(self.DTYPE), COUNT))

    def _unrolled(self, start: Value, STEP: int, UNROLL: int, add: Callable[[list[Value]], None]) -> None:
        """add([p, p + STEP, ...]) for p from start to p1, UNROLL of them at a time and the last ones alone."""
        k = self.k
        whole = k.max(self.p1 - (start + STEP*(UNROLL - 1)), 0)
        with k.loop(start + whole, start, STEP*UNROLL) as p:
            add([p + u*STEP for u in range(UNROLL)])
        with k.loop(self.p1, start + k.ceil_div(whole, STEP*UNROLL)*(STEP*UNROLL), STEP, unroll=False) as p:
            add([p])

    def _wide(self, x: Value) -> list[Value]:
        """Its numbers, in the type of sums. Of a bf16 that is the upper half, of two the halves of a word."""
        k, T, n = self.k, self.T, x.type.length
        if self.DTYPE == "bf16" and n > 1:
            words = k.reinterpret(x, vec(i32, n // 2))
            words = k.broadcast(words, 2) if n == 2 else words              # elements of vectors are bits, not indices
            halves = [k.bits_as(bits, vec(T, words.type.length))
                      for bits in (words << 16, words & k.constant(words.type, -1 << 16))]
            return [half[e] for e in range(n // 2) for half in halves]
        most = WIDEST // T.bytes
        parts = [x] if n <= most else [k.shuffle(x, x, range(first, first + most)) for first in range(0, n, most)]
        if memory_type(self.DTYPE) != T:
            parts = [widened(k, part, self.DTYPE, T) for part in parts]
        return [part[e] for part in parts for e in range(min(n, most))] if n > 1 else parts
