"""Workgroups that share a tile of C, each with a part of k: the one that comes last adds up what all of them left."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tilewright.ir import Kernel, Value, i32


@contextmanager
def last_to_come(k: Kernel, leave: Callable[[], None], counters: Value, tile: Value, parts: Any, t: Value,
                 mine: Value | None = None) -> Iterator[None]:
    """What stands inside is done by the workgroup that comes last of the `parts` of a tile, and reads what `leave` has
    written to global memory in each of them.

    counters: i32[tiles], 0 before and after. t: the thread of the workgroup. `mine`: threads that leave something;
    None: all. A kernel has this once.

    Whatever was left is in everybody's sight (fence) before its workgroup (barrier) counts itself, so who finds that
    all others are counted finds their numbers too; the second fence keeps its loads behind that.
    """
    arrived = k.smem("arrived", (1,), i32)
    with nullcontext() if mine is None else k.when(mine):
        leave()
        k.fence_device()
    k.barrier()
    with k.when(t == 0):
        arrived[0] = k.atomic_add(counters + tile, 1, "monotonic")
    k.barrier()
    with k.when(arrived[0] == parts - 1):
        k.fence_device()
        yield
        with k.when(t == 0):
            counters[tile] = 0
