"""A recorded function as a flat list of steps, each a Python function of a gang.

Flat, because a gang can then be stopped, split and joined anywhere: where it stands is a number. Values live in slots;
constants fill theirs once.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.program import Function
from tilewright.simulator import control, straight
from tilewright.simulator.memory import numpy_type

if TYPE_CHECKING:
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.memory import Region


class Code:
    def __init__(self, machine: Machine, function: Function) -> None:
        self.machine, self.function, self.name = machine, function, function.name
        self.steps: list[Callable[[Gang], None]] = []
        self.initial: list[Any] = []                # what the slots of a new call hold
        self.slots: dict[Any, int] = {}
        self.exits: list[control.Label] = []        # of the regions around the step that is being made
        self.params = [self.slot(value) for _, value in function.params]
        self.builtins = {name: self.slot(value) for name, value in function.builtins.items()}
        self.arrays = {array: self.slot(pointer) for array, pointer in function.arrays.items()}
        self.block(function.body)
        control.end(self)

    def block(self, nodes: list) -> None:
        run: list[Any] = []
        for node in nodes:
            if control.is_control(node):
                straight.emit(self, run)
                control.emit(self, node)
                run = []
            else:
                run.append(node)
                if control.blocks(node):            # a gang waits only between steps
                    straight.emit(self, run)
                    run = []
        straight.emit(self, run)

    def slot(self, x: Any) -> int:
        """Where a value or a register is kept."""
        key = getattr(x, "id", x)
        found = self.slots.get(key)
        if found is None:
            found = self.slots[key] = len(self.initial)
            constant = getattr(x, "constant", None)
            self.initial.append(None if constant is None else _constant(x.type, constant))
        return found

    def prepare(self, gang: Gang, operands: list[Any]) -> tuple[list[Any], list[Region]]:
        """Slots and local arrays of a new call."""
        env, regions = self.initial.copy(), []
        for slot, x in zip(self.params, operands, strict=True):
            env[slot] = x
        for name, slot in self.builtins.items():
            env[slot] = self.machine.builtin(name, gang.threads)
        for array, slot in self.arrays.items():
            region, env[slot] = self.machine.place(array, gang.threads)
            regions.append(region)
        return env, regions


def _constant(t: Any, x: Any) -> Any:
    dtype = numpy_type(t)
    return np.full((t.length, 1), x, dtype) if getattr(t, "length", 1) > 1 else dtype.type(x)
