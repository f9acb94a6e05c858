"""Races: what each agent has seen of the others, by vector clocks, and which agent touched each unit of an array last.

An agent is a thread of a CPU team or a warp; the copies that a warp has in flight are an agent of their own, and so are
the products of a warpgroup, and all CTAs that ran before those of now. An agent has seen what another did up to some
time if barriers or atomics have carried the news (FastTrack: Flanagan and Freund, PLDI 2009).

An access must come after the last write to its bytes, and a write after all reads of them too, unless the same thread
made them. Which came first this time does not matter: what counts is whether barriers, fences and atomics order them.
"""
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.exact import some
from tilewright.ir.program import Line

Clock = NDArray[np.int32]                   # [4, columns]: up to which times what is known, fenced ...: see Clocks
Agents = NDArray[np.int64]
WARPS = 4                                   # of a warpgroup
IN_FLIGHT = np.int32(2**31 - 1)             # the time of a write that is not over
Pairs = NDArray[np.int64]
Times = NDArray[np.int32]


class Clocks:
    """`warp` threads are an agent, `per_cta` agents a CTA. Columns of a clock: the agents; those that ran before, as
    one; the copies of each agent; if there are `products` of warpgroups, those of each: how many groups are over."""

    def __init__(self, agents: int, warp: int, per_cta: int, products: bool = False) -> None:
        self.agents, self.warp, self.per_cta = agents, warp, per_cta
        self.threads = agents * warp
        self.warpgroups = -(-per_cta // WARPS)          # of a CTA, the last of them perhaps of fewer warps
        self.columns = 2*agents + 1 + (agents // per_cta * self.warpgroups if products else 0)
        self.news = np.zeros((4, agents, self.columns), np.int32)
        # [v, w]: the time up to which v has seen w; up to which v knows that the whole device can see w; up to which an
        # atomic operation has released w's accesses to v, which take effect after v's next fence; up to which v knows
        # that tensor cores and bulk copies (the async proxy) can see w
        self.known, self.fenced, self.pending, self.proxied = self.news
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
        """All that these agents have seen is from now on visible to agents that learn of it by an atomic; what these
        agents have learnt by atomics is valid from now on."""
        self.known[agents] = np.maximum(self.known[agents], self.pending[agents])
        self.fenced[agents] = np.maximum(self.fenced[agents], self.known[agents])
        self.fenced[agents, agents] = self.now[agents]
        self.now[agents] += 1
        self._known_in_ctas = None

    def fence_proxy(self, agents: Agents) -> None:
        """What these agents have done and seen in memory is visible to the async proxy from now on, if it is started by
        them or by threads that synchronise with them."""
        self.proxied[agents] = np.maximum(self.proxied[agents], self.known[agents])
        self.proxied[agents, agents] = self.now[agents]
        self.now[agents] += 1
        self._known_in_ctas = None

    def none(self) -> Clock:
        """That of no news."""
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
        """The same news, given by those who ran before, who are now one."""
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


class Race(NamedTuple):
    pair: int                               # of the thread and unit that is touched too early
    other: int | None                       # the thread that touched it before, as History numbers them; None: unknown
    verb: str
    line: Line | None


class History:
    """Of one region: which thread wrote each unit of it last, which thread of each agent read it last, and when.

    A unit is as many bytes as the smallest element seen so far. Time 0 is never. Thread numbers
    from `threads` on are no threads of now: `threads` itself is one that ran before, beyond it are copies in flight.
    Where several threads of a warp read a unit at once, ~t is kept of one of them.

    Each CTA has its own part of shared memory: `rows`, how many agents can touch a unit, is then those of a CTA, or of
    its cluster, and `remote` are accesses by other CTAs of it. The global memory of a GPU is `of_device`: all CTAs
    touch it, those that ran before included; most of it is never written, so reads are only noted until it is.
    """

    def __init__(self, clocks: Clocks, size: int, rows: int, of_device: bool) -> None:
        self.clocks, self.size, self.rows, self.unit = clocks, size, rows, 16
        self.of_device = of_device
        units = -(-size // self.unit)
        self.written, self.writer, self.write_line = np.zeros((3, units), np.int32)
        self.before: NDArray[np.int64] | None = None            # the writer, of those that ran before
        self.read_before: Times | None = None                   # when
        self.read: Any = None
        self.reader: Any = None
        self.noted: dict[Any, tuple[Agents, Pairs, Pairs, Any]] | None = {} if of_device else None
        self.newest_write = 0
        self.fresh: list[Pairs] = []                            # units written by those that run now, if of_device
        self.flights = 0                                        # units that copies are on their way to
        self.lent: Any = None                                   # how many asynchronous reads of each unit go on,
        self.lender: Any = None                                 # the thread that started one of them, and its line
        self.until: Any = None                                  # the group of each warpgroup's products that reads last
        self.starter: Any = None                                # here, and a thread that started it, and its line
        self.remote = False                                     # whether other CTAs have written here
        self.lines: list[Line] = []
        self._numbers: dict[Line, int] = {}
        if not of_device:
            self._watch_reads()

    # ---- units

    def refine(self, item: int) -> None:
        """Units become so small that elements of `item` bytes (or at such offsets) consist of whole ones."""
        unit = math.gcd(item, self.unit)
        if unit == self.unit:
            return
        if self.noted:
            self._watch_reads()
        parts = self.unit // unit
        self.fresh = [(units[:, None] * parts + np.arange(parts)).ravel() for units in self.fresh]
        for name in ("written", "writer", "write_line", "before", "read_before", "read", "reader", "lent", "lender",
                     "until", "starter"):
            old = getattr(self, name)
            if old is not None:
                setattr(self, name, np.repeat(old, parts, axis=-1))
        self.flights *= parts
        self.unit = unit

    def _watch_reads(self) -> None:
        self.read, self.reader = np.zeros((2, self.rows + 1, len(self.written)), np.int32)
        if self.read_before is not None:
            self.read[-1] = self.read_before
            self.reader[-1] = self.clocks.threads
        noted, self.noted = self.noted, None
        for agents, threads, units, times in (noted or {}).values():
            later = times >= self.read[agents % self.rows, units]
            row, at = agents[later] % self.rows, units[later]
            self.read[row, at], self.reader[row, at] = times[later], threads[later]

    # ---- accesses: of each pair, thread threads[i] of agent agents[i] touches unit units[i]

    def load(self, agents: Agents, threads: Pairs, units: Pairs, key: Any = None, remote: bool = False) -> Race | None:
        """`key`: equal ones stand for equal pairs."""
        race = self._unseen_write(agents, threads, units, remote)
        now = self.clocks.now[agents]
        if self.noted is not None:
            self.noted[key or len(self.noted)] = agents, threads, units, now
        else:
            row = agents % self.rows
            self.read[row, units] = now
            self.reader[row, units] = threads
        return race

    def store(self, agents: Agents, threads: Pairs, units: Pairs, line: Line, remote: bool = False) -> Race | None:
        if self.noted:
            self._watch_reads()
        race = self._unseen_write(agents, threads, units, remote) or self._still_read(agents, units)
        self.remote |= remote
        race = race or (self._unseen_read if self.noted is None else self._read_before)(agents, threads, units)
        self._write(threads, units, self.clocks.now[agents], line)
        return race

    def _write(self, threads: Pairs, units: Pairs, times: Any, line: Line) -> None:
        self.writer[units], self.written[units], self.write_line[units] = threads, times, self._number(line)
        self.newest_write = max(self.newest_write, int(self.clocks.now[:self.clocks.agents].max()))
        if self.of_device:
            self.fresh.append(units)

    def _unseen_write(self, agents: Agents, threads: Pairs, units: Pairs, remote: bool) -> Race | None:
        beyond = self.of_device or self.remote or remote        # what CTAs know of their own threads is not enough
        if not self.newest_write or not (beyond or self.flights or self.newest_write > self.clocks.known_in_ctas):
            return None
        writer = self.writer[units]
        late = (self.written[units] > self.clocks.known[agents, writer // self.clocks.warp]) & (writer != threads)
        if not some(late):
            return None
        first = int(late.argmax()) % units.size
        return Race(first, self._writer(int(writer[first]), int(units[first])), "written",
                    self.lines[int(self.write_line[units[first]])])

    def _unseen_read(self, agents: Agents, threads: Pairs, units: Pairs) -> Race | None:
        clocks = self.clocks
        if self.of_device:                                    # and those that ran before
            read, reader = self.read[:, units], self.reader[:, units]
            known = clocks.known[agents, :clocks.agents + 1].T
        else:
            read, reader = self.read[:-1, units], self.reader[:-1, units]
            ctas = clocks.agents // self.rows
            known = clocks.known[:, :clocks.agents].reshape(-1, ctas, self.rows)[agents, agents // self.rows].T
        unseen = (read > known) & (reader != threads)
        if not some(unseen):
            return None
        pair = int(unseen.any(0).argmax())
        other = int(reader[unseen[:, pair].argmax(), pair])
        return Race(pair, None if other == clocks.threads else other if other >= 0 else ~other, "read", None)

    def _read_before(self, agents: Agents, threads: Pairs, units: Pairs) -> Race | None:
        """While none of those that run now have read it."""
        if self.read_before is None:
            return None
        unseen = self.read_before[units] > self.clocks.known[agents, self.clocks.agents]
        return Race(int(unseen.argmax()), None, "read", None) if some(unseen) else None

    # ---- what the async proxy does: reads that go on after the instruction that starts them

    def parts(self, offsets: Pairs, bytes: int) -> Pairs:
        """The units of pieces of so many bytes at these offsets, [pieces, units of one]."""
        found: Pairs = offsets[:, None] // self.unit + np.arange(bytes // self.unit)
        return found

    def fetch(self, agents: Agents, threads: Pairs, units: Pairs) -> Race | None:
        """A read by the async proxy comes too early: after a write that its thread has not seen, or that no proxy fence
        follows. It leaves no trace; see `lend`. Of several threads at once, agents and threads are [threads, 1]."""
        return self._unseen_write(agents, threads, units, True) or self.unproxied(agents, units)

    def unproxied(self, agents: Agents, units: Pairs) -> Race | None:
        """A thread has written here, and no proxy fence that these agents are synchronised with follows."""
        clocks, writer = self.clocks, self.writer[units]
        own = writer < clocks.threads               # threads that run now, and no copies
        late = own & (self.written[units] > clocks.proxied[agents, np.where(own, writer, 0) // clocks.warp])
        if not some(late):
            return None
        first = int(late.argmax()) % units.size
        return Race(first, int(writer[first]), "unproxied", self.lines[int(self.write_line[units[first]])])

    def lend(self, threads: Pairs, units: Pairs, line: Line) -> None:
        """Each of these threads has started a read that goes on: until it is over every write here is a race."""
        if self.lent is None:
            self.lent, self.lender = np.zeros((2, len(self.written)), np.int64)
        self.lent[units] += len(threads)
        self.lender[units] = int(threads[-1]) << 16 | self._number(line)

    def give_back(self, thread: int, units: Pairs, time: int) -> None:
        """That read is over, and counts as one by the thread at this time."""
        self.lent[units] -= 1
        if self.noted is None:
            row = thread // self.clocks.warp % self.rows
            later = units[self.read[row, units] < time]
            self.read[row, later], self.reader[row, later] = time, thread

    def read_on(self, threads: Pairs, units: Pairs, groups: Pairs, line: Line) -> None:
        """Products that these threads have started, of these groups, read here until a wait for the group: a write is a
        race unless its thread has seen that the group is over, by its own wait or another's."""
        if self.until is None:
            rows = self.rows // self.clocks.per_cta * self.clocks.warpgroups
            self.until, self.starter = np.zeros((2, rows, len(self.written)), np.int64)
        for thread, group in zip(threads.tolist(), groups.tolist()):
            row = self._warpgroup(thread // self.clocks.warp)
            self.until[row, units], self.starter[row, units] = group, thread << 16 | self._number(line)

    def _warpgroup(self, agent: int) -> int:
        """Which of those that can read here this agent belongs to."""
        found: int = (self.clocks.products(agent) - self.clocks.products(0)) % len(self.until)
        return found

    def _still_read(self, agents: Agents, units: Pairs) -> Race | None:
        if self.lent is not None and some(self.lent[units] > 0):
            first = int((self.lent[units] > 0).argmax())
            thread, line = divmod(int(self.lender[units[first]]), 1 << 16)
            return Race(first, thread, "lent", self.lines[line])
        if self.until is None:
            return None
        clocks, rows = self.clocks, len(self.until)
        over = clocks.known[:, clocks.products(0):].reshape(clocks.agents, -1, rows)[agents, agents // self.rows].T
        late = self.until[:, units] > over
        if not some(late):
            return None
        first = int(late.any(0).argmax())
        thread, line = divmod(int(self.starter[late[:, first].argmax(), units[first]]), 1 << 16)
        return Race(first, thread, "not waited for", self.lines[line])

    # ---- copies in flight

    def depart(self, threads: Pairs, units: Pairs, line: Line) -> None:
        """Copies that these threads have started are on their way here: no access is allowed from now on."""
        self._write(self.clocks.threads + self.clocks.warp + threads, units, IN_FLIGHT, line)
        self.flights += len(units)

    def land(self, threads: Pairs, units: Pairs) -> None:
        """They have arrived, and their threads know it, as if they had written it themselves just now."""
        agents = threads // self.clocks.warp
        self.writer[units], self.written[units] = threads, self.clocks.now[agents]
        self.newest_write = max(self.newest_write, int(self.clocks.now[:self.clocks.agents].max()))
        self.flights -= len(units)

    def land_unseen(self, threads: Pairs, units: Pairs) -> None:
        """They have arrived, as agents that acquire the clock of the copies know."""
        copies = self.clocks.copies(threads // self.clocks.warp)
        self.written[units] = self.clocks.now[copies]           # and `flights` stays: the clocks have to be asked

    # ---- CTAs after CTAs

    def next(self, clocks: Clocks, first: int, told: Times) -> None:
        """Others run now, with other clocks. Those of before began with thread `first` of the grid; what they did up to
        the times `told` can be known by asking an atomic, which is time 1 from now on, and the rest never: 2."""
        was, self.clocks, self.rows, self.flights = self.clocks, clocks, clocks.agents, 0
        units = np.concatenate(self.fresh) if self.fresh else np.zeros(0, np.int64)
        units = units[self.writer[units] != was.threads]
        writer = self.writer[units]
        if self.newest_write and clocks.threads != was.threads:
            self.writer[self.writer == was.threads] = clocks.threads
        if units.size:
            if self.before is None:
                self.before = np.zeros(len(self.written), np.int64)
            self.before[units] = first + writer % (was.threads + was.warp)
            self.newest_write = 2
            self.written[units] = 1 + (self.written[units] > told[writer // was.warp])
            self.writer[units] = clocks.threads
        self.fresh = []
        if self.noted is None:
            times = np.where(self.read > 0, 1 + (self.read > told[:was.agents + 1, None]), 0)
            times[-1] = self.read[-1]
            self.read_before = times.max(0).astype(np.int32)
        elif self.noted:
            if self.read_before is None:
                self.read_before = np.zeros(len(self.written), np.int32)
            for agents, _, units, times in self.noted.values():
                late = times > told[agents]
                soon = units[~late]
                self.read_before[soon] = np.maximum(self.read_before[soon], 1)
                self.read_before[units[late]] = 2
        self.read = self.reader = None
        self.noted = {}

    def _writer(self, thread: int, unit: int) -> int:
        """One that ran before is told as -1 - its number in the grid."""
        if thread != self.clocks.threads or self.before is None:
            return thread
        return -1 - int(self.before[unit])

    def _number(self, line: Line) -> int:
        if line not in self._numbers:
            self._numbers[line] = len(self.lines)
            self.lines.append(line)
        return self._numbers[line]
