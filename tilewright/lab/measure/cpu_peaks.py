"""The theoretical peak of a CPU, by the formula of the article on CPUs (docs/cpu-ladder.md):

    peak = cores * clock * lanes of a vector * 2 operations * vector FMAs that a core starts in a cycle

The FMAs are known for the chips in FMAS, and counted on this machine: the rate of independent FMAs over the clock,
which dependent additions give, one a cycle.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.lab.measure import quiet, timing
from tilewright.targets import CpuTarget, cpu
from tilewright.targets.machine import cpus

SOURCE = "https://uops.info/table.html (VFMADD231PS)"
# by model: bytes of a vector → FMAs that a core starts in a cycle
FMAS: dict[str, dict[int, float]] = {
    "AMD Zen 3": {32: 2}, "AMD Zen 4": {32: 2, 64: 1}, "AMD Zen 5": {32: 2, 64: 2}, "Intel Ice Lake": {32: 2, 64: 2},
    "Intel Sapphire Rapids": {32: 2, 64: 2},
}
NAMES = {16: "NEON", 32: "AVX2", 64: "AVX-512"}
SIZES = {"f32": 4, "f64": 8}


@dataclass(frozen=True)
class CpuPeak:
    format: str
    vector_bytes: int
    fmas: float                     # that a core starts in a cycle
    cores: int
    clock: float | None             # Hz
    measured: float | None = None   # FLOP/s of a loop of nothing but FMAs, on one core
    measured_all: float | None = None

    @property
    def instructions(self) -> str:
        return NAMES[self.vector_bytes]

    @property
    def lanes(self) -> int:
        return self.vector_bytes // SIZES[self.format]

    @property
    def per_cycle(self) -> float:
        """Operations of a core in a cycle."""
        return self.lanes * 2 * self.fmas

    @property
    def one(self) -> float | None:
        """FLOP/s of one core."""
        return None if self.clock is None else self.clock * self.per_cycle

    @property
    def flops(self) -> float | None:
        """FLOP/s of all cores."""
        return None if self.one is None else self.cores * self.one

    @property
    def derivation(self) -> str:
        per_core = f"{self.lanes} lanes * 2 operations * {self.fmas:g} FMAs = {self.per_cycle:g} FLOP a cycle"
        if self.clock is None or self.flops is None:
            return per_core
        return f"{self.cores} cores * {self.clock / 1e9:.2f} GHz * ({per_core}) = {self.flops / 1e9:.1f} GFLOP/s"


def known(target: CpuTarget, cores: int, clock: float | None) -> list[CpuPeak]:
    """The peaks of a chip of FMAS. ValueError for any other."""
    if target.model not in FMAS:
        raise ValueError(f"how many FMAs {target.name} starts in a cycle is not known; the chips are "
                         f"{', '.join(name for name in cpu.CHIPS if cpu.CHIPS[name].model in FMAS)}, and native")
    return [CpuPeak(form, size, fmas, cores, clock) for form in SIZES for size, fmas in FMAS[target.model].items()]


def here(cores: int | None = None, clock: float | None = None, effort: timing.Effort = timing.QUICK) -> list[CpuPeak]:
    """The peaks of this machine, with what FMA loops reach; `cores` and `clock` in place of those that it has."""
    every = cpus()
    alone, together = quiet.fastest_cpus(1), quiet.fastest_cpus(every.count)
    runnable = [target for target in map(cpu.record, cpu.ISAS) if target.runnable]
    turning = timing.best_rate(lambda: timing.clock(runnable[-1]), alone, effort)
    peaks = []
    for form in SIZES:
        for target in reversed(runnable):
            def probe(target: CpuTarget = target, form: str = form) -> timing.Probe:
                return timing.fma(target, form)
            one = timing.best_rate(probe, alone, effort)
            every_one = timing.best_rate(probe, together, effort) if every.count > 1 else one
            peak = CpuPeak(form, target.vector_bytes, 1, cores or max(1, every.count // every.smt), clock or turning,
                           one, every_one)
            peaks.append(replace(peak, fmas=max(1, round(2 * one / turning / peak.per_cycle)) / 2))     # of a half
    return peaks
