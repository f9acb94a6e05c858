"""The algebra of scores: terms of a product s = sum over d of Q[i, d] K[j, d], and sums and maxima of them over j.

Beside numbers, parameters and operations, as in nest.py, a term is

    DOT                         s
    ("load", array, "ij")       an element of an array, by these of i, j and c
    ("index", key)              a sum of i and j, as a `Linear.key`
    ("inside", D, x, y)         x where all of D are >= 0, else y; D is a tuple of `Linear.key`, in order
    ("largest", D, x), ("smallest", D, x), ("first", D, x, "largest")
                                over the j inside D: the extreme x, and the first j that has it
    ("sum", D, x, f, h)         the sum of exp(x) f h over the j inside D; f by row and column, h by j and c; without a
                                power x is ZERO

exp(x - r) is exp(x) exp(-r), so sums are kept relative to level 0 while they are symbols, and no maximum matters to
what they are. words.py gives them numbers that are in range: with ("lse", D, x), the log of the sum of exp(x), and
("mean", D, x, f, h), the mean of f h by weights exp(x), a sum is mean * exp(lse); levels then cancel.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.expressions.tracing import apply
from tilewright.nests.nest import LEAVES, Term
from tilewright.nests.polynomial import Linear

DOT: Term = ("dot",)                # s, as the product leaves it
UNKNOWN: Term = ("unknown",)        # an element that no statement has set
ZERO: Term = ("number", 0.0)
ONE: Term = ("number", 1.0)
LOW: Term = ("number", float("-inf"))
HIGH: Term = ("number", float("inf"))
LEAF = (*LEAVES, "dot", "unknown", "partial")        # ("partial", name): a row's number that a loop over j is changing
LEVELS = ("largest", "smallest", "first", "sum", "lse", "mean")         # numbers of rows, and of rows and columns
COMPARED = ("lt", "le", "eq", "ne")
Key = tuple[int, tuple[tuple[str, int], ...]]
Domain = tuple[Key, ...]


class Unfit(Exception):
    """Why the algebra does not fit, in a sentence."""


def linear(key: Key) -> Linear:
    return Linear(key[0], dict(key[1]))


def other_side(key: Key) -> Key:
    """What is >= 0 where this is not."""
    return -key[0] - 1, tuple((i, -c) for i, c in key[1])


def implied(key: Key, by: Domain) -> bool:
    return any(factors == key[1] and constant <= key[0] for constant, factors in by)


def both(*domains: Domain) -> Domain:
    """The intersection, without what others imply."""
    least = dict[Any, int]()
    for constant, factors in (x for d in domains for x in d):
        least[factors] = min(constant, least.get(factors, constant))
    return tuple(sorted((constant, factors) for factors, constant in least.items()))


def under(t: Term, d: Domain) -> Term:
    """The term where all of d are >= 0."""
    if t[0] == "inside":
        if all(implied(x, d) for x in t[1]):
            return under(t[2], d)
        if any(implied(other_side(x), d) for x in t[1]):
            return under(t[3], d)
        return ("inside", t[1], under(t[2], both(d, t[1])), under(t[3], d))
    return t


def inside(d: Domain, x: Term, y: Term) -> Term:
    if not d or x == y:
        return x
    return ("inside", d, under(x, d), under(y, (other_side(d[0]),)) if len(d) == 1 else y)


def operation(name: str, *xs: Term) -> Term:
    """An operation on terms, with choices by domain outermost, and numbers computed."""
    for x in xs:
        if x[0] == "inside":
            d = x[1]
            outside: Domain = (other_side(d[0]),) if len(d) == 1 else ()
            return inside(d, operation(name, *(under(y, d) for y in xs)),
                          operation(name, *(x[3] if y is x else under(y, outside) for y in xs)))
    if UNKNOWN in xs and name != "where":
        return UNKNOWN
    if name == "where":
        if xs[0][0] == "number":
            return xs[1] if xs[0][1] else xs[2]
        d = ordered(xs[0])
        return ("where", *xs) if d is None else inside(d, xs[1], xs[2])
    if name == "ne" and xs[1] == ("number", 0) and xs[0][0] == "where" and xs[0][2:] == (("number", 1), ("number", 0)):
        term: Term = xs[0][1]
        return term
    if all(x[0] == "number" for x in xs) and not (name == "div" and not xs[1][1]):
        with np.errstate(all="ignore"):
            value = apply(name, *[x[1] for x in xs])
        return ("number", value.item() if hasattr(value, "item") else value)
    return _absorbed(name, xs) or (name, *xs)


def _absorbed(name: str, xs: tuple[Term, ...]) -> Term | None:
    """What -inf and 0 make of the other operand. A mask's zeros are zeros, whatever they multiply."""
    first, second = xs[0], xs[-1]
    if name in ("add", "sub") and first == LOW:
        return LOW
    if name == "add" and second == LOW:
        return LOW
    if name == "add" and second in (ZERO, ("number", 0)):
        return first
    if name == "exp" and first == LOW:
        return ZERO
    if name in ("mul", "div") and first == LOW and second[0] == "number" and second[1] > 0:
        return LOW
    if (name == "mul" and ZERO in xs) or (name == "div" and first == ZERO):
        return ZERO
    if name == "lt" and (second == LOW or first == HIGH):
        return ("number", False)
    if name in ("max", "fmax") and LOW in xs:
        return second if first == LOW else first
    return None


def ordered(condition: Term) -> Domain | None:
    """Where a comparison of indices holds; None of one of other numbers, or of several domains."""
    name, *xs = condition
    if name == "and":
        parts = [ordered(x) for x in xs]
        return None if None in parts else both(*(x for x in parts if x is not None))
    if name == "eq" and xs[1] == ("number", 0) and xs[0][0] in (*COMPARED, "and", "or"):
        d = ordered(xs[0])
        return (other_side(d[0]),) if d is not None and len(d) == 1 else None
    if name in COMPARED and all(x[0] == "index" or (x[0] == "number" and isinstance(x[1], int)) for x in xs):
        a, b = (linear(x[1]) if x[0] == "index" else Linear(x[1], {}) for x in xs)
        difference = b.plus(a, -1)
        if name in ("lt", "le"):
            return (Linear(difference.constant - (name == "lt"), difference.factors).key,)
        if name == "eq":
            return both((difference.key, a.plus(b, -1).key))
    return None


def indices(t: Term) -> set[str]:
    """The indices i, j and c that a term depends on."""
    if t[0] == "load":
        return {*t[2]}
    if t[0] == "index":
        return {i for i, _ in t[1][1]}
    if t[0] in LEVELS:
        return {"i", "c"} if t[0] in ("mean", "sum") and "c" in indices(t[-1]) else {"i"}
    if t[0] == "inside":
        return {i for key in t[1] for i, _ in key[1]} | indices(t[2]) | indices(t[3])
    if t[0] in LEAF:
        return {"i", "j"} if t[0] in ("dot", "partial") else set()
    return set[str]().union(*map(indices, t[1:]))


def mentions(t: Term, *kinds: str) -> bool:
    """Whether a term, or a reduction in it, has one of these kinds of terms."""
    if t[0] in kinds or t[0] in LEAF:
        return t[0] in kinds
    start = 2 if t[0] == "inside" or t[0] in LEVELS else 1
    return any(mentions(x, *kinds) for x in t[start:] if isinstance(x, tuple))


def levels(t: Term) -> list[Term]:
    """The sums and extremes in a term, inner ones of them left out."""
    if t[0] in LEVELS:
        return [t]
    inner = t[2:] if t[0] == "inside" else () if t[0] in LEAF else t[1:]
    return [y for x in inner for y in levels(x)]


# ---- sums

def added(t: Term) -> dict[Term, float]:
    """A term as a sum: terms and their factors, numbers as those of ONE."""
    factors = dict[Term, float]()

    def take(x: Term, by: float) -> None:
        if x[0] == "number":
            factors[ONE] = factors.get(ONE, 0.0) + by * x[1]
        elif x[0] in ("add", "sub"):
            take(x[1], by)
            take(x[2], by if x[0] == "add" else -by)
        elif x[0] == "neg":
            take(x[1], -by)
        elif x[0] == "mul" and "number" in (x[1][0], x[2][0]):
            number, rest = (x[1], x[2]) if x[1][0] == "number" else (x[2], x[1])
            take(rest, by * number[1])
        elif x[0] == "div" and x[2][0] == "number" and x[2][1]:
            take(x[1], by / x[2][1])
        else:
            factors[x] = factors.get(x, 0.0) + by
    take(t, 1.0)
    return {x: by for x, by in factors.items() if by}


def rebuilt(parts: Mapping[Term, float]) -> Term:
    """The term that is this sum; one order for equal sums, the product first."""
    total: Term | None = None
    for x, by in sorted(parts.items(), key=_place):
        less = by < 0 and total is not None
        size = -by if less else by
        term: Term = ("number", size) if x == ONE else x if size == 1 else ("neg", x) if size == -1 else (
            "mul", x, ("number", size))
        total = term if total is None else ("sub" if less else "add", total, term)
    return total or ZERO


def _place(part: tuple[Term, float]) -> tuple[Any, ...]:
    return part[0] == ONE, not mentions(part[0], "dot"), part[1] < 0, repr(part[0])


def multiplied(t: Term, power: int = 1) -> list[tuple[Term, int]]:
    """A term as a product: factors, with 1 or -1."""
    if t[0] == "mul":
        return multiplied(t[1], power) + multiplied(t[2], power)
    if t[0] == "div":
        return multiplied(t[1], power) + multiplied(t[2], -power)
    if t[0] == "neg":
        return [(("number", -1.0), 1), *multiplied(t[1], power)]
    return [(t, power)]


def product(factors: list[tuple[Term, int]]) -> Term:
    total = ONE
    for x, power in factors:
        total = ("div", total, x) if power < 0 else x if total == ONE else ("mul", total, x)
    return total


def summed(d: Domain, t: Term) -> Term:
    """The sum over the j inside d of a term. Unfit if it is none of those above."""
    d, t = narrowed(d, t, ZERO)
    rows, powers, by_both, by_column = list[tuple[Term, int]](), dict[Term, float](), list[Any](), list[Any]()
    level, own_columns = dict[Term, float](), list[Term]()
    for x, power in _without_choices(t):
        own = indices(x)
        if own <= {"i"}:
            rows.append((x, power))
        elif own <= {"j", "c"}:
            by_column.append((x, power))
        elif x[0] == "exp" and "c" not in own:
            for y, by in added(x[1]).items():
                into = level if indices(y) <= {"i"} else powers
                into[y] = into.get(y, 0.0) + power * by
        elif picks(x) and power > 0:
            own_columns.append(x)
        else:
            by_both.append((x, power))
    level |= {ONE: level.get(ONE, 0.0) + powers.pop(ONE)} if ONE in powers else {}
    f, h, x = product(by_both), product(by_column), rebuilt(powers)
    if own_columns:                     # of one j for each i: nothing grows
        f, x = (product([*by_both, (("exp", x), 1)]) if powers else f), ZERO
        for choice in own_columns:
            f = ("where", choice[1], f, ZERO)
    if "c" in indices(f):
        raise Unfit("an element of a result is reduced by more than a weight times a value")
    if f != ONE and "c" in indices(h) and not own_columns:
        if not all(positive(y) for y, _ in by_both):
            raise Unfit("weights of values are no powers, and may be negative")
        for y, power in by_both:
            powers[_log(y)] = powers.get(_log(y), 0.0) + power
        x, f = rebuilt(powers), ONE
    if levels(x):
        raise Unfit("a power depends on a reduction in another way than by a difference")
    if not (mentions(x, "dot") or mentions(f, "dot") or own_columns):
        raise Unfit("what is summed has no scores in it")
    outer = product(rows) if not level else product([*rows, (("exp", rebuilt(level)), 1)])
    total: Term = ("sum", d, x, f, h)
    return total if outer == ONE else ("mul", outer, total)


def _without_choices(t: Term) -> list[tuple[Term, int]]:
    """A product's factors, where(condition, x, 0) as where(condition, 1, 0) and x."""
    factors = list[tuple[Term, int]]()
    for x, power in multiplied(t):
        if x[0] == "where" and x[3] == ZERO and x[2] != ONE and power > 0:
            factors += [(("where", x[1], ONE, ZERO), power), *_without_choices(x[2])]
        else:
            factors.append((x, power))
    return factors


def picks(x: Term) -> Term | None:
    """The numbers of rows in where(j == number, y, 0)."""
    j = ("index", (0, (("j", 1),)))
    if x[0] == "where" and x[3] == ZERO and x[1][0] == "eq" and j in x[1][1:]:
        label: Term = x[1][2] if x[1][1] == j else x[1][1]
        return label if label[0] == "load" and label[2] == "i" else None
    return None


def _log(x: Term) -> Term:
    if x[0] == "where" and x[2:] == (ONE, ZERO):
        return ("where", x[1], ZERO, LOW)
    return ("log", x)


def narrowed(d: Domain, t: Term, identity: Term) -> tuple[Domain, Term]:
    """A reduction's domain without the part in which the term is the identity, and the term in the rest of it."""
    t = under(t, d)
    while t[0] == "inside":
        if t[3] == identity:
            d, t = both(d, t[1]), t[2]
        elif t[2] == identity and len(t[1]) == 1:
            d, t = both(d, (other_side(t[1][0]),)), t[3]
        else:
            break
        t = under(t, d)
    if mentions(t, "unknown"):
        raise Unfit("elements are reduced that no statement before it has set")
    return d, t


def positive(x: Term) -> bool:
    """Whether a term is never negative."""
    match x:
        case ("number", value):
            return bool(value >= 0)
        case ("exp" | "abs" | "sigmoid" | "sqrt", _):
            return True
        case ("mul", a, b):
            return a == b or (positive(a) and positive(b))
        case ("add" | "div" | "min", a, b):
            return positive(a) and positive(b)
        case ("max" | "fmax", a, b):
            return positive(a) or positive(b)
        case ("where", _, a, b) | ("inside", _, a, b):
            return positive(a) and positive(b)
    return False


def spans(d: Domain, rows: int, columns: int) -> tuple[Any, Any]:
    """For each row, the first column inside a domain and the one behind the last."""
    i = np.arange(rows)
    low, high = np.zeros(rows, np.int64), np.full(rows, columns)
    for constant, factors in d:
        own = dict(factors)
        value, by = constant + own.get("i", 0) * i, own.get("j", 0)
        if by > 0:
            low = np.maximum(low, -(value // by))
        elif by < 0:
            high = np.minimum(high, value // -by + 1)
        else:
            high = np.where(value < 0, 0, high)
    return low, high
