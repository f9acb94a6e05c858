"""What gangs wait for: barriers with phases, those of clusters too, and in a spin loop anything that another agent
does.

A phase of a barrier completes when all expected threads have arrived. Who waits for it has then seen what the others
did before they arrived, and nothing of what they have done since.

A CTA's shared memory is there from its first to its last instruction. Others of its cluster may use it only if they
know that it has begun, and if it knows, before it ends, that they are done: both take a barrier of the cluster between.
As with races, it does not matter what came first this time.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.types import i64
from tilewright.simulator.memory import SPAN_BITS, Region

if TYPE_CHECKING:
    from tilewright.ir.program import Line, Op
    from tilewright.simulator.access import Access
    from tilewright.simulator.clocks import Clock
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.pattern import Pattern

MOST_BYTES = (1 << 20) - 1      # that an mbarrier can expect. PTX ISA, "Tracking asynchronous operations"


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
        bytes = (f", {due} announced bytes have not arrived" if due > 0
                 else f", {-due} bytes more than announced have arrived" if due else "")
        return f"{self.name}: {self.arrived} of {self.expected} threads have arrived{bytes}"


Arrival = tuple[PhaseBarrier, int, NDArray[np.int64]]       # the phase that is waited for, and the agents that wait


def arrive(gang: Gang, node: Op, barriers: list[PhaseBarrier], size: int) -> list[Arrival]:
    """A gang arrives at the barriers of all the groups of `size` lanes, CTAs or clusters, that it has threads of."""
    machine, arrivals = gang.machine, []
    all_come(gang, node, gang.skipping())
    for group in np.unique(gang.threads // size):
        threads = gang.threads[gang.threads // size == group]
        agents = np.unique(threads // machine.warp)
        arriving = int(np.count_nonzero(machine.exist(threads)))
        arrivals.append((barriers[group], barriers[group].arrive(machine.clocks.release(agents), arriving), agents))
    return arrivals


def all_come(gang: Gang, node: Op, skipping: NDArray[np.bool_], what: str = "a barrier") -> None:
    """A fault if any lanes skip what others of their warps, or all, come to."""
    if skipping.any():
        raise gang.fault("divergent", node, f"{what} that some lanes of a warp skip{gang.by(int(skipping.argmax()))}")


class PhaseWait:
    """The wait of agents for phases of barriers: of a whole gang, or those whose phase is complete go on without the
    others."""

    def __init__(self, line: Line, arrivals: list[Arrival], together: bool = True) -> None:
        self.line, self.arrivals, self.together = line, arrivals, together

    def over(self, gang: Gang) -> bool:
        machine = gang.machine
        late = [agents for barrier, phase, agents in self.arrivals if phase >= len(barrier.published)]
        if late:
            here = np.isin(gang.warps, np.concatenate(late), invert=True)
            if self.together or not here.any():
                return False
            if not here.all():
                others = gang.split(np.repeat(here, machine.warp))
                others.waiting = self
                machine.parted.append(others)
        for barrier, phase, agents in self.arrivals:
            mine = agents[np.isin(agents, gang.agents)]
            if mine.size and phase >= 0:
                machine.clocks.acquire(mine, barrier.published[phase])
        return True

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(("" if self.together else f"phase {phase} of ") + str(barrier)
                                       for barrier, phase, _ in self.arrivals if phase >= len(barrier.published)))


class Spin:
    """The wait of a thread that has looked at memory in vain: until any other thread has stored something or ended."""

    def __init__(self, machine: Machine, line: Line) -> None:
        self.line, self.progress = line, machine.progress

    def over(self, gang: Gang) -> bool:
        return gang.machine.progress > self.progress

    def __str__(self) -> str:
        return "a store by another thread"


class Wait(Protocol):
    """`over` says whether the gang can go on; as text, what it waits for."""
    line: Line

    def over(self, gang: Gang) -> bool: ...


# ---- mbarriers: phases that threads and copies complete, and what a wait may conclude from a parity.
#
# The hardware gets a parity only, and lets the thread pass as soon as the last completed phase has it. So a wait is
# worth what it always guarantees: if the newest phase that the warp can know to be complete has this parity, the wait
# ends at once and the warp learns nothing; else it waits for the next phase and has then seen what its arrivals
# brought, and nothing of what came later. A producer that runs too far ahead, or a parity that does not flip, is
# therefore found as a race, even if this time the data would have come in the right order.

class Mbarriers:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def begin(self) -> None:
        """Others run now."""
        self.barriers: dict[int, PhaseBarrier] = {}

    # ---- operations

    def init(self, gang: Gang, node: Op, pointer: Any, count: Any) -> None:
        for address, lanes in self.each(gang, node, pointer, "init"):
            expected = int(np.broadcast_to(count, gang.size)[lanes[0]])
            if expected < 1:
                raise gang.fault("arrivals", node, f"{self._name(address)} would be complete "
                            f"after {expected} arrivals: the count must be 1 or more")
            self.barriers[address] = PhaseBarrier(self._name(address), expected)

    def arrive(self, gang: Gang, node: Op, pointer: Any) -> None:
        self.arrive_expect(gang, node, pointer, np.int32(0))

    def arrive_expect(self, gang: Gang, node: Op, pointer: Any, bytes: Any) -> None:
        for address, lanes in self.each(gang, node, pointer, "arrival"):
            barrier, expected = self.barriers[address], int(np.broadcast_to(bytes, gang.size)[lanes].sum())
            barrier.expected_bytes += expected
            if not 0 <= expected <= MOST_BYTES:
                raise gang.fault("arrivals", node, f"{barrier.name} is to expect {expected} bytes, and it counts "
                                 f"to {MOST_BYTES}{gang.by(lanes[0])}")
            self._arrive(gang, node, address, self._released(gang, lanes), len(lanes))

    def come(self, gang: Gang, node: Op, pointer: Any, bytes: int) -> None:
        """Each active thread's store to another CTA brings so many bytes."""
        for address, lanes in self.each(gang, node, pointer, "store"):
            self.barriers[address].come(bytes * len(lanes), self._released(gang, lanes))

    def wait(self, gang: Gang, node: Op, pointer: Any, parity: Any) -> None:
        parity, waits = np.broadcast_to(parity, gang.size), []
        for address, lanes in self.each(gang, node, pointer, "wait"):
            barrier = self.barriers[address]
            for agent in np.unique(gang.warps[lanes // self.machine.warp]):
                known = barrier.known_phase(int(agent), self.machine.clocks.known[agent])
                for which in np.unique(parity[lanes[gang.warps[lanes // self.machine.warp] == agent]] & 1):
                    waits.append((barrier, known if known & 1 == which else known + 1, np.array([agent])))
        gang.waiting = PhaseWait(node.line, waits, together=False)

    # ---- what they consist of

    def barrier(self, gang: Gang, node: Op, address: int, lane: int) -> PhaseBarrier:
        """The mbarrier of another CTA, too."""
        if address not in self.barriers:
            raise gang.fault("uninitialised", node, f"{self._name(address)} is no mbarrier yet{gang.by(lane)}")
        return self.barriers[address]

    def fenced(self, gang: Gang, node: Op, address: int, lane: int) -> PhaseBarrier:
        """The mbarrier at an address on which bulk copies count their bytes: its initialisation must be fenced."""
        barrier, region = self.barrier(gang, node, address, lane), self.machine.memory.find(address)
        assert region is not None
        history = self.machine.history(region)
        if history is not None:
            units = history.parts(np.array([address - region.base]), i64.bytes).ravel()
            if race := history.unproxied(gang.threads[[lane]] // self.machine.warp, units):
                raise gang.fault("race", node, f"{barrier.name} counts what a bulk copy{gang.by(lane)} brings, and no "
                                 f"fence.mbarrier_init follows its initialisation at {race.line}")
        return barrier

    def each(self, gang: Gang, node: Op, pointer: Any, verb: str) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(address, lanes) of each mbarrier that active lanes point to; it is theirs to use."""
        access = gang.access(node, verb, i64, i64.bytes, remote=node.operands[0].type.space == "cluster")
        access.reads = verb != "init"
        pointer = np.broadcast_to(pointer, gang.size)
        if access.reads:
            for region, pattern, start in access.parts(gang, pointer, None):
                access.unwritten(gang, region, pattern, start)
                access.order(gang, region, pattern, start)
        else:
            for _ in access.claim(gang, pointer, None, counted=False):
                pass
        lanes = np.flatnonzero(gang.active())
        for address in np.unique(pointer[lanes]):
            yield int(address), lanes[pointer[lanes] == address]

    def _released(self, gang: Gang, lanes: NDArray[np.int64]) -> Clock:
        """The clock that these lanes hand over by an arrival."""
        which = np.zeros(gang.size, bool)
        which[lanes] = True
        return self.machine.clocks.release(*gang.lanes_of(which))

    def _arrive(self, gang: Gang, node: Op, address: int, clock: Clock, threads: int) -> None:
        barrier = self.barriers[address]
        if barrier.arrived + threads > barrier.expected:
            who = gang.by(int(np.argmax(gang.active())))
            raise gang.fault("arrivals", node, f"{barrier.name} expects {barrier.expected} "
                        f"arrivals in a phase, and these are {barrier.arrived + threads}{who}")
        barrier.arrive(clock, threads)

    def _name(self, address: int) -> str:
        region = self.machine.memory.find(address)
        assert region is not None
        offset, cta = address - region.base, 0
        if region.pitch is not None:
            cta, offset = divmod(offset, region.pitch)
        return f"{region.name}[{offset // 8}] of block {self.machine.block(cta)}"


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
