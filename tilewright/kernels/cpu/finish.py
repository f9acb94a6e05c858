"""What becomes of finished sums, tile by tile: C and the other results of an epilogue.

    emit_finish     one tile: after the last block of k, while it is in L1. Where there is an expression (expressions/),
                    it is recorded here, once for all algorithms: the loops that multiply know none
    emit_finishing  all tiles: a pass of its own, for algorithms that add up in memory until they end
    emit_finished   such a product with its pass, as one job

Operands and results but C are found in a table (jobs.OPERAND) that the job points to; how each lies in memory is a
parameter of emit_finish (jobs.Finish).
"""
from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from tilewright.expressions.program import INDICES, STATE, Expression
from tilewright.expressions.rounding import shortened
from tilewright.formats import FORMATS, Bool, Float
from tilewright.ir import Function, Kernel, Type, Value, f32, f64, i1, i8, i32, i64, ptr, vec
from tilewright.kernels.cpu.jobs import FINISH, FINISHED, OPERAND, TALL, Finish, offsets
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import emit_wait, job_fields, split
from tilewright.kernels.expression import both, indices, nothing, numbers, part, recorded
from tilewright.kernels.narrow import memory_type, number
from tilewright.kernels.reductions import reduce
from tilewright.targets.cpu import CpuTarget


def emit_finish(target: CpuTarget, SUMS: str, NR: int, RESULT: str = "", EXPRESSION: str = "",
                READ: tuple[str, ...] = (), WRITTEN: tuple[str, ...] = (), WIDE: bool = False) -> Function:
    """C[i ... i + rows, j ... j + cols] = alpha * tile[rows, cols] in the format RESULT ("": that of the sums), or what
    the expression makes of that, and its other results. The tile's rows are `ld` elements apart, C's are contiguous,
    ldc elements apart; the tile may be C's. cols <= NR. The tile is in these panels of C, of product `index`."""
    T, finish = TYPES[SUMS], Finish(EXPRESSION, READ, WRITTEN, WIDE)
    S, V = memory_type(RESULT) if RESULT else T, target.lanes(T.bytes)
    name = f"finish_{SUMS}_{NR}" + f"_{RESULT}"*bool(RESULT)
    if EXPRESSION:
        name += f"_{crc32(repr(finish).encode()):08x}"
    k = Kernel(name, noalias=False, tile=ptr(T, strided=True), ld=i64, c=ptr(S, strided=True), ldc=i64, i=i64, j=i64,
               rows=i64, cols=i64, row_panel=i64, col_panel=i64, alpha=T, index=i64, operands=ptr(i64))
    g = SimpleNamespace(**dict(k.function.params))
    tile, out = g.tile.view(g.ld, 1), Out(k, g.c.view(g.ldc, 1), g.alpha, RESULT=RESULT)
    if EXPRESSION:
        _Epilogue(k, g, out, target, SUMS, RESULT, finish, NR).store(tile)
        return k.function

    def store(masks: list[Value] | list[None]) -> None:
        with k.loop(g.rows) as r:
            for v, mask in enumerate(masks):
                sums = k.load(tile.at(r, v*V), vec(T, V), T.bytes, mask)
                out.place(g.i + r, g.j + v*V).put(out.scaled(sums), mask=mask)
    with k.when(g.cols == NR):
        store([None] * (NR // V))
    with k.otherwise():
        store([k.lanes_below(g.cols - v*V, V) for v in range(NR // V)])
    return k.function


class _Epilogue:
    """Records an expression of the sums of a tile, and the stores of its results."""

    def __init__(self, k: Kernel, g: SimpleNamespace, out: Out, target: CpuTarget, SUMS: str, RESULT: str,
                 finish: Finish, NR: int) -> None:
        T = TYPES[SUMS]
        self.k, self.g, self.out, self.NR, self.T = k, g, out, NR, T
        self.expression = Expression.read(finish.EXPRESSION)
        self.halves = 2 if self.expression.paired else 1        # columns of sums for one of C
        # of the fields of a state, whose rows follow each other in a row of the tile
        kinds = [kind for name, kind in self.expression.parameters if name.startswith(STATE)]
        self.fields = [numbers(T)[kind] for kind in kinds] or [T]
        self.read = [_Place.from_table(k, g, word, at) for at, word in enumerate(finish.READ)]
        more = [word for word in finish.WRITTEN if word != "-"]
        places = iter([_Place.from_table(k, g, word, at + len(self.read)) for at, word in enumerate(more)])
        self.written = [None if word == "-" else next(places) for word in finish.WRITTEN]       # None: C
        formats = (RESULT or SUMS if x is None else x.FORMAT for x in self.written)
        self.short = shortened(self.expression, tuple(formats))
        wide = T in (f64, i64)
        self.FLOAT = f64 if wide or finish.WIDE else f32
        integer_formats = {x.FORMAT for x in self.read} & {"i64", "u64", "u32"}
        self.INT = i64 if wide or integer_formats else i32
        types: list[Type] = [x.T for x in (*self.read, *self.written) if x is not None]
        types += [memory_type(RESULT)] if RESULT else []
        self.V = target.lanes(max(x.bytes for x in (T, self.FLOAT, self.INT, *types)))      # all fit a register

    def store(self, tile: Value) -> None:
        k, g, V = self.k, self.g, self.V
        columns = g.cols if self.halves == 1 else g.cols // 2
        together = self.halves if self.NR // V % self.halves == 0 else 1    # vectors of sums that make one of C
        W = V * together // self.halves
        loads, masks = range(self.NR // V), range(self.NR // V // together)
        with k.when(g.cols == self.NR):
            self._rows(tile, W, together, [None for _ in loads], [None for _ in masks])
        with k.otherwise():
            self._rows(tile, W, together, [k.lanes_below(g.cols - v*V, V) for v in loads],
                       [k.lanes_below(columns - v*W, W) for v in masks])

    def _rows(self, tile: Value, W: int, together: int, given: list[Any], masks: list[Any]) -> None:
        """All rows: `given` are masks of vectors of sums, `masks` of the W numbers that come of `together` of them."""
        k, g, V = self.k, self.g, self.V
        first = g.j if self.halves == 1 else g.j // 2
        down = {at: [self._begin(at, W) for _ in masks] for at in self._reduced("columns")}
        with k.loop(g.rows) as r:
            i = g.i + r
            across: dict[int, list[tuple[Value, ...]]] = {at: [] for at in self._reduced("rows")}
            for v, mask in enumerate(masks):
                loaded = [k.load(tile.at(r, f*self.NR + x*V).as_(t), vec(t, V), t.bytes, given[x])
                          for x in range(v*together, (v + 1)*together) for f, t in enumerate(self.fields)]
                results = self._results(loaded, i, first + v*W, W, mask)
                for at, (x, place) in enumerate(zip(results, self.written)):
                    if place is None:
                        self.out.place(i, first + v*W).put(self._stored(x, self.out.RESULT), mask=mask)
                    elif at in down:
                        now = tuple(variable.get() for variable in down[at][v])
                        for variable, y in zip(down[at][v], self._both(at, now, self._masked(at, x, i, mask))):
                            variable.set(y)
                    elif at in across:
                        across[at].append(self._masked(at, x, first + v*W, mask))
                    else:
                        place.put(self._stored(x, place.FORMAT), i, first + v*W, mask)
            for at, xs in across.items():
                total = xs[0]
                for more in xs[1:]:
                    total = self._both(at, total, more)
                self._put(at, self._place(at).address(i, g.col_panel), reduce(k, partial(self._both, at), total), None)
        for at, variables in down.items():
            for v, (of_vector, mask) in enumerate(zip(variables, masks)):
                reduced_row = tuple(variable.get() for variable in of_vector)
                self._put(at, self._place(at).address(g.row_panel, first + v*W), reduced_row, mask)

    def _place(self, at: int) -> _Place:
        """The place of the result with this number, which is not C."""
        place = self.written[at]
        assert place is not None
        return place

    def _results(self, sums: list[Value], i: Value, j: Value, W: int, mask: Value | None) -> list[Value]:
        k, names = self.k, dict(self.expression.parameters)
        if self.halves == 2:
            x, y = sums[0], sums[-1]
            width = self.V * len(sums)
            sums = [k.shuffle(x, y, range(half, width, 2)) for half in range(2)]
        inputs = {name: self._kind(x, names[name]) for name, x in zip(self.expression.sums, sums)}
        read = list(names)[len(inputs):]
        for name, place in zip(read, self.read, strict=True):
            inputs[name] = place.load(i, j, W, mask, {"float": self.FLOAT, "int": self.INT, "bool": i1}[names[name]])
        return [self._spread(x, W) for x in recorded(k, self.short, inputs, self.FLOAT, self.INT)]

    def _spread(self, x: Value, W: int) -> Value:
        return x if x.type.length == W else self.k.broadcast(x, W)

    def _kind(self, x: Value, kind: str) -> Value:
        return self.k.cast(x, vec(self.INT if kind == "int" else self.FLOAT, x.type.length))

    def _stored(self, x: Value, FORMAT: str) -> Value:
        """A result as Out takes it: of the format's type, or one that is rounded to it."""
        k, n, f = self.k, x.type.length, FORMATS.get(FORMAT)
        if isinstance(f, Bool):
            return k.select(x, k.constant(vec(i8, n), 1), k.constant(vec(i8, n), 0))
        if x.type.bits == 1:
            x = k.select(x, k.constant(vec(self.INT, n), 1), k.constant(vec(self.INT, n), 0))
        wanted = self.T if f is None else memory_type(FORMAT)
        if isinstance(f, Float) and not (wanted.is_float and wanted.bits >= 32):
            wanted = f32                                        # which is rounded by Out
        return k.cast(x, vec(wanted, n))

    # ---- reductions

    def _reduced(self, along: str) -> list[int]:
        return [at for at, place in enumerate(self.written) if place is not None and along == place.HOW]

    def _how(self, at: int) -> str:
        return self.expression.results[at].how

    def _begin(self, at: int, W: int) -> tuple[Any, ...]:
        type = vec(memory_type(self._place(at).FORMAT), W)
        return tuple(self.k.variable(x.type, x) for x in nothing(self.k, self._how(at), type))

    def _masked(self, at: int, x: Value, index: Value, mask: Value | None) -> tuple[Value, ...]:
        """A result's numbers as they are reduced, with their indices if these are kept: that of the row, or of the
        columns from there on; where there are none, what changes nothing."""
        k, how, along = self.k, self._how(at), self._place(at).HOW
        x = self._stored(x, self._place(at).FORMAT)
        if how in INDICES and along == "rows":
            index_type = indices(x.type)
            steps = k.pack(*(k.constant(index_type.scalar, e) for e in range(index_type.length)))
            index = k.broadcast(k.cast(index, index_type.scalar), index_type.length) + steps
        candidate = part(k, how, x, index)
        if mask is None:
            return candidate
        return tuple(k.select(mask, y, z) for y, z in zip(candidate, nothing(k, how, x.type)))

    def _both(self, at: int, x: tuple[Value, ...], y: tuple[Value, ...]) -> tuple[Value, ...]:
        return both(self.k, self._how(at), x, y)

    def _put(self, at: int, place: Value, found: tuple[Value, ...], mask: Value | None) -> None:
        """The number of a row, or those of columns, and indices beside them: OPERAND's stride leads over both."""
        k, of = self.k, self._place(at)
        for e, x in enumerate(found):
            apart = (of.column if of.HOW == "rows" else of.row) // 2 if e else 0
            k.store((place + apart).as_(x.type.scalar), x, x.type.scalar.bytes, mask)


class _Place:
    """An operand or a result in the table."""

    def __init__(self, k: Kernel, FORMAT: str, HOW: str, data: Value, row: Value, column: Value) -> None:
        self.k, self.FORMAT, self.HOW = k, FORMAT, HOW
        self.data, self.row, self.column = data, row, column
        self.T = data.type.element

    @classmethod
    def from_table(cls, k: Kernel, g: SimpleNamespace, word: str, at: int) -> _Place:
        FORMAT, _, HOW = word.partition(":")
        fields = {name: k.load(g.operands + (at*len(OPERAND) + x)) for x, name in enumerate(OPERAND)}
        data = k.load(g.operands + at*len(OPERAND), ptr(memory_type(FORMAT), strided=True))
        return cls(k, FORMAT, HOW, data + g.index*fields["product"], fields["row"], fields["column"])

    def address(self, i: Value, j: Value) -> Value:
        return self.data.view(self.row, 1 if self.HOW in ("vector", "columns") else self.column).at(i, j)

    def load(self, i: Value, j: Value, W: int, mask: Value | None, T: Type) -> Value:
        """The numbers of C[i, j ...], W of them or one for all."""
        k = self.k
        if self.HOW == "vector":
            x = k.load(self.address(i, j), vec(self.T, W), self.T.bytes, mask)
        elif self.HOW == "any":
            x = k.pack(*(k.load(self.address(i, j + e), self.T, self.T.bytes, None if mask is None else mask[e])
                         for e in range(W)))
        else:
            at = self.data if self.HOW == "scalar" else self.data + i*self.row
            x = k.load(at, self.T, self.T.bytes)
            x = k.broadcast(x, W)                               # conversions are written for vectors
        x = number(k, x, self.FORMAT, T)
        return x if self.HOW in ("vector", "any") else x[0]

    def put(self, x: Value, i: Value, j: Value, mask: Value | None) -> None:
        k = self.k
        out = Out(k, self.data.view(self.row, 1), k.constant(i64, 1), RESULT=self.FORMAT)
        if self.HOW == "vector":
            out.place(i, j).put(x, mask=mask)
            return
        x = out.rounded(x)
        for e in range(x.type.length):
            k.store(self.address(i, j + e), x[e], self.T.bytes, None if mask is None else mask[e])


def emit_finishing(target: CpuTarget, SUMS: str, NR: int, RESULT: str = "") -> Function:
    """finishing(job, part): a share of C's tiles of TALL rows and NR columns, whose sums are in a matrix."""
    T = TYPES[SUMS]
    k = Kernel(f"finishing_{SUMS}_{NR}" + f"_{RESULT}"*bool(RESULT), noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, FINISH, T, c=memory_type(RESULT) if RESULT else T)
    sums = g.sums.view(g.lds, 1)
    q_lo, q_hi = split(k.ceil_div(g.m, TALL), g.row_parts, part // g.col_parts)
    j_lo, j_hi = split(k.ceil_div(g.n, NR), g.col_parts, part % g.col_parts)
    with k.loop(q_hi, q_lo) as q, k.loop(j_hi, j_lo) as jr:
        i, j = q*TALL, jr*NR
        k.call(g.finish, sums.at(i, j), g.lds, g.c, g.ldc, i, j, k.min(g.m - i, TALL), k.min(g.n - j, NR), q, jr,
               k.constant(T, 1), g.index, g.operands)
    return k.function


def emit_finished(target: CpuTarget) -> Function:
    """finished(job, part): the parts of a product, and then those of the pass over its sums, which wait until all of
    the product is there: parts are claimed in order, so that others are at it then. A pass of one share is made by the
    thread that was the last to multiply."""
    k = Kernel("finished", noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, FINISHED[:-1], i8, product=i8, finishing=i8)
    done, then = (job + offsets(FINISHED)["done"]).as_(i64), job + g.at
    with k.when(part < g.product_parts):
        k.call(g.product, job + 8*len(FINISHED), part)
        last = k.atomic_add(done, 1) + 1 == g.product_parts
        with k.when(last & (g.shares == 1)):
            k.call(g.finishing, then, k.constant(i64, 0))
    with k.otherwise():
        emit_wait(k, lambda: k.atomic_load(done) < g.product_parts)
        k.call(g.finishing, then, part - g.product_parts)
    return k.function
