"""`Semiring`: what stands for multiplication and addition in a product, as data: C[i, j] = reduce over p of
f(A[i, p], B[p, j]).

    sum | a:float b:float; sub a b; mul %0 %0; -> %1

f is any traced function of two numbers, and its values are reduced by one of REDUCTIONS; that f distributes over it, as
in a semiring proper, is not needed. Problems, plans and caches hold the text; "" is multiplication and addition.
"""
from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.expressions.program import Expression
from tilewright.expressions.tracing import Symbol, apply, cast, retraced, trace
from tilewright.forks import cached_property


@dataclass(frozen=True)
class Reduction:
    """How terms become one number, in any order.

    numpy       of an array along an axis; the reference
    first       of floats or not, and of so many bits: with what terms are combined first, which changes none
    combined    (x, y) → both, of symbols or arrays
    """
    numpy: Callable[..., Any]
    first: Callable[[bool, int], float | int]
    combined: Callable[[Any, Any], Any]


REDUCTIONS = {
    "sum": Reduction(np.sum, lambda floats, bits: 0.0 if floats else 0, lambda x, y: x + y),
    "min": Reduction(np.fmin.reduce, lambda floats, bits: np.inf if floats else 2**(bits - 1) - 1,
                     lambda x, y: apply("fmin", x, y)),
    "max": Reduction(np.fmax.reduce, lambda floats, bits: -np.inf if floats else -2**(bits - 1),
                     lambda x, y: apply("fmax", x, y)),
    "any": Reduction(np.max, lambda floats, bits: 0.0 if floats else 0, lambda x, y: apply("fmax", x, y)),
}


@dataclass(frozen=True)
class Semiring:
    """`reduce`: a key of REDUCTIONS; `expression`: f, of two parameters of one kind, with one result of that kind."""
    reduce: str
    expression: Expression

    @cached_property
    def text(self) -> str:
        return f"{self.reduce} | {self.expression.text}"

    def __str__(self) -> str:
        return self.text

    @classmethod
    def read(cls, text: str) -> Semiring:
        """The semiring with this text. ValueError for any other text."""
        reduce, _, rest = text.partition(" | ")
        if reduce in REDUCTIONS:
            expression = Expression.read(rest)
            kinds = {kind for _, kind in expression.parameters}
            if len(expression.parameters) == 2 and len(kinds) == 1 and [x.reduced for x in expression.results] == [""]:
                return cls(reduce, expression)
        raise ValueError(f"{text!r} is not the text of a semiring")

    @property
    def digest(self) -> str:
        """Of the text, for names."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    @property
    def kind(self) -> str:
        """Of the numbers: "float" or "int"."""
        return self.expression.parameters[0][1]

    @property
    def swapped(self) -> Semiring:
        """That of C^T = B^T A^T."""
        return Semiring(self.reduce, replace(self.expression, parameters=self.expression.parameters[::-1]))

    def first(self, bits: int) -> float | int:
        """With what terms are combined first."""
        return REDUCTIONS[self.reduce].first(self.kind == "float", bits)

    @cached_property
    def combined(self) -> Expression:
        """Of `x` and `y`: two results, each of some of k."""
        return trace(lambda x, y: REDUCTIONS[self.reduce].combined(x, y), {"x": self.kind, "y": self.kind})

    @cached_property
    def step(self) -> Expression:
        """Of `acc` and the two factors, whatever their names, `left` and `right`: the result with one more term."""
        first, second = (name for name, _ in self.expression.parameters)

        def step(acc: Any, left: Any, right: Any) -> Any:
            term, = retraced(self.expression, {first: left, second: right})
            return REDUCTIONS[self.reduce].combined(acc, term)
        return trace(step, {"acc": self.kind, "left": self.kind, "right": self.kind})

    @property
    def operations(self) -> int:
        """Of a term, in multiply-adds."""
        return max(self.step.flops, 1)

    def evaluate(self, a: Any, b: Any) -> Any:
        """The result of a [..., m, k] and b [..., k, n] by NumPy, of floats in float64, of ints as kernels compute
        them, in int32 or int64, with all terms at once. As kernels do, min and max leave out NaNs."""
        whole = np.int64 if max(np.asarray(x).itemsize for x in (a, b)) == 8 else np.int32
        a, b = (np.asarray(x, np.float64 if self.kind == "float" else whole) for x in (a, b))
        a, b = a[..., :, None, :], np.swapaxes(b, -1, -2)[..., None, :, :]
        first, second = (name for name, _ in self.expression.parameters)
        term, = self.expression.evaluate({first: a, second: b})
        terms = np.broadcast_to(term, np.broadcast_shapes(a.shape, b.shape))
        if terms.shape[-1] == 0:
            return np.full(terms.shape[:-1], self.first(32))
        found = REDUCTIONS[self.reduce].numpy(terms, axis=-1)
        return found if self.kind == "float" else found.astype(whole)


@lru_cache(maxsize=256)
def read(text: str) -> Semiring:
    """The semiring with this text."""
    return Semiring.read(text)


def semiring(function: Callable[..., Any], reduce: str = "sum", kind: str = "float") -> Semiring:
    """That of a function of two numbers, `kind` "float" or "int", which is called once. Conditions count as 0 and 1.

    ValueError for a reduction that there is not; TypeError for a function of other parameters and for what it may not
    do (TracingError, with the line).
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, not {reduce!r}")

    if not callable(function):
        raise TypeError(f"f must be a function of two numbers, not {function!r}")
    try:
        inspect.signature(function).bind(0, 0)
    except TypeError as error:
        raise TypeError(f"f must take two numbers: {error}") from None

    def term(a: Any, b: Any) -> Any:
        found = function(a, b)
        return cast(found, kind) if isinstance(found, Symbol) and not found.reduced else found
    found = trace(term, {"a": kind, "b": kind}, "f")
    if len(found.results) != 1 or found.results[0].reduced:
        raise TypeError("f must return one number, which is not a reduction")
    return Semiring(reduce, found)
