"""A function's statements in parts that run one after the other: contractions, and what remains loops.

Loops hold statements of several contractions together; they are taken apart where no round of one part needs what
another part does in another round.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.nests.domain import Element, Rounds, rounds
from tilewright.nests.nest import LoopNest, Refused, Statement, leaves
from tilewright.nests.products.recognition import Contraction, Overlap, recognise


@dataclass
class Part:
    """Statements that are one contraction, or that remain loops, and why."""
    statements: list[Rounds]
    contraction: Contraction | None = None
    reason: str = ""
    loops: set[str] = field(default_factory=set)
    sources: tuple[Statement, ...] = ()


def parts(nest: LoopNest, sizes: Mapping[str, int], overlap: Overlap) -> list[Part]:
    """The statements of given sizes in parts, which can run one after the other."""
    done, pending = list[Part](), list[Rounds]()
    for group in _outermost(nest):
        try:
            pending += rounds(replace(nest, statements=group), sizes)
        except Refused as refusal:
            done += [*_apart(_chains(pending, overlap, nest), overlap), Part(
                [], None, f"{refusal.line}: {refusal.reason}", {x.index for s in group for x in s.loops}, group)]
            pending = []
    done += _apart(_chains(pending, overlap, nest), overlap)
    place = {id(s): n for n, s in enumerate(nest.statements)}
    for part in done:
        sources = part.sources or [s.source for s in part.statements if s.source is not None]
        part.sources = tuple(sorted(sources, key=lambda s: place[id(s)]))
    return done


def _outermost(nest: LoopNest) -> list[tuple[Statement, ...]]:
    """Statements in groups that share neither loops nor scalars."""
    groups = list[tuple[list[Statement], set[str]]]()
    for s in nest.statements:
        names = {x.index for x in s.loops[:1]} | {a.array for a in (s.target, *leaves(s.value)) if not a.subscripts}
        group = [s]
        while groups and (groups[-1][1] & names or any(names & x for _, x in groups)):
            before, shared = groups.pop()
            group, names = before + group, names | shared
        groups.append((group, names))
    return [tuple(group) for group, _ in groups]


def _chains(found: list[Rounds], overlap: Overlap, nest: LoopNest) -> list[Part]:
    """Reductions with the statements before and after them that belong to them."""
    done = list[Part]()
    rest = list(found)
    while rest:
        first = next((n for n, s in enumerate(rest) if s.reduce), None)
        if first is None:
            done.append(Part(rest, reason="nothing is reduced"))
            break
        inits, between = _moved(rest[:first][::-1], overlap, {rest[first].target.array}, False)
        posts, _ = _moved(rest[first + 1:], overlap, {s.target.array for s in (*inits, rest[first])}, True)
        if between and any(_conflict(s, t, overlap) for s in between for t in (*inits, rest[first], *posts)):
            done.append(Part(between[::-1], reason="nothing is reduced"))
            between = []
        part = _part(inits[::-1], rest[first], posts, overlap, nest)
        done.append(part)
        taken = set(map(id, part.statements))
        rest = [*between[::-1], *(s for s in rest[first + 1:] if id(s) not in taken)]
    return done


def _moved(statements: list[Rounds], overlap: Overlap, names: set[str], after: bool
           ) -> tuple[list[Rounds], list[Rounds]]:
    """Statements, in the order of their distance from a reduction, that belong to it by what they write, or what they
    read after it; and the others, which none of the former depends on."""
    mine, others = list[Rounds](), list[Rounds]()
    for n, s in enumerate(statements):
        reads = any(e.array in names for e in leaves(s.value))
        belongs = (reads or s.target.array in names) and not s.reduce if after else s.target.array in names
        if not belongs:
            others.append(s)
        elif any(_conflict(s, t, overlap) for t in others):
            return mine, others + statements[n:]
        else:
            mine.append(s)
            names = names | {s.target.array} if after else names
    return mine, others


def _conflict(s: Rounds, t: Rounds, overlap: Overlap) -> bool:
    """Whether one writes what the other accesses."""
    def meet(a: Element, b: Element) -> bool:
        return a.array == b.array if a.scalar or b.scalar else overlap(a.array, b.array)
    return any(meet(x.target, e) for x, y in ((s, t), (t, s)) for e in y.elements)


def _part(inits: list[Rounds], r: Rounds, posts: list[Rounds], overlap: Overlap, nest: LoopNest) -> Part:
    """The contraction with as many of the statements after it as belong to it."""
    reason = ""
    for count in range(len(posts), -1, -1):
        try:
            return Part([*inits, r, *posts[:count]], recognise(inits, r, posts[:count], overlap, nest))
        except Refused as refusal:
            reason = reason or f"{refusal.line}: {refusal.reason}"
    return Part([*inits, r, *posts], reason=reason)


def _apart(found: list[Part], overlap: Overlap) -> list[Part]:
    """Parts that share loops, and in different rounds the elements of an array, are one, which remains loops."""
    done = list[Part]()
    for part in found:
        part.loops = set().union(*(s.loops for s in part.statements))
        for n, before in enumerate(done):
            if why := _meeting(before, part, overlap):
                both = [s for x in (*done[n:], part) for s in x.statements]
                part = Part(both, None, why, set().union(*(x.loops for x in (*done[n:], part))))
                del done[n:]
                break
        done.append(part)
    return done


def _scalars(part: Part) -> set[str]:
    return {e.array for s in part.statements for e in s.elements if e.scalar}


def _sets(part: Part, name: str) -> bool:
    """Whether a scalar has no value of before the part in any of its rounds."""
    users = [s for s in part.statements if any(e.array == name for e in s.elements)]
    first = users[0]
    return (first.target.array == name and not first.reduce and not first.conditions
            and all(e.array != name for e in leaves(first.value)) and all(first.loops <= s.loops for s in users))


def _meeting(first: Part, second: Part, overlap: Overlap) -> str:
    """Why two parts cannot run one after the other."""
    for name in _scalars(first) & _scalars(second):
        if not _sets(second, name):
            return f"{second.statements[0].line}: reads {name}, which other statements set"
    shared = first.loops & second.loops
    if not shared:
        return ""
    written = [{s.target.array for s in p.statements} for p in (first, second)]
    accessed = [[e for s in p.statements for e in s.elements] for p in (first, second)]
    names = [{e.array for e in elements} for elements in accessed]
    if any(a != b and overlap(a, b) for x in (0, 1) for a in written[x] for b in names[1 - x]):
        return f"{second.statements[0].line}: shares a loop with another contraction, and memory"
    for name in (written[0] & names[1]) | (written[1] & names[0]):
        elements = [e for e in (*accessed[0], *accessed[1]) if e.array == name]
        extents = {i for s in (*first.statements, *second.statements) for i in s.extents}
        for i in shared & extents:
            if not any(len({e.subscripts[axis].key for e in elements}) == 1 and set(x.factors) == {i}
                       for axis, x in enumerate(elements[0].subscripts)):
                return f"{second.statements[0].line}: shares the loop {i} with another contraction, and {name}"
    if first.contraction is None or second.contraction is None or set(first.contraction.sums) & shared:
        return f"{second.statements[0].line}: shares a loop with other statements"
    return ""
