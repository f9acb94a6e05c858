"""`tilewright.explain` for GPUs: the plan, what it takes of a compute unit, bytes by level of memory, the bound.

What is predicted comes from the planners (plans/nvidia.py, plans/amd.py); tests hold the bytes against the simulator's.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.lab.explanation import dram
from tilewright.lab.explanation.record import (
    UNMEASURED,
    Level,
    Part,
    Section,
    Tile,
    Time,
    asked_for,
)
from tilewright.lab.explanation.terminal import duration
from tilewright.plans import common, gpu, gpu_shape, passes, small_rules, wgmma_residuals
from tilewright.plans.amd import AmdPlan
from tilewright.plans.common import Cost
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.measured import choice
from tilewright.plans.nvidia import LANES, NvidiaPlan
from tilewright.targets import AmdTarget, GpuTarget, amd
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.lab.measure.probes import Basis
    from tilewright.lab.tuner.space import Space
    from tilewright.problem import Gemm

NOTED = 0.01            # by which a factor differs from 1, so that it is named
SHOWN = 4               # plans that are shown beside the one that runs; kinds of reasons for those that cannot
# Where a plan comes from, if it is not the model's choice: plans.measured.choice.chosen
ORIGINS = {choice.MEASURED: "measured to be the fastest (tilewright tune show)",
           choice.NEARBY: "measured to be the fastest for a shape nearby (tilewright tune show)",
           choice.PACKED: choice.PACKED}
MODEL = "the model, with rates of "
DRAM = "predicted between DRAM and an empty L2; counters of an H200 have 0.8 to 1.2 of such predictions"
REST = "launch, and work that does not overlap with the bound above"


def title(there: Space) -> str:
    p, t = there.problem, there.chip
    units = f"{t.cus} compute units" if isinstance(t, AmdTarget) else f"{t.sms} multiprocessors"
    batch = f", {p.batch} products in one launch"*(p.batch != 1)
    return f"{p} on {t.name} ({t.model}, {units}){batch}"


def origin(there: Space) -> str:
    return ORIGINS.get(there.origin, "the model's choice")


def opening(there: Space, plan: Any, origin: str) -> tuple[Section, ...]:
    t = there.chip
    older = (t.older_code,) if isinstance(t, GpuTarget) and t.chip else ()
    return Section("plan", (str(plan), origin, *older, *_converted(there.problem, there.shape, plan))),


def sections(there: Space, plan: Any, cost: Cost) -> tuple[Section, ...]:
    words: Any = _nvidia_words if isinstance(there.chip, GpuTarget) else _amd_words
    return Section("resources", tuple(words(plan.after_passes(there.shape), plan, there.chip))),


def invariant(there: Space, option: str, basis: Basis) -> tuple[Any, float]:
    """The plan of a product with the same bits, and its seconds. Such products have passes for their prologues."""
    bare, seconds, t = there.shape, 0.0, there.chip
    for role in there.shape.prologues:
        bare, seconds = passes.prepared(bare, role), seconds + gpu.planner(t).pass_seconds(there.shape, role, t)
    other = gpu.choose(bare.with_numerics(invariant=option), t)
    return other, seconds + basis.cost(bare, other, t).seconds


def various(chosen: Any, others: list[Any]) -> list[Any]:
    """Plans to show beside the chosen one: the best of other tiles, and of every other algorithm the best."""
    tiles: dict[tuple[int, int], Any] = {}
    kinds: dict[str, Any] = {}
    for other in others:
        if (other.cta_m, other.cta_n) != (chosen.cta_m, chosen.cta_n):
            tiles.setdefault((other.cta_m, other.cta_n), other)
        if other.algorithm != chosen.algorithm:
            kinds.setdefault(other.algorithm, other)
    return list(dict.fromkeys([*list(tiles.values())[:SHOWN], *kinds.values()]))


def refused(there: Space) -> dict[str, int]:
    shape, t = there.shape, there.chip
    every = common.refusals(shape, t, gpu.planner(t).candidates(shape, t))
    return dict(list(every.items())[:SHOWN])


def _converted(p: Gemm, s: GpuShape, plan: Any) -> Iterator[str]:
    """What tilewright.matmul converts, since no kernel takes it."""
    taken = dict(zip("ab", p.multiplied))
    for role in p.prologues:
        of = getattr(p, role)
        yield f"prologue of {role.upper()}: " + (
            f"the kernel reads {of} and multiplies {taken[role]}" if role in s.prologues else
            f"a pass before the product reads {of} and writes {taken[role]}; its time is not counted here")
    for name, of, kept in (("A", taken["a"], s.a), ("B", taken["b"], s.b)):
        if of != kept and not p.blocks:
            yield f"{name} is converted from {of} to {kept} before"
    if p.out != s.out:
        yield f"the result is converted from {s.out} to {p.out} after"
    yield from map(str, plan.passes(s))


def levels(there: Space, plan: Any, cost: Cost, basis: Basis) -> tuple[Level, ...]:
    """Bytes by level, on NVIDIA's GPUs with what crosses DRAM's interface, as far as L2 does not keep it."""
    target = there.chip
    by_level = asked_for(cost, gpu.planner(target).bandwidths(plan, target))
    if not isinstance(target, GpuTarget):
        return by_level
    crossing = dram.bytes_of(plan.after_passes(there.shape), plan, target, cost.traffic["memory"])
    return tuple(level if level.name != "memory" else
                 replace(level, moved=crossing, notes={**level.notes, "moved": DRAM}) for level in by_level)


def time(there: Space, plan: Any, cost: Cost, basis: Basis) -> Time:
    """Parts go on at the same time, but for passes and for what is left of the sum."""
    alone, target = {"passes", cost.bound}, there.chip
    peak = gpu.planner(target).peak(there.shape, plan, target)
    rest = cost.seconds - sum(seconds for what, seconds in cost.parts if what in alone)
    parts = [Part(what, seconds, what not in alone) for what, seconds in cost.parts]
    parts.sort(key=lambda part: (part.what != cost.bound, part.hidden, -part.seconds))
    source = basis.source if basis.ceilings else f"{MODEL}{target.model}{UNMEASURED}"
    return Time(cost.seconds, (*parts, Part(REST, max(rest, 0.0))), source, cost.bound, peak,
                "the instructions of this plan at the highest clock",
                notes=(*_sustained(cost, peak, there.shape, target), *_learned(cost)))


def _learned(cost: Cost) -> Iterator[str]:
    """What times of measured plans have changed in a prediction."""
    if cost.values:
        about = ", ".join(f"{word} {factor:.2f}" for word, factor in wgmma_residuals.words(cost.values)
                          if abs(factor - 1) >= NOTED)
        yield (f"with a factor of {wgmma_residuals.factor(cost.values):.2f}, by which measured plans like it differed "
               f"from the model{': '*bool(about)}{about}")


def _sustained(cost: Cost, peak: float, shape: GpuShape, target: Any) -> Iterator[str]:
    """Lines for a prediction above the rates that were published for large products, at sustained clocks."""
    if not isinstance(target, AmdTarget) or (known := amd.reached(target, shape.a)) is None:
        return
    flops, own = 2 * shape.batch * shape.m * shape.n * shape.k, amd.CHIPS[known.chip].model == target.model
    rate = known.rate if own else known.share * peak
    if flops / cost.seconds <= rate:
        return
    clock = f" at {known.clock / 1e6:,.0f} MHz" if known.clock else ""
    yield (f"chips lower their clocks under such products: {amd.CHIPS[known.chip].model} reached "
           f"{known.rate / 1e12:,.0f} TFLOP/s of {known.format}{clock}, {known.share:.0%} of its ceiling "
           f"({known.source})")
    yield (f"{duration(flops / rate)} {'at that rate' if own else 'with that share of the ceiling here'}: "
           f"{rate / 1e12:,.0f} TFLOP/s")


# ---- tiles, and what a plan takes of a compute unit

def tiles(there: Space, p: Any) -> tuple[Tile, ...]:
    s, t = p.after_passes(there.shape), there.chip
    bits_a, bits_b = s.bits
    matrix = Tile("C", {"m": s.m, "n": s.n, "k": s.k}, s.batch, "memory",
                 s.batch * ((s.m*bits_a + s.n*bits_b) * s.k + s.m*s.n*gpu_shape.bits_of(s.out)) // 8)
    return matrix, *(_amd_tiles if isinstance(p, AmdPlan) else _nvidia_tiles)(s, p, t)


def _amd_tiles(s: GpuShape, p: AmdPlan, t: AmdTarget) -> Iterator[Tile]:
    yield Tile("workgroup", {"m": p.cta_m, "n": p.cta_n, "k": p.cta_k}, p.tiles(s.m, s.n), "LDS", p.lds(s), t.lds)
    yield Tile("wave", {"m": p.warp_m, "n": p.warp_n, "k": p.cta_k}, p.threads // t.warp, "registers",
               4 * t.warp * p.estimate(s), 4 * t.warp * t.vgprs_wave)
    yield Tile("instruction", {"m": p.mfma, "n": p.mfma}, (p.warp_m // p.mfma) * (p.warp_n // p.mfma))


def _nvidia_tiles(s: GpuShape, p: NvidiaPlan, t: GpuTarget) -> Iterator[Tile]:
    rows, columns, shared, count = p.cta_m, p.cta_n, p.shared(s), p.tiles(s.m, s.n)
    registers = 4*p.estimate(s), 4*t.registers_thread
    if p.algorithm == "small":
        of, warps = small_rules.lanes(p, s), small_rules.warps(p)
        extents = {"m": s.m, "n": s.n, "k": s.k}
        yield Tile("CTA", extents, warps // p.team * p.matrices, "shared memory", shared, t.smem_cta)
        yield Tile("warp" if p.team == 1 else "warps", extents, of.TOGETHER, "registers", of.COUNT*registers[0],
                   of.COUNT*registers[1])
        yield Tile("thread", {"m": p.thread_m, "n": p.thread_n, "k": 1}, of.EACH, "registers", *registers)
        return
    depth = s.k if p.algorithm == "gemv" else p.cta_k
    if p.ctas > p.cluster_k:
        cluster = {"m": rows*p.cluster_m, "n": columns*p.cluster_n, "k": p.cta_k}
        yield Tile("cluster", cluster, -(-count // p.ctas), "shared memory of its CTAs")
        count = p.cluster_m * p.cluster_n
    yield Tile("CTA", {"m": rows, "n": columns, "k": depth}, count, "shared memory", shared, t.smem_cta)
    if p.algorithm == "gemv":
        yield Tile("warp", {"m": rows, "n": columns, "k": -(-s.k // (p.cta_k*p.split_k))}, p.cta_k, "registers",
                   LANES*registers[0], LANES*registers[1])
    elif p.algorithm == "wgmma":
        alone = 1 if p.pingpong else p.warpgroups
        own = (rows, columns // alone) if p.swap else (rows // alone, columns)
        yield Tile("warpgroup", {"m": own[0], "n": own[1], "k": p.cta_k}, p.warpgroups, "registers",
                   4*LANES*registers[0], 4*LANES*registers[1])
    else:
        yield Tile("warp", {"m": p.warp_m, "n": p.warp_n, "k": p.cta_k // p.slices}, p.threads // LANES, "registers",
                   LANES*registers[0], LANES*registers[1])
        if p.algorithm == "simt":
            yield Tile("thread", {"m": p.thread_m, "n": p.thread_n, "k": 1}, LANES, "registers", *registers)


def _amd_words(s: GpuShape, p: AmdPlan, t: AmdTarget) -> Iterator[str]:
    waves, lds = p.threads // t.warp, p.lds(s)
    resident = max(t.occupancy(p.threads, p.estimate(s), lds), 1)
    yield (f"workgroup {p.cta_m}x{p.cta_n}, {p.cta_k} deep: {waves} waves of {p.warp_m}x{p.warp_n}, each "
           f"{p.warp_m // p.mfma} x {p.warp_n // p.mfma} instructions of {p.mfma}x{p.mfma}")
    yield (f"about {p.estimate(s)} registers of each lane, of {t.vgprs // max(waves // t.simds, 1)} where one "
           "workgroup runs")
    yield f"{p.stages} stages in LDS: {lds:,} bytes of {t.lds:,}, {lds / t.lds:.0%}"
    tiles_of_c = p.tiles(s.m, s.n, s.batch)
    yield (f"{tiles_of_c:,} tiles of C" + (f" in {p.split_k} parts each" if p.split_k > 1 else "")
           + f", {resident} at a time on each of {t.cus} compute units; "
           f"{s.batch*s.m*s.n / (tiles_of_c*p.cta_m*p.cta_n):.1%} of their elements are C's")


def _nvidia_words(s: GpuShape, p: NvidiaPlan, t: GpuTarget) -> Iterator[str]:
    warps, shared, tiles_of_c = p.threads // LANES, p.shared(s), p.tiles(s.m, s.n, s.batch)
    rows, columns = p.cta_m, p.cta_n
    if p.algorithm == "small":
        of = small_rules.lanes(p, s)
        at_once = f"{plural(of.TOGETHER, 'product')} at once" + f", in {of.PARTS} parts"*(of.PARTS > 1)
        yield (f"CTA of {plural(warps, 'warp')}, {'each' if p.team == 1 else 'together'} with "
               f"{plural(p.matrices, 'product')}, {at_once}: {p.thread_m}x{p.thread_n} elements of C a thread")
        yield f"about {p.estimate(s)} registers of each thread, of {t.registers_thread}"
        yield f"{shared:,} bytes of shared memory, of {t.smem_cta:,}, {shared / t.smem_cta:.0%}"
        yield (f"{p.grid(s, t)[0]:,} CTAs for {s.batch:,} products, {max(p.resident(s, t), 1)} at a time on each of "
               f"{t.sms} multiprocessors")
        return
    if p.algorithm == "gemv":
        yield f"CTA of {rows}x{columns} elements of C, {plural(warps, 'warp')}, loads of {p.vector} elements"
    elif p.algorithm == "wgmma":
        cluster = f", clusters of {p.cluster_m}x{p.cluster_n}"*(p.ctas > p.cluster_k)
        cluster += f", clusters of {p.cluster_k} that share tiles by k"*(p.cluster_k > 1)
        alone, turns = (1, ", in turns") if p.pingpong else (p.warpgroups, "")
        own = f"{rows}x{columns // alone}, columns as rows of instructions" if p.swap else f"{rows // alone}x{columns}"
        yield (f"CTA {rows}x{columns}, {p.cta_k} deep: {plural(p.warpgroups, 'warpgroup')} of {own}{turns}, "
               f"and one that starts copies{cluster}; {p.grid(s, t)[0]} CTAs take the tiles one after the other")
    else:
        each = f", {p.thread_m}x{p.thread_n} elements of C a thread"*(p.algorithm == "simt")
        slices = f" in {p.slices} slices of k"*(p.slices > 1)
        yield f"CTA {rows}x{columns}, {p.cta_k} deep: {plural(warps, 'warp')} of {p.warp_m}x{p.warp_n}{slices}{each}"
    yield f"about {p.estimate(s)} registers of each thread, of {t.registers_thread}"
    yield f"{p.stages} stages in shared memory: {shared:,} bytes of {t.smem_cta:,}, {shared / t.smem_cta:.0%}"
    divided = f" in {p.split_k} parts each"*(p.split_k > 1)
    if p.tail or (p.algorithm == "wgmma" and p.divided):
        undivided, parts = p.tail_split(s, t)
        most = "up to "*(p.algorithm == "wgmma" and p.tail)
        divided = f", the last {tiles_of_c - undivided} of them in {most}{parts} parts"*(parts > 1)
    yield (f"{tiles_of_c:,} tiles of C{divided}, {max(p.resident(s, t), 1)} at a time on each of {t.sms} "
           f"multiprocessors; {s.batch*s.m*s.n / (tiles_of_c*rows*columns):.1%} of their elements are C's")
