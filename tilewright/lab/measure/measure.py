"""The rules of measurement (docs/benchmarking.md), free of any clock, library or device: those are handed in.

A *peer* takes turns with others: a library, tilewright, one of its plans.  A *call* is a function and its ready
arguments.  A *turn* is as many calls of one peer as fill `Rules.turn_s`.  A
*round* gives every peer one turn, in an order that rotates from round to round, so that a machine that slows down
or a neighbour that wakes up hits all of them alike.  What is quoted is the median over rounds of the *ratio of times
within one round*; absolute rates are medians too, and never go without their quartiles.

Rounds that others disturbed are repeated while there is time, and left out if enough undisturbed ones were found; if
not, all rounds are given and the sample says that it is `disturbed`.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, repeat
from typing import Any, NamedTuple, Protocol

from tilewright.lab.measure.quiet import BLOCK_S

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Rules:
    """How long to look.  All times in seconds."""

    turn_s: float = 0.005  # a turn lasts at least this: 5 ms is 10^5 times the clock's own noise
    warm_s: float = 0.002  # untimed calls before a turn: wakes threads, refills caches, brings the clock speed back
    long_call_s: float = 0.1  # a call this long is its own warm-up
    min_rounds: int = 5
    max_rounds: int = 25
    budget_s: float = 4.0  # no further round once this is spent and min_rounds are done

    @classmethod
    def choose(cls, threads: int, quick: bool = False) -> Rules:
        """With several threads each turn first waits 0.1 s or so for the others' to sleep, so longer turns cost little.

        `quick` takes fewer rounds: the ratio of one round is as honest, the median of few is less sharp.
        """
        rules = cls(turn_s=0.02, warm_s=0.005) if threads > 1 else cls()
        if not quick:
            return rules
        return replace(rules, min_rounds=2, max_rounds=9, budget_s=1.5 if threads > 1 else 0.5)


class Spread(NamedTuple):
    """A median and the quartiles around it."""

    median: float
    q1: float
    q3: float


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles (inclusive method; of one value, that value three times)."""
    if not values:
        raise ValueError("no values to take a median of")
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3)


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, ...]:
    """Their time over ours, round by round: above 1 we are faster.  Both come from one `interleave`."""
    if len(theirs) != len(ours):
        raise ValueError(f"ratios need the same rounds on both sides, got {len(theirs)} and {len(ours)}")
    return tuple(t / o for t, o in zip(theirs, ours, strict=True))


@dataclass(frozen=True)
class Sample:
    """One peer on one problem: seconds per call, one figure per round."""

    seconds: tuple[float, ...]
    reps: int
    left_out: int = 0  # rounds that others disturbed and that do not count
    disturbed: bool = False  # others disturbed rounds that do count, since too few were undisturbed

    @property
    def spread(self) -> Spread:
        return spread(self.seconds)


class Track(Protocol):
    """One peer on turn: on a CPU its calls (CallTrack), on a GPU a graph of its launches (gpu_rules.GraphTrack)."""

    reps: int  # calls of a turn

    def calibrate(self, rules: Rules) -> float:
        """Choose how many calls last `rules.turn_s`; returns the seconds of one call seen on the way."""

    def warm_up(self, rules: Rules, per_call: float) -> None:
        """Untimed calls for `rules.warm_s`."""

    def turn(self) -> float:
        """Seconds per call of one turn."""


class CallTrack:
    """One peer's calls, one per set of operands, taken in turn so that the next one finds its data cold."""

    def __init__(self, calls: Sequence[Call], clock: Clock):
        self.calls, self.clock = calls, clock
        self.rotation: Iterator[Call] = cycle(calls)
        self.reps = 1

    def run(self, reps: int) -> float:
        """Seconds for `reps` calls.  The collector is off, as in timeit: it would hit the peer whose turn it is."""
        enabled, clock = gc.isenabled(), self.clock
        gc.disable()
        try:
            if len(self.calls) == 1:
                fn, args = self.calls[0]
                start = clock()
                for _ in repeat(None, reps):
                    fn(*args)
                return clock() - start
            batch = list(islice(self.rotation, reps))
            start = clock()
            for fn, args in batch:
                fn(*args)
            return clock() - start
        finally:
            if enabled:
                gc.enable()

    def turn(self) -> float:
        return self.run(self.reps) / self.reps

    def calibrate(self, rules: Rules) -> float:
        reps, took = 1, self.run(1)
        while took < rules.turn_s:
            # Grow by what is missing, at most tenfold, since a first call that compiled something misleads.
            reps = max(reps + 1, min(10 * reps, math.ceil(1.1 * reps * rules.turn_s / max(took, 1e-9))))
            took = self.run(reps)
        self.reps = max(1, math.ceil(reps * rules.turn_s / took))
        return took / reps

    def warm_up(self, rules: Rules, per_call: float) -> None:
        if per_call < rules.long_call_s:
            self.run(max(1, math.ceil(rules.warm_s / max(per_call, 1e-9))))


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round: everyone is first once in len(names) rounds."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def interleave(
    peers: Mapping[str, Sequence[Call]],
    rules: Rules | None = None,
    *,
    clock: Clock = time.perf_counter,
    settle: Callable[[], object] = lambda: None,
    heard: Callable[[str, float], object] = lambda name, seconds: None,
    disturbed: Callable[[], bool] = lambda: False,
    track: Callable[[Sequence[Call]], Track] | None = None,
    enough: Callable[[Mapping[str, Sequence[float]]], bool] = lambda seconds: False,
) -> dict[str, Sample]:
    """Time every peer, a turn each per round, and return its seconds per call, round by round.

    `settle` is called before every turn: quiet.settle waits there for the previous peer's threads to sleep.
    `disturbed` says whether others disturbed what ran since it was asked last: quiet.Watch.disturbed. It is asked
    of blocks of rounds, since rounds may be too short to be judged.
    `heard` is called with every turn that will be in the result, once its block is judged: the tuner passes it on.
    `track` makes a turn of calls; by default they are made one after the other on this CPU.
    `enough` is asked after every round from `min_rounds` on whether these seconds suffice.
    Every call must have been made once before (the check against float64 does), so that nothing compiles in here.
    """
    if not peers:
        return {}
    rules = rules or Rules()
    start = clock()
    disturbed()
    of = track or (lambda calls: CallTrack(calls, clock))
    tracks = {name: of(calls) for name, calls in peers.items()}
    per_call = {}
    for name, way in tracks.items():
        settle()
        per_call[name] = way.calibrate(rules)
    rounds = _Rounds(heard)
    if min(per_call.values()) >= rules.long_call_s:
        # Every calibration was one long call, which is all that a turn would be: that was the first round.
        rounds.block.append(per_call)
    else:
        disturbed()
    names = list(tracks)
    opened = clock() if not rounds.block else start
    while len(rounds) < rules.max_rounds:
        began = clock()
        turns = {}
        for name in rotated(names, rounds.number):
            settle()
            tracks[name].warm_up(rules, per_call[name])
            turns[name] = tracks[name].turn()
        rounds.block.append(turns)
        now = clock()
        least = rounds.number >= rules.min_rounds
        spent, sure = least and (now - start) + (now - began) > rules.budget_s, least and enough(rounds.seconds)
        if spent or sure or now - opened >= BLOCK_S or len(rounds) >= rules.max_rounds:
            rounds.judge(disturbed())
            opened = now
        if spent or (sure and len(rounds) >= rules.min_rounds):
            break
    rounds.judge(disturbed())
    kept, left_out, doubtful = rounds.result(rules.min_rounds)
    return {
        name: Sample(tuple(turns[name] for turns in kept), tracks[name].reps, left_out, doubtful) for name in names
    }


class _Rounds:
    """Rounds as they are measured: those not judged yet, and the others with their judgement, in order."""

    def __init__(self, heard: Callable[[str, float], object]) -> None:
        self.heard = heard
        self.block: list[dict[str, float]] = []
        self.judged: list[tuple[dict[str, float], bool]] = []

    def __len__(self) -> int:
        """How many count, if the last block was undisturbed."""
        return len(self.block) + sum(not disturbed for _, disturbed in self.judged)

    @property
    def number(self) -> int:
        return len(self.block) + len(self.judged)

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Seconds of each peer, in the rounds that count."""
        counting = [*(turns for turns, disturbed in self.judged if not disturbed), *self.block]
        return {name: [turns[name] for turns in counting] for name in (counting[0] if counting else ())}

    def judge(self, disturbed: bool) -> None:
        """Close the block."""
        if not disturbed:
            self._tell(self.block)
        self.judged += [(turns, disturbed) for turns in self.block]
        self.block = []

    def result(self, enough: int) -> tuple[list[dict[str, float]], int, bool]:
        """(the rounds that count, how many do not, whether others disturbed those that count)."""
        clean = [turns for turns, disturbed in self.judged if not disturbed]
        noisy = [turns for turns, disturbed in self.judged if disturbed]
        if not noisy or len(clean) >= enough:
            return clean, len(noisy), False
        self._tell(noisy)
        return [turns for turns, _ in self.judged], 0, True

    def _tell(self, rounds: list[dict[str, float]]) -> None:
        for turns in rounds:
            for name, seconds in turns.items():
                self.heard(name, seconds)
