"""Arrays of any strides between guard pages, and what of their memory must stay as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tests.helpers.fenced import region
from tests.products.case import Case
from tests.products.devices import Memory
from tests.products.ways import Call, first

GAP = 0xFF  # between elements: nan, or -1, which would be noticed in a result


def draw(rng: Random, ndim: int, broadcast: bool = True) -> dict[str, Any]:
    """How an array is laid out: plain ones in half of all cases. See `Placed`."""
    plain: dict[str, Any] = {"end": rng.random() < 0.7}
    if rng.random() < 0.5:
        return plain
    order = list(range(ndim))
    if rng.random() < 0.5:
        order[-2:] = order[-2:][::-1]
    if rng.random() < 0.1:
        rng.shuffle(order)
    steps = [rng.choice([1, 1, 1, 1, -1, 2, -2, 3] + [0] * broadcast) for _ in range(ndim)]
    return plain | {"order": order, "steps": steps if rng.random() < 0.6 else [1] * ndim,
                    "pad": rng.choice([0, 0, 1, 3, 8, 61]), "shift": rng.choice([0, 0, 0, 0, 1, 4]),
                    "swapped": rng.random() < 0.1}


@dataclass
class Placed:
    """An array and the bytes between its first and its last, which lie beside a page that cannot be touched."""

    array: np.ndarray
    raw: np.ndarray  # uint8, with `shift` more at the guarded end
    before: np.ndarray
    own: np.ndarray  # bool: the bytes of elements

    @classmethod
    def of(cls, values: np.ndarray, end: bool = True, order: Any = None, steps: Any = None, pad: int = 0,
           shift: int = 0, swapped: bool = False, noise: int | None = None) -> Placed:
        """`values` with axes in this order, outermost first, `pad` elements after each row, and a step along each
        axis: negative ones backwards, 0 for one element seen many times. `shift` bytes off what its type is aligned
        to. `noise`: a seed of what is between the elements, which is GAP without."""
        dtype = values.dtype
        if swapped and dtype.isbuiltin == 1 and dtype.itemsize > 1:
            dtype = dtype.newbyteorder()
        order = range(values.ndim) if order is None else order
        steps = [1] * values.ndim if steps is None else steps
        strides, stride = [0] * values.ndim, dtype.itemsize
        for place, axis in enumerate(reversed(list(order))):
            strides[axis] = steps[axis] * stride
            stride *= max(values.shape[axis], 1) * max(abs(steps[axis]), 1)
            if place == 0:
                stride += pad * dtype.itemsize
        reach = [(n - 1) * s for n, s in zip(values.shape, strides)]
        size = sum(map(abs, reach)) + dtype.itemsize if values.size else 0
        whole = region(size + shift, end)
        whole[...] = GAP if noise is None else np.random.default_rng(noise).integers(0, 256, whole.size, np.uint8)
        start = -sum(r for r in reach if r < 0) + (0 if end else shift)
        array = np.ndarray(values.shape, dtype, whole, start if values.size else 0, strides)
        # Of elements that share a place the first is kept, so that what is read back is a number of the data.
        once = tuple(slice(None) if s else slice(0, 1) for s in strides)
        array[once] = values[once]
        own = np.zeros(whole.size, bool)
        for byte in range(dtype.itemsize if values.size else 0):
            np.ndarray(values.shape, bool, own, start + byte, strides)[...] = True
        return cls(array, whole, whole.copy(), own)

    def untouched(self, name: str, elements: bool = True) -> None:
        """AssertionError if anything was written: between the elements, or anywhere unless `elements` may be."""
        changed = self.raw != self.before
        if not elements:
            changed &= ~self.own
        where = np.flatnonzero(changed)
        assert not where.size, f"{where.size} bytes of {name} were written, the first at {where[0]} of {self.raw.size}"


class Watched(Memory):
    """Memory where each array is placed by the next of these layouts, and nothing is written but results."""

    def __init__(self, place: Callable[[np.ndarray, Any], Any], layouts: Iterator[Any]) -> None:
        super().__init__("drawn")
        self.place, self.layouts = place, layouts
        self.placed = list[tuple[Any, bool]]()

    def array(self, x: np.ndarray) -> Any:
        return self._placed(x, False)

    def result(self, x: np.ndarray) -> Any:
        return self._placed(x, True)

    def _placed(self, x: np.ndarray, written: bool) -> Any:
        found = self.place(x, next(self.layouts))
        self.placed.append((found, written))
        return found.array

    def untouched(self) -> None:
        for placed, written in self.placed:
            placed.untouched("out's surroundings" if written else "an operand", elements=not written)


def checked(case: Case, seed: int, place: Watched, plan: str = "") -> tuple[Call, list[np.ndarray]]:
    """A first call of the case and its results, which are right."""
    call = Call(case, seed, plan)
    found = first(call, place)
    place.untouched()
    call.check(found)
    return call, found
