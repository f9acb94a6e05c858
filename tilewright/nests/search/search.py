"""The fastest schedule of users' loops: `best(nest, args)`, found once and then remembered.

    rules.py        which schedules there are, each a few legal operations; estimate.py ranks them
    trials.py       the first in rank run in the simulator, on small arrays, and leave the bits that the loops leave;
                    they take turns where the device is, on copies of the arguments
    trials.py       the operations of the fastest are kept, by source, formats, shapes, strides, threads and chip

TILEWRIGHT_TUNE_DB=off keeps nothing beyond the process. Without the device, or with timed=False, the first in rank is
taken, and nothing is kept of it.

Where rounds run at once, on threads of a CPU or on a GPU, a loop around several others whose rounds follow each other,
as the time steps of a stencil, stays outside: its parts have schedules of their own, and are called in turn.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from tilewright import targets
from tilewright.nests.given import arguments, folded, overlap
from tilewright.nests.nest import LoopNest, Statement, leaves
from tilewright.nests.schedules.compiled import layout_of
from tilewright.nests.schedules.schedule import Schedule
from tilewright.nests.schedules.scheduled import Illegal, scheduled
from tilewright.nests.search.estimate import estimate
from tilewright.nests.search.rules import Candidate, candidates
from tilewright.nests.search.trials import ROUNDS, Found, Listener, fastest, key, known, predicted, trial, wrong
from tilewright.outputs import Progress
from tilewright.runtime.cpu.pool import get_num_threads
from tilewright.targets import CpuTarget

FINALISTS = 8           # that are checked and timed
ALIKE = 3               # of one structure, before others
FAR = 4.0               # times the first one's estimate, beyond which nothing is timed
SECONDS = 8.0           # of timing
LONG = 0.3              # estimated seconds of the loops as written, beyond which they are not timed
PART = 2e-4             # estimated seconds of a part, below which threads are not worth their start

_found: dict[Any, Found | Several] = {}


@dataclass(frozen=True)
class Several:
    """Parts of a nest that run one after the other, `times` times."""
    times: int
    parts: tuple[Found, ...]

    @property
    def launches(self) -> int:
        """How many kernels a call on a GPU launches."""
        return self.times * len(self.parts)

    @property
    def ranks(self) -> tuple[tuple[str, float], ...]:
        """The ranks of the first part."""
        return self.parts[0].ranks

    @property
    def changed(self) -> bool:
        """Whether any part runs in another way than it is written in."""
        return any(x.changed for x in self.parts)

    def __call__(self, *args: Any) -> None:
        for _ in range(self.times):
            for x in self.parts:
                x(*args)

    def __str__(self) -> str:
        times = f"{self.times} times, in turn: " if self.times > 1 else ""
        return times + "; then ".join(map(str, self.parts))


def best(nest: LoopNest, args: Sequence[Any], target: Any = None, *, timed: bool = True,
         progress: bool | Listener = False, time_limit: float = SECONDS) -> Found | Several:
    """The fastest schedule of a nest for arguments like these: what was found before, or a search. `args` are not
    changed. Called with arguments of these shapes and strides, it computes what the loops do.

    progress    True for a bar on standard error, or a function that is called with every event
    """
    chip = targets.detect() if target is None else targets.coerce(target)
    threads = get_num_threads() if isinstance(chip, CpuTarget) else 1
    s = schedule_of(nest, args)
    together = shared(s, args)
    name = (*key(s, chip, threads), chip.name, together)
    if name in _found:
        return _found[name]
    with _listener(progress) as listen:
        times, pieces = (1, [nest]) if together else in_turn(s, chip, threads)
        results = list[Found]()
        for piece in pieces:
            plan = s if piece is nest else schedule_of(piece, args)
            results.append(known(plan, chip, threads) or search(plan, args, chip, threads, timed=timed, listen=listen,
                                                              time_limit=time_limit))
    one = results[0] if times == len(results) == 1 else Several(times, tuple(results))
    if isinstance(one, Several) and not isinstance(chip, CpuTarget) and not all(x.changed for x in results):
        one = Found(s, "as written", 1.0, None, None, "since a part of it has no schedule for a GPU")
    _found[name] = one
    return one


def in_turn(s: Schedule, target: Any, threads: int) -> tuple[int, list[LoopNest]]:
    """(how often, the parts) of loops that are called one after the other; (1, the nest) where they are one."""
    undivided = 1, [s.nest]
    if isinstance(target, CpuTarget) and threads == 1:
        return undivided
    statements, times, now = s.nest.statements, 1, s.now
    while len(now.nodes) == 1 and all(x.loops for x in statements):
        top = statements[0].loops[0]
        loop = now.nodes[0]
        rounds = getattr(loop, "extent", None)
        if not rounds or getattr(loop, "index", "") != top.index or any(_mentions(x, top.index) for x in statements):
            break
        try:
            Schedule(s.nest, s.sizes, now).bind({top.index: "worker"})
            break
        except Illegal:
            statements = tuple([x._replace(loops=x.loops[1:]) for x in statements])
            times, now = times * rounds, replace(now, nodes=getattr(loop, "body", ()))
    groups: list[list[Statement]] = []
    for x in statements:
        same = groups and groups[-1][-1].loops[:1] and x.loops[:1] and (
            groups[-1][-1].loops[0].index == x.loops[0].index)
        groups[-1].append(x) if same else groups.append([x])
    scalars = [{a.array for x in g for a in (x.target, *leaves(x.value))} & s.nest.scalars.keys() for g in groups]
    if any(a & b for n, a in enumerate(scalars) for b in scalars[:n]) or (times == 1 and len(groups) == 1):
        return undivided
    if isinstance(target, CpuTarget) and estimate(s.now, target).seconds < PART * times * len(groups):
        return undivided
    return times, [replace(s.nest, statements=tuple(g)) for g in groups]


def _mentions(x: Statement, index: str) -> bool:
    """Whether a statement computes with an index, beside having its loop."""
    bounds = [p for y in x.loops[1:] for p in (y.start, y.stop)]
    accesses = [p for a in (x.target, *leaves(x.value)) for p in a.subscripts]
    return any(index in p.names for p in (*bounds, *accesses, *x.conditions, *leaves(x.value, "index")))


def schedule_of(nest: LoopNest, args: Sequence[Any]) -> Schedule:
    """The schedule of a nest as written."""
    arrays, numbers = arguments(nest, args)
    sizes = {name: int(numbers[name]) for name in nest.sizes}
    layouts = {name: layout_of(x, nest.element(name)) for name, x in arrays.items()}
    return Schedule(nest, sizes, scheduled(nest, layouts, sizes))


def shared(s: Schedule, args: Sequence[Any]) -> bool:
    """Whether an array that is written shares memory with another one, or several of its elements are one number: then
    no operation is known to be legal."""
    arrays, _ = arguments(s.nest, args)
    written = {d.target.array for d in s.nest.statements} & arrays.keys()
    return any(folded(*s.now.arrays[a][:2]) or any(a != b and overlap(arrays[a], arrays[b]) for b in arrays)
               for a in written)


def search(s: Schedule, args: Sequence[Any], target: Any, threads: int = 1, *, timed: bool = True,
           listen: Listener | None = None, time_limit: float = SECONDS) -> Found:
    """Rank, check, time; what is found is stored."""
    tell = listen or (lambda event: None)
    if shared(s, args):
        return Found(s, "as written", 1.0, None, None, "since an array that is written shares memory with another one")
    try:
        ranked = candidates(s, target, threads)
    except ValueError as error:             # of loops whose subscripts are no sums of indices, for one
        return Found(s, "as written", 1.0, None, None, f"since {error}")
    tell({"event": "candidates", "of": len(ranked)})
    first = next(c.seconds for c in ranked if not c.schedule.steps or c.words == "as written")
    reach = FAR * ranked[0].seconds
    finalists = _different([c for c in ranked if c.schedule.steps and c.seconds <= reach])
    on = trial(s, args, target) if timed else ""
    checked = list[Candidate]()
    for c in finalists:
        tell({"event": "checking", "words": c.words})
        if wrong(c.schedule) is None:
            checked.append(c)
            if isinstance(on, str):
                break
    if not checked:
        return Found(s, "as written", 1.0, None, None, "since no rule applies" if not finalists else
                     "since no schedule could be checked")
    if isinstance(on, str):
        why = "ranked, not timed" + (f": {on}" if on else "")
        c = checked[0]
        ranks = tuple([(x.words, x.seconds) for x in ranked])
        return Found(c.schedule, c.words, predicted(first, c.seconds, target), None, None, why, ranks)
    written = [Candidate(s, "as written", first)] * (isinstance(target, CpuTarget) and first <= LONG)
    return fastest(s, written + checked, on, target, threads, tell, time_limit)


def _different(found: Sequence[Candidate]) -> list[Candidate]:
    """The first in rank, ALIKE of each structure, as long as there are others."""
    seen: dict[str, int] = {}
    first, rest = list[Candidate](), list[Candidate]()
    for c in found:
        structure = c.words.split(",")[0] if c.words[0].islower() else ""
        seen[structure] = seen.get(structure, 0) + 1
        (first if seen[structure] <= ALIKE else rest).append(c)
    return [*first, *rest][:FINALISTS]


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
