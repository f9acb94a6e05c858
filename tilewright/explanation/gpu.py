"""`tilewright.explain` for GPUs: the plan, what it takes of a compute unit, bytes by level of memory, the bound.

Everything is predicted by the planners (plans/nvidia.py, plans/amd.py); tests hold the bytes against the simulator's.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilewright.explanation.explained import ORIGINS, REJECTED, Explained, duration
from tilewright.plans import gpu
from tilewright.plans.amd import AmdPlan
from tilewright.plans.common import Cost, Plan, total
from tilewright.plans.gpu import GpuShape
from tilewright.plans.measured import store
from tilewright.plans.nvidia import LANES, NvidiaPlan
from tilewright.targets import AmdTarget, GpuTarget
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.problem import Gemm


class GpuExplanation(Explained):
    """What `explain` found for a GPU."""

    def title(self) -> str:
        t = self.target
        units = f"{t.cus} compute units" if isinstance(t, AmdTarget) else f"{t.sms} multiprocessors"
        each = f", {self.problem.batch} products in one launch"*(self.problem.batch != 1)
        return f"{self.problem} on {t.name} ({t.model}, {units}){each}"

    def of_plan(self) -> Iterator[tuple[str, Iterator[str]]]:
        yield "plan", iter((str(self.plan), self.origin, *self._converted()))

    def of_cost(self, cost: Cost) -> Iterator[tuple[str, Iterator[str]]]:
        yield "tiles", self._tiles()
        yield "instead", self._rejected()
        yield "bytes", self._bytes(cost)
        yield "time", self._time(cost)

    def _converted(self) -> Iterator[str]:
        """What tilewright.matmul converts, since no kernel takes it."""
        p, s = self.problem, self.shape
        for name, of, kept in (("A", p.a, s.a), ("B", p.b, s.b)):
            if of != kept and not p.blocks:
                yield f"{name} is converted from {of} to {kept} before"
        if p.out != s.out:
            yield f"the result is converted from {s.out} to {p.out} after"
        yield from map(str, self.plan.passes(s))

    def _tiles(self) -> Iterator[str]:
        if isinstance(self.target, AmdTarget):
            return _amd_tiles(self.shape, self.plan, self.target)
        return _nvidia_tiles(self.plan.after_passes(self.shape), self.plan, self.target)

    def _rejected(self) -> Iterator[str]:
        yield from self.alternatives()
        yield (f"predicted time relative to the plan's, and what bounds it: the best of other tiles among "
               f"{plural(self.considered, 'alternative')}")

    def _bytes(self, cost: Cost) -> Iterator[str]:
        for level, terms in cost.traffic.items():
            for number, (what, size, times, why) in enumerate(terms):
                yield f"{'' if number else level:<7}{what:<12}  {size:>13,} x {times:<8,} {why}"
            yield f"{'':<7}{'=':<12}  {total(terms):>13,} bytes"

    def _time(self, cost: Cost) -> Iterator[str]:
        s, t = self.shape, self.target
        flops, peak = 2 * s.batch * s.m * s.n * s.k, gpu.planner(t).peak(s, self.plan, t)
        yield f"{'ceiling':<10} {duration(flops / peak):>9}  {flops:,} operations at {peak / 1e12:.1f} TFLOP/s"
        yield (f"{'predicted':<10} {duration(cost.seconds):>9}  {flops / cost.seconds / 1e12:.1f} TFLOP/s, "
               f"{flops / cost.seconds / peak:.1%} of the ceiling; nothing here has been measured")
        for what, seconds in cost.parts:
            yield f"{'':<10} {duration(seconds):>9}  {what}{': this bounds it' * (what == cost.bound)}"
        rest = cost.seconds - max(seconds for _, seconds in cost.parts)
        yield f"{'':<10} {duration(rest):>9}  launch, and work that does not overlap with the bound above"


# ---- what a plan takes of a compute unit

def _amd_tiles(s: GpuShape, p: AmdPlan, t: AmdTarget) -> Iterator[str]:
    waves, lds = p.threads // t.warp, p.lds(s)
    resident = max(t.occupancy(p.threads, p.estimate(s), lds), 1)
    yield (f"workgroup {p.cta_m}x{p.cta_n}, {p.cta_k} deep: {waves} waves of {p.warp_m}x{p.warp_n}, each "
           f"{p.warp_m // p.mfma} x {p.warp_n // p.mfma} instructions of {p.mfma}x{p.mfma}")
    yield (f"about {p.estimate(s)} registers of each lane, of {t.vgprs // max(waves // t.simds, 1)} where one "
           "workgroup runs")
    yield f"{p.stages} stages in LDS: {lds:,} bytes of {t.lds:,}, {lds / t.lds:.0%}"
    whole = p.tiles(s.m, s.n, s.batch)
    yield (f"{whole:,} tiles of C" + (f" in {p.split_k} parts each" if p.split_k > 1 else "")
           + f", {resident} at a time on each of {t.cus} compute units; "
           f"{s.batch*s.m*s.n / (whole*p.cta_m*p.cta_n):.1%} of their elements are C's")


def _nvidia_tiles(s: GpuShape, p: NvidiaPlan, t: GpuTarget) -> Iterator[str]:
    warps, shared, whole = p.threads // LANES, p.shared(s), p.tiles(s.m, s.n, s.batch)
    rows, columns = p.extent
    if p.algorithm == "gemv":
        yield f"CTA of {rows}x{columns} elements of C, {warps} warps, loads of {p.vector} elements"
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
        yield f"CTA {rows}x{columns}, {p.cta_k} deep: {warps} warps of {p.warp_m}x{p.warp_n}{slices}{each}"
    yield f"about {p.estimate(s)} registers of each thread, of {t.registers_thread}"
    yield f"{p.stages} stages in shared memory: {shared:,} bytes of {t.smem_cta:,}, {shared / t.smem_cta:.0%}"
    divided = f" in {p.split_k} parts each"*(p.split_k > 1)
    if p.tail or (p.algorithm == "wgmma" and p.divided):
        undivided, parts = p.tail_split(s, t)
        most = "up to "*(p.algorithm == "wgmma" and p.tail)
        divided = f", the last {whole - undivided} of them in {most}{parts} parts"*(parts > 1)
    yield (f"{whole:,} tiles of C{divided}, {max(p.resident(s, t), 1)} at a time on each of {t.sms} "
           f"multiprocessors; {s.batch*s.m*s.n / (whole*rows*columns):.1%} of their elements are C's")


def explain(problem: Gemm, target: GpuTarget | AmdTarget, plan: Plan | None = None,
            algorithm: str | None = None) -> GpuExplanation:
    """As tilewright.explain says, for a GPU."""
    shape = gpu.multiplied_shape(problem, target, algorithm)
    if not (shape.m and shape.n and shape.k):
        return GpuExplanation(problem, target, shape, plan or gpu.choose(shape, target), "the product is empty: "
                              "nothing is multiplied")
    chosen: Any
    chosen, found_by = (plan, "") if plan else store.chosen(shape, target)
    origin = "given" if plan else ORIGINS.get(found_by, "the model's choice")
    if found := tuple(chosen.violations(shape, target)):
        return GpuExplanation(problem, target, shape, chosen, origin, found)
    ranked = gpu.ranked(shape, target)
    ours = gpu.cost(shape, chosen, target)
    others = [other for other in ranked if other != chosen]
    kinds: dict[tuple[int, int], Any] = {}                          # the best of each tile, the best of all first
    for other in others:
        if (other.cta_m, other.cta_n) != (chosen.cta_m, chosen.cta_n):
            kinds.setdefault((other.cta_m, other.cta_n), other)
    shown = [(other, gpu.cost(shape, other, target)) for other in list(kinds.values())[:REJECTED]]
    rejected = tuple((other, theirs.seconds / ours.seconds - 1, theirs.bound) for other, theirs in shown)
    return GpuExplanation(problem, target, shape, chosen, origin, (), ours, len(others), rejected)
