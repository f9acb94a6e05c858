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
    """What all have. `chip` is the target as it was given; `target` has the instructions that the shape needs beside.

    shape           what is multiplied
    in_use, origin  the plan that matmul runs, and where it comes from: choice.chosen
    threads         that a call may use; 1 on a GPU
    """
    shape: Any
    target: Any
    in_use: Any
    origin: str
    threads = 1

    def __init__(self, problem: Gemm, chip: Any) -> None:
        self.problem, self.chip = problem, chip

    @property
    def model(self) -> Any:
        """The plan that the cost model chooses."""
        raise NotImplementedError

    def ranked(self, tiles: int = 3) -> list[Any]:
        """Legal plans, the one with the least predicted time first; of a CPU those of so many register tiles."""
        raise NotImplementedError

    def basis(self, measured: bool = False) -> Any:
        """What predictions rest on. `measured`: the ceilings of this CPU are measured if they are not known."""
        raise NotImplementedError

    def kernel(self, plan: Any) -> CompiledGemm:
        raise NotImplementedError


class CpuSpace(Space):
    def __init__(self, problem: Gemm, chip: CpuTarget, threads: int | None = None, algorithm: str | None = None
                 ) -> None:
        super().__init__(problem, chip)
        self.planned = engine.plan_problem(problem, chip, threads, algorithm)
        self.shape, self.target, self.in_use = self.planned.shape, self.planned.target, self.planned.plan
        self.origin, self.threads = self.planned.origin, self.shape.threads

    @property
    def model(self) -> Any:
        return choose.choose(self.shape, self.target)

    def ranked(self, tiles: int = 3) -> list[Any]:
        return list(choose.ranked(self.shape, self.target, tiles=tiles))

    def basis(self, measured: bool = False) -> probes.Basis:
        return probes.basis(self.chip, measured)

    def kernel(self, plan: Any) -> CompiledGemm:
        from tilewright.compiled.cpu import CpuKernel
        return CpuKernel(self.problem, self.chip, self.planned._replace(plan=plan))


class GpuSpace(Space):
    def __init__(self, problem: Gemm, chip: Any, algorithm: str | None = None) -> None:
        super().__init__(problem, chip)
        self.shape, self.target = gpu_lowering.multiplied_shape(problem, chip, algorithm), chip
        self.in_use, self.origin = choice.chosen(self.shape, chip)

    @property
    def model(self) -> Any:
        return gpu.choose(self.shape, self.target)

    def ranked(self, tiles: int = 3) -> list[Any]:
        return gpu.ranked(self.shape, self.target)

    def basis(self, measured: bool = False) -> gpu_probes.GpuBasis:
        return gpu_probes.basis(self.target)

    def kernel(self, plan: Any) -> CompiledGemm:
        from tilewright.compiled.compile import compile
        return compile(self.problem, self.chip, plan)


def here(chip: Any) -> Any:
    """The target as it is on this machine: of a GPU's architecture the first device's. RuntimeError if it is not."""
    if isinstance(chip, CpuTarget):
        chip.require_runnable()
        return chip
    return first_device(chip)[1].target


def space(problem: Gemm, chip: Any, threads: int | None = None, algorithm: str | None = None) -> Space:
    """The space of a problem; `threads` of a CPU."""
    if isinstance(chip, CpuTarget):
        return CpuSpace(problem, chip, threads, algorithm)
    return GpuSpace(problem, chip, algorithm)
