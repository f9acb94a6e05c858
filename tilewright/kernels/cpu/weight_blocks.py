"""Weights of few bits as bf16, block by block in a buffer in L1, from which tiles or vectors of pairs multiply them.

    i8              32 at a time, by way of f32, of which the upper halves are gathered
    i4 u4 e2m1      two to a byte: 16 bytes four times side by side, shifted by 0 4 8 12 bits, index a table of bf16

bf16 holds every such number exactly, differences of u4 from a zero point, and e2m1 times a scale that is a power of
two: such scales, of 32 steps of k, are in the table. Other scales are left to the caller.

The order of elements within 32 steps of k is that of decoding (`order`), in which x has to be, too.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.expressions import HALVES
from tilewright.formats import FORMATS
from tilewright.ir import Kernel, Value, f32, i8, i16, i32, i64, vec
from tilewright.kernels.cpu.jobs import Prepare
from tilewright.kernels.cpu.prepared import Beside
from tilewright.kernels.cpu.weights import Weights
from tilewright.kernels.narrow import pattern, splat
from tilewright.plans.few_rows import BLOCK, Aside, in_table
from tilewright.targets.cpu import CpuTarget

SIDE, STEP = 16, 32         # words of k, and elements, that are multiplied at once
DEEP = BLOCK                # steps of k in a block: of weights of 4 bits a cache line
SCALES = 16                 # that are made f32 at once
WORDS, HALVES_OF_WORDS = vec(i32, SIDE), vec(i16, STEP)


def order(SOURCE: str) -> list[int]:
    """The order of the elements of a step in a row of a tile."""
    if SOURCE.endswith(HALVES):
        return [4*(e % 8) + e // 8 for e in range(STEP)]
    return [e // 2 + e % 2 * SIDE for e in range(STEP)] if SOURCE == "i8" else list(range(STEP))


def rearranged(k: Kernel, g: Any, part: Value, COLS: int, pitch: Value, DEPTH: int,
               dealt: Callable[[list[Value]], list[Value]]) -> Value:
    """B's columns, which are rows of bf16, in this thread's tiles: DEPTH elements at a time, whose lines of STEP are
    `dealt` in another order, with zeros beyond k. `pitch`: words from row to row."""
    x, rows = g.tiles + part*g.tiles_step, g.b.view(g.ldb, 1)
    with k.loop(k.constant(i64, COLS)) as j, k.loop(g.k, step=DEPTH) as p:
        lines = [k.load(rows.at(j, p + e), HALVES_OF_WORDS, 2, k.lanes_below(g.k - (p + e), STEP))
                 for e in range(0, DEPTH, STEP)]
        for e, line in enumerate(dealt(lines)):
            k.store(x.view(pitch, 1).at(j, (p >> 1) + e*SIDE), k.reinterpret(line, WORDS), 64)
    return x


def powers_of_two(k: Kernel, x: Value) -> Value:
    """Numbers of e8m0 as f32: 2^-127 of 0, and NaN of 255."""
    length = x.type.length
    bits = k.cast(x, vec(i32, length)) & splat(k, i32, 255, length)
    power = k.max(bits << 23, splat(k, i32, 1 << 22, length))
    power = k.select(bits == splat(k, i32, 255, length), splat(k, i32, 511 << 22, length), power)
    return k.bits_as(power, vec(f32, length))


class Tables:
    """For each zero point a table of 32 bf16, of which the lower 16 are the upper 16: what weights of 4 bits, less the
    zero point, are."""

    def __init__(self, k: Kernel, weights: Weights) -> None:
        self.k, self.zero = k, weights.zero
        numbers = [float(FORMATS[weights.SOURCE].decode(e).real) for e in range(16)]
        self.least = int(min(numbers)) if self.zero else 0
        self.tables = k.local("tables", (16 if self.zero else 1, SIDE), i32)
        for zero in range(16 if self.zero else 1):
            upper = [pattern(x - (zero + self.least if self.zero else 0)) >> 16 & 0xFFFF for x in numbers]
            words = [upper[2*e % 16] | upper[2*e % 16 + 1] << 16 for e in range(SIDE)]
            k.store(self.tables.at(zero, 0), k.pack(*(k.constant(i32, x - (x >> 31 << 32)) for x in words)), 4)

    def of_row(self, i: Value, p: Value | int) -> Value:
        """The table for row i of weights at step p of k."""
        at = self.tables.at(self.zero.whole(i, p) - self.least, 0) if self.zero else self.tables.at(0, 0)
        return self.k.reinterpret(self.k.load(at, WORDS, 4), HALVES_OF_WORDS)


class Blocks:
    """Decodes blocks of HEIGHT rows and DEEP steps into a buffer in L1, of which there are two."""

    def __init__(self, k: Kernel, target: CpuTarget, SOURCE: str, PROLOGUE: tuple[Any, ...], g: Any, HEIGHT: int
                 ) -> None:
        self.k, self.SOURCE, self.g, self.HEIGHT = k, SOURCE, g, HEIGHT
        self.a, self.halves = g.a.view(g.lda, 1), SOURCE.endswith(HALVES)
        of = Weights(k, target, SOURCE, PROLOGUE, g.a_beside, g.index)
        self.zero, inside = of.zero, of.scale is not None and in_table(SOURCE, Aside.of_job(Prepare(*PROLOGUE).READ)[0])
        self.scale: Beside | None = None if inside else of.scale
        self.table_scale: Beside | None = of.scale if inside else None
        self.grouped = self.scale is not None and self.scale.STEP != "0"
        self.GROUP = self.scale.GROUP if self.scale is not None else 0
        self.tables: Tables | None = None
        self.pieces = k.local("pieces", (2, DEEP // STEP, HEIGHT, SIDE), i32)
        if self.table_scale is not None:
            self.scales = k.local("scales", (HEIGHT, SCALES), f32)
            numbers = [float(FORMATS["e2m1"].decode(e).real) for e in range(16)]
            self.table = k.pack(*(k.constant(f32, y) for y in numbers))
        elif self.halves:
            self.tables = Tables(k, of)
        if self.halves:
            self.shifts = k.pack(*(k.constant(i16, e // 8 * 4) for e in range(STEP)))

    def _read_scales(self, i: Value, p: Value) -> None:
        """Read the scales of all rows, SCALES each, from step p of k on."""
        k, x = self.k, self.table_scale
        assert x is not None
        there = k.lanes_below(k.ceil_div(self.g.k - p, STEP), SCALES)
        with k.loop(k.constant(i64, self.HEIGHT)) as r:
            numbers = powers_of_two(k, k.load(x.address(i + r, p), vec(x.T, SCALES), 1, there))
            k.store(self.scales.at(r, 0), numbers)

    def buffer(self, block: Value) -> Value:
        """The buffer for the pieces of a block: [step][row][word]."""
        return self.pieces.at(block & 1, 0, 0, 0).view(self.HEIGHT*SIDE, SIDE, 1)

    def decode(self, i: Value, block: Value, p: Value | None = None, count: Value | None = None) -> None:
        """All rows of a block as bf16; or of the last one the step at p alone, of which `count` exist."""
        k, pieces = self.k, self.buffer(block)
        first = block*DEEP if p is None else p
        if self.table_scale is not None:
            with k.when((first & (SCALES*STEP - 1)) == 0):
                self._read_scales(i, first)
        for r in range(self.HEIGHT):
            table = self.tables.of_row(i + r, first) if self.tables is not None else None
            for s in range(DEEP // STEP if p is None else 1):
                at = self.a.at(i + r, self.place(first + s*STEP))
                if self.table_scale is not None:
                    scale = self.scales[r, (first // STEP & (SCALES - 1)) + s]
                    wide = k.reinterpret(self.table * k.broadcast(scale, SIDE), HALVES_OF_WORDS)
                    table = k.shuffle(wide, wide, [e % 16 * 2 + 1 for e in range(STEP)])
                k.store(pieces.at(s, r, 0), self._piece(at, table, count), 64)

    def place(self, p: Value) -> Value:
        return p >> 1 if self.halves else p

    def _piece(self, at: Value, table: Value | None, count: Value | None) -> Value:
        """32 weights as bf16; beyond `count` any finite numbers, but of bf16 and i8 zeros."""
        k = self.k
        if self.SOURCE == "bf16":
            mask = None if count is None else k.lanes_below(count, STEP)
            return k.reinterpret(k.load(at, HALVES_OF_WORDS, 2, mask), WORDS)
        if self.SOURCE == "i8":
            wide = []
            for half in range(2):
                mask = None if count is None else k.lanes_below(count - half*SIDE, SIDE)
                x = k.cast(k.load(at + half*SIDE, vec(i8, SIDE), 1, mask), WORDS)
                wide.append(k.reinterpret(k.cast(x, vec(f32, SIDE)), HALVES_OF_WORDS))
            upper = [e % 2 * STEP + e // 2 * 2 + 1 for e in range(STEP)]
            return k.reinterpret(k.shuffle(wide[0], wide[1], upper), WORDS)
        assert table is not None
        if count is None:
            few = k.load(at.as_(i16), vec(i16, 8), 1)
        else:
            few = k.reinterpret(k.load(at, vec(i8, SIDE), 1, k.lanes_below((count + 1) >> 1, SIDE)), vec(i16, 8))
        index = k.shuffle(few, few, [e % 8 for e in range(STEP)]) >> self.shifts
        return k.reinterpret(k.lookup(table, index), WORDS)
