"""Batches of small products, whose sizes are in the code: C[g] = alpha * A[g] @ B[g] + beta * C[g].

Roles       every warp for itself: it takes group after group of G matrices, and its lanes TOGETHER of them at once
Pipeline    A and B of a group are copied to the warp's shared memory, STAGES - 1 groups ahead; lanes multiply what is
            there by outer products in registers, and store C at once, or by way of shared memory where what they have
            side by side are no whole sectors
Timeline    copies of group j + STAGES - 1 | wait for group j | multiply | store
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i32, i64, vec
from tilewright.plans.small_layout import WIDEST, Lanes, Stored, power, stored, whole
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.work import arguments, parameters

PARTS = {"f32": (f32, 1), "f64": (f64, 1), "c64": (f32, 2), "c128": (f64, 2)}       # of a number: their type, how many
SECTOR = 32
LOADED = 96         # words that a lane loads in a turn of the loop over k: ptxas loads all of them first


def emit_small(DTYPE: str = "f32", LAYOUT: str = "nn", M: int = 4, N: int = 4, K: int = 4, THREAD_M: int = 1,
               THREAD_N: int = 4, MATRICES: int = 8, WARPS: int = 4, STAGES: int = 2, VECTOR_A: int = 4,
               VECTOR_B: int = 4, VECTOR_C: int = 4, CONJ: str = "", STAGED: bool = False, ASYNC: bool = True,
               WARP: int = 32, CTAS: int = 1) -> Function:
    """
    LAYOUT      "n" or "t" for A and for B: [m, k] or [k, m], [k, n] or [n, k]
    THREAD_M    rows and THREAD_N columns of C that a lane has: so many lanes share a matrix as that takes
    MATRICES    of a group: a multiple of those that a warp multiplies at once
    WARPS       of a CTA
    VECTOR_A    elements that may be copied at once: rows of A, their distances and those of matrices are multiples of
                it. VECTOR_B: of B, VECTOR_C: of C, for stores
    CONJ        the operands that are conjugated: "", "a", "b" or "ab"
    STAGED      C goes through shared memory
    ASYNC       copies by cp.async, else through registers
    CTAS        of a multiprocessor, which limits registers
    """
    R, PAIR = PARTS[DTYPE]
    lanes = Lanes(WARP, -(-M // THREAD_M), -(-N // THREAD_N))
    BYTES = R.bytes * PAIR
    a = stored(*((M, K) if LAYOUT[0] == "n" else (K, M)), BYTES, LAYOUT[0] == "n", THREAD_M, VECTOR_A, lanes, True)
    b = stored(*((K, N) if LAYOUT[1] == "n" else (N, K)), BYTES, LAYOUT[1] == "t", THREAD_N, VECTOR_B, lanes, False)
    name = (f"small_{DTYPE}_{LAYOUT}_{M}x{N}x{K}_t{THREAD_M}x{THREAD_N}_g{MATRICES}_w{WARPS}_s{STAGES}"
            f"_v{VECTOR_A}x{VECTOR_B}x{VECTOR_C}{'_staged'*STAGED}{'' if ASYNC else '_regs'}"
            f"{f'_conj_{CONJ}' if CONJ else ''}{f'_c{CTAS}' if CTAS > 1 else ''}")
    given = parameters(R, R, R, R, Split(1, False), BATCH=True)
    k = Kernel(name, threads=WARPS*WARP, noalias=False, warp=WARP, min_ctas=CTAS,
               **given | ({"alpha_imaginary": R, "beta_imaginary": R} if PAIR == 2 else {}))
    g = arguments(k)
    return _Small(k, g, R, PAIR, lanes, a, b, M, N, K, MATRICES, WARPS, STAGES, VECTOR_C, CONJ, STAGED, ASYNC).write()


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
    STAGES: int
    VECTOR_C: int
    CONJ: str
    STAGED: bool
    ASYNC: bool

    def write(self) -> Function:
        k, g, PAIR, WARP = self.k, self.g, self.PAIR, self.lanes.WARP
        t = k.thread[0]
        warp, self.lane = k.uniform(t // WARP), t % WARP
        self.OF_A = self.a.area(self.G)*PAIR                            # numbers of a stage
        AREA = self.OF_A + self.b.area(self.G)*PAIR
        TILE = whole(self.lanes.TOGETHER*self.M*self.N, self.a.BYTES)*PAIR if self.STAGED else 0
        smem = k.smem("matrices", (self.WARPS * (self.STAGES*AREA + TILE),), self.R, align=128)
        own = smem + warp * (self.STAGES*AREA + TILE)
        self.tile = own + self.STAGES*AREA
        if self.lanes.PARTS == 1:
            self._have(k.min(self.lane // self.lanes.EACH, self.lanes.TOGETHER - 1), self.lane % self.lanes.EACH,
                       self.lane < self.lanes.TOGETHER*self.lanes.EACH)
        groups = k.ceil_div(g.batch, self.G)
        first, step = k.block[0]*self.WARPS + warp, k.grid[0]*self.WARPS
        copies = [self._copies(x, pointer, ld, stride) for x, pointer, ld, stride in (
            (self.a, g.a, g.lda, g.stride_a), (self.b, g.b, g.ldb, g.stride_b))]
        AHEAD = self.STAGES - 1
        stage = k.variable(i32, 0)
        with k.loop(groups + AHEAD*step, start=first, step=step, unroll=False) as ahead:
            into = own + stage.get()*AREA if self.STAGES > 1 else own
            valid = k.min(g.batch - ahead*self.G, self.G)
            copies[0](into, ahead, valid)
            copies[1](into + self.OF_A, ahead, valid)
            if self.ASYNC:
                k.cp_async_commit()
            if self.STAGES > 1:
                after = stage.get() + 1
                stage.set(k.select(after == self.STAGES, 0, after))
            if AHEAD:
                with k.when(ahead >= first + AHEAD*step):
                    self._group(own + stage.get()*AREA, ahead - AHEAD*step)
            else:
                self._group(own, ahead)
        return k.function

    def _have(self, matrix: Value, own: Value, real: Value) -> None:
        """The lane is number `own` of those that share this matrix of a round, if it is a `real` one."""
        self.matrix, self.real = matrix, real
        self.down, self.across = own // self.lanes.ACROSS, own % self.lanes.ACROSS

    # ---- copies

    def _copies(self, x: Stored, pointer: Value, ld: Value, stride: Value) -> Callable[[Value, Value, Value], None]:
        """What starts the copies of group `ahead`, of `valid` matrices."""
        k, PAIR, WARP, lane = self.k, self.PAIR, self.lanes.WARP, self.lane
        dense = (ld == x.INNER) & (stride == x.SIZE)
        if not x.COPIED:
            LINEAR = power(WIDEST // x.BYTES, self.G*x.SIZE)
            dense = dense & (k.address(pointer) & (LINEAR*x.BYTES - 1) == 0)
        else:
            LINEAR = x.COPIED

        def place(p: Value, EACH: int) -> Value:
            """Of piece p, of EACH elements."""
            if not x.COPIED:
                return p*(EACH*PAIR)
            matrix, row, column = self._split(p, x.OUTER, x.INNER // EACH)
            return (matrix*x.MATRIX + row*x.ROW + column*EACH) * PAIR

        def linear(into: Value, ahead: Value) -> None:
            """A whole group of matrices without gaps."""
            source, ALL = pointer + k.cast(ahead, i64)*(self.G*x.SIZE*PAIR), self.G*x.SIZE // LINEAR
            offsets = [self._after(x, FIRST, LINEAR) for FIRST in range(0, ALL, WARP)]
            if len(offsets) > 1 and None in offsets:
                with k.loop(ALL, start=lane, step=WARP, unroll=False) as p:
                    self._copy(into + place(p, LINEAR), source + p*(LINEAR*PAIR), LINEAR*PAIR)
                return
            first, source = into + place(lane, LINEAR), source + lane*(LINEAR*PAIR)
            for r, offset in enumerate(offsets):
                with k.when(lane < ALL - r*WARP) if ALL - r*WARP < WARP else nullcontext():
                    self._copy(first + (offset or 0)*PAIR, source + r*WARP*LINEAR*PAIR, LINEAR*PAIR)

        def strided(into: Value, ahead: Value, valid: Value) -> None:
            EACH = x.COPIED or 1
            with k.loop(valid*(x.SIZE // EACH), start=lane, step=WARP, unroll=False) as p:
                matrix, row, column = self._split(p, x.OUTER, x.INNER // EACH)
                at = (k.cast(ahead, i64)*self.G + matrix)*stride + k.cast(row, i64)*ld + column*EACH
                self._copy(into + place(p, EACH), pointer + at*PAIR, EACH*PAIR)

        def both(into: Value, ahead: Value, valid: Value) -> None:
            with k.when(dense & (valid == self.G)):
                linear(into, ahead)
            with k.otherwise():
                strided(into, ahead, valid)
        return both

    def _after(self, x: Stored, FIRST: int, EACH: int) -> int | None:
        """How many elements behind piece p piece p + FIRST is, for each lane's p; None: that differs."""
        WARP = self.lanes.WARP

        def place(p: int) -> int:
            if not x.COPIED:
                return p*EACH
            row, piece = divmod(p, x.INNER // EACH)
            return row // x.OUTER * x.MATRIX + row % x.OUTER * x.ROW + piece*EACH
        last = self.G*x.SIZE // EACH
        found = {place(p + FIRST) - place(p) for p in range(WARP) if p + FIRST < last}
        return found.pop() if len(found) == 1 else None

    def _split(self, p: Value, ROWS: int, PIECES: int) -> tuple[Value, Value, Value]:
        """(matrix, row, piece)."""
        rows = p // PIECES if PIECES > 1 else p
        return rows // ROWS, rows % ROWS, p % PIECES

    def _copy(self, smem: Value, gmem: Value, numbers: int) -> None:
        k, T = self.k, vec(self.R, numbers)
        if self.ASYNC:
            k.cp_async(smem, gmem, T.bytes)
        else:
            k.store(smem, k.load(gmem, T))

    # ---- products

    def _group(self, at: Value, group: Value) -> None:
        k = self.k
        valid = k.min(self.g.batch - group*self.G, self.G)
        if self.ASYNC:
            k.cp_async_wait(self.STAGES - 1)
        k.warp_barrier()
        ROUNDS = self.G // self.lanes.TOGETHER
        if ROUNDS == 1:
            self._round(at, group, valid, k.constant(i32, 0))
        else:
            with k.loop(k.min(ROUNDS, k.ceil_div(valid, self.lanes.TOGETHER)), unroll=False) as turn:
                self._round(at, group, valid, turn*self.lanes.TOGETHER)
        k.warp_barrier()

    def _round(self, at: Value, group: Value, valid: Value, first: Value) -> None:
        """Matrices first, first + 1 ... of the group."""
        k, lanes = self.k, self.lanes
        if lanes.PARTS == 1:
            self._part(at, group, valid, first)
        else:
            with k.loop(lanes.PARTS, unroll=False) as part:
                own = part*lanes.WARP + self.lane
                self._have(k.constant(i32, 0), k.min(own, lanes.EACH - 1) if lanes.EACH % lanes.WARP else own,
                           own < lanes.EACH)
                self._part(at, group, valid, first)
        if self.STAGED:
            self._written(group, valid, first)

    def _part(self, at: Value, group: Value, valid: Value, first: Value) -> None:
        """What the lanes have of C at once."""
        k, PAIR = self.k, self.PAIR
        number = first + self.matrix
        have = k.min(number, valid - 1)
        acc = k.tile(self.a.COUNT, self.b.COUNT*PAIR, self.R)
        places = [self._places(x, base + have*(x.MATRIX*PAIR), u) for x, base, u in (
            (self.a, at, self.down), (self.b, at + self.OF_A, self.across))]
        STEPS = max(x.WIDTH if x.ALONG_K else 1 for x in (self.a, self.b))
        each = STEPS * (self.a.COUNT + self.b.COUNT) * self.a.BYTES // 4
        TURN = min(max(LOADED // each, 1)*STEPS, self.K // STEPS * STEPS)
        WHOLE = self.K // TURN * TURN if TURN else 0
        if WHOLE > TURN:
            with k.loop(WHOLE, step=TURN, unroll=False) as p:
                for e in range(0, TURN, STEPS):
                    self._steps(acc, places, p, e, STEPS)
        else:
            for e in range(0, WHOLE, STEPS):
                self._steps(acc, places, None, e, STEPS)
        for e in range(WHOLE, self.K, STEPS):
            self._steps(acc, places, None, e, min(STEPS, self.K - e))
        self._scaled(acc)
        if self.STAGED:
            self._placed(acc)
        else:
            self._direct(acc, group, number, self.real & (number < valid))

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
            first, found = base + k.min(u, x.OUTER - 1)*(x.ROW*PAIR), []
            for e in range(x.COUNT):
                inside = (e + 1)*x.LANES <= x.OUTER
                found.append(first + e*x.LANES*x.ROW*PAIR if inside
                             else base + k.min(u + e*x.LANES, x.OUTER - 1)*(x.ROW*PAIR))
            return found
        found = []
        for e in range(0, x.COUNT, x.WIDTH):
            FIRST = e*x.LANES
            at = u*x.WIDTH + FIRST if FIRST else u*x.WIDTH
            if FIRST + x.LANES*x.WIDTH > x.INNER:
                at = k.select(at < x.INNER, at, 0)
            found.append(base + at*PAIR)
        return found

    def _steps(self, acc: Any, places: list[list[Value]], p: Value | None, E: int, STEPS: int) -> None:
        """acc += A[:, p + E ...] @ B[p + E ..., :] of so many steps."""
        k, PAIR = self.k, self.PAIR
        loaded = [self._loaded(x, at, p, E, STEPS) for x, at in zip((self.a, self.b), places)]
        signs = [x in self.CONJ for x in "ab"]
        for own, other in zip(*loaded):
            for i, x in enumerate(own):
                for j, y in enumerate(other):
                    if PAIR == 1:
                        acc[i, j] = k.fma(x[0], y[0], acc[i, j])
                        continue
                    both = signs[0] == signs[1]
                    acc[i, 2*j] = k.fma(x[0], y[0], acc[i, 2*j])
                    acc[i, 2*j] = k.fma(-x[1] if both else x[1], y[1], acc[i, 2*j])
                    acc[i, 2*j + 1] = k.fma(-x[0] if signs[1] else x[0], y[1], acc[i, 2*j + 1])
                    acc[i, 2*j + 1] = k.fma(-x[1] if signs[0] else x[1], y[0], acc[i, 2*j + 1])

    def _loaded(self, x: Stored, places: list[Value], p: Value | None, E: int, STEPS: int
                ) -> list[list[tuple[Value, ...]]]:
        """[step][number of the lane's]: its parts."""
        found: list[list[tuple[Value, ...]]] = [[] for _ in range(STEPS)]
        if x.ALONG_K:
            WIDTH = x.WIDTH if STEPS % x.WIDTH == 0 else 1
            for at in places:
                for e in range(0, STEPS, WIDTH):
                    for d, y in enumerate(self._vector(at, p, 1, E + e, WIDTH)):
                        found[e + d].append(y)
        else:
            for e in range(STEPS):
                for at in places:
                    found[e] += self._vector(at, p, x.ROW, E + e, x.WIDTH)
        return found

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
        at = u + e*x.LANES if x.ALONG_K else u*x.WIDTH + (e // x.WIDTH*x.LANES*x.WIDTH + e % x.WIDTH)
        last = e*x.LANES + x.LANES - 1 if x.ALONG_K else (e // x.WIDTH*x.LANES + x.LANES - 1)*x.WIDTH + e % x.WIDTH
        return at, last < size

    def _runs(self, acc: Any, WIDEST_RUN: int) -> Any:
        """(row, column, numbers, what must hold) of what lies side by side."""
        PAIR, x = self.PAIR, self.b
        WIDTH = 1 if x.ALONG_K else power(x.WIDTH, WIDEST_RUN)
        for i in range(acc.rows):
            row, all_rows = self._own(self.a, self.down, i)
            for j in range(0, x.COUNT, WIDTH):
                column, all_columns = self._own(x, self.across, j)
                inside = [row < self.M]*(not all_rows) + [column < self.N]*(not all_columns)
                yield row, column, [acc[i, e] for e in range(j*PAIR, (j + WIDTH)*PAIR)], inside

    def _direct(self, acc: Any, group: Value, number: Value, here: Value) -> None:
        k, g, PAIR = self.k, self.g, self.PAIR
        c = g.c + (k.cast(group, i64)*self.G + number)*g.stride_c*PAIR

        def each(read_c: bool) -> None:
            for row, column, numbers, inside in self._runs(acc, self.VECTOR_C):
                mask = here
                for more in inside:
                    mask = mask & more
                self._put(c + (k.cast(row, i64)*g.ldc + column)*PAIR, numbers, read_c, mask)
        self._cases(each)

    def _cases(self, each: Callable[[bool], None]) -> None:
        zero = self.g.beta == 0
        with self.k.when(zero if self.PAIR == 1 else zero & (self.g.beta_imaginary == 0)):
            each(False)
        with self.k.otherwise():
            each(True)

    def _put(self, at: Value, numbers: list[Value], read_c: bool, mask: Value | None) -> None:
        k, T = self.k, vec(self.R, len(numbers))
        if read_c:
            old = k.load(at, T, mask=mask)
            old_numbers = [old[e] for e in range(T.length)] if T.length > 1 else [old]
            numbers = [k.fma(self.g.beta, y, x) for x, y in zip(numbers, old_numbers)]
            if self.PAIR == 2:
                turned, real = self.g.beta_imaginary, self.g.beta_imaginary == 0
                crossed = [y for e in range(0, T.length, 2) for y in (-old_numbers[e + 1], old_numbers[e])]
                numbers = [k.select(real, x, k.fma(turned, y, x)) for x, y in zip(numbers, crossed)]
        k.store(at, k.pack(*numbers) if len(numbers) > 1 else numbers[0], mask=mask)

    def _placed(self, acc: Any) -> None:
        """In the tiles of a round, which have no gaps."""
        k, PAIR = self.k, self.PAIR
        mine = self.tile + self.matrix*(self.M*self.N*PAIR)
        for row, column, numbers, inside in self._runs(acc, self.N):
            mask = self.real if self.lanes.EACH*self.lanes.TOGETHER % self.lanes.WARP else None
            for more in inside:
                mask = more if mask is None else mask & more
            k.store(mine + (row*self.N + column)*PAIR, k.pack(*numbers) if len(numbers) > 1 else numbers[0], mask=mask)

    def _written(self, group: Value, valid: Value, first: Value) -> None:
        """Whole lines of C, from these tiles."""
        k, g, PAIR, WARP, lane = self.k, self.g, self.PAIR, self.lanes.WARP, self.lane
        SIZE, TOGETHER = self.M*self.N, self.lanes.TOGETHER
        k.warp_barrier()
        here = k.min(valid - first, TOGETHER)
        LINEAR = power(WIDEST // (self.R.bytes*PAIR), TOGETHER*SIZE, self.G*SIZE)
        dense = (g.ldc == self.N) & (g.stride_c == SIZE) & (k.address(g.c) & (LINEAR*PAIR*self.R.bytes - 1) == 0)
        base = k.cast(group, i64)*self.G + first

        def linear(read_c: bool) -> None:
            c, ALL = g.c + base*(SIZE*PAIR), TOGETHER*SIZE // LINEAR
            for FIRST in range(0, ALL, WARP):
                with k.when(lane < ALL - FIRST) if ALL - FIRST < WARP else nullcontext():
                    moved(c + (lane + FIRST)*(LINEAR*PAIR), lane + FIRST, LINEAR, read_c)

        def moved(to: Value, p: Value, EACH: int, read_c: bool) -> None:
            x = k.load(self.tile + p*(EACH*PAIR), vec(self.R, EACH*PAIR))
            self._put(to, [x[e] for e in range(EACH*PAIR)] if EACH*PAIR > 1 else [x], read_c, None)

        def strided(read_c: bool) -> None:
            with k.loop(here*SIZE, start=lane, step=WARP, unroll=False) as p:
                matrix, row, column = self._split(p, self.M, self.N)
                at = (base + matrix)*g.stride_c + k.cast(row, i64)*g.ldc + column
                moved(g.c + at*PAIR, p, 1, read_c)
        with k.when(dense & (here == TOGETHER)):
            self._cases(linear)
        with k.otherwise():
            self._cases(strided)
        k.warp_barrier()
