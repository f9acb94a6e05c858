"""Panels: their elements, and how they are prefetched, packed and multiplied; the five loops are the same for all.

    Panels          vectors: as many rows of A as registers hold, or one less; whole vectors of B's columns
    WordPanels      the same with several steps of k in a word, and a row before B's that sums start with
    ComplexPanels   the same for the real product that packing.py makes of complex numbers
    TilePanels      AMX's: 32 rows of A, 32 columns of B

All classes have the same methods, so that kernels/cpu/gemm.py has no case for any of them.
"""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Value, i8, i64, ptr
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu.accumulators import PACKED_WORDS
from tilewright.kernels.cpu.amx import AHEAD
from tilewright.kernels.cpu.jobs import LINE_FIELDS, PACKED, STEP_FIELDS, panel_space
from tilewright.kernels.cpu.microkernel import LEAD, PACE, TYPES
from tilewright.kernels.narrow import memory_type
from tilewright.plans.words import GROUP, TILE_WORDS
from tilewright.targets.cpu import CpuTarget

CALLS = 8               # of the tiles' micro-kernel, in which it asks for a whole panel that comes next


def panels_of(target: CpuTarget, dtype: str, MR: int, NV: int, A: str = "", B: str = "", FIELDS: int = 0,
              PROLOGUES: str = "") -> Panels:
    """The panels of a compute format; A, B are the formats of the operands, if they are others; FIELDS, those of a
    state that micro-kernels keep in tiles (state_fields); PROLOGUES: which operands packing changes."""
    kind = (TilePanels if dtype in TILE_WORDS else WordPanels if dtype in PACKED_WORDS else
            ComplexPanels if A.startswith("c") else Panels)
    panels = kind(target, dtype, MR, NV, A, B)
    panels.FIELDS, panels.PROLOGUES = FIELDS, PROLOGUES
    return panels


class Panels:
    """T is what panels consist of, C what sums are added up in; `of_a`, `of_b` are elements of the operands."""
    ROWS = PACE             # of k, of which blocks have whole multiples
    WORD = 1                # steps of k in what is packed as one
    PAIR = 1                # reals in an element of the operands, and so apart where these are contiguous
    PROLOGUES = ""
    DIVISIBLE = True        # whether a panel may be packed in several calls, by rows of k
    FIELDS = 0              # of a state that micro-kernels keep, and then take the steps of k before theirs

    def __init__(self, target: CpuTarget, dtype: str, MR: int, NV: int, A: str, B: str) -> None:
        self.dtype = dtype
        self.T, self.C = self.types()
        self.V, self.NV = target.lanes(self.T.bytes), NV
        self.MR, self.NR = MR, NV * self.V
        self.of_a, self.of_b = memory_type(A or dtype), memory_type(B or dtype)

    def types(self) -> tuple[Any, Any]:
        return TYPES[self.dtype], TYPES[self.dtype]

    def write(self, k: Kernel, g: SimpleNamespace) -> None:
        """From now on, values are those of this kernel, and `g` the fields of its job, which is its first parameter."""
        self.k, self.g = k, g

    # ---- where things are

    def source(self, p: Value) -> Value:
        """The step of k, in an operand, at which row p of a panel begins."""
        return p * self.WORD

    def column(self, j: Value) -> Value:
        """The column of B that column j of the product is packed from."""
        return j

    def a_at(self, i: Value, p: Value) -> tuple[Value, Value, Value]:
        """Arguments of the packing of rows from i on, from row p of their panel on: address, step_i, step_p; or the
        tables of rows and of steps, from there on."""
        g = self.g
        return self._scattered(g.a_lines, g.a_steps, i, p, g.a,
                               (g.a.view(g.rsa, g.csa).at(i, self.source(p)), g.rsa, g.csa))

    def b_at(self, p: Value, j: Value) -> tuple[Value, Value, Value]:
        """Arguments of the packing of B's columns from j on, from row p of their panel on: address, step_j, step_p; or
        tables."""
        g = self.g
        return self._scattered(g.b_lines, g.b_steps, j, p, g.b,
                               (self.b(self.source(p), self.column(j)), g.csb, g.rsb))

    def _scattered(self, lines: Value, steps: Value, i: Value, p: Value, start: Value,
                   strided: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        by_table = start, lines + i*(8*LINE_FIELDS), steps + p*(8*STEP_FIELDS)
        where, step_i, step_p = (self.k.select(lines != 0, x, y) for x, y in zip(by_table, strided))
        return where, step_i, step_p

    def b(self, p: Value, j: Value) -> Value:
        return self.g.b.view(self.g.rsb, self.g.csb).at(p, j)

    def c(self, i: Value, j: Value) -> Value:
        return self.g.c.view(self.g.ldc, 1).at(i, j)

    def left(self, p: Value) -> list[Value]:
        """Further arguments of packing that begins at row p."""
        return []

    def where(self, role: str, line: Value, p: Value) -> list[Value]:
        """What packing takes, beside that, of an operand with a prologue (source.WHERE): of lines from this one on."""
        if role not in self.PROLOGUES:
            return []
        return [line, self.source(p), self.g.a_beside if role == "a" else self.g.b_beside, self.g.index]

    def unpacked(self, s: SimpleNamespace, cols: Value) -> Value | None:
        """Rows of a panel of B of so many columns that are read where they are, its first ones, if any ever are."""
        return None

    def kc_max(self) -> Value:
        """Rows of k in a block: blocks are of one depth, but for the last one."""
        k, g = self.k, self.g
        return k.ceil_div(k.ceil_div(g.k, k.ceil_div(g.k, g.kc)), self.ROWS) * self.ROWS

    def rows(self, m_panels: Value) -> Callable[[Value], Value]:
        """At which row of A each panel begins: panels of equal height, the first ones one row more, so that no row of
        a register tile is empty."""
        k, m = self.k, self.g.m
        height, taller = m // m_panels, m % m_panels
        return lambda q: q*height + k.min(q, taller)

    def width(self, height: Value) -> Value | int:
        """Elements of a row of k in a panel of so many rows of A."""
        return height

    def a_space(self, kc: Value) -> Value:
        """Elements that a panel takes."""
        return panel_space(kc, self.MR)

    def b_space(self, kc: Value) -> Value:
        return panel_space(kc, self.NR)

    # ---- multiplying

    def configure(self) -> None:
        """Before the first product of a thread,"""

    def release(self) -> None:
        """and after its last one."""

    def begin_block(self, s: SimpleNamespace) -> None:
        """Prepare the loop over a block of B."""
        # rows of the next panel of B that are asked for while one panel of A is multiplied
        s.ahead_rows = self.k.max(s.kc // PACE - (self.MR + LEAD), 0)

    def coming(self, s: SimpleNamespace, jr: Value, j1: Value, j: Value, b_panel: Value,
               packing: bool) -> SimpleNamespace:
        """What to ask for while panel jr of those up to j1 is multiplied, which is column j: the panel that comes next,
        or the rows of B of which it will be packed."""
        k, g = self.k, self.g
        if packing:
            start, step = self.b(self.source(s.pc), self.column(j + self.NR)), g.rsb * self.of_b.bytes
            return SimpleNamespace(start=start, step=step, more=(jr + 1 < j1) & (g.csb == self.PAIR),
                                   rows=lambda: self.column(s.kc))
        return SimpleNamespace(start=b_panel + s.b_stride, step=k.constant(i64, self.NR*self.T.bytes // self.WORD),
                               more=jr + 1 < j1, rows=lambda: s.kc)

    def multiply(self, s: SimpleNamespace, t: SimpleNamespace, coming: SimpleNamespace) -> None:
        """A tile of C, at `t.place`, with rows `t.ld` apart: panel `t.ir` of A, of h rows, the first of its block being
        q0, by a panel of B of `cols` columns."""
        k, g = self.k, self.g
        kernel = k.load(g.table + ((t.h - 1)*self.NV + t.vectors - 1), ptr(i8))
        seen = (t.ir - t.q0)*s.ahead_rows
        useful = coming.more & (seen < coming.rows())
        k.call(kernel, s.kc, t.a_block + (t.ir - t.q0)*s.a_stride, t.h, t.b_panel, t.vectors*self.V, t.place, t.ld,
               t.cols, s.alpha, s.beta,
               k.select(useful, coming.start.as_(i8) + seen*self.WORD*coming.step, t.b_panel.as_(i8)),
               k.select(useful, coming.step, 0), *((s.pc,) if self.FIELDS else ()))

    def finished(self, i: Value, j: Value, rows: Value, cols: Value, ir: Value, jr: Value) -> tuple[Value, ...]:
        """Where a tile is in C, as its rows lie there: its first row and column, how many of these, and its panels."""
        return i, j, rows, cols, ir, jr


class WordPanels(Panels):
    """Their k counts words."""
    DIVISIBLE = False       # a panel of B begins with a row of its own

    def __init__(self, target: CpuTarget, dtype: str, MR: int, NV: int, A: str, B: str) -> None:
        super().__init__(target, dtype, MR, NV, A, B)
        self.WORD = PACKED_WORDS[dtype]

    def left(self, p: Value) -> list[Value]:
        return [self.g.depth - self.source(p)]

    def b_space(self, kc: Value) -> Value:
        return super().b_space(kc) + self.NR


class ComplexPanels(Panels):
    """C, k and n are those of the real product; strides lead from one complex number to the next."""
    PAIR = 2

    def source(self, p: Value) -> Value:
        return p // self.PAIR

    def column(self, j: Value) -> Value:
        return j // self.PAIR


class TilePanels(Panels):
    """Their k counts rows of tiles. C lies by columns: with the operands' roles exchanged, as they are for AMX, its
    tiles follow each other along the rows of C as its owner sees it."""

    def types(self) -> tuple[Any, Any]:
        self.word = TILE_WORDS[self.dtype]
        self.ROWS = self.word.rows
        return TYPES[self.word.accumulates], TYPES[self.word.sums]

    def source(self, p: Value) -> Value:
        return self.word.source_step(p)

    def left(self, p: Value) -> list[Value]:
        special = self.k.args[0].as_(i64) + PACKED.index("special")
        return [self.g.depth - self.source(p), special]

    def c(self, i: Value, j: Value) -> Value:
        return self.g.c.view(1, self.g.ldc).at(i, j)

    def rows(self, m_panels: Value) -> Callable[[Value], Value]:
        return lambda q: self.k.min(q*self.MR, self.g.m)

    def width(self, height: Value) -> Value | int:
        return self.MR

    def unpacked(self, s: SimpleNamespace, cols: Value) -> Value:
        k, g = self.k, self.g
        groups = k.min(s.kc // self.ROWS, (g.depth - self.source(s.pc)) // (GROUP * self.word.steps))
        return k.select((g.unpacked != 0) & (cols == self.NR), groups * self.ROWS, k.constant(i64, 0))

    def configure(self) -> None:
        TileRegisters(self.k).configure()

    def release(self) -> None:
        TileRegisters(self.k).release()

    def begin_block(self, s: SimpleNamespace) -> None:
        pass

    def coming(self, s: SimpleNamespace, jr: Value, j1: Value, j: Value, b_panel: Value,
               packing: bool) -> SimpleNamespace:
        """In CALLS calls of the micro-kernel. In bytes: lines of a step, a step, a call."""
        k, g = self.k, self.g
        column = j + self.NR if packing else None
        more, groups, bytes = jr + 1 < j1, s.kc // self.ROWS, self.of_b.bytes
        if column is None:
            step = AHEAD*self.word.terms*64
            return SimpleNamespace(start=(b_panel + s.b_stride).as_(i8), more=more, within=k.constant(i64, step // 4),
                                   step=k.constant(i64, step), call=groups*step)
        depth, along = 16*self.word.steps*bytes, g.rsb == 1
        rows = g.rsb*(AHEAD*bytes)
        return SimpleNamespace(
            start=self.b(self.source(s.pc), column).as_(i8), more=more & (along | (g.csb == 1)),
            within=k.select(along, g.csb, g.rsb)*bytes, step=k.select(along, depth, rows),
            call=k.select(along, g.csb*(AHEAD*bytes), groups*rows))

    def multiply(self, s: SimpleNamespace, t: SimpleNamespace, coming: SimpleNamespace) -> None:
        k, g = self.k, self.g
        kernel, done, pitch = k.load(g.table, ptr(i8)), t.ir - t.q0, g.csb*self.of_b.bytes
        k.call(kernel, s.kc, t.b_panel, t.cols, t.a_block + done*s.a_stride, coming.within, t.place,
               t.ld, t.h, s.alpha, s.beta,
               k.select(coming.more & (done < CALLS), coming.start + done*coming.call, t.b_panel.as_(i8)), coming.step,
               self.b(self.source(s.pc), t.j).as_(i8), pitch, self.unpacked(s, t.cols) // self.ROWS,
               k.select(done == 0, pitch*self.NR, 0))

    def finished(self, i: Value, j: Value, rows: Value, cols: Value, ir: Value, jr: Value) -> tuple[Value, ...]:
        return j, i, cols, rows, jr, ir
