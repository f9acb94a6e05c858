"""The ceilings of this machine, measured by emitted probes and remembered: what "percent of peak" is a percentage of.

`ceilings()` answers from a file in tilewright's cache directory, one per kind of machine, and measures in about a
second when there is none. `doctor()` is the report behind `tilewright doctor`.
"""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tilewright.plans.model import Ceilings
from tilewright.targets import CpuTarget, detect, names, target
from tilewright.targets.machine import cpus

Pair = tuple[float, float]                          # of one thread, of all threads at once
DTYPES = {"f32": 4, "f64": 8}
KINDS = {"L1": ("read", "copy"), "L2": ("read", "copy"), "L3": ("read", "copy"), "memory": ("read", "copy", "stream")}


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

    def peak_flops(self, dtype: str, threads: int = 1, isa: str | None = None) -> float:
        """Operations per second of that many threads; the best of all instruction sets unless one is named."""
        found = [self._at(row[dtype], threads) for name, row in self.flops.items() if isa in (None, name)]
        if not found:
            raise ValueError(f"no ceiling was measured for {isa}; there are: {', '.join(self.flops)}")
        return max(found)

    def peak_bandwidth(self, level: str, threads: int = 1, kind: str = "read") -> float | None:
        """Bytes per second from a level; None where it could not be told from its neighbours."""
        pair = self.bandwidth.get(level, {}).get(kind)
        return None if pair is None else self._at(pair, threads)

    def _at(self, pair: Pair, threads: int) -> float:
        """Between one thread and all of them the figure grows evenly; beyond all it does not."""
        one, everyone = pair
        if threads <= 1 or self.threads == 1:
            return one
        return one + (everyone - one) * min((threads - 1) / (self.threads - 1), 1)

    def model_ceilings(self, at: CpuTarget, dtype: str) -> Ceilings:
        """The same, as the cost model wants it: of one core, multiply-add vectors and bytes per second."""
        default = Ceilings()
        l2, l3, memory = (self.peak_bandwidth(level) for level in ("L2", "L3", "memory"))
        return Ceilings(self.peak_flops(dtype, 1, at.name) / (2 * at.lanes(DTYPES[dtype])), l2 or default.l2,
                        l3 or l2 or default.l3, memory or default.memory)


def ceilings(at: CpuTarget | None = None, *, cached: bool = True, quick: bool = True,
             progress: Callable[[str], None] = lambda what: None) -> Measured:
    """What this machine can do, for every instruction set that it has. RuntimeError for a target it cannot run.

    cached=False measures anew, and remembers that. `progress` is told what is measured next.
    """
    at = at or detect()
    at.require_runnable()
    found = remembered() if cached else None
    if found is None or at.name not in found.flops:
        found = measure(quick=quick, progress=progress)
        _remember(_path(), found)
    return found


def doctor(quick: bool = False, measured: bool = True) -> dict[str, Any]:
    """Everything there is to know about this machine, as plain data; `runtime.doctor.text` makes lines of it."""
    from tilewright.runtime.doctor import report
    return report(quick, measured)


# ---- measuring

def measure(quick: bool = False, progress: Callable[[str], None] = lambda what: None) -> Measured:
    """Run every probe: about a second when quick, else about ten."""
    from tilewright.runtime import timing
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
    for t in filter(lambda t: t.runnable, map(target, names("cpu"))):
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
    return Measured(wide.model, datetime.now(timezone.utc).isoformat(timespec="seconds"), quick, len(everyone), clock,
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
    total = min(wanted, most, _physical_memory() // 8)
    if total < 2*caches:
        notes.append(f"memory was measured over {total >> 20} MiB, and caches of {caches >> 20} MiB may hold a part")
    sizes["memory"] = total // threads
    return sizes, notes


def widest() -> CpuTarget:
    """Whatever TILEWRIGHT_TARGET says: memory is fastest by the widest vectors."""
    return next(t for t in map(target, names("cpu")) if t.runnable)


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 4 << 30


# ---- remembering

def _path() -> Path:
    """The file of this kind of machine: a cache directory may be shared by several."""
    from tilewright.compiler import cache
    t = widest()
    kind = repr((t.name, t.model, t.l1d, t.l2, t.l3, cpus().count, os.uname().machine))
    return cache.directory() / f"ceilings-{hashlib.sha256(kind.encode()).hexdigest()[:16]}.json"


def remembered() -> Measured | None:
    """What was measured before on this kind of machine."""
    path = _path()
    try:
        return _parse(path, path.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=8)
def _parse(path: Path, stamp: int) -> Measured | None:
    """None for a file that an older version wrote, that is damaged or not this user's own: it is measured again."""
    from tilewright.compiler import owned
    try:
        fields = json.loads(owned.read(path))
        for table in ("flops", "bandwidth"):
            fields[table] = {row: {key: tuple(map(float, pair)) for key, pair in columns.items()}
                             for row, columns in fields[table].items()}
        return Measured(**fields | {"notes": tuple(fields["notes"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _remember(path: Path, measured: Measured) -> None:
    from tilewright.compiler import cache
    cache.store(path, json.dumps(asdict(measured), indent=1).encode())
