"""Who acts on memory at the same time, and what each has seen of the others: vector clocks.

An agent is a thread of a CPU team or a warp; the copies that a warp has in flight are an agent of their own, and so are
all CTAs that ran before those of now. An agent has seen what another did up to some time if barriers or atomics have
carried the news (FastTrack: Flanagan and Freund, PLDI 2009). `history` finds the races.

Columns of a clock: the agents; those that ran before, as one; the copies of each agent.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Clock = NDArray[np.int32]                   # [3, columns]: what is known, fenced and pending, up to which times
Agents = NDArray[np.int64]


class Clocks:
    """`warp` threads are an agent, `per_cta` agents a CTA."""

    def __init__(self, agents: int, warp: int, per_cta: int) -> None:
        self.agents, self.warp, self.per_cta = agents, warp, per_cta
        self.threads = agents * warp
        self.columns = 2*agents + 1
        self.news = np.zeros((3, agents, self.columns), np.int32)
        # [v, w]: the time up to which v has seen w; up to which v knows that the whole device can see w; up to which an
        # atomic has told v of w, which v may believe after a fence
        self.known, self.fenced, self.pending = self.news
        self.now = np.ones(self.columns, np.int32)
        self._known_in_ctas: int | None = 0

    def release(self, agents: Agents) -> Clock:
        """What these agents have done and seen up to now, for others to acquire."""
        clock: Clock = self.news[:, agents].max(1)
        clock[0, agents] = self.now[agents]
        self.now[agents] += 1
        return clock

    def acquire(self, agents: Agents, clock: Clock) -> None:
        self.news[:, agents] = np.maximum(self.news[:, agents], clock[:, None])
        self._known_in_ctas = None

    def meet(self, agents: Agents) -> None:
        """The threads of each of these agents have seen all that the others of theirs have done."""
        self.known[agents, agents] = self.now[agents]
        self.now[agents] += 1
        self._known_in_ctas = None

    def fence(self, agents: Agents) -> None:
        """All that these agents have seen is from now on visible to whoever learns of it by an atomic, and they believe
        what atomics have told them."""
        self.known[agents] = np.maximum(self.known[agents], self.pending[agents])
        self.fenced[agents] = np.maximum(self.fenced[agents], self.known[agents])
        self.fenced[agents, agents] = self.now[agents]
        self.now[agents] += 1
        self._known_in_ctas = None

    def land(self, agents: Agents) -> Clock:
        """What copies of these agents have brought up to now, for others to acquire."""
        clock: Clock = np.zeros((3, self.columns), np.int32)
        copies = self.copies(agents)
        clock[0, copies] = self.now[copies]
        self.now[copies] += 1
        return clock

    def copies(self, agents: Agents) -> Agents:
        """The columns of these agents' copies."""
        return agents + self.agents + 1

    def from_before(self, clock: Clock) -> Clock:
        """The same news, given by those who ran before, who are now one."""
        news: Clock = np.zeros((3, self.columns), np.int32)
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
