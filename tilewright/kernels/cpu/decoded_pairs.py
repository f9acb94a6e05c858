"""Several rows of bf16 by weights of few bits, [n, k], with VDPBF16PS: a block of rows is decoded once, into bf16 in
L1, and multiplied by all rows of x.

Of one row or two weight_pairs.py decodes in registers, for up to eight rows of x at a time.
"""
from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.ir import Function, Value, f32, i8, i16, i32, i64, vec
from tilewright.kernels.cpu.jobs import DOTS, TILES, row_pitch
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.prepared import suffix
from tilewright.kernels.cpu.weight_blocks import DEEP, SIDE, STEP, WORDS, Blocks, order, rearranged
from tilewright.targets.cpu import CpuTarget

HEIGHT, WIDE = 4, 6         # rows of weights, and of x, whose sums are in registers
LINE = vec(f32, SIDE)


def emit_decoded_pairs(target: CpuTarget, COLS: int, SOURCE: str, PROLOGUE: tuple[Any, ...]) -> Function:
    """pairs(job, part): as weight_tiles.emit_tiles."""
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
