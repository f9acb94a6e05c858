"""`tw.optimize(f, *args)`: loops of users become the calls and kernels that compute the same faster.

Contractions become products of the planner (recognition.py, product.py); the rest remains loops.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.nests.domain import check, rounds
from tilewright.nests.nest import LoopNest, refuse
from tilewright.nests.pieces import boxes
from tilewright.nests.product import Product
from tilewright.nests.recognition import Part, contractions


class Optimized:
    """Loops as calls: `optimized(*args)` computes what the function does with these arguments."""

    def __init__(self, nest: LoopNest, args: Sequence[Any]) -> None:
        self.nest = nest
        self.arrays, self.sizes = arguments(nest, args)
        check(nest, self.sizes, {name: x.shape for name, x in self.arrays.items()})
        found = rounds(nest, self.sizes)
        self.parts = contractions(found, lambda a, b: a == b or _overlap(self.arrays[a], self.arrays[b]))
        self.steps = [self._step(part) for part in self.parts]

    def _step(self, part: Part) -> list[Product]:
        if part.contraction is None:
            refuse(part.statements[0].line, part.reason)
        shapes = {name: x.shape for name, x in self.arrays.items()}
        return [Product(box, self.arrays) for box in boxes(part.contraction, shapes)]

    def __call__(self, *args: Any) -> None:
        arrays, numbers = arguments(self.nest, args)
        for step in self.steps:
            for product in step:
                product.run(arrays, numbers)

    def __str__(self) -> str:
        return "; then ".join(str(step[0]) + (f", in {len(step)} blocks" if len(step) > 1 else "")
                              for step in self.steps)


def arguments(nest: LoopNest, args: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a call by name, and its sizes and numbers."""
    arrays, numbers = dict[str, Any](), dict[str, Any]()
    for p, x in zip(nest.parameters, args, strict=True):
        if p.kind in ("array", "pointer"):
            arrays[p.name] = x.reshape(-1) if p.kind == "pointer" else x
        else:
            numbers[p.name] = int(x) if p.kind == "size" else float(x)
    for name in nest.sizes:
        if name not in numbers:
            array, axis = name.removesuffix("]").split(".shape[")
            numbers[name] = arrays[array].shape[int(axis)]
    return arrays, numbers


def _overlap(a: Any, b: Any) -> bool:
    return a is b or bool(np.may_share_memory(a, b))
