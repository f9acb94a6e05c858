"""Which statements are one contraction: `parts(nest, sizes, overlap)`.

A contraction is a reduction over indices that its target does not have, of a term of operands, with a start before it
and functions of the result after it:

    C[i, j] = 0;  C[i, j] += A[i, p] * B[p, j] for all p;  C[i, j] = max(C[i, j] + bias[j], 0)

Each condition that it must fulfil has a sentence, which is the reason of a refusal: statements that are refused, or
reduce nothing, remain loops.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.ir.program import Line
from tilewright.nests.domain import Element, Rounds, rounds
from tilewright.nests.nest import LEAVES, LoopNest, Refused, Statement, Term, leaves, mapped, refuse
from tilewright.nests.polynomial import Linear

ACC: Term = ("parameter", "acc")            # what was reduced, in functions of it
ONE: Term = ("number", 1)
IDENTITY = {"add": 0, "min": float("inf"), "max": float("-inf"), "fmin": float("inf"), "fmax": float("-inf")}
Overlap = Callable[[str, str], bool]        # whether two arrays may share memory


@dataclass(frozen=True)
class Contraction:
    """results = functions of acc = reduce over `sums` of the term, for all `outs` where `conditions` hold.

    The term is alpha times the product of `factors`, each a function of one operand; or, where `factors` is None, any
    function of two operands. beta: a number by which the target's old value is multiplied and added to acc.
    """
    line: Line
    extents: dict[str, int]
    outs: tuple[str, ...]
    sums: tuple[str, ...]
    operands: tuple[Element, ...]
    factors: tuple[Term, ...] | None
    term: Term
    reduce: str
    alpha: Term
    beta: Term | None
    results: tuple[tuple[Element, Term], ...]
    conditions: tuple[Linear, ...]          # also of sums: the rounds that there are


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
    done, found = list[Part](), list[Rounds]()
    for group in _outermost(nest):
        try:
            found += rounds(replace(nest, statements=group), sizes)
        except Refused as refusal:
            done += [*_apart(_chains(found, overlap), overlap), Part(
                [], None, f"{refusal.line}: {refusal.reason}", {x.index for s in group for x in s.loops}, group)]
            found = []
    done += _apart(_chains(found, overlap), overlap)
    for part in done:
        part.sources = part.sources or tuple(s.source for s in part.statements if s.source is not None)
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


def _chains(found: list[Rounds], overlap: Overlap) -> list[Part]:
    """Reductions with the statements before and after them that belong to them."""
    done = list[Part]()
    rest = list(found)
    while rest:
        first = next((n for n, s in enumerate(rest) if s.reduce), None)
        if first is None:
            done.append(Part(rest, reason="nothing is reduced"))
            break
        end = first + 1
        names = {s.target.array for s in rest[:end]}
        while end < len(rest) and not rest[end].reduce and any(a.array in names for a in leaves(rest[end].value)):
            names.add(rest[end].target.array)
            end += 1
        start = first
        while start > 0 and rest[start - 1].target.array == rest[first].target.array:
            start -= 1
        if start:
            done.append(Part(rest[:start], reason="nothing is reduced"))
        done.append(_part(rest[start:first], rest[first], rest[first + 1:end], overlap))
        rest = rest[start + len(done[-1].statements):]
    return done


def _part(inits: list[Rounds], r: Rounds, posts: list[Rounds], overlap: Overlap) -> Part:
    """The contraction with as many of the statements after it as belong to it."""
    reason = ""
    for count in range(len(posts), -1, -1):
        try:
            return Part([*inits, r, *posts[:count]], recognise(inits, r, posts[:count], overlap))
        except Refused as refusal:
            reason = reason or f"{refusal.line}: {refusal.reason}"
    return Part([*inits, r, *posts], reason=reason)


def _apart(found: list[Part], overlap: Overlap) -> list[Part]:
    """Parts that share loops, and in different rounds the elements of an array, are one, which remains loops."""
    done = list[Part]()
    for part in found:
        part.loops = set().union(*(s.loops for s in part.statements))
        while done and (why := _meeting(done[-1], part, overlap)):
            before = done.pop()
            part = Part(before.statements + part.statements, None, before.reason or part.reason or why,
                        before.loops | part.loops)
        done.append(part)
    return done


def _meeting(first: Part, second: Part, overlap: Overlap) -> str:
    """Why the loops of two parts cannot run one after the other."""
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


def recognise(inits: list[Rounds], r: Rounds, posts: list[Rounds], overlap: Overlap) -> Contraction:
    """The contraction of a reduction with statements before and after it. Refused, with the reason, if it is none."""
    target = r.target
    outs = tuple(i for i in r.extents if i in target.indices)
    sums = tuple(i for i in r.extents if i not in target.indices)
    _injective(r, target)
    if not sums:
        refuse(r.line, f"nothing is summed: each element of {target.array} is updated once")
    if r.reduce not in IDENTITY:
        refuse(r.line, f"a reduction by {r.reduce} is no product's")
    for name in {e.array for e in leaves(r.value) if e.scalar}:
        refuse(r.line, f"{name} is a number that changes from round to round")
    _no_indices(r)
    for e in leaves(r.value):
        if not target.scalar and overlap(e.array, target.array):
            refuse(r.line, f"{e.array} is read while {target.array}, which shares its memory, is written: a round "
                   "depends on earlier ones")
    around = [r]
    start = _start(inits, r, around)
    results = _results(posts, r, overlap, around)
    beta, acc = _beta(start, r)
    if acc != ACC:
        results = [(e, with_acc(v, acc)) for e, v in results]
    _disjoint(around, r, overlap)
    stored = tuple((e, v) for e, v in results if not e.scalar)
    if not stored:
        refuse(r.line, f"{target.array} is not stored")
    for e, _ in stored:
        if e.indices != set(outs):
            refuse(r.line, f"{e.array} is not written once for each number that is summed")
        _injective(r, e)
    alpha, operands, factors = _product(r)
    return Contraction(r.line, dict(r.extents), outs, sums, operands, factors, r.value, r.reduce, alpha, beta, stored,
                       r.conditions)


def _injective(r: Rounds, e: Element) -> None:
    """Refused if two rounds of different indices access one element."""
    for x in e.subscripts:
        span = 0
        for i, c in sorted(x.factors.items(), key=lambda item: abs(item[1])):
            if abs(c) <= span:
                refuse(r.line, f"several rounds write the same element of {e.array}")
            span += abs(c) * (r.extents[i] - 1)


def _no_indices(r: Rounds) -> None:
    if any(True for _ in leaves(r.value, "index")):
        refuse(r.line, "an index is used as a number")


def aligned(s: Rounds, own: Element, r: Rounds) -> Rounds:
    """s with r's names for its indices, where its element `own` is r's target."""
    other = f"covers another part of {r.target.array} than the loops at {r.line}"
    names = dict[str, str]()
    for x, y in zip(own.subscripts, r.target.subscripts, strict=True):
        by = {(c, r.extents[i]): i for i, c in y.factors.items()}
        if x.constant != y.constant or len(x.factors) != len(y.factors):
            refuse(s.line, other)
        for i, c in x.factors.items():
            if names.setdefault(i, by.get((c, s.extents[i]), "")) != by.get((c, s.extents[i])):
                refuse(s.line, other)
    if set(s.extents) - set(names):
        refuse(s.line, f"repeats over an index that {r.target.array} does not have")
    s = s.renamed(names)
    mine = sorted(c.key for c in r.conditions if set(c.factors) <= r.target.indices)
    if sorted(c.key for c in s.conditions) != mine:
        refuse(s.line, f"has another domain than the loops at {r.line}")
    return s


def _start(inits: list[Rounds], r: Rounds, around: list[Rounds]) -> Term:
    """What the target holds before the reduction."""
    start: Term | None = None if r.target.scalar else ("load", r.target)
    sums = set(r.extents) - r.target.indices
    for s in inits:
        if (s.loops & r.loops) & sums:
            refuse(s.line, f"starts {r.target.array} anew in each round of a loop that adds to it")
        _no_indices(s)
        s = aligned(s, s.target, r)
        around.append(s)
        before = start

        def known(x: Term, before: Term | None = before, line: Line = s.line) -> Term:
            if x[0] == "load" and x[1].array == r.target.array:
                if x[1].key != r.target.key or before is None:
                    refuse(line, f"reads {r.target.array} at another index than it is written")
                return before
            return x
        value = (s.reduce, ("load", s.target), s.value) if s.reduce else s.value
        start = mapped(value, known)
    if start is None:
        refuse(r.line, f"{r.target.array} is not initialised")
    return start


def _beta(start: Term, r: Rounds) -> tuple[Term | None, Term]:
    """The number that multiplies the target's old value, and acc with any other start."""
    if start == ("number", IDENTITY[r.reduce]) or (start[0] == "number" and start[1] == IDENTITY[r.reduce]):
        return None, ACC
    parts = factors_of(start)
    own = [x for x in parts if x[0] == "load" and x[1].key == r.target.key]
    numbers = [x for x in parts if x[0] in ("number", "parameter")]
    if r.reduce == "add" and not r.target.scalar and len(own) == 1 and len(numbers) + 1 == len(parts):
        return multiplied(numbers), ACC
    return None, (r.reduce, start, ACC)


def _results(posts: list[Rounds], r: Rounds, overlap: Overlap, around: list[Rounds]) -> list[tuple[Element, Term]]:
    """What is written after the reduction, as functions of acc: of each element the last one."""
    final: dict[Any, tuple[Element, Term]] = {r.target.key: (r.target, ACC)}
    sums = set(r.extents) - r.target.indices
    for s in posts:
        if (s.loops & r.loops) & sums:
            refuse(s.line, f"reads a partial sum: it is inside a loop that adds to {r.target.array}")
        _no_indices(s)
        names = {e.array for e, _ in final.values()}
        uses = [e for e in leaves(s.value) if e.array in names]
        near = next((e for e in uses if e.array == r.target.array), None)
        if near is None:
            own = r.target.array == s.target.array
            near = s.target if own else None
        if near is not None:
            s = aligned(s, near, r)
        elif set(s.extents) != set(r.target.indices):
            refuse(s.line, f"does not use {r.target.array}, and has other loops")
        around.append(s)

        def known(x: Term, line: Line = s.line) -> Term:
            if x[0] != "load":
                return x
            if x[1].key in final:
                return final[x[1].key][1]
            if x[1].array in {e.array for e, _ in final.values()}:
                refuse(line, f"reads {x[1].array} at another index than it is written")
            return x
        value = mapped((s.reduce, ("load", s.target), s.value) if s.reduce else s.value, known)
        for e in leaves(r.value):
            if not s.target.scalar and overlap(e.array, s.target.array):
                refuse(s.line, f"overwrites {e.array}, which the loops at {r.line} read")
        final[s.target.key] = s.target, value
    return list(final.values())


def _disjoint(around: list[Rounds], r: Rounds, overlap: Overlap) -> None:
    """What is read and written around the reduction has one array and one element, or no memory in common."""
    written = [s.target for s in around if not s.target.scalar]
    for s in around:
        reads = list(leaves(s.value)) if s is not r else []
        for e in [*reads, s.target]:
            for w in written:
                if not e.scalar and e.key != w.key and overlap(e.array, w.array):
                    refuse(s.line, f"{e.array} is accessed here, and {w.array}, which shares its memory, is written at "
                           "another index")


def with_acc(term: Term, acc: Term) -> Term:
    return mapped(term, lambda x: acc if x == ACC else x)


def factors_of(term: Term) -> list[Term]:
    """A term as a product."""
    if term[0] == "mul":
        return factors_of(term[1]) + factors_of(term[2])
    return [("number", -1), *factors_of(term[1])] if term[0] == "neg" else [term]


def multiplied(numbers: list[Term]) -> Term:
    total: Term = ONE
    for x in numbers:
        if total[0] == x[0] == "number":
            total = ("number", total[1] * x[1])
        else:
            total = x if total == ONE else ("mul", total, x)
    return total


def distinct(term: Term) -> list[Element]:
    """The elements that a term reads, each once."""
    return list({e.key: e for e in leaves(term)}.values())


def _product(r: Rounds) -> tuple[Term, tuple[Element, ...], tuple[Term, ...] | None]:
    """alpha, the operands, and a function of each; or, of two operands that are not multiplied, no functions."""
    numbers, terms = list[Term](), list[tuple[Element, Term]]()
    product = r.reduce == "add"
    for x in factors_of(r.value) if product else []:
        used = distinct(x)
        if not used:
            numbers.append(x)
        elif len(used) == 1:
            terms.append((used[0], x))
        else:
            product = False
    if product and terms:
        return multiplied(numbers), tuple(e for e, _ in terms), tuple(x for _, x in terms)
    operands = distinct(r.value)
    if len(operands) != 2:
        refuse(r.line, f"a term of {len(operands)} array{'s' * (len(operands) != 1)} that is no product of them")
    return ONE, tuple(operands), None


def is_number(term: Term) -> bool:
    """Whether a term is known when the function is called: it reads no array."""
    return term[0] in ("number", "parameter") or (term[0] not in LEAVES and all(is_number(x) for x in term[1:]))
