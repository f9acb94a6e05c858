"""The fastest schedule of users' loops: `best(nest, args)`, found once and then remembered.

    rules.py        which schedules there are, each a few legal operations; estimate.py ranks them
    check           the first in rank run in the simulator, on small arrays, and leave the bits that the loops leave
    time            they take turns where the device is, on copies of the arguments
    plans/measured  the operations of the fastest are kept, by source, formats, shapes, strides, threads and chip

TILEWRIGHT_TUNE_DB=off keeps nothing beyond the process. Without the device, or with timed=False, the first in rank is
taken, and nothing is kept of it.
"""
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
from types import SimpleNamespace
from typing import Any

import llvmlite
import numpy as np

import tilewright
from tilewright import targets
from tilewright.nests import checking, counts, verified
from tilewright.nests.compiled import laid_out, layout_of
from tilewright.nests.estimate import estimate
from tilewright.nests.given import arguments, overlap
from tilewright.nests.nest import LoopNest
from tilewright.nests.rules import Candidate, candidates
from tilewright.nests.schedule import OPERATIONS, Schedule
from tilewright.nests.scheduled import Illegal, scheduled
from tilewright.outputs import Progress
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.kernels import KernelRow
from tilewright.runtime.cpu.pool import get_num_threads
from tilewright.simulator import Fault
from tilewright.targets import CpuTarget, machine

FINALISTS = 8           # that are checked and timed
ALIKE = 3               # of one structure, before others
FAR = 4.0               # times the first one's estimate, beyond which nothing is timed
SECONDS = 8.0           # of timing
TURN = 4e-3             # seconds that a turn lasts at least
ROUNDS = 9
LONG = 0.3              # estimated seconds of the loops as written, beyond which they are not timed
MOST_CHECKED = 1 << 26  # statements that run to compare bits
SLOWER = 1.3            # times the fastest, from which on a schedule takes no further turns
KERNEL = "loops "       # before the names of functions, in the store

Listener = Callable[[dict[str, Any]], object]
_found: dict[Any, Found] = {}


@dataclass(frozen=True)
class Found:
    """The schedule that is used. `gain`: the time of the loops as written over its own, `predicted` by counts and
    `measured`, None where that was not timed."""
    schedule: Schedule
    words: str
    predicted: float
    measured: float | None
    seconds: float | None
    why: str                # where it comes from

    def __call__(self, *args: Any) -> None:
        self.schedule(*args)

    def __str__(self) -> str:
        if not self.schedule.steps:
            return f"loops as written, {self.why}"
        gain = f"predicted {self.predicted:.3g} times as fast as written"
        if self.measured is not None:
            gain += f", measured {self.measured:.3g}"
        took = f", {self.seconds * 1e3:.3g} ms" if self.seconds is not None else ""
        return f"{self.words} ({gain}{took}; {self.why})"


def best(nest: LoopNest, args: Sequence[Any], target: Any = None, *, timed: bool = True,
         progress: bool | Listener = False, time_limit: float = SECONDS) -> Found:
    """The fastest schedule of a nest for arguments like these: what was found before, or a search. `args` are not
    changed. Called with arguments of these shapes and strides, it computes what the loops do.

    progress    True for a bar on standard error, or a function that is called with every event
    """
    chip = targets.detect() if target is None else targets.coerce(target)
    threads = get_num_threads() if isinstance(chip, CpuTarget) else 1
    s = schedule_of(nest, args)
    key = (*_key(s, chip, threads), chip.name)
    if (known := _found.get(key)) is not None:
        return known
    found = _stored(s, chip, threads)
    if found is None:
        with _listener(progress) as listen:
            found = search(s, args, chip, threads, timed=timed, listen=listen, time_limit=time_limit)
    _found[key] = found
    return found


def schedule_of(nest: LoopNest, args: Sequence[Any]) -> Schedule:
    """The schedule of a nest as written."""
    arrays, numbers = arguments(nest, args)
    sizes = {name: int(numbers[name]) for name in nest.sizes}
    layouts = {name: layout_of(x, nest.element(name)) for name, x in arrays.items()}
    return Schedule(nest, sizes, scheduled(nest, layouts, sizes))


def shared(s: Schedule, args: Sequence[Any]) -> bool:
    """Whether an array that is written shares memory with another one: then no operation is known to be legal."""
    arrays, _ = arguments(s.nest, args)
    written = {d.target.array for d in s.nest.statements} & arrays.keys()
    return any(a != b and overlap(arrays[a], arrays[b]) for a in written for b in arrays)


def search(s: Schedule, args: Sequence[Any], target: Any, threads: int = 1, *, timed: bool = True,
           listen: Listener | None = None, time_limit: float = SECONDS) -> Found:
    """Rank, check, time; what is found is stored."""
    tell = listen or (lambda event: None)
    first = estimate(s.now, target, threads).seconds
    if shared(s, args):
        return Found(s, "as written", 1.0, None, None, "since an array that is written shares memory with another one")
    found = candidates(s, target, threads)
    tell({"event": "candidates", "of": len(found)})
    reach = FAR * found[0].seconds
    finalists = _different([c for c in found if c.schedule.steps and c.seconds <= reach])
    here = isinstance(target, CpuTarget) and target.runnable and all(isinstance(x, (np.ndarray, int, float, np.number))
                                                                     for x in args)
    checked = list[Candidate]()
    for c in finalists:
        tell({"event": "checking", "words": c.words})
        if wrong(c.schedule) is None:
            checked.append(c)
            if not (timed and here):
                break
    if not checked:
        return Found(s, "as written", 1.0, None, None, "since no rule applies" if not finalists else
                     "since no schedule could be checked")
    if not (timed and here):
        why = "ranked, not timed" + ("" if here else f": {target.name} is not here")
        return Found(checked[0].schedule, checked[0].words, first / checked[0].seconds, None, None, why)
    written = Candidate(s, "as written", first)
    return _measured(s, [written] * (first <= LONG) + checked, args, target, threads, tell, time_limit)


def _different(found: Sequence[Candidate]) -> list[Candidate]:
    """The first in rank, ALIKE of each structure, as long as there are others."""
    seen: dict[str, int] = {}
    first, rest = list[Candidate](), list[Candidate]()
    for c in found:
        structure = c.words.split(",")[0] if c.words[0].islower() else ""
        seen[structure] = seen.get(structure, 0) + 1
        (first if seen[structure] <= ALIKE else rest).append(c)
    return [*first, *rest][:FINALISTS]


def wrong(s: Schedule) -> str | None:
    """What is wrong with a schedule: the simulator's fault, or that it leaves other bits than the loops; None if
    nothing is."""
    try:
        s.check()
    except Illegal:             # no smaller arrays are known for these operations
        return _wrong_here(s)
    except (Fault, AssertionError, TypeError) as error:
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

def _measured(s: Schedule, tried: list[Candidate], args: Sequence[Any], target: Any, threads: int, tell: Listener,
              time_limit: float) -> Found:
    """The fastest of these, by turns."""
    given = [laid_out(s.now.arrays[p.name], x) if p.name in s.now.arrays else x
             for p, x in zip(s.nest.parameters, args)]
    turns: dict[str, list[float]] = {}
    calls, by_name, deadline = dict[str, Any](), {c.words: c for c in tried}, time.perf_counter() + time_limit
    for c in tried:
        tell({"event": "compiling", "words": c.words})
        calls[c.words] = c.schedule.compile()
        calls[c.words](*given)
        turns[c.words] = []
        if time.perf_counter() > deadline and len(calls) > 1:
            break
    repeats = {name: _repeats(call, given) for name, call in calls.items()}
    playing = list(calls)
    for n in range(ROUNDS):
        tell({"event": "round", "n": n, "of": ROUNDS, "words": f"{len(playing)} schedules in turn"})
        for name in playing[n % len(playing):] + playing[:n % len(playing)]:
            turns[name].append(_turn(calls[name], given, repeats[name]))
        least = min(median(turns[name]) for name in playing)
        playing = [x for x in playing if min(turns[x]) <= SLOWER * least]
        if time.perf_counter() > deadline or (len(playing) == 1 and n > 1):
            break
    seconds = {name: median(x) for name, x in turns.items()}
    winner = min(seconds, key=lambda x: seconds[x])
    base = seconds.get("as written")
    c = by_name[winner]
    _keep(s, [by_name[x] for x in turns], turns, winner, target, threads)
    first = estimate(s.now, target, threads).seconds
    return Found(c.schedule, c.words, first / c.seconds, None if base is None else base / seconds[winner],
                 seconds[winner], f"timed, the fastest of {len(turns)}")


def _repeats(call: Callable[..., None], args: Sequence[Any]) -> int:
    took = _turn(call, args, 1)
    return max(1, min(1000, round(TURN / max(took, 1e-7))))


def _turn(call: Callable[..., None], args: Sequence[Any], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call(*args)
    return (time.perf_counter() - began) / repeats


# ---- what is remembered

def _key(s: Schedule, target: Any, threads: int) -> tuple[str, str]:
    """(a digest of what is computed, the class of arguments)."""
    kinds = [(p.name, p.kind, str(p.element), p.axes) for p in s.nest.parameters]
    text = repr((str(s.nest), kinds, sorted((x, str(t)) for x, t in s.nest.scalars.items())))
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


def _stored(s: Schedule, target: Any, threads: int) -> Found | None:
    """What a search has found and kept."""
    if store.path() is None:
        return None
    source, problem = _key(s, target, threads)
    wanted = target.name, choice.chip(target), KERNEL + s.nest.name, source, problem
    with suppress(OSError, ValueError, TypeError, KeyError):
        rows = [r for r in store.rows(store.KERNELS) if (r.target, r.model, r.kernel, r.source, r.problem) == wanted]
        row = next((r for r in rows if r.role == "best"), None)
        if row is not None:
            done = replayed(s, row.configuration)
            first, here = estimate(s.now, target, threads).seconds, estimate(done.now, target, threads).seconds
            written = next((r.seconds for r in rows if r.configuration == "[]"), None)
            return Found(done, _words(done), first / here, None if written is None else written / row.seconds,
                         row.seconds, f"measured {row.date[:10]}")
    return None


def _words(s: Schedule) -> str:
    """The operations, in short."""
    if not s.steps:
        return "as written"
    kept = [x for x in s.steps if x.method in ("reorder", "vectorize", "unroll", "bind", "fission")]
    return "; ".join([f"{x.method} {' '.join(map(str, x.arguments))}" for x in kept])


def _keep(s: Schedule, tried: Sequence[Candidate], turns: Mapping[str, list[float]], winner: str, target: Any,
          threads: int) -> None:
    if store.path() is None:
        return
    source, problem = _key(s, target, threads)
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
                              operations_text(c.schedule), role, c.seconds, *_spread(mine), *_spread(ratios),
                              len(mine), **origin))
    with suppress(OSError, ValueError):
        store.save(rows, store.KERNELS)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    q1, middle, q3 = quantiles(values, n=4, method="inclusive")
    return middle, q1, q3


# ---- progress

class _listener:
    """What hears of events: nobody, a function, or a bar."""

    def __init__(self, progress: bool | Listener) -> None:
        self.progress = progress
        self.bar: Progress | None = None

    def __enter__(self) -> Listener | None:
        if callable(self.progress):
            return self.progress
        if not self.progress:
            return None
        console: Any = SimpleNamespace(quiet=False)
        bar = self.bar = Progress(console, "searching schedules", 2 * FINALISTS + ROUNDS).__enter__()

        def hear(event: dict[str, Any]) -> None:
            bar.update(" ".join(filter(None, (event["event"], event.get("words")))))
            bar.advance()
        return hear

    def __exit__(self, *exception: Any) -> None:
        if self.bar is not None:
            self.bar.__exit__(*exception)
