"""Few columns of C, or rows if operands change places, of words of 32 bits: dot products of several narrow elements at
once, A's rows read once where they are, without packing.

    emit_byte_dots      i8 and u8 by VPDPBUSD
    word_dots           the loops, for weight_pairs.emit_plain_pairs, too
"""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i32, vec
from tilewright.kernels.cpu.jobs import DOTS
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.skinny import column_runs, in_blocks, out_of
from tilewright.kernels.narrow import memory_type, splat
from tilewright.plans.words import DOT_COLUMNS
from tilewright.targets.cpu import CpuTarget


def emit_byte_dots(target: CpuTarget, ROWS: int, COLS: int, A: str, B: str, RESULT: str = "") -> Function:
    """dots(job, part): as skinny.emit_dots, of i8 and u8 in i32, modulo 2^32. DOT_COLUMNS at most are in registers: for
    further ones rows of A come from L1 again. RESULT: C's format, if that is not i32.

    The instruction multiplies bytes without sign by bytes with one. Where both have one, 128 is added to B's, and 128
    times the sum of a row of A is taken from the products: a multiply-add more for each vector of A.
    """
    k, g, part = job_kernel(f"dots_of_{A}_{B}_{ROWS}x{COLS}{'_' * bool(RESULT)}{RESULT}", DOTS, i32, a=i8, b=i8,
                            **({"c": memory_type(RESULT)} if RESULT else {}))
    WIDE = DOT_COLUMNS[32 if target.registers >= 32 else 16]
    quads = k.quads if A == "u8" else lambda row, column, total: k.quads(column, row, total)
    word_dots(k, g, part, out_of(k, g, RESULT), vec(i32, target.lanes(4)), (ROWS, COLS, WIDE), quads,
              BOTH=(A, B) == ("i8", "i8"))
    return k.function


def word_dots(k: Kernel, g: SimpleNamespace, part: Value, out: Out, VT: Any, TILE: tuple[int, int, int],
              dot: Callable[[Value, Value, Value], Value], BOTH: bool = False) -> None:
    """Record: a run of rows of C, ROWS at a time, by COLS columns, WIDE at most at a time, TILE being these three.
    dot(row, column, sum): vectors of words as i32, and sums of the type VT; BOTH: A and B are bytes with signs."""
    ROWS, COLS, WIDE = TILE
    E, V = g.a.type.element, VT.length
    STEP = V * 4 // E.bytes
    a, b, rows = g.a.view(g.lda, 1), g.b.view(g.ldb, 1), split(g.m, g.parts, part)
    full_k = g.k // STEP * STEP

    def columns_at(i: Value, j: Value, ROWS: int, COLS: int, ahead: bool) -> None:
        acc, of_rows = k.tile(ROWS, COLS, VT), k.tile(ROWS, 1, VT) if BOTH else None

        def add(p: Value, mask: Value | None) -> None:
            def words(at: Value) -> Value:
                return k.reinterpret(k.load(at, vec(E, STEP), E.bytes, mask), vec(i32, V))
            columns = [words(b.at(j + c, p)) for c in range(COLS)]
            if BOTH:
                columns = [x ^ splat(k, i32, 0x80808080 - (1 << 32), V) for x in columns]
            for r in range(ROWS):
                if mask is None and ahead:
                    k.prefetch(a.at(i + (ROWS + r), p), locality=2)         # of the rows that come next
                row = words(a.at(i + r, p))
                if of_rows is not None:
                    of_rows[r, 0] = k.quads(splat(k, i32, 0x01010101, V), row, of_rows[r, 0])
                for c, column in enumerate(columns):
                    acc[r, c] = dot(row, column, acc[r, c])
        with k.loop(full_k, step=STEP) as p:
            add(p, None)
        with k.when(full_k < g.k):
            add(full_k, k.lanes_below(g.k - full_k, STEP))
        for r in range(ROWS):
            less = None if of_rows is None else k.sum(of_rows[r, 0]) * 128
            for c in range(COLS):
                total = k.sum(acc[r, c]) if less is None else k.sum(acc[r, c]) - less
                out.put(out.scaled(total), i + r, j + c)

    in_blocks(k, rows, ROWS, column_runs(k, COLS, WIDE, columns_at))
