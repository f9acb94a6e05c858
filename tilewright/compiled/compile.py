"""`tilewright.plan` and `tilewright.compile`: the plan and the kernel for a problem, by a kind of target's modules."""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.plans import asked, invariant
from tilewright.targets import CpuTarget, GpuTarget, Target, coerce

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilewright.attention_problem import Attention
    from tilewright.compiled.base import Compiled
    from tilewright.ir.program import Function
    from tilewright.problem import Gemm


def plan(problem: Gemm | Attention, target: Any = None, threads: int | None = None, algorithm: str | None = None, *,
         deterministic: bool = False, batch_invariant: bool = False) -> Any:
    """The plan that tilewright.matmul runs for contiguous operands: a CpuPlan, or for a GPU's target a NvidiaPlan or
    AmdPlan; for a tilewright.Attention the plan of tilewright.attention. It is the fastest that `tune` measured,
    or else the fastest that the model predicts.

    target      a record, or the name of one: "x86-avx2", "sm_90a", "gfx950"; by default this machine's processor
    threads     on a CPU; by default as many as matmul uses, or the number of cores if the target is another CPU
    algorithm, deterministic, batch_invariant  as in matmul

    kc of a CPU's plan counts elements, or words of several elements if the instruction takes these. If no kernel takes
    an operand's format, the plan is for the format to which matmul converts it. tilewright.explain says both.

    TypeError for anything but a Gemm or an Attention. ValueError with the reasons if the target has no kernels for the
    formats, or if no plan fits; NotImplementedError where it has none of attention.
    """
    chip = coerce(target)
    if asked.is_attention(problem):
        asked.only_products(algorithm=algorithm, deterministic=deterministic, batch_invariant=batch_invariant)
        from tilewright.compiled import attention
        return attention.compile(problem, chip, threads=threads).plan
    asked.problem(problem)
    asked.algorithm(algorithm, None, chip)
    if batch_invariant and algorithm is not None:
        raise ValueError(f"algorithm must be None with batch_invariant=True, not {algorithm!r}")
    asked_for = invariant.asked(deterministic, batch_invariant)
    if isinstance(chip, CpuTarget):
        from tilewright.runtime.cpu import engine
        return engine.plan_problem(problem, chip, threads, algorithm, asked_for).plan
    from tilewright.plans import gpu_lowering
    from tilewright.plans.measured import choice
    shape = gpu_lowering.multiplied_shape(problem, chip, algorithm).with_numerics(invariant=asked_for)
    return choice.chosen(shape, chip)[0]


def compile(problem: Gemm | Attention, target: Any = None, plan: Any = None, algorithm: str | None = None) -> Any:
    """The kernel for a problem on a target (default: this machine's CPU) by a plan: a CpuKernel, NvidiaKernel or
    AmdKernel, subclasses of compiled.base.CompiledGemm, and of an Attention a compiled.attention.AttentionKernel.
    Target and plan are records, or their texts: "x86-avx2", "packed 6x16 mc=96 kc=256 nc=4080". On CPUs and NVIDIA's
    GPUs tilewright.matmul's `algorithm` may be given instead of a plan.

    Without a plan it is that of tilewright.plan, on a CPU for as many threads as matmul would use. ValueError with
    every reason if the plan cannot run the problem on the target.
    """
    chip = coerce(target)
    if asked.is_attention(problem):
        asked.only_products(algorithm=algorithm)
        from tilewright.compiled import attention
        return attention.compile(problem, chip, plan)
    asked.problem(problem)
    plan = asked.plan(plan, chip)
    asked.algorithm(algorithm, plan, chip)
    return _module(chip).compile(problem, chip, plan, *((algorithm,) if algorithm else ()))


def compiled(functions: Function | Iterable[Function], target: Target,
             grid: tuple[int | str, ...] | None = None) -> Compiled:
    """Recorded functions on a target, to be read, counted and written out. `grid`: a GPU kernel's, for the manifest."""
    return code_class(target)(functions, target, grid)


def code_class(target: Target) -> type[Compiled]:
    """CpuCode, NvidiaCode or AmdCode, which know the forms of a target's code."""
    return _module(target).CODE


def _module(target: Target) -> Any:
    name = "cpu" if isinstance(target, CpuTarget) else "nvidia" if isinstance(target, GpuTarget) else "amd"
    return import_module(f"tilewright.compiled.{name}")
