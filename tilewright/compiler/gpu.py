"""A GEMM by one plan on one GPU: PTX that can be read, counted, simulated and run.

Nothing here needs a GPU, but calling it does. The PTX comes from the cache if it is there; a kernel is recorded only if
somebody looks at it.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.compiler import llvm, ptx, ptxas
from tilewright.formats import MULTIPLIED
from tilewright.plans.gpu import GpuPlan, choose, shape_of

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.problem import Gemm
    from tilewright.targets import GpuTarget

_EMITTERS = {"simt": "tilewright.kernels.nvidia.simt_gemm:emit_simt_gemm",
             "dmma": "tilewright.kernels.nvidia.dmma_gemm:emit_dmma_gemm",
             "gemv": "tilewright.kernels.nvidia.gemv:emit_gemv"}
EMPTY = "// the product is empty: there is no code\n"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel for a product: how many CTAs, and what it takes beside the operands."""
    kernel: GpuKernel
    grid: tuple[int, int, int]
    workspace: int = 0                              # bytes
    counters: int = 0                               # bytes, zero before and after
    more: tuple[tuple[str, int], ...] = ()          # further parameters, by name

    @property
    def function(self) -> Function:
        """The kernel as it is recorded."""
        return self.kernel.function

    @property
    def entry(self) -> ptx.Entry:
        """The kernel as a launch sees it, which needs no recording."""
        return next(iter(ptx.entries(self.kernel.ptx).values()))

    @property
    def shared_bytes(self) -> int:
        return self.entry.shared


class GpuKernel:
    """`kernel(a, b, out=c)` runs it; `kernel.bind(a, b, c)` makes a call ready; everything else can be had anywhere."""

    def __init__(self, problem: Gemm, target: GpuTarget, plan: GpuPlan) -> None:
        self.problem, self.target, self.plan = problem, target, plan

    def __repr__(self) -> str:
        return f"<GpuKernel {self.problem} on {self.target.name}: {self.plan}>"

    @property
    def options(self) -> dict[str, Any]:
        """What the plan's emitter is called with."""
        p = self.plan
        if p.algorithm == "gemv":
            return {"DTYPE": self.problem.compute, "LAYOUT": self.problem.layout, "COLUMN": self.problem.n == 1,
                    "VECTOR": p.vector, "SPLIT_K": p.split_k}
        found = {"LAYOUT": self.problem.layout, "CTA_M": p.cta_m, "CTA_N": p.cta_n, "CTA_K": p.cta_k,
                 "WARP_M": p.warp_m, "WARP_N": p.warp_n, "STAGES": p.stages, "VECTOR": p.vector, "SPLIT_K": p.split_k,
                 "TAIL": p.tail, "GROUP_M": p.group_m}
        if p.algorithm == "simt":
            found |= {"DTYPE": self.problem.compute, "THREAD_M": p.thread_m, "THREAD_N": p.thread_n,
                      "SLICES": p.slices, "ASYNC": p.copy == "async", "ORDER": p.order, "REGISTERS": p.registers,
                      "EARLY": p.early}
        return found

    @property
    def _empty(self) -> bool:
        return 0 in (self.problem.m, self.problem.n, self.problem.k)

    @cached_property
    def function(self) -> Function:
        module, _, name = _EMITTERS[self.plan.algorithm].partition(":")
        emitter = getattr(import_module(module), name)
        with llvm.uncollected():
            recorded: Function = emitter(**self.options)
        return recorded

    @property
    def functions(self) -> tuple[Function, ...]:
        return () if self._empty else (self.function,)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """What a product of one pair of matrices takes; nothing if it is empty."""
        if self._empty:
            return ()
        p, m, n, s = self.plan, self.problem.m, self.problem.n, 4 if self.problem.compute == "f32" else 8
        tiles, grid, tile = p.tiles(m, n), p.grid(m, n, self.target, s), p.extent[0] * p.extent[1] * s
        if p.tail:
            whole, parts = p.cut(m, n, self.target, s)
            over = tiles - whole
            return (Launch(self, grid, max(over*parts, 1)*tile, 4*max(over, 1), (("whole", whole), ("parts", parts))),)
        if p.split_k > 1:
            return (Launch(self, grid, p.split_k * tiles * tile, 4*tiles),)
        return (Launch(self, grid),)

    @cached_property
    def llvm(self) -> str:
        """LLVM IR, as it was lowered and before optimisation."""
        return llvm.text(self.functions, self.target) if self.functions else EMPTY.replace("//", ";")

    @cached_property
    def ptx(self) -> str:
        """What the driver assembles."""
        if self._empty:
            return EMPTY
        return ptx.emitted_ptx(_EMITTERS[self.plan.algorithm], self.target, **self.options)

    @property
    def asm(self) -> str:
        return self.ptx

    @cached_property
    def _assembled(self) -> tuple[bytes, ptxas.Usage]:
        if self._empty:
            raise ValueError(f"{self.problem} is an empty product, for which there is no code")
        cubin, used = ptxas.assemble(self.ptx, self.target.name)
        (usage,) = used.values()
        return cubin, usage

    @property
    def cubin(self) -> bytes:
        """Machine code, by ptxas. ptxas.Missing if there is none; nothing but reading it needs it."""
        return self._assembled[0]

    @property
    def resources(self) -> ptxas.Usage:
        """Registers, shared memory and spills, by ptxas."""
        return self._assembled[1]

    def __call__(self, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """alpha * A @ B + beta * out: see runtime.bound.call."""
        from tilewright.runtime import bound
        return bound.call(self, a, b, out, alpha=alpha, beta=beta)

    def bind(self, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """A call with everything ready: see runtime.bound.bind."""
        from tilewright.runtime import bound
        return bound.bind(self, a, b, out, alpha=alpha, beta=beta)


def compile(problem: Gemm, target: GpuTarget, plan: GpuPlan | str | None = None) -> GpuKernel:
    """As tilewright.compile says, for a GPU. Operands are taken to be contiguous and aligned to 16 bytes."""
    problem.require(MULTIPLIED)
    if not problem.a == problem.b == problem.out:
        raise ValueError(f"this version compiles problems of one number format, and {problem} has a = {problem.a}, "
                         f"b = {problem.b}, out = {problem.out}; tilewright.matmul converts what it gets")
    if isinstance(plan, str):
        plan = GpuPlan.parse(plan)
    shape = shape_of(problem)
    empty = 0 in (problem.m, problem.n, problem.k)
    if plan is None:
        plan = choose(shape._replace(m=max(problem.m, 1), n=max(problem.n, 1), k=max(problem.k, 1)), target)
    reasons = [] if empty else plan.violations(shape, target)
    if reasons:
        raise ValueError(f"plan {plan} cannot run {problem} on {target.name}: " + " ".join(reasons))
    return GpuKernel(problem, target, plan)
