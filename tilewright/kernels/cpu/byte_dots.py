"""Few columns of C, or rows if operands change places: dot products of which A's long rows are read once where they
are, without packing, by words of several elements or by elements that are decoded.

    Dots                the loops, for further elements too (weights.emit_dots, weight_pairs.py)
    Words               words of 32 bits, whose elements one instruction multiplies
    emit_byte_dots      i8 and u8 by VPDPBUSD
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


class Dots:
    """A run of rows of C = alpha * A @ B + beta * C: rows of A by columns of B, whose sums are in registers while k
    passes. Classes of this kind say what a step of k adds to a tile `s` of C: s.rows of A, the first of which is s.i,
    by columns from s.j on. STEP, LEFT: elements of k at a time, and at the end, where a mask says which exist.
    """
    LEFT = 0            # STEP

    def __init__(self, k: Kernel, g: SimpleNamespace, out: Out, VT: Any, STEP: int, LINE: int) -> None:
        self.k, self.g, self.out, self.VT, self.STEP, self.LINE = k, g, out, VT, STEP, LINE
        self.a, self.b = g.a.view(g.lda, 1), g.b.view(g.ldb, 1)

    def begin(self, s: SimpleNamespace) -> None:
        """Record what comes before the first step."""

    def add(self, s: SimpleNamespace, p: Value, count: Value | None) -> None:
        """s.acc += the products of STEP elements from p on, or of the `count` that exist."""
        raise NotImplementedError

    def total(self, s: SimpleNamespace, r: int, x: Value) -> Value:
        """The element of row r whose sums are x."""
        return x

    def place(self, p: Value | int) -> Any:
        """Where element p of a row of A is, in elements of its pointer."""
        return p

    def emit(self, part: Value, ROWS: int, COLS: int, WIDE: int) -> Function:
        """ROWS at a time by COLS columns, WIDE at most at a time: for further ones rows of A come from L1 again."""
        k, g, out, SIZE = self.k, self.g, self.out, self.a.type.element.bytes
        full_k, LEFT = g.k // self.STEP * self.STEP, self.LEFT or self.STEP

        def columns_at(i: Value, j: Value, ROWS: int, COLS: int, ahead: bool) -> None:
            s = SimpleNamespace(i=i, j=j, ROWS=ROWS, COLS=COLS, acc=k.tile(ROWS, COLS, self.VT),
                                rows=[self.a.at(i + r, 0) for r in range(ROWS)])
            self.begin(s)
            with k.loop(full_k, step=self.STEP) as p:
                for row in s.rows if ahead else ():                             # of the rows that come next
                    for byte in range(0, self.place(self.STEP) * SIZE, self.LINE):
                        k.prefetch(row + (g.lda*ROWS + self.place(p) + byte // SIZE), locality=2)
                self.add(s, p, None)
            with k.loop(g.k, full_k, LEFT) as p:
                self.add(s, p, k.min(g.k - p, LEFT))
            for r, c in s.acc.registers:
                out.put(out.scaled(self.total(s, r, k.sum(s.acc[r, c]))), i + r, j + c)
        in_blocks(k, split(g.m, g.parts, part), ROWS, column_runs(k, COLS, WIDE, columns_at))
        return k.function


class Words(Dots):
    """dot(row, column, sum): vectors of words as i32, and sums of the type VT. BOTH: A and B are bytes with signs; the
    instruction multiplies bytes without sign by bytes with one, so 128 is added to B's, and 128 times the sum of a row
    of A is taken from the products: a multiply-add more for each vector of A."""

    def __init__(self, k: Kernel, g: SimpleNamespace, out: Out, VT: Any, LINE: int,
                 dot: Callable[[Value, Value, Value], Value], BOTH: bool = False) -> None:
        self.E, self.dot, self.BOTH = g.a.type.element, dot, BOTH
        super().__init__(k, g, out, VT, VT.length * 4 // self.E.bytes, LINE)

    def begin(self, s: SimpleNamespace) -> None:
        s.of_rows = self.k.tile(s.ROWS, 1, self.VT) if self.BOTH else None

    def add(self, s: SimpleNamespace, p: Value, count: Value | None) -> None:
        k, E, V = self.k, self.E, self.VT.length
        mask = None if count is None else k.lanes_below(count, self.STEP)

        def words(at: Value) -> Value:
            return k.reinterpret(k.load(at, vec(E, self.STEP), E.bytes, mask), vec(i32, V))
        columns = [words(self.b.at(s.j + c, p)) for c in range(s.COLS)]
        if self.BOTH:
            columns = [x ^ splat(k, i32, 0x80808080 - (1 << 32), V) for x in columns]
        for r, row in enumerate(words(row + p) for row in s.rows):
            if self.BOTH:
                s.of_rows[r, 0] = k.quads(splat(k, i32, 0x01010101, V), row, s.of_rows[r, 0])
            for c, column in enumerate(columns):
                s.acc[r, c] = self.dot(row, column, s.acc[r, c])

    def total(self, s: SimpleNamespace, r: int, x: Value) -> Value:
        return x - self.k.sum(s.of_rows[r, 0]) * 128 if self.BOTH else x


def emit_byte_dots(target: CpuTarget, ROWS: int, COLS: int, A: str, B: str, RESULT: str = "") -> Function:
    """dots(job, part): as skinny.emit_dots, of i8 and u8 in i32, modulo 2^32. RESULT: C's format, if not i32."""
    k, g, part = job_kernel(f"dots_of_{A}_{B}_{ROWS}x{COLS}{'_' * bool(RESULT)}{RESULT}", DOTS, i32, a=i8, b=i8,
                            **({"c": memory_type(RESULT)} if RESULT else {}))
    quads = k.quads if A == "u8" else lambda row, column, total: k.quads(column, row, total)
    words = Words(k, g, out_of(k, g, RESULT), vec(i32, target.lanes(4)), target.line, quads, (A, B) == ("i8", "i8"))
    return words.emit(part, ROWS, COLS, DOT_COLUMNS[32 if target.registers >= 32 else 16])
