"""Kernels for groups of unequal size on GPUs: those of a batch of as many products of the average size, whose
plan they have, with offsets (kernels/gpu/groups.py)."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from tilewright.compiled.base import Launch
from tilewright.expressions.numerics import Numerics
from tilewright.plans import gpu, passes
from tilewright.plans.gpu_shape import GpuShape, shape as contiguous
from tilewright.plans.invariant import MANY
from tilewright.plans.measured import choice
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.problem import Gemm
from tilewright.targets import GpuTarget

WARPS_ALONE = "simt", "dmma", "mma", "mfma", "xf32"     # algorithms for groups of k: a short first tile is filled up
                                                        # with zeros


class Grouped:
    """What a kernel for groups has beside one for `problem.batch` products. `along`: "m", groups of `rows` rows in all,
    or "k"."""
    pointers = ("offsets",)
    along = "m"
    rows = 0

    @property
    def options(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().options    # type: ignore[misc]
        return fields | {"shape": fields["shape"]._replace(batch=2), "GROUPED": self.along}

    def _launch(self: Any) -> Launch:
        """There are at most as many tiles as whole ones in all rows, and one more for each group."""
        p, s, groups = self.plan, self.shape, self.problem.batch
        if self.along == "k":
            grid = (p.tiles(s.m, s.n) * groups, 1, 1)
            return Launch(self, grid)
        if p.algorithm == "wgmma":
            high, wide = p.cta_m*p.cluster_m, p.cta_n*p.cluster_n
            clusters = min((self.rows // high + groups) * -(-s.n // wide), max(self.target.sms // p.ctas, 1))
            return Launch(self, (clusters * p.ctas, 1, 1))
        high, wide = p.cta_m, p.cta_n
        return Launch(self, ((self.rows // high + groups) * -(-s.n // wide), 1, 1))


def kernel(problem: Gemm, target: Any, plan: Any, along: str, rows: int) -> Any:
    """The kernel for groups by a plan."""
    compiled = _class(isinstance(target, GpuTarget))(problem, target, plan)
    compiled.along, compiled.rows = along, rows
    return compiled


@cache
def _class(of_nvidia: bool) -> Any:
    """With the maker's module, and not the other one's."""
    if of_nvidia:
        base: Any = import_module("tilewright.compiled.nvidia").NvidiaKernel
    else:
        base = import_module("tilewright.compiled.amd").AmdKernel
    return type("GroupedKernel", (Grouped, base), {})


def plan_for(shape: GpuShape, target: Any, along: str) -> Any:
    """The plan for groups: of those of a batch of products of the average size that kernels for groups have, the one
    that is expected to be fastest. ValueError if there is none."""
    if shape.prologues:
        shape = side_by_side(shape)
    if not shape.invariant:
        return _best(shape, target, along, (choice.chosen(shape, target)[0], *gpu.ranked(_tiled(shape), target)))
    free = shape.with_numerics(invariant="")
    if shape.invariant != "rows":               # no plan for groups depends on threads, and none was measured
        return _best(free, target, along, gpu.ranked(_tiled(free), target))
    k, layout = (MANY, free.layout) if along == "k" else (free.k, "n" + free.layout[1])     # of any number of steps
    many = contiguous(free.a, free.b, free.out, MANY, free.n, k, layout, None, 1,
                      numerics=Numerics(free.epilogue)).least
    order = _best(many, target, along, _whole(many, target)).order_of_sums
    return _best(free, target, along, (p for p in _whole(free, target) if p.order_of_sums == order))


def _whole(shape: GpuShape, target: Any) -> Iterable[Any]:
    """Plans that do not divide k, for any number of rows."""
    plans = gpu.planner(target).candidates(_tiled(shape).with_numerics(invariant="rows"), target)
    return (p for p in plans if p.order_of_sums)


def _tiled(shape: GpuShape) -> GpuShape:
    """With two rows and columns at the least: for one, planners may have nothing but gemv, which has no groups."""
    return shape._replace(m=max(shape.m, 2), n=max(shape.n, 2))


def side_by_side(shape: GpuShape) -> GpuShape:
    """For plans with a prologue, which know single products: one whose columns are those of all groups, with their
    bytes and tiles."""
    return shape._replace(batch=1, n=shape.n * shape.batch)


@lru_cache(maxsize=1024)
def decodes_inside(shape: GpuShape, target: Any) -> bool:
    """Whether a kernel for groups of rows with the prologue of B is expected to be faster than a pass that leaves what
    it makes, and a kernel that reads that."""
    left = passes.prepared(shape, "b")
    try:
        own, other = (plan_for(x, target, "m") for x in (shape, left))
    except ValueError:
        return False
    by = gpu.planner(target)
    inside, after = (by.cost(x, plan, target).seconds * ragged(plan, x.m) for x, plan in (
        (side_by_side(shape), own), (left, other)))
    return bool(inside < after + by.pass_seconds(shape, "b", target))


def _best(shape: GpuShape, target: Any, along: str, plans: Iterable[Any]) -> Any:
    cost = gpu.planner(target).cost
    legal = [p for p in dict.fromkeys(map(without_copies, plans)) if not violations(p, shape, target, along)]
    if not legal:
        raise ValueError(f"{target.name} has no plan for groups of {shape}")
    return min(legal, key=lambda p: cost(shape, p, target).seconds * (ragged(p, shape.m) if along == "m" else 1))


def ragged(plan: Any, rows: int) -> float:
    """How many times as many tiles groups have whose sizes vary around so many rows: half of the last one is empty, but
    there is one."""
    high = plan.cta_m * (plan.cluster_m if plan.algorithm == "wgmma" else 1)
    return max(rows / high + 0.5, 1) / -(-rows // high)


def without_copies(plan: Any) -> Any:
    """C is not stored by tensor maps: the last tile of a group would write over the next group's rows."""
    return replace(plan, store="lanes") if getattr(plan, "store", "") == "tma" else plan


def fits(plan: Any, along: str) -> bool:
    """Whether kernels for groups have all that this plan says."""
    if plan.split_k > 1 or plan.algorithm not in (*WARPS_ALONE, "wgmma"):
        return False
    if isinstance(plan, NvidiaPlan) and (plan.tail or plan.terms != "none"):
        return False
    if plan.algorithm == "wgmma":
        return along == "m" and plan.store == "lanes" and plan.cluster_k == 1
    return plan.algorithm in WARPS_ALONE


def violations(plan: Any, shape: GpuShape, target: Any, along: str) -> list[str]:
    """Why this plan cannot run groups of this shape: sentences, none if it can."""
    if not fits(plan, along) or (isinstance(plan, NvidiaPlan) and plan.passes(shape)):
        return ["Its plan must not share tiles of C, split or copy operands, or store by tensor maps, and along k "
                "multiply by simt, dmma or mma."]
    return plan.violations(shape, target)
