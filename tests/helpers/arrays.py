"""The same numbers, laid out in memory in every way NumPy allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class Storage:
    """How an array lies in its buffer: the order of its axes, a step for each (0: broadcast), alignment, byte order."""

    order: tuple[int, ...]
    steps: tuple[int, ...]
    shift: int = 0
    swapped: bool = False

    def hold(self, values: np.ndarray) -> np.ndarray:
        """An array equal to `values` stored this way. Along a step of 0 only the first of the values is held."""
        dtype = values.dtype.newbyteorder() if self.swapped else values.dtype
        room = [max(values.shape[axis], 1) * max(abs(self.steps[axis]), 1) for axis in self.order]
        buffer = np.full(int(np.prod(room)) * dtype.itemsize + self.shift, 0x55, np.uint8)
        whole = np.ndarray(room, dtype, buffer, offset=self.shift).transpose(np.argsort(self.order))
        strides = [step * stride for step, stride in zip(self.steps, whole.strides)]
        start = tuple(n - 1 if step < 0 else 0 for n, step in zip(whole.shape, self.steps))
        offset = self.shift + sum(i * stride for i, stride in zip(start, whole.strides))
        held = np.ndarray(values.shape, dtype, buffer, offset, strides)
        held[tuple(slice(None) if step else slice(0, 1) for step in self.steps)] = values[
            tuple(slice(None) if step else slice(0, 1) for step in self.steps)
        ]
        return held


@st.composite
def storages(draw: st.DrawFn, ndim: int, broadcast: bool = True) -> Storage:
    steps = st.sampled_from([1, 1, 1, -1, 2, -3] + [0] * broadcast)
    return Storage(
        order=tuple(draw(st.permutations(range(ndim)))),
        steps=tuple(draw(steps) for _ in range(ndim)),
        shift=draw(st.sampled_from([0, 0, 0, 1, 4])),
        swapped=draw(st.sampled_from([False, False, False, True])),
    )


def small_integers(seed: int, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Whole numbers so small that every order of summation gives the same bits."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)
