"""Results of rows, with numbers that are in range in place of sums of exp(x) h (scores.py): `lowered`."""
from __future__ import annotations

from collections.abc import Mapping

from tilewright.nests.nest import Term
from tilewright.nests.products.scores import LEAF, LEVELS, ONE, ZERO, added, inside, multiplied, product, rebuilt


def lowered(t: Term) -> Term:
    """A term of rows, and of columns of values, with lse and mean in place of sums of powers; levels cancel."""
    if t[0] == "sum":
        return _product(t)
    if t[0] in ("mul", "div", "exp"):
        return _product(t)
    if t[0] in ("add", "sub", "neg", "log"):
        return rebuilt(_sum(t))
    if t[0] in LEAF or t[0] in LEVELS:
        return t
    if t[0] == "inside":
        return inside(t[1], lowered(t[2]), lowered(t[3]))
    return (t[0], *(lowered(x) for x in t[1:]))


def _product(t: Term) -> Term:
    power, factors = _factored(t)
    kept = product([x for x in factors if x != (ONE, 1)])
    e = rebuilt({x: by for x, by in power.items() if by})
    if e == ZERO:
        return kept
    return ("exp", e) if kept == ONE else ("mul", kept, ("exp", e))


def _factored(t: Term) -> tuple[dict[Term, float], list[tuple[Term, int]]]:
    """The exponent, as a sum, and the other factors."""
    power, factors = dict[Term, float](), list[tuple[Term, int]]()

    def raised(parts: Mapping[Term, float], by: int) -> None:
        for y, times in parts.items():
            power[y] = power.get(y, 0.0) + by * times
    for x, by in multiplied(t):
        if x[0] == "exp":
            raised(_sum(x[1]), by)
        elif x[0] == "sum" and x[2] != ZERO:
            raised({("lse", *x[1:3]): 1.0}, by)
            if x[3:] != (ONE, ONE):
                factors.append((("mean", *x[1:3], lowered(x[3]), x[4]), by))
        elif x[0] == "sum":
            factors.append((("sum", *x[1:3], lowered(x[3]), x[4]), by))
        elif (inner := lowered(x) if x[0] not in ("mul", "div", "exp") else x) != x:
            more, others = _factored(inner)
            raised(more, by)
            factors += [(y, by * own) for y, own in others]
        else:
            factors.append((x, by))
    return power, factors


def _sum(t: Term) -> dict[Term, float]:
    """`added`, with logarithms of products as sums."""
    found = dict[Term, float]()
    for x, by in added(t).items():
        parts: Mapping[Term, float] = {x: 1.0}
        if x[0] == "log":
            power, factors = _factored(x[1])
            rest = [(y, own) for y, own in factors if y != ONE]
            parts = power | ({("log", product(rest)): 1.0} if rest else {})
        elif x != ONE and x[0] not in LEAF:
            inner = lowered(x)
            parts = added(inner) if inner != x else parts
        for y, times in parts.items():
            found[y] = found.get(y, 0.0) + by * times
    return {x: by for x, by in found.items() if by}
