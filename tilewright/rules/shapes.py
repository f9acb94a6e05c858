"""NumPy's rules of shapes: results, broadcasting, vectors, overlap. Only addresses, shapes and strides are read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.rules import arguments

Array = NDArray[Any]

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
    """Are these two views of the very same elements?"""
    return (
        x.dtype == y.dtype
        and x.shape == y.shape
        and x.strides == y.strides
        and x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    )
