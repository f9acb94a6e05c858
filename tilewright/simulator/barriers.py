"""What gangs wait for: barriers with phases, and in a spin loop anything that another agent does.

A phase of a barrier completes when all expected threads have arrived. Who waits for it has then seen what the others
did before they arrived, and nothing of what they have done since.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.ir.program import Line, Op
    from tilewright.simulator.agents import Clock
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine


class Wait(Protocol):
    line: Line

    def over(self, gang: Gang) -> bool:
        """May the gang go on? If so, it now knows what it waited for."""


class PhaseBarrier:
    """A phase is complete when `expected` threads have arrived and the bytes that they have announced have come."""

    def __init__(self, name: str, expected: int) -> None:
        self.name, self.expected, self.arrived = name, expected, 0
        self.expected_bytes = 0                 # announced and not yet come
        self.arriving: Any = 0                  # the clocks of those that have arrived in the phase that is going on
        self.published: list[Clock] = []        # of each completed phase
        self._known: dict[int, int] = {}        # agent → the newest phase that it could know to be complete

    def arrive(self, clock: Clock, threads: int) -> int:
        """These threads arrive; the phase that they wait for."""
        phase = len(self.published)
        self.arriving = np.maximum(self.arriving, clock)
        self.arrived += threads
        self._complete()
        return phase

    def come(self, bytes: int, clock: Clock) -> None:
        """Copies have brought so many bytes."""
        self.arriving = np.maximum(self.arriving, clock)
        self.expected_bytes -= bytes
        self._complete()

    def leave(self, threads: int) -> None:
        """So many will not come any more: they have ended."""
        self.expected -= threads
        if self.arrived:
            self._complete()

    def _complete(self) -> None:
        if self.arrived == self.expected and self.expected_bytes == 0:
            self.published.append(self.arriving)
            self.arrived, self.arriving = 0, 0

    def known_phase(self, agent: int, known: Any) -> int:
        """The newest phase that must be complete given what this agent has seen; -1: none."""
        phase = self._known.get(agent, -1)
        while phase + 1 < len(self.published) and (self.published[phase + 1][0] <= known).all():
            phase += 1
        self._known[agent] = phase
        return phase

    def __str__(self) -> str:
        due = self.expected_bytes
        bytes = f", {due} bytes have not come" if due > 0 else f", {-due} bytes came unannounced" if due else ""
        return f"{self.name}: {self.arrived} of {self.expected} threads have arrived{bytes}"


def cta_barrier(gang: Gang, node: Op) -> PhaseWait:
    """A gang arrives at the barriers of all the CTAs that it has threads of."""
    machine, phases = gang.machine, []
    whole_warps(gang, node)
    assert machine.clocks is not None
    for cta in np.unique(gang.threads // machine.cta):
        threads = gang.threads[gang.threads // machine.cta == cta]
        agents = np.unique(threads // machine.warp)
        barrier = machine.barriers[cta]
        arriving = int(np.count_nonzero(machine.exist(threads)))
        phases.append((barrier, barrier.arrive(machine.clocks.release(agents), arriving), agents))
    return PhaseWait(node.line, phases)


def whole_warps(gang: Gang, node: Op) -> None:
    """All lanes come to a barrier together."""
    skipping = gang.skipping()
    if skipping.any():
        raise gang.fault("divergent", node, "a barrier that some lanes of a warp skip"
                    + gang.by(int(np.argmax(skipping))))


class PhaseWait:
    """The wait of a gang for phases of barriers, and for each the agents that then go on."""

    def __init__(self, line: Line, phases: list[tuple[PhaseBarrier, int, NDArray[np.int64]]]) -> None:
        self.line, self.phases = line, phases

    def over(self, gang: Gang) -> bool:
        if any(phase >= len(barrier.published) for barrier, phase, _ in self.phases):
            return False
        assert gang.machine.clocks is not None
        for barrier, phase, agents in self.phases:
            gang.machine.clocks.acquire(agents, barrier.published[phase])
        return True

    def __str__(self) -> str:
        return ", ".join(str(barrier) for barrier, *_ in self.phases)


class Spin:
    """The wait of a thread that has looked at memory in vain: until any other thread has stored something or ended."""

    def __init__(self, machine: Machine, line: Line) -> None:
        self.line, self.progress = line, machine.progress

    def over(self, gang: Gang) -> bool:
        return gang.machine.progress > self.progress

    def __str__(self) -> str:
        return "a store by another thread"
