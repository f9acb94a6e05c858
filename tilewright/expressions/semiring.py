"""`Semiring`: what stands for multiplication and addition in a product, as data: C[i, j] = reduce over p of
f(A[i, p], B[p, j]).

    sum | a:float b:float; sub a b; mul %0 %0; -> %1

f is any traced function of two numbers, and its values are reduced by a `Fold` (reductions.py); that f distributes over
it, as in a semiring proper, is not needed. Problems, plans and caches hold the text; "" is multiplication and addition.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.expressions.program import Expression, Number, Written
from tilewright.expressions.reductions import Fold, Reduction, named, traced
from tilewright.expressions.tracing import Symbol, cast, retraced, trace
from tilewright.forks import cached_property

FROM_MEMORY = {"add", "mul", "sub", "and", "or", "xor"}     # of which an operand, of `sub` the last, may be in memory


@dataclass(frozen=True)
class Semiring(Written):
    """`reduce`: a Fold's text; `expression`: f, of two parameters of one kind, with one result of that kind."""
    reduce: str
    expression: Expression

    @cached_property
    def text(self) -> str:
        return f"{self.reduce} | {self.expression.text}"

    @classmethod
    def read(cls, text: str) -> Semiring:
        """The semiring with this text. ValueError for any other text."""
        reduce, _, rest = text.partition(" | ")
        try:
            expression = Expression.read(rest)
            kinds = {kind for _, kind in expression.parameters}
            if len(expression.parameters) == 2 and len(kinds) == 1 and [x.reduced for x in expression.results] == [""]:
                named(reduce, kinds.pop())
                return cls(reduce, expression)
        except ValueError:
            pass
        raise ValueError(f"{text!r} is not the text of a semiring")

    @property
    def kind(self) -> str:
        """The kind of the terms: "float" or "int"."""
        return self.expression.parameters[0][1]

    @cached_property
    def fold(self) -> Fold:
        return named(self.reduce, self.kind)

    @property
    def state(self) -> int:
        """Fields of a state that is kept until an epilogue makes results of it; 0: the result itself is kept."""
        return 0 if self.fold.plain else len(self.fold.fields)

    @property
    def swapped(self) -> Semiring:
        """The semiring of C^T = B^T A^T."""
        return Semiring(self.reduce, replace(self.expression, parameters=self.expression.parameters[::-1]))

    def first(self, bits: int) -> tuple[Number, ...]:
        """The state before the first term, for terms of so many bits."""
        return self.fold.identity(self.kind, bits)

    @cached_property
    def step(self) -> Expression:
        """The state with one more term, as an expression of the factors `left` and `right`, whatever their names, of
        the state s0, s1 ... and of the index p."""
        first, second = (name for name, _ in self.expression.parameters)
        fields = {f"s{i}": kind for i, kind in enumerate(self.fold.fields)}

        def step(left: Any, right: Any, **state: Any) -> Any:
            term, = retraced(self.expression, {first: left, second: right})
            return tuple(retraced(self.fold.step, {**state, "term": term}))
        return trace(step, {"left": self.kind, "right": self.kind, **fields, "p": "int"}, positional=2)

    @cached_property
    def left_last(self) -> Expression | None:
        """`step` with `left` where an instruction may take it from memory: it occurs once, in a sum or a product, or
        subtracted. x - y becomes y - x where nothing but its square or its size counts. None if there is no such."""
        lines, results = list(self.step.lines), [x.operand for x in self.step.results]
        uses = [(i, line) for i, line in enumerate(lines) for x in line.operands if x == "left"]
        if len(uses) != 1 or "left" in results or uses[0][1].operation not in FROM_MEMORY:
            return None
        (i, line), = uses
        if line.operation == "sub" and line.operands[0] == "left":
            even = [x.operands == (i,) if x.operation == "abs" else x.operands[:2] == (i, i) and x.operands[2:] != (i,)
                    and x.operation in ("mul", "fma") for x in lines if i in x.operands]
            if i in results or not all(even):
                return None
            lines[i] = replace(line, operands=line.operands[::-1])
        return replace(self.step, lines=tuple(lines))

    @property
    def operations(self) -> int:
        """The cost of a term, in multiply-adds."""
        return max(self.step.flops, 1)

    def evaluate(self, a: Any, b: Any) -> Any:
        """The result of a [..., m, k] and b [..., k, n] by NumPy, or a tuple of results, of floats in float64, of ints
        as kernels compute them, in int32 or int64, with all terms at once. min and max leave out NaNs, as in kernels.
        """
        integer = np.int64 if max(np.asarray(x).itemsize for x in (a, b)) == 8 else np.int32
        a, b = (np.asarray(x, np.float64 if self.kind == "float" else integer) for x in (a, b))
        a, b = a[..., :, None, :], np.swapaxes(b, -1, -2)[..., None, :, :]
        first, second = (name for name, _ in self.expression.parameters)
        term, = self.expression.evaluate({first: a, second: b})
        terms = np.broadcast_to(term, np.broadcast_shapes(a.shape, b.shape))
        folded = self.fold.evaluate(terms)
        return folded if self.kind == "float" or isinstance(folded, tuple) else folded.astype(integer)


def semiring(function: Callable[..., Any], reduce: str | Reduction = "sum", kind: str = "float") -> Semiring:
    """The arithmetic of tilewright.contract for a problem, `tilewright.Gemm(m, n, k, semiring=...)`: a function of two
    numbers, called once, in place of the multiplication, and a reduction in place of the addition. `kind`: "float", or
    "int" if both operands are integers. Conditions count as 0 and 1.

    ValueError for an unknown reduction; TypeError for a function with other parameters or operations that it may not
    use (TracingError, with the line).
    """
    if not isinstance(reduce, (str, Reduction)):
        raise TypeError(f"reduce must be the name of a reduction or a tw.Reduction, not {reduce!r}")
    fold = named(reduce, kind) if isinstance(reduce, str) else traced(reduce, kind)
    if not callable(function):
        raise TypeError(f"f must be a function of two numbers, not {function!r}")
    try:
        inspect.signature(function).bind(0, 0)
    except TypeError as error:
        raise TypeError(f"f must take two numbers: {error}") from None

    def term(a: Any, b: Any) -> Any:
        terms = function(a, b)
        return cast(terms, kind) if isinstance(terms, Symbol) and not terms.reduced else terms
    terms = trace(term, {"a": kind, "b": kind}, "f")
    if len(terms.results) != 1 or terms.results[0].reduced:
        raise TypeError("f must return one number, which is not a reduction")
    return Semiring(fold.text, terms)
