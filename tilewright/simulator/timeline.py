"""Who is busy when: what the roles of a CTA do between their waits, as the simulator ran them.

The simulator has no clock. It lets all warps go on until each of them waits, and then wakes those whose wait is over:
that is a *round*. What is in one round may run at the same time; what is in a later one had to wait for it.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.ops.pipelines import Role
from tilewright.ir.program import Function
from tilewright.simulator.gang import Gang
from tilewright.simulator.machine import Grid, Machine
from tilewright.simulator.memory import AddressSpace
from tilewright.text import table

GROUP = 4               # warps of a warpgroup; a column of the table has the first one's


class Timeline(Machine):
    """The machine, which notes what the first CTA does: `events[round, column]`, of columns like "math 0"."""

    def __init__(self, function: Function, memory: AddressSpace) -> None:
        super().__init__(function, memory, {})
        self.round, self.events = 1, defaultdict[tuple[int, str], list[str]](list)
        roles = {node.name: node for node in function.walk() if isinstance(node, Role)}
        if not roles:
            raise ValueError(f"{function.name} has no roles (k.role), of which a timeline could be made")
        self.columns = {node.first + warp: f"{node.name} {warp // GROUP}" if node.warps > GROUP else node.name
                        for node in roles.values() for warp in range(0, node.warps, GROUP)}
        self.maps = {value.id: name.removesuffix("_map") for name, value in function.params}
        parts: Any = self
        parts.mbarriers = Noting(self.mbarriers, {
            "wait": lambda node, pointer, parity: f"wait {self._barrier(pointer)}",
            "arrive": lambda node, pointer: f"arrive {self._barrier(pointer)}",
            "arrive_expect": lambda node, pointer, bytes: f"announce {self._barrier(pointer)}"}, self.note)
        parts.bulk = Noting(self.bulk, {
            "load": lambda node, *operands: f"copy {self.maps[node.operands[1].id]}",
            "store": lambda node, *operands: f"store {self.maps[node.operands[1].id]}"}, self.note)
        parts.wgmma = Noting(self.wgmma, {
            "commit": lambda node: "products",
            "wait": lambda node, pending: f"wait products but {pending}" if pending else "wait products"}, self.note)

    def _wake(self, waiting: list[Gang]) -> list[Gang]:
        self.round += 1
        return super()._wake(waiting)

    def _barrier(self, address: Any) -> str:
        region = self.memory.find(int(address))
        assert region is not None
        cta, offset = divmod(int(address) - region.base, region.pitch or 1 << 62)
        return f"{region.name}[{offset // 8}]" + (f" of CTA {cta}" if cta else "")

    def note(self, gang: Gang, words: Callable[..., str], node: Any, operands: Sequence[Any]) -> None:
        """Add an event for each of the CTA's warps that has a column and an active lane."""
        for warp in self.columns.keys() & set(gang.acting().tolist()):
            lane = int(np.flatnonzero((gang.threads // self.warp == warp) & gang.active())[0])
            text = words(node, *(x if np.ndim(x) == 0 else x[..., lane] for x in operands))
            events = self.events[self.round, self.columns[warp]]
            if self.first == 0 and text not in events[-1:]:
                events.append(text)

    def __str__(self) -> str:
        columns = [name for _, name in sorted(self.columns.items())]
        rounds = sorted({round for (round, _), events in self.events.items() if events})
        return table([("", *columns), *(
            (str(number), *(", ".join(self.events.get((round, column), "-")) for column in columns))
            for number, round in enumerate(rounds, 1))], right=[0])


class Noting:
    """A mechanism of the machine, some methods of which note what they are called for, in words."""

    def __init__(self, part: Any, words: Mapping[str, Callable[..., str]], note: Callable[..., None]) -> None:
        self.part, self.words, self.note = part, words, note

    def __getattr__(self, name: str) -> Any:
        method, words = getattr(self.part, name), self.words.get(name)
        if words is None:
            return method

        def noted(gang: Gang, node: Any, *operands: Any) -> Any:
            self.note(gang, words, node, operands)
            return method(gang, node, *operands)
        return noted


def timeline(function: Function, *args: Any, grid: Grid = None) -> Timeline:
    """Run `function`, which has roles, as `simulator.run` does. As text, the result is a table: a line for each round,
    a column for each role of the first CTA, or for each warpgroup of it; "-" where it still waits.

    Noted are waits for mbarriers and arrivals at them, copies by tensor maps, and groups of `k.wgmma`."""
    machine = Timeline(function, AddressSpace())
    machine.run_grid(args, grid)
    return machine
