"""`Prologue`: what an operand's elements become on their way to the product, as data: an expression, what it reads, and
in which format its numbers are multiplied.

    $x:int s:float; float $x; mul %0 s; -> %1 | s f32 full/128 | i8 bf16

The expression's text, then each further operand with its number format and its place, then the format of the elements
and that in which they are multiplied, to which the function's numbers are rounded. Problems, plans and caches hold this
text.

Places are those of a matrix as it is multiplied, A [m, k] or B [k, n]: a number for all, a row (for each of its
columns), a column (for each of its rows), or one for each element; "/128" after it: for blocks of 128 steps of k.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.expressions.epilogue import PLACES, kind_of
from tilewright.expressions.program import ELEMENT, Expression, Written, parameter
from tilewright.expressions.tracing import trace
from tilewright.forks import cached_property

# In which formats a function's numbers are multiplied, by their kind.
HALVES = "x2"           # after i4, u4 or e2m1: two elements of 4 bits to a byte, along what is contiguous
MULTIPLIED = {"float": ("f32", "bf16", "f16", "f64"), "int": ("i32", "i64")}


@dataclass(frozen=True)
class Beside:
    """What a prologue reads beside the operand's elements."""
    name: str
    format: str
    place: str                  # of PLACES
    group: int = 1              # steps of k that share a number

    def __str__(self) -> str:
        return f"{self.name} {self.format} {self.place}" + f"/{self.group}"*(self.group > 1)

    @classmethod
    def read(cls, text: str) -> Beside:
        name, format, where = text.split()
        place, _, group = where.partition("/")
        return cls(name, format, place, int(group or 1))

    def parameter(self, role: str) -> str:
        """The name of a GPU kernel's parameter for this operand of the prologue of "a" or "b": its address; with
        i_ or k_ in front its strides."""
        return f"of_{role}_{parameter(self.name)}"

    def extents(self, rows: int, cols: int, by_rows: bool) -> tuple[int, int]:
        """Its shape beside a matrix of so many rows and columns; `by_rows`: k is along the rows, as in A."""
        rows, cols = (rows, -(-cols // self.group)) if by_rows else (-(-rows // self.group), cols)
        return rows if self.place in ("column", "full") else 1, cols if self.place in ("row", "full") else 1


@dataclass(frozen=True)
class Prologue(Written):
    """`expression` of an operand's elements, its first parameter, which are of `source`, and of what is beside them;
    one result, rounded to `result`."""
    expression: Expression
    beside: tuple[Beside, ...]
    source: str
    result: str

    @cached_property
    def text(self) -> str:
        return " | ".join((self.expression.text, ", ".join(map(str, self.beside)), f"{self.source} {self.result}"))

    def __str__(self) -> str:
        return self.text

    @classmethod
    def read(cls, text: str) -> Prologue:
        """The prologue with this text. ValueError for any other text."""
        try:
            expression, read, last = text.split(" | ")
            source, result = last.split()
            beside = tuple(Beside.read(part) for part in read.split(", ") if part)
            found = cls(Expression.read(expression), beside, source, result)
            names = [name for name, _ in found.expression.parameters[1:]]
            if (names == [x.name for x in beside] and len(found.expression.results) == 1 and found.text == text
                    and all(x.place in PLACES and x.format in formats.FORMATS for x in beside)
                    and source.removesuffix(HALVES) in formats.FORMATS and result in MULTIPLIED.get(found.kind, ())):
                return found
        except (ValueError, TypeError):
            pass
        raise ValueError(f"{text!r} is not the text of a prologue")

    @property
    def element(self) -> str:
        """The format of an element by itself."""
        return self.source.removesuffix(HALVES)

    @property
    def kept_by(self) -> str:
        """Of the text, whatever the name of an element is: by what tuning results are kept."""
        return Prologue(self.expression.unnamed, self.beside, self.source, self.result).digest

    @property
    def kind(self) -> str:
        """Of its numbers: "float" or "int"."""
        return self.expression.kinds[0]

    def evaluate(self, x: Any, operands: Mapping[str, Any], axis: int) -> Any:
        """Its numbers for elements x by NumPy in float64, not rounded; `axis` is that of k, -1 of A and -2 of B."""
        given = {}
        for each in self.beside:
            y = np.asarray(operands[each.name])
            given[each.name] = spread(y, x.shape[axis], each.group, axis) if each.group > 1 else y
        found, = self.expression.evaluate({self.expression.parameters[0][0]: x, **given})
        return np.broadcast_to(found, x.shape)

    def bytes(self, rows: int, cols: int, by_rows: bool) -> int:
        """What is read beside the elements of a matrix."""
        bits = sum(np.prod(x.extents(rows, cols, by_rows)) * formats.FORMATS[x.format].bits for x in self.beside)
        return int(bits) // 8


def spread(x: Any, k: int, group: int, axis: int) -> Any:
    """Numbers of blocks along an axis, once for each of k steps."""
    return np.take(x, np.arange(k) // group, axis)


def prologue(function: Callable[..., Any], source: Any, result: Any = "f32", /, **operands: str) -> Prologue:
    """A function as a prologue of matmul, gemm and Gemm, called once, here, instead of in every call.

    function    as matmul's prologue_a=: its first parameter is an element of the operand, the others are operands by
                name
    source      the number format of the operand
    result      that in which its numbers are multiplied, and to which they are rounded: "f32", "bf16", "f16" or "f64";
                of a function that gives integers "i32" or "i64"
    operands    for each of the others where its numbers are, beside A [m, k] or B [k, n], with a format before that
                ("f32" if there is none): scale="column", s="f32 full/128" (for blocks of 128 steps of k),
                zero="i8 row", factor="scalar"

    TypeError for operands that the function does not have, or has not been given, for what it may not do (TracingError,
    with the line) and may not return. ValueError for places and formats that there are not.
    """
    kept, read = formats.get(source, "source").name, []
    for name, words in operands.items():
        *kind, where = words.split() if isinstance(words, str) and words else ("",)
        place, slash, group = where.partition("/")
        if place not in PLACES or len(kind) > 1 or (slash and not (group.isdigit() and int(group) > 1)):
            raise ValueError(f"{name} must be one of {', '.join(PLACES)}, with a number format before it or without, "
                             f"and /128 after it for blocks of 128 steps of k, not {words!r}")
        read.append(Beside(name, formats.get(kind[0] if kind else "f32", name).name, place, int(group or 1)))
    kinds = {ELEMENT: kind_of(kept), **{x.name: kind_of(x.format) for x in read}}
    return made(trace(function, kinds, "prologue"), tuple(read), kept, formats.get(result, "result").name, "function")


def made(expression: Expression, beside: tuple[Beside, ...], source: str, result: str, name: str) -> Prologue:
    """TypeError for an expression that is none of a prologue."""
    kind = expression.kinds[0]
    if len(expression.results) != 1 or expression.results[0].reduced or expression.paired or kind == "bool":
        raise TypeError(f"{name} must return one number for each element, which is neither a comparison nor a "
                        "reduction, and take no pairs")
    if result not in MULTIPLIED[kind]:
        raise TypeError(f"{name} gives numbers that are {kind}, which are multiplied in {', '.join(MULTIPLIED[kind])}, "
                        f"not in {result}")
    return Prologue(expression, beside, source, result)
