"""Atomic accesses: the value changes in one step, and with it go the clocks that order other accesses.

A release puts the thread's clock beside the address, an acquire takes it from there. On a GPU the lanes of a gang come
one after another, and relaxed atomics carry what fences make of it: a warp passes on what it had seen when it last
fenced, or what others of its CTA had before a barrier; and it believes what it is told when it fences next. Atomic
accesses do not race with each other; whether one races with a plain access is not checked.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.simulator.barriers import Spin

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.access import Access
    from tilewright.simulator.clocks import Clock, Clocks
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine

_ACQUIRE, _RELEASE = ("acquire", "acq_rel", "seq_cst"), ("release", "acq_rel", "seq_cst")


class Atomics:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.released: dict[int, Clock] = {}
        self.columns = 0

    def begin(self, clocks: Clocks) -> Any:
        """Others run now; up to which times those of before have told atomics what they did."""
        told = np.max([clock[1] for clock in self.released.values()], axis=0) if self.released else \
            np.zeros(self.columns, np.int32)
        self.columns = clocks.columns
        self.released = {address: clocks.from_before(clock) for address, clock in self.released.items()}
        return told

    # ---- operations

    def load(self, gang: Gang, node: Op, pointer: Any, order: str) -> Any:
        load, _ = self._access(gang, node)
        value = load.load(gang, pointer)
        if not self.machine.gpu:
            self._acquire(gang, int(pointer), order)
            return value
        for _, pattern, start in load.parts(gang, pointer, None):
            self._tell(gang, start + pattern.offsets.ravel(), pattern.lanes(), writes=False)
        self._fence(gang, order in _ACQUIRE)
        return value

    def store(self, gang: Gang, node: Op, pointer: Any, value: Any, order: str) -> None:
        _, store = self._access(gang, node)
        self._fence(gang, order in _RELEASE)
        store.store(gang, pointer, value)
        if not self.machine.gpu:
            self._release(gang, int(pointer), order, follows=False)
            return
        for _, pattern, start in store.parts(gang, pointer, None):
            self._tell(gang, start + pattern.offsets.ravel(), pattern.lanes(), reads=False)

    def add(self, gang: Gang, node: Op, pointer: Any, value: Any, order: str) -> Any:
        if self.machine.gpu:
            def turn(before: Any, lanes: Any) -> Any:
                return before + value[lanes]
            value = np.broadcast_to(value, gang.size)
            return self._by_lanes(gang, node, pointer, turn, order)
        load, store = self._access(gang, node)
        before = load.load(gang, pointer)
        store.store(gang, pointer, before + value)
        self._acquire(gang, int(pointer), order)
        self._release(gang, int(pointer), order, follows=True)
        return before

    def replace(self, gang: Gang, node: Op, pointer: Any, old: Any, new: Any, order: str) -> Any:
        if self.machine.gpu:
            def turn(before: Any, lanes: Any) -> Any:
                return np.where(before == old[lanes], new[lanes], before)
            old, new = np.broadcast_to(old, gang.size), np.broadcast_to(new, gang.size)
            return self._by_lanes(gang, node, pointer, turn, order) == old
        load, store = self._access(gang, node)
        replaced = load.load(gang, pointer) == old
        if replaced:
            store.store(gang, pointer, new)
            self._acquire(gang, int(pointer), order)
            self._release(gang, int(pointer), order, follows=True)
        return replaced

    def pause(self, gang: Gang, node: Op) -> None:
        """A thread that is alone would spin for ever."""
        gang.waiting = Spin(self.machine, node.line)

    def fence(self, gang: Gang, node: Op, order: str = "seq_cst") -> None:
        self._fence(gang, True)

    # ---- many lanes

    def _fence(self, gang: Gang, wanted: bool) -> None:
        if wanted and self.machine.gpu:
            self.machine.clocks.fence(*gang.acting_lanes())

    def _by_lanes(self, gang: Gang, node: Op, pointer: Any, turn: Callable[[Any, Any], Any], order: str) -> Any:
        """Lane after lane the memory becomes turn(what was there, lane); what was there, for each."""
        _, access = self._access(gang, node)
        result = np.zeros(gang.size, access.dtype)
        self._fence(gang, order in _RELEASE)
        for region, pattern, start in access.parts(gang, pointer, None):
            if not region.writable:
                access.fault("read-only", gang, region, start - region.base, pattern.lowest, "it is read-only")
            access.unwritten(gang, region, pattern, start)
            access.touch(access.enter(region, pattern), region, pattern, start)
            self.machine.progress += 1
            i, phase = divmod(start - region.base, access.item)
            assert pattern.index is not None            # elements of atomics are aligned
            memory, lanes = region.view(access.dtype, phase)[i:], pattern.lanes()
            for some, index in turns(pattern.index.ravel()):
                result[lanes[some]] = memory[index]
                memory[index] = turn(memory[index], lanes[some])
            self._tell(gang, start + pattern.offsets.ravel(), lanes)
        self._fence(gang, order in _ACQUIRE)
        return result

    def _tell(self, gang: Gang, addresses: NDArray[np.int64], lanes: NDArray[np.int64], reads: bool = True,
              writes: bool = True) -> None:
        """Each warp, as its lanes come, learns what is known at an address and adds what it has fenced."""
        clocks = self.machine.clocks
        agents = gang.warps[lanes // self.machine.warp]
        if not self.released and not clocks.fenced[agents].any():
            return
        for agent, address in dict.fromkeys(zip(agents.tolist(), addresses.tolist())):
            told, mine = self.released.get(address), clocks.fenced[agent]
            if told is not None and reads:
                clocks.pending[agent] = np.maximum(clocks.pending[agent], told[1])
                mine = np.maximum(mine, told[1])
            if writes:
                clock = clocks.none()
                clock[1] = mine
                self.released[address] = clock

    # ---- what they consist of

    def _access(self, gang: Gang, node: Op) -> tuple[Access, Access]:
        """The load and the store that the operation consists of; its last operand is of the type it moves."""
        t = (node.operands[-1] if len(node.operands) > 1 else node.results[0]).type
        store = "atomic" if self.machine.gpu else "store"
        return gang.access(node, "load", t, t.bytes, True), gang.access(node, store, t, t.bytes, True)

    def _acquire(self, gang: Gang, address: int, order: str) -> None:
        if order in _ACQUIRE and address in self.released:
            self.machine.clocks.acquire(gang.agents, self.released[address])

    def _release(self, gang: Gang, address: int, order: str, follows: bool) -> None:
        """A store begins anew; an operation that reads and writes hands on what was released before, too."""
        clocks, before = self.machine.clocks, self.released.get(address)
        if not follows:
            self.released.pop(address, None)
        if order in _RELEASE:
            clock = clocks.release(gang.agents)
            self.released[address] = clock if before is None or not follows else np.maximum(clock, before)


def turns(index: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(which, index[which]) of those that can go at once, since each has an element of its own, in their order."""
    order = np.argsort(index, kind="stable")
    groups = index[order]
    first = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    rank = np.arange(len(index)) - np.repeat(first, np.diff(np.append(first, len(index))))
    for turn in range(int(rank.max()) + 1):
        which = order[rank == turn]
        yield which, index[which]
