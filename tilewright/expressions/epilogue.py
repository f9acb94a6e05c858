"""`Epilogue`: what becomes of the finished sums of a product, as data: an expression, what it reads, what it leaves.

    $acc:float bias:float; add $acc bias; tanh %0; -> %1 | bias f32 row | f16

The expression's text, then each operand with its number format and its place, then the format of each result ("-" for
that of the problem's C). Problems, plans and caches hold this text.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.expressions.program import ACC, AXES, OWN, STATE, Expression, Line, Operand, Result, Written, parameter
from tilewright.expressions.tracing import trace
from tilewright.forks import cached_property

# Which elements of an operand an element of C meets: its only one, that of its column, of its row, or of its place.
PLACES = ("scalar", "row", "column", "full")
DEFAULT = "-"                   # a result in the format that C has without an epilogue


@dataclass(frozen=True)
class Read:
    """An operand of an expression."""
    name: str
    format: str
    place: str                  # of PLACES

    def __str__(self) -> str:
        return f"{self.name} {self.format} {self.place}"

    @property
    def parameter(self) -> str:
        """Of a GPU's kernel: its address; ld_ and stride_ before it name distances."""
        return parameter(self.name)


@dataclass(frozen=True)
class Epilogue(Written):
    """`expression` of finished sums, its first parameter, and operands; `results` are formats, in order."""
    expression: Expression
    operands: tuple[Read, ...]
    results: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        read = ", ".join(map(str, self.operands))
        return " | ".join((self.expression.text, read, " ".join(self.results)))

    def __str__(self) -> str:
        return self.text

    @classmethod
    def read(cls, text: str) -> Epilogue:
        """The epilogue with this text. ValueError for any other text."""
        expression, *rest = text.split(" | ")
        try:
            read, results = rest
            operands = tuple(Read(*part.split()) for part in read.split(", ") if part)
            found = cls(Expression.read(expression), operands, tuple(results.split()))
        except (ValueError, TypeError):
            raise ValueError(f"{text!r} is not the text of an epilogue") from None
        names = [name for name, _ in found.expression.parameters if name not in found.expression.sums]
        if (names != [x.name for x in operands] or len(found.results) != len(found.expression.results)
                or any(x.place not in PLACES or x.format not in formats.FORMATS for x in operands)):
            raise ValueError(f"{text!r} is not the text of an epilogue")
        return found

    @cached_property
    def nothing(self) -> bool:
        """Whether C are the sums as they are."""
        name, _ = self.expression.parameters[0]
        return len(self.expression.parameters) == 1 and self.expression.results == (Result(name),)

    @property
    def kept_by(self) -> str:
        """Of the text, whatever the name of the sums is: by what tuning results are kept."""
        named = self.paired or self.state > 0
        return self.digest if named else Epilogue(self.expression.unnamed, self.operands, self.results).digest

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Of the expression's parameters, by name."""
        return dict(self.expression.parameters)

    @property
    def kind(self) -> str:
        """Of the sums: "float" or "int"."""
        return self.expression.parameters[0][1]

    @cached_property
    def paired(self) -> bool:
        """Whether two neighbouring columns of the product become one of the results."""
        return self.expression.paired

    @cached_property
    def reads_wide(self) -> bool:
        """Whether operands need 64 bits: arrays do. A number by itself, as those of Python, is rounded to what sums
        are computed in."""
        return any(x.place != "scalar" and formats.FORMATS[x.format].bits == 64 for x in self.operands)

    @cached_property
    def state(self) -> int:
        """Fields of a state, of a reduction in a semiring, that the expression takes; 0: it takes sums."""
        return sum(name.startswith(STATE) for name, _ in self.expression.parameters)

    @cached_property
    def main(self) -> int | None:
        """Which result is C: the first that is not a row's or a column's; None if all are."""
        return next((i for i, x in enumerate(self.expression.results) if not x.reduced), None)

    def axis(self, number: int) -> int:
        """Along which this result is reduced, -1 or -2; 0: along none."""
        return AXES.get(self.expression.results[number].reduced.partition("_")[0], 0)

    def shapes(self, *shape: int) -> tuple[tuple[int, ...], ...]:
        """Of the results of a product of shape [..., m, n]; a reduced one lacks the axis along which it is reduced."""
        *batch, m, n = shape
        n //= 1 + self.paired
        return tuple({0: (*batch, m, n), -1: (*batch, m), -2: (*batch, n)}[self.axis(i)]
                     for i in range(len(self.results)))

    def evaluate(self, product: Any, operands: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results of a product [..., m, n] and operands that broadcast to them, by NumPy in float64."""
        shape = product[..., ::1 + self.paired].shape
        first = self.expression.sums[0].removesuffix(".even")
        given = {x.name: np.broadcast_to(operands[x.name], shape) for x in self.operands}
        found = self.expression.evaluate({first: product, **given})
        return tuple(np.broadcast_to(x, wanted) for x, wanted in zip(found, self.shapes(*product.shape)))

    def bytes(self, m: int, n: int) -> int:
        """What is read and written beside C for an m x n product."""
        columns = n // 2 if self.paired else n
        elements = {"scalar": 1, "row": columns, "column": m, "full": m * columns}
        read = sum(elements[x.place] * formats.FORMATS[x.format].bits for x in self.operands)
        more = [formats.FORMATS[kind].bits * m * columns
                for i, (kind, x) in enumerate(zip(self.results, self.expression.results))
                if i != self.main and not x.reduced and kind != DEFAULT]
        return (read + sum(more)) // 8


def kind_of(format: str) -> str:
    """The kind of an expression's number that a format's numbers are: "float", "int" or "bool"."""
    if format == "bool":
        return "bool"
    return "int" if isinstance(formats.FORMATS[format], formats.Integer) else "float"


def epilogue(function: Callable[..., Any], acc: str = "float", /, **operands: str) -> Epilogue:
    """A function as an epilogue of matmul, gemm and Gemm, called once, here, instead of in every call.

    function    as matmul's epilogue=: its first parameter is alpha * sums + beta * C, the others are operands by name
    acc         the kind of the sums: "float", or "int" where integers are multiplied
    operands    for each of the others where its elements are, with a format before that ("f32" if there is none):
                bias="row", scale="bf16 column", residual="f16 full", factor="scalar". matmul and gemm take these from
                the arrays that they are given.

    TypeError for operands that the function does not have, or has not been given, and for what it may not do
    (TracingError, with the line). ValueError for places and formats that there are not.
    """
    if acc not in ("float", "int"):
        raise ValueError(f'acc must be "float" or "int", not {acc!r}')
    read = []
    for name, words in operands.items():
        *kind, place = words.split() if isinstance(words, str) and words else ("",)
        if place not in PLACES or len(kind) > 1:
            raise ValueError(f"{name} must be one of {', '.join(PLACES)}, with a number format before it or without, "
                             f"not {words!r}")
        read.append(Read(name, formats.get(kind[0] if kind else "f32", name).name, place))
    expression = trace(function, {ACC: acc, **{x.name: kind_of(x.format) for x in read}})
    return Epilogue(expression, tuple(read), (DEFAULT,) * len(expression.results))


# ---- alpha, beta and C as operands, for targets whose loops know no others than the expression's

ALPHA, BETA, ADDED = OWN + "alpha", OWN + "beta", OWN + "c"


def with_scales(x: Expression, kind: str, each: tuple[tuple[str, ...], ...]) -> Expression:
    """The expression of sums of this kind that are brought to floats first and multiplied by operands, one after the
    other: `each` has their names for every one of x.sums. x takes floats."""
    lines, now = list[Line](), dict[str, Operand]()
    for sums, names in zip(x.sums, each, strict=True):
        found: Operand = sums
        if kind != "float":
            lines.append(Line("float", (found,)))
            found = len(lines) - 1
        for name in names:
            lines.append(Line("mul", (found, name)))
            found = len(lines) - 1
        now[sums] = found
    parameters = [(name, kind if name in x.sums else of) for name, of in x.parameters]
    more = dict.fromkeys(name for names in each for name in names)
    return _after(lines, now, x, (*parameters, *((name, "float") for name in more)))


def _after(lines: list[Line], now: dict[str, Operand], x: Expression, parameters: tuple[tuple[str, str], ...]
           ) -> Expression:
    """x behind these lines, whose results `now` stand for its sums."""
    first = len(lines)

    def moved(operand: Operand) -> Operand:
        return operand + first if isinstance(operand, int) else now.get(operand, operand) if isinstance(
            operand, str) else operand
    lines += [Line(line.operation, tuple(map(moved, line.operands))) for line in x.lines]
    return Expression(parameters, tuple(lines),
                      tuple(Result(moved(result.operand), result.reduced) for result in x.results))


def with_scalars(x: Expression, alpha: bool, beta: bool) -> Expression:
    """The expression of sums that are multiplied by an operand ALPHA first, and to which BETA times ADDED is added
    then; the numbers of pairs are in ADDED0 and ADDED1."""
    if not (alpha or beta):
        return x
    kind, lines, now = x.parameters[0][1], list[Line](), dict[str, Operand]()
    added = [f"{ADDED}{half}" for half in range(2)] if x.paired else [ADDED]
    for name, c in zip(x.sums, added, strict=True):
        found: Operand = name
        if alpha:
            lines.append(Line("mul", (found, ALPHA)))
            found = len(lines) - 1
        if beta:
            lines.append(Line("fma", (BETA, c, found)))
            found = len(lines) - 1
        now[name] = found
    more = [ALPHA] * alpha + ([BETA, *added] if beta else [])
    return _after(lines, now, x, (*x.parameters, *((name, kind) for name in more)))
