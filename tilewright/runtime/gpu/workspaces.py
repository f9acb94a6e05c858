"""Workspaces of kernels, one for each stream: memory, and counters that are zero whenever no kernel runs there.

`device_memory` and `hip_memory` have one `Spaces` each, with their own memory and their own way to write zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import forks

MOST = 128  # kept at a time
LINE = 256  # what the counters of a space begin at a multiple of
Zero = Callable[[int, int, int], None]  # so many bytes from an address on, on a stream


class Space:
    """What kernels on one stream may use in turn: a workspace, and counters that are zero whenever none of them runs.

    A smaller one that it replaces stays as long as it does, since kernels on their way may use it: to free it now would
    wait for them. As each is twice as large as the last one, that is less than it takes itself.
    """

    __slots__ = ("before", "counter_bytes", "counters", "memory", "workspace", "workspace_bytes")

    workspace_bytes: int
    counter_bytes: int

    def __init__(self, memory: Callable[[int], Any], zero: Zero, workspace: int, counters: int, stream: int,
                 before: Space | None) -> None:
        if before is not None:
            workspace = max(workspace, 2 * before.workspace_bytes)
            counters = max(counters, 2 * before.counter_bytes)
        at = lines(workspace)
        self.before, self.memory = before, memory(at + counters)
        self.workspace, self.workspace_bytes = self.memory.pointer, workspace
        self.counters, self.counter_bytes = self.memory.pointer + at, counters
        zero(self.counters, counters, stream)


class Spaces:
    """`get` finds a stream's space or makes it, of memory that outlives streams."""

    def __init__(self, memory: Callable[[Any, int], Any], zero: Zero) -> None:
        """memory(device, size) has a `pointer`, and is freed when nobody has it any more."""
        self._memory, self._zero, self._lock = memory, zero, forks.Lock()
        self.forget()

    def forget(self) -> None:
        self.found: dict[tuple[int, int], Space] = {}  # by device and stream, the oldest first

    def get(self, on: Any, number: int, workspace: int, counters: int, stream: int) -> Space:
        """Of at least so many bytes each. `number`: what tells this stream from all others.

        It is the same for every call on a stream, since kernels there take turns; hold it until the kernel is launched,
        as another thread may make this method forget it.
        """
        key = on.index, number
        found = self.found.get(key)
        if found is None or found.workspace_bytes < workspace or found.counter_bytes < counters:
            found = self._grown(on, key, workspace, counters, stream)
        return found

    def _grown(self, on: Any, key: tuple[int, int], workspace: int, counters: int, stream: int) -> Space:
        with self._lock:
            found = self.found.get(key)
            if found is None or found.workspace_bytes < workspace or found.counter_bytes < counters:
                if found is None and len(self.found) >= MOST:
                    # Most streams of a program with so many are gone. Half at a time, for the first to be freed waits.
                    for old in list(self.found)[: (len(self.found) + 1) // 2]:
                        del self.found[old]
                found = self.found[key] = Space(lambda size: self._memory(on, size), self._zero, workspace, counters,
                                                stream, found)
        return found


def lines(size: int) -> int:
    """The next multiple of LINE."""
    return -(-size // LINE) * LINE


def recorded(block: Any, zero: Zero, workspace: int, counters: int, stream: int) -> tuple[Any, int]:
    """For one kernel in a graph that is being recorded: a block of memory, made by block(size) and to be freed behind
    the kernel, and where its counters are."""
    at = lines(workspace)
    made = block(at + counters)
    try:
        zero(made.pointer + at, counters, stream)
    except BaseException:
        made.free()
        raise
    return made, made.pointer + at
