"""`join`: two loops, one after the other, as one, in which the second one runs some rounds behind.

    for i: B[i + 1] = A[i] + A[i + 2]       join i and j, 2 rounds behind, while B[j] ... B[j + 2] are in a cache:
    for j: A[j + 1] = B[j] + B[j + 2]

    for i.begin < 2: ...                    the first rounds of the first loop
    for i: B[i + 3] = A[i + 2] + A[i + 4]; A[i + 1] = B[i] + B[i + 2]
    for j.end < 2: ...                      the last ones of the second loop
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tilewright.nests.nest import Access
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import Range, span
from tilewright.nests.schedules.operations import Done
from tilewright.nests.schedules.scheduled import Scheduled, illegal, simplified, widest
from tilewright.nests.tree import Do, For, Node, When, replaced, rewritten, walk


def join(s: Scheduled, first: str, second: str, behind: int | None) -> Done:
    """`behind`: rounds; unless given as few as dependences allow."""
    one, two = s.loop(first), s.loop(second)
    body = next((nodes for nodes in _bodies(s.nodes) if any(x is one for x in nodes)), ())
    place = next(n for n, x in enumerate(body) if x is one)
    if place + 1 == len(body) or body[place + 1] is not two:
        illegal(two.line, f"{second} does not follow {first} directly")
    if one.mark or two.mark:
        illegal(one.line, f"{first} or {second} is marked already: join loops first")
    rounds = one.extent
    if rounds is None or rounds != two.extent:
        illegal(two.line, f"{first} has {one.stop} rounds and {second} {two.stop}: joined loops have equally many")
    needed, why = _needed(s, one, two)
    behind = needed if behind is None else behind
    if behind < needed or behind >= rounds:
        illegal(two.line, f"{second} needs what {first} does up to {needed} rounds later ({why}), of {rounds}")
    by = {second: polynomial(first)}
    both = replace(one, stop=polynomial(rounds - behind), body=(
        *replaced(one.body, {first: polynomial(first) + behind}), *replaced(two.body, by)))
    new: list[Node] = [both]
    if behind:
        new = [_part(one, ".begin", 0, behind), both, _part(two, ".end", rounds - behind, behind)]

    def inner(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        result: list[Node] = []
        for n in nodes:
            if n is one:
                result += new
            elif n is not two:
                result.append(replace(n, body=inner(n.body)) if isinstance(n, (For, When)) else n)
        return tuple(result)
    s = replace(s, nodes=simplified(inner(s.nodes)))
    return s, f"join {first} and {second}, {behind} rounds behind: what it needs is there by then"


def _bodies(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    yield nodes
    for n in nodes:
        if isinstance(n, (For, When)):
            yield from _bodies(n.body)


def _part(loop: For, ending: str, start: int, rounds: int) -> For:
    """Some rounds of a loop as another one, with names of their own."""
    names = {x.index: x.index + ending for x, _ in walk((loop,)) if isinstance(x, For)}
    body = rewritten(loop.body, lambda x: (replace(x, index=names[x.index]),) if isinstance(x, For) else (x,))
    by = {a: polynomial(b) + (start if a == loop.index else 0) for a, b in names.items()}
    return replace(loop, index=names[loop.index], stop=polynomial(rounds), body=replaced(body, by))


def _needed(s: Scheduled, one: For, two: For) -> tuple[int, str]:
    """How many rounds a round of the second loop must come after that of the first one of the same number; and the
    accesses that say so."""
    box = widest(s.nodes, {})
    most, why = 0, "nothing in common"
    parts = [[a for d, _ in walk(x.body) if isinstance(d, Do) for a in d.accesses()] for x in (one, two)]
    for a, writes in dict.fromkeys(parts[0]):
        for b, also in dict.fromkeys(parts[1]):
            if a.array == b.array and (writes or also):
                later = _later(a, b, one, two, box)
                if later is not None and later > most:
                    most, why = later, f"{a} and {b}"
    return most, why


def _later(a: Access, b: Access, one: For, two: For, box: dict[str, Range]) -> int | None:
    """The most rounds by which the first loop may access an element later than the second one; None: never."""
    distance = (one.extent or 1) - 1
    mine, theirs = ({x.index for x, _ in walk((loop,)) if isinstance(x, For)} for loop in (one, two))
    for p, q in zip(a.subscripts, b.subscripts):
        c, d = p.linear().factors.get(one.index, 0), q.linear().factors.get(two.index, 0)
        if c != d:
            continue
        rest = _apart(q, two.index, theirs, "'") - _apart(p, one.index, mine, "")
        within: dict[str, Any] = {x: box[x.rstrip("'")] for x in rest.names}
        low, high = span(rest, within)          # c times the difference of rounds is between these
        if not c:
            if low > 0 or high < 0:
                return None
            continue
        distance = min(distance, (high if c > 0 else -low) // abs(c))
    return max(distance, 0) if distance >= 0 else None


def _apart(p: Polynomial, loop: str, inner: set[str], ending: str) -> Polynomial:
    """Without the loop; indices inside of it by names of their own."""
    return p.replaced({loop: 0} | {x: polynomial(x + ending) for x in inner - {loop}})


def joinable(s: Scheduled) -> list[tuple[str, str]]:
    """Loops that follow each other and have an array in common, equally many rounds each."""
    pairs = []
    for nodes in _bodies(s.nodes):
        for x, y in pairwise(nodes):
            if isinstance(x, For) and isinstance(y, For) and x.extent and x.extent == y.extent:
                if _arrays(x) & _arrays(y):
                    pairs.append((x.index, y.index))
    return pairs


def _arrays(node: Node) -> set[str]:
    return {a.array for d, _ in walk((node,)) if isinstance(d, Do) for a, _ in d.accesses()}
