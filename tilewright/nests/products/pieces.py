"""A contraction as products of whole boxes, `boxes(contraction, shapes)`; an element's array as a view with an axis for
each index, or group of indices (`Look`); and terms as functions: evaluated with anything that has operators, and as
Python source, for epilogues.

Conditions between indices cut boxes: a triangle becomes blocks of rows, each with the columns, or the steps of the sum,
that its rows have, so that half the work is done and not all of it. What a condition still cuts within a block is a
mask of what is stored, or zeros in a copy of an operand. Subscripts that the conditions keep from leaving an array, as
those of a padded convolution, read a padded copy of it.

For given sizes an access is a base address and a stride per index. So transposed operands, batches, the flat addresses
of kernels (A + x*N + p) and the windows of convolutions (x[i + r]) are views, without a copy.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.expressions.tracing import apply
from tilewright.nests.domain import Element, Rounds, restricted
from tilewright.nests.nest import LEAVES, Term, refuse
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
    complete = Rounds(c.extents, c.conditions, target, c.reduce, ("all", *(("load", e) for e in c.operands), *(
        ("load", e) for e, _ in c.results), *values), c.line, frozenset())
    return [_box(c, r, shapes) for r in _cut(complete, c, block)]


def _cut(r: Rounds, c: Contraction, block: int) -> list[Rounds]:
    """In blocks of that index of the result which most conditions have, if it is long."""
    crossing = [x for x in r.conditions if len(x.factors) > 1]
    counts = {i: sum(i in x.factors for x in crossing) for i in c.outs}
    if not crossing or not max(counts.values(), default=0):
        return [r]
    i = max(counts, key=lambda i: (counts[i], r.extents[i]))
    if r.extents[i] < 2 * block or _inside_arrays(c, r):
        return [r]
    pieces = []
    for first in range(0, r.extents[i], block):
        part = _bounded(restricted(r, i, first, min(block, r.extents[i] - first)), c.outs)
        if all(part.extents[j] > 0 for j in c.outs):
            pieces.append(part)
    return pieces


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
    for x in c.factors or ():
        if x[0] != "load" and computed(x, lambda leaf: leaf[1] if leaf[0] == "number" else 0.0) != 0:
            refuse(c.line, "the rounds are no box, and a factor is not 0 where its array is 0")


Groups = Sequence[Sequence[str]]


def strides(e: Element, array: Any) -> dict[str, int]:
    """Elements from one round of each index to the next."""
    steps = element_strides(array)
    strides_of = dict[str, int]()
    for x, step in zip(e.subscripts, steps, strict=True):
        for i, c in x.factors.items():
            strides_of[i] = strides_of.get(i, 0) + c * step
    return strides_of


def element_strides(array: Any) -> list[int]:
    """Elements from one index to the next, of each axis."""
    if isinstance(array, np.ndarray):
        return [x // array.itemsize for x in array.strides]
    return list(array.stride())


class Look:
    """A view of arrays that are laid out like one of which it was made: `look(array)` has an axis for each group."""

    def __init__(self, e: Element, groups: Groups, extents: Mapping[str, int], array: Any) -> None:
        axes = [i for group in groups for i in group]
        self.element, self.axes = e, axes
        own = [i for i in axes if i in e.indices]
        shape = [extents[i] for i in axes]
        self.shape = shape if all(len(group) == 1 for group in groups) else None
        self.grouped = [prod(extents[i] for i in group) if all(i in e.indices for i in group) else 1
                        for group in groups]
        self.reshaped = any(len(group) != 1 for group in groups)
        self.plain = all(len(x.factors) <= 1 for x in e.subscripts) and len(own) == sum(
            len(x.factors) for x in e.subscripts)
        if self.plain:
            self.index = tuple([_slice(x, extents) for x in e.subscripts])
            factors = [x.factors for x in e.subscripts if x.factors]
            order = [next(iter(x)) for x in factors]
            self.permutation = [order.index(i) for i in own]
            self.whole = all(isinstance(s, slice) and (s.start, s.stop, s.step) == (0, n, 1)
                             for s, n in zip(self.index, array.shape, strict=True))
            self.sorted = self.permutation == sorted(self.permutation)
            self.missing = tuple(slice(None) if i in e.indices else None for i in axes)
        else:
            step = strides(e, array)
            self.sizes = [extents[i] if i in e.indices else 1 for i in axes]
            self.steps = [step.get(i, 0) for i in axes]
            self.first = sum(x.constant * s for x, s in zip(e.subscripts, element_strides(array), strict=True))

    @property
    def identity(self) -> bool:
        """Whether the view is the array itself."""
        return self.plain and self.whole and self.sorted and None not in self.missing and not self.reshaped

    def __call__(self, array: Any) -> Any:
        if not self.plain:
            view = self._strided(array)
        else:
            view = array if self.whole else array[(*self.index, ...)]     # of one element, too: a view
            if not self.sorted:
                view = (view.permute if hasattr(view, "permute") else view.transpose)(self.permutation)
            if None in self.missing:
                view = view[self.missing]
        return view.reshape(self.grouped) if self.reshaped else view

    def _strided(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return sys.modules["torch"].as_strided(array, self.sizes, self.steps, array.storage_offset() + self.first)
        steps = [s * array.itemsize for s in self.steps]
        if array.flags.c_contiguous and array.dtype.isbuiltin == 1:         # a tenth of the time of what follows
            return np.ndarray(self.sizes, array.dtype, array, self.first * array.itemsize, steps)
        index: list[Any] = [x.constant for x in self.element.subscripts]
        anchor = array[(*index, ...)]
        return np.lib.stride_tricks.as_strided(anchor, self.sizes, steps)


def _slice(x: Linear, extents: Mapping[str, int]) -> Any:
    """The subscript as an index of an array."""
    if not x.factors:
        return x.constant
    (i, c), = x.factors.items()
    last = x.constant + c * (extents[i] - 1)
    stop = last + (1 if c > 0 else -1)
    return slice(x.constant, stop if stop >= 0 else None, c)


def copied(operand: Operand, extents: Mapping[str, int], array: Any) -> tuple[Any, Any]:
    """An array in place of an operand's own, and a function that fills it from the own: padded, or of the operand's
    indices with numbers in place of those that a mask leaves out."""
    e = operand.element
    if operand.pads:
        shape = [n + before + after for n, (before, after) in zip(array.shape, operand.pads, strict=True)]
        room = full(array, shape, operand.fill)
        inner = tuple([slice(before, before + n) for n, (before, _) in zip(array.shape, operand.pads, strict=True)])
        if not operand.mask:
            def fill(own: Any) -> Any:
                room[inner] = own
                return room
            return room, fill
    axes = sorted(e.indices, key=list(extents).index)
    look = Look(e, [[i] for i in axes], extents, array if not operand.pads else room)
    own_room = full(array, [extents[i] for i in axes], operand.fill)
    where = mask(operand.mask, axes, extents, array)

    def masked(own: Any) -> Any:
        if operand.pads:
            room[inner] = own
            own = room
        put(own_room, look(own), where)
        return own_room
    return own_room, masked


def full(like: Any, shape: Sequence[int], fill: float) -> Any:
    """A new array where `like` is."""
    if isinstance(like, np.ndarray):
        return np.full(shape, fill, like.dtype)
    return sys.modules["torch"].full(list(shape), fill, dtype=like.dtype, device=like.device)


def put(into: Any, values: Any, where: Any) -> None:
    """into[where] = values; `where` None: everywhere."""
    if isinstance(into, np.ndarray):
        np.copyto(into, values, where=True if where is None else where, casting="unsafe")
    elif where is None:
        into.copy_(values)
    else:
        into.copy_(sys.modules["torch"].where(where, values.to(into.dtype), into))


def mask(conditions: Sequence[Linear], axes: Sequence[str], extents: Mapping[str, int], like: Any) -> Any:
    """Where all conditions hold, with an axis for each index; None where there are no conditions."""
    if not conditions:
        return None
    holds: Any = np.ones([1] * len(axes), bool)
    for c in conditions:
        total: Any = np.full([1] * len(axes), c.constant)
        for n, i in enumerate(axes):
            if i in c.factors:
                shape = [-1 if m == n else 1 for m in range(len(axes))]
                total = total + c.factors[i] * np.arange(extents[i]).reshape(shape)
        holds = holds & (total >= 0)
    holds = np.broadcast_to(holds, [extents[i] for i in axes])
    if isinstance(like, np.ndarray):
        return holds
    return sys.modules["torch"].from_numpy(holds.copy()).to(like.device)


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&",
          "or": "|"}
_NUMPY = {"min": "np.minimum", "max": "np.maximum", "fmin": "np.fmin", "fmax": "np.fmax", "abs": "abs"}


def computed(term: Term, leaf: Callable[[Term], Any]) -> Any:
    """A term's value, of leaf(x) for its leaves: numbers, NumPy's arrays, or symbols of a trace."""
    if term[0] in LEAVES:
        return leaf(term)
    return apply(term[0], *[computed(x, leaf) for x in term[1:]])


def source(term: Term, leaf: Callable[[Term], str]) -> str:
    """A term as Python with the functions of NumPy and tilewright, `np` and `tw`."""
    if term[0] == "number":
        return repr(term[1]) if abs(term[1]) != np.inf else "1e999" if term[1] > 0 else "-1e999"
    if term[0] in LEAVES:
        return leaf(term)
    xs = [source(x, leaf) for x in term[1:]]
    if term[0] in _SIGNS:
        return f"({xs[0]} {_SIGNS[term[0]]} {xs[1]})"
    if term[0] == "neg":
        return f"(-{xs[0]})"
    return f"{_NUMPY.get(term[0], 'tw.' + term[0])}({', '.join(xs)})"


def function(terms: Sequence[Term], parameters: Sequence[str], leaf: Callable[[Term], str]) -> Callable[..., Any]:
    """A Python function of these parameters: all that it computes is in its code, by which calls are remembered."""
    import tilewright

    values = ", ".join(source(x, leaf) for x in terms)
    text = f"lambda {', '.join(parameters)}: " + (values if len(terms) == 1 else f"({values})")
    return eval(text, {"tw": tilewright, "np": np})
