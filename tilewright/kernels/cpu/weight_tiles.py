"""Few rows of bf16 by weights that are read once where they lie, [n, k], with AMX: the operands' roles exchanged.

16 rows of weights are a tile of A as they lie, 32 steps of k at a time; few rows x are tiles of B, which every thread
packs once for itself; a tile of C has 16 rows of weights by 16 rows of x.

Weights that are bf16 are loaded into tiles from where they are: a row of a tile is a cache line. Others are decoded
into a buffer in L1 (weight_blocks.py), in whose order of elements x is packed, and scales of groups multiply the sums
of a block, in f32.

Memory: the processor prefetches 16 rows of bf16 best by itself. On a Xeon with one thread 4096 x 11008 by 16 rows took
4.0 ms by 16 rows of weights at a time, 5.1 by 64; and 4.5 and 7.9 with lines prefetched into L2. Weights of few bits
take 2.6 to 5 ms, whatever is prefetched, which is far from their bytes' time and from that of the instructions.
As in all products by these instructions numbers and sums below 2^-126 are 0 (ir/ops/x86.py).
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Function, Kernel, Value, f32, i8, i16, i32, i64, vec
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu.jobs import DOTS, TILES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.packing import transpose
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.prepared import suffix
from tilewright.kernels.cpu.weight_blocks import DEEP, HALVES_OF_WORDS, SIDE, STEP, WORDS, Blocks, order
from tilewright.kernels.narrow import splat
from tilewright.targets.cpu import CpuTarget

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
