"""Warpgroups of the GEMM by wgmma (wgmma_gemm.py) that read the rows of instructions from shared memory into
registers, because wgmma cannot multiply them as they are there.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any

from tilewright.atoms.wgmma import DEPTH, M, Wgmma
from tilewright.ir import Kernel, Tile, Value, f32, i8, i16, i32, vec
from tilewright.kernels.gpu.epilogue import Run
from tilewright.kernels.gpu.transform import Loaded, Transform
from tilewright.kernels.gpu.unpack import signed_bytes
from tilewright.kernels.nvidia.ring import Carried
from tilewright.kernels.nvidia.wgmma_products import Products, Stages
from tilewright.kernels.nvidia.wgmma_tiles import SmemTile
from tilewright.plans.gpu_shape import LINE
from tilewright.plans.wgmma_rules import APART

PIECE, WARPGROUP = 16, 4        # bytes that a swizzle leaves together; warps
STEP, HALF, PAIRS = 16, 8, 2    # steps of k of an instruction of 16 bits, and of half its registers; pairs of a row
SPREAD = 1 + (1 << 12)          # times a byte: its upper half begins at bit 16, too
Fragments = list[list[Value]]   # of each block of 64 rows the registers of an instruction


class RegisterProducts(Products):
    """A stage is multiplied in two halves, each a group: the registers of one are filled while the other is multiplied.
    """

    def add_up(self, ring: Stages, begin: Value, count: Value | None, started: Callable[[], None] | None = None,
               part: int = 0) -> None:
        assert count is not None
        self._halves(ring.filled(begin), True, lambda: None)
        with self.k.loop(count, start=1, unroll=False) as step:
            self._next(step, count)
            self._halves(ring.filled(begin + step), False, lambda: ring.give_back(begin + step - 1))
        if started:
            started()
        self.wait(0)
        ring.give_back(begin + count - 1)

    def _halves(self, stage: Value, first: bool, before: Callable[[], None], into: list[Tile] | None = None) -> None:
        """Start the products of a stage, as two groups; `before` is called when those of the one before are over.
        `into` other registers than usual: what has been promoted is so before."""
        k, b, b_smem, sums = self.k, self.tiles[1], self.smem[1], into or self.acc
        STEPS = b.CTA_K*b.ITEM // DEPTH // 2
        for half in range(2):
            steps = range(half*STEPS, (half + 1)*STEPS)
            fragments = self._read(stage, steps)
            k.wgmma_fence(*sums, *(self.sums if into else ()))
            for step, read in zip(steps, fragments):
                for acc, registers in zip(sums, read):
                    k.wgmma(self.atom, acc, registers, b_smem.at(stage, b.offset(0, step)), not first or step > 0)
            k.wgmma_commit()
            self.wait(1)
            if not half:
                before()

    def _next(self, step: Value, count: Value) -> None:
        """Before the products of step `step` of `count`."""

    def _read(self, stage: Value, steps: Sequence[int]) -> list[Fragments]:
        """The registers for each of these steps of a stage."""
        raise NotImplementedError


class StridedProducts(RegisterProducts):
    """Products of tf32 whose rows are contiguous, not k, which wgmma takes from registers alone. TMA leaves 32 rows of
    a step of k in 128 bytes, swizzled. A lane reads 16 bytes at once: four rows, which are rows of two blocks, of both
    halves of each, so that a warp has 32 rows side by side. Which four spreads eight lanes over all banks.
    """

    def __init__(self, k: Kernel, atom: Wgmma, tiles: tuple[SmemTile, SmemTile], *more: Any) -> None:
        super().__init__(k, atom, tiles, *more)
        t, a = more[-1], tiles[0]
        lane, warp = t % 32, t // 32
        self.four = lane // 4 % 2 * 4 + lane // 8                       # the lane's rows of 32, in fours
        step = lane % 4                                                 # of k: this one, and the fourth after it
        own = (self.first // a.ROW + warp)*a.BLOCK + step*a.SWIZZLE + (self.four ^ step)*PIECE
        self.own = own, (own ^ 4*PIECE) + 4*a.SWIZZLE

    def _read(self, stage: Value, steps: Sequence[int]) -> list[Fragments]:
        return [self._step(stage, step) for step in steps]

    def _step(self, stage: Value, step: int) -> Fragments:
        """The registers of A for each block."""
        k, a, values = self.k, self.tiles[0], []
        for pair in range(len(self.acc) // 2):
            at = pair*WARPGROUP*a.BLOCK + step*(DEPTH // a.ITEM)*a.SWIZZLE
            now, later = (k.load(self.smem[0].at(stage, own + at).as_(f32), vec(f32, 4)) for own in self.own)
            values += [[k.bits_as(x[2*i + half], i32) for x in (now, later) for half in range(2)] for i in range(2)]
        return values

    def row(self, t: Value, i: int, half: int) -> Value:
        return t // 32 * 32 + self.four*4 + (i // 2 * 2*M + i % 2 * 2 + half)

    def runs(self, t: Value, i0: Value, j0: Value, VECTOR: int) -> Iterator[Run]:
        """With SWAP four rows are neighbours in a row of C."""
        if not self.SWAP:
            yield from super().runs(t, i0, j0, VECTOR)
            return
        for i in range(0, self.shape[0], 2):
            column = j0 + self.first + self.row(t, i, 0)
            for e in (e for e in range(self.shape[1]) if e % 4 < 2):
                row = i0 + self.column(t, e)
                four = [self.element(i + block, e + 2*half) for block in range(2) for half in range(2)]
                for first in range(0, 4, VECTOR):
                    yield Run(row, column + first, four[first:first + VECTOR])


class DecodedProducts(RegisterProducts):
    """Products whose rows have a prologue, which is evaluated on elements on their way to registers: k is contiguous in
    them, with 4, 8 or 16 bits for an element. A lane reads pairs of neighbours along k, as instructions take them: pair
    lane % 4 of each 8 steps, of row lane / 4 and the row 8 below. The second half of a stage is read before the first
    one is multiplied, and arrays beside elements a stage ahead. Factors that all of k shares, or those that a stage
    shares whose sums are promoted, multiply sums.
    """

    def __init__(self, k: Kernel, atom: Wgmma, tiles: tuple[SmemTile, SmemTile], *more: Any, before: Transform) -> None:
        super().__init__(k, atom, tiles, *more)
        t, a = more[-1], tiles[0]
        self.before, self.BITS, group = before, 8*before.S.bytes // before.TOGETHER, t % 32 // 4
        self.first_row = t // 32 * 16 + group
        # the swizzle turns the numbers of pieces by what the row is, of those that lanes of a warp read together
        self.turn = group*a.SWIZZLE // LINE % (a.SWIZZLE // PIECE)
        self.own = (self.first + self.first_row)*a.SWIZZLE + t % 4 * (2*self.BITS // 8)
        self.ALONG = [x.name for x in before.prologue.reads if x.along_k]
        self.OTHERS = [x.name for x in before.prologue.reads if not x.along_k]
        # steps of k for which each array beside elements has one number
        self.SPAN = gcd(tiles[1].CTA_K, *(x.group for x in before.prologue.reads if x.along_k))
        more_sums = self.acc if self.sums is not self.acc else []       # of stages that are promoted in turn
        self.both = self.acc, [k.tile(1, atom.registers, atom.sum) for _ in more_sums]
        self.raw: Fragments = []        # of the second half of a stage

    def begin(self, i0: Value, p0: Value) -> None:
        """A tile of C, of which this is the first row of instructions, from step p0 of k on."""
        k, limit = self.k, self.before.g.n if self.SWAP else self.before.g.m
        self.p0 = p0
        self.rows = [k.min(i0 + self.first + self.first_row + (i*M + 8*half), limit - 1)        # of this lane
                     for i in range(len(self.acc)) for half in range(2)]
        self.others = [self.before.loaded(self.OTHERS, row, p0, 1) for row in self.rows]
        self.ahead = Carried(k, self._beside(p0))

    def add_up(self, ring: Stages, begin: Value, count: Value | None, started: Callable[[], None] | None = None,
               part: int = 0) -> None:
        assert count is not None
        self._next(self.k.constant(i32, 0), count)
        super().add_up(ring, begin, count, started, part)
        if self.before.factor is not None:
            factors = self._factors()
            for i, tile in enumerate(self.acc):
                for at, e in tile.registers:
                    tile[at, e] = tile[at, e]*factors[2*i + e // 2 % 2]

    def add_up_apart(self, ring: Stages, begin: Value, count: Value) -> None:
        k, last = self.k, list[tuple[Value, int, list[Value]]]()

        def promote() -> None:
            for position, which, factors in last:
                ring.give_back(position)
                for i, (total, acc) in enumerate(zip(self.sums, self.both[which])):
                    for at, e in total.registers:
                        total[at, e] = k.fma(acc[at, e], factors[2*i + e // 2 % 2], total[at, e])
            last.clear()

        def multiply(step: Value, which: int) -> None:
            self._next(step, count)
            self._halves(ring.filled(begin + step), True, promote, self.both[which])
            last.append((begin + step, which, self._factors()))
        with k.loop(count // APART, unroll=False) as turn:
            for at in range(APART):
                multiply(turn*APART + at, at % 2)
            self.wait(0)
            promote()
        with k.loop(count % APART, unroll=False) as step:
            multiply(count // APART * APART + step, 0)
            self.wait(0)
            promote()

    def wait(self, pending: int) -> None:
        self.k.wgmma_wait(pending, *self.both[0], *self.both[1])

    def _next(self, step: Value, count: Value) -> None:
        self.held = self.ahead.get()
        self.ahead.set(self._beside(self.p0 + self.k.min(step + 1, count - 1)*self.tiles[1].CTA_K))

    def _beside(self, p: Value) -> Fragments:
        """The numbers beside elements of each row, of the spans of a stage that begins at step p."""
        spans = range(0, self.tiles[1].CTA_K, self.SPAN)
        loaded = [[self.before.loaded(self.ALONG, row, p + span, 1) for span in spans] for row in self.rows]
        return [[one[name][0] for one in row for name in self.ALONG] for row in loaded]

    def _given(self, row: int, steps: Sequence[int]) -> Loaded:
        """The numbers beside the elements of these steps, of a row by its number: one for each element, or for all."""
        held, count = self.held[row], len(self.ALONG)
        spans = [step*STEP // self.SPAN for step in steps]
        spans = spans[:1] if len({*spans}) == 1 else [span for span in spans for _ in range(2*PAIRS)]
        along = {name: [held[span*count + at] for span in spans] for at, name in enumerate(self.ALONG)}
        return self.others[row] | along

    def _factors(self) -> list[Value]:
        """The factor of the present stage's sums, for each row."""
        return [self.before.factors(self._given(row, [0]))[0] for row in range(len(self.rows))]

    def _read(self, stage: Value, steps: Sequence[int]) -> list[Fragments]:
        raw = self._pairs(stage, steps) if not steps[0] else self.raw
        rows = [self._decoded(pairs, row, steps) for row, pairs in enumerate(raw)]
        if not steps[0]:
            self.raw = self._pairs(stage, [len(steps) + step for step in steps])
        return [[[rows[2*i + half][PAIRS*at + h] for h in range(PAIRS) for half in range(2)]
                 for i in range(len(self.acc))] for at in range(len(steps))]

    def _pairs(self, stage: Value, steps: Sequence[int]) -> Fragments:
        """The pairs of these steps in each row of this lane, as they are in memory."""
        k, a, T = self.k, self.tiles[0], {4: i8, 8: i16, 16: i32}[self.BITS]
        values = []
        for row in range(2*len(self.acc)):
            places = [divmod((step*STEP + h*HALF)*self.BITS // 8, a.SWIZZLE) for step in steps for h in range(PAIRS)]
            below = (row // 2 * M + row % 2 * 8)*a.SWIZZLE
            values.append([k.load(self.smem[0].at(stage, self.own + (self.turn ^ inside // PIECE)*PIECE + (
                below + block*a.BLOCK + inside % PIECE)).as_(T)) for block, inside in places])
        return values

    def _decoded(self, pairs: list[Value], row: int, steps: Sequence[int]) -> list[Value]:
        """A row's pairs of these steps in words, as they are multiplied."""
        k, before = self.k, self.before
        if before.INTERLEAVED:
            spread = [(k.cast(x, i32) & 0xFF)*SPREAD for x in pairs]
            return [word for at, step in enumerate(steps) for word in before.words(
                k.pack(*spread[PAIRS*at:PAIRS*(at + 1)]), self._given(row, [step]), SPREAD=True)]
        if before.BYTES and before.held:
            return [signed_bytes(k, x, before.held) for x in pairs]
        raw = k.reinterpret(k.pack(*pairs), vec(before.S, 2*len(pairs) // before.TOGETHER))
        return before.pairs(before.numbers(raw, self._given(row, steps)))
