"""Memory for packed panels: kept between calls, one block per call in flight."""
from __future__ import annotations

import ctypes
import mmap
import os
from threading import Lock

HUGE = 2 << 20          # packed panels are read in long runs: a TLB entry for each 2 MiB, not for each 4 KiB


class Workspace:
    """`size` bytes of zeroed, private memory, aligned to a huge page."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // HUGE) * HUGE
        self._map = mmap.mmap(-1, self.size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.address = -(-start // HUGE) * HUGE


_free: list[Workspace] = []
_lock = Lock()


def take(size: int) -> Workspace:
    """A block of at least `size` bytes that nobody else uses; `give` it back."""
    with _lock:
        for i in range(len(_free) - 1, -1, -1):
            if _free[i].size >= size:
                return _free.pop(i)
        if _free:
            _free.pop()         # too small for what is now asked: one large block instead of many
    return Workspace(size)


def give(workspace: Workspace) -> None:
    with _lock:
        _free.append(workspace)


def _new_lock() -> None:
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_new_lock)       # another thread of the parent may have held it
