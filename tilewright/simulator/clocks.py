"""Vector clocks: up to which time each agent, a warp or a CPU's thread, has seen what the others did, and how barriers,
fences, mbarriers and atomics pass this on.

A lane that releases something without the others of its warp hands over what it did itself, and of the others what
came before the last warp barrier.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.exact import some

Clock = NDArray[np.int32]                   # [4, columns]: up to which times what is known, fenced ...: see Clocks
Agents = NDArray[np.int64]
Lanes = NDArray[np.bool_] | None            # [agents, warp], which act; None: all
WARPS = 4                                   # of a warpgroup


class Clocks:
    """`warp` threads are an agent, `per_cta` agents a CTA. Columns of a clock: the agents, with all lanes; those that
    ran before, as one; the copies of each agent; if there are `products` of warpgroups, those of each: how many groups
    are over; and from `alone` on again the agents, with what lanes did that release without the others of their warp.
    """

    def __init__(self, agents: int, warp: int, per_cta: int, products: bool = False) -> None:
        self.agents, self.warp, self.per_cta = agents, warp, per_cta
        self.threads = agents * warp
        self.warpgroups = -(-per_cta // WARPS)          # of a CTA, the last of them perhaps of fewer warps
        self.alone = 2*agents + 1 + (agents // per_cta * self.warpgroups if products else 0)
        self.columns = self.alone + agents
        self.led = np.zeros((agents, warp), bool)       # such lanes
        self.news = np.zeros((4, agents, self.columns), np.int32)
        # [v, w]: the time up to which v has seen w; up to which v knows that the whole device can see w; up to which an
        # atomic operation has released w's accesses to v, which take effect after v's next fence; up to which v knows
        # that tensor cores and bulk copies (the async proxy) can see w
        self.known, self.fenced, self.pending, self.proxied = self.news
        self.now = np.ones(self.columns, np.int32)
        self._known_in_ctas: int | None = 0

    def release(self, agents: Agents, lanes: Lanes = None) -> Clock:
        """What these agents have done and seen up to now, for others to acquire. `lanes` alone may release: then what
        others of their warps did since the last warp barrier is not part of it."""
        clock: Clock = self.news[:, agents].max(1)
        clock[0, self._columns(agents, lanes)] = self.now[agents]
        self.now[agents] += 1
        return clock

    def _columns(self, agents: Agents, lanes: Lanes) -> Agents:
        """Where to note what these agents do now, all lanes of theirs or some."""
        if lanes is None:
            return agents
        part = ~lanes.all(1)
        self.led[agents[part]] |= lanes[part]
        return np.where(part, self.alone + agents, agents)

    def late(self, rows: Any, times: Any, threads: Any) -> Any:
        """Which of the accesses of these threads, at these times, are not known by `rows`, a function of columns that
        gives a row of news for each."""
        agents, lanes = np.divmod(threads, self.warp)
        unseen = times > rows(agents)
        if some(unseen) and self.led.any():
            now = agents < self.agents
            agents = np.where(now, agents, 0)
            unseen = unseen & ~(now & self.led[agents, lanes] & (times <= rows(self.alone + agents)))
        return unseen

    def acquire(self, agents: Agents, clock: Clock) -> None:
        self.news[:, agents] = np.maximum(self.news[:, agents], clock[:, None])
        self._known_in_ctas = None

    def meet(self, agents: Agents) -> None:
        """The threads of each of these agents have seen all that the others of theirs have done."""
        self.known[agents, agents] = self.now[agents]
        self.now[agents] += 1
        self._known_in_ctas = None

    def fence(self, agents: Agents, lanes: Lanes = None) -> None:
        """All that these agents have seen is from now on visible to agents that learn of it by an atomic; what these
        agents have learnt by atomics is valid from now on."""
        self.known[agents] = np.maximum(self.known[agents], self.pending[agents])
        self.fenced[agents] = np.maximum(self.fenced[agents], self.known[agents])
        self.fenced[agents, self._columns(agents, lanes)] = self.now[agents]
        self.now[agents] += 1
        self._known_in_ctas = None

    def fence_proxy(self, agents: Agents, lanes: Lanes = None) -> None:
        """What these agents have done and seen in memory is visible to the async proxy from now on, if it is started by
        them or by threads that synchronise with them."""
        self.proxied[agents] = np.maximum(self.proxied[agents], self.known[agents])
        self.proxied[agents, self._columns(agents, lanes)] = self.now[agents]
        self.now[agents] += 1
        self._known_in_ctas = None

    def none(self) -> Clock:
        """The clock of an agent that has seen nothing."""
        return np.zeros((len(self.news), self.columns), np.int32)

    def land(self, agents: Agents) -> Clock:
        """What copies of these agents have brought up to now, for others to acquire."""
        clock = self.none()
        copies = self.copies(agents)
        clock[0, copies] = self.now[copies]
        self.now[copies] += 1
        return clock

    def copies(self, agents: Agents) -> Agents:
        """The columns of these agents' copies."""
        return agents + self.agents + 1

    def products(self, agents: Any) -> Any:
        """The columns of the products of these agents' warpgroups."""
        cta, warp = np.divmod(agents, self.per_cta)
        return 2*self.agents + 1 + cta * self.warpgroups + warp // WARPS

    def from_before(self, clock: Clock) -> Clock:
        """News from the clock of all threads that ran before, which count as one agent."""
        news = self.none()
        news[:, self.agents] = clock.any(1)
        return news

    @property
    def known_in_ctas(self) -> int:
        """Everybody has seen all of the own CTA up to here."""
        if self._known_in_ctas is None:
            ctas = self.agents // self.per_cta
            own = self.known[:, :self.agents].reshape(ctas, self.per_cta, ctas, self.per_cta)
            self._known_in_ctas = int(np.einsum("cacb->cab", own).min())
        return self._known_in_ctas
