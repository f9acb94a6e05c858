"""The fast path of a product on a GPU: it differs from an earlier one in the addresses of its matrices only.

What makes two products alike is in a key, made of what the library itself says about plain arrays. Nothing else is
looked at: no shadow, no rule, no plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.gpu.arrays import Library, library_of
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


class Signature(NamedTuple):
    """A product of plain arrays of one library: what it has in common with others, and where its matrices are."""

    key: tuple[Any, ...]
    library: Library
    a: int
    b: int
    out: int  # 0: to be made


def signature(a: Any, b: Any, out: Any, plan: Any) -> Signature | None:
    """None if arrays are not so plain, or of several libraries."""
    library = library_of(a)
    if library is None or library_of(b) is not library:
        return None
    x, y = library.plain(a), library.plain(b)
    if x is None or y is None:
        return None
    (what_a, at_a), (what_b, at_b) = x, y
    if out is None:
        return Signature((library, what_a, what_b, None, _lowest(at_a, at_b), plan), library, at_a, at_b, 0)
    z = library.plain(out) if library_of(out) is library else None
    if z is None:
        return None
    what, at = z
    return Signature((library, what_a, what_b, what, _lowest(at_a, at_b, at), plan), library, at_a, at_b, at)


def _lowest(*addresses: int) -> tuple[int, ...]:
    return tuple(x & ALIGNMENT for x in addresses)


def remember(key: tuple[Any, ...], recipe: Recipe, transposed_c: bool, device: int, *matrices: NDArray[Any]) -> None:
    """Remember what the product of these, A, B and C by their shadows, came to."""
    if len(_entries) >= MOST:
        _entries.clear()
    c = matrices[-1]
    _entries[key] = Entry(recipe, transposed_c, device, c.shape, c.dtype, tuple(map(_span, matrices)))


def multiply(asked: Signature, a: Any, out: Any, alpha: float) -> Any:
    """alpha * a @ b as it went before, into out or a new array; None if it has to go the long way."""
    key, library, at_a, at_b, at_c = asked
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
