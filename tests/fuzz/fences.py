"""The library's own memory between fences: what kernels write beside C, in blocks of just the size that was asked for.

    guard   each block ends where a page begins that cannot be touched: an access beyond it ends the process
    heap    each block has canaries on both sides, which are looked at afterwards: a fault is an AssertionError

Blocks are full of nan, or -1, so that a number that nobody wrote is noticed where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from tests.fuzz.memory import GAP
from tests.helpers.fenced import region
from tilewright.runtime.cpu import engine, recipe, workspace

CANARY, AROUND, LINE = 0xA5, 1024, 64


class Fences:
    """Blocks of memory, and what is beside them."""

    def __init__(self, kind: str) -> None:
        self.kind, self.blocks = kind, list[tuple[np.ndarray, int]]()

    def block(self, size: int) -> np.ndarray:
        """So many bytes. Their end is fenced, and on the heap their beginning."""
        if self.kind == "guard":
            own = region(size)
        else:
            whole = np.full(size + 2 * AROUND + LINE, CANARY, np.uint8)
            first = AROUND + -(whole.ctypes.data + AROUND) % LINE
            self.blocks.append((whole, first))
            own = whole[first : first + size]
        own[...] = GAP
        return own

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """In the place of workspace.scratch."""
        return self.block(int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)

    def workspace(self, size: int) -> Any:
        """In the place of workspace.take: panels that begin and end at cache lines, barriers of zeros before them."""
        size = -(-size // LINE) * LINE
        found = mock.NonCallableMock()
        found.memory = self.block(workspace.BARRIERS + size)
        found.memory[: workspace.BARRIERS] = 0
        found.size, found.barriers = size, found.memory.ctypes.data
        found.address = found.barriers + workspace.BARRIERS
        return found

    def check(self) -> None:
        """AssertionError if anything beside a block was written."""
        for whole, first in self.blocks:
            size = whole.size - 2 * AROUND - LINE
            beside = np.ones(whole.size, bool)
            beside[first : first + size] = False
            where = np.flatnonzero(beside & (whole != CANARY))
            assert not where.size, (f"{where.size} bytes beside a block of {size} were written, the first at "
                                    f"{where[0] - first}")


@contextmanager
def fenced(kind: str) -> Iterator[Fences]:
    """All of the library's scratch memory between fences, without what rounds it up to pages; checked at the end. No
    recipe of before is taken, nor one of here afterwards."""
    fences = Fences(kind)
    engine.forget()
    try:
        with (mock.patch.object(workspace, "scratch", fences.scratch), mock.patch.object(workspace, "give"),
              mock.patch.object(workspace, "take", fences.workspace),
              mock.patch.object(recipe, "_page", lambda size: -(-size // LINE) * LINE)):
            try:
                yield fences
            finally:
                fences.check()
    finally:
        engine.forget()
