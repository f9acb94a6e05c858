"""Few rows of C by weights of few bits, (element - zero point) * scale or element * scale + minimum, read once where
they are, decoded in registers.

    emit_stream     rows of B are contiguous, [k, n]
    emit_dots       columns of B are contiguous: they are rows of A of the exchanged product, [n, k]

They take the places of skinny.emit_stream and emit_dots for a prologue of this form (plans.prologues.form), and have
their jobs. Elements are added up by themselves and a sum is multiplied by the scale that they share:

    C[i, j] = sum over groups of (sum over the group's p of x[i, p] * (element[p, j] - zero)) * scale
                                 + (sum over the group's p of x[i, p]) * minimum

Beside a multiply-add for each row, V weights take a load and a conversion of bytes (two or three instructions), or,
two to a byte (SOURCE i4x2), a load, a shift and a look-up in a table of f32, a register: VPERMPS takes the
lowest bits of each index, so that nothing is masked. 16 of these come from 8 bytes, which are broadcast: dwords
alternate, so that lane 2j has element j, and lane 2j + 1 element 8 + j. Numbers beside them are reordered.

Rows are prefetched into L2 as far ahead as those that come next: on a busy Zen 4 4096 x 11008 in i4 ran at 10 GB/s
without that, at 10 with 1 KB ahead (the best of single runs), and at 20 to 23 so (by pairs of bf16, weight_pairs.py).
"""
from __future__ import annotations

from math import gcd
from types import SimpleNamespace
from typing import Any

from tilewright.expressions import HALVES
from tilewright.expressions.program import Expression
from tilewright.formats import FORMATS
from tilewright.ir import Function, Kernel, Value, f32, i8, i32, i64, vec
from tilewright.kernels.cpu.byte_dots import Dots
from tilewright.kernels.cpu.jobs import DOTS, STREAM, Prepare
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.kernels.cpu.prepared import Beside, suffix
from tilewright.kernels.narrow import memory_type, splat, widened
from tilewright.plans.prologues import form_of
from tilewright.targets.cpu import CpuTarget

RUN = 32 << 10              # bytes of C's rows that stay in L1 and L2 while all of B's rows pass
DEEPEST = 8                 # vectors of a column that are added up before a scale
AT_ONCE = {32: 8, 16: 4}    # columns of C in registers, by how many of these there are
HELD = {32: 16, 16: 6}      # numbers of A that stay in registers


class Weights:
    """Decodes the operand with this prologue in kernel `k`."""

    def __init__(self, k: Kernel, target: CpuTarget, SOURCE: str, PROLOGUE: tuple[Any, ...], beside: Value,
                 index: Value) -> None:
        self.k, self.target = k, target
        self.SOURCE, self.halves = SOURCE.removesuffix(HALVES), SOURCE.endswith(HALVES)
        self.T, self.V = memory_type(self.SOURCE), target.lanes(4)
        prepare = Prepare(*PROLOGUE)
        form = form_of(Expression.read(prepare.EXPRESSION))
        assert form is not None, PROLOGUE
        where = SimpleNamespace(beside=beside, index=index)
        names = [name for name, _ in Expression.read(prepare.EXPRESSION).parameters[1:]]
        read = {name: Beside(k, where, word, at) for at, (name, word) in enumerate(zip(names, prepare.READ))}
        self.scale, self.zero, self.minimum = (read.get(x) for x in form)
        self.group = gcd(*(x.GROUP for x in (self.scale, self.zero, self.minimum) if x and x.STEP != "0"))  # 0: all
        self.order = [e//2 + e % 2 * 8 for e in range(16)] if self.halves and self.V == 16 else []
        self.back = [self.order.index(e) for e in range(16)] if self.order else []
        if self.halves:
            self._prepare_table()

    def _prepare_table(self) -> None:
        """What is the same for all look-ups."""
        k, V, f = self.k, self.V, FORMATS[self.SOURCE]
        self.shifts = k.pack(*(k.constant(i32, e//2*4 if V == 16 else e*4) for e in range(V)))
        numbers = [float(f.decode(e).real) for e in range(V)] if V == 16 or self.SOURCE == "e2m1" else []
        self.table = k.pack(*(k.constant(f32, x) for x in numbers)) if numbers else None

    def byte(self, element: Value | int) -> Any:
        """Where an element begins, from a line's start, in the elements of pointers."""
        return element if not self.halves else element // 2 if isinstance(element, int) else element >> 1

    def values(self, at: Value, count: Value | None = None) -> Value:
        """V elements from an address on, of which so many exist, the others being 0; `order` says in which order."""
        k, V = self.k, self.V
        if not self.halves:
            mask = None if count is None else k.lanes_below(count, V)
            return widened(k, k.load(at, vec(self.T, V), self.T.bytes, mask), self.SOURCE, f32)
        WORD = i64 if V == 16 else i32
        if count is None:
            word = k.load(at.as_(WORD), WORD, 1)
        else:
            word = k.reinterpret(k.load(at, vec(i8, V // 2), 1, k.lanes_below((count + 1) >> 1, V // 2)), WORD)
        words = k.reinterpret(k.broadcast(word, V * 32 // WORD.bits), vec(i32, V))
        if self.table is not None and V == 16:
            return k.lookup(self.table, words >> self.shifts)
        if self.table is not None:                                      # e2m1: eight sizes, and the sign
            size = k.lookup(self.table, words >> self.shifts)
            sign = (words << (splat(k, i32, 28, V) - self.shifts)) & splat(k, i32, -1 << 31, V)
            return k.bits_as(k.bits_as(size, vec(i32, V)) | sign, vec(f32, V))
        if self.SOURCE == "u4":
            return k.cast((words >> self.shifts) & splat(k, i32, 15, V), vec(f32, V))
        return k.cast((words << (splat(k, i32, 28, V) - self.shifts)) >> 28, vec(f32, V))

    def across(self, x: Beside | None, line: Value, p: Value, count: Value | None) -> Value | None:
        """V numbers of lines from this one on, of which so many exist, at step p; None of None."""
        if x is None:
            return None
        loaded = x.load(line, p, self.V, count, False, f32)
        return loaded if loaded.type.length == self.V else self.k.broadcast(loaded, self.V)

    def ordered(self, x: Value) -> Value:
        """V numbers for V elements, in the elements' order."""
        return self.k.shuffle(x, x, self.order) if self.order else x

    def natural(self, x: Value) -> Value:
        """The reverse."""
        return self.k.shuffle(x, x, self.back) if self.order else x


class Decoded(Dots):
    """Rows of weights that are decoded to f32; elements of a chunk, which share a scale, are added up by themselves
    where scales are of groups."""

    def __init__(self, k: Kernel, g: SimpleNamespace, target: CpuTarget, SOURCE: str, PROLOGUE: tuple[Any, ...]
                 ) -> None:
        self.w = w = Weights(k, target, SOURCE, PROLOGUE, g.a_beside, g.index)
        self.LEFT = V = w.V
        CHUNK = max(x for x in range(V, DEEPEST*V + 1, V) if w.group % x == 0)
        self.fixed = [x and x.STEP == "0" for x in (w.scale, w.zero, w.minimum)]
        self.at_end = w.scale is not None and self.fixed[0] and w.minimum is None
        super().__init__(k, g, Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta), vec(f32, V), CHUNK, target.line)

    def place(self, p: Value | int) -> Any:
        return self.w.byte(p)

    def beside(self, s: SimpleNamespace, x: Beside, p: Value | int) -> list[Value]:
        """For each row the number that all of a chunk share."""
        return [self.k.broadcast(x.one(s.i + r, p, f32), self.w.V) for r in range(s.ROWS)]

    def begin(self, s: SimpleNamespace) -> None:
        s.start = [self.beside(s, x, 0) if x and fixed else [None]*s.ROWS
                   for x, fixed in zip((self.w.scale, self.w.zero, self.w.minimum), self.fixed)]

    def add(self, s: SimpleNamespace, p: Value, count: Value | None) -> None:
        k, w, V, acc = self.k, self.w, self.w.V, s.acc
        scales, zeros, minima = (self.beside(s, x, p) if x and not fixed else first for x, fixed, first in zip(
            (w.scale, w.zero, w.minimum), self.fixed, s.start))
        grouped = w.scale is not None and not self.at_end
        columns: list[Value] = []                   # sums of x, if there are minima
        sums: dict[tuple[int, int], Value] = {} if grouped else {rc: acc[rc] for rc in acc.registers}
        mask = None if count is None else k.lanes_below(count, V)
        for at in range(0, self.STEP if count is None else V, V):
            q = p + at if at else p
            x = [w.ordered(k.load(self.b.at(s.j + c, q), self.VT, 4, mask)) for c in range(s.COLS)]
            columns = [before + y for before, y in zip(columns, x)] if columns else x if w.minimum else []
            for r, zero in enumerate(zeros):
                weights = w.values(s.rows[r] + w.byte(q), count)
                weights = weights if zero is None else weights - zero
                for c, column in enumerate(x):
                    sums[r, c] = k.fma(weights, column, sums[r, c]) if (r, c) in sums else weights * column
        for (r, c), total in sums.items():
            acc[r, c] = k.fma(total, scales[r], acc[r, c]) if grouped else total
            if columns:
                acc[r, c] = k.fma(columns[c], minima[r], acc[r, c])

    def total(self, s: SimpleNamespace, r: int, x: Value) -> Value:
        return x * self.w.scale.one(s.i + r, 0, f32) if self.w.scale is not None and self.at_end else x


def emit_dots(target: CpuTarget, dtype: str, ROWS: int, COLS: int, SOURCE: str, PROLOGUE: tuple[Any, ...]) -> Function:
    """dots(job, part): a run of rows of C[m, COLS] = alpha * A[m, k] @ B[k, COLS] + beta * C, ROWS at a time, of which
    A has the weights."""
    k, g, part = job_kernel(f"dots_{dtype}_{ROWS}x{COLS}_of_{SOURCE}{suffix(PROLOGUE)}", DOTS, f32,
                            a=memory_type(SOURCE.removesuffix(HALVES)))
    return Decoded(k, g, target, SOURCE, PROLOGUE).emit(part, ROWS, COLS, AT_ONCE[32 if target.registers >= 32 else 16])


def emit_stream(target: CpuTarget, dtype: str, ROWS: int, DEPTH: int, SOURCE: str, PROLOGUE: tuple[Any, ...]
                ) -> Function:
    """stream(job, part): a run of columns of C[ROWS, n] = A[ROWS, k] @ B[k, n] + beta * C, beta being 0 or 1, DEPTH
    rows of B's weights at a time, whole cache lines of them, and the next ones prefetched into L2."""
    V = target.lanes(4)
    VT = vec(f32, V)
    S = memory_type(SOURCE.removesuffix(HALVES))
    k, g, part = job_kernel(f"stream_{dtype}_{ROWS}x{DEPTH}_of_{SOURCE}{suffix(PROLOGUE)}", STREAM, f32, b=S)
    w = Weights(k, target, SOURCE, PROLOGUE, g.b_beside, g.index)
    a, b, c = g.a.view(g.rsa, g.csa), g.b.view(g.ldb, 1), g.c.view(g.ldc, 1)
    TOGETHER = max(target.line // (V * S.bytes // (1 + w.halves)), 1)
    UNIT = V * TOGETHER
    WIDTH = max(RUN // 4 // ROWS // UNIT, 1) * UNIT
    lo, hi = (x*UNIT for x in split(k.ceil_div(g.n, UNIT), g.parts, part))
    hi = k.min(hi, g.n)
    DEPTH = gcd(DEPTH, w.group) if w.group else DEPTH

    def add(p: Value, DEPTH: int, j: Value, end: Value) -> None:
        """C += A[:, p ... p + DEPTH] @ B[p ... p + DEPTH, j ... end]"""
        held = ROWS*DEPTH <= HELD[32 if target.registers >= 32 else 16]
        a_reg = [[k.broadcast(a[i, p + d], V) for d in range(DEPTH)] for i in range(ROWS)] if held else []
        rows = [sum((a[i, p + d] for d in range(1, DEPTH)), a[i, p]) for i in range(ROWS)] if w.minimum else []

        def columns(jv: Value, count: Value | None) -> None:
            mask = None if count is None else k.lanes_below(count, V)
            scale, zero, minimum = (w.across(x, jv, p, count) for x in (w.scale, w.zero, w.minimum))
            sums: list[Value] = []
            for d in range(DEPTH):
                weights = w.values(b.at(p + d, w.byte(jv)), count)
                weights = weights if zero is None else weights - w.ordered(zero)
                for i in range(ROWS):
                    x = a_reg[i][d] if held else k.broadcast(a[i, p + d], V)
                    if d:
                        sums[i] = k.fma(weights, x, sums[i])
                    else:
                        sums.append(weights * x)
            for i, x in enumerate(sums):
                before, x = k.load(c.at(i, jv), VT, 4, mask), w.natural(x)
                before = before if minimum is None else k.fma(minimum, k.broadcast(rows[i], V), before)
                k.store(c.at(i, jv), before + x if scale is None else k.fma(x, scale, before), 4, mask)

        full_end = j + (end - j) // UNIT * UNIT
        with k.loop(full_end, j, UNIT) as jv:
            for d in range(DEPTH):
                k.prefetch(b.at(p + d + DEPTH, w.byte(jv)), locality=2)
            for v in range(TOGETHER):
                columns(jv + v*V if v else jv, None)
        with k.loop(end, full_end, V) as jv:
            columns(jv, k.min(end - jv, V))

    with k.loop(hi, lo, WIDTH) as j:
        end = k.min(j + WIDTH, hi)
        with k.when(g.beta == 0.0), k.loop(k.constant(i64, ROWS)) as i, k.loop(end, j, V) as jv:
            k.store(c.at(i, jv), k.constant(VT, 0.0), 4, k.lanes_below(end - jv, V))
        deep = g.k // DEPTH * DEPTH
        with k.loop(deep, step=DEPTH) as p:
            add(p, DEPTH, j, end)
        with k.loop(g.k, deep) as p:
            add(p, 1, j, end)
    return k.function
