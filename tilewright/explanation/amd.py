"""`tilewright.explain` for AMD's GPUs: the plan, what it takes of a compute unit, bytes at each level, what bounds it.

Everything is predicted, by plans/amd.py; the bytes are counted here, and tests hold them against the simulator's.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.explanation.cpu import REJECTED, Sections, _time, recorded
from tilewright.plans import amd
from tilewright.plans.amd import LANES, PIECE, AmdPlan
from tilewright.plans.amd_model import operations
from tilewright.plans.common import Cost
from tilewright.plans.gpu import GpuShape, bits_of
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.problem import Gemm
    from tilewright.targets import AmdTarget

Terms = list[tuple[str, int, int, str]]         # what, bytes, how often, why


@dataclass(frozen=True)
class AmdExplanation(Sections):
    """What `explain` found, as data; print it to read it."""
    problem: Gemm
    target: AmdTarget
    shape: GpuShape                             # the problem as the planner sees it
    plan: AmdPlan
    origin: str                                 # who chose the plan
    violations: tuple[str, ...] = ()            # why it cannot run; then nothing below is known
    cost: Cost | None = None
    considered: int = 0
    rejected: tuple[tuple[AmdPlan, float, str], ...] = ()       # plan, by how much it is slower, what bounds it

    def record(self) -> dict[str, Any]:
        return recorded(self, self.traffic if self.cost else {})

    def title(self) -> str:
        return f"{self.problem} on {self.target.name} ({self.target.model}, {self.target.cus} compute units)"

    def sections(self) -> Iterator[tuple[str, Iterator[str]]]:
        yield "plan", iter((str(self.plan), self.origin))
        if self.violations:
            yield "cannot run", iter(self.violations)
        elif self.cost:
            yield "tiles", self._tiles()
            yield "instead", self._rejected()
            yield "bytes", self._bytes()
            yield "time", self._time(self.cost)

    @property
    def traffic(self) -> dict[str, Terms]:
        """Bytes that all workgroups move, by level, without scales; at the edges of C as if all tiles were whole."""
        p, s = self.plan, self.shape
        tiles, steps, waves = p.tiles(s.m, s.n), ceil(s.k / p.cta_k), p.threads // LANES
        moved, every = tiles * steps, f"{tiles:,} tiles x {steps:,} steps along k"
        parts = f" for each of {p.split_k} parts"*(p.split_k > 1)
        a_ahead, b_ahead = ((moved + int(tiles * p.split_k * early), f"{every}, and {early:g} past the end{parts}")
                            for early in self._early())
        a_written, b_written = (a_ahead, b_ahead) if p.copy == "direct" else 2*((moved, every),)
        (row_a, row_b), (a, b) = p.rows(s), (p.cta_k * bits // 8 for bits in s.bits)
        found: dict[str, Terms] = {
            "LDS": [("A written", p.cta_m*row_a, *a_written), ("B written", p.cta_n*row_b, *b_written),
                    ("A read", p.warp_m*row_a, moved*waves, f"by {waves} waves"),
                    ("B read", p.warp_n*row_b, moved*waves, f"by {waves} waves")],
            "L2": [("A", p.cta_m*a, *a_ahead), ("B", p.cta_n*b, *b_ahead)],
            "memory": [("A", s.m*s.k*s.bits[0] // 8, 1, "once"), ("B", s.n*s.k*s.bits[1] // 8, 1, "once"),
                       ("C", s.m*s.n*bits_of(s.out) // 8, 1, "written")]}
        if p.split_k > 1:
            size = s.m*s.n*bits_of(s.sums) // 8
            found["memory"].append(("parts", size, 2*p.split_k, f"{p.split_k} written, and read by the last"))
        return found

    def _early(self) -> tuple[float, float]:
        """Tiles of A and of B, after the last one, that are loaded for nobody. Of the last tile ahead of three and more
        in LDS only half of the copies have been started then, A's first (kernels/amd/pipeline.py)."""
        p = self.plan
        if p.copy != "direct" or p.stages == 2:
            return p.stages - 1, p.stages - 1
        rows = zip((p.cta_m, p.cta_n), p.rows(self.shape), strict=True)
        a, b = (count*row // (p.threads*PIECE) for count, row in rows)              # copies of a thread
        half = (a + b + 1) // 2
        return p.stages - 2 + min(a, half) / a, p.stages - 2 + max(half - a, 0) / b

    # ---- sections

    def _tiles(self) -> Iterator[str]:
        p, s, t = self.plan, self.shape, self.target
        waves, lds = p.threads // LANES, p.lds(s)
        resident = max(t.occupancy(p.threads, p.estimate(s), lds), 1)
        yield (f"workgroup {p.cta_m}x{p.cta_n}, {p.cta_k} deep: {waves} waves of {p.warp_m}x{p.warp_n}, each "
               f"{p.warp_m // p.mfma} x {p.warp_n // p.mfma} instructions of {p.mfma}x{p.mfma}")
        yield (f"about {p.estimate(s)} registers of each lane, of {t.vgprs // max(waves // t.simds, 1)} where one "
               "workgroup runs")
        yield f"{p.stages} stages in LDS: {lds:,} bytes of {t.lds:,}, {lds / t.lds:.0%}"
        whole = p.tiles(s.m, s.n)
        yield (f"{whole:,} tiles of C" + (f" in {p.split_k} parts each" if p.split_k > 1 else "")
               + f", {resident} at a time on each of {t.cus} compute units; "
               f"{s.m*s.n / (whole*p.cta_m*p.cta_n):.1%} of their elements are C's")

    def _rejected(self) -> Iterator[str]:
        width = max((len(str(plan)) for plan, _, _ in self.rejected), default=0)
        for plan, more, bound in self.rejected:
            yield f"{plan!s:<{width}}  {more:+7.1%}  {bound}"
        yield (f"predicted time relative to the plan's, and what bounds it: the best of other tiles among "
               f"{plural(self.considered, 'alternative')}")

    def _bytes(self) -> Iterator[str]:
        for level, terms in self.traffic.items():
            for number, (what, size, times, why) in enumerate(terms):
                yield f"{'' if number else level:<7}{what:<9}  {size:>13,} x {times:<8,} {why}"
            yield f"{'':<7}{'=':<9}  {sum(size * times for _, size, times, _ in terms):>13,} bytes"

    def _time(self, cost: Cost) -> Iterator[str]:
        s, t = self.shape, self.target
        flops, peak = 2 * s.m * s.n * s.k, operations(s, self.plan, t) * t.cus * t.clock
        yield f"{'ceiling':<10} {_time(flops / peak):>9}  {flops:,} operations at {peak / 1e12:.1f} TFLOP/s"
        yield (f"{'predicted':<10} {_time(cost.seconds):>9}  {flops / cost.seconds / 1e12:.1f} TFLOP/s, "
               f"{flops / cost.seconds / peak:.1%} of the ceiling; nothing here has been measured")
        bound = cost.bound
        for what, seconds in cost.parts:
            yield f"{'':<10} {_time(seconds):>9}  {what}{': this bounds it' * (what == bound)}"
        rest = cost.seconds - max(seconds for _, seconds in cost.parts)
        yield f"{'':<10} {_time(rest):>9}  launch, and work that does not overlap with the bound above"


def explain(problem: Gemm, target: AmdTarget, plan: AmdPlan | str | None = None) -> AmdExplanation:
    """As tilewright.explain says, for one of AMD's GPUs."""
    shape = amd.shape_of(problem)
    if isinstance(plan, str):
        plan = AmdPlan.parse(plan)
    if not (shape.m and shape.n and shape.k):
        return AmdExplanation(problem, target, shape, plan or amd.choose(shape, target), "the product is empty: "
                              "nothing is multiplied")
    origin = "given" if plan else "the model's choice"
    if plan and (found := tuple(plan.violations(shape, target))):
        return AmdExplanation(problem, target, shape, plan, origin, found)
    ranked = amd.ranked(shape, target)
    plan = plan or ranked[0]
    ours = amd.cost(shape, plan, target)
    others = [other for other in ranked if other != plan]
    kinds: dict[tuple[int, int], AmdPlan] = {}                      # the best of each tile, the best of all first
    for other in others:
        if (other.cta_m, other.cta_n) != (plan.cta_m, plan.cta_n):
            kinds.setdefault((other.cta_m, other.cta_n), other)
    shown = [(other, amd.cost(shape, other, target)) for other in list(kinds.values())[:REJECTED]]
    rejected = tuple((other, theirs.seconds / ours.seconds - 1, theirs.bound) for other, theirs in shown)
    return AmdExplanation(problem, target, shape, plan, origin, (), ours, len(others), rejected)
