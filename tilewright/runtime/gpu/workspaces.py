"""Workspaces of kernels, one for each stream: memory, and counters that are zero whenever no kernel runs there.

runtime/cuda/module.py and runtime/hip/module.py have one `Workspaces` each, of their own memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tilewright import forks

MOST = 128  # kept at a time
LINE = 256  # what the counters of a workspace begin at a multiple of
Fill = Callable[[int, int, int, int], None]  # a word of 32 bits from an address on, so many bytes, on a stream


class Workspace:
    """What kernels on one stream may use in turn: a workspace, and counters that are zero whenever none of them runs.

    A smaller one that it replaces stays as long as it does, since kernels on their way may use it: to free it now would
    wait for them. As each is twice as large as the last one, that is less than it takes itself.
    """

    __slots__ = ("before", "counter_bytes", "counters", "memory", "workspace", "workspace_bytes")

    workspace_bytes: int
    counter_bytes: int

    def __init__(self, memory: Callable[[int], Any], fill: Fill, workspace: int, counters: int, stream: int,
                 before: Workspace | None) -> None:
        if before is not None:
            workspace = max(workspace, 2 * before.workspace_bytes)
            counters = max(counters, 2 * before.counter_bytes)
        at = lines(workspace)
        self.before, self.memory = before, memory(at + counters)
        self.workspace, self.workspace_bytes = self.memory.pointer, workspace
        self.counters, self.counter_bytes = self.memory.pointer + at, counters
        fill(self.counters, 0, counters, stream)


class Workspaces:
    """`get` finds a stream's workspace or makes it, of memory that outlives streams."""

    def __init__(self, memory: Callable[[Any, int], Any], block: Callable[[Any, int, Any], Any], fill: Fill,
                 prepare: Callable[[Any], None] = lambda on: None) -> None:
        """memory(device, size) and block(device, size, stream) have a `pointer`; `prepare` is called for a device whose
        kernels need workspaces, before a stream records a graph of them."""
        self._memory, self._block, self._fill, self.prepare = memory, block, fill, prepare
        self._lock = forks.Lock()
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self.found: dict[tuple[int, int], Workspace] = {}  # by device and stream, the oldest first

    def get(self, on: Any, workspace: int, counters: int, stream: int, answers: Any) -> Workspace | None:
        """The stream's, of at least so many bytes each. None if the stream is recording a graph: see `recorded`.

        `answers` knows of a stream whether it is recording, and a number that tells it from all others. The device must
        be current. A workspace is the same for every call on a stream, since kernels there take turns; hold it until
        the kernel is launched, as another thread may make this method forget it.
        """
        if answers.is_capturing(stream):
            return None
        key = on.index, answers.number(stream)
        found = self.found.get(key)
        if found is None or found.workspace_bytes < workspace or found.counter_bytes < counters:
            found = self._grown(on, key, workspace, counters, stream)
        return found

    def _grown(self, on: Any, key: tuple[int, int], workspace: int, counters: int, stream: int) -> Workspace:
        with self._lock:
            found = self.found.get(key)
            if found is None or found.workspace_bytes < workspace or found.counter_bytes < counters:
                if found is None and len(self.found) >= MOST:
                    # Most streams of a program with so many are gone. Half at a time, for the first to be freed waits.
                    for old in list(self.found)[: (len(self.found) + 1) // 2]:
                        del self.found[old]
                found = self.found[key] = Workspace(lambda size: self._memory(on, size), self._fill, workspace,
                                                    counters, stream, found)
        return found

    def recorded(self, on: Any, workspace: int, counters: int, stream: int) -> tuple[Any, int]:
        """For one kernel in a graph that is being recorded: a block of memory, to be freed behind the kernel, and where
        its counters are."""
        at = lines(workspace)
        made = self._block(on, at + counters, stream)
        try:
            self._fill(made.pointer + at, 0, counters, stream)
        except BaseException:
            made.free()
            raise
        return made, made.pointer + at


def lines(size: int) -> int:
    """The next multiple of LINE."""
    return -(-size // LINE) * LINE
