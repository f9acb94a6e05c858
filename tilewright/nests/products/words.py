"""Reductions of scores, as they are computed (`lowered`: results of rows with numbers that are in range in place of
sums of exp(x) h) and in words, for `print` of what loops became."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.nests.domain import Element
from tilewright.nests.nest import Term
from tilewright.nests.products import scores
from tilewright.nests.products.scores import (
    DOT,
    LEAF,
    LEVELS,
    ONE,
    ZERO,
    Domain,
    added,
    inside,
    multiplied,
    product,
    rebuilt,
)

SIGNS = {"mul": " * ", "add": " + ", "sub": " - ", "div": " / ", "lt": " < ", "le": " <= ", "eq": " == ", "ne": " != "}


def roles(e: Element) -> list[str]:
    return [next(iter(x.factors)) for x in e.subscripts]


def where(d: Domain) -> str:
    parts = []
    for constant, factors in d:
        words = " ".join(f"{'-' if c < 0 else '+'} {'' if abs(c) == 1 else abs(c)}{i}" for i, c in factors)
        words += f" {'-' if constant < 0 else '+'} {abs(constant)}" if constant else ""
        parts.append(words.removeprefix("+ ") + " >= 0")
    return f" where {' and '.join(parts)}" if parts else ""


def said(t: Term, names: Mapping[Term, str]) -> str:
    """A result in words."""
    def named(x: Term) -> str:
        return names.get(x, text(x))
    if t[0] in scores.LEVELS:
        over = f"over j{where(t[1])}"
        match t[0]:
            case "largest" | "smallest":
                return f"the {t[0]} {named(t[2])} {over}"
            case "first":
                return f"the first j of the {t[3]} {named(t[2])} {over}"
            case "lse":
                return f"log of the sum of exp({named(t[2])}) {over}"
            case "mean":
                times = [named(t[3])] * (t[3] != ONE) + [text(t[4])] * (t[4] != ONE)
                return f"softmax of {named(t[2])} {over}, times {' '.join(times)}"
        return f"the sum of {named(t[3])}{'' if t[4] == ONE else ' ' + text(t[4])} {over}"
    return text(t, lambda x: f"({said(x, names)})")


def text(x: Term, level: Callable[[Term], str] = str) -> str:
    if x == DOT:
        return "s"
    if x[0] == "load":
        return f"{x[1]}[{', '.join(x[2])}]"
    if x[0] == "index":
        return where((x[1],)).removeprefix(" where ").removesuffix(" >= 0")
    if x[0] in scores.LEVELS:
        return level(x)
    if x[0] == "inside":
        return f"({text(x[2], level)}{where(x[1])}, else {text(x[3], level)})"
    if x[0] in SIGNS:
        return f"({SIGNS[x[0]].join(text(y, level) for y in x[1:])})"
    if x[0] == "neg":
        return f"-{text(x[1], level)}"
    return str(x[1]) if x[0] in scores.LEAF else f"{x[0]}({', '.join(text(y, level) for y in x[1:])})"


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
    counts = dict[Term, float]()
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
            counts[y] = counts.get(y, 0.0) + by * times
    return {x: by for x, by in counts.items() if by}
