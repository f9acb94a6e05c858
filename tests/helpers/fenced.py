"""Arrays that end, or begin, where memory ends: one element too far is a crash and not a wrong number."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def region(size: int, end: bool = True) -> np.ndarray:
    """So many bytes, of which the last (or first) has a page beside it that cannot be read or written."""
    pages = -(-max(size, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, pages + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(memory, np.uint8)       # keeps the mapping alive as long as the array
    for page in (0, pages + PAGE):
        if _protect(raw.ctypes.data + page, PAGE, 0):        # PROT_NONE
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + pages - size if end else PAGE
    return raw[start:start + size]


def fenced(values: np.ndarray, end: bool = True) -> np.ndarray:
    """A copy of `values` in C order whose last byte (or first) has a page beside it that nobody may touch."""
    held = region(values.nbytes, end).view(values.dtype).reshape(values.shape)
    held[...] = values
    return held
