"""What one machine can do at most, as data: rates of multiply-adds and of each level of memory, and how far to trust
them. Measured and remembered by measure/probes.py.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.measure.disturbance import BUSY
from tilewright.plans.model import Ceilings
from tilewright.targets import CpuTarget

Pair = tuple[float, float]                          # of one thread, of all threads at once
DTYPES = {"f32": 4, "f64": 8}
EXCEEDED = 1.05         # times a ceiling: a rate above that says that the ceiling is wrong, not that the rate is good
OUT_OF_DATE = "that ceiling is out of date, so no share of it is given; `tilewright doctor` measures it again"
HALF = 1.7, 2.3         # f32's rate over f64's, whose vectors have half as many lanes
SCALING = 0.9, 1.15     # all threads together reach more than this share of one, and less than this times all of one


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
        found = [self._at(row[dtype], threads) for name, row in self.flops.items() if isa in (None, name)]
        if not found:
            raise ValueError(f"no ceiling was measured for {isa}; there are: {', '.join(self.flops)}")
        return max(found)

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

    def model_ceilings(self, at: CpuTarget, dtype: str) -> Ceilings:
        """The same, as the cost model wants it: of one core, multiply-add vectors and bytes per second. Vectors of
        other formats, and of words, are taken to be multiplied as fast as those of f32."""
        default, dtype = Ceilings(), dtype if dtype in DTYPES else "f32"
        l2, l3, memory = (self.peak_bandwidth(level) for level in ("L2", "L3", "memory"))
        return Ceilings(self.peak_flops(dtype, 1, at.name) / (2 * at.lanes(DTYPES[dtype])), l2 or default.l2,
                        l3 or l2 or default.l3, memory or default.memory)

    # ---- how far to trust them

    @property
    def disturbed(self) -> bool:
        """Whether these are not the machine's ceilings: others had its CPUs, or the figures contradict each other."""
        return self.others > BUSY or bool(self.doubts())

    def doubts(self) -> list[str]:
        """What cannot be true of a machine that does nothing else."""
        found = []
        for isa, row in self.flops.items():
            for place, threads in enumerate(("1 thread", f"{self.threads} threads")):
                ratio = row["f32"][place] / row["f64"][place]
                if not HALF[0] < ratio < HALF[1]:
                    found.append(f"{isa}, {threads}: f32 is {ratio:.2f} times as fast as f64, which should be 2")
            for dtype, (one, everyone) in row.items():
                if not SCALING[0] < everyone / one < SCALING[1] * self.threads:
                    found.append(f"{isa} {dtype}: {self.threads} threads are {everyone / one:.2f} times as fast as one")
        return found

    def renewed(self, new: Measured) -> Measured:
        """What to remember after another measurement of the same machine: the larger of the figures, and nothing that
        was disturbed beside what was not."""
        if self.disturbed != new.disturbed:
            return self if new.disturbed else new
        return replace(
            new, quick=self.quick and new.quick, clock=max(self.clock, new.clock), call=min(self.call, new.call),
            flops=_larger(self.flops, new.flops), bandwidth=_larger(self.bandwidth, new.bandwidth),
            latency=_merged(self.latency, new.latency, min), sizes={**self.sizes, **new.sizes},
            others=min(self.others, new.others))


def _merged(old: dict[str, float], new: dict[str, float], better: Callable[..., float]) -> dict[str, float]:
    return {name: better(d[name] for d in (old, new) if name in d) for name in {**old, **new}}


def _larger(old: dict[str, dict[str, Pair]], new: dict[str, dict[str, Pair]]) -> dict[str, dict[str, Pair]]:
    found: dict[str, dict[str, Pair]] = {}
    for name in {**old, **new}:
        rows = [table[name] for table in (old, new) if name in table]
        found[name] = {key: tuple(map(max, zip(*(row[key] for row in rows if key in row))))
                       for key in {k: None for row in rows for k in row}}
    return found
