"""Few rows of bf16 by weights that are read once where they lie, [n, k]. Weights of few bits are decoded as bf16, block
by block, into a buffer in L1, from which VDPBF16PS (emit_decoded_pairs) or AMX (emit_tiles) multiplies them.

    i8              32 at a time, by way of f32, of which the upper halves are gathered
    i4 u4 e2m1      two to a byte: 16 bytes four times side by side, shifted by 0 4 8 12 bits, index a table of bf16

bf16 holds every such number exactly, differences of u4 from a zero point, and e2m1 times a scale that is a power of
two: such scales, of 32 steps of k, are in the table. Other scales multiply the sums of a block, in f32. The order of
elements within 32 steps of k is that of decoding (`order`), in which x has to be, too. Of one row or two
weight_pairs.py decodes in registers, for up to eight rows of x at a time.

AMX: 16 rows of weights are a tile of A as they lie, 32 steps of k at a time; few rows x are tiles of B, which every
thread packs once for itself. Weights that are bf16 are loaded into tiles from where they are, a row a cache line. On a
Xeon with one thread 4096 x 11008 by 16 rows took 4.0 ms by 16 rows of weights at a time, 5.1 by 64; and 4.5 and 7.9
with lines prefetched into L2. Weights of few bits take 2.6 to 5 ms, whatever is prefetched. As in all products by these
instructions numbers and sums below 2^-126 are 0 (ir/ops/x86.py).
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.expressions import HALVES
from tilewright.formats import FORMATS
from tilewright.ir import Function, Kernel, Value, f32, i8, i16, i32, i64, vec
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu.jobs import DOTS, TILES, Prepare, row_pitch
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.packing import transpose
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.prepared import Beside, suffix
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


HEIGHT, WIDE = 4, 6         # rows of weights, and of x, whose sums are in registers
LINE = vec(f32, SIDE)


def emit_decoded_pairs(target: CpuTarget, COLS: int, SOURCE: str, PROLOGUE: tuple[Any, ...]) -> Function:
    """pairs(job, part): as emit_tiles."""
    k, g, part = job_kernel(f"decoded_pairs_{COLS}_of_{SOURCE}{suffix(PROLOGUE)}", (*DOTS, *TILES), f32, a=i8, b=i16,
                            tiles=i32)
    pitch = row_pitch(g.k)
    x = rearranged(k, g, part, COLS, pitch, STEP, lambda lines: [k.shuffle(lines[0], lines[0], order(SOURCE))])
    x = x.view(pitch, 1)
    weights = Blocks(k, target, SOURCE, PROLOGUE, g, HEIGHT)
    sums = k.local("sums", (HEIGHT, COLS, SIDE), f32)
    lo, hi = split(k.ceil_div(g.m, HEIGHT), g.parts, part)
    out = Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta)
    WIDTH = -(-COLS // -(-COLS // WIDE))
    blocks = g.k // DEEP

    def multiply(i: Value, block: Value, p: Value, STEPS: int) -> None:
        """Sums += a decoded block, or a step of it, times all rows of x."""
        pieces = weights.buffer(block)

        def columns(j: Value, WIDTH: int) -> None:
            acc = k.tile(HEIGHT, WIDTH, LINE)
            for s in range(STEPS):
                lines = [k.load(x.at(j + c, (p >> 1) + s*SIDE), WORDS) for c in range(WIDTH)]
                for r in range(HEIGHT):
                    piece = k.load(pieces.at(s, r, 0), WORDS)
                    for c, line in enumerate(lines):
                        acc[r, c] = k.bf16_pairs(piece, line, acc[r, c])
            for r in range(HEIGHT):
                scale = None
                if weights.grouped and weights.scale is not None:
                    scale = k.broadcast(weights.scale.one(i + r, p, f32), SIDE)
                for c in range(WIDTH):
                    at = sums.at(r, j + c, 0)
                    before = k.load(at, LINE)
                    k.store(at, before + acc[r, c] if scale is None else k.fma(acc[r, c], scale, before))
        if COLS % WIDTH:
            columns(k.constant(i64, 0), COLS % WIDTH)
        with k.loop(k.constant(i64, COLS), COLS % WIDTH, WIDTH) as j:
            columns(j, WIDTH)

    def finish(i: Value, first: Value, read_c: bool) -> None:
        for r in range(HEIGHT):
            with k.when(i + r >= first), k.loop(k.constant(i64, COLS)) as j:
                total = k.sum(k.load(sums.at(r, j, 0), LINE))
                if weights.scale is not None and not weights.grouped:
                    total = total * weights.scale.one(i + r, 0, f32)
                out.place(i + r, j).put(out.scaled(total), read_c)

    with k.loop(hi, lo) as strip:
        first = strip*HEIGHT
        i = k.min(first, g.m - HEIGHT)          # the last one begins earlier, and stores what is new
        with k.loop(k.constant(i64, HEIGHT*COLS)) as line:
            k.store(sums.view(SIDE, 1).at(line, 0), k.constant(LINE, 0.0))
        with k.loop(blocks) as block:
            for r in range(HEIGHT):                                             # the rows that come next, into L2
                for byte in range(0, DEEP >> weights.halves, target.line):
                    k.prefetch(weights.a.at(i + (HEIGHT + r), weights.place(block*DEEP)) + byte, locality=2)
            weights.decode(i, block)
            multiply(i, block, block*DEEP, DEEP // STEP)
        with k.loop(g.k, blocks*DEEP, STEP) as p:
            weights.decode(i, blocks, p, k.min(g.k - p, STEP))
            multiply(i, blocks, p, 1)
        out.cases_of_beta(partial(finish, i, first))
    return k.function


ROWS = 1                    # tiles of weights at once


def emit_tiles(target: CpuTarget, COLS: int, SOURCE: str, PROLOGUE: tuple[Any, ...]) -> Function:
    """tiles(job, part): a run of rows of C[m, COLS] = alpha * A[m, k] @ B[k, COLS] + beta * C, of which A has the
    weights, few_rows.LEAST_TILED rows or more, and B's columns are rows of bf16; C's columns are contiguous."""
    PLAIN, ACROSS = SOURCE == "bf16", -(-COLS // SIDE)
    k, g, part = job_kernel(f"tiles_{COLS}_of_{SOURCE}{suffix(PROLOGUE)}", (*DOTS, *TILES), f32, a=i16 if PLAIN else i8,
                            b=i16, tiles=i32)
    x = g.tiles + part*g.tiles_step
    _pack(k, g, x, COLS, SOURCE)
    weights, HEIGHT = Blocks(k, target, SOURCE, PROLOGUE, g, ROWS*SIDE), ROWS*SIDE
    C = [(r, t) for r in range(ROWS) for t in range(ACROSS)]
    tiles, OF_B = TileRegisters(k), min(ACROSS, 7 - len(C))
    of_b, of_a = range(len(C), len(C) + OF_B), range(len(C) + OF_B, 8)
    tiles.configure()
    sums = k.local("sums", (2, len(C), SIDE, SIDE), f32)
    total = k.local("total", (len(C), SIDE, SIDE), f32) if weights.grouped else sums.view(SIDE*SIDE, SIDE, 1)
    lo, hi = split(k.ceil_div(g.m, HEIGHT), g.parts, part)
    a, out = g.a.view(g.lda, 1), Out(k, g.c.view(1, g.csc), g.alpha, g.beta)
    full_blocks = g.k // DEEP

    def clear() -> None:
        for tile in range(len(C)):
            tiles.zero(tile)

    def add(p: Value, s: int, pieces: list[tuple[Value, Any]]) -> None:
        """C's tiles += pieces, one for each 16 rows, with the step from row to row, times step s after p."""
        at = x + ((p // STEP) + s)*(ACROSS*SIDE*SIDE)
        for r in range(ROWS):
            tile = of_a[r % len(of_a)]
            tiles.load(tile, *pieces[r])
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
            add(block*DEEP if at is None else at, s, [(pieces.at(s, r*SIDE, 0), SIDE) for r in range(ROWS)])
        if weights.grouped and at is None:
            store(block)

    def store(block: Value) -> None:
        for tile in range(len(C)):
            tiles.store(tile, sums.at(block & 1, tile, 0, 0), SIDE)

    def scaled(i: Value, block: Value) -> None:
        """Sums of a block times the scales of its group are added up."""
        assert weights.scale is not None
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
        with k.loop(k.select(full_blocks > 0, full_blocks + (1 + weights.grouped), k.constant(i64, 0))) as block:
            with k.when(block < full_blocks):
                weights.decode(i, block)
            with k.when((block > 0) & (block <= full_blocks)):
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
                out.place(rows, t*SIDE + j).put(out.scaled(line), read_c, new)

    with k.loop(hi, lo) as strip:
        first = strip*HEIGHT
        i = k.min(first, g.m - HEIGHT)          # the last one begins earlier, and stores what is new
        clear()
        if weights.grouped:
            for tile in range(len(C)):
                for e in range(SIDE):
                    k.store(total.at(tile, e, 0), splat(k, f32, 0.0, SIDE))
        if PLAIN:
            with k.loop(full_blocks) as block:
                for s in range(DEEP // STEP):
                    add(block*DEEP, s, [(a.at(i + r*SIDE, block*DEEP + s*STEP), g.lda) for r in range(ROWS)])
        else:
            blocks(i)
        with k.loop(g.k, full_blocks*DEEP, STEP) as p:
            weights.decode(i, full_blocks, p, k.min(g.k - p, STEP))
            multiply(full_blocks, 1, p)
        with k.when((full_blocks*DEEP < g.k) | (not weights.grouped)):
            store(full_blocks if weights.grouped else k.constant(i64, 0))
            if weights.grouped:
                scaled(i, full_blocks)
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
