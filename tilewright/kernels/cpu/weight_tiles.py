"""Few rows of bf16 by weights that are read once where they lie, [n, k], with AMX: the operands' roles exchanged.

16 rows of weights are a tile of A as they lie, 32 steps of k at a time; few rows x are tiles of B, which every thread
packs once for itself; a tile of C has 16 rows of weights by 16 rows of x.

    bf16            weights are loaded into tiles from where they are: a row of a tile is a cache line
    i8              become bf16 in a buffer in L1, 32 at a time: by way of f32, of which the upper halves are gathered
    i4 u4 e2m1      two to a byte: 16 bytes four times side by side, shifted by 0 4 8 12 bits, index a table of bf16

bf16 holds every such number exactly, differences of u4 from a zero point, and e2m1 times a scale that is a power of two:
such scales, of 32 steps of k, are in the table. Other scales multiply the sums of their group, in f32.

The order of elements within 32 steps of k is that of decoding (`order`), for which x is packed in the same order.
As in all products by these instructions numbers and sums below 2^-126 are 0 (ir/ops/x86.py).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.formats import FORMATS
from tilewright.ir import Function, Kernel, Value, f32, i8, i16, i32, i64, ptr, vec
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu.jobs import DOTS, TILES, Prepare
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.packing import transpose
from tilewright.kernels.cpu.pool import job_fields, split
from tilewright.kernels.cpu.prepared import Beside, suffix
from tilewright.kernels.cpu.weights import Weights
from tilewright.kernels.narrow import pattern, splat
from tilewright.plans.prologues import HALVES
from tilewright.targets.cpu import CpuTarget

SIDE, STEP = 16, 32         # rows of a tile; steps of k
LEAST = 64                  # rows of weights: of the tiles of C that are multiplied at once
DEEP = 128                  # steps of k at once: of weights of 4 bits a cache line
SCALES = 16                 # that are made f32 at once
WORDS, HALVES_OF_WORDS = vec(i32, SIDE), vec(i16, STEP)
SOURCES = "bf16", "i8", "i4x2", "u4x2", "e2m1x2"


def takes(source: str, prepare: tuple[Any, ...]) -> bool:
    """Whether weights of this format, with HALVES if two share a byte, are decoded with such scales and zero points: of
    all of k, of groups of DEEP steps, or of 32 steps and in the table."""
    words = [word.split(":") for word in prepare[1]]
    return source in SOURCES and all(how[1] == "0" or int(group) % DEEP == 0 or in_table(source, word)
                                     for word, (_, how, group) in zip(prepare[1], words))


def in_table(source: str, word: str) -> bool:
    """Whether bf16 holds elements times such scales."""
    FORMAT, how, group = word.split(":")
    return source == "e2m1x2" and FORMAT == "e8m0" and how[1] == "1" and int(group) == STEP


def shape(COLS: int, SOURCE: str) -> tuple[int, int]:
    """Tiles of C: of rows of weights, and of rows of x."""
    across = -(-COLS // SIDE)
    return 1 if SOURCE == "bf16" or across > 2 else 2, across


def order(SOURCE: str) -> list[int]:
    """Of the elements of a step in a row of a tile."""
    if SOURCE.endswith(HALVES):
        return [4*(e % 8) + e // 8 for e in range(STEP)]
    return [e // 2 + e % 2 * SIDE for e in range(STEP)] if SOURCE == "i8" else list(range(STEP))


def space(k: int, COLS: int) -> int:
    """Words that x takes as tiles."""
    return -(-k // STEP) * -(-COLS // SIDE) * SIDE * SIDE


def emit_tiles(target: CpuTarget, COLS: int, SOURCE: str, PROLOGUE: tuple[Any, ...]) -> Function:
    """tiles(job, part): a run of rows of C[m, COLS] = alpha * A[m, k] @ B[k, COLS] + beta * C, of which A has the
    weights, at least LEAST rows, and B's columns are rows of bf16; C's columns are contiguous."""
    k = Kernel(f"tiles_{COLS}_of_{SOURCE}{suffix(PROLOGUE)}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    PLAIN, (ROWS, ACROSS) = SOURCE == "bf16", shape(COLS, SOURCE)
    g = job_fields(k, job, (*DOTS, *TILES), f32, a=i16 if PLAIN else i8, b=i16, tiles=i32)
    x = g.tiles + part*g.tiles_step
    _pack(k, g, x, COLS, SOURCE)
    weights, HEIGHT = _Weights(k, target, SOURCE, PROLOGUE, g, ROWS), ROWS*SIDE
    C = [(r, t) for r in range(ROWS) for t in range(ACROSS)]
    tiles, OF_B = TileRegisters(k), min(ACROSS, 7 - len(C))
    of_b, of_a = range(len(C), len(C) + OF_B), range(len(C) + OF_B, 8)
    tiles.configure()
    sums = k.local("sums", (2, len(C), SIDE, SIDE), f32)
    total = k.local("total", (len(C), SIDE, SIDE), f32) if weights.grouped else sums.view(SIDE*SIDE, SIDE, 1)
    lo, hi = split(k.ceil_div(g.m, HEIGHT), g.parts, part)
    a, out = g.a.view(g.lda, 1), Out(k, g.c.view(1, g.csc), g.alpha, g.beta)
    whole = g.k // DEEP

    def clear() -> None:
        for tile in range(len(C)):
            tiles.zero(tile)

    def add(p: Value, s: int, piece: Callable[[int], tuple[Value, Any]]) -> None:
        """C's tiles += piece(r), for each 16 rows r, times step s after p."""
        at = x + ((p // STEP) + s)*(ACROSS*SIDE*SIDE)
        for r in range(ROWS):
            tile = of_a[r % len(of_a)]
            tiles.load(tile, *piece(r))
            for t in range(ACROSS):
                if r == 0 or OF_B < ACROSS:
                    tiles.load(of_b[t % OF_B], at + t*(SIDE*SIDE), SIDE)
                tiles.dot("bf16", r*ACROSS + t, tile, of_b[t % OF_B])

    def multiply(block: Value, STEPS: int = DEEP // STEP, at: Value | None = None) -> None:
        """By a block that is decoded, of which the sums are stored by themselves where scales are of groups."""
        pieces = weights.buffer(block)
        if weights.grouped and at is None:
            clear()
        for s in range(STEPS):
            add(block*DEEP if at is None else at, s, lambda r, s=s: (pieces.at(s, r*SIDE, 0), SIDE))
        if weights.grouped and at is None:
            store(block)

    def store(block: Value) -> None:
        for tile in range(len(C)):
            tiles.store(tile, sums.at(block & 1, tile, 0, 0), SIDE)

    def scaled(i: Value, block: Value) -> None:
        """Sums of a block times the scales of its group are added up."""
        for r in range(ROWS):
            for e in range(SIDE):
                scale = k.broadcast(weights.scale.one(i + (r*SIDE + e), block*DEEP, f32), SIDE)
                for t in range(ACROSS):
                    at = total.at(r*ACROSS + t, e, 0)
                    of_block = k.load(sums.at(block & 1, r*ACROSS + t, e, 0), vec(f32, SIDE))
                    k.store(at, k.fma(of_block, scale, k.load(at, vec(f32, SIDE))))

    def blocks(i: Value) -> None:
        """A block is decoded before the one before it is multiplied, and the sums of the one before that are scaled
        then: tiles cannot be loaded from lines that are still on their way to L1, nor vectors from tiles."""
        with k.loop(k.select(whole > 0, whole + (1 + weights.grouped), k.constant(i64, 0))) as block:
            with k.when(block < whole):
                weights.decode(i, block)
            with k.when((block > 0) & (block <= whole)):
                multiply(block - 1)
            if weights.grouped:
                with k.when(block > 1):
                    scaled(i, block - 2)
        if weights.grouped:
            clear()

    def finish(i: Value, first: Value, read_c: bool) -> None:
        for r, t in C:
            lines = [k.load(total.at(r*ACROSS + t, e, 0), vec(f32, SIDE)) for e in range(SIDE)]
            if weights.scale is not None and not weights.grouped:
                lines = [line * k.broadcast(weights.scale.one(i + (r*SIDE + e), 0, f32), SIDE)
                         for e, line in enumerate(lines)]
            rows = i + r*SIDE
            new = k.pack(*(rows + e >= first for e in range(SIDE)))
            for j, line in enumerate(transpose(k, lines)[:COLS - t*SIDE]):
                out.at(rows, t*SIDE + j).put(out.scaled(line), read_c, new)

    with k.loop(hi, lo) as strip:
        first = strip*HEIGHT
        i = k.min(first, g.m - HEIGHT)          # the last one begins earlier, and stores what is new
        clear()
        if weights.grouped:
            for tile in range(len(C)):
                for e in range(SIDE):
                    k.store(total.at(tile, e, 0), splat(k, f32, 0.0, SIDE))
        if PLAIN:
            with k.loop(whole) as block:
                for s in range(DEEP // STEP):
                    add(block*DEEP, s, lambda r, s=s: (a.at(i + r*SIDE, block*DEEP + s*STEP), g.lda))
        else:
            blocks(i)
        with k.loop(g.k, whole*DEEP, STEP) as p:
            weights.decode(i, whole, p, k.min(g.k - p, STEP))
            multiply(whole, 1, p)
        with k.when((whole*DEEP < g.k) | (not weights.grouped)):
            store(whole if weights.grouped else k.constant(i64, 0))
            if weights.grouped:
                scaled(i, whole)
        out.cases_of_beta(lambda read_c: finish(i, first, read_c))
    tiles.release()
    return k.function


def _pack(k: Kernel, g: Any, x: Value, COLS: int, SOURCE: str) -> None:
    """Rows of x as tiles, [step][16 rows][word][row], with zeros beyond k and beyond the rows."""
    rows, ACROSS = g.b.view(g.ldb, 1), -(-COLS // SIDE)
    with k.loop(k.ceil_div(g.k, STEP)) as s:
        there = k.lanes_below(g.k - s*STEP, STEP)
        for t in range(ACROSS):
            lines = []
            for j in range(t*SIDE, t*SIDE + SIDE):
                if j >= COLS:
                    lines.append(k.constant(WORDS, 0))
                    continue
                line = k.load(rows.at(j, s*STEP), HALVES_OF_WORDS, 2, there)
                lines.append(k.reinterpret(k.shuffle(line, line, order(SOURCE)), WORDS))
            for word, line in enumerate(transpose(k, lines)):
                k.store(x + ((s*ACROSS + t)*(SIDE*SIDE) + word*SIDE), line, 64)


class _Weights:
    """Decodes pieces of weights into a buffer."""

    def __init__(self, k: Kernel, target: CpuTarget, SOURCE: str, PROLOGUE: tuple[Any, ...], g: Any, ROWS: int) -> None:
        self.k, self.SOURCE, self.g, self.ROWS = k, SOURCE, g, ROWS
        self.a, self.halves = g.a.view(g.lda, 1), SOURCE.endswith(HALVES)
        of = Weights(k, target, SOURCE, PROLOGUE, g.a_beside, g.index)
        self.scale, self.zero, self.table_scale = of.scale, of.zero, None
        if self.scale is not None and in_table(SOURCE, Prepare(*PROLOGUE).READ[0]):
            self.scale, self.table_scale = None, self.scale
        self.grouped = self.scale is not None and self.scale.STEP != "0"
        self.GROUP = self.scale.GROUP if self.scale is not None else 0
        self.pieces = k.local("pieces", (2, DEEP // STEP, ROWS*SIDE, SIDE), i32)
        if self.table_scale is not None:
            self.scales = k.local("scales", (ROWS*SIDE, SCALES), f32)
            numbers = [float(FORMATS["e2m1"].decode(e).real) for e in range(16)]
            self.table = k.pack(*(k.constant(f32, y) for y in numbers))
        elif self.halves:
            self._prepare_tables()
        if self.halves:
            self.shifts = k.pack(*(k.constant(i16, e // 8 * 4) for e in range(STEP)))

    def _prepare_tables(self) -> None:
        """For each zero point a table of 32 bf16, of which the lower 16 are the upper 16."""
        k, source = self.k, self.SOURCE.removesuffix(HALVES)
        numbers = [float(FORMATS[source].decode(e).real) for e in range(16)]
        self.least = int(min(numbers)) if self.zero else 0
        self.tables = k.local("tables", (16 if self.zero else 1, SIDE), i32)
        for zero in range(16 if self.zero else 1):
            upper = [pattern(y - (zero + self.least if self.zero else 0)) >> 16 & 0xFFFF for y in numbers]
            words = [upper[2*e % 16] | upper[2*e % 16 + 1] << 16 for e in range(SIDE)]
            k.store(self.tables.at(zero, 0), k.pack(*(k.constant(i32, y - (y >> 31 << 32)) for y in words)), 4)

    def _read_scales(self, i: Value, p: Value) -> None:
        """Of all rows, SCALES each, from step p of k on."""
        k, x = self.k, self.table_scale
        assert x is not None
        there = k.lanes_below(k.ceil_div(self.g.k - p, STEP), SCALES)
        with k.loop(k.constant(i64, self.ROWS*SIDE)) as r:
            bits = k.cast(k.load(x.at(i + r, p), vec(x.T, SCALES), x.T.bytes, there), WORDS) & splat(k, i32, 255, SCALES)
            number = k.max(bits << 23, splat(k, i32, 1 << 22, SCALES))                      # 2^-127, of 0
            number = k.select(bits == splat(k, i32, 255, SCALES), splat(k, i32, 511 << 22, SCALES), number)
            k.store(self.scales.at(r, 0), k.bits_as(number, vec(f32, SCALES)))

    def buffer(self, block: Value) -> Value:
        """Of the pieces of a block: [step][row][word]."""
        return self.pieces.at(block & 1, 0, 0, 0).view(self.ROWS*SIDE*SIDE, SIDE, 1)

    def decode(self, i: Value, block: Value, p: Value | None = None, count: Value | None = None) -> None:
        """All rows of a block as bf16; or of the last one the step at p alone, of which `count` exist."""
        k, pieces = self.k, self.buffer(block)
        first = block*DEEP if p is None else p
        if self.table_scale is not None:
            with k.when((first & (SCALES*STEP - 1)) == 0):
                self._read_scales(i, first)
        for r in range(self.ROWS*SIDE):
            table = self._table(i + r, first)
            for s in range(DEEP // STEP if p is None else 1):
                at = self.a.at(i + r, self._at(first + s*STEP))
                if self.table_scale is not None:
                    scale = self.scales[r, (first // STEP & (SCALES - 1)) + s]
                    wide = k.reinterpret(self.table * k.broadcast(scale, SIDE), HALVES_OF_WORDS)
                    table = k.shuffle(wide, wide, [e % 16 * 2 + 1 for e in range(STEP)])
                k.store(pieces.at(s, r, 0), self._piece(at, table, count), 64)

    def _at(self, p: Value) -> Value:
        return p >> 1 if self.halves else p

    def _table(self, i: Value, p: Value) -> Value | None:
        if not self.halves or self.table_scale is not None:
            return None
        at = self.tables.at(self.zero.whole(i, p) - self.least, 0) if self.zero else self.tables.at(0, 0)
        return self.k.reinterpret(self.k.load(at, WORDS, 4), HALVES_OF_WORDS)

    def _piece(self, at: Value, table: Value | None, count: Value | None) -> Value:
        """32 weights as bf16; beyond `count` any numbers, but of bf16 and i8 zeros."""
        k = self.k
        if self.SOURCE == "bf16":
            mask = None if count is None else k.lanes_below(count, STEP)
            return k.reinterpret(k.load(at, HALVES_OF_WORDS, 2, mask), WORDS)
        if self.SOURCE == "i8":
            wide = []
            for half in range(2):
                mask = None if count is None else k.lanes_below(count - half*SIDE, SIDE)
                x = k.cast(k.cast(k.load(at + half*SIDE, vec(i8, SIDE), 1, mask), WORDS), vec(f32, SIDE))
                wide.append(k.reinterpret(x, HALVES_OF_WORDS))
            return k.reinterpret(k.shuffle(*wide, [e % 2 * STEP + e // 2 * 2 + 1 for e in range(STEP)]), WORDS)
        assert table is not None
        if count is None:
            few = k.load(at.as_(i16), vec(i16, 8), 1)
        else:
            few = k.reinterpret(k.load(at, vec(i8, SIDE), 1, k.lanes_below((count + 1) >> 1, SIDE)), vec(i16, 8))
        index = k.shuffle(few, few, [e % 8 for e in range(STEP)]) >> self.shifts
        return k.reinterpret(k.lookup(table, index), WORDS)
