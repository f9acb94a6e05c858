"""NumPy's rules of shapes: results, broadcasting, vectors, overlap, leading axes. Only addresses, shapes and strides
are read.

NumPy multiplies one matrix of a stack at a time. Here neighbouring leading axes are merged into one, and one that only
stacks more rows of A (or more columns of B) on the same other operand is folded into m (or n), so that
`x[32, 128, 768] @ w[768, 768]` is one product with m = 4096.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.rules import arguments
from tilewright.rules.arguments import Array

Strides = tuple[int, ...]

# How hard to try to prove that two interleaved views, such as the blocks of one matrix, share nothing (0 would compare
# bounds only). Giving up costs a temporary.
EFFORT: Any = 1000


def result_shape(a: Array, b: Array, out: Array | None, vectors: tuple[int, ...], out_name: str) -> tuple[int, ...]:
    """The shape of the result, with the axes of vectors: that of a @ b, or out's, which may have more leading axes."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a and b must agree in k, but a has {a.shape[-1]} columns and b has {b.shape[-2]} rows "
            f"(as multiplied: a {a.shape}, b {b.shape})"
        )
    core = (a.shape[-2], b.shape[-1])
    try:
        lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"the leading axes of a and b must broadcast together, but they are {a.shape[:-2]} and {b.shape[:-2]}"
        ) from None
    if out is None:
        return (*lead, *core)
    wanted = without(vectors, core)
    leading = out.shape[: out.ndim - len(wanted)]
    try:
        fits = out.shape[len(leading) :] == wanted and (
            lead == leading or np.broadcast_shapes(lead, leading) == leading
        )
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{out_name} must have the result's shape {(*lead, *wanted)}, but its shape is {out.shape}")
    return (*leading, *core)


def without(vectors: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without the axes that vectors do not have."""
    return tuple(n for i, n in enumerate(shape) if i - len(shape) not in vectors) if vectors else shape


def as_matrices(array: Array, vectors: tuple[int, ...]) -> Array:
    """A view with axes of length 1 where a vector has none."""
    if -2 in vectors:
        array = array[..., None] if -1 in vectors else array[..., None, :]
    return array[..., None] if -1 in vectors else array


def added(c: Array, user_shape: tuple[int, ...], vectors: tuple[int, ...]) -> Array:
    """c broadcast to the result, with the axes of vectors."""
    try:
        return as_matrices(c if c.shape == user_shape else np.broadcast_to(c, user_shape), vectors)
    except ValueError:
        raise ValueError(f"c must broadcast to the result's shape {user_shape}, but its shape is {c.shape}") from None


def broadcast(x: Array, leading: tuple[int, ...]) -> Array:
    return x if x.shape[:-2] == leading else np.broadcast_to(x, (*leading, *x.shape[-2:]))


def writes_in_place(target: Array, a: Array, b: Array, dtype: np.dtype[Any]) -> bool:
    """May an engine write sums of this dtype straight to target? Not if it has another dtype, overlaps an operand, or
    overlaps itself."""
    return (
        arguments.ready(target, dtype)
        and all(stride for stride, extent in zip(target.strides, target.shape) if extent > 1)
        and not overlap(target, a)
        and not overlap(target, b)
    )


def overlap(x: Array, y: Array) -> bool:
    """Do these share memory? Also true where EFFORT does not suffice to tell."""
    return np.may_share_memory(x, y, max_work=EFFORT)


def same(x: Array, y: Array) -> bool:
    """Are these two views of the very same elements? An axis of one element has any stride."""
    return (
        x.dtype == y.dtype
        and x.shape == y.shape
        and all(s == t or extent == 1 for s, t, extent in zip(x.strides, y.strides, x.shape))
        and x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    )


# ---- leading axes: operands in as few engine calls as their strides allow


def collapse(a: Array, b: Array, c: Array, *scales: Array, wider: bool = True, beside: Sequence[Array] = ()
             ) -> tuple[Array, ...]:
    """Views of the same data with as few leading axes as possible. All have the same leading extents, none 0.
    Not `wider`: nothing is folded into n, as where B is packed.

    scales      [..., m, 1] of A and [..., 1, n] of B
    beside      [..., m, any], without scales and not `wider`
    """
    arrays = (a, b, c, *scales, *beside)
    if c.ndim == 3 and a.strides[0] and b.strides[0]:  # nothing to merge, nothing to fold
        return arrays
    m, n = c.shape[-2:]
    axes = merge([(extent, strides) for extent, *strides in zip(c.shape[:-2], *(x.strides[:-2] for x in arrays))
                   if extent != 1])
    of_m, of_n = (0, 2, 3)[: 2 + bool(scales)], (1, 2, 4)[: 2 + bool(scales)]  # arrays that have rows, or columns, of C
    of_m += tuple(range(3, 3 + len(beside)))
    rows, cols = tuple(arrays[x].strides[-2] for x in of_m), tuple(arrays[x].strides[-1] for x in of_n)
    while axes:
        extent, strides = axes[-1]
        down, across = tuple(strides[x] for x in of_m), tuple(strides[x] for x in of_n)
        if not any(strides[x] for x in of_n if x != 2) and _follows(down, m, rows):  # the same B: more rows
            rows = down if m == 1 else rows
            m *= extent
        elif wider and not any(strides[x] for x in of_m if x != 2) and _follows(across, n, cols):  # more columns
            cols = across if n == 1 else cols
            n *= extent
        else:
            break
        axes.pop()
    if len(axes) == c.ndim - 2:
        return arrays
    extents, collapsed = tuple(extent for extent, _ in axes), []
    for x, array in enumerate(arrays):
        (height, width), (row, column) = array.shape[-2:], array.strides[-2:]
        if x in of_m:
            height, row = m, rows[of_m.index(x)]
        if wider and x in of_n:
            width, column = n, cols[of_n.index(x)]
        collapsed.append(strided(array, (*extents, height, width), (*(strides[x] for _, strides in axes), row, column)))
    return tuple(collapsed)


def strided(x: Array, shape: tuple[int, ...], strides: Strides) -> Array:
    """as_strided, by way of integers for ml_dtypes' formats, which it does not know."""
    if x.dtype.isbuiltin != 2:
        return as_strided(x, shape, strides)
    return as_strided(x.view(f"u{x.itemsize}"), shape, strides).view(x.dtype)


def merged(x: Array, first: int, end: int) -> Array | None:
    """A view in which axes first ... end - 1 are one; None where no stride leads through all of them."""
    axes = [axis for axis in range(first, end) if x.shape[axis] != 1]
    for outer, inner in pairwise(axes):
        if x.strides[outer] != x.shape[inner] * x.strides[inner]:
            return None
    extent, stride = math.prod(x.shape[first:end]), x.strides[axes[-1]] if axes else 0
    return strided(x, (*x.shape[:first], extent, *x.shape[end:]), (*x.strides[:first], stride, *x.strides[end:]))


def merged_into(x: Array, shape: Sequence[int]) -> Array | None:
    """A view of these extents, none 0, each of neighbouring axes; None where no stride leads through some of them."""
    axes, strides = [(n, (stride,)) for n, stride in zip(x.shape, x.strides) if n != 1], list[int]()
    for extent in shape:
        run: list[tuple[int, Any]] = []
        while math.prod(n for n, _ in run) < extent:
            run.append(axes.pop(0))
        if len(kept := merge(run)) > 1:
            return None
        strides += [stride for _, (stride,) in kept] or [0]
    return strided(x, tuple(shape), tuple(strides))


def pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Collapsed operands cut into what an engine takes: one leading axis at most, and that the longest."""
    longest = int(np.argmax(arrays[0].shape[:-2]))
    arrays = tuple(np.moveaxis(x, longest, -3) for x in arrays)
    for i in np.ndindex(arrays[0].shape[:-3]):
        yield tuple(x[i] for x in arrays)


def merge(axes: list[tuple[int, Any]]) -> list[tuple[int, Strides]]:
    """Join each axis to the one before it where the earlier one takes up where the later one ends, in every operand."""
    merged: list[tuple[int, Strides]] = []
    for extent, strides in axes:
        if merged and _follows(merged[-1][1], extent, strides):
            merged[-1] = (merged[-1][0] * extent, tuple(strides))
        else:
            merged.append((extent, tuple(strides)))
    return merged


def _follows(outer: Strides, extent: int, inner: Strides) -> bool:
    """Is one step of the outer axis `extent` steps of the inner one? The inner stride of extent 1 can be anything."""
    return extent == 1 or all(o == extent * i for o, i in zip(outer, inner))
