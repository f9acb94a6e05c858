"""Few rows of bf16 by weights of 4 bits, two to a byte, with VDPBF16PS: 32 multiply-adds an instruction.

64 bytes are 128 weights: a shift and VPERMW make 32 bf16 of the lowest bits of its 16-bit words, so that 32 weights
cost three instructions and a quarter of a load. bf16 holds every i4, u4 and e2m1 exactly, and their differences from
a zero point, of which each has a table. Word w has elements 4w ... 4w + 3 of a block, so that A's rows come rearranged
(runtime/cpu/rows.arranged): lane j adds up elements 8j ... 8j + 7, and scales of 16 elements or more belong to
lanes.

emit_plain_pairs reads weights that are bf16 themselves: 16 pairs of a row by those of rows of x, as both lie.

As in all products by these instructions numbers and sums below 2^-126 are 0 (ir/ops/x86.py).
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Function, Value, f32, i8, i16, i32, vec
from tilewright.kernels.cpu.byte_dots import word_dots
from tilewright.kernels.cpu.jobs import DOTS
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.prepared import Beside, suffix
from tilewright.kernels.cpu.weight_blocks import Tables
from tilewright.kernels.cpu.weights import AT_ONCE, Weights, all_rows
from tilewright.kernels.narrow import number, splat
from tilewright.plans.few_rows import BLOCK
from tilewright.targets.cpu import CpuTarget

SHIFTS = range(0, 16, 4)
V = 16
# Of weights that are bf16: rows of these, and of x at most, at once. On a Zen 4 with one thread 5, 8, 16, 32 and 64
# rows took 0.25, 0.3, 0.4, 0.45 and 0.75 of the time of packing; 16 rows by 3 x 8 took 1.06 of 4 x 6, by 2 x 8 1.3.
PLAIN_ROWS, WIDE = 4, 6


def emit_pairs(target: CpuTarget, ROWS: int, COLS: int, SOURCE: str, PROLOGUE: tuple[Any, ...]) -> Function:
    """pairs(job, part): as weights.emit_dots, of B's columns as `arranged` makes them of rows of x."""
    WIDE, VT, WORDS = AT_ONCE[32], vec(f32, V), vec(i32, V)
    k, g, part = job_kernel(f"pairs_{ROWS}x{COLS}_of_{SOURCE}{suffix(PROLOGUE)}", DOTS, f32, a=i8, b=i32)
    w = Weights(k, target, SOURCE, PROLOGUE, g.a_beside, g.index)
    a, b, out = g.a.view(g.lda, 1), g.b.view(g.ldb, 1), Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta)
    lo, hi = split(g.m, g.parts, part)
    tables = Tables(k, w)
    full_k = g.k // BLOCK * BLOCK

    def scale_of(x: Beside, i: Value, p: Value | int, count: Value | None) -> Value:
        """For each lane."""
        if x.STEP == "0" or x.GROUP % BLOCK == 0:
            return k.broadcast(x.one(i, p, f32), V)
        COUNT = BLOCK // x.GROUP
        at = x.address(i, p)
        there = None if count is None else k.lanes_below(k.ceil_div(count, x.GROUP), COUNT)
        few = k.load(at, vec(x.T, COUNT), x.T.bytes, there)
        if x.FORMAT == "e8m0":
            bits = (k.cast(few, vec(i32, COUNT)) & splat(k, i32, 255, COUNT)) << 23
            bits = k.max(bits, splat(k, i32, 1 << 22, COUNT))                   # 2^-127, of 0
            bits = k.select(bits == splat(k, i32, 255 << 23, COUNT), splat(k, i32, 511 << 22, COUNT), bits)
            few = k.bits_as(bits, vec(f32, COUNT))
        else:
            few = number(k, few, x.FORMAT, f32)
        return k.shuffle(few, few, [e * COUNT // V for e in range(V)])

    def rows_at(i: Value, ROWS: int, columns: range) -> None:
        acc, rows = k.tile(ROWS, len(columns), VT), [a.at(i + r, 0) for r in range(ROWS)]
        at_end = w.scale is None or w.scale.STEP == "0"
        alone = w.zero is None or w.zero.STEP == "0"
        fixed = [tables.of_row(i + r, 0) for r in range(ROWS if w.zero else 1)] if alone else []

        def add(p: Value, count: Value | None = None) -> None:
            x = [[k.load(b.at(j, (p >> 1) + s*V), WORDS, 4) for s in range(4)] for j in columns]
            for r, row in enumerate(rows):
                if count is None:
                    k.prefetch(row + (g.lda*ROWS + (p >> 1)), locality=2)      # of the rows that come next
                    word = k.load((row + (p >> 1)).as_(i16), vec(i16, 2*V), 1)
                else:
                    bytes_there = k.lanes_below((count + 1) >> 1, 4*V)
                    word = k.reinterpret(k.load(row + (p >> 1), vec(i8, 4*V), 1, bytes_there), vec(i16, 2*V))
                table = fixed[r % len(fixed)] if fixed else tables.of_row(i + r, p)
                sums = [acc[r, c] if at_end else k.constant(VT, 0.0) for c in range(len(columns))]
                for s, shift in enumerate(SHIFTS):
                    index = word >> splat(k, i16, shift, 2*V) if shift else word
                    weights = k.reinterpret(k.lookup(table, index), WORDS)
                    sums = [k.bf16_pairs(weights, x[c][s], y) for c, y in enumerate(sums)]
                scale = None if at_end or w.scale is None else scale_of(w.scale, i + r, p, count)
                for c, y in enumerate(sums):
                    acc[r, c] = y if scale is None else k.fma(y, scale, acc[r, c])

        with k.loop(full_k, step=BLOCK) as p:
            add(p)
        with k.when(full_k < g.k):
            add(full_k, g.k - full_k)
        for r in range(ROWS):
            for c, j in enumerate(columns):
                total = k.sum(acc[r, c])
                if at_end and w.scale is not None:
                    total = total * w.scale.one(i + r, 0, f32)
                out.put(out.scaled(total), i + r, j)
    all_rows(k, (lo, hi), ROWS, COLS, WIDE, rows_at)
    return k.function


def emit_plain_pairs(target: CpuTarget, COLS: int) -> Function:
    """pairs(job, part): as skinny.emit_dots, of rows of A and columns of B that are bf16, PLAIN_ROWS and up to WIDE
    columns at a time: for further columns rows of A come from L1 again."""
    k, g, part = job_kernel(f"plain_pairs_{PLAIN_ROWS}x{COLS}", DOTS, f32, a=i16, b=i16)
    out = Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta)
    word_dots(k, g, part, out, vec(f32, V), (PLAIN_ROWS, COLS, WIDE), k.bf16_pairs)
    return k.function
