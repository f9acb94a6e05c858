"""Two operands with labelled axes as a product of matrices: views, groups of axes, and what merges of them.

    C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n]

Each of batch, m, n and k stands for a group of axes: labels that A, B and C have; A and C; B and C; A and B. In each
group the axes are ordered as the larger array has them, and those neighbours become one axis that have one stride in
both arrays. Only addresses, shapes and strides are read, so that arrays may be shadows of those in a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks, formats
from tilewright.rules import arguments
from tilewright.rules.arguments import Array
from tilewright.rules.shapes import merge, strided
from tilewright.rules.subscripts import Label, Labels, Terms

# times the size of the other operand, from which the order of a product follows the layout of one: by a Zen 3
# 140608 x 52 x 52 had 1.45 of OpenBLAS's rate, 52 x 140608 x 52 with both by rows 0.95
MUCH = 2
ROWS = 128      # of C's blocks, from which a batch of them is faster than one product by tables


class Term(NamedTuple):
    """An array and the labels of its axes, each once."""

    array: Array
    labels: Labels
    first: int = 0          # the place of the first operand that is in it


def pairwise(arrays: Sequence[Array], terms: Terms, path: Sequence[Sequence[int]], invariant: str,
             product: Callable[[Term, Term, dict[Label, None], bool], Term]) -> Term:
    """What all operands come to along the path, in which those of a step are multiplied in their own order where that
    of sums may not depend on rows, so that the product with the first operand in it is a first operand, too.
    product(a, b, labels that are needed later, whether it is the last one)."""
    left = [diagonal(x, of, terms.sizes)._replace(first=at) for at, (x, of) in enumerate(zip(arrays, terms.inputs))]
    for number, step in enumerate(path):
        chosen = [left[at] for at in step]
        for at in sorted(step, reverse=True):
            left.pop(at)
        if invariant == "rows":
            chosen.sort(key=lambda term: term.first)
        while len(chosen) > 1:
            a, b, *more = chosen
            needed = dict.fromkeys([*(x for term in (*left, *more) for x in term.labels), *terms.output])
            made = product(a, b, needed, number == len(path) - 1 and not more)
            chosen = [made._replace(first=a.first), *more]
        left.append(chosen[0])
    return left[0]


def meeting(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Two empty arrays whose dtypes stand for those of all operands."""
    empty = [np.empty(0, x.dtype) for x in arrays]
    common = reduce(lambda x, y: np.empty(0, arguments.dtypes(x, y, None, None)[1]), empty)
    return empty[0] if len(empty) == 2 else common, common


def dtypes(arrays: Sequence[Array], out_dtype: Any) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtypes of the sums and of the result: those of matmul of the operands, one after the other."""
    first, common = meeting(arrays)
    if len(arrays) == 1:
        known = formats.find(common.dtype)
        if known is None:
            raise TypeError(f"operand 0 is {common.dtype}, which tilewright does not multiply")
        own = common.dtype.newbyteorder("=") if out_dtype is None else formats.get(out_dtype, "out_dtype").dtype
        return arguments.dtypes(common, common, None, out_dtype)[0], own
    sums, result = arguments.dtypes(first, common, None, out_dtype)
    return (sums, result) if len(arrays) == 2 else (arguments.dtypes(common, common, None, result)[0], result)


def diagonal(array: Array, labels: Labels, sizes: dict[Label, int]) -> Term:
    """A view with each label once: of an axis that is broadcast its only element, of axes with one label the diagonal.
    """
    shape, strides = dict[Label, int](), dict[Label, int]()
    for label, extent, stride in zip(labels, array.shape, array.strides):
        if extent != 1:
            shape[label] = extent
            strides[label] = strides.get(label, 0) + stride
    if len(shape) == array.ndim:
        return Term(array, tuple(labels))
    return Term(strided(array, tuple(shape.values()), tuple(strides.values())), tuple(shape))


def arranged(term: Term, labels: Labels) -> Array:
    """A view with its axes in this order; for labels that it lacks, an axis of size 1."""
    order = [term.labels.index(label) for label in labels if label in term.labels]
    index = tuple(slice(None) if label in term.labels else None for label in labels)
    return term.array.transpose(order)[(..., *index)]       # of no axes an array, too


class Groups(NamedTuple):
    """Labels by the arrays that have them, in the order in which they are multiplied."""

    batch: Labels
    m: Labels
    n: Labels
    k: Labels

    @property
    def of_a(self) -> tuple[Labels, Labels, Labels]:
        return self.batch, self.m, self.k

    @property
    def of_b(self) -> tuple[Labels, Labels, Labels]:
        return self.batch, self.k, self.n

    @property
    def of_c(self) -> tuple[Labels, Labels, Labels]:
        return self.batch, self.m, self.n


def contiguous(x: Term) -> set[Label]:
    """The label of the axis along which x is contiguous, if there is one."""
    return {label for label, stride in zip(x.labels, x.array.strides) if stride == x.array.itemsize}


def exchanged(a: Term, b: Term, kept: Labels, c: Term | None, output: Labels) -> bool:
    """Whether the operands change places, so that c's axis of the smallest stride, but for the batch's, is one of n's;
    or, if c is not given, that the rows of the larger operand are contiguous: along n if it is b, along k if it is a;
    or else that the result's last label is n's.
    """
    if c is not None:
        own = [(abs(stride), label in a.labels) for label, stride in zip(c.labels, c.array.strides)
               if (label in a.labels) != (label in b.labels)]
        return min(own, default=(0, False))[1]
    larger, other = (a, b) if a.array.size > MUCH*b.array.size else (b, a)
    if larger.array.size > MUCH*other.array.size and (along := contiguous(larger) - (
            set(kept) & set(other.labels))):
        return (larger is a) != bool(along & set(other.labels))
    last = [label for label in output if label in kept and (label in a.labels) != (label in b.labels)][-1:]
    return bool(last) and last[0] in a.labels


def groups(a: Term, b: Term, kept: Labels, c: Term | None = None, along: Term | None = None) -> Groups:
    """For operands all of whose labels are kept or common. c: where the result is to be written; None: wherever it is
    written best. `along`: the operand that has the order of the steps of k; None: either."""
    common = [label for label in a.labels if label in b.labels]
    larger = a if a.array.size >= b.array.size else b
    # packing reads a in the order of k, and b in any order along k
    along_k = along or (a if contiguous(a) & set(b.labels) - set(kept) else b)
    arrays = {"m": a, "n": b, "k": along_k, "batch": larger}
    if c is not None:
        arrays["n"] = c                 # along which it is contiguous
        for group in ("m", "batch"):
            if c.array.size > arrays[group].array.size:
                arrays[group] = c
    labels_of = {"batch": [x for x in common if x in kept], "k": [x for x in common if x not in kept],
             "m": [x for x in a.labels if x not in common], "n": [x for x in b.labels if x not in common]}
    return Groups(**{group: as_they_lie(arrays[group], labels) for group, labels in labels_of.items()})


def as_they_lie(term: Term, labels: Sequence[Label]) -> Labels:
    """The largest stride first."""
    strides = dict(zip(term.labels, term.array.strides))
    return tuple(sorted(labels, key=lambda label: -abs(strides[label])))


class Layout(NamedTuple):
    """How two operands and the result of a product are seen as arrays of merged axes: for each the order of its axes
    and the shape then."""

    exchanged: bool
    elementwise: bool               # no product: no label is summed, and one operand has no others than common ones,
                                    # or both are contiguous along one; or `by_second`, so that sizes of 1 do not count
    of_c: Labels
    sizes: tuple[int, ...]          # of c's labels
    orders: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    counts: tuple[int, int, int, int]
    groups: Groups

    def views(self, *arrays: Array) -> Operands:
        """a and b, in the places that they have in the product, and c, whose axes are those of `place`."""
        a, b, c = (x.transpose(order).reshape(shape) for x, order, shape in zip(arrays, self.orders, self.shapes))
        return Operands(a, b, c, self.counts)


LONG = 16               # elements of a row that NumPy multiplies as fast as it writes
_layouts: dict[Any, Layout] = {}


def layout(a: Term, b: Term, kept: Labels, place: Term | None, output: Labels, by_second: bool = False) -> Layout:
    """For operands with these labels, shapes and strides, found once. place: where c is to be written; None: it will be
    contiguous, with its axes in the order of `of_c`. by_second: the product's order of sums depends on b alone, which
    stays the second operand.
    """
    looks = ((x.labels, x.array.shape, x.array.strides, x.array.itemsize) for x in (a, b, place) if x)
    key = kept, output, by_second, *looks
    known: Layout = forks.looked_up(_layouts, key, lambda: _layout(a, b, kept, place, output, by_second))
    return known


def _layout(a: Term, b: Term, kept: Labels, place: Term | None, output: Labels, by_second: bool) -> Layout:
    swapped = not by_second and exchanged(a, b, kept, place, output)
    if swapped:
        a, b = b, a
    by = groups(a, b, kept, place, b if by_second else None)
    of: list[Labels] = [sum(labels, ()) for labels in (by.of_a, by.of_b, by.of_c)]
    size = dict(zip((*a.labels, *b.labels), (*a.array.shape, *b.array.shape)))
    sizes = tuple(size[label] for label in of[2])
    c = place or Term(np.empty(sizes, np.int8), of[2])
    x = merged(arranged(a, of[0]), arranged(b, of[1]), arranged(c, of[2]), by)
    orders = tuple(tuple(term.labels.index(label) for label in labels) for term, labels in zip((a, b, c), of))
    rows = not by_second and place is None and any(     # a row of both, as it lies, for each element of m and n
        size[label] >= LONG for label in contiguous(a) & contiguous(b) & set(by.batch))
    return Layout(swapped, not by.k and (by_second or rows or not (by.m and by.n)), of[2], sizes, orders,
                  (x.a.shape, x.b.shape, x.c.shape), x.counts, by)


class Operands(NamedTuple):
    """Arrays whose axes are a group's after the other's; `counts`: how many axes batch, m, n and k have."""

    a: Array
    b: Array
    c: Array
    counts: tuple[int, int, int, int]

    @property
    def matrices(self) -> bool:
        """Whether each group has one stride in each array, or but for the batch."""
        return max(self.counts[1:]) <= 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k."""
        nb, nm, _, nk = self.counts
        return prod(self.c.shape[nb : nb + nm]), prod(self.c.shape[nb + nm :]), prod(self.b.shape[nb : nb + nk])

    @property
    def exchanged(self) -> Operands:
        """The product that gives C^T."""
        nb, nm, nn, nk = self.counts

        def swapped(x: Array, inner: int) -> Array:
            axes = range(x.ndim)
            return x.transpose((*axes[:nb], *axes[x.ndim - inner :], *axes[nb : x.ndim - inner]))
        return Operands(swapped(self.b, nn), swapped(self.a, nk), swapped(self.c, nn), (nb, nn, nm, nk))

    @property
    def stacks(self) -> tuple[Array, Array, Array]:
        """The operands of a product of stacks of matrices: the outer axes of m and of n stand before those of the
        matrices, after the batch; k has one axis."""
        nb, nm, nn, _ = self.counts
        outer_m, outer_n = nm - 1, nn - 1
        a = np.moveaxis(self.a[(..., *[None] * outer_n)], range(nb + nm + 1, nb + nm + 1 + outer_n),
                        range(nb + outer_m, nb + outer_m + outer_n))
        b = self.b[(*[slice(None)] * nb, *[None] * outer_m)]
        b = np.moveaxis(b, nb + outer_m, -2)
        c = np.moveaxis(self.c, nb + outer_m, -2)
        return a, b, c

    def as_batch(self) -> Operands | None:
        """The product with the outer axis of m, or that of n, as the batch; None if products are not matrices then,
        have fewer than ROWS rows or columns, or are not read as fast as by tables: a is contiguous along neither axis,
        or b not along n."""
        (nb, nm, nn, nk), (a, b, c) = self.counts, self[:3]
        if nb or nk > 1 or (nm, nn) not in ((2, 1), (1, 2)):
            return None
        if nm == 2:
            b = strided(b, (a.shape[0], *b.shape), (0, *b.strides))
        else:
            b = b.swapaxes(0, 1)
            a, c = strided(a, (b.shape[0], *a.shape), (0, *a.strides)), c.swapaxes(0, 1)
        if c.shape[3 - nm] < ROWS or a.itemsize not in a.strides[1:] or b.itemsize != b.strides[-1]:
            return None
        return Operands(a, b, c, (1, 1, 1, nk))


def merged(a: Array, b: Array, c: Array, found: Groups) -> Operands:
    """Arrays arranged as `found` says, with axes merged where that takes no copy. A group without axes gets one of
    size 1, but for the batch."""
    nb, nm, nn, nk = map(len, found)
    parts = {"batch": ((a, 0, nb), (b, 0, nb), (c, 0, nb)), "m": ((a, nb, nm), (c, nb, nm)),
             "n": ((b, nb + nk, nn), (c, nb + nm, nn)), "k": ((a, nb + nm, nk), (b, nb, nk))}
    axes = {}
    for group, where in parts.items():
        x, first, count = where[0]
        listed = [(extent, strides) for extent, *strides in zip(
            x.shape[first : first + count], *(y.strides[at : at + count] for y, at, _ in where)) if extent != 1]
        axes[group] = merge(listed) or ([] if group == "batch" else [(1, (0,) * len(where))])

    def view(x: Array, *of: str) -> Array:
        return x.reshape([extent for group in of for extent, _ in axes[group]])     # no copy: that is when axes merge

    return Operands(view(a, "batch", "m", "k"), view(b, "batch", "k", "n"), view(c, "batch", "m", "n"),
                    (len(axes["batch"]), len(axes["m"]), len(axes["n"]), len(axes["k"])))
