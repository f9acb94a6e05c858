"""The arguments of a call of loops: arrays, sizes and numbers by name, and which arrays share memory."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.nests.nest import LoopNest


def arguments(nest: LoopNest, args: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a call by name, and its sizes and numbers."""
    arrays, numbers = dict[str, Any](), dict[str, Any]()
    for p, x in zip(nest.parameters, args, strict=True):
        if p.kind == "array":
            arrays[p.name] = x
        elif p.kind == "pointer":
            arrays[p.name] = x.reshape(-1)
        else:
            numbers[p.name] = int(x) if p.kind == "size" else float(x)
    for name in nest.sizes:
        if name not in numbers:
            array, axis = name.removesuffix("]").split(".shape[")
            numbers[name] = arrays[array].shape[int(axis)]
    return arrays, numbers


def overlap(a: Any, b: Any) -> bool:
    """Whether two arrays may share memory."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    if not (hasattr(a, "untyped_storage") and hasattr(b, "untyped_storage")):
        return False
    (first, size), (second, other) = ((x.data_ptr(), x.nbytes()) for x in (a.untyped_storage(), b.untyped_storage()))
    return bool(first < second + other and second < first + size)


def folded(shape: Sequence[int], strides: Sequence[int], size: int = 1) -> bool:
    """Whether elements of an array, of this size as strides are counted, may be one number: strides of 0, or that are
    less than what smaller ones span."""
    if 0 in shape:
        return False
    reach = 0
    for step, n in sorted((abs(step), n) for step, n in zip(strides, shape) if n > 1):
        if step < reach + size:
            return True
        reach += step * (n - 1)
    return False
