"""Schedules that were found, as operations in the store of tuning results (plans/measured/store.py)."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import quantiles
from typing import Any

import llvmlite

import tilewright
from tilewright.nests.schedules.schedule import OPERATIONS, Schedule
from tilewright.nests.search.estimate import estimate
from tilewright.nests.search.rules import Candidate
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.kernels import KernelRow
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
