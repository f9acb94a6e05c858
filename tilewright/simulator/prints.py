"""What kernels print: a line for each thread, at once, so that it stands before the fault that it is to explain."""
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.ir.program import Line
from tilewright.ir.types import Pointer

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine


class Printed(NamedTuple):
    """One line. `thread` is (x, y), `block` (x, y) or (x, y, z); of a CPU function its number, and ()."""
    line: Line
    label: str
    block: tuple[int, ...]
    thread: tuple[int, ...] | int
    values: tuple[Any, ...]


class Prints:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._shown: Counter[Op] = Counter()

    def show(self, gang: Gang, node: Op, label: str, most: int, conditional: bool, xs: tuple[Any, ...]) -> None:
        on = gang.active() & xs[0] if conditional else gang.active()
        operands, values = node.operands[conditional:], xs[conditional:]
        for lane in np.flatnonzero(on):
            self._shown[node] += 1
            if self._shown[node] > most:
                if self._shown[node] == most + 1:
                    print(f"{node.line}: {label}: more than {most} lines; most= shows more of them, when= chooses")
                return
            thread = int(gang.threads[lane])
            found = tuple(self._value(operand.type, x, int(lane)) for operand, x in zip(operands, values))
            self.machine.report.printed.append(Printed(node.line, label, *self.machine.place_of(thread), found))
            print(f"{node.line}: {label}{self.machine.by(thread)}:", *found)

    def _value(self, t: Any, x: Any, lane: int) -> Any:
        """Of one thread: a number, a list of a vector's elements, the element that a pointer points to."""
        x = np.asarray(x)
        mine = x[..., lane if x.shape[-1] > 1 else 0] if x.ndim else x
        if not isinstance(t, Pointer):
            return mine.tolist() if t.numpy.isbuiltin == 1 else np.asarray(mine, np.float64).tolist()
        region = self.machine.memory.find(int(mine))
        if region is None:
            return hex(int(mine))
        offset = int(mine) - region.base
        return f"{region.name}[{(offset if region.pitch is None else offset % region.pitch) / t.element.bytes:g}]"
