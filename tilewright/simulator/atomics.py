"""Atomic accesses: the value changes in one step, and with it go the clocks that order other accesses.

A release puts the thread's clock beside the address, an acquire takes it from there. On a GPU the lanes of a gang come
one after another, and relaxed atomics carry what fences make of it: a warp passes on what it had seen when it last
fenced, or what others of its CTA had before a barrier; and it believes what it is told when it fences next. Atomic
accesses do not race with each other; whether one races with a plain access is not checked.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.simulator.access import Access
from tilewright.simulator.barriers import Spin
from tilewright.simulator.fault import Fault

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.agents import Clock, Clocks
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine

_ACQUIRE, _RELEASE = ("acquire", "acq_rel", "seq_cst"), ("release", "acq_rel", "seq_cst")


class Atomics:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.released: dict[int, Clock] = {}
        self.columns = 0
        self._accesses: dict[Op, tuple[Access, Access]] = {}

    def begin(self, clocks: Clocks) -> Any:
        """Others run now; up to which times those of before have told atomics what they did."""
        told = np.max([clock[1] for clock in self.released.values()], axis=0) if self.released else \
            np.zeros(self.columns, np.int32)
        self.columns = clocks.columns
        self.released = {address: clocks.from_before(clock) for address, clock in self.released.items()}
        return told

    # ---- operations

    def load(self, gang: Gang, node: Op, pointer: Any, order: str) -> Any:
        self._only_cpu(gang, node)
        value = self._access(gang, node)[0].load(gang, pointer)
        self._acquire(gang, int(pointer), order)
        return value

    def store(self, gang: Gang, node: Op, pointer: Any, value: Any, order: str) -> None:
        self._only_cpu(gang, node)
        self._access(gang, node)[1].store(gang, pointer, value)
        self._release(gang, int(pointer), order, follows=False)

    def add(self, gang: Gang, node: Op, pointer: Any, value: Any, order: str) -> Any:
        if self.machine.gpu:
            return self._add_by_lanes(gang, node, pointer, value, order)
        load, store = self._access(gang, node)
        before = load.load(gang, pointer)
        store.store(gang, pointer, before + value)
        self._acquire(gang, int(pointer), order)
        self._release(gang, int(pointer), order, follows=True)
        return before

    def replace(self, gang: Gang, node: Op, pointer: Any, old: Any, new: Any, order: str) -> Any:
        self._only_cpu(gang, node)
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

    def fence(self, gang: Gang, node: Op) -> None:
        assert self.machine.clocks is not None
        self.machine.clocks.fence(gang.acting())

    # ---- many lanes

    def _add_by_lanes(self, gang: Gang, node: Op, pointer: Any, value: Any, order: str) -> Any:
        clocks = self.machine.clocks
        assert clocks is not None
        access = self._access(gang, node)[1]
        result = np.zeros(gang.size, access.dtype)
        if order in _RELEASE:
            clocks.fence(gang.acting())
        for region, pattern, start in access.parts(gang, pointer, None):
            if not region.writable:
                access.fault("read-only", gang, region, start - region.base, pattern.lowest, "it may not be written")
            access.unwritten(gang, region, pattern, start)
            access.touch(access.enter(region, pattern), region, pattern, start)
            self.machine.progress += 1
            i, phase = divmod(start - region.base, access.item)
            assert pattern.index is not None            # elements of atomics are aligned
            lanes = pattern.lanes()
            index = pattern.index.ravel()
            result[lanes] = add_in_order(region.view(access.dtype, phase)[i:], index,
                                         np.broadcast_to(value, gang.size)[lanes])
            self._tell(gang, start + pattern.offsets.ravel(), lanes)
        if order in _ACQUIRE:
            clocks.fence(gang.acting())
        return result

    def _tell(self, gang: Gang, addresses: NDArray[np.int64], lanes: NDArray[np.int64]) -> None:
        """Each warp, as its lanes come, learns what is known at an address and adds what it has fenced."""
        clocks = self.machine.clocks
        assert clocks is not None
        agents = gang.warps[lanes // self.machine.warp]
        if not self.released and not clocks.fenced[agents].any():
            return
        for agent, address in dict.fromkeys(zip(agents.tolist(), addresses.tolist())):
            told, mine = self.released.get(address), clocks.fenced[agent]
            if told is not None:
                clocks.pending[agent] = np.maximum(clocks.pending[agent], told[1])
                mine = np.maximum(mine, told[1])
            clock = np.zeros((3, clocks.columns), np.int32)
            clock[1] = mine
            self.released[address] = clock

    # ---- what they consist of

    def _only_cpu(self, gang: Gang, node: Op) -> None:
        if self.machine.gpu:
            raise Fault("no meaning", node.line, gang.frame.code.name, "the simulator knows one atomic operation of a "
                        f"GPU, atomic_add, and this is {node.operation.name}")

    def _access(self, gang: Gang, node: Op) -> tuple[Access, Access]:
        """The load and the store that the operation consists of; its last operand is of the type it moves."""
        found = self._accesses.get(node)
        if found is None:
            t = (node.operands[-1] if len(node.operands) > 1 else node.results[0]).type
            load, store = "load", "atomic" if self.machine.gpu else "store"
            found = self._accesses[node] = (
                Access(self.machine, gang.frame.code.name, node.line, load, t, t.bytes, atomic=True),
                Access(self.machine, gang.frame.code.name, node.line, store, t, t.bytes, atomic=True))
        return found

    def _acquire(self, gang: Gang, address: int, order: str) -> None:
        if self.machine.clocks and order in _ACQUIRE and address in self.released:
            self.machine.clocks.acquire(gang.agents, self.released[address])

    def _release(self, gang: Gang, address: int, order: str, follows: bool) -> None:
        """A store begins anew; an operation that reads and writes hands on what was released before, too."""
        clocks, before = self.machine.clocks, self.released.get(address)
        if clocks is None:
            return
        if not follows:
            self.released.pop(address, None)
        if order in _RELEASE:
            clock = clocks.release(gang.agents)
            self.released[address] = clock if before is None or not follows else np.maximum(clock, before)


def add_in_order(memory: NDArray[Any], index: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """memory[index[i]] += values[i] for one i after another; what was there before each."""
    before = np.empty(len(index), memory.dtype)
    order = np.argsort(index, kind="stable")
    groups = index[order]
    first = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    rank = np.arange(len(index)) - np.repeat(first, np.diff(np.append(first, len(index))))
    for turn in range(int(rank.max()) + 1):             # in one turn everybody has an element of his own
        lanes = order[rank == turn]
        before[lanes] = memory[index[lanes]]
        memory[index[lanes]] = before[lanes] + values[lanes]
    return before
