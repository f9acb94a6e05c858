"""Who acts on memory at the same time, and what each has seen of the others: vector clocks, and races found by them.

An agent is a thread of a CPU team or a warp. It has seen what another did up to some time if barriers or atomics have
carried the news (FastTrack: Flanagan and Freund, PLDI 2009). An access must come after the last write to its bytes, and
a write after all reads of them too, unless the same thread made them. Which came first this time does not matter.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Line

Clock = NDArray[np.int32]                   # [agents]: up to which time each is known


class Clocks:
    def __init__(self, agents: int, warp: int) -> None:
        self.agents, self.warp = agents, warp
        self.known = np.zeros((agents, agents), np.int32)       # [v, w]: the time up to which v has seen w
        self.now = np.ones(agents, np.int32)
        self.known_to_all = 0

    def release(self, agents: NDArray[np.int64]) -> Clock:
        """What these agents have done and seen up to now, for others to acquire."""
        clock = self.known[agents].max(0)
        clock[agents] = self.now[agents]
        self.now[agents] += 1
        return clock

    def acquire(self, agents: NDArray[np.int64], clock: Clock) -> None:
        self.known[agents] = np.maximum(self.known[agents], clock)
        self.known_to_all = int(self.known.min())


class Race(NamedTuple):
    late: NDArray[np.bool_]                 # [elements, units]: which are touched too early
    other: NDArray[Any]                     # the thread that touched them before
    verb: str
    line: Line | None


class History:
    """Of one region: which thread wrote each unit of it last, which thread of each agent read it last, and when.

    A unit is as many bytes as the smallest element seen so far. Time 0 is never.
    """

    def __init__(self, clocks: Clocks, size: int, unit: int) -> None:
        self.clocks, self.unit, self.size = clocks, unit, size
        units = -(-size // unit)
        self.written, self.writer, self.write_line = np.zeros((3, units), np.int32)
        self.read, self.reader = np.zeros((2, clocks.agents, units), np.int32)
        self.newest_write = 0
        self.lines: list[Line] = []
        self._numbers: dict[Line, int] = {}

    def locate(self, offset: NDArray[np.int64], item: int) -> NDArray[np.int64]:
        """The units of elements of `item` bytes at these offsets: [elements, units of each]."""
        unit = int(np.gcd.reduce(offset, initial=np.gcd(item, self.unit)))
        if unit < self.unit:
            for name in ("written", "writer", "write_line", "read", "reader"):
                setattr(self, name, np.repeat(getattr(self, name), self.unit // unit, axis=-1))
            self.unit = unit
        return (offset // self.unit)[:, None] + np.arange(item // self.unit)

    def load(self, threads: NDArray[np.int64], units: NDArray[np.int64]) -> Race | None:
        """Element i is read by thread threads[i]."""
        threads = threads[:, None]
        agents = threads // self.clocks.warp
        race = self._unseen_write(threads, agents, units)
        self.read[agents, units] = self.clocks.now[agents]
        self.reader[agents, units] = threads
        return race

    def store(self, threads: NDArray[np.int64], units: NDArray[np.int64], line: Line) -> Race | None:
        threads = threads[:, None]
        agents = threads // self.clocks.warp
        race = self._unseen_write(threads, agents, units)
        known, reader = np.moveaxis(self.clocks.known[agents], -1, 0), self.reader[:, units]
        unseen = (self.read[:, units] > known) & (reader != threads)
        if race is None and unseen.any():
            agent = unseen.argmax(0)
            race = Race(unseen.any(0), np.take_along_axis(reader, agent[None], 0)[0], "read", None)
        self.writer[units] = threads
        lost = self.writer[units] != threads                # several threads in one instruction
        if race is None and lost.any():
            race = Race(lost, self.writer[units], "also written", None)
        self.written[units] = self.clocks.now[agents]
        self.write_line[units] = self._number(line)
        self.newest_write = max(self.newest_write, int(self.clocks.now.max()))
        return race

    def _unseen_write(self, threads: Any, agents: Any, units: NDArray[np.int64]) -> Race | None:
        if self.newest_write <= self.clocks.known_to_all:
            return None
        writer = self.writer[units]
        late = (self.written[units] > self.clocks.known[agents, writer // self.clocks.warp]) & (writer != threads)
        if not late.any():
            return None
        return Race(late, writer, "written", self.lines[int(self.write_line[units][late][0])])

    def _number(self, line: Line) -> int:
        if line not in self._numbers:
            self._numbers[line] = len(self.lines)
            self.lines.append(line)
        return self._numbers[line]
