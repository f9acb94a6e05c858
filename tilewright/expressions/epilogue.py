"""`Epilogue`: what becomes of a product's sums, as data: an expression, the operands that it reads, what it gives.

    each | bias:n:bf16 res:mn:f32 | bf16 | acc:float bias:float res:float; add acc bias; add %0 res; -> %1

First whether each sum has results of its own or a pair of them (columns 2j and 2j + 1 of the product) has; then of each
operand its name, the axes of the result along which it varies, and its number format; then the formats of the results;
then the expression. Its first parameters are the sums, alpha * A @ B + beta * C, which it takes in the format in which
products are added up; the others are the operands in their order.
"""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.expressions.program import AXES, Expression

VARIES = ("", "m", "n", "mn")       # a number, one for each row, for each column, for each element


class Input(NamedTuple):
    """An operand of an epilogue: along which axes of the result it varies, and its number format in memory."""
    name: str
    axes: str
    format: str


@dataclass(frozen=True)
class Epilogue:
    """`formats` are those of all results. The first result is not reduced: it is the product's, and the format of its
    C. ValueError for inputs and formats that are not those of the expression."""
    expression: Expression
    inputs: tuple[Input, ...] = ()
    formats: tuple[str, ...] = ("f32",)
    pairs: bool = False

    def __post_init__(self) -> None:
        names = tuple(name for name, _ in self.expression.parameters[self.sums:])
        if names != tuple(x.name for x in self.inputs) or any(x.axes not in VARIES for x in self.inputs):
            raise ValueError(f"an epilogue of {', '.join(names) or 'no operands'} has other inputs: {self.inputs}")
        if len(self.formats) != len(self.expression.results) or self.expression.results[0].reduced:
            raise ValueError(f"an epilogue has a format for each of its {len(self.expression.results)} results, of "
                             f"which the first is not reduced, not {self.formats}")

    @property
    def sums(self) -> int:
        """How many of the product's elements a result is computed from."""
        return 2 if self.pairs else 1

    @property
    def kind(self) -> str:
        """Of the sums: "float" or "int"."""
        return self.expression.parameters[0][1]

    @property
    def text(self) -> str:
        inputs = " ".join(":".join(x) for x in self.inputs)
        return " | ".join(("pairs" if self.pairs else "each", inputs, " ".join(self.formats), self.expression.text))

    def __str__(self) -> str:
        return self.text

    @property
    def digest(self) -> str:
        """Of the text, for names."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    @classmethod
    def read(cls, text: str) -> Epilogue:
        """The epilogue with this text. ValueError for any other text."""
        try:
            how, inputs, formats, expression = text.split(" | ", 3)
            given = tuple(Input(*word.split(":")) for word in inputs.split())
            found = cls(Expression.read(expression), given, tuple(formats.split()), how == "pairs")
            if found.text == text:
                return found
        except (ValueError, TypeError):
            pass
        raise ValueError(f"{text!r} is not the text of an epilogue")

    def shapes(self, *shape: int) -> tuple[tuple[int, ...], ...]:
        """Of the results of a product of shape [..., m, n]; a reduced one has no axis along which it is reduced."""
        *batch, m, n = shape
        n //= self.sums
        return tuple((*batch, m) if axis == -1 else (*batch, n) if axis == -2 else (*batch, m, n)
                     for axis in map(self.axis, range(len(self.formats))))

    def axis(self, number: int) -> int:
        """Along which this result is reduced, -1 or -2; 0: along none."""
        return AXES.get(self.expression.results[number].reduced.partition("_")[0], 0)

    def evaluate(self, product: Any, operands: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results of a product [..., m, n] and operands that broadcast to them, by NumPy in float64."""
        first = [name for name, _ in self.expression.parameters[:self.sums]]
        sums = dict(zip(first, (product[..., e::self.sums] for e in range(self.sums))))
        shape = product[..., ::self.sums].shape
        given = {x.name: np.broadcast_to(operands[x.name], shape) for x in self.inputs}
        found = self.expression.evaluate(sums | given)
        return tuple(np.broadcast_to(x, wanted) for x, wanted in zip(found, self.shapes(*product.shape)))
