"""Which rounds of a tree of loops access one element, one of them to write it: what a schedule must keep in order.

    dependences(nodes)      pairs of accesses, each with the distances between their rounds in the loops that both have

A distance is a number, or ANY where it is not one or not known. Two accesses of an element mean an equation for each
subscript: a sum of factors times unknowns is a constant. Where factors nest, each larger than what the smaller ones
can add up to, as those that splits make do, it is solved digit by digit, exactly; else the greatest common divisor
and intervals may exclude it. Conditions are ignored and the bounds of triangles taken at their widest, so that too
much may be found, but never too little.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from tilewright.nests.nest import Access
from tilewright.nests.polynomial import Polynomial
from tilewright.nests.tree import Do, For, Node, When, walk

ANY = "*"
Range = tuple[int, int]             # from, to, both within
Distance = int | str
MOST = 256                          # solutions that are listed


@dataclass(frozen=True)
class Dependence:
    """`second` accesses in round r + distance the element of `array` that `first`, before it in the text or the same
    statement, accesses in round r: of each of `loops`, outermost first. `own`: by a reduction, whose target it is."""
    array: str
    loops: tuple[str, ...]
    distances: tuple[Distance, ...]
    own: bool
    first: Do
    second: Do

    def distance(self, loop: str) -> Distance:
        """0 for a loop that is not around both."""
        return self.distances[self.loops.index(loop)] if loop in self.loops else 0

    def signs(self) -> Iterator[tuple[int, ...]]:
        """The signs that the distances may have, of two different rounds, the first non-zero one 1."""
        for signs in product(*[(-1, 0, 1) if d == ANY else ((d > 0) - (d < 0),)     # type: ignore[operator]
                               for d in self.distances]):
            leading = next((x for x in signs if x), 0)
            if leading:
                yield tuple([leading * x for x in signs])

    def __str__(self) -> str:
        return ", ".join(f"{loop}: {d}" for loop, d in zip(self.loops, self.distances)) or "no loop"


def ranges(around: Sequence[For | When]) -> dict[str, Range]:
    """The values of the indices of these loops, bounds that depend on others at their widest."""
    known: dict[str, Range] = {}
    for node in around:
        if isinstance(node, For):
            known |= loop_range(node, known)
    return known


def loop_range(node: For, around: Mapping[str, Range]) -> dict[str, Range]:
    """The values of a loop's index, and of the other names that it has."""
    first, last = span(node.start, around)[0], span(node.stop, around)[1] - 1
    return {node.index: (first, max(last, first)), **{name: (0, n - 1) for name, _, _, n in node.rings},
            **({node.turns[0]: (0, node.turns[1] - 1)} if node.turns else {})}


def span(p: Polynomial, within: Mapping[str, Range]) -> Range:
    """The least and the greatest value of an affine polynomial of indices in these ranges."""
    constant, factors = p.linear()
    low = high = constant
    for name, c in factors.items():
        a, b = within[name]
        low += c * (a if c > 0 else b)
        high += c * (b if c > 0 else a)
    return low, high


def dependences(nodes: tuple[Node, ...], private: Mapping[str, frozenset[str]] | None = None) -> Iterator[Dependence]:
    """All of the tree's. `private`: for arrays, the loops in each round of which they are another array, unless
    given those that `privates` finds for scalars."""
    private = privates(nodes) if private is None else private
    every = [(n, around) for n, around in walk(nodes) if isinstance(n, Do)]
    for at, (s, before) in enumerate(every):
        for t, behind in every[at:]:
            common = [x for x, y in zip(before, behind) if x is y and isinstance(x, For)]
            loops = tuple([x.index for x in common])
            seen = set()
            for a, writes in s.accesses():
                for b, also in t.accesses():
                    if a.array != b.array or not (writes or also) or (a, b) in seen or (s is t and (b, a) in seen):
                        continue
                    seen.add((a, b))
                    own = s is t and bool(s.reduce) and a == b == s.target
                    apart = private.get(a.array, frozenset())
                    for d in distances(a, b, loops, ranges(before), ranges(behind), apart):
                        if s is not t or any(d):
                            yield Dependence(a.array, loops, d, own, s, t)


def privates(nodes: tuple[Node, ...], buffers: Sequence[str] = ()) -> dict[str, frozenset[str]]:
    """The loops in each round of which a scalar is set before it is read, so that no round depends on another's. A
    schedule's buffers are filled first."""
    accesses: dict[str, list[tuple[tuple[For | When, ...], bool]]] = {}
    for node, around in walk(nodes):
        if isinstance(node, Do):
            for a, writes in node.accesses():
                if not a.subscripts or a.array in buffers:
                    accesses.setdefault(a.array, []).append((around, writes))
    loops_of = {}
    for name, every in accesses.items():
        shared = every[0][0]
        for around, _ in every:
            shared = tuple([x for x, y in zip(shared, around) if x is y])
        loops = [x for x in shared if isinstance(x, For)]
        first, writes = every[0]
        inside = first[first.index(loops[-1]) + 1:] if loops else first
        if name in buffers or (writes and all(_asked(x, around) for x in inside for around, _ in every)):
            loops_of[name] = frozenset(x.index for x in loops)
    return loops_of


def _asked(node: For | When, around: Sequence[For | When]) -> bool:
    """Whether what stands in these runs only where a condition that stands around the first access holds."""
    asked = [c for x in around if isinstance(x, When) for c in x.conditions]
    return isinstance(node, When) and all(c in asked for c in node.conditions)


def distances(a: Access, b: Access, loops: Sequence[str], before: Mapping[str, Range], behind: Mapping[str, Range],
              private: frozenset[str] = frozenset()) -> list[tuple[Distance, ...]]:
    """The distances in `loops` of rounds in which a and b are one element; none: they never are. `before` and
    `behind`: the ranges of the indices around a, and around b."""
    some: list[dict[str, int]] = [{name: 0 for name in loops if name in private or before[name][0] == before[name][1]}]
    for x, y in zip(a.subscripts, b.subscripts):
        solved = _solutions(x, y, loops, before, behind)
        joined = []
        for known in some:
            for new in solved:
                if all(known.get(name, d) == d for name, d in new.items()):
                    joined.append({**known, **new})
        some = [dict(x) for x in {tuple(sorted(x.items())) for x in joined}]
        if len(some) > MOST:
            shared = {name: d for name, d in some[0].items() if all(x.get(name) == d for x in some)}
            some = [shared]
    return sorted({tuple([x.get(name, ANY) for name in loops]) for x in some}, key=str)


def _solutions(x: Polynomial, y: Polynomial, loops: Sequence[str], before: Mapping[str, Range],
               behind: Mapping[str, Range]) -> list[dict[str, int]]:
    """Distances for which x in one round is y in another: as far as this equation determines them."""
    (first, of_x), (second, of_y) = x.linear(), y.linear()
    unknowns: list[tuple[int, Range, tuple[str, str]]] = []
    for name in {**of_x, **of_y}:
        c, d = of_x.get(name, 0), of_y.get(name, 0)
        if name in loops and c == d:
            low, high = before[name]
            unknowns.append((-c, (low - high, high - low), ("distance", name)))
        else:
            if c:
                unknowns.append((c, before[name], ("x", name)))
            if d:
                unknowns.append((-d, behind[name], ("y", name)))
    unknowns.sort(key=lambda u: -abs(u[0]))
    if not any(name in loops for _, _, (_, name) in unknowns):          # nothing but whether there is a solution
        return [{}] if _may_be_zero(unknowns, first - second) else []
    solutions = _digits(unknowns, first - second, [MOST])
    if solutions is None:
        return [{}]
    some = []
    for values in solutions:
        known = {name: v for (kind, name), v in values.items() if kind == "distance"}
        for (kind, name), v in values.items():
            if kind == "x" and ("y", name) in values and name in loops:
                known[name] = values["y", name] - v
        some.append(known)
    return some


def _may_be_zero(unknowns: list[tuple[int, Range, tuple[str, str]]], constant: int) -> bool:
    """Whether common divisors and intervals let constant + the sum of factors times unknowns be 0."""
    least = sum(min(c * a, c * b) for c, (a, b), _ in unknowns)
    most = sum(max(c * a, c * b) for c, (a, b), _ in unknowns)
    divisor = gcd(*[c for c, _, _ in unknowns])
    return constant % divisor == 0 if divisor and least <= -constant <= most else least <= -constant <= most


def _digits(unknowns: list[tuple[int, Range, tuple[str, str]]], constant: int, left: list[int]
            ) -> list[dict[tuple[str, str], int]] | None:
    """All values for which constant + the sum of factors times unknowns is 0; None where they are too many. `left`:
    how many may still be tried."""
    if not unknowns:
        return [] if constant else [{}]
    if constant % gcd(*[c for c, _, _ in unknowns]):
        return []
    (c, (low, high), name), rest = unknowns[0], unknowns[1:]
    least = sum(min(f * a, f * b) for f, (a, b), _ in rest)
    most = sum(max(f * a, f * b) for f, (a, b), _ in rest)
    ends = sorted((-constant - least, -constant - most))        # c times the value is between these
    if c < 0:
        ends = [-ends[1], -ends[0]]
    first, last = max(low, -(-ends[0] // abs(c))), min(high, ends[1] // abs(c))
    solutions = []
    for v in range(first, last + 1):
        left[0] -= 1
        if left[0] < 0:
            return None
        further = _digits(rest, constant + c * v, left)
        if further is None:
            return None
        solutions += [{name: v, **x} for x in further]
    return solutions
