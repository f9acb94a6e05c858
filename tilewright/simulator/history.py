"""Races: which agent touched each unit of an array last, and whether those who touch it next have seen that (`clocks`).

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
from tilewright.simulator.clocks import Agents, Clocks

LANE_BITS, LINE_BITS = 6, 16                # of a reader: see `History._reader`
IN_FLIGHT = np.int32(2**31 - 1)             # the time of a write that is not over
Pairs = NDArray[np.int64]
Times = NDArray[np.int32]


class Race(NamedTuple):
    pair: int                               # of the thread and unit that is touched too early
    other: int | None                       # the thread that touched it before, as History numbers them; None: unknown
    verb: str
    line: Line | None

    def thread(self, clocks: Clocks) -> int | None:
        """The other thread, or the one that started the other copy, as the machine numbers them."""
        copy = self.other is not None and self.other >= clocks.threads
        return self.other - clocks.threads - clocks.warp if copy and self.other is not None else self.other

    def why(self, clocks: Clocks, by: str) -> str:
        """The rest of a message on an access that comes too early."""
        at = f" at {self.line}" if self.line else ""
        if self.other is None:
            return f"{self.verb} by a block that ran before, and nothing orders the two"
        if self.verb == "unproxied":
            return f"written{at}{by}, and no k.fence_async() follows for the async proxy"
        if self.verb == "lent":
            return f"it is still being read asynchronously by what was started{at}{by}"
        if self.verb == "not waited for":
            return (f"a product started{at}{by} may still be reading it asynchronously: no wait for its group is "
                    "ordered before")
        if self.other >= clocks.threads:
            return f"a copy{at}{by} is in flight"
        return f"{self.verb}{at}{by}, and nothing orders the two"


class History:
    """The last accesses of one region: which thread wrote each unit last, which thread of each agent read it last, and
    when.

    A unit is as many bytes as the smallest element seen so far. Time 0 is never. Thread numbers
    from `threads` on are no threads of now: `threads` itself is one that ran before, beyond it are copies in flight.
    Of several threads of a warp that read a unit at once, the first and the last are kept.

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
        self.noted: dict[Any, tuple[Agents, Pairs, Pairs, Any]] | None = {} if of_device else None  # readers, units
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
        self.read = np.zeros((self.rows + 1, len(self.written)), np.int32)
        self.reader = np.zeros(self.read.shape, np.int64)
        if self.read_before is not None:
            self.read[-1] = self.read_before
            self.reader[-1] = self.clocks.threads << LANE_BITS + LINE_BITS
        noted, self.noted = self.noted, None
        for agents, readers, units, times in (noted or {}).values():
            later = times >= self.read[agents % self.rows, units]
            row, at = agents[later] % self.rows, units[later]
            self.read[row, at], self.reader[row, at] = times[later], readers[later]

    def _reader(self, threads: Any, last: Any, line: Line) -> Any:
        """A thread, how far from it the last one of its warp is that reads with it, and the line, in one number."""
        return ((threads << LANE_BITS) + (last - threads) << LINE_BITS) + self._number(line)

    @staticmethod
    def _alone(readers: Any) -> tuple[Any, Any]:
        """The threads of these readers, and which of them read without others of their warp."""
        thread, beyond = np.divmod(readers >> LINE_BITS, 1 << LANE_BITS)
        return thread, beyond == 0

    # ---- accesses: of each pair, thread threads[i] of agent agents[i] touches unit units[i]

    def load(self, agents: Agents, threads: Pairs, units: Pairs, line: Line, last: Pairs | None = None, key: Any = None,
             remote: bool = False) -> Race | None:
        """`last`: the last threads of the warps that read the units with these; `key`: equal ones stand for equal
        pairs."""
        last = threads if last is None else last
        race = self._unseen_write(agents, threads, units, remote, last)
        now, readers = self.clocks.now[agents], self._reader(threads, last, line)
        if self.noted is not None:
            self.noted[key or len(self.noted)] = agents, readers, units, now
        else:
            row = agents % self.rows
            self.read[row, units] = now
            self.reader[row, units] = readers
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

    def _unseen_write(self, agents: Agents, threads: Pairs, units: Pairs, remote: bool, last: Pairs | None = None
                      ) -> Race | None:
        beyond = self.of_device or self.remote or remote        # what CTAs know of their own threads is not enough
        if not self.newest_write or not (beyond or self.flights or self.newest_write > self.clocks.known_in_ctas):
            return None
        writer = self.writer[units]
        known = self.clocks.known
        late = self.clocks.late(lambda column: known[agents, column], self.written[units], writer)
        own = writer == threads
        late &= ~(own if last is None else own & (last == threads))
        if not some(late):
            return None
        first = int(late.argmax()) % units.size
        return Race(first, self._writer(int(writer[first]), int(units[first])), "written",
                    self.lines[int(self.write_line[units[first]])])

    def _unseen_read(self, agents: Agents, threads: Pairs, units: Pairs) -> Race | None:
        clocks, warp, own = self.clocks, self.clocks.warp, threads << LANE_BITS
        read, reader = self.read[:, units], self.reader[:, units]
        if not self.of_device:                                # else those that ran before are among them
            read, reader = read[:-1], reader[:-1]
        unseen = (read > self._known(agents, 0)) & (reader >> LINE_BITS != own)
        if some(unseen) and clocks.led.any():
            thread, alone = self._alone(reader)
            alone &= thread < clocks.threads
            led = clocks.led[np.where(alone, thread // warp, 0), thread % warp]
            unseen &= ~(alone & led & (read <= self._known(agents, clocks.alone)))
        if not some(unseen):
            return None
        pair = int(unseen.any(0).argmax())
        code, line = divmod(int(reader[unseen[:, pair].argmax(), pair]), 1 << LINE_BITS)
        other, beyond = divmod(code, 1 << LANE_BITS)
        if other == clocks.threads:
            return Race(pair, None, "read", None)
        return Race(pair, int(other + beyond * (other == threads[pair])), "read", self.lines[line])

    def _known(self, agents: Agents, first: int) -> Any:
        """Up to which times these agents have seen all that can read here, [of those, agents], by columns from `first`
        on."""
        clocks = self.clocks
        if self.of_device:
            known = clocks.known[agents, first:first + clocks.agents + 1]
            return known.T if first == 0 else np.pad(known[:, :clocks.agents], ((0, 0), (0, 1))).T
        ctas = clocks.agents // self.rows
        return clocks.known[:, first:first + clocks.agents].reshape(-1, ctas, self.rows)[agents, agents // self.rows].T

    def _read_before(self, agents: Agents, threads: Pairs, units: Pairs) -> Race | None:
        """While none of those that run now have read it."""
        if self.read_before is None:
            return None
        unseen = self.read_before[units] > self.clocks.known[agents, self.clocks.agents]
        return Race(int(unseen.argmax()), None, "read", None) if some(unseen) else None

    # ---- what the async proxy does: reads that go on after the instruction that starts them

    def parts(self, offsets: Pairs, bytes: int) -> Pairs:
        """The units of pieces of so many bytes at these offsets, [pieces, units of one]."""
        return offsets[:, None] // self.unit + np.arange(bytes // self.unit)

    def fetch(self, agents: Agents, threads: Pairs, units: Pairs) -> Race | None:
        """A read by the async proxy comes too early: after a write that its thread has not seen, or that no proxy fence
        follows. It leaves no trace; see `lend`. Of several threads at once, agents and threads are [threads, 1]."""
        return self._unseen_write(agents, threads, units, True) or self.unproxied(agents, units)

    def unproxied(self, agents: Agents, units: Pairs) -> Race | None:
        """A thread has written here, and no proxy fence that these agents are synchronised with follows."""
        clocks, writer = self.clocks, self.writer[units]
        own = writer < clocks.threads               # threads that run now, and no copies
        late = own & clocks.late(lambda column: clocks.proxied[agents, column], self.written[units],
                                 np.where(own, writer, 0))
        if not some(late):
            return None
        first = int(late.argmax()) % units.size
        return Race(first, int(writer[first]), "unproxied", self.lines[int(self.write_line[units[first]])])

    def lend(self, threads: Pairs, units: Pairs, line: Line) -> None:
        """Each of these threads has started a read that goes on: until it is over every write here is a race."""
        if self.lent is None:
            self.lent, self.lender = np.zeros((2, len(self.written)), np.int64)
        self.lent[units] += len(threads)
        self.lender[units] = int(threads[-1]) << LINE_BITS | self._number(line)

    def give_back(self, thread: int, units: Pairs, time: int) -> None:
        """Note that a lent read is over: it counts as a read by the thread at this time."""
        self.lent[units] -= 1
        if self.noted is None:
            row = thread // self.clocks.warp % self.rows
            later = units[self.read[row, units] < time]
            line = self.lines[int(self.lender[units[0]]) & (1 << LINE_BITS) - 1]
            self.read[row, later], self.reader[row, later] = time, self._reader(thread, thread, line)

    def read_on(self, threads: Pairs, units: Pairs, groups: Pairs, line: Line) -> None:
        """Products that these threads have started, of these groups, read here until a wait for the group: a write is a
        race unless its thread has seen that the group is over, by its own wait or another's."""
        if self.until is None:
            rows = self.rows // self.clocks.per_cta * self.clocks.warpgroups
            self.until, self.starter = np.zeros((2, rows, len(self.written)), np.int64)
        for thread, group in zip(threads.tolist(), groups.tolist()):
            row = self._warpgroup(thread // self.clocks.warp)
            self.until[row, units], self.starter[row, units] = group, thread << LINE_BITS | self._number(line)

    def _warpgroup(self, agent: int) -> int:
        """Which of those that can read here this agent belongs to."""
        return (self.clocks.products(agent) - self.clocks.products(0)) % len(self.until)

    def _still_read(self, agents: Agents, units: Pairs) -> Race | None:
        if self.lent is not None and some(self.lent[units] > 0):
            first = int((self.lent[units] > 0).argmax())
            thread, line = divmod(int(self.lender[units[first]]), 1 << LINE_BITS)
            return Race(first, thread, "lent", self.lines[line])
        if self.until is None:
            return None
        clocks, rows = self.clocks, len(self.until)
        over = clocks.known[:, clocks.products(0):clocks.alone].reshape(clocks.agents, -1, rows)
        over = over[agents, agents // self.rows].T
        late = self.until[:, units] > over
        if not some(late):
            return None
        first = int(late.any(0).argmax())
        thread, line = divmod(int(self.starter[late[:, first].argmax(), units[first]]), 1 << LINE_BITS)
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
            self.written[units] = 1 + was.late(told.__getitem__, self.written[units], writer)
            self.writer[units] = clocks.threads
        self.fresh = []
        if self.noted is None:
            thread, alone = self._alone(self.reader[:-1])
            read = self.read[:-1]
            late = np.where(alone, was.late(told.__getitem__, read, thread), read > told[:was.agents, None])
            times = np.append(np.where(read > 0, 1 + late, 0), self.read[-1:], axis=0)
            self.read_before = times.max(0).astype(np.int32)
        elif self.noted:
            if self.read_before is None:
                self.read_before = np.zeros(len(self.written), np.int32)
            for agents, readers, units, times in self.noted.values():
                thread, alone = self._alone(readers)
                late = np.where(alone, was.late(told.__getitem__, times, thread), times > told[agents])
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
