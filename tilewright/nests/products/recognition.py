"""Whether statements are one contraction: `recognise(before, reduction, after, overlap, nest)`.

A contraction is a reduction over indices that its target does not have, of a term of operands, with a start before it
and functions of the result after it:

    C[i, j] = 0;  C[i, j] += A[i, p] * B[p, j] for all p;  C[i, j] = max(C[i, j] + bias[j], 0)

Each condition that it must fulfil has a sentence, which is the reason of a refusal: statements that are refused, or
reduce nothing, remain loops.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.ir.program import Line
from tilewright.nests.domain import Element, Rounds
from tilewright.nests.nest import LEAVES, LoopNest, Term, leaves, mapped, refuse
from tilewright.nests.polynomial import Linear

ACC: Term = ("parameter", "acc")            # what was reduced, in functions of it
ONE: Term = ("number", 1)
IDENTITY = {"add": 0, "mul": 1, "min": float("inf"), "max": float("-inf"), "fmin": float("inf"), "fmax": float("-inf")}
FLOATS = {"div", "exp", "log", "tanh", "erf", "gelu", "sigmoid", "sqrt"}          # operations that give floats
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


def recognise(inits: list[Rounds], r: Rounds, posts: list[Rounds], overlap: Overlap, nest: LoopNest) -> Contraction:
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
    beta, acc = _beta(start, r, not any(nest.element(e.array).is_float for e in r.elements if not e.scalar))
    if acc != ACC:
        results = [(e, with_acc(v, acc)) for e, v in results]
    _disjoint(around, r, overlap)
    stored = tuple((e, v) for e, v in results if not e.scalar)
    if not stored:
        refuse(r.line, f"{target.array} is not stored")
    for e, v in stored:
        if e.indices != set(outs):
            refuse(r.line, f"{e.array} is not written once for each number that is summed")
        _injective(r, e)
        if not nest.element(e.array).is_float and any(_is_float(x, nest) for x in (v, r.value, ("load", r.target))):
            refuse(r.line, f"a float is stored in {e.array}, whose elements are integers")
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


def _is_float(term: Term, nest: LoopNest) -> bool:
    """Whether a term of acc, which has the kind of its operands, is a float."""
    if term[0] == "number":
        return isinstance(term[1], float)
    if term[0] == "parameter":
        return term != ACC
    if term[0] == "load":
        return nest.element(term[1].array).is_float
    operands = term[2:] if term[0] == "where" else term[1:]
    return term[0] in FLOATS or any(_is_float(x, nest) for x in operands)


def _beta(start: Term, r: Rounds, whole: bool) -> tuple[Term | None, Term]:
    """The number that multiplies the target's old value, and acc with any other start. `whole`: of integers, for which
    a number beyond their range is infinite."""
    if start[0] == "number":
        number = start[1] if not whole or abs(start[1]) < 2**63 else float("inf") if start[1] > 0 else float("-inf")
        if number == IDENTITY[r.reduce]:
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
