"""Leading axes: turn broadcast operands into as few engine calls as their strides allow.

NumPy multiplies one matrix of a stack at a time. Here neighbouring leading axes are merged into one, and one that only
stacks more rows of A (or more columns of B) on the same other operand is folded into m (or n), so that
`x[32, 128, 768] @ w[768, 768]` is one product with m = 4096.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Matrix = NDArray[Any]
Strides = tuple[int, ...]


def collapse(a: Matrix, b: Matrix, c: Matrix, wider: bool = True) -> tuple[Matrix, Matrix, Matrix]:
    """Views of the same data with as few leading axes as possible. All three have the same leading extents, none 0.
    Not `wider`: B is packed, and nothing is folded into n."""
    if c.ndim == 3 and a.strides[0] and b.strides[0]:  # nothing to merge, nothing to fold
        return a, b, c
    m, n = c.shape[-2:]
    k = a.shape[-1]
    axes = _merge([(extent, strides) for extent, *strides in zip(c.shape[:-2], *_leading(a, b, c)) if extent != 1])
    rows, cols = (a.strides[-2], c.strides[-2]), (b.strides[-1], c.strides[-1])
    while axes:
        extent, (sa, sb, sc) = axes[-1]
        if sb == 0 and _follows((sa, sc), m, rows):  # the same B: more rows
            rows = (sa, sc) if m == 1 else rows
            m *= extent
        elif wider and sa == 0 and _follows((sb, sc), n, cols):  # the same A: more columns
            cols = (sb, sc) if n == 1 else cols
            n *= extent
        else:
            break
        axes.pop()
    if len(axes) == c.ndim - 2:
        return a, b, c
    extents = tuple(extent for extent, _ in axes)
    lead_a, lead_b, lead_c = (tuple(strides[i] for _, strides in axes) for i in range(3))
    return (
        _strided(a, (*extents, m, k), (*lead_a, rows[0], a.strides[-1])),
        _strided(b, (*extents, k, n), (*lead_b, b.strides[-2], cols[0])),
        _strided(c, (*extents, m, n), (*lead_c, rows[1], cols[1])),
    )


def _strided(x: Matrix, shape: tuple[int, ...], strides: Strides) -> Matrix:
    """as_strided, by way of integers for ml_dtypes' formats, which it does not know."""
    if x.dtype.isbuiltin != 2:
        return as_strided(x, shape, strides)
    return as_strided(x.view(f"u{x.itemsize}"), shape, strides).view(x.dtype)


def pieces(a: Matrix, b: Matrix, c: Matrix) -> Iterator[tuple[Matrix, Matrix, Matrix]]:
    """Collapsed operands cut into what an engine takes: one leading axis at most, and that the longest."""
    longest = int(np.argmax(c.shape[:-2]))
    a, b, c = (np.moveaxis(x, longest, -3) for x in (a, b, c))
    for i in np.ndindex(c.shape[:-3]):
        yield a[i], b[i], c[i]


def _leading(*arrays: Matrix) -> Iterator[Strides]:
    return (x.strides[:-2] for x in arrays)


def _merge(axes: list[tuple[int, Any]]) -> list[tuple[int, Strides]]:
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
