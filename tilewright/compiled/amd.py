"""A GEMM by one plan on one of AMD's GPUs: assembly and a code object that can be read, counted, simulated and run.

Nothing here needs a GPU, but calling it does; a code object needs a linker (compiler.lld).
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.compiled import amd_contract
from tilewright.compiled.gemm import EMPTY, Launch, RecordedGemm, planned
from tilewright.compiler import amd, artefact
from tilewright.forks import cached_property
from tilewright.plans import asked
from tilewright.plans.amd import AmdPlan, choose, shape_of
from tilewright.plans.gpu import GpuShape

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.problem import Gemm
    from tilewright.targets import AmdTarget

_MFMA = "tilewright.kernels.amd.mfma_gemm:emit_mfma_gemm"
_EMITTERS = {"mfma": _MFMA, "xf32": _MFMA,
             "scaled": "tilewright.kernels.amd.scaled_mfma_gemm:emit_scaled_mfma_gemm",
             "bf16_emulated": "tilewright.kernels.amd.emulated_mx_gemm:emit_emulated_mx_gemm"}
BYTES = {"f64": 8, "f32": 4, "i32": 4}


class AmdKernel(RecordedGemm):
    """`kernel(a, b, out=c)` runs it; `kernel.bind(a, b, c)` makes a call ready; everything else can be had anywhere, as
    can `tilewright.simulate(kernel, a, b)`."""

    emitters = _EMITTERS
    target: AmdTarget
    plan: AmdPlan

    @cached_property
    def shape(self) -> GpuShape: return shape_of(self.problem)

    @property
    def options(self) -> dict[str, Any]:
        """What the plan's emitter is called with."""
        p, s = self.plan, self.shape
        found: dict[str, Any] = {
            "ARCH": self.target.name, "A": s.a, "B": s.b, "CTA_M": p.cta_m, "CTA_N": p.cta_n, "CTA_K": p.cta_k,
            "WARP_M": p.warp_m, "WARP_N": p.warp_n, "MFMA": p.mfma, "STAGES": p.stages, "DIRECT": p.copy == "direct",
            "VECTOR_C": p.vector_c, "SPLIT_K": p.split_k, "GROUP_M": p.group_m, "XCDS": self.target.xcds}
        if p.algorithm == "xf32":
            found |= {"A": "xf32", "B": "xf32"}
        if p.algorithm == "scaled":
            found["DIRECT_SCALES"] = p.direct_scales(s)
        if p.algorithm in ("mfma", "xf32"):
            found |= {"LAYOUT": s.layout, "VECTOR": p.vector}
        if s.out != s.sums:
            found["OUT"] = s.out
        return found

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """What a product of one pair of matrices takes; nothing if it is empty."""
        if self._empty:
            return ()
        p, m, n = self.plan, self.problem.m, self.problem.n
        if p.split_k == 1:
            return (Launch(self, p.grid(m, n)),)
        tiles = p.tiles(m, n)
        return (Launch(self, p.grid(m, n), p.split_k * tiles * p.cta_m * p.cta_n * BYTES[self.shape.sums], 4*tiles),)

    @cached_property
    def assembly(self) -> str:
        return EMPTY if self._empty else amd.assembly(self.function, self.target)

    @property
    def asm(self) -> str: return self.assembly

    @cached_property
    def code_object(self) -> bytes:
        """.hsaco. compiler.lld.Missing if there is no linker; ValueError for an empty product."""
        return self.loadable.image

    @cached_property
    def loadable(self) -> artefact.Code:
        """The code object with what a launch must know, from the cache if it is there: then nothing is recorded."""
        self._some()
        return artefact.code(_EMITTERS[self.plan.algorithm], self.target, **self.options)

    @cached_property
    def resources(self) -> amd.Usage:
        """Registers, LDS, spills and the waves that fit."""
        return amd.usage(self._code, self.target, self.assembly)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What another program must know to launch the code object."""
        p = self.plan
        tiles = f"((m + {p.cta_m - 1}) // {p.cta_m}) * ((n + {p.cta_n - 1}) // {p.cta_n})"
        found = amd.manifest(self._code, self.target, (tiles, 1, p.split_k), self.assembly)
        found["plan"], found["problem"] = str(p), str(self.problem)
        found["computes"] = amd_contract.computes(self.shape, p)
        found["requires"] = amd_contract.requires(self.shape, p)
        if p.split_k > 1:
            tile = p.split_k * p.cta_m * p.cta_n * BYTES[self.shape.sums]
            found["workspace_bytes"], found["counter_bytes"] = f"{tiles} * {tile}", f"{tiles} * 4"
        return found

    @property
    def _code(self) -> Function:
        self._some()
        return self.function

    def _some(self) -> None:
        if self._empty:
            raise ValueError(f"{self.problem} is an empty product, for which there is no code")

    def __call__(self, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """alpha * A @ B + beta * out: see runtime.gpu.recipe.Maker.call."""
        from tilewright.runtime.gpu.recipe import AMD
        return AMD.call(self, a, b, out, alpha=alpha, beta=beta)

    def bind(self, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """A call with everything ready: see runtime.gpu.recipe.Maker.bind."""
        from tilewright.runtime.gpu.recipe import AMD
        return AMD.bind(self, a, b, out, alpha=alpha, beta=beta)


def compile(problem: Gemm, target: AmdTarget, plan: AmdPlan | str | None = None) -> AmdKernel:
    """As tilewright.compile says, for one of AMD's GPUs. Operands are taken to be contiguous."""
    plan = asked.plan(plan, target)
    if problem.batch != 1:
        raise ValueError(f"a kernel for {target.name} computes one product, and {problem} has {problem.batch}")
    return AmdKernel(problem, target, planned(plan, problem, shape_of(problem), target, choose))
