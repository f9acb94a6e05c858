"""Bytes between DRAM and the L2 of one of NVIDIA's GPUs, of a launch that finds L2 empty.

CTAs that run at once read the same rows of A and columns of B at about the same time: of a round of them each byte
comes once. Where A and B together fit into L2 they stay there from round to round; where they do not, a round finds
nothing that the one before has read. CTAs that share a multiprocessor get unequal shares of it and drift apart, so
that those of one group of rows (`group_m`) read columns of B long before those of the next group. What is written
leaves L2 with what is read: in the end L2 holds a part of it, which is not counted.

15 plans of products of 2039 to 8192 moved 0.82 to 1.15 times these bytes on an H200 (2026-12-01).
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

KEPT = 0.5              # of what was written last and would fit into L2, that has not been written back in the end


def bytes_of(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget, memory: Sequence[Term]) -> int:
    """Bytes of DRAM of a product whose bytes are these if each is moved once (`Cost.traffic["memory"]`)."""
    once = sum(term.bytes for term in memory if term.what in ("A", "B"))
    written = sum(term.bytes // (1 + (term.what == "parts")) for term in memory if term.what in ("C", "parts"))
    moved = max(_operands(shape, plan, target, once), once) + total(memory) - once
    return moved - min(written, int(KEPT * target.l2 * written / moved))


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
    groups = high / min(plan.group_m, high) if plan.resident(shape, target) > 1 else 1
    bytes_of_tile = (high*rows*s.bits[0] + groups*wide*columns*s.bits[1]) * s.k // 8
    return int(bytes_of_tile * s.batch * tiles_m * tiles_n * plan.split_k / together)
