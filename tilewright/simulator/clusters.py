"""Thread block clusters in the simulator: their barrier, and whose shared memory can be used when.

A CTA's shared memory is there from its first to its last instruction. Others may use it only if they know that it has
begun, and if it knows, before it ends, that they are done: both take a barrier of the cluster between. As with races,
it does not matter what came first this time.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.simulator.barriers import PhaseBarrier, PhaseWait, all_come, arrive
from tilewright.simulator.memory import SPAN_BITS, Region

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.access import Access
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.pattern import Pattern


class Clusters:
    """`size` CTAs are a cluster; those that run at once are numbered cluster by cluster."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.size = machine, machine.function.ctas_cluster

    def begin(self) -> None:
        """Others run now."""
        machine, self.threads = self.machine, self.size * self.machine.cta
        self.barriers = [PhaseBarrier(f"the barrier of the cluster of block {machine.block(cta)}",
                                      self.size * machine.there)
                         for cta in range(0, machine.ctas, self.size)]
        self.arrived: dict[int, int] = {}           # agent → the phase that it has arrived in and not yet waited for
        # (agent, or the column of its copies; CTA) → when it last used that one's memory, and how to say so
        self.uses: dict[tuple[int, int], tuple[int, Callable[[], None]]] = {}

    # ---- operations

    def arrive(self, gang: Gang, node: Op) -> None:
        if any(agent in self.arrived for agent in gang.agents.tolist()):
            raise gang.fault("arrivals", node, "threads arrive at the barrier of their cluster "
                        "twice without waiting in between" + gang.by(0))
        for _, phase, agents in arrive(gang, node, self.barriers, self.threads):
            self.arrived |= dict.fromkeys(agents.tolist(), phase)

    def wait(self, gang: Gang, node: Op) -> None:
        all_come(gang, node, gang.skipping())
        phases = defaultdict(list)
        for agent in gang.agents.tolist():
            if agent not in self.arrived:
                raise gang.fault("arrivals", node, "threads wait at the barrier of their cluster without having "
                                 "arrived" + gang.by(0))
            phases[agent * self.machine.warp // self.threads, self.arrived.pop(agent)].append(agent)
        gang.waiting = PhaseWait(node.line, [(self.barriers[cluster], phase, np.array(agents))
                                             for (cluster, phase), agents in phases.items()])

    def of_cta(self, gang: Gang, node: Op, pointer: Any, rank: Any) -> Any:
        """Copies of a shared array lie a pitch apart."""
        pointer, rank, on = np.broadcast_to(pointer, gang.size), np.broadcast_to(rank, gang.size), gang.active()
        wrong = on & ((rank < 0) | (rank >= self.size))
        if wrong.any():
            lane = int(wrong.argmax())
            raise gang.fault("cluster", node,
                             f"there is no CTA {rank[lane]} in a cluster of {self.size}{gang.by(lane)}")
        mapped, away = pointer.copy(), rank.astype(np.int64) - gang.threads // self.machine.cta % self.size
        for index in np.unique(pointer[on] >> SPAN_BITS):
            region = self.machine.memory.find(int(index) << SPAN_BITS)
            assert region is not None
            assert region.pitch is not None
            mapped += np.where(pointer >> SPAN_BITS == index, away * region.pitch, 0)
        return mapped

    # ---- what is checked

    def use(self, gang: Gang, access: Access, region: Region, pattern: Pattern, offset: int) -> None:
        """An access of shared memory of other CTAs, which must have begun."""
        clocks, pitch = self.machine.clocks, region.pitch
        assert pitch is not None
        lanes, offsets = pattern.lanes(), offset + pattern.offsets.ravel()
        agents, owners = gang.warps[lanes // self.machine.warp], offsets // pitch
        _, first = np.unique(agents * self.machine.ctas + owners, return_index=True)
        for i in first:
            agent, owner, at = int(agents[i]), int(owners[i]), (gang, region, int(offsets[i]), int(lanes[i]))
            if owner == agent // clocks.per_cta:
                continue
            if not self._begun(agent, owner):
                access.fault("cluster", *at, f"block {self.machine.block(owner)} may not have begun: no barrier was "
                             "passed")
            self.uses[agent, owner] = int(clocks.now[agent]), partial(
                access.fault, "cluster", *at, f"block {self.machine.block(owner)} may have ended: no barrier follows")

    def reach(self, gang: Gang, node: Op, lane: int, owner: int) -> None:
        """A copy that this lane starts goes to the shared memory of another CTA, which must have begun, and must
        wait for the copy before it ends."""
        clocks = self.machine.clocks
        agent, block = int(gang.threads[lane]) // clocks.warp, self.machine.block(owner)
        if not self._begun(agent, owner):
            raise gang.fault("cluster", node, f"a copy to block {block}, which may not have begun: no barrier was "
                             f"passed{gang.by(lane)}")
        column, why = int(clocks.copies(np.array([agent]))[0]), gang.fault(
            "cluster", node, f"a copy to block {block}, which may have ended: it never waits for it{gang.by(lane)}")

        def fault() -> None:
            raise why
        self.uses[column, owner] = int(clocks.now[column]), fault

    def leave(self, threads: NDArray[np.int64]) -> None:
        """These have ended, so that no barrier waits for them any more."""
        if self.size > 1:
            threads = threads[self.machine.exist(threads)]
            for cluster, count in zip(*np.unique(threads // self.threads, return_counts=True)):
                self.barriers[cluster].leave(int(count))

    def end(self) -> None:
        """All have ended: one of each CTA must have known that the others had used its memory for the last time."""
        clocks = self.machine.clocks
        for (column, owner), (time, fault) in self.uses.items():
            if clocks.known[self._agents(owner), column].max() < time:
                fault()

    def _begun(self, agent: int, cta: int) -> bool:
        """Whether an agent has heard of any thread of a CTA."""
        clocks, warps = self.machine.clocks, self._agents(cta)
        return bool(clocks.known[agent, warps].any() or clocks.known[agent, clocks.alone:][warps].any())

    def _agents(self, cta: int) -> slice:
        per_cta = self.machine.cta // self.machine.warp
        return slice(cta * per_cta, (cta + 1) * per_cta)
