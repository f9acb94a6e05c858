"""Matrix products of warpgroups in flight (`wgmma`): when they read, and which registers must not be used meanwhile.

Every warp computes its 16 rows at the instruction. Sums are then registers in flight: arrays of (value, group) that no
operation accepts until a wait has returned them. What the products read of shared memory they may read until all four
warps have committed the group and one has waited for it (`History.read_on`): a write that is not ordered after such a
wait is a race, so that the moment at which the hardware reads does not matter. All four warps have to execute the same
products.
"""
from __future__ import annotations

from collections import defaultdict
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.atoms.fragment import Fragment
from tilewright.atoms.wgmma import LANES, PIECE, ROWS_WARP, WARPS, SharedMatrix, Wgmma, swizzled
from tilewright.simulator import proxy
from tilewright.simulator.barriers import PhaseBarrier, PhaseWait, all_come
from tilewright.simulator.report import Fault

if TYPE_CHECKING:
    from tilewright.ir.program import Line, Op
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.memory import Region


def in_flight(x: Any) -> bool:
    """Is this a register that a product in flight writes or reads?"""
    return isinstance(x, np.ndarray) and x.dtype.names is not None


@cache
def _decoded(bits: int, major: str) -> SharedMatrix:
    return SharedMatrix.decoded(bits, major)


@lru_cache(256)
def _pieces(layout: SharedMatrix, rows: range) -> NDArray[np.int64]:
    """Where the pieces of these rows are, in bytes and before the swizzle."""
    return layout.offsets(rows.stop)[rows.start // (1 if layout.major == "k" else 8):]


def _flying(x: Any, group: NDArray[np.int64]) -> NDArray[Any]:
    """A register that must not be accessed before a wait. `group`: of each thread."""
    tagged = np.empty((*x.shape[:-1], len(group)), [("value", x.dtype), ("group", np.int64)])
    tagged["value"], tagged["group"] = x, group
    return tagged


class RegisterWait:
    """The wait of warps for registers that others of their CTA give up."""

    def __init__(self, line: Line, owner: Warpgroups, warps: NDArray[np.int64], count: int) -> None:
        self.line, self.owner, self.warps, self.count = line, owner, warps, count

    def over(self, gang: Gang) -> bool:
        owner = self.owner
        ctas = self.warps // owner.machine.clocks.per_cta
        wanted = np.bincount(ctas, (self.count - owner.registers[self.warps]) * LANES, len(owner.free)).astype(np.int64)
        if (wanted > owner.free).any():
            return False
        owner.free -= wanted
        owner.registers[self.warps] = self.count
        return True

    def __str__(self) -> str:
        return f"{self.count} registers a thread: no warpgroup gives up as many"


class Warpgroups:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def begin(self) -> None:
        """Others run now."""
        agents = self.machine.clocks.agents
        self.closed = np.zeros(agents, np.int64)        # groups that each warp has committed
        self.fenced = np.zeros(agents, bool)            # since its last wait
        self.count = np.zeros(agents, np.int64)         # products that each warp has started,
        self.started: dict[int, list[Op]] = defaultdict(list)       # and those of a warpgroup
        self.newest: dict[int, int] = {}                            # group that a warpgroup has started products of
        self.groups: dict[tuple[int, int], PhaseBarrier] = {}       # complete when four warps have committed
        self.over: dict[int, int] = defaultdict(int)                # groups of a warpgroup that a wait has ended
        self.registers = np.full(agents, self.machine.function.registers())     # of each thread of a warp
        self.free = np.zeros(self.machine.ctas, np.int64)               # that warpgroups of a CTA have given up

    # ---- operations

    def elect(self, gang: Gang, node: Op) -> NDArray[np.bool_]:
        all_come(gang, node, gang.skipping(), "elect.sync")
        return np.arange(gang.size) % LANES == 0

    def set_registers(self, gang: Gang, node: Op, count: int, more: bool) -> None:
        warps = self._warps(gang, node)
        had = self.registers[warps]
        if (count < had).any() if more else (count > had).any():
            raise gang.fault("registers", node, f"the threads have {had[0]} registers, and would have "
                             f"{'more' if more else 'fewer'} with {count}")
        gang.waiting = RegisterWait(node.line, self, warps, count)

    def fence(self, gang: Gang, node: Op, *registers: Any) -> Any:
        self.fenced[self._warps(gang, node)] = True
        return registers if len(registers) > 1 else registers[0] if registers else None

    def commit(self, gang: Gang, node: Op) -> None:
        for warpgroup, agents in self._warpgroups(gang, node):
            for agent in agents:
                key = warpgroup, int(self.closed[agent])
                barrier = self.groups.get(key)
                if barrier is None:
                    cta = int(agent) // self.machine.clocks.per_cta
                    barrier = self.groups[key] = PhaseBarrier(f"a group of wgmma of block {self.machine.block(cta)}",
                                                              WARPS * LANES)
                self.closed[agent] += 1
                clock = self.machine.clocks.release(np.array([agent]))
                clock[0, self.machine.clocks.products(agent)] = self.closed[agent]
                barrier.arrive(clock, LANES)

    def wait(self, gang: Gang, node: Op, pending: int) -> None:
        arrivals = []
        for warpgroup, agents in self._warpgroups(gang, node):
            for agent in agents:
                newest = int(self.closed[agent]) - pending - 1
                if newest >= 0:
                    arrivals.append((self.groups[warpgroup, newest], 0, np.array([agent])))
        if arrivals:
            gang.waiting = PhaseWait(node.line, arrivals, together=False)

    def take(self, gang: Gang, node: Op, *operands: Any) -> Any:
        """After the wait: the registers, of which those that groups before the newest `pending` have written can be
        used again."""
        *registers, pending = operands
        for warpgroup, agents in self._warpgroups(gang, node):
            self.over[warpgroup] = max(self.over[warpgroup], int(self.closed[agents].max()) - pending)
            self.fenced[agents] = False
        over = np.repeat(self.closed[gang.warps] - pending, LANES)
        values = [x["value"] if in_flight(x) and not (x["group"] >= over).any() else x for x in registers]
        return values if len(values) > 1 else values[0] if values else None

    def issue(self, gang: Gang, node: Op, *operands: Any) -> Any:
        """D of a product, in flight."""
        atom: Wgmma = operands[-1]
        warps = self._warps(gang, node)
        self._same_products(gang, node)
        count = atom.registers
        sums, (*a, b, add) = operands[:count], operands[count:-1]
        self._check_registers(gang, node, sums + (tuple(a) if atom.a_layout is None else ()))
        groups = np.repeat(self.closed[warps], LANES)
        with_c = self._uniform(gang, node, add, "whether to add to D")
        c = self._matrices(sums, atom.sums, gang.size)
        d = np.empty_like(c)
        b = self._uniform(gang, node, b, "where B begins")
        a_place = None if atom.a_layout is None else self._uniform(gang, node, a[0], "where A begins")
        a_rows = self._matrices(a, atom.rows_of_a, gang.size) if atom.a_layout is None else None
        tiles: dict[int, Any] = {}          # B, by where it begins
        for w in range(len(warps)):
            if int(b[w]) not in tiles:
                tiles[int(b[w])] = self._read(gang, node, np.flatnonzero(b == b[w]), int(b[w]), atom.b_layout, atom.b,
                                              range(atom.n), WARPS)
            if a_rows is not None:
                rows = a_rows[w]
            else:
                assert atom.a_layout is not None
                assert a_place is not None
                mine = warps[w] % self.machine.clocks.per_cta % WARPS * ROWS_WARP
                rows = self._read(gang, node, np.array([w]), int(a_place[w]), atom.a_layout, atom.a,
                                  range(mine, mine + ROWS_WARP), 1)
            d[w] = atom.product(rows, tiles[int(b[w])], c[w] if with_c[w] else 0.0)
        if atom.a_layout is None:           # A's registers, too, are not to be touched
            for x, operand in zip(a, node.operands[count:]):
                gang.frame.env[gang.frame.code.slot(operand)] = _flying(x["value"] if in_flight(x) else x, groups)
        with np.errstate(all="ignore"):
            values = atom.sums.lanes(d[:, None]).reshape(count, gang.size)
        tagged = list(_flying(values, groups))
        return tagged if count > 1 else tagged[0]

    def end(self) -> None:
        """All have ended: nothing may be in flight, and the warps of a warpgroup have executed the same."""
        for warpgroup, nodes in self.started.items():
            counts = self.count[warpgroup:warpgroup + WARPS]
            if (counts != counts[0]).any():
                node = nodes[int(counts.min())]
                raise Fault("divergent", node.line, self.machine.function.name,
                            f"only {np.count_nonzero(counts > counts.min())} of the four warps of a warpgroup execute "
                            "this product")
            if self.newest[warpgroup] >= self.over[warpgroup]:
                raise Fault("in flight", nodes[-1].line, self.machine.function.name,
                            "the kernel ends before this product is waited for")

    # ---- what they consist of

    def _warps(self, gang: Gang, node: Op) -> NDArray[np.int64]:
        """The agents of the gang's warps, whole ones of whole warpgroups, in the order of its threads."""
        machine = self.machine
        if not gang.active().all() or (machine.cta // machine.warp % WARPS and (
                gang.warps % machine.clocks.per_cta >= machine.cta // machine.warp // WARPS * WARPS).any()):
            raise gang.fault("divergent", node, f"{node.operation.name} takes all threads of a warpgroup"
                             + gang.by(int(np.argmin(gang.active()))))
        return gang.warps

    def _warpgroups(self, gang: Gang, node: Op) -> list[tuple[int, NDArray[np.int64]]]:
        """(warpgroup, its agents in the gang); a warpgroup is named by the number of its first warp."""
        agents = self._warps(gang, node)
        firsts = self._first_of(agents)
        return [(int(first), agents[firsts == first]) for first in np.unique(firsts)]

    def _first_of(self, agents: NDArray[np.int64]) -> NDArray[np.int64]:
        return agents - agents % self.machine.clocks.per_cta % WARPS

    def _same_products(self, gang: Gang, node: Op) -> None:
        """Each warp of a warpgroup starts the products that the others have started."""
        for agent, warpgroup in zip(gang.warps, self._first_of(gang.warps)):
            nodes, at = self.started[int(warpgroup)], int(self.count[agent])
            if at == len(nodes):
                nodes.append(node)
            elif nodes[at] is not node:
                raise gang.fault("divergent", node, "another warp of the warpgroup executes the product at "
                                 f"{nodes[at].line} instead of this{self.machine.by(int(agent) * LANES)}")
            self.count[agent] += 1
            self.newest[int(warpgroup)] = max(self.newest.get(int(warpgroup), 0), int(self.closed[agent]))

    def _check_registers(self, gang: Gang, node: Op, registers: tuple[Any, ...]) -> None:
        """Sums of products in flight may be added to, registers that others have written take a fence."""
        fenced = self.fenced[gang.warps]
        if not fenced.all() and not all(map(in_flight, registers)):
            raise gang.fault("unfenced", node, "no k.wgmma_fence() since the registers of this product could last be "
                             f"written{gang.by(int(np.argmin(fenced)) * LANES)}")

    def _uniform(self, gang: Gang, node: Op, x: Any, what: str) -> NDArray[Any]:
        """The value of each warp, which must be the same in all of its lanes."""
        lanes = np.broadcast_to(x, gang.size).reshape(-1, LANES)
        if (lanes != lanes[:, :1]).any():
            raise gang.fault("divergent", node, f"lanes of a warp differ in {what}")
        return lanes[:, 0]

    @staticmethod
    def _matrices(registers: Any, fragment: Fragment, threads: int) -> NDArray[Any]:
        """[warps, rows, columns] of the registers of these threads."""
        plain = [x["value"] if in_flight(x) else x for x in registers]
        held = np.stack([x if x.shape == (threads,) else np.broadcast_to(x, threads) for x in plain])
        held = held.reshape(len(plain), -1, LANES)
        return fragment.matrix(held if len(plain) > 1 else held[0])[:, 0]

    def _read(self, gang: Gang, node: Op, warps: NDArray[np.int64], address: int, layout: SharedMatrix, format: str,
              rows: range, shares: int) -> NDArray[Any]:
        """The matrix of a descriptor (some `rows` of it), read for these warps of the gang, each of which
        reads one of so many shares."""
        layout = _decoded(layout.bits, layout.major)
        lanes = warps * LANES
        region = proxy.located(gang, node, address, int(lanes[0]), layout.repeat, layout.swizzle)
        if why := layout.misplaced(address):
            raise gang.fault("misaligned", node, f"the matrix at byte {self._inside(region, address)} of "
                             f"{region.name}: {why}")
        at = swizzled(address + _pieces(layout, rows), layout.swizzle) - region.base
        offsets = at.ravel()
        history, units = proxy.read(gang, node, region, offsets, lanes, layout.swizzle, shares)
        threads = gang.threads[lanes]
        history.read_on(threads, units, self.closed[threads // LANES] + 1, node.line)
        return layout.matrix(proxy.pieces(region.data)[at // PIECE], format).astype(np.float64)

    def _inside(self, region: Region, address: int) -> int:
        return (address - region.base) % (region.pitch or 1 << 62)
