"""A GEMM by one plan on one GPU: PTX that can be read, counted, simulated and run.

Nothing here needs a GPU, but calling it does. The PTX comes from the cache if it is there; a kernel is recorded only if
somebody looks at it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.compiled import gemm
from tilewright.compiled.gemm import EMPTY, RecordedGemm, planned
from tilewright.compiler import artefact, ptxas
from tilewright.compiler.manifest import Entry
from tilewright.forks import cached_property
from tilewright.plans import asked
from tilewright.plans.nvidia import NvidiaPlan, choose, shape_of

if TYPE_CHECKING:
    from tilewright.problem import Gemm
    from tilewright.targets import GpuTarget

_EMITTERS = {"simt": "tilewright.kernels.nvidia.simt_gemm:emit_simt_gemm",
             "dmma": "tilewright.kernels.nvidia.dmma_gemm:emit_dmma_gemm",
             "gemv": "tilewright.kernels.nvidia.gemv:emit_gemv"}


class Launch(gemm.Launch):
    """What a launch of a grid of CTAs has to know beside."""

    @property
    def entry(self) -> Entry:
        """The kernel as a launch sees it, which needs no recording."""
        found: Entry = self.kernel.loadable.entry
        return found

    @property
    def shared_bytes(self) -> int:
        return self.entry.shared


class GpuKernel(RecordedGemm):
    """`kernel(a, b, out=c)` runs it; `kernel.bind(a, b, c)` makes a call ready; everything else can be had anywhere."""

    emitters = _EMITTERS
    target: GpuTarget
    plan: NvidiaPlan

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
    def ptx(self) -> str:
        """What the driver assembles."""
        if self._empty:
            return EMPTY.replace(";", "//")
        return self.loadable.text

    @cached_property
    def loadable(self) -> artefact.Code:
        """The PTX with what a launch must know, from the cache if it is there: then nothing is recorded."""
        return artefact.code(self.emitters[self.plan.algorithm], self.target, **self.options)

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
        """alpha * A @ B + beta * out: see runtime.gpu.recipe.Maker.call."""
        from tilewright.runtime.gpu.recipe import NVIDIA
        return NVIDIA.call(self, a, b, out, alpha=alpha, beta=beta)

    def bind(self, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """A call with everything ready: see runtime.gpu.recipe.Maker.bind."""
        from tilewright.runtime.gpu.recipe import NVIDIA
        return NVIDIA.bind(self, a, b, out, alpha=alpha, beta=beta)


def compile(problem: Gemm, target: GpuTarget, plan: NvidiaPlan | str | None = None) -> GpuKernel:
    """As tilewright.compile says, for a GPU. Operands are taken to be contiguous and aligned to 16 bytes."""
    asked.supported(problem, target.name, single=True)
    plan = asked.plan(plan, target)
    return GpuKernel(problem, target, planned(plan, problem, shape_of(problem), target, choose))
