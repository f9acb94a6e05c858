"""Arrays in a GPU's memory for random calls: torch's tensors on a device, or arrays of the fake driver.

Each lies in memory of its own between margins that nobody may write to, at any offset and with any distance of rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz.memory import Watched
from tilewright import formats

MARGIN = 512  # bytes before and after, a multiple of what allocations are aligned to
GAP = 0xFF  # between elements: nan, or -1


class Device:
    """The real one, by torch."""

    simulated = False

    def __init__(self) -> None:
        import torch

        self.torch = torch
        names = ("f64", "f32", "f16", "bf16", "e4m3fn", "e5m2", "i64", "i32", "i16", "i8", "u8", "c64", "c128", "bool")
        self.dtypes = {formats.FORMATS[x].dtype: getattr(torch, formats.FORMATS[x].numpy_name) for x in names}

    @property
    def target(self) -> Any:
        from tilewright.runtime.cuda import module

        return module.target()

    def memory(self, raw: np.ndarray) -> Any:
        return self.torch.from_numpy(raw.copy()).cuda()

    def view(self, memory: Any, at: int, dtype: np.dtype, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """Strides in elements."""
        return self.torch.as_strided(memory[at:].view(self.dtypes[dtype]), tuple(shape), tuple(strides))

    def bytes_of(self, memory: Any) -> np.ndarray:
        return memory.cpu().numpy()

    def back(self, x: Any) -> np.ndarray:
        if isinstance(x, np.ndarray):
            return x
        dtype = next(ours for ours, theirs in self.dtypes.items() if theirs == x.dtype)
        flat = x.detach().resolve_conj().clone(memory_format=self.torch.contiguous_format).reshape(-1)
        return flat.view(self.torch.uint8).cpu().numpy().view(dtype).reshape(x.shape) if x.numel() else np.empty(
            tuple(x.shape), dtype)

    def finish(self) -> None:
        self.torch.cuda.synchronize()


class Simulated:
    """The fake driver, whose kernels run in the simulator."""

    simulated = True

    def __init__(self, chip: str = "") -> None:
        import pytest

        from tests.helpers.gpus import machine
        from tilewright.targets import target

        chip = chip or os.environ.get("TILEWRIGHT_FUZZ_CHIP", "sm_90a")
        self.patch = pytest.MonkeyPatch()
        self.on, self.target = machine(self.patch, chip), target(chip)

    def memory(self, raw: np.ndarray) -> Any:
        return raw

    def view(self, memory: Any, at: int, dtype: np.dtype, shape: Sequence[int], strides: Sequence[int]) -> Any:
        apart = [x * dtype.itemsize for x in strides]
        return self.on.array(np.ndarray(tuple(shape), dtype, memory, at, apart))

    def bytes_of(self, memory: Any) -> np.ndarray:
        return memory

    def back(self, x: Any) -> np.ndarray:
        return x if isinstance(x, np.ndarray) else np.array(x.host)

    def finish(self) -> None:
        self.on.finish()


class Placed(NamedTuple):
    """An array there, and its memory as it was before."""

    on: Any
    array: Any
    memory: Any
    raw: np.ndarray
    own: np.ndarray  # which bytes are elements'

    def untouched(self, name: str, elements: bool = True) -> None:
        """AssertionError if anything was written: between the elements, or anywhere unless `elements` may be."""
        changed = self.on.bytes_of(self.memory) != self.raw
        if not elements:
            changed = changed & ~self.own
        where = np.flatnonzero(changed)
        assert not where.size, (f"{where.size} bytes of {name} were written, the first {where[0] - MARGIN} bytes past "
                                f"its allocation's begin")


def place(on: Any, values: np.ndarray, order: str = "n", pad: int = 0, shift: int = 0, step: int = 1, apart: int = 0
          ) -> Placed:
    """`values` in the device's memory: `shift` elements past a multiple of 512 bytes, the last axis contiguous (order
    "n") or the one before ("t"), or whichever is in `values` (""), `step` elements from one number to the next, `pad`
    behind each row and `apart` behind each matrix."""
    size, shape = values.dtype.itemsize, values.shape
    axes = [*range(values.ndim)]
    if values.ndim > 1 and (order == "t" or (not order and abs(values.strides[-2]) < abs(values.strides[-1]))):
        axes[-2:] = axes[:-3:-1]
    strides, stride = [0] * values.ndim, step
    for place, axis in enumerate(reversed(axes)):
        strides[axis] = stride
        stride = stride * max(shape[axis], 1) + (pad, apart, 0, 0, 0, 0)[place]
    span = sum((n - 1) * s for n, s in zip(shape, strides)) + 1 if values.size else 0
    begin = MARGIN + shift * size
    whole = np.full(begin + span * size + MARGIN + size, GAP, np.uint8)
    whole = whole[: len(whole) // 16 * 16]
    own = np.zeros(len(whole), bool)
    apart_bytes = [s * size for s in strides]
    if values.size:
        np.ndarray(shape, values.dtype, whole, begin, apart_bytes)[...] = values
        for byte in range(size):
            np.ndarray(shape, bool, own, begin + byte, apart_bytes)[...] = True
    memory = on.memory(whole)
    return Placed(on, on.view(memory, begin, values.dtype, shape, strides), memory, whole.copy(), own)


class Margins(Watched):
    """The device's memory. Arrays lie by these layouts in turn, and all after the last one by that."""

    gpu = True

    def __init__(self, on: Any, layouts: list[dict[str, Any]]) -> None:
        super().__init__(lambda x, how: place(on, x, **how), chain(layouts, repeat(layouts[-1])))
        self.finish, self.back = on.finish, on.back
