"""Few rows of bf16 by weights of 4 bits, two to a byte, with VDPBF16PS: 32 multiply-adds an instruction.

64 bytes are 128 weights: a shift and VPERMW make 32 bf16 of the lowest bits of its 16-bit words, so that 32 weights
cost three instructions and a quarter of a load. bf16 holds every i4, u4 and e2m1 exactly, and their differences from
a zero point, of which each has a table. Word w has elements 4w ... 4w + 3 of a block, so that every thread rearranges
rows of x once: lane j adds up elements 8j ... 8j + 7, and scales of 16 elements or more belong to lanes.

emit_plain_pairs reads weights that are bf16 themselves: 16 pairs of a row by those of rows of x, as both lie.

As in all products by these instructions numbers and sums below 2^-126 are 0 (ir/ops/x86.py).
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Value, f32, i8, i16, i32, vec
from tilewright.kernels.cpu.byte_dots import Dots, Words
from tilewright.kernels.cpu.jobs import DOTS, TILES, row_pitch
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_kernel
from tilewright.kernels.cpu.prepared import Beside, suffix
from tilewright.kernels.cpu.weight_blocks import Tables, powers_of_two, rearranged
from tilewright.kernels.cpu.weights import AT_ONCE, Weights
from tilewright.kernels.narrow import number, splat
from tilewright.plans.few_rows import BLOCK
from tilewright.targets.cpu import CpuTarget

SHIFTS = range(0, 16, 4)
V = 16
# Of weights that are bf16: rows of these, and of x at most, at once. On a Zen 4 with one thread 5, 8, 16, 32 and 64
# rows took 0.25, 0.3, 0.4, 0.45 and 0.75 of the time of packing; 16 rows by 3 x 8 took 1.06 of 4 x 6, by 2 x 8 1.3.
PLAIN_ROWS, WIDE = 4, 6


class Pairs(Dots):
    """Rows of weights of 4 bits, decoded to bf16 by tables, a block at a time."""

    def __init__(self, k: Kernel, g: SimpleNamespace, target: CpuTarget, SOURCE: str, PROLOGUE: tuple[Any, ...]
                 ) -> None:
        super().__init__(k, g, Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta), vec(f32, V), BLOCK, target.line)
        self.w = w = Weights(k, target, SOURCE, PROLOGUE, g.a_beside, g.index)
        self.tables = Tables(k, w)
        self.at_end = w.scale is None or w.scale.STEP == "0"

    def place(self, p: Value | int) -> Any:
        return p // 2 if isinstance(p, int) else p >> 1

    def begin(self, s: SimpleNamespace) -> None:
        alone = self.w.zero is None or self.w.zero.STEP == "0"
        s.tables = [self.tables.of_row(s.i + r, 0) for r in range(s.ROWS if self.w.zero else 1)] if alone else []

    def add(self, s: SimpleNamespace, p: Value, count: Value | None) -> None:
        k, WORDS = self.k, vec(i32, V)
        x = [[k.load(self.b.at(s.j + c, self.place(p) + e*V), WORDS, 4) for e in range(4)] for c in range(s.COLS)]
        for r, row in enumerate(row + self.place(p) for row in s.rows):
            if count is None:
                word = k.load(row.as_(i16), vec(i16, 2*V), 1)
            else:
                there = k.lanes_below((count + 1) >> 1, 4*V)
                word = k.reinterpret(k.load(row, vec(i8, 4*V), 1, there), vec(i16, 2*V))
            table = s.tables[r % len(s.tables)] if s.tables else self.tables.of_row(s.i + r, p)
            sums = [s.acc[r, c] if self.at_end else k.constant(self.VT, 0.0) for c in range(s.COLS)]
            for e, shift in enumerate(SHIFTS):
                index = word >> splat(k, i16, shift, 2*V) if shift else word
                weights = k.reinterpret(k.lookup(table, index), WORDS)
                sums = [k.bf16_pairs(weights, x[c][e], y) for c, y in enumerate(sums)]
            scale = None if self.at_end or self.w.scale is None else self.scale(self.w.scale, s.i + r, p, count)
            for c, y in enumerate(sums):
                s.acc[r, c] = y if scale is None else k.fma(y, scale, s.acc[r, c])

    def scale(self, x: Beside, i: Value, p: Value, count: Value | None) -> Value:
        """The scale of each lane."""
        k = self.k
        if x.GROUP % BLOCK == 0:
            return k.broadcast(x.one(i, p, f32), V)
        COUNT = BLOCK // x.GROUP
        there = None if count is None else k.lanes_below(k.ceil_div(count, x.GROUP), COUNT)
        few = k.load(x.address(i, p), vec(x.T, COUNT), x.T.bytes, there)
        few = powers_of_two(k, few) if x.FORMAT == "e8m0" else number(k, few, x.FORMAT, f32)
        return k.shuffle(few, few, [e * COUNT // V for e in range(V)])

    def total(self, s: SimpleNamespace, r: int, x: Value) -> Value:
        return x * self.w.scale.one(s.i + r, 0, f32) if self.at_end and self.w.scale is not None else x


def emit_pairs(target: CpuTarget, ROWS: int, COLS: int, SOURCE: str, PROLOGUE: tuple[Any, ...]) -> Function:
    """pairs(job, part): as weights.emit_dots, of B's columns that are rows of bf16."""
    k, g, part = job_kernel(f"pairs_{ROWS}x{COLS}_of_{SOURCE}{suffix(PROLOGUE)}", (*DOTS, *TILES), f32, a=i8, b=i16,
                            tiles=i32)

    def every_fourth(lines: list[Value]) -> list[Value]:
        halves = [[k.shuffle(x, y, range(first, 64, 4)) for x, y in (lines[:2], lines[2:])] for first in range(4)]
        return [k.shuffle(x, y, range(32)) for x, y in halves]
    pitch = row_pitch(k.ceil_div(g.k, BLOCK) * BLOCK)
    g.b, g.ldb = rearranged(k, g, part, COLS, pitch, BLOCK, every_fourth), pitch
    return Pairs(k, g, target, SOURCE, PROLOGUE).emit(part, ROWS, COLS, AT_ONCE[32])


def emit_plain_pairs(target: CpuTarget, COLS: int) -> Function:
    """pairs(job, part): as skinny.emit_dots, of rows of A and columns of B that are bf16, PLAIN_ROWS and up to WIDE
    columns at a time."""
    k, g, part = job_kernel(f"plain_pairs_{PLAIN_ROWS}x{COLS}", DOTS, f32, a=i16, b=i16)
    out = Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta)
    return Words(k, g, out, vec(f32, V), target.line, k.bf16_pairs).emit(part, PLAIN_ROWS, COLS, WIDE)
