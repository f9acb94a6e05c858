"""`Function`: a traced expression with the arrays that it reads and the formats of its numbers, as data. An `Epilogue`
is one of finished sums, a `Prologue` one of an operand's elements.

    $acc:float bias:float; add $acc bias; tanh %0; -> %1 | bias f32 row | f16
    $x:int s:float; float $x; mul %0 s; -> %1 | s f32 full/128 | i8 bf16

The expression's text; then each array with its number format and its place; then the format of the elements, of a
prologue, and that of each result ("-" for the format of the problem's C). Problems, plans and caches hold this text.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright import formats
from tilewright.expressions import DEFAULT, HALVES
from tilewright.expressions.program import ACC, AXES, ELEMENT, STATE, Expression, Result, Written, parameter
from tilewright.expressions.tracing import trace
from tilewright.forks import cached_property

if TYPE_CHECKING:
    from typing_extensions import Self

# Which elements of an array an element of the matrix meets: its only one, that of its column, of its row, or of its
# place. The matrix is C [m, n] of an epilogue, A [m, k] or B [k, n] of a prologue.
PLACES = ("scalar", "row", "column", "full")
# In which formats a prologue's numbers are multiplied, by their kind.
MULTIPLIED = {"float": ("f32", "bf16", "f16", "f64"), "int": ("i32", "i64")}


@dataclass(frozen=True)
class Aux:
    """An array, or a number, beside the elements of a matrix: what a function reads, or a kernel beside A, B and C.

    A GPU's kernel takes its address as `parameter`, and how many elements lie between its numbers by this name after
    "ld_", from one row of A or C, or column of B, to the next; "k_", from one group of steps of k to the next; and
    "stride_", from one matrix of a batch to the next.
    """
    name: str
    format: str
    place: str                  # of PLACES
    group: int = 1              # steps of k that share a number, beside A or B
    role: str = ""              # beside which matrix a kernel has it: "a", "b" or "c"
    parameter: str = ""
    written: bool = False       # a result

    def __str__(self) -> str:
        return f"{self.name} {self.format} {self.place}" + f"/{self.group}"*(self.group > 1)

    @classmethod
    def read(cls, text: str) -> Aux:
        name, format, where = text.split()
        place, _, group = where.partition("/")
        return cls(name, format, place, int(group or 1))

    def extents(self, rows: int, cols: int, by_rows: bool = True) -> tuple[int, int]:
        """Its shape beside a matrix of so many rows and columns; `by_rows`: k is along the rows, as in A."""
        rows, cols = (rows, -(-cols // self.group)) if by_rows else (-(-rows // self.group), cols)
        return rows if self.by_row else 1, cols if self.by_column else 1

    @property
    def by_row(self) -> bool:
        """Whether it has a number for each row."""
        return self.place in ("column", "full")

    @property
    def by_column(self) -> bool:
        """Whether it has a number for each column."""
        return self.place in ("row", "full")

    @property
    def across_k(self) -> bool:
        """Whether there is a number for each row of A or C, or column of B."""
        return self.by_column if self.role == "b" else self.by_row

    @property
    def along_k(self) -> bool:
        """Whether there is a number for each step of k, or group of steps."""
        return self.role in ("a", "b") and (self.by_row if self.role == "b" else self.by_column)

    def strides(self, x: Any) -> dict[str, int]:
        """The distances between the numbers of an array [..., rows, columns], by the names of parameters; 0 along an
        axis of 1, which has one number for all."""
        rows, columns = (x.strides[axis] // x.itemsize if x.shape[axis] > 1 else 0 for axis in (-2, -1))
        strides = {"c": {"ld": rows}, "a": {"ld": rows, "k": columns}, "b": {"ld": columns, "k": rows}}[self.role]
        strides |= {"stride": x.strides[0] // x.itemsize} if x.ndim > 2 else {}
        return {f"{kind}_{self.parameter}": apart for kind, apart in strides.items()}


@dataclass(frozen=True)
class Function(Written):
    """`expression` of one or more numbers of a matrix, its first parameters, and of `reads`, the others, in this order.
    `results` are the formats of its results, `source` that of the elements it takes, if it says so."""
    expression: Expression
    reads: tuple[Aux, ...]
    results: tuple[str, ...]
    source: str = ""
    WHAT: ClassVar[str] = "a function"

    @cached_property
    def text(self) -> str:
        last = " ".join((*[self.source] * bool(self.source), *self.results))
        return " | ".join((self.expression.text, ", ".join(map(str, self.reads)), last))

    @classmethod
    def read(cls, text: str) -> Self:
        """The function with this text. ValueError for any other text."""
        try:
            first, reads, last = text.split(" | ")
            expression, words = Expression.read(first), last.split()
            count = len(expression.results)
            parsed = cls(expression, tuple(Aux.read(part) for part in reads.split(", ") if part), tuple(words[-count:]),
                        *words[:-count])
            if (parsed.text == text and len(parsed.results) == count and parsed.names == [x.name for x in parsed.reads]
                    and all(x.place in PLACES and x.format in formats.FORMATS for x in parsed.reads) and parsed._valid):
                return parsed
        except (ValueError, TypeError):
            pass
        raise ValueError(f"{text!r} is not the text of {cls.WHAT}")

    @property
    def _valid(self) -> bool:
        """Whether formats and places are such as this kind of function has."""
        return True

    @property
    def names(self) -> list[str]:
        """Names of the parameters that are arrays."""
        return [name for name, _ in self.expression.parameters[len(self.expression.sums):]]

    def arrays(self, role: str) -> tuple[Aux, ...]:
        """What it reads, as a kernel takes it, of this operand's prologue, or "c": of an epilogue."""
        prefix = "" if role == "c" else f"of_{role}_"
        return tuple(replace(x, role=role, parameter=prefix + parameter(x.name)) for x in self.reads)

    @cached_property
    def cache_key(self) -> str:
        """The digest of the text, whatever the name of the first parameter is: by what tuning results are kept."""
        named = self.expression.paired or self.expression.sums[0].startswith(STATE)
        return self.digest if named else replace(self, expression=self.expression.unnamed).digest

    def bytes_read(self, rows: int, cols: int, by_rows: bool = True) -> int:
        """What is read beside the elements of a matrix."""
        return sum(prod(x.extents(rows, cols, by_rows)) * formats.FORMATS[x.format].bits for x in self.reads) // 8


class Epilogue(Function):
    """What becomes of the finished sums of a product."""
    WHAT = "an epilogue"

    @property
    def _valid(self) -> bool:
        return not self.source and all(x.group == 1 for x in self.reads)

    @cached_property
    def nothing(self) -> bool:
        """Whether C are the sums as they are."""
        name, _ = self.expression.parameters[0]
        return len(self.expression.parameters) == 1 and self.expression.results == (Result(name),)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kinds of the expression's parameters, by name."""
        return dict(self.expression.parameters)

    @property
    def kind(self) -> str:
        """The kind of the sums: "float" or "int"."""
        return self.expression.parameters[0][1]

    @cached_property
    def paired(self) -> bool:
        """Whether two neighbouring columns of the product become one of the results."""
        return self.expression.paired

    @cached_property
    def reads_wide(self) -> bool:
        """Whether operands need 64 bits: arrays do. A number by itself, as those of Python, is rounded to what sums
        are computed in."""
        return any(x.place != "scalar" and formats.FORMATS[x.format].bits == 64 for x in self.reads)

    @cached_property
    def state(self) -> int:
        """Fields of a state, of a reduction in a semiring, that the expression takes; 0: it takes sums."""
        return sum(name.startswith(STATE) for name, _ in self.expression.parameters)

    @cached_property
    def main(self) -> int | None:
        """Which result is C: the first that is not a row's or a column's; None if all are."""
        return next((i for i, x in enumerate(self.expression.results) if not x.reduced), None)

    @property
    def others(self) -> list[int]:
        """Results that are stored beside C, in order."""
        return [i for i in range(len(self.results)) if i != self.main and not self.axis(i)]

    def axis(self, number: int) -> int:
        """Along which this result is reduced, -1 or -2; 0: along none."""
        return AXES.get(self.expression.results[number].reduced.partition("_")[0], 0)

    def shapes(self, *shape: int) -> tuple[tuple[int, ...], ...]:
        """The results' shapes, for a product of shape [..., m, n]; a reduced one lacks its axis."""
        *batch, m, n = shape
        n //= 1 + self.paired
        return tuple({0: (*batch, m, n), -1: (*batch, m), -2: (*batch, n)}[self.axis(i)]
                     for i in range(len(self.results)))

    def evaluate(self, product: Any, operands: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results of a product [..., m, n] and operands that broadcast to them, by NumPy in float64."""
        shape = product[..., ::1 + self.paired].shape
        first = self.expression.sums[0].removesuffix(".even")
        given = {x.name: np.broadcast_to(operands[x.name], shape) for x in self.reads}
        values = self.expression.evaluate({first: product, **given})
        return tuple(np.broadcast_to(x, wanted) for x, wanted in zip(values, self.shapes(*product.shape)))

    def bytes(self, m: int, n: int) -> int:
        """What is read and written beside C for an m x n product."""
        n //= 1 + self.paired
        more = [formats.FORMATS[kind].bits * m * n
                for i, (kind, x) in enumerate(zip(self.results, self.expression.results))
                if i != self.main and not x.reduced and kind != DEFAULT]
        return self.bytes_read(m, n) + sum(more) // 8


class Prologue(Function):
    """What an operand's elements become on their way to the product: numbers that are rounded to `result`."""
    WHAT = "a prologue"

    @property
    def _valid(self) -> bool:
        return (len(self.expression.results) == len(self.expression.sums) == 1 and self.element in formats.FORMATS
                and self.result in MULTIPLIED.get(self.kind, ()))

    @property
    def result(self) -> str:
        """The format in which its numbers are multiplied."""
        return self.results[0]

    @property
    def element(self) -> str:
        """The format of an element by itself."""
        return self.source.removesuffix(HALVES)

    @property
    def kind(self) -> str:
        """The kind of its numbers: "float" or "int"."""
        return self.expression.kinds[0]

    def evaluate(self, x: Any, operands: Mapping[str, Any], axis: int) -> Any:
        """Its numbers for elements x by NumPy in float64, not rounded; `axis` is that of k, -1 of A and -2 of B."""
        given = {}
        for aux in self.reads:
            y = np.asarray(operands[aux.name])
            given[aux.name] = np.take(y, np.arange(x.shape[axis]) // aux.group, axis) if aux.group > 1 else y
        value, = self.expression.evaluate({self.expression.parameters[0][0]: x, **given})
        return np.broadcast_to(value, x.shape)


def kind_of(format: str) -> str:
    """The kind of an expression's number that a format's numbers are: "float", "int" or "bool"."""
    if format == "bool":
        return "bool"
    return "int" if isinstance(formats.FORMATS[format], formats.Integer) else "float"


def epilogue(function: Callable[..., Any], acc: str = "float", /, **operands: str) -> Epilogue:
    """A function as an epilogue for matmul, gemm and Gemm, traced once, here, instead of in every call.

    function    as matmul's epilogue=: its first parameter is alpha * sums + beta * C, the others are operands by name
    acc         the kind of the sums: "float", or "int" where integers are multiplied
    operands    for each other parameter the part of the result that it covers, "row", "column", "full" or "scalar",
                with its format before it unless that is f32: bias="row", scale="bf16 column", residual="f16 full",
                factor="scalar". matmul and gemm use the parts and formats of the arrays that they get.

    TypeError for operands that the function does not have, or that are missing, and for operations that it may not use
    (TracingError, with the line). ValueError for other parts and formats.
    """
    if acc not in ("float", "int"):
        raise ValueError(f'acc must be "float" or "int", not {acc!r}')
    reads = _declared(operands, "")
    expression = trace(function, {ACC: acc, **{x.name: kind_of(x.format) for x in reads}})
    return Epilogue(expression, reads, (DEFAULT,) * len(expression.results))


def prologue(function: Callable[..., Any], source: Any, result: Any = "f32", /, **operands: str) -> Prologue:
    """A function as a prologue for matmul, gemm and Gemm, traced once, here, instead of in every call.

    function    as matmul's prologue_a=: its first parameter is an element of the operand, the others are operands by
                name
    source      the number format of the operand
    result      the format to which its numbers are rounded, and in which they are multiplied: "f32", "bf16", "f16" or
                "f64"; "i32" or "i64" if the function gives integers
    operands    for each other parameter the part of A [m, k] or B [k, n] that it covers, "row", "column", "full" or
                "scalar", with its format before it unless that is f32, and the steps of k that share a number after it:
                scale="column", s="f32 full/128", zero="i8 row", factor="scalar"

    TypeError for operands that the function does not have, or that are missing, for operations that it may not use
    (TracingError, with the line) and for results that it may not have. ValueError for other parts and formats.
    """
    element = formats.get(source, "source").name
    reads = _declared(operands, "and /128 after it for blocks of 128 steps of k, ")
    kinds = {ELEMENT: kind_of(element), **{x.name: kind_of(x.format) for x in reads}}
    return checked_prologue(trace(function, kinds, "prologue"), reads, element, formats.get(result, "result").name,
                            "function")


def _declared(operands: Mapping[str, str], groups: str) -> tuple[Aux, ...]:
    """Arrays as users write them, "bf16 row" by name; `groups`: what an error says of groups of k, "" where none are
    allowed."""
    reads = []
    for name, words in operands.items():
        *kind, where = words.split() if isinstance(words, str) and words else ("",)
        place, slash, group = where.partition("/")
        if place not in PLACES or len(kind) > 1 or (slash and not (groups and group.isdigit() and int(group) > 1)):
            raise ValueError(f"{name} must be one of {', '.join(PLACES)}, with a number format before it or without, "
                             f"{groups}not {words!r}")
        reads.append(Aux(name, formats.get(kind[0] if kind else "f32", name).name, place, int(group or 1)))
    return tuple(reads)


def checked_prologue(expression: Expression, reads: tuple[Aux, ...], source: str, result: str, name: str) -> Prologue:
    """TypeError for an expression that is none of a prologue."""
    kind = expression.kinds[0]
    if len(expression.results) != 1 or expression.results[0].reduced or expression.paired or kind == "bool":
        raise TypeError(f"{name} must return one number for each element, which is neither a comparison nor a "
                        "reduction, and take no pairs")
    if result not in MULTIPLIED[kind]:
        raise TypeError(f"{name} gives numbers that are {kind}, which are multiplied in {', '.join(MULTIPLIED[kind])}, "
                        f"not in {result}")
    return Prologue(expression, reads, (result,), source)
