"""Which rounds a loop nest of given sizes has, and which elements they access: `rounds(nest, sizes)`.

An index counts from 0, so that a statement is a box of extents, conditions that are >= 0 in its rounds, and an element
whose subscripts are linear in the indices. Two normalisations do most of what recognition needs: two indices that occur
as n*u + v everywhere become one (tiles by hand; block and thread), and a condition on one index becomes its extent.

    check(nest, sizes, shapes)      refuses loops that may access what is outside of an array
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from tilewright.ir.program import Line
from tilewright.nests.nest import Access, LoopNest, Statement, Term, leaves, mapped, refuse
from tilewright.nests.polynomial import Linear, Polynomial

Forms = Mapping[str, Linear]


class Element(NamedTuple):
    """What a round accesses: a subscript for each axis; of a scalar, one for each loop that it is private to."""
    array: str
    subscripts: tuple[Linear, ...]
    scalar: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal ones; it can be hashed."""
        return self.array, tuple([x.key for x in self.subscripts])

    @property
    def indices(self) -> set[str]:
        return {i for x in self.subscripts for i in x.factors}

    def renamed(self, names: Mapping[str, str]) -> Element:
        return self._replace(subscripts=tuple([x.renamed(names) for x in self.subscripts]))


@dataclass(frozen=True)
class Rounds:
    """A statement of given sizes. `conditions` are those that not all of the box fulfils. An ("index", x) of its value
    has a `Linear`."""
    extents: dict[str, int]
    conditions: tuple[Linear, ...]
    target: Element
    reduce: str
    value: Term
    line: Line
    loops: frozenset[str]           # also those of one round, which have no extent
    source: Statement | None = None
    written: Mapping[str, Linear] = field(default_factory=dict)     # what an index of the source is in these

    @property
    def elements(self) -> list[Element]:
        """The target, and what the value reads."""
        return [self.target, *leaves(self.value)]

    def forms(self) -> Iterator[Linear]:
        """The conditions and subscripts."""
        yield from self.conditions
        for element in self.elements:
            yield from element.subscripts

    def changed(self, form: Any, extents: dict[str, int], loops: frozenset[str] | None = None) -> Rounds:
        """With form(x) for every condition and subscript."""
        def element(e: Element) -> Element:
            return e._replace(subscripts=tuple(map(form, e.subscripts)))
        value = mapped(self.value, lambda x: ("load", element(x[1])) if x[0] == "load" else (
            ("index", form(x[1])) if x[0] == "index" else x))
        written = {i: form(x) for i, x in self.written.items()}
        return replace(self, extents=extents, conditions=tuple(map(form, self.conditions)), target=element(self.target),
                       value=value, written=written, loops=self.loops if loops is None else loops)

    def renamed(self, names: Mapping[str, str]) -> Rounds:
        return self.changed(lambda x: x.renamed(names), {names.get(i, i): n for i, n in self.extents.items()})

    @property
    def empty(self) -> bool:
        return min(self.extents.values(), default=1) <= 0 or any(c.most(self.extents) < 0 for c in self.conditions)

    def at_least(self, form: Linear, least: int = 0) -> bool:
        """Whether form >= least in all rounds: by the extents, or with one or two of the conditions."""
        for count in range(3):
            for some in combinations_with_replacement(self.conditions, count):
                rest = form
                for c in some:
                    rest = rest.plus(c, -1)
                if rest.least(self.extents) >= least:
                    return True
        return False


def rounds(nest: LoopNest, sizes: Mapping[str, int]) -> list[Rounds]:
    """The statements that have rounds, in order. Refused for scalars that carry a value from round to round."""
    private = {name: _private(nest, name) for name in nest.scalars}
    bounded = [r for s in nest.statements if (r := _bound(s, sizes, private)) is not None]
    return [r for r in map(tightened, joined(bounded)) if not r.empty]


def check(nest: LoopNest, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
    """Refused, with the line, if a subscript may be outside of its axis; of a pointer, of all elements."""
    for statement in (*nest.reads, *nest.statements):
        r = _bound(statement, sizes, dict.fromkeys(nest.scalars, ()))
        if r is None:
            continue
        r = tightened(joined([r])[0])
        for element in [] if r.empty else r.elements:
            if not element.scalar:
                inside(r, element, shapes[element.array])


def inside(r: Rounds, element: Element, shape: Sequence[int]) -> None:
    """Refused if it may access an element that the array does not have."""
    for axis, (x, n) in enumerate(zip(element.subscripts, shape, strict=True)):
        last = Linear(n - 1, {}).plus(x, -1)
        if not r.at_least(x) or not r.at_least(last):
            least, most = x.least(r.extents), x.most(r.extents)
            refuse(r.line, f"{element.array} is accessed at {least} ... {most} of axis {axis}, which has {n} elements")


def _private(nest: LoopNest, name: str) -> tuple[str, ...]:
    """The loops that all statements with a scalar share, in each round of which the first one sets it."""
    users = [s for s in nest.statements if name in (s.target.array, *(a.array for a in leaves(s.value)))]
    if not users:
        return ()
    shared = users[0].loops
    for s in users:
        shared = tuple(x for x, y in zip(shared, s.loops) if x.index == y.index)
    first = users[0]
    set_first = first.target.array == name and not first.reduce and all(a.array != name for a in leaves(first.value))
    if not set_first or len(first.loops) != len(shared) or any(
            s.conditions[:len(first.conditions)] != first.conditions for s in users):
        refuse(first.line, f"{name} carries a value from one round of a loop to the next")
    return tuple(x.index for x in shared)


def _linear(p: Polynomial, indices: Forms, sizes: Mapping[str, int], line: Line) -> Linear:
    def refusal(reason: str) -> Exception:
        refuse(line, reason)
    flat = p.replaced(sizes).linear(refusal)
    total = Linear(flat.constant, {})
    for i, c in flat.factors.items():
        total = total.plus(indices[i], c)
    return total


def _bound(statement: Statement, sizes: Mapping[str, int], private: Mapping[str, tuple[str, ...]]) -> Rounds | None:
    """A statement of given sizes; None if it has no rounds."""
    indices, extents, conditions = dict[str, Linear](), dict[str, int](), list[Linear]()
    for loop in statement.loops:
        start, stop = (_linear(p, indices, sizes, loop.line) for p in (loop.start, loop.stop))
        first = start.least(extents)
        count = -(-(stop.most(extents) - first) // loop.step)
        if count <= 0:
            return None
        if start.factors and loop.step > 1:
            refuse(loop.line, "a start that depends on another index takes a step of 1")
        before = dict(extents)
        index = indices[loop.index] = Linear(first, {loop.index: loop.step} if count > 1 else {})
        if count > 1:
            extents[loop.index] = count
        for condition in (index.plus(start, -1), Linear(-1, {}).plus(stop).plus(index, -1)):
            if condition.factors.keys() & before.keys():
                conditions.append(condition)
    conditions += [_linear(c, indices, sizes, statement.line) for c in statement.conditions]
    conditions = [c for c in conditions if c.least(extents) < 0]

    def element(a: Access) -> Element:
        if a.array in private:
            places = [i for i in private[a.array] if i in extents]
            return Element(a.array, tuple([Linear(0, {i: 1}) for i in places]), True)
        return Element(a.array, tuple([_linear(p, indices, sizes, statement.line) for p in a.subscripts]))

    def leaf(x: Term) -> Term:
        if x[0] == "load":
            return ("load", element(x[1]))
        if x[0] == "index":
            number = _linear(x[1], indices, sizes, statement.line)
            return ("index", number) if number.factors else ("number", number.constant)
        return x
    result = Rounds(extents, tuple(conditions), element(statement.target), statement.reduce,
                   mapped(statement.value, leaf), statement.line, frozenset(x.index for x in statement.loops),
                   statement, indices)
    return None if result.empty else result


def joined(found: list[Rounds]) -> list[Rounds]:
    """Two indices that every subscript and condition has as n*u + v, v < n, as one."""
    def one(r: Rounds, u: str, v: str) -> bool:
        scalars = all({u, v} & e.indices in (set(), {u, v}) for e in r.elements if e.scalar)
        forms = [*r.conditions, *(x for e in r.elements if not e.scalar for x in e.subscripts),
                 *leaves(r.value, "index")]
        return scalars and {u, v} <= r.extents.keys() and all(
            x.factors.get(u, 0) == r.extents[v] * x.factors.get(v, 0) for x in forms)

    def pair() -> tuple[str, str] | None:
        for r in found:
            for u in r.extents:
                for v in r.extents:
                    if u != v and all(one(x, u, v) for x in found if {u, v} & x.extents.keys()):
                        return u, v
        return None

    while (both := pair()) is not None:
        found = [_without(r, *both) if both[0] in r.extents else r for r in found]
    return found


def _without(r: Rounds, u: str, v: str) -> Rounds:
    """v counts what n*u + v did."""
    extents = {i: n * r.extents[u] if i == v else n for i, n in r.extents.items() if i != u}
    scalars = {e.array for e in r.elements if e.scalar}

    def element(e: Element) -> Element:
        kept = e.subscripts if e.array not in scalars else tuple(x for x in e.subscripts if u not in x.factors)
        return e._replace(subscripts=kept)
    r = replace(r, target=element(r.target),
                value=mapped(r.value, lambda x: ("load", element(x[1])) if x[0] == "load" else x))
    return r.changed(lambda x: Linear(x.constant, {i: c for i, c in x.factors.items() if i != u}), extents,
                     r.loops - {u} | {v})


def tightened(r: Rounds) -> Rounds:
    """A condition on one index is a bound of it; the index counts from its first round."""
    while single := [c for c in r.conditions if len(c.factors) == 1]:
        (i, factor), = (c := single[0]).factors.items()
        first, last = 0, r.extents[i] - 1
        if factor > 0:
            first = max(0, -(c.constant // factor))
        else:
            last = min(last, c.constant // -factor)
        r = restricted(replace(r, conditions=tuple(x for x in r.conditions if x is not c)), i, first, last - first + 1)
        if last < first:
            return r
    return replace(r, conditions=tuple(c for c in r.conditions if c.least(r.extents) < 0))


def restricted(r: Rounds, i: str, first: int, count: int) -> Rounds:
    """The rounds first ... first + count - 1 of an index, which counts from 0 again."""
    if first == 0:
        return replace(r, extents={**r.extents, i: count})
    return r.changed(lambda x: Linear(x.constant + first * x.factors.get(i, 0), x.factors), {**r.extents, i: count})
