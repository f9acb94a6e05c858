"""Products of pairs of einsum's operands, along a path; see api/contraction.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.api import host, tensor_repeats
from tilewright.rules import contraction, paths, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.contraction import Term
from tilewright.rules.subscripts import Labels, Terms
from tilewright.runtime.cpu import program

LARGE = 1 << 16         # elements from which NumPy writes into memory of an earlier call


def place_of(target: Array, output: Labels) -> Term:
    """Where the result goes, without axes of size 1."""
    extents = [(label, axis) for axis, label in enumerate(output) if target.shape[axis] != 1]
    index = tuple(0 if n == 1 else slice(None) for n in target.shape)
    return Term(target[(..., *index)], tuple(label for label, _ in extents))


def pairwise(work: Work, arrays: Sequence[Array], terms: Terms, path: paths.Path, result: np.dtype[Any],
             place: Term | None) -> Term:
    """All operands multiplied along the path; the last product in the dtype `result`, at this place if it can be
    written there."""

    def product(a: Term, b: Term, needed: dict[Any, None], final: bool) -> Term:
        return work.last(a, b, needed, result, place, terms.output) if final else work.product(
            a, b, needed, work.between, None, (*needed,))
    return work.summed(contraction.pairwise(arrays, terms, path, work.invariant, product), {*terms.output})


class Work:
    """Products of pairs, with results in between of dtype `between`."""

    def __init__(self, between: np.dtype[Any], threads: int | None, invariant: str = "") -> None:
        self.between, self.threads, self.invariant = between, threads, invariant

    def summed(self, term: Term, needed: set[Any]) -> Term:
        """Without the labels that are not needed."""
        axes = tuple(axis for axis, label in enumerate(term.labels) if label not in needed)
        if not axes:
            return term
        if self.invariant == "rows":
            raise ValueError(f"label {term.labels[axes[0]]!r} is summed over in one operand alone, which NumPy does in "
                             "an order that depends on all sizes: batch_invariant must be False with it")
        kept = tuple(label for label in term.labels if label in needed)
        with np.errstate(all="ignore"):
            if self.between.kind == "b":
                return Term(program.computed(partial(np.any, axis=axes), term.array), kept)
            return Term(program.computed(partial(np.sum, axis=axes, dtype=self.between), term.array), kept)

    def last(self, a: Term, b: Term, needed: dict[Any, None], dtype: np.dtype[Any], place: Term | None,
             output: Labels) -> Term:
        """The last product of all."""
        return self.product(a, b, needed, dtype, place, output)

    def product(self, a: Term, b: Term, needed: dict[Any, None], dtype: np.dtype[Any], place: Term | None,
                output: Labels) -> Term:
        """The product of a and b in a dtype, with the labels that are needed later; at this place, if it can be written
        there."""
        a, b = self.summed(a, {*needed, *b.labels}), self.summed(b, {*needed, *a.labels})
        kept = tuple(dict.fromkeys(x for x in (*a.labels, *b.labels) if x in needed))
        if place is not None and not shapes.writes_in_place(place.array, a.array, b.array, dtype):
            place = None
        layout = contraction.layout(a, b, kept, place, output, self.invariant == "rows")
        if layout.elementwise:
            return self.elementwise(a, b, tuple([x for x in needed if x in kept]), dtype)   # as operands have them next
        c = place or Term(program.empty(layout.sizes, dtype), layout.of_c)
        left, right = (b, a) if layout.exchanged else (a, b)
        self.multiply(left, right, c, layout)
        return c

    def multiply(self, a: Term, b: Term, c: Term, found: contraction.Layout) -> None:
        x = found.views(a.array, b.array, c.array)
        host.contract(x, self.threads, self.invariant)
        if tensor_repeats.recording:
            forks.imported("tilewright.api.record").contracted(x, self.threads)

    def elementwise(self, a: Term, b: Term, kept: Labels, dtype: np.dtype[Any]) -> Term:
        between, by_parts = self.between, self.invariant == "rows" and self.between.kind == "c"
        x, y = (contraction.arranged(term, kept) for term in (a, b))
        shape = np.broadcast_shapes(x.shape, y.shape)
        if prod(shape) >= LARGE and x.dtype == y.dtype == between == dtype and dtype.kind in "fiu" and (
                _in_order(x) and _in_order(y)):
            to = program.empty(shape, dtype)
            program.do(_multiply_into, to, x, y)            # memory of an earlier call, which is written once
            return Term(to, kept)

        def multiplied(x: Array, y: Array) -> Array:
            with np.errstate(all="ignore"):
                if between.kind == "b":
                    return np.asarray(x & y)
                x, y = x.astype(between, copy=False), y.astype(between, copy=False)
                return np.asarray(_complex_product(x, y) if by_parts else x * y).astype(dtype, copy=False)
        return Term(program.computed(multiplied, x, y), kept)


def _in_order(x: Array) -> bool:
    """Whether axes follow each other from the largest stride to the smallest, but for those that are broadcast."""
    strides = [stride for n, stride in zip(x.shape, x.strides) if n > 1 and stride]
    return strides == sorted(strides, reverse=True)


def _multiply_into(to: Array, x: Array, y: Array) -> None:
    with np.errstate(all="ignore"):
        np.multiply(x, y, out=to)


def _complex_product(x: Array, y: Array) -> Array:
    """Each part with the same roundings for all elements, which NumPy's vectors and its scalars have not."""
    result = np.empty(np.broadcast_shapes(x.shape, y.shape), x.dtype)
    result.real = x.real*y.real - x.imag*y.imag
    result.imag = x.real*y.imag + x.imag*y.real
    return result
