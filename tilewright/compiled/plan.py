"""`tilewright.plan`: the plan by which tilewright.matmul multiplies, on any target."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.plans import asked
from tilewright.targets import AmdTarget, GpuTarget, coerce

if TYPE_CHECKING:
    from tilewright.problem import Gemm


def plan(problem: Gemm, target: Any = None, threads: int | None = None, algorithm: str | None = None) -> Any:
    """The plan that tilewright.matmul runs for contiguous operands: a CpuPlan, or for a GPU's target a NvidiaPlan or
    AmdPlan: the one that the tuner measured to be the fastest, else the one that the model predicts to be.

    target      a record, or the name of one: "x86-avx2", "sm_90a", "gfx950"; by default this machine's processor
    threads     of a CPU; by default as many as matmul uses, of a CPU that is not this one its cores
    algorithm   as in matmul, on CPUs

    Of a CPU's plan kc counts what is multiplied: elements, or words of several (tilewright.explain says which).

    TypeError for anything but a Gemm. ValueError for formats that the target has no kernels for, or if no plan fits,
    with the reasons.
    """
    asked.problem(problem)
    chip = coerce(target)
    if isinstance(chip, AmdTarget):
        from tilewright.plans import amd
        return amd.choose(amd.shape_of(problem), chip)
    if isinstance(chip, GpuTarget):
        from tilewright.plans import nvidia
        return nvidia.choose(nvidia.shape_of(problem), chip)
    from tilewright.runtime.cpu import engine
    return engine.plan_problem(problem, chip, threads, algorithm).plan
