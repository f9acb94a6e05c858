"""A few rows or columns of C: vectors times a matrix, which is read once, 16 bytes a lane and many of them in flight.

    the matrix is contiguous along k        a warp has some elements of each vector's product: its lanes share k
    along the other index                   a lane has VECTOR elements of each, and all lanes that have the same columns
                                            (or rows) of the matrix share k
    8 vectors and more, along k             the same by matrix instructions, and warps share k as well

CTAs along z share k; the last one of those that share elements of C adds up their sums, in the order of k. Nothing goes
through shared memory before it is multiplied: the matrix has no second use, and the vectors stay in L1. A prologue of
the matrix is computed in registers (gpu/transform.py); factors that a run of k has in common multiply the run's sums: a
lane's vector along k, its steps in flight across k, a piece of a warp by matrix instructions.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import gcd

from tilewright.atoms.nvidia import mma
from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i8, i32, i64, vec
from tilewright.kernels.gpu import transform
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.fused import pointers, suffix
from tilewright.kernels.gpu.scales import POINTERS
from tilewright.kernels.gpu.split_k import Holders, Split, finish
from tilewright.kernels.gpu.transform import Loaded, Transform
from tilewright.kernels.gpu.work import arguments, in_matrix, of_batch, parameters
from tilewright.kernels.narrow import memory_type, widened

# types of sums, by the operands' format
SUMS = {"f32": f32, "f64": f64, "f16": f32, "bf16": f32, "e4m3fn": f32, "e5m2": f32, "i8": i32, "u8": i32}
ROWS, VECTORS = 16, 8           # of a matrix instruction: of the matrix, and of vectors
APART = 4                       # sums between those of two vectors, which different banks then have
FOR_TWO = 128           # registers with which a multiprocessor holds two CTAs of 256 threads
MOST_WORDS = 96         # of a lane in flight, of a matrix with a prologue and of vectors
WIDEST = 16            # bytes that a thread moves at once, and between the sums of those that share k


def emit_gemv(DTYPE: str = "f32", B: str = "", LAYOUT: str = "nn", COLUMN: bool = False, VECTOR: int = 4,
              COUNT: int = 1, EXTENT: int = 0, SPLIT_K: int = 1, BATCH: bool = False, WARPS: int = 8, UNROLL: int = 8,
              OUT: str = "", SCALED: bool = False, WHEN: str = "", BESIDE: int = 0, EPILOGUE: str = "",
              PROLOGUE: str = "", ARCH: str = "sm_80") -> Function:
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
                along k, 16 times one for matrix instructions; else VECTOR times at most 32, a divisor of its threads.
                0: one for each warp, or a vector for each lane of a warp
    BATCH       of many products: see work.parameters
    WARPS       of a CTA
    UNROLL      loads of a lane in flight
    OUT         format of C, to which sums are rounded; "": DTYPE
    SCALED      scales multiply sums: see gpu/scales.py
    WHEN        see work.arguments
    BESIDE      of COUNT vectors without k contiguous, so many elements of a step of k in one load, a divisor; or 0
    EPILOGUE    the text of an expressions.epilogue.Epilogue, not of pairs: see gpu/fused.py
    PROLOGUE    the text of an expressions.prologue.Prologue, of the matrix: DTYPE is its result, and VECTOR elements of
                its source are loaded at once
    ARCH        the target whose conversions it takes
    """
    T, split, THREADS = SUMS[DTYPE], Split(SPLIT_K), 32*WARPS
    along_k, matrices = LAYOUT[0] == "n" if COLUMN else LAYOUT[1] == "t", COUNT >= VECTORS
    UNIT = ROWS if matrices else WARPS if along_k else VECTOR
    WIDTH = EXTENT or (WARPS if along_k else 32*VECTOR)
    across = not along_k and not matrices
    fits = THREADS % (WIDTH // UNIT) == 0 if across else (WIDTH // UNIT) & (WIDTH // UNIT - 1) == 0
    if WIDTH % UNIT or not fits or WIDTH > 32*VECTOR*WARPS or COUNT & (COUNT - 1):
        raise ValueError(f"EXTENT must be {UNIT} times a {f'divisor of {THREADS}' if across else 'power of two'}, and "
                         f"COUNT a power of two, not {EXTENT} and {COUNT}")
    A_TYPE, B_TYPE = memory_type(DTYPE), memory_type(B or DTYPE)
    if PROLOGUE:
        A_TYPE, B_TYPE = (transform.memory(PROLOGUE, A_TYPE), B_TYPE)[::1 if COLUMN else -1]
    whole = WIDEST // (A_TYPE if COLUMN else B_TYPE).bytes * transform.together(PROLOGUE)
    if matrices and (LAYOUT, VECTOR) != ("nt", whole):
        raise ValueError(f"COUNT = {COUNT} needs LAYOUT nt and VECTOR {whole}, not {LAYOUT} and {VECTOR}")
    FACTOR = None if not SCALED else f32 if T == i32 else T
    ROLE, PROLOGUES = ("a", (PROLOGUE, "")) if COLUMN else ("b", ("", PROLOGUE))
    k = Kernel(f"gemv_{DTYPE}_{B or DTYPE}_{LAYOUT}_{'column' if COLUMN else 'row'}{COUNT}x{WIDTH}_v{VECTOR}_w{WARPS}"
               f"_k{SPLIT_K}{'_batch' if BATCH else ''}{f'_{OUT}' if OUT else ''}{'_scaled' if SCALED else ''}"
               f"{f'_when_{WHEN}' if WHEN else ''}{f'_beside{BESIDE}' if BESIDE else ''}{suffix(EPILOGUE)}"
               f"{transform.suffix(*PROLOGUES)}", threads=THREADS,
               max_registers=FOR_TWO if PROLOGUE and THREADS <= 256 and COUNT in (1, VECTORS) else None,
               noalias=(POINTERS + pointers(EPILOGUE) + transform.pointers(ROLE, PROLOGUE)) if split.divided else True,
               **parameters(T, A_TYPE, B_TYPE, memory_type(OUT or DTYPE), split, FACTOR, BATCH, WHEN=WHEN,
                            EPILOGUE=EPILOGUE, PROLOGUES=PROLOGUES, LAYOUT=LAYOUT))
    g = arguments(k, WHEN)
    size, count = (g.m, g.n) if COLUMN else (g.n, g.m)

    def tiles() -> Value:
        return k.ceil_div(size, WIDTH)
    block = in_matrix(k, g, k.block[0], tiles)
    matrix, ld, x, ld_x = (g.a, g.lda, g.b, g.ldb) if COLUMN else (g.b, g.ldb, g.a, g.lda)
    x_along_k = LAYOUT[1] == "t" if COLUMN else LAYOUT[0] == "n"
    t, zero = k.thread[0], k.constant(i32, 0)
    RUN = 4*VECTOR if matrices else VECTOR if along_k else UNROLL          # of k, with common factors
    before = Transform.of(k, g, ROLE, PROLOGUE, ALONG_K=along_k, RUN=RUN, ARCH=ARCH, PAIRED=matrices)
    PIECE = RUN if matrices or before else VECTOR
    share = k.ceil_div(g.k, SPLIT_K*PIECE)*PIECE                        # steps of k, for this CTA

    def vectors() -> list[tuple[Value, Value | int]]:
        """Where each of them, or BESIDE together, begins, and from step to step of k; those beyond C are the last."""
        found: list[tuple[Value, Value | int]] = []
        for number in range(0, COUNT, BESIDE or 1):
            i = k.constant(i64, number) if BESIDE or not number else k.cast(k.min(count - 1, number), i64)
            found.append((x + i*ld_x, 1) if x_along_k else (x + i, ld_x))
        return found

    def store(sum_of: Callable[[Value], Value]) -> None:
        """Sum number i*WIDTH + j is element j of the CTA's of vector i: threads next to each other store elements next
        to each other."""
        HOLDERS = COUNT*WIDTH if COUNT*WIDTH <= THREADS else gcd(COUNT*WIDTH, THREADS)
        out = Out.of(k, g, OUT or DTYPE, SCALED=SCALED, EPILOGUE=EPILOGUE)
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
        finish(k, [acc], parts, Holders(t, t, HOLDERS, t < HOLDERS), write)

    p0 = k.block_z*share if split.divided else zero
    reading = Reading(k, DTYPE, VECTOR, COUNT, WIDTH, WARPS, UNROLL, matrix, ld, size, [] if matrices else vectors(),
                      x_along_k, BESIDE, block*WIDTH, p0, k.min(g.k, p0 + share), g.k, before)
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

    vectors     where each, or BESIDE of them together, begins, and from step to step of k; `x_along_k`: contiguous
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
    vectors: list[tuple[Value, Value | int]]
    x_along_k: bool
    BESIDE: int
    first: Value
    p0: Value
    p1: Value
    depth: Value                # of k
    before: Transform | None

    @property
    def S(self) -> Type:
        """Of an element of the matrix in memory."""
        return self.before.S if self.before else memory_type(self.DTYPE)

    @property
    def T(self) -> Type:
        return SUMS[self.DTYPE]

    def along(self) -> Callable[[Value], Value]:
        """OWN elements of each product for each warp, whose lanes have every 32nd vector of k. The sums by number."""
        k, T, t, VECTOR, WIDTH = self.k, self.T, self.k.thread[0], self.VECTOR, self.WIDTH
        warp, lane, OWN = t // 32, t % 32, WIDTH // self.WARPS
        rows = [self._row(self.matrix, self.ld, self.first + warp*OWN + o, self.size) for o in range(OWN)]
        mine = [self._own(warp*OWN + o) for o in range(OWN)] if self.before else []
        CHAINS = VECTOR if self.COUNT*OWN == 1 and not (self.before and self.before.factor) else 1
        sums = k.tile(self.COUNT*OWN, CHAINS, T)

        def add(steps: list[Value], valid: list[Value | None]) -> None:
            loaded = [[self._of_matrix(row, p, VECTOR, mask) for row in rows] for p, mask in zip(steps, valid)]
            beside = [[self._beside(i, p, VECTOR, mask) | self._of_run(i, p, VECTOR, mask) for i in mine]
                      for p, mask in zip(steps, valid)]
            for p, mask, found, more in zip(steps, valid, loaded, beside):
                numbers = [self._numbers(each, own, mask) for each, own in zip(found, more or [{}]*OWN)]
                common = [self._common(own, mask) for own in more or [{}]*OWN]
                for v, factors in enumerate(self._factors(self._of_vectors(p, VECTOR, mask))):
                    for o, own in enumerate(numbers):
                        if factor := common[o]:
                            sums[v*OWN + o, 0] = k.fma(self._dot(own, factors), factor[0], sums[v*OWN + o, 0])
                            continue
                        for e, (x, y) in enumerate(zip(own, factors, strict=True)):
                            at = v*OWN + o, e % CHAINS
                            sums[at] = k.fma(x, y, sums[at])
        few = self.UNROLL // OWN // (1 if self.x_along_k else VECTOR)   # single elements of vectors take registers
        if self.before:
            few = min(few, MOST_WORDS // (4*OWN + VECTOR*memory_type(self.DTYPE).bytes // 4 * self.COUNT))
        self._rounds(lane*VECTOR, 32*VECTOR, 32*VECTOR, max(few, 1 if self.before else 2), add)
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
        own = k.min(self.first + lane*VECTOR, self.size - VECTOR)
        column, acc = self._at(self.matrix, own), k.tile(COUNT, VECTOR, T)
        FOLLOWING = self.before is not None and bool(self.before.common)     # a thread's steps in flight are a run of k
        RUNS = self.before is not None and self.before.factor is not None

        def add(steps: list[Value], valid: list[Value | None]) -> None:
            found = [self._of_matrix(column + k.cast(p, i64)*self.ld, None, VECTOR, mask)
                     for p, mask in zip(steps, valid)]
            factors = [self._of_vectors(p, 1, mask) for p, mask in zip(steps, valid)]
            beside = [self._beside(own, p, VECTOR, mask) for p, mask in zip(steps, valid)]
            of_run = self._of_run(own, steps[0], VECTOR, valid[0])
            k.warp_barrier()                            # else ptxas begins with the products, and loads wait for them
            runs: dict[tuple[int, int], Value] = {}
            for u, (each, of_step, more, mask) in enumerate(zip(found, factors, beside, valid)):
                numbers = self._numbers(each, more | of_run, mask)
                for v, (y,) in enumerate(self._factors(of_step)):
                    for e, x in enumerate(numbers):
                        if RUNS:
                            runs[v, e] = k.fma(x, y, runs[v, e]) if u else x*y
                        else:
                            acc[v, e] = k.fma(x, y, acc[v, e])
            common = self._common(of_run, valid[0], VECTOR)
            for (v, e), run in runs.items():
                acc[v, e] = k.fma(run, common[e], acc[v, e])
        self._rounds(*((sharer*self.UNROLL, 1) if FOLLOWING else (sharer, SHARERS)), SHARERS, self.UNROLL, add)
        TOGETHER = min(VECTOR, WIDEST // T.bytes)
        sums = k.smem("sums", (SHARERS, COUNT*self.WIDTH + WIDEST // T.bytes), T, WIDEST)
        for v, e in product(range(COUNT), range(0, VECTOR, TOGETHER)):
            values = [acc[v, e + d] for d in range(TOGETHER)]
            k.store(sums.at(sharer, v*self.WIDTH + lane*VECTOR + e), k.pack(*values) if TOGETHER > 1 else values[0])
        k.barrier()

        def total(number: Value, first: Value | int, STEP: int, LAST: int) -> Value:
            found = sums[first, number]
            for other in range(STEP, LAST, STEP):
                found = found + sums[first + other, number]
            return found
        SUMS_OF_CTA = COUNT*self.WIDTH
        GROUPS, rest = divmod(32*self.WARPS, SUMS_OF_CTA)
        if GROUPS < 2 or rest:
            return lambda number: total(number, 0, 1, SHARERS)
        some = total(t % SUMS_OF_CTA, t // SUMS_OF_CTA, GROUPS, SHARERS)        # all threads add up a few before
        k.barrier()
        sums[t // SUMS_OF_CTA, t % SUMS_OF_CTA] = some
        k.barrier()
        return lambda number: total(number, 0, 1, GROUPS)

    def by_matrices(self, formats: tuple[str, str], x: Value, ld_x: Value, count: Value) -> Callable[[Value], Value]:
        """Warps take pieces of k in turn, of all WIDTH rows: a lane 16 bytes of a row, whose words belong to the k of
        two instructions, and the same bytes of a vector, so that the order of k within an instruction does not matter.
        `x`: the `count` vectors. The sums by number."""
        k, T, t, COUNT, WIDTH, WARPS = self.k, self.T, self.k.thread[0], self.COUNT, self.WIDTH, self.WARPS
        warp, group, place = k.uniform(t // 32), t % 32 // 4, t % 4 * self.VECTOR
        KEPT = memory_type(self.DTYPE)
        atom = mma(*formats, "i32" if T == i32 else "f32", ROWS, VECTORS, 2*WIDEST // KEPT.bytes)
        own = [self._own(first + group) for first in range(0, WIDTH, VECTORS)] if self.before else []
        rows = [self._at(self._row(self.matrix, self.ld, self.first + first + group, self.size), place)
                for first in range(0, WIDTH, VECTORS)]
        columns = [self._row(x, ld_x, first + group, count) + place for first in range(0, COUNT, VECTORS)]
        acc = k.tile(WIDTH // ROWS * len(columns), 4, T)
        PIECE, TOGETHER = 4*self.VECTOR, max(self.UNROLL // len(rows), 1)
        WORDS = self.VECTOR*KEPT.bytes // 4                             # of a lane's numbers in a piece
        RUNS = self.before is not None and self.before.factor is not None
        if self.before:
            TOGETHER = min(TOGETHER, max(MOST_WORDS // (WORDS*len(columns) + 4*len(rows)), 1))

        def of_rows(at: Value, p: Value, mask: Value | None) -> list[Value]:
            if not self.before:
                found = k.load((at + p).as_(i32), vec(i32, 4), mask=mask)
                return [found[e] for e in range(4)]
            return [self._of_matrix(at, p, self.VECTOR, mask)]

        def of_columns(at: Value, p: Value, mask: Value | None) -> list[Value]:
            parts = [k.load((at + p + e).as_(i32), vec(i32, 4), mask=mask)
                     for e in range(0, self.VECTOR, WIDEST // KEPT.bytes)]
            found = [part[e] for part in parts for e in range(4)]
            return self._interleaved(found) if self.before and self.before.INTERLEAVED else found

        def add(steps: list[Value], mask: Value | None = None) -> None:
            loaded = [([of_rows(at, p, mask) for at in rows], [of_columns(at, p, mask) for at in columns])
                      for p in steps]
            beside = [[self._beside(i, p + place, self.VECTOR, mask) | self._of_run(i, p + place, self.VECTOR, mask)
                       for i in own] for p in steps]
            for (of_matrix, of_vectors), more in zip(loaded, beside):
                if self.before:
                    of_matrix = [self._words(raw, each, mask) for (raw,), each in zip(of_matrix, more)]
                runs: dict[int, list[Value]] = {}
                for half, i, j in product(range(0, WORDS, 2), range(0, len(rows), 2), range(len(columns))):
                    to, (low, high), y = i // 2 * len(columns) + j, of_matrix[i:i + 2], of_vectors[j]
                    c = runs.get(to, [k.constant(T, 0)]*4) if RUNS else [acc[to, e] for e in range(4)]
                    d = k.mma(atom, [low[half], high[half], low[half + 1], high[half + 1]], [y[half], y[half + 1]], c)
                    runs[to] = [*d]
                    for e, sum in enumerate(d) if not RUNS else ():
                        acc[to, e] = sum
                # p is in the same group for all lanes of a piece, and what is beyond k is 0 in a run's sums
                common = [self._common(each, None) for each in more]
                for to, run in runs.items() if RUNS else ():
                    for e, sum in enumerate(run):
                        acc[to, e] = k.fma(sum, common[to // len(columns) * 2 + e // 2][0], acc[to, e])
        whole = k.max(self.p1 - self.p0, 0) // (PIECE*TOGETHER)       # the last parts of k may be empty
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

    def _loaded(self, pointer: Value, COUNT: int, mask: Value | None = None) -> Value:
        return self.k.load(pointer, vec(pointer.type.element, COUNT), mask=mask)

    # ---- the matrix, as it is stored, or by its prologue

    def _at(self, pointer: Value, offset: Value) -> Value:
        """So many elements on, a whole number of bytes."""
        together = self.before.TOGETHER if self.before else 1
        return pointer + (offset if together == 1 else offset // together)

    def _of_matrix(self, pointer: Value, offset: Value | None, COUNT: int, mask: Value | None) -> Value:
        at = pointer if offset is None else self._at(pointer, offset)
        return self._loaded(at, COUNT // (self.before.TOGETHER if self.before else 1), mask)

    def _own(self, i: Value) -> Value:
        """Of the CTA's elements of each product number i, or the last that there is."""
        return self.k.min(self.first + i, self.size - 1)

    def _beside(self, i: Value, p: Value, COUNT: int, mask: Value | None) -> Loaded:
        """What the prologue reads beside COUNT elements from i or p on."""
        x = self.before
        return x.beside(i, self._inside(p, COUNT, mask), COUNT) if x else {}

    def _of_run(self, i: Value, p: Value, COUNT: int, mask: Value | None) -> Loaded:
        """The same for the run of k that begins at p."""
        x = self.before
        return x.of_run(i, self._inside(p, COUNT, mask), COUNT) if x else {}

    def _inside(self, p: Value, COUNT: int, mask: Value | None) -> Value:
        """Nothing is read beside what is beyond k."""
        along = self.before is not None and self.before.ALONG_K
        return p if mask is None else self.k.min(p, self.depth - (COUNT if along else 1))

    def _numbers(self, raw: Value, beside: Loaded, mask: Value | None) -> list[Value]:
        if self.before is None:
            return self._wide(raw)
        found = self.before.numbers(raw, beside)
        return found if mask is None else [self.k.select(mask, x, self.k.constant(x.type, 0)) for x in found]

    def _words(self, raw: Value, beside: Loaded, mask: Value | None) -> list[Value]:
        """The numbers as matrix instructions take them, two in a word."""
        x, k = self.before, self.k
        assert x is not None
        if not x.INTERLEAVED:
            return x.pairs(self._numbers(raw, beside, mask))
        found = x.words(raw, beside)
        return found if mask is None else [k.select(mask, word, k.constant(i32, 0)) for word in found]

    def _interleaved(self, words: list[Value]) -> list[Value]:
        """Pairs of neighbours in the order of Transform.words."""
        k, found = self.k, list[Value]()
        for e in range(0, len(words), 4):
            bytes = [k.reinterpret(word, vec(i8, 4)) for word in words[e:e + 4]]
            for low in range(2):
                for half in (0, 1, 4, 5), (2, 3, 6, 7):
                    found.append(k.reinterpret(k.shuffle(bytes[low], bytes[low + 2], half), i32))
        return found

    def _common(self, beside: Loaded, mask: Value | None, COUNT: int = 1) -> list[Value]:
        """Factors of the sums of a run, one or COUNT of them; none without any."""
        if self.before is None or self.before.factor is None:
            return []
        found = self.before.factors(beside, COUNT)
        return found if mask is None else [self.k.select(mask, x, self.k.constant(x.type, 0)) for x in found]

    def _dot(self, xs: list[Value], ys: list[Value]) -> Value:
        """In two chains."""
        sums = [x*y for x, y in zip(xs[:2], ys)]
        for e, (x, y) in enumerate(zip(xs[2:], ys[2:], strict=True)):
            sums[e % 2] = self.k.fma(x, y, sums[e % 2])
        return sums[0] + sums[1] if len(sums) > 1 else sums[0]

    def _of_vectors(self, p: Value, STEPS: int, mask: Value | None) -> list[list[Value]]:
        """Their elements of so many steps of k from p, as they are loaded."""
        STEP = min(STEPS, WIDEST // memory_type(self.DTYPE).bytes) if self.x_along_k else 1
        WIDE = STEP if self.x_along_k else self.BESIDE or 1
        return [[self._loaded(base + self.k.cast(p + e, i64)*stride, WIDE, mask) for e in range(0, STEPS, STEP)]
                for base, stride in self.vectors]

    def _factors(self, loaded: list[list[Value]]) -> list[list[Value]]:
        """The same by vector, in the type of sums."""
        numbers, BESIDE = [[y for each in some for y in self._wide(each)] for some in loaded], self.BESIDE or 1
        return [numbers[v // BESIDE][v % BESIDE::BESIDE] for v in range(self.COUNT)]

    def _rounds(self, own: Value, STEP: int, SHARE: int, LOADS: int,
                add: Callable[[list[Value], list[Value | None]], None]) -> None:
        """add([p, p + STEP ...], masks) of LOADS steps, which are all loaded at once: whole rounds of LOADS*SHARE steps
        of k from p0, where this thread begins with number `own`; then the last one, where some are not before p1."""
        k, ROUND = self.k, LOADS*SHARE
        rounds = k.max(self.p1 - self.p0, 0) // ROUND * ROUND
        start, end = self.p0 + own, self.p0 + rounds
        with k.loop(end, start, ROUND, unroll=False) as p:
            add([p + u*STEP for u in range(LOADS)], [None]*LOADS)
        with k.when(end < self.p1):
            steps = [start + rounds + u*STEP for u in range(LOADS)]
            add(steps, [p < self.p1 for p in steps])

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
