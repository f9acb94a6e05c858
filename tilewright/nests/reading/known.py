"""What a recorded kernel's value is known to be while its loops are read (recorded.py), and what operations make of it.

    Polynomial      a whole number, of sizes and indices
    Extreme         the least, or the greatest, of several: a bound of a loop
    Order           a condition: polynomials that are >= 0, and conditions on numbers
    Address         elements from an array's first one
    Number          a float, or a whole number that is no sum of indices
    list            a vector, its elements
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tilewright.ir import Type
from tilewright.ir.program import Line, Op
from tilewright.ir.types import f32, f64, i32, i64
from tilewright.nests.nest import Access, Term, accesses_mapped, mapped, refuse
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.reading.spelled import NAMES


class Extreme(NamedTuple):
    least: bool
    of: tuple[Polynomial, ...]

    def plus(self, other: Any, sign: int = 1) -> Extreme:
        return Extreme(self.least, tuple([x + sign * other for x in self.of]))


class Number(NamedTuple):
    """`formats`: those in which the term is computed; none where it only chooses among elements. `rounded`: a narrower
    format that the result has been converted to."""
    term: Term
    formats: frozenset[Type] = frozenset()
    rounded: Type | None = None
    size: int = 1               # operations


class Order(NamedTuple):
    conditions: tuple[Polynomial, ...] = ()
    choices: tuple[Number, ...] = ()


class Address(NamedTuple):
    array: str
    at: Polynomial


class Quotient(NamedTuple):
    """dividend // divisor, or the remainder, of numbers that are no sum of indices. It stands in polynomials as a name:
    sums in which it is left are refused, or, of threads, resolved by numbers."""
    remainder: bool
    dividend: Polynomial
    divisor: int


COMPUTED = {"add": "add", "sub": "sub", "mul": "mul", "divide": "div", "sqrt": "sqrt", **{x: x for x in NAMES}}
CHOSEN = {"neg": "neg", "abs": "abs", "fmin": "fmin", "fmax": "fmax"}      # they round nothing, whatever the format
LOGICAL = ("and", "or", "xor")
ORDERS = ("lt", "le", "eq", "ne")
# Bits of whole numbers that floats of so many bits hold.
HELD = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
MOST = 2000                     # operations of a term, which is a tree
ZERO = polynomial(0)
NEVER = Order((polynomial(-1),))


def holds(t: Type, source: Type) -> bool:
    """Whether every number of a format is one of format t, too."""
    if t.is_float and source.is_float:
        return t == source or (t.bits > source.bits)
    if t.is_float:
        return source.bits <= HELD[str(t)]
    return not source.is_float and t.bits >= source.bits


def order(conditions: Iterable[Polynomial], choices: Iterable[Number] = ()) -> Order:
    """A condition without parts that always hold; NEVER, if one never does."""
    unproved = tuple(dict.fromkeys(c for c in conditions if c.constant is None or c.constant < 0))
    return NEVER if any(c.constant is not None for c in unproved) else Order(unproved, tuple(choices))


def condition(c: Polynomial) -> Term:
    """c >= 0 as a term."""
    return ("le", ("index", ZERO), ("index", c))


def all_of(conditions: Iterable[Polynomial], more: Iterable[Term] = ()) -> Term:
    """The term that conditions hold, all of them."""
    terms = [*map(condition, conditions), *more] or [condition(ZERO)]
    return reduce(lambda x, y: ("and", x, y), terms)


class Operations:
    """`result(node, operands)`: what the result of an operation is. `ranges`: indices that are 0 ... extent - 1."""

    def __init__(self) -> None:
        self.ranges: dict[str, int] = {}
        self.quotients: dict[str, Quotient] = {}
        self.line: Line

    def refuse(self, reason: str) -> NoReturn:
        refuse(self.line, reason)

    def number(self, x: Any) -> Number:
        """x as an operand of arithmetic."""
        if isinstance(x, Polynomial):
            return Number(("index", x) if x.constant is None else ("number", x.constant))
        if isinstance(x, Order):
            term = all_of(x.conditions, [c.term for c in x.choices])
            return Number(term, frozenset().union(*(c.formats for c in x.choices)), None,
                          sum(c.size for c in x.choices) + len(x.conditions))
        if isinstance(x, Extreme):
            total = self.number(x.of[0])
            for bound in x.of[1:]:
                total = Number(("min" if x.least else "max", total.term, self.number(bound).term))
            return total
        if not isinstance(x, Number):
            self.refuse("an address is stored, or computed with as a number")
        return x

    def operand(self, x: Any) -> Number:
        x = self.number(x)
        if x.rounded is not None:
            self.refuse(f"a number is converted to {x.rounded} in the middle of a computation")
        return x

    def result(self, node: Op, xs: list[Any]) -> Any:
        self.line = node.line
        name, t = node.operation.name, node.results[0].type
        if name == "broadcast":
            return [xs[0]] * t.length
        if name == "pack":
            return xs
        if name.startswith("extract"):
            return xs[0][int(name.removeprefix("extract"))]
        if name == "shuffle":
            n = len(xs[0])
            order: Any = node.operation.numpy and node.operation.numpy(t, *np.arange(2 * n).reshape(2, n, 1))
            return [[*xs[0], *xs[1]][e] for e in order[:, 0]]
        if name == "lanes":
            return [self._compared("lt", polynomial(e), xs[0]) for e in range(t.length)]
        if name == "sum":
            while len(xs[0]) > 1:
                half = len(xs[0]) // 2
                xs = [[self._computed("add", t, [x, y]) for x, y in zip(xs[0][:half], xs[0][half:])]]
            return xs[0][0]
        source = node.operands[0].type
        if any(isinstance(x, list) for x in xs):
            lanes = zip(*(x if isinstance(x, list) else [x] * t.length for x in xs))
            return [self._one(name, t.scalar, source, list(lane)) for lane in lanes]
        return self._one(name, t, source, xs)

    def called(self, node: Op, name: str, x: Any) -> Any:
        """A function of floats, of a number or a vector."""
        self.line, t = node.line, node.operands[0].type.scalar
        if isinstance(x, list):
            return [self._computed(name, t, [e]) for e in x]
        return self._computed(name, t, [x])

    def _one(self, name: str, t: Any, source: Any, xs: list[Any]) -> Any:
        integral = all(isinstance(x, Polynomial) for x in xs)
        if name == "offset":
            if not isinstance(xs[0], Address) or not isinstance(xs[1], Polynomial):
                self.refuse("this address is no sum of loop indices and sizes with whole coefficients")
            return Address(xs[0].array, xs[0].at + xs[1])
        if name == "opaque":
            return xs[0]
        if name == "cast":
            return self._cast(xs[0], source.scalar, t)
        if name == "select":
            return self._select(*xs)
        if name in ORDERS:
            return self._compared(name, *xs)
        if name in LOGICAL and t.bits == 1:
            return self._logical(name, *xs)
        if integral and name in ("div", "rem", "shl", "shr", "and"):
            return self._divided(name, *xs)
        if name in ("add", "sub") and any(isinstance(x, Extreme) for x in xs):
            x, y = xs
            if isinstance(x, Extreme) and isinstance(y, Polynomial):
                return x.plus(y, 1 if name == "add" else -1)
            if isinstance(x, Polynomial) and isinstance(y, Extreme) and name == "add":
                return y.plus(x)
        if integral and name in ("add", "sub", "mul"):
            x, y = xs
            return x + y if name == "add" else x - y if name == "sub" else x * y
        return self._computed(name, t, xs)

    def _computed(self, name: str, t: Any, xs: list[Any]) -> Number:
        term: Term
        numbers = [self.operand(x) for x in xs]
        terms, formats = [x.term for x in numbers], frozenset().union(*(x.formats for x in numbers))
        size = self._size(*numbers)
        if name in CHOSEN:
            return Number((CHOSEN[name], *terms), formats, None, size)
        if name in COMPUTED:
            term = (COMPUTED[name], *terms)
        elif name == "fma":
            term = ("add", ("mul", *terms[:2]), terms[2])
        elif name == "reciprocal":
            term = ("div", terms[1], terms[0])
        else:
            self.refuse(f"the operation {name} is not taken")
        if t not in (f32, f64, i32, i64):
            self.refuse(f"arithmetic in {t}: loops compute in f32 or i32 at least, which k.cast converts to first")
        return Number(term, formats | {t}, None, size)

    def _size(self, *numbers: Number) -> int:
        """Operations of a number that is made of these."""
        size = 1 + sum(x.size for x in numbers)
        if size > MOST:
            self.refuse(f"a value of more than {MOST} operations, those of values that are used twice counted twice: "
                        "a variable, k.variable, that keeps one of these makes it shorter")
        return size

    def _cast(self, x: Any, source: Type, t: Type) -> Any:
        if isinstance(x, (Polynomial, Extreme)):
            return self.number(x) if t.is_float else x
        if isinstance(x, Order):
            one, zero = (Number(("number", float(c) if t.is_float else c)) for c in (1, 0))
            return self._select(x, one, zero)
        if t.bits == 1:
            self.refuse("a number is converted to a condition, which a comparison makes")
        x = self.operand(x)
        return x if holds(t, source) else x._replace(rounded=t)

    # ---- conditions

    def _compared(self, name: str, x: Any, y: Any) -> Order:
        if isinstance(x, Order) or isinstance(y, Order):
            self.refuse("conditions are compared")
        if isinstance(x, Polynomial) and isinstance(y, Polynomial) and name != "ne":
            return order((y - x, x - y) if name == "eq" else (y - x - (1 if name == "lt" else 0),))
        if isinstance(x, Polynomial) and isinstance(y, Polynomial) and (y - x).constant is not None:
            return NEVER if x == y else Order()
        lows, highs = ([x] if isinstance(x, Polynomial) else x.of if isinstance(x, Extreme) and not x.least else None,
                       [y] if isinstance(y, Polynomial) else y.of if isinstance(y, Extreme) and y.least else None)
        if name in ("lt", "le") and lows and highs:             # below the least of some is below each of them
            return order(b - a - (1 if name == "lt" else 0) for a in lows for b in highs)
        a, b = self.operand(x), self.operand(y)
        return Order((), (Number((name, a.term, b.term), a.formats | b.formats, None, self._size(a, b)),))

    def _logical(self, name: str, x: Any, y: Any) -> Order:
        if isinstance(y, Polynomial):               # the constants true, 1 or -1, and false
            truth = bool(y.constant)
            if name == "xor":
                return self.otherwise(x) if truth else x
            return x if truth == (name == "and") else NEVER if name == "and" else Order()
        if name == "and":
            return order(x.conditions + y.conditions, x.choices + y.choices)
        if NEVER in (x, y) or (name == "or" and Order() in (x, y)):
            return Order() if Order() in (x, y) else y if x == NEVER else x
        a, b = self.number(x), self.number(y)
        return Order((), (Number((name, a.term, b.term), a.formats | b.formats, None, self._size(a, b)),))

    def otherwise(self, x: Order) -> Order:
        """Where a condition does not hold."""
        if not x.conditions and not x.choices:
            return NEVER
        if len(x.conditions) == 1 and not x.choices:
            return order([-x.conditions[0] - 1])
        number = self.number(x)
        return Order((), (Number(("eq", number.term, ("number", 0)), number.formats, None, self._size(number)),))

    def _select(self, c: Order, x: Any, y: Any) -> Any:
        if x == y or c == Order() or c == NEVER:
            return y if c == NEVER else x
        if isinstance(x, (Polynomial, Extreme)) and isinstance(y, (Polynomial, Extreme)) and not c.choices:
            extreme = self._extreme(c, x, y)
            if extreme is not None:
                return extreme
        if isinstance(x, Order) or isinstance(y, Order):
            self.refuse("a choice between conditions is not taken")
        if isinstance(x, Address) or isinstance(y, Address):
            self.refuse("a choice between addresses is not taken")
        a, b = self.number(x), self.number(y)
        if a.rounded != b.rounded and (a.rounded or b.rounded):
            self.operand(a), self.operand(b)
        condition = self.number(c)
        formats, size = a.formats | b.formats | condition.formats, self._size(a, b, condition)
        if condition.term[0] == "lt" and len(c.choices) == 1 and not c.conditions:
            if condition.term[1:] == (a.term, b.term):          # b stays where neither is less
                return Number(("fmin", b.term, a.term), formats, a.rounded, size)
            if condition.term[1:] == (b.term, a.term):
                return Number(("fmax", b.term, a.term), formats, a.rounded, size)
        return Number(("where", condition.term, a.term, b.term), formats, a.rounded, size)

    @staticmethod
    def _extreme(c: Order, x: Any, y: Any) -> Extreme | Polynomial | None:
        """k.min and k.max of indices: a choice by their own order."""
        for least in (True, False):
            sides = [s.of if isinstance(s, Extreme) and s.least == least else (s,) for s in (x, y)]
            if any(isinstance(p, Extreme) for side in sides for p in side):
                continue
            low, high = sides if least else sides[::-1]
            for strict in (1, 0):
                if set(c.conditions) == {b - a - strict for a in low for b in high} and (
                        len(low) == 1 if least else len(high) == 1):
                    of = tuple(dict.fromkeys([*sides[0], *sides[1]]))
                    return of[0] if len(of) == 1 else Extreme(least, of)
        return None

    # ---- quotients

    def _divided(self, name: str, x: Polynomial, y: Polynomial) -> Any:
        """x // y, x % y, and the shifts and masks by powers of two that are the same."""
        n = y.constant
        if n is None:
            self.refuse(f"the operation {name} by {y}, which is no constant")
        if name == "shl":
            return x * (1 << n)
        if name == "and" and (n + 1) & n:
            self.refuse(f"x & {n} of an index is not taken")
        if name in ("shr", "and"):
            n = 1 << n if name == "shr" else n + 1
        return self.quotient(x, n, name in ("rem", "and"))

    def quotient(self, x: Polynomial, n: int, remainder: bool) -> Polynomial:
        floor, rest = (Polynomial([(names, part) for names, c in x.terms if (part := divmod(c, n)[which])])
                       for which in (0, 1))
        most: int | None = 0
        for names, c in rest.terms:
            most = None if most is None or any(name not in self.ranges for name in names) else (
                most + c * int(np.prod([self.ranges[name] - 1 for name in names], dtype=int)))
        if most is not None and most < n:
            return rest if remainder else floor
        of = str(rest) if len(rest.terms) == 1 else f"({rest})"
        name = f"({of} {'%' if remainder else '//'} {n})"
        self.quotients[name] = Quotient(remainder, rest, n)
        return polynomial(name) if remainder else floor + name


def resolved(p: Polynomial, values: Mapping[str, Any], quotients: Mapping[str, Quotient]) -> Any:
    """A polynomial's number where names have these values, NumPy's arrays among them."""
    total: Any = 0
    for names, c in p.terms:
        for name in names:
            if name in values:
                c = c * values[name]
            else:
                of = quotients[name]
                x = resolved(of.dividend, values, quotients)
                c = c * (x % of.divisor if of.remainder else x // of.divisor)
        total = total + c
    return total


def names_below(p: Polynomial, quotients: Mapping[str, Quotient]) -> set[str]:
    """The names of a polynomial, those that its quotients are of instead of them."""
    names: set[str] = set()
    for name in p.names:
        names |= names_below(quotients[name].dividend, quotients) if name in quotients else {name}
    return names


def places(term: Term) -> list[Polynomial]:
    """The subscripts and indices of a term, from left to right."""
    positions: list[Polynomial] = []

    def leaf(x: Term) -> Term:
        positions.extend(x[1].subscripts if x[0] == "load" else [x[1]] if x[0] == "index" else [])
        return x
    mapped(term, leaf)
    return positions


def with_places(term: Term, left: Iterable[Polynomial]) -> Term:
    """The term with other subscripts and indices, in the order of `places`."""
    new = iter(left)
    return accesses_mapped(term, lambda a: Access(a.array, tuple([next(new) for _ in a.subscripts])),
                           lambda _: next(new))
