"""A contraction as products of whole boxes: `boxes(contraction, shapes)`.

Conditions between indices cut boxes: a triangle becomes blocks of rows, each with the columns, or the steps of the sum,
that its rows have, so that half the work is done and not all of it. What a condition still cuts within a block is a
mask of what is stored, or zeros in a copy of an operand. Subscripts that the conditions keep from leaving an array, as
those of a padded convolution, read a padded copy of it.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.nests.domain import Element, Rounds, restricted
from tilewright.nests.nest import Term, refuse
from tilewright.nests.polynomial import Linear
from tilewright.nests.products.recognition import Contraction, distinct

BLOCK = 128             # rows of a block that a condition cuts; fewer than two of them are not cut


@dataclass(frozen=True)
class Operand:
    """`pads`: what is added before and after each axis; `mask`: conditions where `fill` replaces the array's number."""
    element: Element
    pads: tuple[tuple[int, int], ...] = ()
    mask: tuple[Linear, ...] = ()
    fill: float = 0

    @property
    def copied(self) -> bool:
        return bool(self.pads or self.mask)


@dataclass(frozen=True)
class Box:
    """Part of a contraction: its indices are independent, but for the mask of what is stored."""
    contraction: Contraction
    extents: dict[str, int]
    operands: tuple[Operand, ...]
    results: tuple[tuple[Element, Term], ...]
    target: Element
    mask: tuple[Linear, ...]


def boxes(c: Contraction, shapes: Mapping[str, Sequence[int]], block: int = BLOCK) -> list[Box]:
    """The contraction in boxes. Refused for domains that no operand can be padded to."""
    target = next((e for e, _ in c.results), None)
    assert target is not None
    values = [v for _, v in c.results]
    whole = Rounds(c.extents, c.conditions, target, c.reduce, ("all", *(("load", e) for e in c.operands), *(
        ("load", e) for e, _ in c.results), *values), c.line, frozenset())
    return [_box(c, r, shapes) for r in _cut(whole, c, block)]


def _cut(r: Rounds, c: Contraction, block: int) -> list[Rounds]:
    """In blocks of that index of the result which most conditions have, if it is long."""
    crossing = [x for x in r.conditions if len(x.factors) > 1]
    counts = {i: sum(i in x.factors for x in crossing) for i in c.outs}
    if not crossing or not max(counts.values(), default=0):
        return [r]
    i = max(counts, key=lambda i: (counts[i], r.extents[i]))
    if r.extents[i] < 2 * block or _inside_arrays(c, r):
        return [r]
    found = []
    for first in range(0, r.extents[i], block):
        part = _bounded(restricted(r, i, first, min(block, r.extents[i] - first)), c.outs)
        if all(part.extents[j] > 0 for j in c.outs):
            found.append(part)
    return found


def _inside_arrays(c: Contraction, r: Rounds) -> bool:
    """Whether conditions are about windows of an operand, (h, r) of a convolution, which padding removes."""
    return any(len(x.factors) > 1 and set(x.factors) & set(c.sums) and len(set(x.factors) & set(c.outs)) == 1 and any(
        len(y.factors) > 1 for e in c.operands for y in e.subscripts) for x in r.conditions)


def _bounded(r: Rounds, outs: tuple[str, ...]) -> Rounds:
    """Each index restricted to the rounds that the conditions leave it, whatever the others are; those of results by
    conditions on results alone, since sums of no terms are stored as well."""
    for c in r.conditions:
        for i, factor in c.factors.items():
            if i in outs and not set(c.factors) <= set(outs):
                continue
            rest = c.most(r.extents) - max(0, factor * (r.extents[i] - 1))      # at best, without this index
            first, last = 0, r.extents[i] - 1
            if factor > 0:
                first = max(0, -(rest // factor))
            else:
                last = min(last, rest // -factor)
            if (first, last) != (0, r.extents[i] - 1):
                moved = restricted(r, i, first, max(last - first + 1, 0))
                return _bounded(moved, outs) if moved.extents[i] else moved
    return replace(r, conditions=tuple(c for c in r.conditions if c.least(r.extents) < 0))


def _box(c: Contraction, r: Rounds, shapes: Mapping[str, Sequence[int]]) -> Box:
    count = len(c.operands)
    elements = [x[1] for x in r.value[1:1 + count]]
    targets = [x[1] for x in r.value[1 + count:1 + count + len(c.results)]]
    values = r.value[1 + count + len(c.results):]
    fill = _filler(c)
    used = list[Linear]()
    empty = min(r.extents.values(), default=1) <= 0
    operands = [Operand(e) if empty else _padded(r, e, shapes[e.array], fill, used) for e in elements]
    sums = [x for x in r.conditions if not set(x.factors) <= set(c.outs) and x not in used]
    for x in [] if empty else sums:
        n = next((n for n, o in enumerate(operands) if set(x.factors) <= o.element.indices), None)
        if n is None or fill is None:
            refuse(c.line, "the rounds are no box, and no operand can be padded to one")
        operands[n] = replace(operands[n], mask=(*operands[n].mask, x), fill=fill)
    if (sums or used) and not empty:
        _check_filler(c)
    for e in [*targets, *(e for v in values for e in distinct(v))]:
        if not empty:
            _must_be_inside(r, e, shapes[e.array])
    mask = tuple(x for x in r.conditions if set(x.factors) <= set(c.outs))
    results = tuple((e, v) for e, v in zip(targets, values))
    return Box(c, r.extents, tuple(operands), results, r.target, mask)


def _must_be_inside(r: Rounds, e: Element, shape: Sequence[int]) -> None:
    """Refused if any element of the box, masked or not, is outside of the array."""
    for axis, (x, n) in enumerate(zip(e.subscripts, shape, strict=True)):
        if x.least(r.extents) < 0 or x.most(r.extents) >= n:
            refuse(r.line, f"{e.array} is accessed at {x.least(r.extents)} ... {x.most(r.extents)} of axis {axis}, "
                   f"which has {n} elements")


def _padded(r: Rounds, e: Element, shape: Sequence[int], fill: float | None, used: list[Linear]) -> Operand:
    """The operand, whose array is padded where the box reads beyond it and the conditions say that no round does."""
    pads = []
    for axis, (x, n) in enumerate(zip(e.subscripts, shape, strict=True)):
        least, most = x.least(r.extents), x.most(r.extents)
        for beyond, form in ((-least, x), (most - n + 1, Linear(n - 1, {}).plus(x, -1))):
            if beyond > 0:
                if form not in r.conditions or fill is None:
                    refuse(r.line, f"{e.array} is accessed at {least} ... {most} of axis {axis}, which has {n} "
                           "elements")
                used.append(form)
        pads.append((max(-least, 0), max(most - n + 1, 0)))
    if not any(map(any, pads)):
        return Operand(e)
    moved = tuple(Linear(x.constant + before, x.factors) for x, (before, _) in zip(e.subscripts, pads))
    return Operand(e._replace(subscripts=moved), tuple(pads), fill=fill or 0)


def _filler(c: Contraction) -> float | None:
    """The number of an operand that makes a term change nothing; None if there is none."""
    if c.factors is not None:
        return 0
    sums = c.term[0] == "add" and all(x[0] == "load" for x in c.term[1:])
    return {"min": float("inf"), "fmin": float("inf"), "max": float("-inf"), "fmax": float("-inf")}.get(
        c.reduce) if sums else None


def _check_filler(c: Contraction) -> None:
    """Refused if a function of a padded operand is not 0 where the operand is."""
    from tilewright.nests.products.functions import computed

    for x in c.factors or ():
        if x[0] != "load" and computed(x, lambda leaf: leaf[1] if leaf[0] == "number" else 0.0) != 0:
            refuse(c.line, "the rounds are no box, and a factor is not 0 where its array is 0")
