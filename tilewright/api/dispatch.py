"""The engines behind matmul, each imported by the first product that needs it: importing tilewright must not load a
compiler.
"""

from __future__ import annotations

from typing import Any

from tilewright import forks
from tilewright.plans import asked
from tilewright.runtime.gpu.arrays import CUDA, HIP, Platform
from tilewright.targets import AmdTarget, GpuTarget

_cpu: Any = None


def cpu() -> Any:
    """tilewright.runtime.cpu.engine."""
    global _cpu
    if _cpu is None:
        _cpu = forks.imported("tilewright.runtime.cpu.engine")
    return _cpu


def for_plan(plan: Any) -> Any:
    """For NumPy's arrays: this processor's engine, unless the plan is one for a GPU."""
    platform = None if plan is None else platform_of(plan)
    return (_cpu or cpu()) if platform is None else platform.engine


def platform_of(plan: Any) -> Platform | None:
    """Whose GPUs a plan is for; None if it is for a CPU."""
    return CUDA if asked.is_for(plan, GpuTarget) else HIP if asked.is_for(plan, AmdTarget) else None


def where(plan: Any) -> str:
    """On what NumPy's arrays are multiplied by this plan, for messages."""
    platform = None if plan is None else platform_of(plan)
    return "on CPUs" if platform is None else f"on {platform.name}s"
