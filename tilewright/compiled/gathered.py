"""Kernels for an operand that tables describe: those of a contiguous one, whose plan they have, with the tables
(kernels/nvidia/gathered.py), or by wgmma with a tensor map of the images whose windows it is (wgmma_windows.py)."""
from __future__ import annotations

from math import gcd
from typing import Any

from tilewright.compiled.nvidia import NvidiaKernel
from tilewright.plans import gpu
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.wgmma_rules import NARROWEST, SWIZZLED
from tilewright.problem import Gemm
from tilewright.targets.nvidia import GpuTarget

BY_WARPS = "simt", "dmma", "mma"        # algorithms whose copies are of vectors, each from a pointer of its own


class GatheredKernel(NvidiaKernel):
    """`role`: the operand that the tables describe, "a" or "b"; or that images do, and the bytes of their channels that
    lie in a row in shared memory: "a128"."""
    role = "a"

    @property
    def pointers(self) -> tuple[str, ...]:
        """Parameters that are addresses of tables."""
        return ("rows", "steps") if self.plan.algorithm in BY_WARPS else ()

    @property
    def options(self) -> dict[str, Any]:
        return super().options | {"GATHERED": self.role}


def kernel(problem: Gemm, target: GpuTarget, shape: GpuShape, role: str, channels: int = 0) -> GatheredKernel:
    """The kernel by the plan that is expected to be fastest for operands of this shape. `channels`: of images whose
    windows the operand is; 0: it is none."""
    tiled = shape._replace(m=max(shape.m, 2), n=max(shape.n, 2))        # of one row planners have gemv alone

    def row(p: NvidiaPlan) -> int:
        """Bytes of channels in a row."""
        return gcd(p.cta_k * tiled.bits[0] // 8, channels * tiled.bits[0] // 8, SWIZZLED)

    def possible(p: NvidiaPlan) -> bool:
        if p.split or p.passes(tiled):
            return False
        return p.algorithm in BY_WARPS or (p.algorithm == "wgmma" and channels > 0 and row(p) >= NARROWEST)
    plan = next(filter(possible, gpu.ranked(tiled, target)))
    compiled = GatheredKernel(problem, target, plan)
    compiled.role = role if plan.algorithm in BY_WARPS else f"{role}{row(plan)}"
    return compiled
