"""Few rows of bf16 by a matrix of bf16 that is read once where it lies, [k, n], with AMX.

Rows of x are tiles of A, which every thread packs once for itself. Tiles of B have words of two steps of k: 32 rows of
32 columns are interleaved by pairs into a buffer in L1, while the piece before it is multiplied. Sums of all columns of
a chunk stay in L2, as tiles, while all rows pass.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Function, Kernel, Value, f32, i16, i32, i64, vec
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu.jobs import STREAM, TILES
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.weight_blocks import HALVES_OF_WORDS, SIDE, STEP, WORDS
from tilewright.targets.cpu import CpuTarget

STEPS = 1               # of 32 rows at once: sums are loaded and stored once for these
COLUMNS = 32            # at once: a cache line of a row
CHUNK = 1536            # columns of sums, of 16 rows


def emit_stream_tiles(target: CpuTarget, ROWS: int) -> Function:
    """stream(job, part): a run of columns of C[ROWS, n] = A[ROWS, k] @ B[k, n] + beta * C, beta being 0 or 1; rows of
    A, of B and of C are contiguous."""
    k, g, part = job_kernel(f"stream_tiles_{ROWS}", (*STREAM, *TILES), f32, a=i16, b=i16, tiles=i32)
    x, ACROSS = g.tiles + part*g.tiles_step, -(-ROWS // SIDE)
    WIDTH = CHUNK // ACROSS // COLUMNS * COLUMNS
    b, c = g.b.view(g.ldb, 1), g.c.view(g.ldc, 1)
    _pack(k, g, x, ROWS)
    tiles = TileRegisters(k)
    tiles.configure()
    sums = k.local("sums", (WIDTH // SIDE, ACROSS, SIDE, SIDE), f32)
    pieces = k.local("pieces", (2, STEPS, 2, SIDE, SIDE), i32)
    SETS = 2 if ACROSS < 3 else 1                   # of tiles of C, for both halves of the columns
    of_b = SETS*ACROSS
    of_a = range(of_b + 1, 8)
    lo, hi = (y*COLUMNS for y in split(k.ceil_div(g.n, COLUMNS), g.parts, part))
    hi = k.min(hi, g.n)

    def interleave(p: Value, j: Value, piece: Value, STEPS: int, rows: Value | None) -> None:
        """Rows p ... of columns j ... as words; `rows`: so many exist, or `None`: all, of whole lines."""
        for s in range(STEPS):
            for word in range(SIDE):
                pair = []
                for half in range(2):
                    row = s*STEP + 2*word + half
                    if rows is None:
                        pair.append(k.load(b.at(p + row, j), HALVES_OF_WORDS, 2))
                        continue
                    there = k.lanes_below(k.select(rows > row, g.n - j, k.constant(i64, 0)), COLUMNS)
                    pair.append(k.load(b.at(p + row, j), HALVES_OF_WORDS, 2, there))
                for half in range(2):
                    words = k.shuffle(pair[0], pair[1], [half*SIDE + e // 2 + e % 2 * STEP for e in range(STEP)])
                    k.store(pieces.at(piece & 1, s, half, word, 0), k.reinterpret(words, WORDS), 64)

    def multiply(p: Value, block: Value, STEPS: int) -> None:
        """Sums of a block of columns += those of these rows."""
        for half in range(2):
            C = [(half % SETS)*ACROSS + t for t in range(ACROSS)]
            places = [sums.at(block*2 + half, t, 0, 0) for t in range(ACROSS)]
            for tile, place in zip(C, places):
                tiles.load(tile, place, SIDE)
            for s in range(STEPS):
                tiles.load(of_b, pieces.at(block & 1, s, half, 0, 0), SIDE)
                for t, tile in enumerate(C):
                    number = of_a[(s*ACROSS + t) % len(of_a)]
                    tiles.load(number, x + ((p // STEP + s)*ACROSS + t)*(SIDE*SIDE), SIDE)
                    tiles.dot("bf16", tile, number, of_b)
            for tile, place in zip(C, places):
                tiles.store(tile, place, SIDE)

    def add(p: Value, j: Value, width: Value, STEPS: int, rows: Value | None) -> None:
        blocks, full_blocks = k.ceil_div(width, COLUMNS), k.constant(i64, 0) if rows is not None else width // COLUMNS
        with k.loop(blocks + 1) as block:
            with k.when(block < full_blocks):
                interleave(p, j + block*COLUMNS, block, STEPS, None)
            with k.when((block >= full_blocks) & (block < blocks)):
                interleave(p, j + block*COLUMNS, block, STEPS, k.constant(i64, STEPS*STEP) if rows is None else rows)
            with k.when(block > 0):
                multiply(p, block - 1, STEPS)

    def finish(j: Value, width: Value, read_c: bool) -> None:
        with k.loop(k.ceil_div(width, SIDE)) as block:
            there = k.lanes_below(width - block*SIDE, SIDE)
            for i in range(ROWS):
                at = c.at(i, j + block*SIDE)
                y = k.load(sums.at(block, i // SIDE, i % SIDE, 0), vec(f32, SIDE))
                k.store(at, y + k.load(at, vec(f32, SIDE), 4, there) if read_c else y, 4, there)

    with k.loop(hi, lo, WIDTH) as j:
        width = k.min(hi - j, WIDTH)
        with k.loop(k.ceil_div(width, COLUMNS)*(2*ACROSS*SIDE)) as line:
            k.store(sums.view(SIDE, 1).at(line, 0), k.constant(vec(f32, SIDE), 0.0), 64)
        deep = g.k // (STEPS*STEP)*(STEPS*STEP)
        with k.loop(deep, step=STEPS*STEP) as p:
            add(p, j, width, STEPS, None)
        with k.loop(g.k, deep, STEP) as p:
            add(p, j, width, 1, g.k - p)
        with k.when(g.beta == 0.0):
            finish(j, width, False)
        with k.otherwise():
            finish(j, width, True)
    tiles.release()
    return k.function


def _pack(k: Kernel, g: Any, x: Value, ROWS: int) -> None:
    """Rows of x as tiles, [step][16 rows][row][word], with zeros beyond k and beyond the rows."""
    rows, ACROSS = g.a.view(g.rsa, 1), -(-ROWS // SIDE)
    with k.loop(k.ceil_div(g.k, STEP)) as s:
        there = k.lanes_below(g.k - s*STEP, STEP)
        for i in range(ACROSS*SIDE):
            line = k.constant(WORDS, 0)
            if i < ROWS:
                line = k.reinterpret(k.load(rows.at(i, s*STEP), HALVES_OF_WORDS, 2, there), WORDS)
            k.store(x + ((s*ACROSS + i // SIDE)*(SIDE*SIDE) + i % SIDE * SIDE), line, 64)
