"""What a warpgroup of the GEMM by wgmma (wgmma_gemm.py) does with the stages of the ring: it waits for them, multiplies
them, gives them back, and holds the sums.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import TypeVar

from tilewright.atoms.wgmma import DEPTH, M, Wgmma
from tilewright.ir import Kernel, Tile, Value, f16, f32, i32, vec
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.gpu.auxiliary import Scales
from tilewright.kernels.gpu.epilogue import Run
from tilewright.kernels.nvidia.wgmma_tiles import SmemTile
from tilewright.plans.wgmma_rules import APART

T = TypeVar("T")
Pairs = dict[tuple[int, int], Value]
Factors = tuple[Pairs, Pairs]           # scales by (64 rows, their upper or lower 8 of 16), and (8 columns, odd ones)


@dataclass(frozen=True)
class Stages:
    """The ring. A position counts steps of k since the CTA began; it says stage and phase.

    everywhere      stages are given back to all CTAs of the cluster
    TURNS           one of so many parts of the role that multiplies takes all positions of a tile
    """
    full: Mbarriers
    empty: Mbarriers
    COUNT: int
    everywhere: bool
    TURNS: int

    def refill(self, position: Value, BYTES: int) -> Value:
        """The stage, when it may be overwritten, by copies of so many bytes."""
        stage = position % self.COUNT
        self.empty.wait(stage, position // self.COUNT % 2 ^ 1, sleep=True)
        self.full.arrive(stage, by="role", expect=BYTES)
        return stage

    def filled(self, position: Value) -> Value:
        """The stage, when its tiles have come."""
        self.full.wait(position % self.COUNT, position // self.COUNT % 2, sleep=True)
        return position % self.COUNT

    def give_back(self, position: Value) -> None:
        self.empty.arrive(position % self.COUNT, by="warp", everywhere=self.everywhere, turns=self.TURNS)


class Turns:
    """Turns of warpgroups, of which this is number `mine`, with tiles of C."""

    def __init__(self, k: Kernel, turn: Mbarriers, mine: Value, WARPGROUPS: int) -> None:
        self.turn, self.mine, self.WARPGROUPS = turn, mine, WARPGROUPS
        self.begun = k.variable(i32, k.cast(mine == 0, i32))            # tiles; no tile comes before the first one

    def wait(self) -> None:
        """For the products of the tile before: the last ones have been started."""
        self.turn.wait(self.mine, self.begun.get() % 2, sleep=True)
        self.begun.set(self.begun.get() + 1)

    def end(self) -> None:
        """Hand on to the next warpgroup."""
        self.turn.arrive((self.mine + 1) % self.WARPGROUPS, by="warp", turns=self.WARPGROUPS)


class Ahead:
    """The factors of a block of k, while those of the next one are on their way."""

    def __init__(self, k: Kernel, load: Callable[[Value], Factors]) -> None:
        """`load`: those of the block that has this step of k."""
        self.load = load
        self.held = [k.variable(f32, x) for x in self._distinct(load(k.constant(i32, 0)))]

    def next(self, step: Value) -> Factors:
        """The factors of the present block; `step` is in the next one."""
        loaded = self.load(step)
        new = self._distinct(loaded)
        now = {id(x): held.get() for x, held in zip(new, self.held)}
        for x, held in zip(new, self.held):
            held.set(x)
        rows, columns = ({at: now[id(x)] for at, x in operand.items()} for operand in loaded)
        return rows, columns

    @staticmethod
    def _distinct(found: Factors) -> list[Value]:
        return list({id(x): x for operand in found for x in operand.values()}.values())


class Products:
    """A warpgroup's rows of the CTA's tile of C, or with SWAP of C^T: sums of products of tiles in shared memory."""

    def __init__(self, k: Kernel, atom: Wgmma, tiles: tuple[SmemTile, SmemTile], smem: tuple[Value, Value],
                 PAIRS: list[tuple[int, int]], first: Value, EXTENT: int, PARTS: int, SWAP: bool, t: Value) -> None:
        """t: the number of the thread in its warpgroup."""
        self.k, self.atom, self.tiles, self.smem, self.PAIRS, self.first = k, atom, tiles, smem, PAIRS, first
        self.SWAP, self.ELEMENTS = SWAP, (PARTS or 1)*atom.sums.elements
        self.acc: list[Tile] = [k.tile(1, atom.registers, atom.sum) for _ in range(EXTENT // M)]
        # of a tile of C in the end, PARTS of each block: those of the instructions, or others that these are added to
        self.PARTS = PARTS or 1
        self.sums = [k.tile(1, atom.registers, f32) for _ in range(len(self.acc)*PARTS)] if PARTS else self.acc

    def multiply(self, stage: Value, first: bool, part: int = 0, into: list[Tile] | None = None) -> None:
        """Start the products of a stage, as a group; the `first` ones replace the sums. `into` other registers than
        usual: what has been promoted is so before."""
        (a, b), (a_smem, b_smem), sums = self.tiles, self.smem, into or self.acc
        self.k.wgmma_fence(*sums, *(self.sums if into else ()))
        for number, ((x, y), step) in enumerate(product(self.PAIRS, range(a.CTA_K*a.ITEM // DEPTH))):
            for i, acc in enumerate(sums):
                self.k.wgmma(self.atom, acc, a_smem.at(stage, a.offset(self.first + i*M, step, x)),
                             b_smem.at(stage, b.offset(part*self.atom.n, step, y)), not first or number > 0)
        self.k.wgmma_commit()

    def wait(self, pending: int) -> None:
        self.k.wgmma_wait(pending, *self.acc)

    def add_up(self, ring: Stages, begin: Value, count: Value | None, started: Callable[[], None] | None = None,
               part: int = 0) -> None:
        """The products of `count` positions (None: of one) from `begin` on, in new sums; `started` is called when all
        are under way."""
        self.multiply(ring.filled(begin), True, part)
        if count is not None:
            with self.k.loop(count, start=1, unroll=False) as step:
                self.multiply(ring.filled(begin + step), False, part)
                self.wait(1)
                ring.give_back(begin + step - 1)
        if started:
            started()
        self.wait(0)
        if part + 1 < self.PARTS:
            return
        ring.give_back(begin if count is None else begin + count - 1)

    def clear(self) -> None:
        for tile in self.sums:
            for ij in tile.registers:
                tile[ij] = 0

    def factors(self, scales: Scales, begin: Value, t: Value, at: tuple[Value, Value], step: Value) -> Factors:
        """The scales of the block that has step begin + `step` of k, for thread t of the warpgroup in the tile at these
        coordinates of C."""
        scales, (i0, j0) = scales.block(begin + step), at
        (of_row, i0), (of_column, j0) = self._exchanged((scales.row, i0), (scales.column, j0))
        rows = {(i, half): of_row(i0 + self.first + self.row(t, i, half))
                for i in range(self.shape[0]) for half in range(2)}
        if scales.SHARED == 1 or self.SWAP:
            columns = {(e // 4, e % 2): of_column(j0 + self.column(t, e))
                       for e in range(self.shape[1]) if e % 4 < 2}
        else:
            WIDTH = gcd(self.tiles[1].EXTENT, scales.SHARED)            # columns that certainly share one
            shared = [scales.column(j0 + first) for first in range(0, self.tiles[1].EXTENT, WIDTH)]
            columns = {(e // 4, e % 2): shared[e // 4 * 8 // WIDTH] for e in range(self.shape[1])}
        return rows, columns

    def add_up_apart(self, ring: Stages, begin: Value, count: Value) -> None:
        """The products of `count` positions from `begin` on, in two sets of registers in turn, each of which is
        promoted while the next position is multiplied into the other. Sums of so many positions are over at the end of
        a round: NVIDIA's assembler waits for all products before it reads sums that are under way around a loop."""
        k, both = self.k, (self.acc, [self.k.tile(1, self.atom.registers, self.atom.sum) for _ in self.acc])

        def end(position: Value, which: int, pending: int) -> None:
            k.wgmma_wait(pending, *both[0], *both[1])
            ring.give_back(position)
            self.promote(of=both[which])
        with k.loop(count // APART, unroll=False) as turn:
            first = begin + turn*APART
            for at in range(APART):
                self.multiply(ring.filled(first + at), True, into=both[at % 2])
                if at:
                    end(first + (at - 1), 1 - at % 2, 1)
            end(first + (APART - 1), (APART - 1) % 2, 0)
        with k.loop(count % APART, unroll=False) as step:
            position = begin + (count // APART * APART + step)
            self.multiply(ring.filled(position), True, into=both[0])
            end(position, 0, 0)

    def promote(self, factors: Factors | None = None, part: int = 0, of: list[Tile] | None = None) -> None:
        """Add the sums of the instructions, which are over, to the others, times scales."""
        before, both = part*self.atom.sums.elements, dict[tuple[int, int], Value]()
        distinct = len({id(x) for x in factors[1].values()}) if factors else 0
        for i, (total, acc) in enumerate(zip(self.sums[part::self.PARTS], of or self.acc)):
            for at, e in total.registers:
                x = self.k.cast(acc[at, e], f32)
                if factors:
                    rows, columns = factors
                    of_row, of_column = rows[i, e // 2 % 2], columns[(before + e) // 4, e % 2]
                    pair = id(of_row), id(of_column)
                    if distinct == len(columns):                        # products of two would take many registers
                        of_a, of_b = self._exchanged(of_row, of_column)
                        total[at, e] = self.k.fma(x*of_a, of_b, total[at, e])
                        continue
                    if pair not in both:
                        both[pair] = of_row*of_column
                    total[at, e] = self.k.fma(x, both[pair], total[at, e])
                else:
                    total[at, e] = total[at, e] + x

    def widened(self) -> list[Tile]:
        """The sums of a tile of C, from here on f32 where they are f16."""
        if self.atom.d == "f16" and self.sums is self.acc:
            wide = [self.k.tile(1, self.ELEMENTS, f32) for _ in self.acc]
            for i, tile in enumerate(wide):
                for at, e in tile.registers:
                    tile[at, e] = self.element(i, e)
            self.keep(wide)
        return self.sums

    def keep(self, sums: list[Tile]) -> None:
        """From here on these are the sums of the tile, or of the first columns of it."""
        self.sums, self.ELEMENTS = sums, self.PARTS*len(sums[0].registers)

    @property
    def shape(self) -> tuple[int, int]:
        """Blocks of 64 rows, and elements of C that a lane has of each."""
        return len(self.acc), self.ELEMENTS

    def row(self, t: Value, i: int, half: int) -> Value:
        """The row of thread t in the upper or lower half of block i."""
        return t // 32 * 16 + i*M + self.atom.sums(t % 32, 2*half)[0]

    def column(self, t: Value, e: int) -> Value:
        """The column of thread t's element e of a block."""
        part, inside = divmod(e, self.atom.sums.elements)
        return self.atom.sums(t % 32, inside)[1] + part*self.atom.n

    def element(self, i: int, e: int) -> Value:
        """Element e of block i, of an f16 as f32."""
        part, e = divmod(e, self.atom.sums.elements)
        sums = self.sums[i*self.PARTS + part]
        if self.atom.d != "f16" or self.sums is not self.acc:
            return sums[0, e]
        return self.k.cast(self.k.reinterpret(sums[0, e // 2], vec(f16, 2))[e % 2], f32)

    @property
    def movable(self) -> bool:
        return self.atom.d != "f16" or self.sums is not self.acc

    def forget(self) -> None:
        """The sums are not needed any more: the next products need not find them in their registers."""
        for tile in self.sums:
            for ij in tile.registers:
                tile[ij] = self.k.forgotten(tile[ij])

    def advance(self, count: int) -> None:
        """Elements count, count + 1 ... of all blocks, one after the other, become 0, 1 ... The last stay."""
        every = [(tile, ij) for tile in self.sums for ij in tile.registers]
        for (to, here), (tile, ij) in zip(every, every[count:]):
            to[here] = tile[ij]

    def runs(self, t: Value, i0: Value, j0: Value, VECTOR: int) -> Iterator[Run]:
        """The sums of thread t of the warpgroup, in a tile that begins there."""
        i0, j0 = self._exchanged(i0, j0)
        for i in range(self.shape[0]):
            for half in range(2):                                       # all of a row, then the row 8 below
                row = i0 + self.first + self.row(t, i, half)
                for e in range(2*half, self.shape[1], 4):
                    x = self.column(t, e)
                    for d in range(0, 2, VECTOR):
                        yield Run(*self._exchanged(row, j0 + x + d), [self.element(i, e + d + v)
                                                                      for v in range(VECTOR)])

    def _exchanged(self, rows: T, columns: T) -> tuple[T, T]:
        """What rows and columns of C are to the instructions, or the reverse."""
        return (columns, rows) if self.SWAP else (rows, columns)
