"""The largest or smallest number of a loop, and with it its index, or whatever else its round says: found by lanes.

    for j: if x[j] > best: best = x[j]; at = j      each lane does so for its own rounds, and notes which was the last;
                                                    then lanes compare: a larger one wins, of equal ones the first

`best = max(best, x[j])` behind `at = where(x[j] > best, j, at)` is the same; with >= the last one of equal ones wins.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tilewright.nests.nest import Access, Term, leaves
from tilewright.nests.schedules.dependences import dependences
from tilewright.nests.schedules.scheduled import Scheduled
from tilewright.nests.tree import Do, For, Node, walk

COMPARED = ("lt", "le")
FOLDED = {("fmax", True), ("fmin", False)}     # of floats that are no NaN; whether the best one is compared first


class Extremum(NamedTuple):
    """`best` and `beside` it registers that change where `taken`; `do` changes the best one."""
    best: Access
    beside: tuple[Access, ...]
    do: Do
    taken: Term
    largest: bool


def extremum(s: Scheduled, loop: For) -> Extremum | None:
    """What the rounds of a loop find; None if they do anything else for each other."""
    if (loop.extent or 0) < 2 or loop.step != 1 or loop.below or loop.mark:
        return None
    carried = {d.array for d in dependences(s.nodes, s.privates()) if loop.index in d.loops and d.distance(loop.index)}
    inside = [(n, [x.index if isinstance(x, For) else x.conditions for x in around])
              for n, around in walk(loop.body) if isinstance(n, Do)]
    changes = [(at, n, around) for at, (n, around) in enumerate(inside) if n.target.array in carried]
    if len(changes) < 2 or len(changes) > len(carried) or any(
            n.target.subscripts or s.space(n.target.array) != "registers" or around != changes[0][2]
            or any(isinstance(x, str) for x in around) for _, n, around in changes):
        return None
    masks = {n.target: (at, n.value[1]) for at, (n, around) in enumerate(inside)
             if n.value[0] == "where" and not n.reduce and n.value[1][0] in COMPARED
             and [x[1:] for x in n.value[2:]] == [(1,), (0,)] and around == changes[0][2]}
    compared_with = [*masks.values(), *[(-1, n.value[1]) for _, n, _ in changes if n.value[0] == "where"]]
    for at, do, _ in changes:
        found = _best(do, masks, compared_with if s.element(do.target.array).is_float else [])
        if found is None:
            continue
        compared, largest, set_at = found
        others = [x for x in changes if x[1] is not do]
        if max(set_at, 0) > at or not all(_beside(n, do, compared, masks, before < at) for before, n, _ in others):
            return None
        reads = {n.target for _, n, _ in changes}
        free = [a for _, n, _ in changes for x in _chosen(n) for a in leaves(x)]
        rest = [a for n, _ in inside if n not in [x for _, x, _ in changes] and n.value[1:2] != (compared,)
                for a, _ in n.accesses()]
        if reads & {*free, *rest} or any(a in reads and a != do.target for a in leaves(compared)):
            return None
        return Extremum(do.target, tuple([n.target for _, n, _ in others]), do, compared, largest)
    return None


def _condition(term: Term, masks: dict[Access, tuple[int, Term]]) -> tuple[Term, int] | None:
    """The comparison that decides, and where the mask is set that has it, -1 if it stands here."""
    if term[0] == "ne" and term[1][0] == "load" and term[1][1] in masks and term[2][1:] == (0,):
        at, found = masks[term[1][1]]
        return found, at
    return (term, -1) if term[0] in COMPARED else None


def _chosen(do: Do) -> tuple[Term, ...]:
    """What a change assigns."""
    return (do.value,) if do.reduce else do.value[2:3]


def _best(do: Do, masks: dict[Access, tuple[int, Term]], known_by: Sequence[tuple[int, Term]]
          ) -> tuple[Term, bool, int] | None:
    """(the comparison, whether the largest is kept, where its mask is set) of a statement that keeps an extremum, for
    one that folds numbers a comparison of these."""
    own = ("load", do.target)
    if do.reduce:
        for at, found in known_by:
            if found[0] in COMPARED and {*found[1:]} == {own, do.value} and (do.reduce, found[1] == own) in FOLDED:
                return found, found[1] == own, at
        return None
    if do.value[0] != "where" or do.value[3] != own or (known := _condition(do.value[1], masks)) is None:
        return None
    compared, at = known
    if compared[1:] == (own, do.value[2]):
        return compared, True, at
    return (compared, False, at) if compared[1:] == (do.value[2], own) else None


def _beside(do: Do, best: Do, compared: Term, masks: dict[Access, tuple[int, Term]], before: bool) -> bool:
    """Whether a statement changes its register where the comparison is true of the best one until then."""
    if do.reduce or do.value[0] != "where" or do.value[3] != ("load", do.target):
        return False
    known = _condition(do.value[1], masks)
    return known is not None and known[0] == compared and (before or known[1] >= 0)


def combined(best: Extremum, own: Sequence[Access], place: Access, other: Callable[[Access], Access],
             flags: Sequence[Access], values: Sequence[Term]) -> Iterator[Node]:
    """Registers take what another lane has where that wins. `own`: the best one, and those beside it; `place`: rounds;
    `other`: registers for another lane's; `values`: these, in the order of own and place; `flags`: three registers."""
    line, (tie, later, taken), first = best.do.line, flags, own[0]
    for x, value in zip((*own, place), values):
        yield Do(other(x), "", value, line)

    def chosen(target: Access, condition: Term, yes: Term, no: Term) -> Do:
        return Do(target, "", ("where", condition, yes, no), line)

    def load(x: Access) -> Term:
        return "load", x
    one, zero = ("number", 1), ("number", 0)
    earlier = load(other(place)), load(place)
    larger = load(first), load(other(first))
    yield chosen(tie, ("eq", *larger), one, zero)
    yield chosen(later, ("lt", *(earlier if best.taken[0] == "lt" else earlier[::-1])), load(tie), zero)
    yield chosen(taken, ("lt", *(larger if best.largest else larger[::-1])), one, load(later))
    for x in (*own, place):
        yield chosen(x, ("ne", load(taken), zero), load(other(x)), load(x))
