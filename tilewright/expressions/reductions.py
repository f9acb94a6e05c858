"""`Reduction`: how terms become one result, as a state that takes one term after the other. REDUCTIONS are those with
names; `Fold` is one of them, or a user's, traced for terms of one kind.

A state has one field or more: of "argmin" the smallest term and its index, of "logsumexp" the largest term and a sum
relative to it. States of different parts of k are combined, in any order.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.expressions.functions import exp, log, where
from tilewright.expressions.program import STATE, Expression, Number
from tilewright.expressions.tracing import apply, cast, trace
from tilewright.forks import cached_property

State = tuple[Any, ...]
TAKES = {"step": "(state, term, p)", "combine": "(x, y), two states", "result": "(state)"}
USERS = "state "                # the text of a user's reduction begins so


@dataclass(frozen=True)
class Reduction:
    """Your own reduction of the terms of an element over index p, for `tw.contract(..., reduce=...)`.

        tw.Reduction((0.0, 0.0), step=lambda s, t, p: (s[0] + t, s[1] + t*t),           mean and variance of k terms
                     combine=lambda x, y: (x[0] + y[0], x[1] + y[1]),
                     result=lambda s: (s[0] / k, (s[1] - s[0]*s[0]/k) / k))

    identity    the state before the first term, a tuple of numbers. A float makes this field of the state a float, an
                int an integer, both with as many bits as sums have
    step        step(state, term, p) → the state after the term of index p, an integer; states are tuples
    combine     combine(x, y) → one state for the terms of both, which have no term in common. Kernels combine states in
                any order, and any state with identity
    result      result(state) → a number, or a tuple of numbers, the results of the contraction. None: field 0

    The functions are called once, with symbols: docs/epilogues.md says what they may do.
    """
    identity: tuple[Number, ...] | Callable[[str, int], tuple[Number, ...]]     # of kind and bits, of those with names
    step: Callable[[State, Any, Any], State]
    combine: Callable[[State, State], State]
    result: Callable[[State], Any] | None = None


def _of(first: Callable[[str, int], Number], both: Callable[[Any, Any], Any]) -> Reduction:
    """A reduction whose state is one field, which is the result."""
    return Reduction(lambda kind, bits: (first(kind, bits),), lambda s, t, p: (both(s[0], t),),
                     lambda x, y: (both(x[0], y[0]),))


def _zero(kind: str, bits: int) -> Number: return 0.0 if kind == "float" else 0
def _most(kind: str, bits: int) -> Number: return np.inf if kind == "float" else 2**(bits - 1) - 1
def _least(kind: str, bits: int) -> Number: return -np.inf if kind == "float" else -2**(bits - 1)
def _smaller(x: Any, y: Any) -> Any: return apply("fmin", x, y)
def _larger(x: Any, y: Any) -> Any: return apply("fmax", x, y)


def _extreme(first: Callable[[str, int], Number], before: Callable[[Any, Any], Any],
             result: Callable[[State], Any]) -> Reduction:
    """The extreme term and its index, as np.argmin has it: the first of equals, the first NaN before all numbers.
    before(x, y): whether x is more extreme than y or equal; of a NaN it is false."""
    def step(s: State, t: Any, p: Any) -> State:
        best, at = s
        better = ~before(best, t) & (best == best)          # a NaN is kept
        return where(better, t, best), where(better, p, at)

    def combine(x: State, y: State) -> State:
        no_x, no_y = x[0] != x[0], y[0] != y[0]
        tie = (x[0] == y[0]) | (no_x & no_y)
        second = where(tie, y[1] < x[1], ~(before(x[0], y[0]) | no_x))
        return where(second, y[0], x[0]), where(second, y[1], x[1])
    return Reduction(lambda kind, bits: (first(kind, bits), 0), step, combine, result)


def _exponentials(x: State, y: State) -> State:
    """The larger of two maxima, and sums of exponentials relative to it."""
    e = exp(where(x[0] == y[0], 0.0, -abs(x[0] - y[0])))    # of equal infinities, too
    second = x[0] < y[0]
    return where(second, y[0], x[0]), x[1] * where(second, e, 1.0) + y[1] * where(second, 1.0, e)


def _min(x: Any, y: Any) -> Any: return x <= y
def _max(x: Any, y: Any) -> Any: return y <= x


REDUCTIONS = {
    "sum": _of(_zero, lambda x, y: x + y),
    "min": _of(_most, _smaller),
    "max": _of(_least, _larger),
    "any": _of(_zero, _larger),
    "argmin": _extreme(_most, _min, lambda s: s[1]),
    "argmax": _extreme(_least, _max, lambda s: s[1]),
    "min_argmin": _extreme(_most, _min, lambda s: s),
    "max_argmax": _extreme(_least, _max, lambda s: s),
    "logsumexp": Reduction((-np.inf, 0.0), lambda s, t, p: _exponentials(s, (t, 1.0)), _exponentials,
                           lambda s: s[0] + log(s[1])),
}
SELECTING = {name for name in REDUCTIONS if "min" in name or "max" in name}     # one of the terms, and so of 1 or more

# Of an array along its last axis; the reference.
NUMPY: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(-1), "min": lambda x: np.fmin.reduce(x, -1), "max": lambda x: np.fmax.reduce(x, -1),
    "any": lambda x: x.max(-1), "argmin": lambda x: x.argmin(-1), "argmax": lambda x: x.argmax(-1),
    "min_argmin": lambda x: (x.min(-1), x.argmin(-1)), "max_argmax": lambda x: (x.max(-1), x.argmax(-1)),
    "logsumexp": lambda x: np.logaddexp.reduce(x, -1)}


@dataclass(frozen=True)
class Fold:
    """A reduction of terms of one kind, "float" or "int", as data. Parameters are named s0, s1 ... (`fields`), of
    `combined` x0 ... and y0 ..., of `result` as epilogues name them; those of `step` end in term and p."""
    text: str                           # a key of REDUCTIONS, or what a user's function came to
    kind: str
    fields: tuple[str, ...]             # kinds
    identity: Callable[[str, int], tuple[Number, ...]]
    step: Expression
    combined: Expression
    result: Expression

    @cached_property
    def plain(self) -> bool:
        """Whether a state is one number, which is the result, whatever the terms' indices."""
        return len(self.fields) == 1 and not self.indexed and self.result.text.endswith(f"; -> {STATE}0")

    @cached_property
    def indexed(self) -> bool:
        """Whether it takes the indices of terms."""
        return any("p" in line.operands for line in self.step.lines) or any(x.operand == "p" for x in self.step.results)

    def evaluate(self, terms: Any) -> Any:
        """The result of terms along the last axis, or a tuple of results, by NumPy in float64 and integers."""
        if self.text in NUMPY and terms.shape[-1]:
            return NUMPY[self.text](terms)
        bits = 8 * terms.itemsize
        state = [np.full(terms.shape[:-1], x, np.float64 if kind == "float" else np.int64)
                 for x, kind in zip(self.identity(self.kind, bits), self.fields)]
        for p in range(terms.shape[-1]):
            named = {f"s{i}": x for i, x in enumerate(state)} | {"term": terms[..., p], "p": p}
            state = list(self.step.evaluate(named))
        values = self.result.evaluate({f"{STATE}{i}": x for i, x in enumerate(state)})
        return values if len(values) > 1 else values[0]


@lru_cache(maxsize=256)
def named(text: str, kind: str) -> Fold:
    """The reduction with this text. ValueError for any other text, and for one that does not take terms of this kind;
    TypeError for what its functions may not do."""
    if text.startswith(USERS):
        return _read(text, kind)
    if text not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, or a tw.Reduction, not {text!r}")
    reduction = traced(REDUCTIONS[text], kind, text)
    if text == "logsumexp" and kind != "float":
        raise ValueError("reduce must be another than 'logsumexp' for integers: it is of floats")
    return reduction


def traced(reduction: Reduction, kind: str, text: str = "") -> Fold:
    """A reduction for terms of this kind. TypeError for what its functions may not do; ValueError for an identity."""
    given = reduction.identity
    identity = given if callable(given) else lambda kind, bits: given
    numbers = identity(kind, 32)
    if not isinstance(numbers, tuple) or not numbers or not all(type(x) in (int, float) for x in numbers):
        raise ValueError(f"identity must be a tuple of one int or float for each field, not {numbers!r}")
    fields = tuple("int" if isinstance(x, int) else "float" for x in numbers)

    def part(name: str, function: Callable[..., Any], parameters: dict[str, str], *groups: int) -> Expression:
        """`groups`: how many parameters make each of the function's states; the others follow them."""
        def whole(*xs: Any) -> Any:
            states = [xs[sum(groups[:g]):sum(groups[:g + 1])] for g in range(len(groups))]
            try:
                inspect.signature(function).bind(*states, *xs[sum(groups):])
            except TypeError as error:
                raise TypeError(f"{name} of a reduction must take {TAKES[name]}: {error}") from None
            values = function(*states, *xs[sum(groups):])
            if name == "result":
                return values
            if not isinstance(values, tuple) or len(values) != len(fields):
                raise TypeError(f"{name} of a reduction must return a tuple of {len(fields)} numbers, as identity has")
            return tuple(cast(x, kind) for x, kind in zip(values, fields))
        return trace(whole, parameters, f"{name} of a reduction", len(parameters))

    count = len(fields)
    states = {f"s{i}": x for i, x in enumerate(fields)}
    step = part("step", reduction.step, states | {"term": kind, "p": "int"}, count)
    combined = part("combine", reduction.combine, {f"{x}{i}": y for x in "xy" for i, y in enumerate(fields)},
                    count, count)
    result = part("result", reduction.result or (lambda s: s[0]), {f"{STATE}{i}": x for i, x in enumerate(fields)},
                  count)
    if any(x.reduced for x in result.results):
        raise TypeError("result of a reduction must return numbers, not reductions of rows or columns")
    if not text:
        text = USERS + " / ".join((" ".join(map(repr, numbers)), step.text, combined.text, result.text))
    return Fold(text, kind, fields, identity, step, combined, result)


def _read(text: str, kind: str) -> Fold:
    numbers, *parts = text.removeprefix(USERS).split(" / ")
    step, combined, result = map(Expression.read, parts)
    identity = tuple(int(x) if x.lstrip("-").isdigit() else float(x) for x in numbers.split())
    if dict(step.parameters).get("term") != kind:
        raise ValueError(f"{text!r} is no reduction of terms of kind {kind}")
    fields = tuple("int" if isinstance(x, int) else "float" for x in identity)
    return Fold(text, kind, fields, lambda kind, bits: identity, step, combined, result)
