"""Bytes between DRAM and the L2 of one of NVIDIA's GPUs, of a launch that finds L2 empty.

CTAs that run at once read the same rows of A and columns of B at about the same time: of a round of them each byte
comes once. Where A and B together fit into L2 they stay there from round to round; where they do not, a round finds
nothing that the one before has read. What is written stays in L2 until there is no room, and what is there in the end
is not counted.
"""
from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.plans.common import total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.plans.common import Term
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia_plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

KEPT = 0.8              # of L2, for what was written last


def bytes_of(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget, memory: Sequence[Term]) -> int:
    """Bytes of DRAM of a product whose bytes are these if each is moved once (`Cost.traffic["memory"]`)."""
    once = sum(term.bytes for term in memory if term.what in ("A", "B"))
    others = total(memory) - once
    written = sum(term.bytes // term.times if term.what == "parts" else term.bytes for term in memory
                  if term.what in ("C", "parts"))
    return max(_operands(shape, plan, target, once), once) + others - min(written, int(KEPT * target.l2))


def _operands(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget, once: int) -> int:
    """Bytes of A and B."""
    if once <= target.l2 or plan.algorithm in ("gemv", "small"):
        return once
    s, (rows, columns) = shape, (plan.cta_m, plan.cta_n)
    rows, columns = rows * plan.cluster_m, columns * plan.cluster_n
    at_once: Any = target.sms * max(plan.resident(shape, target), 1)
    together = max(at_once // (plan.cluster_m * plan.cluster_n), 1)
    tiles_m, tiles_n = ceil(s.m / rows), ceil(s.n / columns)
    wide = min(ceil(together / min(plan.group_m, tiles_m)), tiles_n)
    high = min(ceil(together / wide), tiles_m)
    each = (high*rows*s.bits[0] + wide*columns*s.bits[1]) * s.k // 8
    return int(each * s.batch * tiles_m * tiles_n * plan.split_k / together)
