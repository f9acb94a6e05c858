"""The fast path of a product on a GPU: it differs from an earlier one in the addresses of its matrices only.

What makes two products alike is in a key, made of what the library itself says about plain arrays. Nothing else is
looked at: no shadow, no rule, no plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.gpu.arrays import Library
from tilewright.runtime.gpu.recipe import Recipe

MOST = 4096
ALIGNMENT = 15  # bits of an address that matter to a plan


class Entry(NamedTuple):
    """How a product was done."""

    recipe: Recipe
    transposed_c: bool  # C^T = B^T A^T: the recipe takes B^T and A^T
    device: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spans: tuple[tuple[int, int], ...]  # of A, B and C: the bytes they reach over, from their addresses on


_entries: dict[tuple[Any, ...], Entry] = {}


def signature(library: Library, a: Any, b: Any, out: Any, plan: Any) -> tuple[tuple[Any, ...], int, int, int] | None:
    """Of a product of plain arrays of a library: what it has in common with others, and the addresses of a, b and out;
    0 for one that is to be made. None if arrays are not so plain."""
    x, y = library.plain(a), library.plain(b)
    if x is None or y is None:
        return None
    (what_a, at_a), (what_b, at_b) = x, y
    what, at = None, 0
    if out is not None:
        z = library.plain(out)
        if z is None:
            return None
        what, at = z
    key = library, what_a, what_b, what, at_a & ALIGNMENT, at_b & ALIGNMENT, at & ALIGNMENT, plan
    return key, at_a, at_b, at


def remember(key: tuple[Any, ...], shape: tuple[int, ...], recipe: Recipe, transposed_c: bool, device: int,
             *matrices: NDArray[Any]) -> None:
    """Remember what the product of these, A, B and C by their shadows, came to; its shape is the caller's."""
    if len(_entries) >= MOST:
        _entries.clear()
    c = matrices[-1]
    _entries[key] = Entry(recipe, transposed_c, device, shape, c.dtype, tuple(map(_span, matrices)))


def multiply(library: Library, asked: tuple[Any, ...], a: Any, out: Any, alpha: float) -> Any:
    """alpha * a @ b as it went before, into out or a new array; None if it has to go the long way."""
    key, at_a, at_b, at_c = asked
    found = _entries.get(key)
    if found is None:
        return None
    recipe, transposed_c, device, shape, dtype, (span_a, span_b, span_c) = found
    stream = library.stream(a, device)
    if out is None:
        out = library.empty(shape, dtype, device, stream)
        at_c = library.pointer(out)
        if at_c & ALIGNMENT:
            return None
    else:
        low, high = at_c + span_c[0], at_c + span_c[1]
        if (low < at_a + span_a[1] and at_a + span_a[0] < high) or (low < at_b + span_b[1] and at_b + span_b[0] < high):
            return None  # they may overlap
    if transposed_c:
        at_a, at_b = at_b, at_a
    recipe.run(at_a, at_b, at_c, alpha, 0.0, stream)
    return out


def forget() -> None:
    _entries.clear()


def _span(x: NDArray[Any]) -> tuple[int, int]:
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + x.itemsize
