"""Batches of small products, whose sizes are in the code: C[g] = alpha * A[g] @ B[g] + beta * C[g].

A team, a warp for itself or all warps of a CTA, takes a group of G matrices that follow each other: it copies their A
and B to shared memory, multiplies there, TOGETHER matrices at once, by outer products in registers, and stores C at
once, or by way of shared memory where what lanes have side by side are short runs. CTAs of other groups read and write
meanwhile: on an H200 kernels that stay and copy ahead were 2 to 30 % slower, since fewer of them fit.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i64, vec
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.work import arguments, parameters
from tilewright.plans import small_rules
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.small_rules import WIDEST, Lanes, Stored, power, whole

PARTS = {"f32": (f32, 1), "f64": (f64, 1), "c64": (f32, 2), "c128": (f64, 2)}       # of a number: their type, how many
LOADED = 96         # words that a lane loads in a turn of the loop over k: ptxas loads all of them first


def emit_small(shape: GpuShape, plan: NvidiaPlan, ARCH: str = "sm_80") -> Function:
    """The grid has a team for each group. Numbers of c64 and c128 are two of their parts in memory, in registers and in
    shared memory; leading dimensions and strides count numbers. There are alpha_imaginary and beta_imaginary then."""
    s, p, (R, PAIR) = shape, plan, PARTS[shape.a]
    warps, shared, (vector_a, vector_b, vector_c) = small_rules.warps(p), p.team > 1, p.vectors
    staged, asynchronous = p.store == "smem", p.copy == "async"
    name = (f"small_{s.a}_{s.layout}_{s.m}x{s.n}x{s.k}_t{p.thread_m}x{p.thread_n}_g{p.matrices}"
            f"_w{warps}{'_shared'*shared}_v{vector_a}x{vector_b}x{vector_c}{'_staged'*staged}"
            f"{'' if asynchronous else '_regs'}")
    given = parameters(s._replace(batch=2), R, Split())
    given |= {"alpha_imaginary": R, "beta_imaginary": R} if PAIR == 2 else {}
    k = Kernel(name, threads=p.threads, noalias=False, **given)
    return _Small(k, arguments(k), R, PAIR, small_rules.lanes(p, s), *small_rules.operands(p, s), s.m, s.n, s.k,
                  p.matrices, warps, shared, vector_c, staged, asynchronous).write()


@dataclass
class _Small:
    k: Kernel
    g: SimpleNamespace
    R: Type
    PAIR: int
    lanes: Lanes
    a: Stored
    b: Stored
    M: int
    N: int
    K: int
    G: int
    WARPS: int
    SHARED: bool
    VECTOR_C: int
    STAGED: bool
    ASYNC: bool

    def write(self) -> Function:
        k, g, PAIR, LANES, t = self.k, self.g, self.PAIR, self.lanes.COUNT, self.k.thread[0]
        TEAMS = 1 if self.SHARED else self.WARPS
        OF_A = self.a.area(self.G)*PAIR
        TILE = whole(self.lanes.TOGETHER*self.M*self.N, self.a.BYTES)*PAIR if self.STAGED else 0
        AREA = OF_A + self.b.area(self.G)*PAIR
        smem = k.smem("matrices", (TEAMS * (AREA + TILE),), self.R, align=128)
        team, self.lane = (k.uniform(t // LANES), t % LANES) if TEAMS > 1 else (None, t)
        own = smem if team is None else smem + team*(AREA + TILE)
        self.tile = own + AREA
        group = k.block[0] if team is None else k.block[0]*TEAMS + team
        valid = k.min(g.batch - group*self.G, self.G)
        with nullcontext() if team is None else k.when(valid > 0):
            first = k.cast(group, i64)*self.G
            self._copied(self.a, own, g.a + first*g.stride_a*PAIR, g.lda, g.stride_a, valid)
            self._copied(self.b, own + OF_A, g.b + first*g.stride_b*PAIR, g.ldb, g.stride_b, valid)
            if self.ASYNC:
                k.cp_async_commit()
                k.cp_async_wait(0)
            self._meet()
            self._rounds((own, own + OF_A), g.c + first*g.stride_c*PAIR, valid)
        return k.function

    def _meet(self) -> None:
        if self.SHARED:
            self.k.barrier()
        else:
            self.k.warp_barrier()

    # ---- copies

    def _copied(self, x: Stored, smem: Value, gmem: Value, ld: Value, stride: Value, valid: Value) -> None:
        """The first `valid` matrices of a group."""
        k, LANES, lane = self.k, self.lanes.COUNT, self.lane
        dense = (ld == x.INNER) & (stride == x.SIZE) & (valid == self.G)
        LINEAR = x.COPIED or power(WIDEST // x.BYTES, self.G*x.SIZE)
        if not x.COPIED:
            dense = dense & (k.address(gmem) & (LINEAR*x.BYTES - 1) == 0)
        ALL = self.G*x.SIZE // LINEAR
        with k.when(dense):                                             # whole lines
            offsets = [self._after(x, FIRST, LINEAR) for FIRST in range(0, ALL, LANES)]
            if None in offsets:
                with k.loop(ALL, start=lane, step=LANES, unroll=False) as p:
                    self._copy(smem, self._place(x, p, LINEAR), gmem, p*LINEAR, LINEAR)
            else:
                place = self._place(x, lane, LINEAR)
                for r, offset in enumerate(offsets):
                    with k.when(lane < ALL - r*LANES) if ALL - r*LANES < LANES else nullcontext():
                        self._copy(smem + (offset or 0)*self.PAIR, place, gmem + r*LANES*LINEAR*self.PAIR, lane*LINEAR,
                                   LINEAR)
        with k.otherwise():
            EACH = x.COPIED or 1
            with k.loop(valid*(x.SIZE // EACH), start=lane, step=LANES, unroll=False) as p:
                matrix, row, column = self._split(p, x.OUTER, x.INNER // EACH)
                at = k.cast(matrix, i64)*stride + k.cast(row, i64)*ld + column*EACH
                self._copy(smem, self._place(x, p, EACH), gmem, at, EACH)

    def _copy(self, smem: Value, to: Value, gmem: Value, at: Value, EACH: int) -> None:
        k, T = self.k, vec(self.R, EACH*self.PAIR)
        smem, gmem = smem + to*self.PAIR, gmem + at*self.PAIR
        if self.ASYNC:
            k.cp_async(smem, gmem, T.bytes)
        else:
            k.store(smem, k.load(gmem, T))

    def _place(self, x: Stored, p: Any, EACH: int) -> Any:
        """Where piece p, of EACH elements, goes."""
        if not x.COPIED:
            return p*EACH
        matrix, row, piece = self._split(p, x.OUTER, x.INNER // EACH)
        return matrix*x.MATRIX + row*x.ROW + piece*EACH

    @staticmethod
    def _split(p: Any, ROWS: int, PIECES: int) -> tuple[Any, Any, Any]:
        """(matrix, row, piece of the row) of piece p."""
        rows = p // PIECES if PIECES > 1 else p
        return rows // ROWS, rows % ROWS, p % PIECES

    def _after(self, x: Stored, FIRST: int, EACH: int) -> int | None:
        """How many elements behind piece p piece p + FIRST goes, for each lane's p; None: that differs."""
        distances = {self._place(x, p + FIRST, EACH) - self._place(x, p, EACH)
                 for p in range(self.lanes.COUNT) if p + FIRST < self.G*x.SIZE // EACH}
        return distances.pop() if len(distances) == 1 else None

    # ---- products

    def _rounds(self, smem: tuple[Value, Value], c: Value, valid: Value) -> None:
        """Multiply in rounds of TOGETHER matrices each, or of parts of one matrix."""
        k, lanes, ROUNDS = self.k, self.lanes, self.G // self.lanes.TOGETHER
        own = self.lane % lanes.EACH if lanes.PARTS == 1 else self.lane
        matrix = k.min(self.lane // lanes.EACH, lanes.TOGETHER - 1) if lanes.PARTS == 1 else k.constant(own.type, 0)
        real = self.lane < lanes.TOGETHER*lanes.EACH if lanes.PARTS == 1 else None
        most = k.min(ROUNDS, k.ceil_div(valid, lanes.TOGETHER)) if ROUNDS > 1 else valid
        with k.loop(most, unroll=False) if ROUNDS > 1 else nullcontext(k.constant(own.type, 0)) as turn:
            first = turn*lanes.TOGETHER
            if lanes.PARTS == 1:
                self._part(smem, c, valid, first + matrix, matrix, own, real)
            else:
                with k.loop(lanes.PARTS, unroll=False) as part:
                    at = part*lanes.COUNT + own
                    inside = at < lanes.EACH if lanes.EACH % lanes.COUNT else None
                    self._part(smem, c, valid, first, matrix, k.min(at, lanes.EACH - 1), inside)
            if self.STAGED:
                self._meet()
                self._written(c, valid, first)
                if ROUNDS > 1:
                    self._meet()

    def _part(self, smem: tuple[Value, Value], c: Value, valid: Value, number: Value, matrix: Value, own: Value,
              real: Value | None) -> None:
        """What lane number `own` of a matrix, `number` of the group and `matrix` of the round, has of C, if it is a
        `real` one."""
        k, PAIR, lanes = self.k, self.PAIR, self.lanes
        have, down, across = k.min(number, valid - 1), own // lanes.ACROSS, own % lanes.ACROSS
        acc = k.tile(self.a.COUNT, self.b.COUNT*PAIR, self.R)
        places = [self._places(x, base + have*(x.MATRIX*PAIR), u)
                  for x, base, u in zip((self.a, self.b), smem, (down, across))]
        STEPS = max(x.WIDTH if x.ALONG_K else 1 for x in (self.a, self.b))
        registers = STEPS * (self.a.COUNT + self.b.COUNT) * self.a.BYTES // 4
        TURN = min(max(LOADED // registers, 1)*STEPS, self.K // STEPS * STEPS)
        WHOLE = self.K // TURN * TURN if TURN else 0
        with k.loop(WHOLE, step=TURN, unroll=False) if WHOLE > TURN else nullcontext() as p:
            for e in range(0, TURN, STEPS):
                self._steps(acc, places, p, e, STEPS)
        for e in range(WHOLE, self.K, STEPS):
            self._steps(acc, places, None, e, min(STEPS, self.K - e))
        self._scaled(acc)
        runs = self._runs(acc, down, across, self.N if self.STAGED else self.VECTOR_C)
        if self.STAGED:
            mine = self.tile + matrix*(self.M*self.N*PAIR)
            for row, column, numbers, inside in runs:
                self._store(mine + (row*self.N + column)*PAIR, numbers, _all(real if lanes.IDLE else None, *inside))
            return
        c = c + k.cast(number, i64)*self.g.stride_c*PAIR
        here = _all(real if lanes.IDLE else None, number < valid)
        stores = [(c + (k.cast(row, i64)*self.g.ldc + column)*PAIR, numbers, _all(here, *inside))
                 for row, column, numbers, inside in runs]

        def put(read_c: bool) -> None:
            for at, numbers, mask in stores:
                self._put(at, numbers, read_c, mask)
        self._cases(put)

    def _scaled(self, acc: Any) -> None:
        """acc *= alpha. Of a complex one both parts meet it, of a real one each alone: inf times 1 has no nan in it."""
        k, g = self.k, self.g
        for ij in acc.registers if self.PAIR == 1 else ():
            acc[ij] = acc[ij]*g.alpha
        if self.PAIR == 1:
            return
        with k.when(g.alpha_imaginary == 0):
            for ij in acc.registers:
                acc[ij] = acc[ij]*g.alpha
        with k.otherwise():
            for i, j in acc.registers:
                if j % 2 == 0:
                    re, im = acc[i, j], acc[i, j + 1]
                    acc[i, j] = k.fma(re, g.alpha, -(im*g.alpha_imaginary))
                    acc[i, j + 1] = k.fma(im, g.alpha, re*g.alpha_imaginary)

    def _places(self, x: Stored, base: Value, u: Value) -> list[Value]:
        """Where each of the lane's own rows, or vectors of columns, is."""
        k, PAIR = self.k, self.PAIR
        if x.ALONG_K:
            first, pointers = base + k.min(u, x.OUTER - 1)*(x.ROW*PAIR), []
            for e in range(x.COUNT):
                inside = (e + 1)*x.LANES <= x.OUTER
                pointers.append(first + e*x.LANES*x.ROW*PAIR if inside
                             else base + k.min(u + e*x.LANES, x.OUTER - 1)*(x.ROW*PAIR))
            return pointers
        pointers = []
        for e in range(0, x.COUNT, x.WIDTH):
            FIRST = e*x.LANES
            at = u*x.WIDTH + FIRST if FIRST else u*x.WIDTH
            if FIRST + x.LANES*x.WIDTH > x.INNER:
                at = k.select(at < x.INNER, at, 0)
            pointers.append(base + at*PAIR)
        return pointers

    def _steps(self, acc: Any, places: list[list[Value]], p: Value | None, E: int, STEPS: int) -> None:
        """acc += A[:, p + E ...] @ B[p + E ..., :] of so many steps."""
        k, PAIR = self.k, self.PAIR
        loaded = [self._loaded(x, at, p, E, STEPS) for x, at in zip((self.a, self.b), places)]
        for own, other in zip(*loaded):
            for i, x in enumerate(own):
                for j, y in enumerate(other):
                    if PAIR == 1:
                        acc[i, j] = k.fma(x[0], y[0], acc[i, j])
                        continue
                    acc[i, 2*j] = k.fma(-x[1], y[1], k.fma(x[0], y[0], acc[i, 2*j]))
                    acc[i, 2*j + 1] = k.fma(x[1], y[0], k.fma(x[0], y[1], acc[i, 2*j + 1]))

    def _loaded(self, x: Stored, places: list[Value], p: Value | None, E: int, STEPS: int
                ) -> list[list[tuple[Value, ...]]]:
        """[step][number of the lane's]: its parts."""
        vectors: list[list[tuple[Value, ...]]] = [[] for _ in range(STEPS)]
        if x.ALONG_K:
            WIDTH = x.WIDTH if STEPS % x.WIDTH == 0 else 1
            for at in places:
                for e in range(0, STEPS, WIDTH):
                    for d, y in enumerate(self._vector(at, p, 1, E + e, WIDTH)):
                        vectors[e + d].append(y)
        else:
            for e in range(STEPS):
                for at in places:
                    vectors[e] += self._vector(at, p, x.ROW, E + e, x.WIDTH)
        return vectors

    def _vector(self, at: Value, p: Value | None, APART: int, E: int, WIDTH: int) -> list[tuple[Value, ...]]:
        k, PAIR = self.k, self.PAIR
        at = at if p is None else at + p*(APART*PAIR)
        x = k.load(at + E*APART*PAIR, vec(self.R, WIDTH*PAIR))
        numbers = [x[e] for e in range(WIDTH*PAIR)] if WIDTH*PAIR > 1 else [x]
        return [tuple(numbers[e:e + PAIR]) for e in range(0, WIDTH*PAIR, PAIR)]

    # ---- C

    def _own(self, x: Stored, u: Value, e: int) -> tuple[Value, bool]:
        """Number e of the lane's rows or columns, and whether that is in all lanes one of C's."""
        size = x.OUTER if x.ALONG_K else x.INNER
        if x.ALONG_K:
            return u + e*x.LANES, (e + 1)*x.LANES <= size
        first, d = e // x.WIDTH * x.LANES*x.WIDTH, e % x.WIDTH
        return u*x.WIDTH + (first + d), first + (x.LANES - 1)*x.WIDTH + d < size

    def _runs(self, acc: Any, down: Value, across: Value, WIDEST_RUN: int) -> list[Any]:
        """(row, column, numbers, what must hold) of what lies side by side."""
        PAIR, x, runs = self.PAIR, self.b, []
        WIDTH = 1 if x.ALONG_K else power(x.WIDTH, WIDEST_RUN)
        for i in range(acc.rows):
            row, all_rows = self._own(self.a, down, i)
            for j in range(0, x.COUNT, WIDTH):
                column, all_columns = self._own(x, across, j)
                inside = [row < self.M]*(not all_rows) + [column < self.N]*(not all_columns)
                runs.append((row, column, [acc[i, e] for e in range(j*PAIR, (j + WIDTH)*PAIR)], inside))
        return runs

    def _cases(self, each: Callable[[bool], Any]) -> None:
        """each(read_c): without C where beta is 0, otherwise with it."""
        g = self.g
        with self.k.when(g.beta == 0 if self.PAIR == 1 else (g.beta == 0) & (g.beta_imaginary == 0)):
            each(False)
        with self.k.otherwise():
            each(True)

    def _put(self, at: Value, numbers: list[Value], read_c: bool, mask: Value | None) -> None:
        """To C; numbers of one lane that lie side by side."""
        k, g = self.k, self.g
        if read_c:
            old = _elements(k.load(at, vec(self.R, len(numbers)), mask=mask))
            numbers = [k.fma(g.beta, y, x) for x, y in zip(numbers, old)]
            if self.PAIR == 2:
                crossed = [y for e in range(0, len(old), 2) for y in (-old[e + 1], old[e])]
                real = g.beta_imaginary == 0                            # as for alpha
                numbers = [k.select(real, x, k.fma(g.beta_imaginary, y, x)) for x, y in zip(numbers, crossed)]
        self._store(at, numbers, mask)

    def _store(self, at: Value, numbers: list[Value], mask: Value | None) -> None:
        self.k.store(at, self.k.pack(*numbers) if len(numbers) > 1 else numbers[0], mask=mask)

    def _written(self, c: Value, valid: Value, first: Value) -> None:
        """The tiles of a round, from shared memory, where they have no gaps."""
        k, g, PAIR, LANES, lane = self.k, self.g, self.PAIR, self.lanes.COUNT, self.lane
        SIZE, TOGETHER = self.M*self.N, self.lanes.TOGETHER
        here, c = k.min(valid - first, TOGETHER), c + k.cast(first, i64)*g.stride_c*PAIR
        LINEAR = power(WIDEST // self.a.BYTES, TOGETHER*SIZE)
        dense = (g.ldc == self.N) & (g.stride_c == SIZE) & (here == TOGETHER)
        dense = dense & (k.address(c) & (LINEAR*self.a.BYTES - 1) == 0)

        def moved(to: Value, p: Value, EACH: int, read_c: bool) -> None:
            x = k.load(self.tile + p*(EACH*PAIR), vec(self.R, EACH*PAIR))
            self._put(c + to*PAIR, _elements(x), read_c, None)

        def whole_lines(read_c: bool) -> None:
            ALL = TOGETHER*SIZE // LINEAR
            for FIRST in range(0, ALL, LANES):
                with k.when(lane < ALL - FIRST) if ALL - FIRST < LANES else nullcontext():
                    moved((lane + FIRST)*LINEAR, lane + FIRST, LINEAR, read_c)

        def strided(read_c: bool) -> None:
            with k.loop(here*SIZE, start=lane, step=LANES, unroll=False) as p:
                matrix, row, column = self._split(p, self.M, self.N)
                moved(k.cast(matrix, i64)*g.stride_c + k.cast(row, i64)*g.ldc + column, p, 1, read_c)
        with k.when(dense):
            self._cases(whole_lines)
        with k.otherwise():
            self._cases(strided)


def _elements(x: Value) -> list[Value]:
    return [x[e] for e in range(x.type.length)] if x.type.length > 1 else [x]


def _all(*conditions: Value | None) -> Value | None:
    """What holds where all of these do; None: always."""
    both = None
    for x in conditions:
        if x is not None:
            both = x if both is None else both & x
    return both
