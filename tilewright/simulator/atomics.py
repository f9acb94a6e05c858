"""Atomic accesses of CPU threads: the value changes in one step, and with it go the clocks that order other accesses.

A release puts the thread's clock beside the address, an acquire takes it from there. Atomic accesses do not race with
each other; whether one races with a plain access is not checked.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.program import Load, Op, Store
from tilewright.simulator.access import Access
from tilewright.simulator.barriers import Spin

if TYPE_CHECKING:
    from tilewright.simulator.agents import Clock
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine


class Atomics:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.released: dict[int, Clock] = {}
        self._accesses: dict[Op, tuple[Access, Access]] = {}

    def load(self, gang: Gang, node: Op, pointer: Any, order: str) -> Any:
        value = self._access(gang, node)[0].load(gang, pointer)
        self._acquire(gang, int(pointer), order)
        return value

    def store(self, gang: Gang, node: Op, pointer: Any, value: Any, order: str) -> None:
        self._access(gang, node)[1].store(gang, pointer, value)
        self._release(gang, int(pointer), order, follows=False)

    def add(self, gang: Gang, node: Op, pointer: Any, value: Any, order: str) -> Any:
        load, store = self._access(gang, node)
        before = load.load(gang, pointer)
        store.store(gang, pointer, before + value)
        self._acquire(gang, int(pointer), order)
        self._release(gang, int(pointer), order, follows=True)
        return before

    def replace(self, gang: Gang, node: Op, pointer: Any, old: Any, new: Any, order: str) -> Any:
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

    def _access(self, gang: Gang, node: Op) -> tuple[Access, Access]:
        """The load and the store that the operation consists of; its last operand is of the type it moves."""
        found = self._accesses.get(node)
        if found is None:
            pointer, name = node.operands[0], gang.frame.code.name
            value = node.operands[-1] if len(node.operands) > 1 else node.results[0]
            align = value.type.bytes
            found = self._accesses[node] = (
                Access(self.machine, name, Load(value, pointer, align, None, node.line), atomic=True),
                Access(self.machine, name, Store(pointer, value, align, None, node.line), atomic=True))
        return found

    def _acquire(self, gang: Gang, address: int, order: str) -> None:
        if self.machine.clocks and order in ("acquire", "acq_rel", "seq_cst") and address in self.released:
            self.machine.clocks.acquire(gang.agents, self.released[address])

    def _release(self, gang: Gang, address: int, order: str, follows: bool) -> None:
        """A store begins anew; an operation that reads and writes hands on what was released before, too."""
        clocks, before = self.machine.clocks, self.released.get(address)
        if clocks is None:
            return
        if not follows:
            self.released.pop(address, None)
        if order in ("release", "acq_rel", "seq_cst"):
            clock = clocks.release(gang.agents)
            self.released[address] = clock if before is None or not follows else np.maximum(clock, before)
