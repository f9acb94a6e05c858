"""What offsets of grouped products may be, which axes they divide, and which operands of an epilogue are per group.

    a [M, k], b [G, k, n]   group g multiplies rows offsets[g-1] ... offsets[g] of a by b[g]            → [M, n]
    a [m, K], b [K, n]      the same steps of k of both are a product of their own                      → [G, m, n]

Only dtypes, shapes and strides of operands are read, so that they may be NumPy's or shadows of arrays on a GPU.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.rules import arguments
from tilewright.rules.arguments import Array


class Axes(NamedTuple):
    """Sizes of a grouped product. `along` is "m" or "k", the axis that offsets divide."""
    along: str
    groups: int
    m: int                      # M where rows are divided
    n: int
    k: int                      # K where steps of k are

    @property
    def divided(self) -> tuple[str, int]:
        """What the axis is called, and its extent."""
        return ("a's rows", self.m) if self.along == "m" else ("the steps of k", self.k)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (self.m, self.n) if self.along == "m" else (self.groups, self.m, self.n)

    @property
    def with_rows(self) -> int:
        """How many groups have rows, where rows are divided, if each row's group is drawn at random: for so many plans
        are chosen."""
        rows = self.m if self.along == "m" else 0
        return math.ceil(self.groups * (1 - (1 - 1/self.groups)**rows) - 0.01) if rows else self.groups

    def as_product(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Operands of one product with the result's shape, for rules that read dtypes and shapes only."""
        if self.along == "m":
            return a, np.empty((self.k, self.n), b.dtype)
        return np.broadcast_to(a, (self.groups, *a.shape)), b


def axes(a: Array, b: Array, offsets: Array) -> Axes:
    """The axes of operands as they are multiplied. ValueError for shapes that are no grouped product."""
    if offsets.ndim != 1:
        raise ValueError(f"offsets must have one axis, with the end of each group, but its shape is {offsets.shape}")
    if offsets.dtype.kind not in "iu":
        raise TypeError(f"offsets must be integers, but its dtype is {offsets.dtype}")
    if a.ndim != 2 or b.ndim not in (2, 3):
        raise ValueError("a and b must be [M, k] and [G, k, n], whose rows of a are in groups, or [m, K] and [K, n], "
                         f"whose steps of k are; as multiplied they are {a.shape} and {b.shape}")
    groups = len(offsets)
    if a.shape[1] != b.shape[-2]:
        raise ValueError(f"a and b must agree in k, but a has {a.shape[1]} columns and b has {b.shape[-2]} rows "
                         f"(as multiplied: a {a.shape}, b {b.shape})")
    if b.ndim == 3 and b.shape[0] != groups:
        raise ValueError(f"offsets must have the end of each of b's {b.shape[0]} groups, but its shape is "
                         f"{offsets.shape}")
    return Axes("m" if b.ndim == 3 else "k", groups, a.shape[0], b.shape[-1], a.shape[1])


def checked(offsets: Array, axis: str, extent: int) -> NDArray[np.int64]:
    """The ends of all groups. ValueError if they are not ascending within the axis."""
    ends = offsets.astype(np.int64)
    if ends.size and (ends[0] < 0 or len((ends[1:] < ends[:-1]).nonzero()[0])):
        g = int(np.flatnonzero(ends[1:] < ends[:-1])[0]) + 1 if ends[0] >= 0 else 0
        what = f"offsets[{g - 1}] = {ends[g - 1]}" if g else "0"
        raise ValueError(f"offsets must not descend, but offsets[{g}] = {ends[g]} is less than {what}")
    if ends.size and ends[-1] > extent:
        raise ValueError(f"offsets must not exceed {axis}, of which there are {extent}, but offsets[-1] is {ends[-1]}")
    return ends


def per_group(operands: Mapping[str, Array], of: Axes) -> dict[str, Array]:
    """The operands of an epilogue that have a number, or one for each column, for each group of rows, as [G, 1, n] or
    [G, 1, 1]: that is their shape, or they are [G, n] or [G, 1] and broadcast to no result [M, n]."""
    arrays = {}
    if of.along == "m":
        for name, x in operands.items():
            if x.ndim == 3 and x.shape[:2] == (of.groups, 1):
                arrays[name] = x
            elif x.ndim == 2 and x.shape[0] == of.groups and of.groups not in (1, of.m):
                arrays[name] = x[:, None]
    return arrays


def stand_ins(operands: Mapping[str, Array], grouped: Mapping[str, Array]) -> dict[str, Array]:
    """The operands with those of a group by itself, for rules of one product."""
    return {name: np.empty(grouped[name].shape[-1:], x.dtype) if name in grouped else x
            for name, x in operands.items()}


def operand(value: Any, name: str) -> Array:
    """a or b as an array. TypeError for what is packed or quantized: b of groups of rows alone may be."""
    if type(value).__module__.startswith("tilewright."):
        raise TypeError(f"{name} must be an array, not {type(value).__name__}: of grouped_matmul's operands b alone "
                        "may be packed or quantized")
    return arguments.operand(value, name)
