"""Workgroups that share a tile of C, each with a part of k: the last one to finish adds up the sums of all."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Tile, Type, Value, i32, i64, ptr, vec

WIDEST = 16             # bytes that a thread moves at once


@dataclass(frozen=True)
class Parts:
    """Which part of k this workgroup has, and where the sums of all parts of its tile meet."""
    tile: Value             # of C, among those that are divided
    tiles: Callable[[], Value]          # how many those are; computed where it is used, after the main loop
    part: Value             # of k
    parts: Value            # how many those are
    workspace: Value | None = None      # sums [parts, tiles, vectors of a thread, threads]
    counters: Value | None = None       # i32[tiles], 0 before and after
    TAIL: bool = False      # whether there are tiles with a single part, too


@dataclass(frozen=True)
class Split:
    """How workgroups share k, as the launch says it.

    SPLIT_K     parts of k that workgroups along z of the grid have
    TAIL        the last tiles of C are divided (`tail`): the grid is whole + (tiles - whole) * parts
    """
    SPLIT_K: int = 1
    TAIL: bool = False

    @property
    def divided(self) -> bool:
        return self.SPLIT_K > 1 or self.TAIL

    def parameters(self, SUMS: Type) -> dict[str, Any]:
        """The last parameters of the kernel."""
        found: dict[str, Any] = {"workspace": ptr(SUMS), "counters": ptr(i32)} if self.divided else {}
        return found | ({"whole": i32, "parts": i32} if self.TAIL else {})

    def parts(self, k: Kernel, g: SimpleNamespace, block: Value, tiles: Callable[[], Value]) -> tuple[Value, Parts]:
        """(tile of C, its parts) of workgroup `block`, of a C of so many tiles. g: the kernel's arguments by name."""
        if self.TAIL:
            tile, part, parts = tail(k, block, g.whole, g.parts)
            return tile, Parts(tile - g.whole, lambda: tiles() - g.whole, part, parts, g.workspace, g.counters, True)
        if self.SPLIT_K > 1:
            return block, Parts(block, tiles, k.block_z, k.constant(i32, self.SPLIT_K), g.workspace, g.counters)
        return block, Parts(block, tiles, k.constant(i32, 0), k.constant(i32, 1))


def tail(k: Kernel, index: Value, whole: Value, parts: Value) -> tuple[Value, Value, Value]:
    """(tile, part, parts of it) of CTA `index`: the first `whole` CTAs have a tile each, the others a part of one.

    With as many whole tiles as fill all multiprocessors some number of times, the tiles left over are divided, so that
    the last round is as short as the work in it: 288 tiles on 132 multiprocessors take 2.2 rounds instead of 3.
    """
    beyond = index - whole
    divided = beyond >= 0
    tile = k.select(divided, whole + k.max(beyond, 0) // parts, index)
    return tile, k.select(divided, k.max(beyond, 0) % parts, 0), k.select(divided, parts, 1)


@dataclass(frozen=True)
class Holders:
    """The threads of a workgroup that hold accumulators of its tile of C: SLOTS of them."""
    t: Value                # thread of the workgroup
    slot: Value             # of the thread, among those that hold accumulators
    SLOTS: int
    holds: Value | None = None          # whether the thread is one of them; None: all are


def finish(k: Kernel, acc: Tile, parts: Parts, holders: Holders, write: Callable[[], None]) -> None:
    """`write` the accumulators where they are sums over all of k: of a divided tile in the last workgroup of its parts,
    which adds them up in the order of k, so that the result does not depend on which one comes last."""
    def by_holders() -> Any:
        return nullcontext() if holders.holds is None else k.when(holders.holds)
    if parts.workspace is not None:
        with k.when(parts.parts > 1) if parts.TAIL else nullcontext():
            _sum_parts(k, acc, parts, holders, by_holders, write)
    if parts.TAIL:
        whole = parts.parts == 1
        with k.when(whole if holders.holds is None else whole & holders.holds):
            write()
    elif parts.workspace is None:
        with by_holders():
            write()


def _sum_parts(k: Kernel, acc: Tile, parts: Parts, holders: Holders, by_holders: Callable[[], Any],
               write: Callable[[], None]) -> None:
    """Each workgroup stores its accumulators, fences, synchronises, then increments the tile's counter. The one that
    reads parts - 1 therefore sees the accumulators of all parts; the second fence keeps its loads after the increment.
    """
    workspace: Any = parts.workspace
    counters: Any = parts.counters
    T = workspace.type.element
    WIDTH = min(acc.type.length, WIDEST // T.bytes)
    vectors = [(ij, first) for ij in acc.registers for first in range(0, acc.type.length, WIDTH)]
    STEP = holders.SLOTS * WIDTH

    def sums_of(part: Value) -> Value:
        return workspace + (k.cast(part*tiles + parts.tile, i64)*(len(vectors)*holders.SLOTS) + holders.slot
                            )*WIDTH

    arrived = k.smem("arrived", (1,), i32)
    tiles = parts.tiles()
    with by_holders():
        at = sums_of(parts.part)
        for e, (ij, first) in enumerate(vectors):
            sums = acc[ij]
            if sums.type.length > WIDTH:
                sums = k.shuffle(sums, sums, range(first, first + WIDTH))
            k.store(at + e*STEP, sums)
        k.fence_device()
    k.barrier()
    with k.when(holders.t == 0):
        arrived[0] = k.atomic_add(counters + parts.tile, 1, "monotonic")
    k.barrier()
    with k.when(arrived[0] == parts.parts - 1):
        k.fence_device()
        with by_holders():
            for ij in acc.registers:
                acc[ij] = k.constant(acc.type, 0)
            with k.loop(parts.parts) as part:
                at = sums_of(part)
                for ij in acc.registers:
                    found = [k.load(at + e*STEP, vec(T, WIDTH)) for e, (its, _) in enumerate(vectors) if its == ij]
                    while len(found) > 1:
                        found = [k.shuffle(x, y, range(2*x.type.length)) for x, y in zip(found[::2], found[1::2])]
                    acc[ij] = acc[ij] + found[0]
            write()
        with k.when(holders.t == 0):
            counters[parts.tile] = 0
