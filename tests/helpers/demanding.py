"""The plans among a planner's candidates that are most likely to need more registers than there are."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.plans.gpu_shape import shape_of
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.problem import Gemm
from tilewright.targets.nvidia import GpuTarget

MOST = 255      # registers of a thread


def demanding(plans: Iterable[NvidiaPlan], problem: Gemm, target: GpuTarget, most: int = 8) -> list[NvidiaPlan]:
    """The `most` that are estimated to need most registers: of each tile, way of copying and number of parts of k the
    first of several that need as many (a tail comes first, and takes more), and none whose estimate is below half of
    what a thread may have."""
    shape = shape_of(problem)
    found: dict[tuple[object, ...], NvidiaPlan] = {}
    for p in plans:
        if p.violations(shape, target) or 2 * p.estimate(shape) < MOST:
            continue
        key = p.algorithm, p.cta_m, p.cta_n, p.warp_m, p.warp_n, p.copy, p.slices, p.split_k
        if key not in found or p.estimate(shape) > found[key].estimate(shape):
            found[key] = p
    return sorted(found.values(), key=lambda p: -p.estimate(shape))[:most]
