"""The rules of measurement on a GPU (docs/benchmarking.md), free of any library: what a device can do is handed in.

Two protocols.  The median protocol records each peer's launches, over operands that rotate through more than the
L2 cache, as a graph, and gives the graphs turns: as on CPUs, what is quoted is the median over rounds of the ratio of
times within a round.  The article's launches one kernel 1000 exp((1024 - n) / 3100) times and takes the mean of the
second half, when the clocks have settled.

A *launch* is a function without arguments that puts one multiplication into the device's current stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tilewright.lab.measure.measure import Call, Rules, Sample

Launch = Callable[[], Any]
MOST_LAUNCHES = 256  # in a graph
MOST_SETS = 512  # of operands
MOST_HELD, FASTER = 256, 2.0  # launches that a stream takes ahead; the host may take so many times as long as it did


class Device(Protocol):
    """What is needed of a GPU: bench/gpu_device.py has it by torch, the tests by a clock that they wind."""

    def mark(self) -> Any: ...  # a moment in the current stream: an event

    def seconds(self, start: Any, end: Any) -> float: ...  # between two moments; waits for the second

    def graph(self, launches: Sequence[Launch]) -> Launch: ...  # all of these recorded, to be launched in one go

    def flush(self) -> None: ...  # puts something else into the L2 cache


@dataclass(frozen=True)
class GpuRules(Rules):
    """How long to look.  All times in seconds."""

    turn_s: float = 0.02
    warm_s: float = 0.004  # the others' clocks and cache are gone
    min_rounds: int = 3
    max_rounds: int = 11
    budget_s: float = 6.0
    watch_s: float = 0.6  # of each peer alone, in the second half of which the device's state is read

    @classmethod
    def choose(cls, threads: int = 1, quick: bool = False) -> GpuRules:
        return cls(max_rounds=5, budget_s=2.0, watch_s=0.4) if quick else cls()


class Events:
    """A Device by the events of a stream of the runtime's. Instead of a graph, launches follow each other there.

    hold(stream, seconds): keeps the device busy meanwhile; None where nothing can
    """

    def __init__(self, stream: Any, hold: Callable[[int, float], object] | None = None) -> None:
        self.stream, self.hold = stream, hold

    def mark(self) -> Any:
        return self.stream.event(self.stream.device).record(self.stream)

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(end.since(start))

    def graph(self, launches: Sequence[Launch]) -> Launch:
        def run() -> None:
            for launch in launches:
                launch()

        return run

    def flush(self) -> None:
        raise NotImplementedError("operands take turns instead")

    def track(self, calls: Sequence[Call]) -> GraphTrack:
        """What makes turns of these, for measure.interleave."""
        return (HeldTrack if self.hold else GraphTrack)(self, [partial(launch, *args) for launch, args in calls])


def sets(size: int, l2: int) -> int:
    """How many sets of operands, each of so many bytes, rotate: more than twice the L2 cache passes before one comes
    again; two at least."""
    return max(2, min(MOST_SETS, 1 + 2 * l2 // max(size, 1) + 1))


# ---- the median protocol


class GraphTrack:
    """One peer's launches, one per set of operands, recorded as a graph as often in turn as fills a turn and a
    graph may hold.  All sets are used, or the ones that are would stay in the cache.  A long launch is recorded alone:
    `launches` is then 1."""

    def __init__(self, device: Device, calls: Sequence[Launch]) -> None:
        self.device, self.calls = device, calls
        self.run: Launch = lambda: None
        self.launches, self.reps, self.per_call = 0, 0, 0.0

    def calibrate(self, rules: Rules) -> float:
        calls = self.calls
        calls[0]()
        self.per_call = self._timed(calls) / len(calls)
        if self.per_call >= rules.long_call_s:
            recorded = list(calls[:1])
        else:
            wanted = min(rules.turn_s / max(self.per_call, 1e-7), MOST_LAUNCHES)
            recorded = [*calls] * max(1, math.ceil(wanted / len(calls)))
        self.run, self.launches = self.device.graph(recorded), len(recorded)
        if self.per_call < rules.long_call_s:
            # Launches from Python may have been slower than the kernels: what the graph takes is what counts.
            self.per_call = self._timed([self.run]) / self.launches
        self.per_call = max(self.per_call, 1e-7)
        self.reps = self.times(rules.turn_s) * self.launches
        return self.per_call

    def times(self, seconds: float) -> int:
        """How often the graph must run to last so long."""
        return max(1, math.ceil(seconds / (self.launches * self.per_call)))

    def warm_up(self, rules: Rules, per_call: float) -> None:
        if per_call < rules.long_call_s:
            for _ in range(self.times(rules.warm_s)):
                self.run()

    def turn(self) -> float:
        return self._timed([self.run] * (self.reps // self.launches)) / self.reps

    def sustain(self, seconds: float) -> float:
        """This one alone for so long: seconds per call over the second half."""
        times = max(2, self.times(seconds))
        for _ in range(times // 2):
            self.run()
        count = times - times // 2
        return self._timed([self.run] * count) / (count * self.launches)

    def _timed(self, launches: Sequence[Launch]) -> float:
        start = self.device.mark()
        for launch in launches:
            launch()
        return self.device.seconds(start, self.device.mark())


class HeldTrack(GraphTrack):
    """Launches by a host that may take longer for one than the device: it gives a turn of them to a device that is
    still busy with something else, so that they follow each other as fast as those of a program that is ahead of the
    device, or of a graph."""

    device: Events
    host = 0.0  # seconds that the host takes for a launch

    def calibrate(self, rules: Rules) -> float:
        self.calls[0]()
        began = time.perf_counter()
        for call in self.calls:
            call()
        self.host = (time.perf_counter() - began) / len(self.calls)
        calls = super().calibrate(rules)
        if self.held:
            self.reps = min(self.reps, max(MOST_HELD // self.launches, 1) * self.launches)
        return calls

    @property
    def held(self) -> bool:
        return self.per_call < FASTER * self.host

    def warm_up(self, rules: Rules, per_call: float) -> None:
        if not self.held:
            super().warm_up(rules, per_call)

    def _timed(self, launches: Sequence[Launch]) -> float:
        count = len(launches) * (1 if launches is self.calls else self.launches)
        if self.device.hold and self.held and count <= 2 * MOST_HELD:
            self.device.hold(self.device.stream.handle, FASTER * self.host * count)
        return super()._timed(launches)


# ---- the article's protocol


def replays(n: float) -> int:
    """How often the article multiplies n x n matrices: 1000 at 1024, 371 at 4096, 22 at 12800; 2 at the least."""
    return max(2, int(1000 * math.exp((1024 - n) / 3100)))


def size(m: int, n: int, k: int) -> float:
    """The n of the square product with as many multiply-adds."""
    return float(m * n * k) ** (1 / 3)


def replay(device: Device, calls: Sequence[Launch], count: int, flush: bool = False) -> Sample:
    """`count` calls in a row, one per set of operands in turn; the mean of the second half.

    With `flush` the cache is filled with something else before each call, which is then timed by itself, as Nsight
    Compute does it.  Without, operands that rotate are what keeps the cache cold, and calls follow each other closely.
    """
    first = count - count // 2
    if not flush:
        for i in range(first):
            calls[i % len(calls)]()
        start = device.mark()
        for i in range(first, count):
            calls[i % len(calls)]()
        return Sample((device.seconds(start, device.mark()) / (count - first),), count)
    marks = []
    for i in range(count):
        device.flush()
        start = device.mark()
        calls[i % len(calls)]()
        marks.append((start, device.mark()))
    seconds = [device.seconds(*pair) for pair in marks[first:]]
    return Sample((sum(seconds) / len(seconds),), count)
