"""How a GEMM runs on a GPU of NVIDIA's: the families of kernels, and the plans among which a model chooses."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tilewright.plans import gpu_shape, passes
from tilewright.plans.common import Cost, NoPlan, Term
from tilewright.plans.gpu import choose, ranked
from tilewright.plans.gpu_shape import GpuShape, Place
from tilewright.plans.nvidia.family import FAMILIES, LANES
from tilewright.plans.nvidia.gemv import Gemv
from tilewright.plans.nvidia.mma import Dmma, Mma
from tilewright.plans.nvidia.plan import NvidiaPlan, rounded
from tilewright.plans.nvidia.rates import SHARED_CLOCK
from tilewright.plans.nvidia.rules import multiplied
from tilewright.plans.nvidia.simt import Simt
from tilewright.plans.nvidia.small import Small
from tilewright.plans.nvidia.wgmma import Wgmma
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.problem import Gemm

__all__ = ["FAMILIES", "LANES", "NvidiaPlan", "bandwidths", "candidates", "choose", "cost", "inside", "multiplied",
           "pass_seconds", "peak", "ranked", "shape_of", "traffic"]

# In this order their candidates are looked at: of plans that take equally long the first is chosen.
FAMILIES.update((family.name, family) for family in (Small(), Wgmma(), Gemv(), Mma(), Dmma(), Simt()))
PASS, PASS_RATE = 2.5e-6, 0.75                  # seconds of a pass (passes.py); of the memory's rate, an estimate


def shape_of(problem: Gemm, at: Sequence[Place] | None = None) -> GpuShape:
    """As plans.gpu.shape_of; passes read block-scaled operands up to the last step of k, not whole blocks."""
    return gpu_shape.shape_of(problem, at)._replace(k=problem.k)


# ---- prologues

@lru_cache(maxsize=1024)
def inside(shape: GpuShape, target: GpuTarget) -> str:
    """Which of the shape's prologues its kernel evaluates: those for which it is expected to be faster than a pass
    before the product, which writes and reads again what is multiplied. "", "a", "b" or "ab"."""
    found = {}
    for roles in dict.fromkeys((shape.prologues, *shape.prologues, "")):
        left = shape
        for role in shape.prologues:
            left = left if role in roles else passes.prepared(left, role)
        try:
            seconds = cost(left.least, choose(left, target), target).seconds
        except NoPlan:
            continue
        found[roles] = seconds + sum(pass_seconds(shape, role, target) for role in shape.prologues if role not in roles)
    return min(found, key=found.__getitem__, default="")


def pass_seconds(shape: GpuShape, role: str, target: GpuTarget) -> float:
    """Seconds of a pass that leaves what a prologue makes (kernels/gpu/prepare.py)."""
    at = "ab".index(role)
    size = shape.batch * shape.k * (shape.m, shape.n)[at]
    return PASS + size*(shape.bits[at] + shape.tile_bits[at]) / 8 / (PASS_RATE*target.bandwidth)


# ---- choice

def candidates(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans worth a look, legal or not."""
    if shape.scaled:
        after = passes.after(shape, "none", "")
        yield from (replace(plan, decoded="bf16") for plan in candidates(after, target))
        return
    declared = {"terms": shape.terms} if shape.terms else {}
    shape = rounded(shape, shape.terms)
    for family in FAMILIES.values():
        yield from family.candidates(shape, target, **declared)


# ---- cost

def cost(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> Cost:
    """The predicted cost of a legal plan."""
    found = plan.family.cost(plan.after_passes(shape), plan, target)
    made = plan.passes(shape)
    if not made:
        return found
    seconds = sum(PASS + (each.read + each.size) / (PASS_RATE*target.bandwidth) for each in made)
    return replace(found, seconds=found.seconds + seconds, parts=(*found.parts, ("passes", seconds)))


def traffic(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Bytes that all CTAs move, by level; at the edges of C as if all tiles were whole. What threads of simt read from
    shared memory counts for each of them, though several read the same elements at once."""
    found = plan.family.traffic(plan.after_passes(shape), plan, target)
    for each in plan.passes(shape):
        name = each.operand.upper()
        found["memory"] += (Term(f"{name} read", each.read, 1, "by a pass"),
                            Term(f"{name} written", each.size, 1, "by a pass"))
        if not each.blocks:
            found["shared"] += (Term(f"{name} in a pass", each.side_bytes, 2, "written and read"),)
    return found


def peak(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> float:
    """Operations per second of all multiprocessors, with the instructions of this plan."""
    return plan.family.peak(plan.after_passes(shape), plan, target)


def bandwidths(plan: NvidiaPlan, target: GpuTarget) -> dict[str, float]:
    """Bytes per second that the levels of `traffic` give all multiprocessors at most, by the copies of this plan."""
    every = target.sms * target.clock
    return {"shared": SHARED_CLOCK * every, "L2": plan.family.l2_clock * every, "memory": target.bandwidth}
