"""Kernels for one of AMD's GPUs: assembly and a code object that can be read, counted, simulated and run.

A manifest says what a launch has to know and to keep to, in words and in expressions that a program can evaluate. Our
own launches keep to it by the way they choose plans (plans/amd.py, runtime/gpu). A code object needs a linker
(compiler.lld).
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.compiled.base import GpuCode
from tilewright.compiled.gpu import GpuKernel, launched, planned
from tilewright.compiler import amd
from tilewright.forks import cached_property
from tilewright.plans.amd import AmdPlan
from tilewright.plans.amd_model import PIECE
from tilewright.plans.gpu_shape import BLOCK, REACH, GpuShape

if TYPE_CHECKING:
    from tilewright.inspect.resources import Loop
    from tilewright.problem import Gemm
    from tilewright.targets import AmdTarget

_MFMA = "tilewright.kernels.amd.gemm:emit_mfma_gemm"
MOST = (1 << 31) - 1    # that an i32 holds
BEYOND = 1 << 16        # rows after the last one that kernels count
WORD, UNIT = 4, 8       # bytes: scales that come straight into LDS at once, elements in blocks that are loaded at once


class AmdCode(GpuCode):
    """Recorded kernels as amdgcn assembly and a linked code object."""

    forms: ClassVar[dict[str, str]] = {".ll": "IR", ".s": "assembly", ".hsaco": "code object, by lld"}
    text_form, comment, beside = ".s", ";", (".hsaco",)
    target: AmdTarget

    @property
    def binary(self) -> bytes:
        """A linked code object (.hsaco). lld.Missing if there is no linker."""
        return self.loadable.image

    @cached_property
    def resources(self) -> amd.Usage:
        """Registers, LDS, spills and the waves that fit."""
        return amd.usage(self.function, self.target, self.asm)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """See compiler.manifest; `uses` is `resources`."""
        return amd.manifest(self.function, self.target, self.grid, self.asm)

    def loop(self, function: str | None = None) -> Loop:
        """The main loop: the innermost with the most matrix instructions."""
        from tilewright.inspect import amd_cycles
        return amd_cycles.loop(self.asm, self._named(function), self.target)

    def report(self, function: str | None = None) -> str:
        """What the kernel uses, and a static cycle count of its main loop."""
        from tilewright.inspect import amd_cycles
        name = self._named(function)
        try:
            cycles: Any = amd_cycles.count(self.function, self.target, self.asm)
        except ValueError as error:                 # there is no loop
            cycles = error
        return f"{name}: {self.resources}\n{cycles}"

    def _named(self, function: str | None) -> str:
        name = self.function.name
        if function not in (None, name):
            raise ValueError(f"no function {function} in this assembly; there is {name}")
        return name


class AmdKernel(GpuKernel, AmdCode):
    """A GEMM by one plan on one of AMD's GPUs."""

    emitters: ClassVar[dict[str, str]] = {
        "mfma": _MFMA, "xf32": _MFMA, "scaled": "tilewright.kernels.amd.gemm:emit_scaled_mfma_gemm"}
    maker = "AMD"
    plan: AmdPlan

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, "XCDS": self.target.xcds}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What another program must know to launch the code object for matrices of any size: see compiler.manifest.
        Of a product with passes the `launches`, of this size."""
        p = self.plan
        tiles = tiles_of(self.shape, p)
        fields = amd.manifest(self.function, self.target, (tiles, 1, p.split_k), self.asm)
        fields |= {**self.described, "computes": computes(self.shape, p), "requires": requires(self.shape, p)}
        if len(self.launches) > 1:
            return fields | {"launches": [AmdCode(x.function, self.target, x.grid).manifest | launched(x)
                                         for x in self.launches]}
        if p.split_k > 1:
            fields |= {"workspace_bytes": f"{tiles} * {p.split_k * self._tile_bytes}", "counter_bytes": f"{tiles} * 4"}
        return fields


CODE = AmdCode


def compile(problem: Gemm, target: AmdTarget, plan: AmdPlan | str | None = None) -> AmdKernel:
    """Compiles as tilewright.compile says. Operands are taken to be contiguous."""
    if problem.blocks and problem.batch != 1:
        raise ValueError(f"kernels of block-scaled formats for {target.name} multiply two matrices, since quantized "
                         f"operands of GPUs have two axes, and {problem} has {problem.batch} products")
    return AmdKernel(problem, target, planned(plan, problem, target))


# ---- the manifest's text and conditions


def computes(shape: GpuShape, plan: AmdPlan) -> str:
    """One paragraph: the product, and its matrices' layout in memory."""
    a = "[m, k]" if shape.layout[0] == "n" else "[k, m]"
    b = "[k, n]" if shape.layout[1] == "n" else "[n, k]"
    said = (f"c = alpha * A B + beta * c, by rows: a is A as {a} of {shape.a}, b is B as {b} of {shape.b}, c is [m, n] "
            f"of {shape.out}, and is not read if beta is 0. ")
    if shape.scaled:
        said += ("Elements of a and b are packed along k, the first in the lowest bits; lda and ldb are bytes from row "
                 f"to row, ldc elements. scale_a [m, k / {BLOCK}] and scale_b [n, k / {BLOCK}] are e8m0, rows "
                 f"ld_scale_a and ld_scale_b apart; k counts whole blocks of {BLOCK}, the last filled up with zeros.")
    else:
        said += "lda, ldb and ldc are elements from row to row."
    if shape.scales:
        said += (" Sums are multiplied by scale_a[i * ld_scale_a] and scale_b[j * ld_scale_b], of the type of alpha, "
                 "before alpha.")
    if shape.batch != 1:
        said += (" There are `batch` such products; their matrices are stride_a, stride_b and stride_c elements apart, "
                 "0 where all have the same one.")
    if plan.algorithm == "xf32":
        said += " f32 are rounded to 19 bits, xf32, before they are multiplied."
    if plan.split_k > 1:
        said += (" Partial sums are stored in the workspace, which needs no initial values; the counters must be 0 "
                 "before the launch, and are 0 after it.")
    return said


def tiles_of(shape: GpuShape, plan: AmdPlan) -> str:
    """How many a launch has, as an expression of the arguments' names."""
    tiles = f"((m + {plan.cta_m - 1}) // {plan.cta_m}) * ((n + {plan.cta_n - 1}) // {plan.cta_n})"
    return tiles if shape.batch == 1 else f"batch * {tiles}"


def requires(shape: GpuShape, plan: AmdPlan) -> list[str]:
    """Python expressions of the arguments' names, where pointers are addresses; all are true of a launch that works."""
    tiles, tiles_n = tiles_of(shape, plan), f"((n + {plan.cta_n - 1}) // {plan.cta_n})"
    # kernels count rows, columns, steps of k and tiles in 32 bits, up to the end of the last tile and of its copies
    conditions = [f"1 <= m <= {MOST - BEYOND}", f"1 <= n <= {MOST - BEYOND}",
             f"1 <= k <= {MOST - (plan.split_k + 1) * plan.cta_k}",
             f"{tiles} * {plan.split_k} <= {MOST}", f"{tiles_n} * {plan.group_m} <= {MOST}"]
    if plan.vector_c > 1:
        conditions.append(f"n % {plan.vector_c} == 0")
    sides = (("a", "m", plan.cta_m, shape.bits[0], shape.layout[0] == "n"),
             ("b", "n", plan.cta_n, shape.bits[1], shape.layout[1] == "t"))
    if shape.scaled:
        conditions.append(f"k % {4*BLOCK if plan.direct_scales(shape) else BLOCK} == 0")
        conditions += [f"{x} == 0" for name, *_ in sides for x in (f"{name} % {WORD}", f"ld{name} % {UNIT}")]
        if plan.direct_scales(shape):
            conditions += [f"{x}scale_{name} % {WORD} == 0" for name, *_ in sides for x in ("", "ld_")]
            conditions += [f"0 <= ld_scale_{name} * {_scale_rows(plan, rows, warp)} <= {REACH}"
                      for (name, _, rows, *_), warp in zip(sides, (plan.warp_m, plan.warp_n))]
    for name, along, rows, bits, along_k in sides:
        if plan.copy == "lds":
            apart = f"ld{name}" if shape.scaled else f"ld{name} * {bits // 8}"
            if not shape.scaled:
                conditions.append(f"{'k' if along_k else along} % {8*PIECE // bits} == 0")
            if bits != 6:
                conditions += [f"{name} % {PIECE} == 0", f"{apart} % {PIECE} == 0"]
                conditions += [f"stride_{name} * {bits // 8} % {PIECE} == 0"] * (shape.batch != 1)
            conditions.append(f"0 <= {apart} * {rows if along_k else plan.cta_k} <= {REACH}")
        elif not along_k and plan.vector > 1:
            conditions.append(f"{along} % {plan.vector} == 0")
    return list(dict.fromkeys(conditions))


def _scale_rows(plan: AmdPlan, rows: int, warp: int) -> int:
    """Rows whose scales a workgroup copies, where each thread copies as many words (kernels/amd/scales.py)."""
    words = plan.cta_k // (4*BLOCK)
    copied = -(-rows * words // plan.threads) * plan.threads
    lanes = -(-copied // (warp // plan.mfma * words))
    return -(-lanes // plan.mfma) * warp
