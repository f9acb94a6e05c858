"""Workgroups that share a tile of C, each with a part of k: the last one to finish adds up the sums of all.

`finish` does so for a workgroup as a whole, `finish_by_warp` for each of its warps: of a persistent kernel, of which
other warps go on with the next tile.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Tile, Type, Value, i32, i64, ptr, vec
from tilewright.kernels.expression import Arithmetic

WIDEST = 16             # bytes that a thread moves at once


@dataclass(frozen=True)
class Parts:
    """Which part of k this workgroup has, and where the sums of all parts of its tile meet."""
    counter: Value          # the number of that of the tile
    part: Value             # of k
    parts: Value            # how many those are
    place: Callable[[Value], Value]     # of a part's sums; computed where it is used, after the main loop
    workspace: Value | None = None      # sums [places, vectors of a thread, threads]
    counters: Value | None = None       # i32, of each tile that is divided, 0 before and after
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
        types: dict[str, Any] = {"workspace": ptr(SUMS), "counters": ptr(i32)} if self.divided else {}
        return types | ({"whole": i32, "parts": i32} if self.TAIL else {})

    def parts(self, k: Kernel, g: SimpleNamespace, block: Value, tiles: Callable[[], Value]) -> tuple[Value, Parts]:
        """(tile of C, its parts) of workgroup `block`, of a C of so many tiles. g: the kernel's arguments by name."""
        if self.TAIL:
            tile, part, parts = tail(k, block, g.whole, g.parts)
            divided = tile - g.whole
            return tile, Parts(divided, part, parts, lambda part: part*(tiles() - g.whole) + divided, g.workspace,
                               g.counters, True)
        if self.SPLIT_K > 1:
            return block, Parts(block, k.block_z, k.constant(i32, self.SPLIT_K), lambda part: part*tiles() + block,
                                g.workspace, g.counters)
        return block, Parts(block, k.constant(i32, 0), k.constant(i32, 1), lambda part: block)


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


def finish(k: Kernel, accs: Sequence[Tile], parts: Parts, holders: Holders, write: Callable[[], None],
           arithmetic: Arithmetic | None = None) -> None:
    """`write` the accumulators where they are sums over all of k: of a divided tile in the last workgroup of its parts,
    which adds them up in the order of k, so that the result does not depend on which one comes last. `arithmetic`: what
    stands for the addition, of states with a tile of accumulators for each field."""
    def by_holders() -> Any:
        return nullcontext() if holders.holds is None else k.when(holders.holds)
    if parts.workspace is not None:
        with k.when(parts.parts > 1) if parts.TAIL else nullcontext():
            _sum_parts(k, accs, parts, holders, by_holders, write, arithmetic)
    if parts.TAIL:
        undivided = parts.parts == 1
        with k.when(undivided if holders.holds is None else undivided & holders.holds):
            write()
    elif parts.workspace is None:
        with by_holders():
            write()


def finish_by_warp(k: Kernel, accs: Sequence[Tile], parts: Parts, lane: Value, write: Callable[[], None]) -> None:
    """Combine the parts of a tile by warps, whose lanes have the same places of C in all workgroups; a tile has a
    counter for each of its warps, which orders what its lanes do before and after. Of a tile with one part the
    accumulators are written as they are."""
    complete = k.variable(i32, 1)
    with k.when(parts.parts > 1):
        sums, before = _Sums(k, accs, parts, lane, k.warp, PACKED=True), k.variable(i32, 0)
        sums.leave()
        k.warp_barrier()
        with k.when(lane == 0):
            before.set(k.atomic_add(sums.counter, 1, "acq_rel"))
        k.warp_barrier()
        last = k.uniform(k.cast(k.warp_sum(before.get()) == parts.parts - 1, i32))
        complete.set(last)
        with k.when(last == 1):
            sums.add_up(two=True)
            with k.when(lane == 0):
                sums.counter[0] = 0
    with k.when(complete.get() == 1):
        write()


def _sum_parts(k: Kernel, accs: Sequence[Tile], parts: Parts, holders: Holders, by_holders: Callable[[], Any],
               write: Callable[[], None], arithmetic: Arithmetic | None) -> None:
    """Each workgroup stores its accumulators, fences, synchronises, then increments the tile's counter. The one that
    reads parts - 1 therefore sees the accumulators of all parts; the second fence keeps its loads after the increment.
    """
    arrived = k.smem("arrived", (1,), i32)
    sums = _Sums(k, accs, parts, holders.slot, holders.SLOTS, arithmetic=arithmetic)
    with by_holders():
        sums.leave()
        k.fence_device()
    k.barrier()
    with k.when(holders.t == 0):
        arrived[0] = k.atomic_add(sums.counter, 1, "monotonic")
    k.barrier()
    with k.when(arrived[0] == parts.parts - 1):
        k.fence_device()
        with by_holders():
            sums.add_up()
            write()
        with k.when(holders.t == 0):
            sums.counter[0] = 0


class _Sums:
    """A thread's accumulators in the workspace: one of SLOTS threads that have so many. PACKED: registers of one number
    are stored as vectors."""

    def __init__(self, k: Kernel, accs: Sequence[Tile], parts: Parts, slot: Value, SLOTS: int, PACKED: bool = False,
                 arithmetic: Arithmetic | None = None) -> None:
        assert parts.workspace is not None
        assert parts.counters is not None
        self.k, self.parts, self.slot, self.SLOTS = k, parts, slot, SLOTS
        self.workspace, self.counter = parts.workspace, parts.counters + parts.counter
        self.T = self.workspace.type.element
        self.arithmetic = arithmetic or Arithmetic(k, self.T)
        type, most = accs[0].type, WIDEST // self.T.bytes
        registers = [(acc, ij) for acc in accs for ij in acc.registers]
        TOGETHER = most if PACKED and type.length == 1 else 1          # registers of a vector, or vectors of one
        self.WIDTH = TOGETHER if TOGETHER > 1 else min(type.length, most)
        self.groups = [registers[at:at + TOGETHER] for at in range(0, len(registers), TOGETHER)]
        self.EACH = max(type.length // self.WIDTH, 1)

    def _vectors(self, part: Value) -> Iterator[tuple[list[tuple[Tile, tuple[int, int]]], list[Value]]]:
        """Registers, and where their vectors are."""
        COUNT, STEP = len(self.groups)*self.EACH*self.SLOTS, self.SLOTS*self.WIDTH
        at = self.workspace + (self.k.cast(self.parts.place(part), i64)*COUNT + self.slot)*self.WIDTH
        for number, group in enumerate(self.groups):
            yield group, [at + (number*self.EACH + e)*STEP for e in range(self.EACH)]

    def leave(self) -> None:
        """Store them, as those of this part."""
        k, WIDTH = self.k, self.WIDTH
        for group, places in self._vectors(self.parts.part):
            for e, at in enumerate(places):
                sums = [acc[ij] for acc, ij in group]
                x = sums[0] if len(sums) == 1 else k.pack(*sums)
                x = x if x.type.scalar == self.T else k.bits_as(x, self.T)
                if x.type.length > WIDTH:
                    x = k.shuffle(x, x, range(e*WIDTH, (e + 1)*WIDTH))
                k.store(at, x)

    def add_up(self, two: bool = False) -> None:
        """Replace them by the sums of all parts, in the order of k. two: of two parts only the other one is read, which
        gives the same."""
        k, p, stop = self.k, self.parts, self.parts.parts
        if self.arithmetic.types != (self.T,):
            self._combine()
            return
        first: Any = 0
        of_two = p.parts == 2
        if two:
            first, stop = k.select(of_two, 1 - p.part, 0), k.select(of_two, 2 - p.part, p.parts)
        for group in self.groups:
            for acc, ij in group:
                zero = k.constant(acc.type, *self.arithmetic.first)
                acc[ij] = k.select(of_two, acc[ij], zero) if two else zero
        with k.loop(stop, start=first) as part:
            for group, places in self._vectors(part):
                sums = [k.load(at, vec(self.T, self.WIDTH)) for at in places]
                while len(sums) > 1:
                    sums = [k.shuffle(x, y, range(2*x.type.length)) for x, y in zip(sums[::2], sums[1::2])]
                for e, (acc, ij) in enumerate(group):
                    other = sums[0] if len(group) == 1 else sums[0][e]
                    acc[ij], = self.arithmetic.combined((acc[ij],), (other,))

    def _combine(self) -> None:
        """Combine states, whose fields are accumulators one tile after the other."""
        k, arithmetic = self.k, self.arithmetic
        types, count = arithmetic.types, len(self.groups) // len(arithmetic.types)
        states = [[self.groups[field*count + e][0] for field in range(len(types))] for e in range(count)]
        for state in states:
            for (acc, ij), first in zip(state, arithmetic.first):
                acc[ij] = first
        with k.loop(self.parts.parts) as part:
            places = [at for _, (at,) in self._vectors(part)]
            for e, state in enumerate(states):
                partial = [k.load(at) for at in places[e::count]]
                other = tuple(x if x.type == T else k.bits_as(x, T) for x, T in zip(partial, types))
                both = arithmetic.combined(tuple(acc[ij] for acc, ij in state), other)
                for (acc, ij), x in zip(state, both):
                    acc[ij] = x
