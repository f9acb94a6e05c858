"""The rules of measurement on a GPU (docs/benchmarking.md), free of any library: what a device can do is handed in.

Two protocols.  The median protocol records each contender's launches, over operands that rotate through more than the
L2 cache, as a graph, and gives the graphs turns: as on CPUs, what is quoted is the median over rounds of the ratio of
times within a round.  The article's launches one kernel 1000 exp((1024 - n) / 3100) times and takes the mean of the
second half, when the clocks have settled.

A *launch* is a function without arguments that puts one multiplication into the device's current stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.measure.measure import Sample, rotated

Launch = Callable[[], Any]


class Device(Protocol):
    """What is needed of a GPU: `gpu_device` has it by torch, the tests by a clock that they wind."""

    def mark(self) -> Any:
        """A moment in the current stream: an event."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two moments, once the second is over: waits for it."""

    def graph(self, launches: Sequence[Launch]) -> Launch:
        """All of these recorded, to be launched in one go."""

    def flush(self) -> None:
        """Put something else into the L2 cache."""


@dataclass(frozen=True)
class GpuRules:
    """How long to look.  All times in seconds."""

    turn_s: float = 0.02  # a turn lasts at least this
    warm_s: float = 0.004  # untimed launches of a contender before its turn: the others' clocks and cache are gone
    rounds: int = 11
    min_rounds: int = 3  # which are made whatever they cost
    budget_s: float = 6.0  # of turns; no further round after it
    watch_s: float = 0.6  # of each contender alone, in the second half of which the device's state is read
    most_launches: int = 256  # in a graph
    long_call_s: float = 0.1  # a launch this long is its own warm-up

    @classmethod
    def quick(cls) -> GpuRules:
        return cls(rounds=5, budget_s=2.0, watch_s=0.4)


# ---- the median protocol


@dataclass(frozen=True)
class Track:
    """One contender's graph: `launches` multiplications of `per_call` seconds each, as far as is known beforehand."""

    run: Launch
    launches: int
    per_call: float

    @property
    def seconds(self) -> float:
        return self.launches * self.per_call

    def times(self, seconds: float) -> int:
        """How often it must run to last so long."""
        return max(1, math.ceil(seconds / self.seconds))


def track(device: Device, calls: Sequence[Launch], rules: GpuRules) -> Track:
    """Record a contender's calls, one per set of operands, as often in turn as fills a turn and a graph may hold.

    All sets are used, or the ones that are would stay in the cache.
    """
    calls[0]()
    start = device.mark()
    for call in calls:
        call()
    per_call = max(device.seconds(start, device.mark()) / len(calls), 1e-7)
    if per_call >= rules.long_call_s:
        return Track(device.graph(calls[:1]), 1, per_call)
    wanted = min(rules.turn_s / per_call, rules.most_launches)
    recorded = [*calls] * max(1, math.ceil(wanted / len(calls)))
    # Launches from Python may have been slower than the kernels: what the graph takes is what counts.
    run = device.graph(recorded)
    start = device.mark()
    run()
    return Track(run, len(recorded), max(device.seconds(start, device.mark()) / len(recorded), 1e-7))


def interleave(
    device: Device, tracks: Mapping[str, Track], rules: GpuRules, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Sample]:
    """Time every contender, a turn each per round in an order that rotates: seconds per call, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in tracks}
    reps = {name: t.times(rules.turn_s) for name, t in tracks.items()}
    began = clock()
    for number in range(rules.rounds if tracks else 0):
        before = clock()
        for name in rotated(list(tracks), number):
            t = tracks[name]
            if t.per_call < rules.long_call_s:
                for _ in range(t.times(rules.warm_s)):
                    t.run()
            start = device.mark()
            for _ in range(reps[name]):
                t.run()
            seconds[name].append(device.seconds(start, device.mark()) / (reps[name] * t.launches))
        now = clock()
        if number + 1 >= rules.min_rounds and (now - began) + (now - before) > rules.budget_s:
            break
    return {name: Sample(tuple(seconds[name]), reps[name] * tracks[name].launches) for name in tracks}


def sustain(device: Device, t: Track, seconds: float) -> float:
    """One contender alone for so long: seconds per call over the second half."""
    times = max(2, t.times(seconds))
    first = times // 2
    for _ in range(first):
        t.run()
    start = device.mark()
    for _ in range(times - first):
        t.run()
    return device.seconds(start, device.mark()) / ((times - first) * t.launches)


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
    found = [device.seconds(*pair) for pair in marks[first:]]
    return Sample((sum(found) / len(found),), count)


# ---- what a call costs the host


def host_cost(
    calls: Mapping[str, Launch], wait: Callable[[], Any], rounds: int = 15, burst: int = 200,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Sample]:
    """Seconds that a call takes to come back, in bursts that fit into the device's queue, in turns.

    `wait` lets the device finish before the next burst, untimed: a full queue would time the kernel.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in rotated(list(calls), number):
            call, count = calls[name], range(burst)
            for _ in range(burst // 10):
                call()
            wait()
            start = clock()
            for _ in count:
                call()
            seconds[name].append((clock() - start) / burst)
            wait()
    return {name: Sample(tuple(found), burst) for name, found in seconds.items()}
