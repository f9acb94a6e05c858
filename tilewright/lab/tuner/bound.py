"""What any kernel takes at least: counts of a launch against the ceilings of a chip.

The counts come from the simulator (simulator/counts.py) and the assembler; the ceilings are the planners': targets/,
and the rates that were measured for our own products (nvidia_model, amd_model, model). What a compute unit does for a
CTA overlaps, so that the longest part counts and a tenth of the others; a CTA that is alone there also waits for its
loads, which other CTAs would fill.

If two rounds of a loop over tiles fit in a cache of a CPU, their data stay there. Traffic from the next level is the
data of the outermost such loop times its trips. A launch that fits as a whole reads nothing from beyond: calls are
repeated.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.plans import amd_model, nvidia_rates
from tilewright.plans.common import Cost, overlapped
from tilewright.plans.model import ROOM, Ceilings
from tilewright.targets import AmdTarget, CpuTarget

if TYPE_CHECKING:
    from tilewright.targets import Target

SECTOR = 32             # bytes
ARITHMETIC = ("fma", "float")
UNCOUNTED = ("passes", "sectors loaded", "sectors stored", "waits", "flops", "bytes", "bytes shared", "footprint")
CHAIN = 8               # multiply-adds that a CPU's core has under way: two units, four cycles
# Warps that keep a multiprocessor busy: of 2, 4, 6 and 8 this fits 90 measured launches of two steps of the ladder best
# (an H200, 2026-11-23): predicted over measured time 0.87, standard deviation 0.12.
FILLS = 6
MEETING, START = 88, 3e-6       # clocks of a barrier of one of NVIDIA's, seconds of a launch
PEAK = "operations at the chip's peak"
MEMORY = 0.85           # of the bandwidth on the data sheet, as nvidia_model takes it


@dataclass(frozen=True)
class Launch:
    """`counts` of a whole launch; what is said of one CTA; on a CPU one CTA of one warp."""
    counts: Mapping[str, float]
    ctas: int = 1
    warps: int = 1              # of a CTA
    resident: int = 1           # CTAs that a compute unit holds at once
    bytes: int = 0              # that memory gives and takes at the least
    double: bool = False        # f64 is what it multiplies
    chains: int = CHAIN         # CPUs: multiply-adds of the hot loop, which do not wait for each other
    spilled: float = 0.0        # CPUs: vectors to and from the stack for each multiply-add
    nest: Sequence[Any] = ()    # CPUs: counts.Round of the loops over tiles, the whole launch first
    peak: float = 0.0           # GPUs: operations per second of its kind of instructions, counts.peak


@dataclass(frozen=True)
class Unit:
    """A compute unit (multiprocessor): instructions of warps, passes and bytes per clock; clocks of latencies."""
    issue: float
    fma: float
    l1: float                   # bytes: loads of global memory and of shared memory share a way
    l2: float
    arrival: float              # of a load from L2 or memory, until its first use
    meeting: float              # of a barrier
    fills: int                  # warps that keep it busy
    start: float                # seconds of a launch


def bound(launch: Launch, target: Target, ceilings: Ceilings | None = None) -> Cost:
    """The least time, by cause; never less than the counted operations take at the chip's peak. `ceilings`: of a CPU,
    where they have been measured."""
    if isinstance(target, CpuTarget):
        return _on_cpu(launch, target, ceilings or Ceilings())
    cost = _on_gpu(launch, target, _unit(target, launch.double))
    least = launch.counts.get("flops", 0) / launch.peak if launch.peak else 0.0
    return cost if cost.seconds >= least else replace(cost, seconds=least, parts=(*cost.parts, (PEAK, least)))


def _unit(t: Any, double: bool) -> Unit:
    rate = (t.fma_f64 if double else t.fma_f32) / t.warp
    if isinstance(t, AmdTarget):            # a SIMD of 16 lanes takes four clocks for an instruction of a wave
        l2 = min(amd_model.L1_CLOCK, amd_model.L2_CLOCK * t.xcds / t.cus)
        return Unit(1.0, min(rate, 1.0), t.lds_clock, l2, 700, amd_model.MEETING, 8, amd_model.START)
    return Unit(nvidia_rates.SCHEDULERS, rate, nvidia_rates.SHARED_CLOCK, nvidia_rates.L2, nvidia_rates.ARRIVAL / 2,
                MEETING, FILLS, START)


def _on_gpu(launch: Launch, t: Any, unit: Unit) -> Cost:
    """CTAs go to compute units in rounds; in a round a unit is busy with those that share it, or waits with one."""
    n, ctas = launch.counts, launch.ctas
    issued = sum(count for kind, count in n.items() if kind not in UNCOUNTED)
    moved = n.get("sectors loaded", 0) + n.get("sectors stored", 0)
    clocks = {"instructions": issued / unit.issue,
              "multiply-adds": sum(n.get(kind, 0) for kind in ARITHMETIC) / unit.fma,
              "shared memory": n.get("passes", 0) + moved * SECTOR / unit.l1, "from L2": moved * SECTOR / unit.l2}
    busy = overlapped(0.0, clocks).seconds / ctas                       # clocks of a unit for one CTA
    waiting = (n.get("waits", 0) * unit.arrival + n.get("barrier", 0) * unit.meeting) / ctas / launch.warps
    alone = busy * max(unit.fills / launch.warps, 1.0) + waiting        # of a CTA that nothing fills in for
    units, resident = getattr(t, "sms", 0) or t.cus, max(launch.resident, 1)
    full, rest = divmod(ctas, units * resident)
    total = full * max(resident * busy, alone) + (max(ceil(rest / units) * busy, alone) if rest else 0.0)
    turns = full * resident + ceil(rest / units)                        # CTAs of the unit that has the most
    parts = {cause: ticks / ctas * turns / t.clock for cause, ticks in clocks.items()}
    parts |= {"memory": launch.bytes / (MEMORY * t.bandwidth), "waiting": (total - turns * busy) / t.clock}
    seconds = unit.start + max(total / t.clock, parts["memory"])
    return Cost(seconds, tuple(parts.items()), rounds=ctas / (units * resident))


def from_beyond(nest: Sequence[Any], cache: int, asked: float) -> float:
    """Bytes that a cache of this size has to get from the next level, of `asked` by loads and stores."""
    room = ROOM * cache
    if nest[0].one <= room:
        return 0.0
    for outer, inner in pairwise(nest):
        if inner.two <= room:
            return min(float(outer.rounds * outer.one), asked)
    return asked


def _on_cpu(launch: Launch, target: CpuTarget, ceilings: Ceilings) -> Cost:
    """One core: two loads and a store go with two multiply-adds of vectors; spills are more of both."""
    n, rate = launch.counts, ceilings.vectors
    sums = n.get("fma", 0) * max(CHAIN / max(launch.chains, 1), 1.0)        # which wait for the one before
    spilled = launch.spilled * n.get("fma", 0)
    parts = {"multiply-adds": (sums + n.get("float", 0)) / rate,
             "loads": (n.get("load", 0) + n.get("load local", 0) + spilled / 2) / rate,
             "stores": 2 * (n.get("store", 0) + n.get("store local", 0) + spilled / 2) / rate,
             "memory": launch.bytes / ceilings.memory}
    if launch.nest:
        asked = n.get("bytes", 0.0)
        beyond = [from_beyond(launch.nest, size, asked) for size in (target.l1d, target.l2, target.l3 or target.l2)]
        parts |= {"from L2": beyond[0] / ceilings.l2, "from L3": beyond[1] / ceilings.l3,
                  "memory": beyond[2] / ceilings.memory}
    return overlapped(0.0, parts)
