"""An operand whose axes of m or k have no one stride, read where it is: windows of a convolution, mostly.

Kernels find its elements by two tables of offsets, one for rows and one for steps of k (kernels/nvidia/gathered.py);
on Hopper tensor maps copy windows of images (windows.py). In products it is stood for by a matrix of the same size and
alignment, whose strides nothing else has.
"""
from __future__ import annotations

from itertools import pairwise
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.plans.gpu_shape import LINE, MOST_ROWS, REACH, WIDEST, GpuShape, bits_of
from tilewright.problem import Gemm
from tilewright.rules import shapes
from tilewright.rules.arguments import Array
from tilewright.rules.contraction import Groups, Term, arranged, as_they_lie
from tilewright.rules.subscripts import Label, Labels
from tilewright.runtime.cpu.tables import offsets
from tilewright.runtime.gpu.operands import address, transposed
from tilewright.runtime.gpu.recipe import Recipe
from tilewright.runtime.gpu.windows import windows
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

FORMATS = ("float16", "bfloat16", "float32", "float64")
LEAST = 4                       # bytes of a copy past registers
MOST = 1 << 23                  # offsets in a table, which recipes keep on the device: 32 MB
Axes = tuple[tuple[int, int], ...]      # (extent, elements from one to the next), the last one the innermost


class Gather(NamedTuple):
    """The axes of an operand's rows and of its steps of k, of which `vector` together are consecutive and aligned."""
    rows: Axes
    steps: Axes
    vector: int
    row: int                    # bytes from a row of the stand-in to the next one

    def stands(self, x: Array) -> bool:
        """Whether x [..., m, k] is the stand-in."""
        size = prod(n for n, _ in self.rows), prod(n for n, _ in self.steps)
        return x.shape[-2:] == size and x.strides[-2:] == (self.row, x.itemsize)

    def role(self, a: Array, b: Array) -> str:
        return "a" if self.stands(a) else "b" if self.stands(transposed(b)) else ""

    @property
    def tables(self) -> tuple[Array, Array]:
        return offsets(self.rows).astype(np.int32), offsets(self.steps).astype(np.int32)


def recipe(driver: Any, on: Any, problem: Gemm, shape: GpuShape, gather: Gather, role: str, *leading: Any,
           **more: Any) -> Recipe:
    """For a product whose operand `role` is gathered; the tables are in the device's memory as long as the recipe."""
    if not role:
        raise AssertionError(f"the operand that tables describe is none of a {shape}")
    placed: dict[str, Any] = {f"vector_{role}": gather.vector, f"near_{role}": MOST_ROWS}
    item = bits_of(problem.a) // 8
    images = windows(gather, item, problem.batch, more.get(f"stride_{role}", 0)) if item == 2 else None
    if images:
        placed |= {f"align_{role}": WIDEST, f"pitch_{role}": gcd(LINE, *images.map.strides)}
        more |= images.values
    kernel = forks.imported("tilewright.compiled.gathered").kernel(
        problem, on.target, shape._replace(**placed), role, images.channels if images else 0)
    prepared = Recipe(driver, kernel, on, *leading, **more)
    if not kernel.pointers:
        return prepared
    prepared.kept = [driver.Memory.upload(on, table) for table in gather.tables]
    prepared.tables = tuple(x.pointer for x in prepared.kept)
    return prepared


class Stacks(NamedTuple):
    """A product of stacks of matrices with a gathered operand: a [..., m, k] and b [..., k, n], one of them a stand-in,
    and the labels of c's axes, in groups, those of m and n one axis each."""
    gather: Gather
    a: Array
    b: Array
    labels: Groups


def stacks(run: Run, a: Term, b: Term, groups: Groups, c: Term) -> Stacks | None:
    """With that operand read by tables whose axes of m or k do not merge; None if neither is to be, or can be. Neither
    may share memory with a result: the stand-in does not tell."""
    x = a.array
    if not isinstance(run.on.target, GpuTarget) or x.dtype != b.array.dtype or x.dtype.name not in FORMATS or (
            run.invariant or run.plan or run.algorithm):
        return None
    views = _stacks(run, a, b, groups, c)
    if views is None:
        views = _stacks(run, b, a, groups._replace(m=groups.n, n=groups.m), c)
        if views is not None:
            of = views.labels
            views = Stacks(views.gather, transposed(views.b), transposed(views.a), of._replace(m=of.n, n=of.m))
    return views


def _stacks(run: Run, a: Term, b: Term, groups: Groups, c: Term) -> Stacks | None:
    """With a read by tables."""
    size = dict(zip(a.labels, a.array.shape))
    m, outer_m = _together(c, groups.m)
    n, outer_n = _together(c, groups.n)
    batch = *groups.batch, *outer_m, *outer_n
    if not m or not groups.k or (_merges(a, m) and _merges(a, as_they_lie(a, groups.k))):
        return None
    a = _innermost(run, a, groups.k)
    k = as_they_lie(a, groups.k)
    own = arranged(a, (*batch, *m, *k))
    gather = _gather(own, len(m), len(k))
    if gather is None:
        return None
    lead, bytes = len(batch), own.itemsize
    rows, steps = (prod(size[label] for label in part) for part in (m, k))
    stand_in = shapes.strided(own, (*own.shape[:lead], rows, steps), (*own.strides[:lead], gather.row, bytes))
    right = arranged(b, (*batch, *k, *n))
    if (view := matrix(right, lead, len(k))) is None:
        one = right[tuple(slice(1) if stride == 0 else slice(None) for stride in right.strides[:lead])]
        there = run.temporary(one.shape, one.dtype)
        run.copy(one, there)
        view = matrix(np.broadcast_to(there, right.shape), lead, len(k))
        assert view is not None
    return Stacks(gather, stand_in, view, Groups(batch, m, n, k))


def _gather(x: Array, m: int, k: int) -> Gather | None:
    """The tables of x [..., m axes, k axes]; None where copies along k are not aligned, or offsets are too long."""
    bytes, lead = x.itemsize, x.ndim - m - k
    axes = [*zip(x.shape, (stride // bytes for stride in x.strides))]
    rows, steps = tuple(axes[lead : lead + m]), tuple(axes[lead + m :])
    span = bytes * sum((extent - 1) * step for extent, step in (*rows, *steps))
    if steps[-1][1] != 1 or min(step for _, step in (*rows, *steps)) < 0 or span >= REACH:
        return None
    others = (stride for extent, stride in zip(x.shape, x.strides[:-1]) if extent > 1)
    aligned = gcd(WIDEST, address(x), steps[-1][0] * bytes, *others)
    count, wide = (prod(extent for extent, _ in part) for part in (rows, steps))
    if aligned < LEAST or aligned < bytes or max(count, wide) > MOST:
        return None
    # odd, so that it is not better aligned than x; the stand-in ends where x does, or earlier
    row = max((span + bytes - wide * bytes) // max(count - 1, 1) // aligned - 1 | 1, 1)
    while row * aligned * count in map(abs, x.strides[:lead]):      # no axis of the batch goes on where rows end
        row += 2
    return Gather(rows, steps, aligned // bytes, row * aligned)


def _together(c: Term, labels: Labels) -> tuple[Labels, Labels]:
    """Labels that are one axis of c, and those outside of them, each as they lie."""
    ordered = as_they_lie(c, labels)
    first = len(ordered)
    while first and _merges(c, ordered[first - 1 : first + 1]):
        first -= 1
    return ordered[first:], ordered[:first]


def _merges(x: Term, labels: Labels) -> bool:
    """Whether these axes have one stride, in this order."""
    size, stride = (dict(zip(x.labels, of)) for of in (x.array.shape, x.array.strides))
    return all(stride[outer] == size[inner] * stride[inner] for outer, inner in pairwise(labels))


def matrix(x: Array, lead: int, k: int) -> Array | None:
    """x [..., k axes, n axes] as [..., k, n], of no axes one element; None if axes do not merge."""
    by_k = shapes.merged(x, lead, lead + k)
    return None if by_k is None else shapes.merged(by_k, lead + 1, by_k.ndim)


def _innermost(run: Run, x: Term, k: Labels) -> Term:
    """x, or a copy in which an axis of k is innermost that is no window of another axis: of the memory, that is, where
    windows share elements."""
    size, stride = (dict(zip(x.labels, of)) for of in (x.array.shape, x.array.strides))

    def window(of: Label) -> Label | None:
        """The axis that moves it by less than its length."""
        return next((y for y in x.labels if y != of and 0 < stride[of] <= stride[y] < stride[of] * size[of]
                     and stride[y] % stride[of] == 0), None)
    windows = {label: window(label) for label in k}
    last = as_they_lie(x, k)[-1]
    alone = [label for label in k if windows[label] is None and label not in windows.values()]
    if not alone or min(stride.values()) <= 0 or (stride[last] == x.array.itemsize and last in alone):
        return x
    inner = max(alone, key=lambda label: size[label])
    over = {outer: label for label, outer in windows.items() if outer is not None}      # an axis, and its window
    if len(over) < sum(y is not None for y in windows.values()):
        return x
    axes = {}                                   # of the memory: an axis and its window are one
    for label in x.labels:
        if label in over:
            step = stride[over[label]]
            axes[label] = (size[label] - 1) * (stride[label] // step) + size[over[label]], step
        elif label not in over.values():
            axes[label] = size[label], stride[label]
    order = [*sorted((y for y in axes if y != inner), key=lambda y: -axes[y][1]), inner]
    source = shapes.strided(x.array, tuple(axes[y][0] for y in order), tuple(axes[y][1] for y in order))
    there = run.temporary(source.shape, source.dtype)
    run.copy(source, there)
    now = dict(zip(order, there.strides))
    steps = {label: now[label] * (stride[label] // axes[label][1]) if label in axes else now[windows[label]]
             for label in x.labels}
    return x._replace(array=shapes.strided(there, x.array.shape, tuple(steps[label] for label in x.labels)))
