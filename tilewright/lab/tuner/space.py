"""The plans that a product or an attention may run by on a target, for `tune`, `explain` and `plan` alike: the one in
use, the model's choice, all by rank, what they cost, and kernels by them."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.attention_problem import Attention
from tilewright.compiled import attention
from tilewright.lab.measure import gpu_probes, probes
from tilewright.lab.tuner.candidates import promising
from tilewright.plans import asked, attention_choice, choose, gpu, gpu_lowering
from tilewright.plans.attention_choice import AttentionCase
from tilewright.plans.measured import choice
from tilewright.runtime.cpu import engine, pool
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
        self.problem: Any
        self.problem, self.chip, self.threads = problem, chip, 1
        self.shape: Any
        self.target: Any
        self.planned: Any = None
        if isinstance(chip, CpuTarget):
            self.planned = begun = engine.plan_problem(problem, chip, threads, algorithm)
            self.shape, self.target, self.in_use, self.origin = begun.shape, begun.target, begun.plan, begun.origin
            self.threads = self.shape.threads
        else:
            self.shape, self.target = gpu_lowering.multiplied_shape(problem, chip, algorithm), chip
            self.in_use, self.origin = choice.chosen(self.shape, chip)

    @property
    def overlapping(self) -> bool:
        """Whether parts of a cost go on at the same time."""
        return self.planned is None

    @property
    def flops(self) -> int:
        """Operations, of complex numbers those of real ones."""
        s = self.shape
        return int(s.flops if self.planned else 2 * s.batch * s.m * s.n * s.k)

    @property
    def model(self) -> Any:
        """The plan that the cost model chooses."""
        return self.shape.planner.choose(self.shape, self.target)

    def promising(self, count: int) -> list[Any]:
        """Up to so many plans that are worth a measurement."""
        return promising(self.shape, self.target, count)

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


class AttentionSpace(Space):
    """The plans of an attention, whose arrays are contiguous."""

    def __init__(self, problem: Attention, chip: Any, threads: int | None = None) -> None:
        self.problem, self.chip, self.planned = problem, chip, None
        on_cpu = isinstance(chip, CpuTarget)
        self.threads = threads or (pool.get_num_threads() if chip.runnable else chip.cores) if on_cpu else 1
        self.shape, self.target = AttentionCase(problem, self.threads), attention.code_target(chip)
        attention_choice.require(self.shape, self.target)
        self.in_use, self.origin = choice.chosen(self.shape, self.target)

    overlapping = False

    @property
    def flops(self) -> int:
        return int(self.problem.flops)

    def ranked(self, tiles: int = 3) -> list[Any]:
        return attention_choice.ranked(self.shape, self.target)

    def promising(self, count: int) -> list[Any]:
        return self.ranked()[:count]

    def basis(self, measured: bool = False) -> Any:
        on_cpu = isinstance(self.chip, CpuTarget)
        return probes.basis(self.chip, measured) if on_cpu else gpu_probes.basis(self.target)

    def kernel(self, plan: Any) -> Any:
        return attention.compile(self.problem, self.chip, plan, self.threads)


def space_of(problem: Gemm | Attention, chip: Any, threads: int | None = None, algorithm: str | None = None) -> Space:
    """The plans of a problem on a target. NotImplementedError or ValueError where there are none."""
    if isinstance(problem, Attention):
        asked.only_products(algorithm=algorithm)
        return AttentionSpace(problem, chip, threads)
    return Space(problem, chip, threads, algorithm)


def here(chip: Any) -> Any:
    """The target as it is on this machine: of a GPU's architecture the first device's. RuntimeError if it is not."""
    if isinstance(chip, CpuTarget):
        chip.require_runnable()
        return chip
    return first_device(chip)[1].target
