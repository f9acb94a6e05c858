"""Kernels for an operand that tables describe: those of a contiguous one, whose plan they have, with the tables
(kernels/nvidia/gathered.py)."""
from __future__ import annotations

from typing import Any

from tilewright.compiled.nvidia import NvidiaKernel
from tilewright.plans import gpu
from tilewright.plans.gpu_shape import GpuShape
from tilewright.problem import Gemm
from tilewright.targets.nvidia import GpuTarget

BY_WARPS = "simt", "dmma", "mma"        # algorithms whose copies are of vectors, each from a pointer of its own


class GatheredKernel(NvidiaKernel):
    """`role`: the operand that the tables describe, "a" or "b"."""
    pointers = ("rows", "steps")
    role = "a"

    @property
    def options(self) -> dict[str, Any]:
        return super().options | {"GATHERED": self.role}


def kernel(problem: Gemm, target: GpuTarget, shape: GpuShape, role: str) -> GatheredKernel:
    """The kernel by the plan that is expected to be fastest for operands of this shape."""
    tiled = shape._replace(m=max(shape.m, 2), n=max(shape.n, 2))        # of one row planners have gemv alone
    plan = next(p for p in gpu.ranked(tiled, target) if p.algorithm in BY_WARPS and not p.split and not p.passes(tiled))
    found = GatheredKernel(problem, target, plan)
    found.role = role
    return found
