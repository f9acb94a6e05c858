"""A GEMM by one plan on one GPU, whoever made it: one recorded function, and the launches that a product takes.

compiler.gpu and compiler.amd_gemm say by which emitter and options, and what is assembled from it.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.compiler import llvm
from tilewright.forks import cached_property

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.problem import Gemm

BLOCK = 32              # along k, of block-scaled operands
EMPTY = "; the product is empty: there is no code\n"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel for a product: how many workgroups, and what it takes beside the operands."""
    kernel: Any
    grid: tuple[int, int, int]
    workspace: int = 0                              # bytes
    counters: int = 0                               # bytes, zero before and after
    more: tuple[tuple[str, int], ...] = ()          # further parameters, by name

    @property
    def function(self) -> Function:
        """The kernel as it is recorded."""
        function: Function = self.kernel.function
        return function


def planned(plan: Any, problem: Gemm, shape: Any, target: Any, choose: Callable[..., Any]) -> Any:
    """The plan for a problem, or the one that `choose(shape, target)` makes. ValueError with every reason for one that
    cannot run it. An empty product, for which nothing runs, has any plan."""
    empty = 0 in (shape.m, shape.n, shape.k)
    if plan is None:
        plan = choose(shape, target)
    reasons = [] if empty else plan.violations(shape, target)
    if reasons:
        raise ValueError(f"plan {plan} cannot run {problem} on {target.name}: " + " ".join(reasons))
    return plan


class RecordedGemm:
    """It is recorded only if somebody looks at it."""

    emitters: ClassVar[dict[str, str]]              # algorithm → "package.module:function"

    def __init__(self, problem: Gemm, target: Any, plan: Any) -> None:
        self.problem, self.target, self.plan = problem, target, plan

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.problem} on {self.target.name}: {self.plan}>"

    @property
    def options(self) -> dict[str, Any]:
        """What the plan's emitter is called with."""
        raise NotImplementedError

    @property
    def _empty(self) -> bool:
        return 0 in (self.problem.m, self.problem.n, self.problem.k)

    @cached_property
    def function(self) -> Function:
        module, _, name = self.emitters[self.plan.algorithm].partition(":")
        emitter = getattr(import_module(module), name)
        with llvm.uncollected():
            recorded: Function = emitter(**self.options)
        return recorded

    @property
    def functions(self) -> tuple[Function, ...]:
        return () if self._empty else (self.function,)

    @cached_property
    def llvm(self) -> str:
        """LLVM IR, as it was lowered and before optimisation."""
        return llvm.text(self.functions, self.target) if self.functions else EMPTY
