"""The matrix of a gemv (gemv.py) as CUDA cores read and multiply it: along k, or across it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from tilewright.ir import Kernel, Type, Value, f32, f64, i32, i64, vec
from tilewright.kernels.gpu.transform import Loaded, Transform
from tilewright.kernels.narrow import memory_type, widened

# types of sums, by the operands' format
SUMS = {"f32": f32, "f64": f64, "f16": f32, "bf16": f32, "e4m3fn": f32, "e5m2": f32, "i8": i32, "u8": i32}
MOST_WORDS = 96         # of a lane in flight, of a matrix with a prologue and of vectors
WIDEST = 16            # bytes that a thread moves at once, and between the sums of those that share k


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
        """Bytes of an element of the matrix in memory."""
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
            aux = [[self._beside(i, p, VECTOR, mask) | self._of_run(i, p, VECTOR, mask) for i in mine]
                      for p, mask in zip(steps, valid)]
            for p, mask, values, more in zip(steps, valid, loaded, aux):
                numbers = [self._numbers(raw, own, mask) for raw, own in zip(values, more or [{}]*OWN)]
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
            aux = [self._beside(own, p, VECTOR, mask) for p, mask in zip(steps, valid)]
            of_run = self._of_run(own, steps[0], VECTOR, valid[0])
            k.warp_barrier()                            # else ptxas begins with the products, and loads wait for them
            runs: dict[tuple[int, int], Value] = {}
            for u, (raw, of_step, more, mask) in enumerate(zip(found, factors, aux, valid)):
                numbers = self._numbers(raw, more | of_run, mask)
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
        """The CTA's element number i of each product, or the last that there is."""
        return self.k.min(self.first + i, self.size - 1)

    def _beside(self, i: Value, p: Value, COUNT: int, mask: Value | None) -> Loaded:
        """What the prologue reads beside COUNT elements from i or p on."""
        x = self.before
        return x.beside(i, self._inside(p, COUNT, mask), COUNT) if x else {}

    def _of_run(self, i: Value, p: Value, COUNT: int, mask: Value | None) -> Loaded:
        """Vectors' elements of the run of k that begins at p."""
        x = self.before
        return x.of_run(i, self._inside(p, COUNT, mask), COUNT) if x else {}

    def _inside(self, p: Value, COUNT: int, mask: Value | None) -> Value:
        """Nothing is read beside what is beyond k."""
        along = self.before is not None and self.before.ALONG_K
        return p if mask is None else self.k.min(p, self.depth - (COUNT if along else 1))

    def _numbers(self, raw: Value, beside: Loaded, mask: Value | None) -> list[Value]:
        if self.before is None:
            return self._wide(raw)
        values = self.before.numbers(raw, beside)
        return values if mask is None else [self.k.select(mask, x, self.k.constant(x.type, 0)) for x in values]

    def _common(self, beside: Loaded, mask: Value | None, COUNT: int = 1) -> list[Value]:
        """Factors of the sums of a run, one or COUNT of them; none without any."""
        if self.before is None or self.before.factor is None:
            return []
        factors = self.before.factors(beside, COUNT)
        return factors if mask is None else [self.k.select(mask, x, self.k.constant(x.type, 0)) for x in factors]

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
        """Vectors' elements by vector, in the type of sums."""
        numbers, BESIDE = [[y for row in some for y in self._wide(row)] for some in loaded], self.BESIDE or 1
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
