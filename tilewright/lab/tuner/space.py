"""The plans that a product may run by on a target, for `tune`, `explain` and `plan` alike: the one in use, the model's
choice, all by rank, what they cost, and kernels by them."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.lab.measure import gpu_probes, probes
from tilewright.plans import choose, gpu, gpu_lowering
from tilewright.plans.measured import choice
from tilewright.runtime.cpu import engine
from tilewright.runtime.gpu.engine import first_device
from tilewright.targets import CpuTarget

if TYPE_CHECKING:
    from tilewright.compiled.base import CompiledGemm
    from tilewright.problem import Gemm


class Space:
    """`chip` is the target as it was given; `target` has the instructions that the shape needs beside.

    shape           what is multiplied
    in_use, origin  the plan that matmul runs, and where it comes from: choice.chosen
    threads         that a call may use; 1 on a GPU
    planned         what the engine says of a CPU's product; None for a GPU
    """

    def __init__(self, problem: Gemm, chip: Any, threads: int | None = None, algorithm: str | None = None) -> None:
        self.problem, self.chip, self.threads = problem, chip, 1
        self.shape: Any
        self.target: Any
        self.planned: Any = None
        if isinstance(chip, CpuTarget):
            self.planned = found = engine.plan_problem(problem, chip, threads, algorithm)
            self.shape, self.target, self.in_use, self.origin = found.shape, found.target, found.plan, found.origin
            self.threads = self.shape.threads
        else:
            self.shape, self.target = gpu_lowering.multiplied_shape(problem, chip, algorithm), chip
            self.in_use, self.origin = choice.chosen(self.shape, chip)

    @property
    def model(self) -> Any:
        """The plan that the cost model chooses."""
        return (choose.choose if self.planned else gpu.choose)(self.shape, self.target)

    def ranked(self, tiles: int = 3) -> list[Any]:
        """Legal plans, the one with the least predicted time first; of a CPU those of so many register tiles."""
        if not self.planned:
            return gpu.ranked(self.shape, self.target)
        return list(choose.ranked(self.shape, self.target, tiles=tiles))

    def basis(self, measured: bool = False) -> Any:
        """What predictions rest on. `measured`: the ceilings of this CPU are measured if they are not known."""
        return probes.basis(self.chip, measured) if self.planned else gpu_probes.basis(self.target)

    def kernel(self, plan: Any) -> CompiledGemm:
        from tilewright.compiled.compile import compile
        from tilewright.compiled.cpu import CpuKernel
        if self.planned:
            return CpuKernel(self.problem, self.chip, self.planned._replace(plan=plan))
        return compile(self.problem, self.chip, plan)


def here(chip: Any) -> Any:
    """The target as it is on this machine: of a GPU's architecture the first device's. RuntimeError if it is not."""
    if isinstance(chip, CpuTarget):
        chip.require_runnable()
        return chip
    return first_device(chip)[1].target
