"""The epilogue of a kernel (expressions/function.py): its operands and further results in global memory, and the
expression between them, of numbers that are next to each other in a row of C.

A kernel with one has further parameters (gpu/auxiliary.py):

    x_NAME      an operand, own_NAME one that the compiler adds: a number; contiguous numbers, one for each column; for
                each row; or rows of contiguous numbers for each element
    cI          result number I, by rows, if it is not C

Addresses and strides are multiples of as many elements as are stored at once, or else copied before
(runtime/gpu/auxiliary.py).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.expressions import texts
from tilewright.expressions.function import Aux, Epilogue
from tilewright.expressions.program import Expression
from tilewright.expressions.rounding import shortened
from tilewright.formats import FORMATS, Float
from tilewright.ir import Kernel, Type, Value, bf16, f16, f32, f64, i32, i64, vec
from tilewright.kernels.expression import recorded
from tilewright.kernels.gpu.auxiliary import begin
from tilewright.kernels.narrow import memory_type, narrowed, widened

WIDEST = 16             # bytes of a thread's vectors
PAIRS = {"f16": f16, "bf16": bf16}          # formats of C that `Kernel.round_pair` makes


def suffix(EPILOGUE: str) -> str:
    """The suffix of the name of a kernel with this epilogue."""
    return f"_{texts.epilogue(EPILOGUE).digest}" if EPILOGUE else ""


def sums(EPILOGUE: str) -> int:
    """How many sums of neighbouring columns make one number of C."""
    return 1 + (bool(EPILOGUE) and texts.epilogue(EPILOGUE).paired)


def beside(g: SimpleNamespace, EPILOGUE: str) -> list[tuple[Value, Value]]:
    """Where further results of a kernel with the arguments g begin, and their leading dimensions."""
    return [(getattr(g, x.parameter), getattr(g, f"ld_{x.parameter}")) for x in texts.auxiliary(EPILOGUE) if x.written]


def rounded(k: Kernel, values: list[Value], FORMAT: str, ROUND_PAIR: bool = False) -> Value:
    """Numbers as they are stored: one, or a vector of them. ROUND_PAIR: the chip rounds two f32 at once."""
    KEPT, width = memory_type(FORMAT), len(values)
    if KEPT == values[0].type:
        return k.pack(*values) if width > 1 else values[0]
    if width == 1:
        return narrowed(k, k.pack(*values, *values), FORMAT)[0]         # elements of vectors are bits, not indices
    if ROUND_PAIR and FORMAT in PAIRS and width % 2 == 0:
        words = [k.round_pair(k.pack(*values[e:e + 2]), PAIRS[FORMAT]) for e in range(0, width, 2)]
        return k.reinterpret(k.pack(*words) if width > 2 else words[0], vec(KEPT, width))
    most = WIDEST // values[0].type.bytes
    parts = [narrowed(k, k.pack(*values[e:e + most]), FORMAT) for e in range(0, width, most)]
    while len(parts) > 1:
        parts = [k.shuffle(x, y, range(2*x.type.length)) for x, y in zip(parts[::2], parts[1::2])]
    return parts[0]


Loaded = Mapping[str, list[Value]]          # operands as they are in memory, by name: of each result, or one for all


@dataclass(frozen=True)
class Fused:
    """The epilogue of an m x n product. Beyond its edges, where nothing is stored, operands' last elements are read.

    VECTOR      elements that are loaded or stored at once: n is a multiple of it, of pairs twice as much
    FLOAT, INT  of the expression's floats and ints
    operands    where each begins, and its leading dimension
    others      where further results begin, their leading dimension and format
    """
    k: Kernel
    epilogue: Epilogue
    m: Value
    n: Value
    OUT: str
    VECTOR: int
    FLOAT: Type
    INT: Type
    ROUND_PAIR: bool
    operands: dict[str, tuple[Value, Value | None]]
    others: dict[int, tuple[Value, Value, str]]

    @classmethod
    def from_arguments(cls, k: Kernel, g: SimpleNamespace, EPILOGUE: str, OUT: str, VECTOR: int, SUMS: Type,
                       ROUND_PAIR: bool) -> Fused | None:
        """The epilogue of a kernel with the arguments g, by name; of a batch for the workgroup's matrix. ValueError for
        results that kernels do not leave."""
        if not EPILOGUE:
            return None
        epilogue = texts.epilogue(EPILOGUE)
        if epilogue.main is None or any(map(epilogue.axis, range(len(epilogue.results)))):
            raise ValueError(f"kernels for GPUs leave no reductions of rows or columns: {EPILOGUE}")
        count = 1 + epilogue.paired
        if VECTOR % count:
            raise ValueError(f"pairs of columns need a VECTOR_C of 2 or more, not {VECTOR}")

        operands = {x.name: (begin(k, g, x.parameter), getattr(g, f"ld_{x.parameter}", None))
                    for x in epilogue.arrays("c")}
        stored = {i: (begin(k, g, f"c{i}"), getattr(g, f"ld_c{i}"), epilogue.results[i]) for i in epilogue.others}
        rows = g.m if getattr(g, "offsets", None) is None else k.max(g.m, 1)        # which end at 0 in an empty group
        return cls(k, epilogue, rows, g.n // 2 if count == 2 else g.n, OUT, VECTOR // count,
                   f64 if SUMS in (f64, i64) or epilogue.reads_wide else f32,
                   i64 if SUMS == i64 or (SUMS == f64 and epilogue.state) or epilogue.reads_wide else i32, ROUND_PAIR,
                   operands, stored)

    @property
    def expression(self) -> Expression:
        """The epilogue's expression, as short as the formats of its results allow."""
        formats = {i: x[2] for i, x in self.others.items()}
        count = range(len(self.epilogue.results))
        return shortened(self.epilogue.expression, tuple(formats.get(i, self.OUT) for i in count))

    @property
    def COUNT(self) -> int:
        """Sums of a result, which come one after the other: of a pair of columns, or the fields of a state."""
        return len(self.epilogue.expression.sums)

    def column(self, column: Value) -> Value:
        """The column of the result that is computed from the sums from this column on."""
        return column // 2 if self.epilogue.paired else column

    def loaded(self, row: Value, column: Value, WIDTH: int, memo: dict[Any, list[Value]] | None = None) -> Loaded:
        """The operands of results in this row, of WIDTH sums from this column on. `memo`: what has been loaded of rows
        and columns that are the same values."""
        memo = {} if memo is None else memo
        for x in self.epilogue.reads:
            key = x.name, id(row)*x.by_row, id(column)*x.by_column
            if key not in memo:
                memo[key] = self._load(x, row, self.column(column), WIDTH // self.COUNT)
            memo[x.name] = memo[key]
        return {x.name: memo[x.name] for x in self.epilogue.reads}

    def _load(self, x: Aux, row: Value, column: Value, WIDTH: int) -> list[Value]:
        k, (pointer, ld), STEP = self.k, self.operands[x.name], min(self.VECTOR, WIDTH)
        if ld is not None:
            pointer = pointer + k.cast(k.min(row, self.m - 1), i64)*ld
        if x.place in ("scalar", "column"):
            return [k.load(pointer)]
        places = [k.min(column + first if first else column, self.n - STEP) for first in range(0, WIDTH, STEP)]
        return [k.load(pointer + at, vec(pointer.type.element, STEP)) for at in places]

    def _wide(self, x: Aux, vectors: list[Value]) -> list[Value]:
        T, numbers = self.INT if self.epilogue.kinds[x.name] == "int" else self.FLOAT, list[Value]()
        for vector in vectors:
            wide = vector if memory_type(x.format) == T else widened(self.k, vector, x.format, T)
            numbers += [wide[e] for e in range(wide.type.length)] if wide.type.length > 1 else [wide]
        return numbers

    def results(self, values: list[Value], row: Value, column: Value, inside: Value | None,
                loaded: Loaded | None = None) -> list[Value]:
        """What C gets for numbers next to each other in a row, the first of them in this column. Further results are
        stored, where they are `inside`. `loaded`: the operands, if they have been read."""
        k, expression = self.k, self.expression
        WIDTH = len(values) // self.COUNT
        values = [k.cast(x, self.FLOAT) if x.type.is_float else x for x in values]
        inputs = {name: values[e::self.COUNT] for e, name in enumerate(expression.sums)}
        loaded = self.loaded(row, column, len(values)) if loaded is None else loaded
        inputs |= {x.name: self._wide(x, loaded[x.name]) for x in self.epilogue.reads}
        if all(kind == "float" for _, kind in expression.parameters):
            columns = zip(*(recorded(k, expression, {name: x[e % len(x)] for name, x in inputs.items()}, self.FLOAT)
                          for e in range(WIDTH)))
            numbers = [list(column_values) for column_values in columns]
        else:                               # integers that are data: elements of vectors are bits, not indices
            LANES = max(WIDTH, 2)
            wide = {name: k.pack(*(x[e % len(x)] for e in range(LANES))) for name, x in inputs.items()}
            wide = {name: x if x.type.scalar.is_float else k.cast(x, vec(self.INT, LANES)) for name, x in wide.items()}
            numbers = [[result[e] for e in range(WIDTH)]
                       for result in recorded(k, expression, wide, self.FLOAT, self.INT)]
        for i, (pointer, ld, FORMAT) in self.others.items():
            at = pointer + k.cast(row, i64)*ld + self.column(column)
            k.store(at, rounded(k, self._ready(numbers[i], FORMAT), FORMAT, self.ROUND_PAIR), mask=inside)
        assert self.epilogue.main is not None
        return self._ready(numbers[self.epilogue.main], self.OUT)

    def _ready(self, numbers: list[Value], FORMAT: str) -> list[Value]:
        """Numbers in a type that is rounded to this format."""
        k, is_float, T = self.k, isinstance(FORMATS[FORMAT], Float), numbers[0].type
        if T.bits == 1:
            numbers = [k.select(x, k.constant(i32, 1), k.constant(i32, 0)) for x in numbers]
        if T.is_float and not is_float:
            raise ValueError(f"a result of an epilogue that is a float is not stored as {FORMAT}")
        if is_float and not T.is_float:
            numbers = [k.cast(x, self.FLOAT) for x in numbers]
        narrow = is_float and self.FLOAT == f64 and FORMATS[FORMAT].bits < 64
        return [k.cast(x, f32) for x in numbers] if narrow else numbers     # from which `rounded` goes on
