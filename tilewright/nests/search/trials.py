"""Schedules that were found: whether one leaves the bits that the loops leave, and which of several takes the least
time; and as operations in the store of tuning results (plans/measured/store.py)."""
from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import lcm
from statistics import median, quantiles
from typing import Any

import llvmlite
import numpy as np

import tilewright
from tilewright.nests.given import arguments
from tilewright.nests.running import verified
from tilewright.nests.schedules import compiled, counts
from tilewright.nests.schedules.compiled import laid_out, layout_of
from tilewright.nests.schedules.schedule import OPERATIONS, Schedule
from tilewright.nests.schedules.scheduled import Illegal, scheduled
from tilewright.nests.search.estimate import estimate
from tilewright.nests.search.rules import Candidate
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.kernels import KernelRow
from tilewright.runtime.gpu.arrays import library_of
from tilewright.runtime.gpu.driver import LibraryError
from tilewright.simulator import Fault
from tilewright.targets import CpuTarget, machine

KERNEL = "loops "       # before the names of functions
LEAST = 1e-9            # seconds
AS_WRITTEN = "as written"


@dataclass(frozen=True)
class Found:
    """The schedule that is used. The time of the loops as written over its own is `predicted` by counts, None on a GPU,
    where nobody would run them so, and `measured`, None where that was not timed."""
    schedule: Schedule
    words: str
    predicted: float | None
    measured: float | None
    seconds: float | None
    why: str                # where it comes from
    ranks: tuple[tuple[str, float], ...] = ()       # all that were ranked, and estimated seconds, where none was timed

    launches = 1            # of a call on a GPU

    @property
    def changed(self) -> bool:
        """Whether the loops run in another way than they are written in."""
        return bool(self.schedule.steps)

    def __call__(self, *args: Any) -> None:
        self.schedule(*args)

    def __str__(self) -> str:
        if not self.schedule.steps:
            return f"loops as written, {self.why}"
        gains = [f"{how} {gain:.3g}" for how, gain in (("predicted", self.predicted), ("measured", self.measured))
                 if gain is not None]
        times = [f"{', '.join(gains)} times as fast as written"] if gains else []
        took = [f"{self.seconds * 1e3:.3g} ms"] if self.seconds is not None else []
        return f"{self.words} ({', '.join([*times, *took, self.why])})"


def predicted(written: float, now: float, target: Any) -> float | None:
    """The gain that estimated seconds predict over the loops as written."""
    return written / max(now, LEAST) if isinstance(target, CpuTarget) else None


def key(s: Schedule, target: Any, threads: int) -> tuple[str, str]:
    """(a digest of what is computed, the class of arguments)."""
    kinds = [(p.name, p.kind, str(p.element), p.axes) for p in s.nest.parameters]
    statements = [([(y.index, y.start, y.stop, y.step, y.kind) for y in x.loops], *x[1:-1]) for x in s.nest.statements]
    text = repr((statements, kinds, sorted((x, str(t)) for x, t in s.nest.scalars.items())))
    shapes = [f"{name}:{'x'.join(map(str, x.shape))}:{'x'.join(map(str, x.strides))}" for name, x in
              s.now.arrays.items()]
    sizes = [f"{name}={n}" for name, n in s.sizes.items() if ".shape[" not in name]
    return hashlib.sha256(text.encode()).hexdigest()[:20], " ".join([*shapes, *sizes, f"threads={threads}"])


def operations_text(s: Schedule) -> str:
    """The operations of a schedule, as one line that `replayed` reads."""
    return json.dumps([[x.method, list(x.arguments), x.options] for x in s.steps])


def replayed(s: Schedule, text: str) -> Schedule:
    """The operations of such a line, done anew. ValueError or TypeError for another text, Illegal where they are."""
    for method, given, options in json.loads(text):
        if method not in OPERATIONS:
            raise ValueError(f"{method} is no operation of a schedule")
        s = s._then(method, *[tuple(x) if isinstance(x, list) else x for x in given], **options)
    return s


def known(s: Schedule, target: Any, threads: int) -> Found | None:
    """What a search has found and kept."""
    if store.path() is None:
        return None
    source, problem = key(s, target, threads)
    wanted = target.name, choice.chip(target), KERNEL + s.nest.name, source, problem
    with suppress(OSError, ValueError, TypeError, KeyError):
        rows = [r for r in store.rows(store.KERNELS) if (r.target, r.model, r.kernel, r.source, r.problem) == wanted]
        row = next((r for r in rows if r.role == "best"), None)
        if row is not None:
            every = {r: json.loads(r.configuration) for r in rows}
            done = replayed(s, json.dumps(every[row]["operations"]))
            first, here = estimate(s.now, target, threads).seconds, estimate(done.now, target, threads).seconds
            written = next((r.seconds / row.seconds for r in rows if every[r]["words"] == AS_WRITTEN), None)
            return Found(done, every[row]["words"], predicted(first, here, target), written, row.seconds,
                         f"measured {row.date[:10]}")
    return None


def keep(s: Schedule, tried: Sequence[Candidate], turns: Mapping[str, list[float]], winner: str, target: Any,
          threads: int) -> None:
    if store.path() is None:
        return
    source, problem = key(s, target, threads)
    here = machine.cpus()
    origin = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
              "machine": f"{machine.processor().model}, {here.count} CPUs", "tilewright": tilewright.__version__,
              "llvmlite": llvmlite.__version__}
    base = turns.get("as written", turns[tried[0].words])
    rows = []
    for n, c in enumerate(tried):
        mine = turns[c.words]
        ratios = [a / b for a, b in zip(base, mine)]
        role = "best" if c.words == winner else "model" if n == 0 else ""
        rows.append(KernelRow(target.name, choice.chip(target), KERNEL + s.nest.name, source, problem,
                              _text(c), role, c.seconds, *_spread(mine), *_spread(ratios),
                              len(mine), **origin))
    with suppress(OSError, ValueError):
        store.save(rows, store.KERNELS)


def _text(c: Candidate) -> str:
    """A row's configuration."""
    return json.dumps({"words": c.words, "operations": json.loads(operations_text(c.schedule))})


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    q1, middle, q3 = quantiles(values, n=4, method="inclusive")
    return middle, q1, q3


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
        sizes, layouts = compiled.smaller(s.nest, s.sizes, written.now.arrays, _Tiles(s))      # type: ignore[arg-type]
        start = Schedule(s.nest, sizes, scheduled(s.nest, layouts, sizes))
        done = replayed(start, operations_text(s))
    except Illegal:
        return "no smaller arrays are known for which its operations can be done"
    if sum(counts.rounds(around) for _, around in start.now.statements) > MOST_CHECKED:
        return "there are no small arrays for its operations"
    random, results = np.random.default_rng(0), []
    numbers = {name: random.integers(-3, 4, x.shape).astype(x.element.numpy) for name, x in layouts.items()}
    for schedule in (start, done):
        arrays = {name: laid_out(schedule.now.arrays[name], x) for name, x in numbers.items()}
        schedule.compile()(*[arrays[p.name] if p.name in arrays else sizes.get(p.name, 1.0) for p in s.nest.parameters])
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
