"""The ceilings of this machine, measured by emitted probes and remembered: what "percent of peak" is a percentage of.

`ceilings()` answers from a file in tilewright's cache directory, one per kind of machine, and measures in about a
second when there is none. What others disturbed is measured again, and never replaces what was measured undisturbed.
`basis()` is what predictions rest on: these ceilings, or the cost model's defaults.
"""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from tilewright.lab.measure.machine import memory_bytes, now
from tilewright.lab.measure.quiet import BUSY, Watch
from tilewright.plans.common import Cost
from tilewright.plans.model import Ceilings
from tilewright.targets import CpuTarget, detect, names, target
from tilewright.targets.machine import cpus

Pair = tuple[float, float]                          # of one thread, of all threads at once
DTYPES = {"f32": 4, "f64": 8}
EXCEEDED = 1.05         # times a ceiling: a rate above that says that the ceiling is wrong, not that the rate is good
OUT_OF_DATE = "that ceiling is out of date, so no share of it is given; `tilewright doctor` measures it again"
HALF = 1.7, 2.3         # f32's rate over f64's, whose vectors have half as many lanes
SCALING = 0.9, 1.15     # all threads together reach more than this share of one, and less than this times all of one
KINDS = {"L1": ("read", "copy"), "L2": ("read", "copy"), "L3": ("read", "copy"), "memory": ("read", "copy", "stream")}
ATTEMPTS = 3            # at an undisturbed measurement


def exceeded(rate: float, ceiling: float) -> bool:
    """Whether a rate shows that a ceiling is out of date."""
    return rate > EXCEEDED * ceiling


@dataclass(frozen=True)
class Measured:
    """Best figures of one machine. `threads` is how many "all" were."""
    model: str
    date: str
    quick: bool
    threads: int
    clock: float                                    # cycles per second of one busy core
    call: float                                     # seconds that an empty function costs through ctypes
    flops: dict[str, dict[str, Pair]]               # instruction set → number format → operations per second
    bandwidth: dict[str, dict[str, Pair]]           # level → "read", "copy", "stream" (past caches) → bytes per second
    latency: dict[str, float]                       # level → seconds from one load to one that needs its result
    sizes: dict[str, int]                           # level → bytes that one thread went through
    notes: tuple[str, ...] = ()
    others: float = 0.0                             # CPUs that others kept busy meanwhile

    def peak_flops(self, dtype: str, threads: int = 1, isa: str | None = None) -> float:
        """Operations per second of that many threads; the best of all instruction sets unless one is named."""
        rates = [self._at(row[dtype], threads) for name, row in self.flops.items() if isa in (None, name)]
        if not rates:
            raise ValueError(f"no ceiling was measured for {isa}; there are: {', '.join(self.flops)}")
        return max(rates)

    def peak_bandwidth(self, level: str, threads: int = 1, kind: str = "read") -> float | None:
        """Bytes per second from a level; None where it could not be separated from its neighbours."""
        pair = self.bandwidth.get(level, {}).get(kind)
        return None if pair is None else self._at(pair, threads)

    def _at(self, pair: Pair, threads: int) -> float:
        """Between one thread and all of them the figure grows evenly; beyond all it does not."""
        one, everyone = pair
        if threads <= 1 or self.threads == 1:
            return one
        return one + (everyone - one) * min((threads - 1) / (self.threads - 1), 1)

    def model_ceilings(self, at: CpuTarget, dtype: str, threads: int = 1) -> Ceilings:
        """The ceilings as the cost model wants them: of one core of so many that are busy, multiply-add vectors and
        bytes per second; of memory what one gets alone, since the model knows how many share it. Vectors of other
        formats, and of words, are taken to be multiplied as fast as those of f32."""
        default, dtype, threads = Ceilings(), dtype if dtype in DTYPES else "f32", max(threads, 1)
        l2, l3 = (rate and rate / threads for rate in (self.peak_bandwidth(x, threads) for x in ("L2", "L3")))
        flops = self.peak_flops(dtype, threads, at.name) / threads
        return Ceilings(flops / (2 * at.lanes(DTYPES[dtype])), l2 or default.l2, l3 or l2 or default.l3,
                        self.peak_bandwidth("memory") or default.memory)

    def cost(self, shape: Any, plan: Any, target: CpuTarget) -> Cost:
        """The cost, as the shape's planner has it, by these ceilings."""
        threads = getattr(plan, "threads", shape.threads)
        return cast(Cost, shape.planner.cost(shape, plan, target, self.model_ceilings(target, shape.dtype, threads)))

    # ---- how far to trust them

    @property
    def disturbed(self) -> bool:
        """Whether these are not the machine's ceilings: others had its CPUs, or the figures contradict each other."""
        return self.others > BUSY or bool(self.doubts())

    def doubts(self) -> list[str]:
        """What cannot be true of a machine that does nothing else."""
        said = []
        for isa, row in self.flops.items():
            for place, threads in enumerate(("1 thread", f"{self.threads} threads")):
                ratio = row["f32"][place] / row["f64"][place]
                if not HALF[0] < ratio < HALF[1]:
                    said.append(f"{isa}, {threads}: f32 is {ratio:.2f} times as fast as f64, which should be 2")
            for dtype, (one, everyone) in row.items():
                if not SCALING[0] < everyone / one < SCALING[1] * self.threads:
                    said.append(f"{isa} {dtype}: {self.threads} threads are {everyone / one:.2f} times as fast as one")
        return said

    def renewed(self, new: Measured) -> Measured:
        """What to remember after another measurement of the same machine: the larger of the figures, and nothing that
        was disturbed beside what was not."""
        if self.disturbed != new.disturbed:
            return self if new.disturbed else new
        return replace(
            new, quick=self.quick and new.quick, clock=max(self.clock, new.clock), call=min(self.call, new.call),
            flops=_larger(self.flops, new.flops), bandwidth=_larger(self.bandwidth, new.bandwidth),
            latency=_merged(self.latency, new.latency, min), sizes=self.sizes | new.sizes,
            others=min(self.others, new.others))


def _merged(old: dict[str, Any], new: dict[str, Any], better: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Both, with what is `better` where they have the same name."""
    return old | {name: better(old[name], value) if name in old else value for name, value in new.items()}


def _larger(old: dict[str, dict[str, Pair]], new: dict[str, dict[str, Pair]]) -> dict[str, dict[str, Pair]]:
    """The larger figures of one thread and of all threads."""

    def pairs(one: Pair, other: Pair) -> Pair:
        return max(one[0], other[0]), max(one[1], other[1])

    return _merged(old, new, lambda row, other: _merged(row, other, pairs))


# ---- measured now, or before

def ceilings(at: CpuTarget | None = None, *, progress: Callable[[str], None] = lambda what: None) -> Measured:
    """What this machine can do, for every instruction set that it has: what is remembered, or measured in a second.
    RuntimeError for a target it cannot run.

    Figures that others disturbed are measured again. They may be given back all the same, if it is no better now:
    `Measured.disturbed`. `progress` is called with what is measured next.
    """
    at = at or detect()
    at.require_runnable()
    known = remembered()
    if known is not None and at.name in known.flops and not known.disturbed:
        return known
    return renew(quick=True, attempts=1 if known else ATTEMPTS, progress=progress)[0]


def renew(*, quick: bool = False, forget: bool = False, attempts: int = ATTEMPTS,
          progress: Callable[[str], None] = lambda what: None) -> tuple[Measured, Measured]:
    """(what is remembered from now on, what was just measured). `forget` what was known, which may be too much."""
    known = None if forget else remembered()
    if known is not None and any(t.name not in known.flops for t in _runnable()):
        known = None                                # of another version
    new = measure(quick, progress, attempts)
    kept = known.renewed(new) if known else new
    remember(_path(), kept)
    return kept, new


# ---- measuring

def measure(quick: bool = False, progress: Callable[[str], None] = lambda what: None,
            attempts: int = ATTEMPTS) -> Measured:
    """Run every probe, about a second when quick, else about ten; and again, if others disturbed it."""
    measured = None
    for _ in range(attempts):
        if measured is not None:
            progress("again, since other processes use the CPUs")
        watch = Watch()
        new = _measure(quick, progress)
        new = replace(new, others=round(watch.taken(), 2))
        measured = measured.renewed(new) if measured else new
        if not measured.disturbed:
            break
    assert measured is not None
    return measured


def _measure(quick: bool, progress: Callable[[str], None]) -> Measured:
    from tilewright.lab.measure import timing
    effort = timing.QUICK if quick else timing.FULL
    wide, allowed = widest(), cpus()
    everyone = allowed.allowed[:allowed.count]
    one = everyone[:1]

    def pair(alone: Callable[[], Any], together: Callable[[], Any] | None) -> Pair:
        rate = timing.best_rate(alone, one, effort)
        return rate, timing.best_rate(together, everyone, effort) if together and len(everyone) > 1 else rate

    progress("the clock")
    clock = timing.best_rate(partial(timing.clock, wide), one, effort)
    call = 1 / timing.best_rate(partial(timing.call, wide), one, effort)
    flops: dict[str, dict[str, Pair]] = {}
    for t in _runnable():
        progress(f"{t.name} multiply-adds")
        probes = {dtype: partial(timing.fma, t, dtype) for dtype in DTYPES}
        flops[t.name] = {dtype: pair(probe, probe) for dtype, probe in probes.items()}

    bandwidth: dict[str, dict[str, Pair]] = {}
    latency: dict[str, float] = {}
    alone, notes = working_sets(wide, 1, quick)
    together, more_notes = working_sets(wide, len(everyone), quick)
    for level, size in alone.items():
        progress(f"{level} bandwidth")
        bandwidth[level] = {
            kind: pair(partial(timing.memory, wide, kind, size),
                       partial(timing.memory, wide, kind, together[level]) if level in together else None)
            for kind in KINDS[level]}
        if not quick:
            latency[level] = 1 / timing.best_rate(partial(timing.latency, wide, size, wide.line), one, effort)
    return Measured(wide.model, now(), quick, len(everyone), clock,
                    call, flops, bandwidth, latency, alone, tuple(dict.fromkeys([*notes, *more_notes])))


def working_sets(t: CpuTarget, threads: int, quick: bool = False) -> tuple[dict[str, int], list[str]]:
    """Bytes for each thread to go through so that a level, and not the one before it, has to deliver them."""
    sizes, notes = {"L1": t.l1d // 2}, []
    l2 = t.l2 // 2 // min(threads, t.l2_cpus)
    if l2 >= 2*t.l1d:
        sizes["L2"] = l2
    else:
        notes.append("L2 is too small beside L1 to be measured by itself")
    l3_share = t.l3 // 2 // max(min(threads, t.l3_cpus), 1)
    if l3_share >= 2*t.l2:
        sizes["L3"] = min(4*t.l2, l3_share)
    elif t.l3:
        notes.append(f"L3 is too small beside L2 to be measured by itself with {threads} threads")
    caches = (t.l3 or t.l2) * -(-threads // max(t.l3_cpus if t.l3 else t.l2_cpus, 1))
    wanted, most = max(4*caches, 64 << 20), (256 if quick else 1024) << 20
    total = min(wanted, most, (memory_bytes() or 4 << 30) // 8)
    if total < 2*caches:
        notes.append(f"memory was measured over {total >> 20} MiB, and caches of {caches >> 20} MiB may hold a part")
    sizes["memory"] = total // threads
    return sizes, notes


def widest() -> CpuTarget:
    """The widest that runs here, not TILEWRIGHT_TARGET: memory is fastest by the widest vectors."""
    return _runnable()[0]


def _runnable() -> list[CpuTarget]:
    return [t for t in map(target, names("cpu")) if t.runnable]


# ---- remembering

def file_of(*kind: object) -> Path:
    """The file of a kind of machine: a cache directory may be shared by several."""
    from tilewright.compiler import cache
    return cache.directory() / f"ceilings-{hashlib.sha256(repr(kind).encode()).hexdigest()[:16]}.json"


def recalled(path: Path, read: Callable[[Any], Any]) -> Any:
    """What `read` makes of the file's JSON; None without one, or where an older version wrote it, it is damaged or not
    this user's own: then it is measured again."""
    try:
        return _parsed(path, path.stat().st_mtime_ns, read)
    except OSError:
        return None


@lru_cache(maxsize=8)
def _parsed(path: Path, stamp: int, read: Callable[[Any], Any]) -> Any:
    from tilewright.compiler import owned
    try:
        return read(json.loads(owned.read(path)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remember(path: Path, measured: Any) -> None:
    from tilewright.compiler import cache
    cache.store(path, json.dumps(asdict(measured), indent=1).encode())


def _path() -> Path:
    t = widest()
    return file_of(t.name, t.model, t.l1d, t.l2, t.l3, cpus().count, os.uname().machine)


def remembered() -> Measured | None:
    """What was measured before on this kind of machine."""
    measured: Measured | None = recalled(_path(), _read)
    return measured


def _read(fields: dict[str, Any]) -> Measured:
    for table in ("flops", "bandwidth"):
        fields[table] = {row: {key: tuple(map(float, pair)) for key, pair in columns.items()}
                         for row, columns in fields[table].items()}
    return Measured(**fields | {"notes": tuple(fields["notes"]), "others": float(fields["others"])})


# ---- predicting: `tilewright plan` and `explain` say the same

DEFAULTS = "the model's defaults (3.5 GHz, one vector multiply-add a cycle)"


@dataclass(frozen=True)
class Basis:
    """What predictions for a target rest on: its ceilings, a CPU's or a GPU's (gpu_probes.GpuMeasured), or None where
    the model's defaults have to do."""
    ceilings: Any
    source: str

    def cost(self, shape: Any, plan: Any, target: Any) -> Cost:
        """The predicted cost by these ceilings."""
        if self.ceilings:
            return cast(Cost, self.ceilings.cost(shape, plan, target))
        return cast(Cost, shape.planner.cost(shape, plan, target))


def basis(target: CpuTarget, measured: bool = False) -> Basis:
    """The ceilings remembered for this machine; `measured`: measure them if there are none."""
    if not target.runnable:
        return Basis(None, f"{DEFAULTS}, as this machine cannot run {target.name}")
    known = ceilings(target) if measured else remembered()
    if known is None or target.name not in known.flops:
        return Basis(None, f"{DEFAULTS}; `tilewright doctor` measures this machine's ceilings")
    if known.disturbed:
        return Basis(None, f"{DEFAULTS}, as other processes disturbed the measurement of this machine's ceilings; "
                           "`tilewright doctor` repeats it")
    return Basis(known, f"the ceilings of this machine, measured on {known.date[:10]} (`tilewright doctor`)")
