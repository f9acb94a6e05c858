"""What is called in place of NumPy's vdot, inner, einsum and tensordot where a gate hands arrays over: two exact
ndarrays of one dtype, and no keywords. NumPy's function is called where the rules, which look at the product here, say
so.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import tilewright
from tilewright.numpy.rules import NONE, Rule, Rules

MOST_KNOWN = 4096                       # kinds of calls that are remembered
LEAST_ELEMENTS = 16                     # of the larger array: below, reading the call takes as long as NumPy


class Sizes(NamedTuple):
    """A product as the rules see it."""
    m: int
    n: int
    k: int
    stack: int = 1

    @property
    def volume(self) -> int:
        return self.m * self.n * self.k * self.stack


def rows(name: str, rules: Rules) -> Rules:
    """The rules as the gate of a function reads them. All but matmul's and dot's look at the elements of the larger
    array alone, of which a product has at most as many multiplications as its volume, and at least its third root."""
    least = min(x.least for x in rules)
    if name in ("matmul", "dot") or least == Rule().least:
        return rules
    return Rules(Rule(max(int(least ** (1 / 3)) ** 2, LEAST_ELEMENTS)), Rule(), Rule())


class Ours:
    """A function in place of one of NumPy's. `read` finds the sizes; None is for calls that are NumPy's."""

    def __init__(self, theirs: Callable[..., Any], read: Callable[..., Sizes | None], ours: Callable[..., Any]) -> None:
        self.theirs, self.read, self.ours = theirs, read, ours
        self.taken = 0
        self.rules: Mapping[Any, Rules] = {}
        self.left: dict[Any, int | None] = {}       # multiplications until a plan is made; None: NumPy's

    def use(self, rules: Mapping[Any, Rules]) -> None:
        """By NumPy's number of a dtype."""
        self.rules, self.left = rules, {}

    def __call__(self, *given: Any) -> Any:
        *options, a, b, axes = given if type(given[-1]) is not np.ndarray else (*given, None)
        key = (*options, a.shape, b.shape, a.dtype.num, axes if type(axes) is int else repr(axes))
        left = self.left.get(key, -1)
        if left == 0:
            return self._by_ours(given)
        if left is None:
            return self.theirs(*given)
        sizes = self.read(*given)
        if left < 0:
            left = None if sizes is None else _needed(self.rules.get(a.dtype.num, NONE), sizes)
        if sizes is not None and left is not None:
            left = max(left - sizes.volume, 0)
        if len(self.left) >= MOST_KNOWN:
            self.left.clear()
        self.left[key] = left
        return self._by_ours(given) if left == 0 else self.theirs(*given)

    def _by_ours(self, given: Any) -> Any:
        found = self.ours(*given)
        self.taken += 1
        return found


def _needed(rules: Rules, s: Sizes) -> int | None:
    """How many multiplications must come with these sizes before a plan is made; None: they are NumPy's."""
    rule = rules.stacks if s.stack > 1 else rules.vectors if 1 in (s.m, s.n) else rules.matrices
    if not rule.least <= s.volume <= rule.most:
        return None
    largest = max(s.m * s.k, s.n * s.k, s.m * s.n)
    return 0 if s.stack == 1 and largest <= rule.at_once else rule.after


# ---- the functions

def _of_vdot(a: Any, b: Any) -> Sizes | None:
    flat = a.flags.c_contiguous and b.flags.c_contiguous
    return Sizes(1, 1, a.size) if a.dtype.kind != "c" and a.size == b.size and (a.ndim == b.ndim == 1 or flat) else None


def _vdot(a: Any, b: Any) -> Any:
    return tilewright.matmul(a.reshape(-1), b.reshape(-1))


def _of_inner(a: Any, b: Any) -> Sizes | None:
    k = a.shape[-1]
    return Sizes(a.size // k, b.size // k, k) if k and k == b.shape[-1] and a.size and b.size else None


def _inner(a: Any, b: Any) -> Any:
    if a.ndim > 2 or b.ndim > 2:
        return _tensordot(a, b, (-1, -1))
    return tilewright.matmul(a, b.T)


def _tensordot(*given: Any) -> Any:
    """By rows, as NumPy's, and never a scalar."""
    return np.asarray(tilewright.tensordot(*given), order="C")


def _of_tensordot(a: Any, b: Any, axes: Any = 2) -> Sizes | None:
    if isinstance(axes, int):
        summed = a.shape[a.ndim - axes:] if 0 < axes <= min(a.ndim, b.ndim) else ()
    else:
        first = axes[0]
        summed = tuple(a.shape[i] for i in (first if isinstance(first, Sequence) else (first,)))
    k = math.prod(summed)
    return Sizes(a.size // k, b.size // k, k) if summed and k and a.size and b.size else None


def _of_einsum(subscripts: str, a: Any, b: Any) -> Sizes | None:
    labels = _labels(subscripts)
    if labels is None:
        return None
    x, y, groups = labels
    if (len(x), len(y)) != (a.ndim, b.ndim):
        return None
    extents = dict(zip(x, a.shape))
    if any(extents.setdefault(label, size) != size for label, size in zip(y, b.shape)):
        return None
    m, n, k, batch = (math.prod(extents[label] for label in group) for group in groups)
    return Sizes(m, n, k, batch) if m * n * k * batch else None


@lru_cache(maxsize=MOST_KNOWN)
def _labels(subscripts: str) -> tuple[str, str, tuple[str, str, str, str]] | None:
    """The labels of both operands, and those of m, n, k and of the batch; None if no product of matrices or vectors is
    all that they name."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    x, comma, y = inputs.partition(",")
    output = output if arrow else "".join(sorted({*x} ^ {*y}))
    if not comma or not (x + y).isalpha() or not (output + "a").isalpha() or any(
            len({*term}) < len(term) for term in (x, y, output)) or not {*output} <= {*x, *y}:
        return None
    groups = tuple("".join(label for label in {*x, *y} if ((label in x), (label in y), (label in output)) == which)
                   for which in ((True, False, True), (False, True, True), (True, True, False), (True, True, True)))
    return (x, y, groups) if groups[2] and sum(map(len, groups)) == len({*x, *y}) else None     # type: ignore[return-value]


FUNCTIONS: dict[str, tuple[Callable[..., Sizes | None], Callable[..., Any]]] = {
    "vdot": (_of_vdot, _vdot), "inner": (_of_inner, _inner),
    "tensordot": (_of_tensordot, _tensordot),
    "einsum": (_of_einsum, lambda *given: tilewright.einsum(*given)),
}
