"""Memory that kernels write beside C: for packed panels and the barriers of the threads that pack them, one block per
call in flight, kept; and arrays of one call."""
from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.cpu.jobs import BARRIER_BYTES
from tilewright.runtime.cpu.pool import MOST

HUGE = 2 << 20          # packed panels are read in long runs: a TLB entry for each 2 MiB, not for each 4 KiB
KEPT = 512 << 20        # bytes that are kept at most: panels are as large as caches, but sums that wait to be rounded
                        # are as large as C
BARRIERS = 2 * MOST * BARRIER_BYTES     # one for each block of A and of B, of which no team has more than members


class Workspace:
    """`size` bytes of private memory at `address`, aligned to a huge page, and in front of them `barriers`, which no
    panel ever overwrites: every use leaves a barrier ready for the next. Zero when new."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // HUGE) * HUGE
        self._map = mmap.mmap(-1, self.size + BARRIERS + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + BARRIERS
        self.address = -(-start // HUGE) * HUGE
        self.barriers = self.address - BARRIERS


_free: list[Workspace] = []     # popped and appended, each of which is one step even to other threads


def take(size: int) -> Workspace:
    """A block of at least `size` bytes for this call alone; `give` it back."""
    try:
        space = _free.pop()
    except IndexError:
        return Workspace(size)
    return space if space.size >= size else Workspace(size)     # not both: one large block instead of many


def give(workspace: Workspace) -> None:
    if workspace.size <= KEPT:
        _free.append(workspace)


def scratch(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that kernels write and that ends with the call, as sums and partial results do."""
    return np.empty(shape, dtype)
