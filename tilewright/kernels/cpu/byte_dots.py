"""Few columns of C, or rows if operands change places, of bytes: dot products by VPDPBUSD, A's rows read once where
they are, without packing.

The instruction multiplies bytes without sign by bytes with one. Where both have one, 128 is added to B's, and 128 times
the sum of a row of A is taken from the products: a multiply-add more for each vector of A.
"""
from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i32, i64, ptr, vec
from tilewright.kernels.cpu.jobs import DOTS
from tilewright.kernels.cpu.pool import job_fields, split
from tilewright.kernels.cpu.skinny import column_runs, in_blocks, out_of
from tilewright.kernels.narrow import memory_type, splat
from tilewright.plans.words import DOT_COLUMNS
from tilewright.targets.cpu import CpuTarget


def emit_byte_dots(target: CpuTarget, ROWS: int, COLS: int, A: str, B: str, RESULT: str = "") -> Function:
    """dots(job, part): as skinny.emit_dots, of i8 and u8 in i32, modulo 2^32. DOT_COLUMNS at most are in registers: for
    further ones rows of A come from L1 again. RESULT: C's format, if that is not i32."""
    V = target.lanes(4)
    VT, STEP = vec(i32, V), 4*V
    k = Kernel(f"dots_of_{A}_{B}_{ROWS}x{COLS}{'_' * bool(RESULT)}{RESULT}", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, DOTS, i32, a=i8, b=i8, **({"c": memory_type(RESULT)} if RESULT else {}))
    a, b, out = g.a.view(g.lda, 1), g.b.view(g.ldb, 1), out_of(k, g, RESULT)
    lo, hi = split(g.m, g.parts, part)
    full_k = g.k // STEP * STEP
    SIGNED = (A, B) == ("i8", "i8")

    def columns_at(i: Value, j: Value, ROWS: int, COLS: int, ahead: bool) -> None:
        acc, sums = k.tile(ROWS, COLS, VT), k.tile(ROWS, 1, VT)

        def add(p: Value, mask: Value | None) -> None:
            def words(at: Value) -> Value:
                return k.reinterpret(k.load(at, vec(i8, STEP), 1, mask), VT)
            x = [words(b.at(j + c, p)) for c in range(COLS)]
            x = [y ^ splat(k, i32, 0x80808080 - (1 << 32), V) for y in x] if SIGNED else x
            for r in range(ROWS):
                if mask is None and ahead:
                    k.prefetch(a.at(i + (ROWS + r), p), locality=2)         # of the rows that come next
                row = words(a.at(i + r, p))
                if SIGNED:
                    sums[r, 0] = k.quads(splat(k, i32, 0x01010101, V), row, sums[r, 0])
                for c, column in enumerate(x):
                    acc[r, c] = k.quads(row, column, acc[r, c]) if A == "u8" else k.quads(column, row, acc[r, c])
        with k.loop(full_k, step=STEP) as p:
            add(p, None)
        with k.when(full_k < g.k):
            add(full_k, k.lanes_below(g.k - full_k, STEP))
        for r in range(ROWS):
            less = k.sum(sums[r, 0]) * 128 if SIGNED else None
            for c in range(COLS):
                total = k.sum(acc[r, c]) if less is None else k.sum(acc[r, c]) - less

                def put(x: Value, at: tuple[Any, Any], read_c: bool) -> None:
                    out.place(*at).put(x, read_c)
                out.cases_of_beta(partial(put, out.scaled(total), (i + r, j + c)))

    in_blocks(k, (lo, hi), ROWS, column_runs(k, COLS, DOT_COLUMNS[32 if target.registers >= 32 else 16], columns_at))
    return k.function
