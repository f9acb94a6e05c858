"""Reductions of scores in words, for `print` of what loops became."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.nests.domain import Element
from tilewright.nests.nest import Term
from tilewright.nests.products import scores
from tilewright.nests.products.scores import DOT, ONE, Domain

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
