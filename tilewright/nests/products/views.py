"""An element's array as a view with an axis for each index, or group of indices: `Look`.

For given sizes an access is a base address and a stride per index. So transposed operands, batches, the flat addresses
of kernels (A + x*N + p) and the windows of convolutions (x[i + r]) are views, without a copy.
"""
from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.nests.domain import Element
from tilewright.nests.polynomial import Linear
from tilewright.nests.products.pieces import Operand

Groups = Sequence[Sequence[str]]


def strides(e: Element, array: Any) -> dict[str, int]:
    """Elements from one round of each index to the next."""
    steps = element_strides(array)
    found = dict[str, int]()
    for x, step in zip(e.subscripts, steps, strict=True):
        for i, c in x.factors.items():
            found[i] = found.get(i, 0) + c * step
    return found


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
            whole = [x.factors for x in e.subscripts if x.factors]
            order = [next(iter(x)) for x in whole]
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
