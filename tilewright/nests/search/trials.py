"""Whether a schedule leaves the bits that the loops leave, and which of several takes the least time."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from statistics import median
from typing import Any

import numpy as np

from tilewright.nests.given import arguments
from tilewright.nests.running import verified
from tilewright.nests.schedules import checking, counts
from tilewright.nests.schedules.compiled import laid_out, layout_of
from tilewright.nests.schedules.schedule import Schedule
from tilewright.nests.schedules.scheduled import Illegal, scheduled
from tilewright.nests.search.estimate import estimate
from tilewright.nests.search.rules import Candidate
from tilewright.nests.search.stored import Found, keep, operations_text, predicted, replayed
from tilewright.runtime.gpu.arrays import library_of
from tilewright.runtime.gpu.driver import LibraryError
from tilewright.simulator import Fault
from tilewright.targets import CpuTarget

TURN = 4e-3             # seconds that a turn lasts at least
ROUNDS = 9
MOST_CHECKED = 1 << 26  # statements that run to compare bits
SLOWER = 1.3            # times the fastest, from which on a schedule takes no further turns

Listener = Callable[[dict[str, Any]], object]


def wrong(s: Schedule) -> str | None:
    """What is wrong with a schedule: the simulator's fault, or that it leaves other bits than the loops; None if
    nothing is."""
    try:
        try:
            s.check()
        except Illegal:         # no smaller arrays are known for these operations
            return _wrong_here(s)
    except (Fault, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        return str(error)
    return None


def _wrong_here(s: Schedule) -> str | None:
    """What is wrong when both run, on smaller arrays for which all tiles are as they are."""
    written = replace(s, now=s.steps[0].before, steps=())
    try:
        sizes, layouts = checking.smaller(s.nest, s.sizes, written.now.arrays, _Tiles(s))      # type: ignore[arg-type]
        start = Schedule(s.nest, sizes, scheduled(s.nest, layouts, sizes))
        done = replayed(start, operations_text(s))
    except Illegal:
        return "no smaller arrays are known for which its operations can be done"
    if sum(counts.rounds(around) for _, around in start.now.statements) > MOST_CHECKED:
        return "there are no small arrays for its operations"
    random, results = np.random.default_rng(0), []
    numbers = {name: random.integers(-3, 4, x.shape).astype(x.element.numpy) for name, x in layouts.items()}
    for each in (start, done):
        arrays = {name: laid_out(each.now.arrays[name], x) for name, x in numbers.items()}
        each.compile()(*[arrays[p.name] if p.name in arrays else sizes.get(p.name, 1.0) for p in s.nest.parameters])
        results.append(arrays)
    return None if verified.equal(s.nest, *results) else "it leaves other numbers than the loops as written"


class _Tiles:
    """Rounds of loops with whole tiles of all that they are split into, and as much of one as there is beyond them."""

    def __init__(self, s: Schedule) -> None:
        self.factors: dict[str, int] = {}
        for x in s.steps:
            if x.method == "split":
                name = x.arguments[0].split(".")[0]
                self.factors[name] = lcm(self.factors.get(name, 1), x.arguments[1])

    def needed(self, name: str, rounds: int) -> int:
        """The rounds that a loop needs which has so many of them."""
        factor = self.factors.get(name.split(".")[0], 2)
        return rounds if rounds < 3 * factor else 2 * factor + rounds % factor


# ---- time

@dataclass(frozen=True)
class Trial:
    """Arguments that schedules may be timed on, and `wait`, which returns when all calls on them are over."""
    args: list[Any]
    wait: Callable[[], None]


def trial(s: Schedule, args: Sequence[Any], target: Any) -> Trial | str:
    """Arguments like these for timing, where the target is: on a CPU copies; on a GPU the arrays themselves, but for
    those that are written, which new ones in C order replace. Why there are none, as "sm_90a is not here"."""
    arrays, _ = arguments(s.nest, args)
    elsewhere = f"{target.name} is not here"
    if isinstance(target, CpuTarget):
        if not target.runnable or not all(isinstance(x, np.ndarray) for x in arrays.values()):
            return elsewhere
        return Trial([laid_out(s.now.arrays[p.name], arrays[p.name]) if p.name in arrays else x
                      for p, x in zip(s.nest.parameters, args)], lambda: None)
    library = library_of(*arrays.values())
    if library is None or any(library_of(x) is not library for x in arrays.values()):
        return elsewhere
    first = next(iter(arrays.values()))
    device = library.platform.driver.device(library.device(first))
    if device.target != target:
        return elsewhere
    stream = library.stream(first, device.index)
    copies = list[Any](args)
    written = {x.target.array for x in s.nest.statements}
    for n, p in enumerate(s.nest.parameters):
        if p.name in arrays and p.name in written:
            layout = s.now.arrays[p.name]
            try:
                copies[n] = library.empty(layout.shape, np.dtype(layout.element.numpy), device.index, stream)
            except (MemoryError, RuntimeError) as error:        # a driver's, or torch's
                return f"there is no memory for another {p.name}: {error}"
            if layout_of(copies[n], layout.element) != layout:
                return f"{p.name} is written, and not in C order"
    return Trial(copies, lambda: library.platform.driver.synchronize(device, stream))


def fastest(s: Schedule, tried: list[Candidate], on: Trial, target: Any, threads: int, tell: Listener,
            time_limit: float) -> Found:
    """The fastest of these, by turns."""
    turns: dict[str, list[float]] = {}
    calls, by_name, deadline = dict[str, Any](), {c.words: c for c in tried}, time.perf_counter() + time_limit
    for c in tried:
        tell({"event": "compiling", "words": c.words})
        call = c.schedule.compile(target)
        try:
            call(*on.args)
            on.wait()
        except LibraryError as error:           # a launch for which the device has too little of something
            tell({"event": "failed", "words": f"{c.words}: {error}"})
            if c is tried[-1] and not calls:
                raise
            continue
        calls[c.words], turns[c.words] = call, []
        if time.perf_counter() > deadline and len(calls) > 1:
            break
    repeats = {name: _repeats(call, on) for name, call in calls.items()}
    playing = list(calls)
    for n in range(ROUNDS):
        tell({"event": "round", "n": n, "of": ROUNDS, "words": f"{len(playing)} schedules in turn"})
        for name in playing[n % len(playing):] + playing[:n % len(playing)]:
            turns[name].append(_turn(calls[name], on, repeats[name]))
        least = min(median(turns[name]) for name in playing)
        playing = [x for x in playing if min(turns[x]) <= SLOWER * least]
        if time.perf_counter() > deadline or (len(playing) == 1 and n > 1):
            break
    seconds = {name: median(x) for name, x in turns.items()}
    winner = min(seconds, key=lambda x: seconds[x])
    base = seconds.get("as written")
    c = by_name[winner]
    keep(s, [by_name[x] for x in turns], turns, winner, target, threads)
    gains = (predicted(estimate(s.now, target, threads).seconds, c.seconds, target),
             None if base is None else base / seconds[winner])
    return Found(c.schedule, c.words, *gains, seconds[winner], f"timed, the fastest of {len(turns)}")


def _repeats(call: Callable[..., None], on: Trial) -> int:
    took = _turn(call, on, 1)
    return max(1, min(1000, round(TURN / max(took, 1e-7))))


def _turn(call: Callable[..., None], on: Trial, repeats: int) -> float:
    on.wait()
    began = time.perf_counter()
    for _ in range(repeats):
        call(*on.args)
    on.wait()
    return (time.perf_counter() - began) / repeats
