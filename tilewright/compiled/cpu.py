"""Functions for a CPU, and a GEMM by one plan on it, as code that can be read, counted, written out and run.

Reading needs no such chip: a kernel for another machine is recorded, lowered and assembled here, and only calling it is
refused. What is read is what runs: the same recipe says which functions a plan needs.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright import formats
from tilewright.compiled.base import Compiled, CompiledGemm, Launch
from tilewright.compiler import artefact
from tilewright.forks import cached_property
from tilewright.formats import decoding
from tilewright.formats.quantized import check_operand
from tilewright.plans import few_rows, lowering, semirings
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape, order
from tilewright.plans.words import TILE_WORDS
from tilewright.problem import Gemm
from tilewright.rules import complex_product
from tilewright.rules.arguments import Array
from tilewright.runtime.cpu import amx, engine, fused_problems, fusion, small
from tilewright.runtime.cpu.engine import Planned
from tilewright.runtime.cpu.host import Part, Parts
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.targets import CpuTarget
from tilewright.targets.machine import MOST_THREADS

if TYPE_CHECKING:
    from tilewright.inspect.resources import HotLoop
    from tilewright.ir.program import Function


class CpuCode(Compiled):
    """Recorded functions as assembly and an object."""

    forms: ClassVar[dict[str, str]] = {".ll": "IR", ".s": "assembly", ".o": "object code"}
    text_form, comment = ".s", "#"
    target: CpuTarget

    @property
    def binary(self) -> bytes:
        """A relocatable ELF object."""
        from tilewright.compiler import llvm
        self.function       # noqa: B018    # ValueError if there is none
        return llvm.object_code(self.functions, self.code_target, jit=False)

    @cached_property
    def resources(self) -> HotLoop:
        """The hot loop, counted: FMAs, loads, vector registers, spills. ValueError if there is no code.

        Of the function that takes the longest: for a GEMM the micro-kernel that most of C is computed by.
        """
        return self.loop()

    def loop(self, function: str | None = None) -> HotLoop:
        from tilewright.inspect.resources import hot_loop
        return hot_loop(self.asm, function)

    def report(self, function: str | None = None) -> str:
        loop = self.loop(function)
        return f"{loop.function}: " + ", ".join(f"{count} {what}" for what, count in loop.counts.items())

    @property
    def manifest(self) -> dict[str, Any]:
        """The function that is called, and the parameters that it takes."""
        from tilewright.ir.types import Pointer
        arguments = [{"name": name, "type": "ptr" if isinstance(value.type, Pointer) else str(value.type)}
                     for name, value in self.function.params]
        return {"symbol": self.function.name, "target": self.target.name, "functions": self.names,
                "arguments": arguments}


class CpuKernel(CompiledGemm, CpuCode):
    """A GEMM by one plan on a CPU."""

    def __init__(self, problem: Gemm, target: CpuTarget, planned: Planned) -> None:
        if problem.semiring and (problem.epilogue or semirings.state(problem.semiring)):
            raise ValueError("a compiled kernel for a CPU has no epilogue and no state of several fields in a "
                             f"semiring, and {problem} has: tilewright.contract takes both")
        super().__init__(problem, target, planned.plan)
        self.planned = planned

    @property
    def shape(self) -> Shape:
        """The product as it is multiplied."""
        return self.planned.shape

    @property
    def code_target(self) -> CpuTarget:
        return self.planned.target

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the plan needs: micro-kernels for the tiles that this C has, packing for these layouts, and last the
        loops."""
        if self.empty:
            return ()
        loops, *others = self._recorded[1].found
        return *others, loops

    @cached_property
    def _recorded(self) -> tuple[Recipe, Parts]:
        """The recipe, and what it asked for."""
        shape, strides, target, plan, _ = self.planned
        if plan.copy and not plan.word:
            shape, strides = engine.with_copy(shape, strides, plan)
        asked_for = Parts()
        if self.problem.fused:
            return fused_problems.ask(self.problem, self.planned, self.word, asked_for), asked_for
        return Recipe(shape, strides, plan, target, asked_for), asked_for

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when it is read
        """The functions, recorded."""
        return tuple(part.record(self.code_target) for part in self.parts)

    def loop(self, function: str | None = None) -> HotLoop:
        """By default of the micro-kernel that most of C is computed by, the first of the functions; smaller ones may be
        unrolled."""
        self.function       # noqa: B018    # ValueError if there is none
        return super().loop(function or self.functions[0].name)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the loops' function, whose argument is a job (kernels/cpu/jobs.py)."""
        return super().manifest | {"plan": str(self.plan), "problem": str(self.problem)}

    @property
    def asked(self) -> tuple[artefact.Asked, ...]:
        """With the builtin, the pool and what is asked for by a call: factors, a batch, small products."""
        if self.empty:
            return ()
        shape, _, target, plan, _ = self.planned
        parts = [(part.emitter, target, part.args) for part in (*self.parts, *small.parts(shape, plan, target))]
        recipe, _ = self._recorded
        if recipe.scaled_after:
            parts.append(("skinny:emit_scale", target, (recipe.added_in,)))
        if self.problem.batch != 1:
            parts.append(("gemm:emit_batch", target, ()))
        parts += [("entry:emit_entry", self.target, (object.__basicsize__,)), ("pool:emit_pool", self.target, ())]
        return tuple(artefact.Asked(f"tilewright.kernels.cpu.{emitter}", of, args, {}) for emitter, of, args in parts)

    @property
    def chosen(self) -> tuple[tuple[Any, Any], ...]:
        return ((self.shape, self.plan),)

    @property
    def launches(self) -> tuple[Launch, ...]:
        return () if self.empty else (Launch(self, (self.plan.threads, 1, 1)),)

    # ---- running

    def __call__(self, a: Array, b: Array, out: Array | None = None, **options: Any) -> Any:
        """Multiplies, as CompiledGemm.__call__. For a problem with an epilogue, `operands` are arrays by name, in the
        formats and places that it says, and `outs` arrays for its further results, or None for new ones: all results
        are a tuple then, in their order."""
        return self.bind(a, b, out, **options)()

    def bind(self, a: Array, b: Array, out: Array | None = None, *, alpha: complex = 1.0, beta: complex = 0.0,
             operands: Mapping[str, Any] | None = None, outs: Sequence[Array | None] = ()) -> CpuBound:
        """A call with these operands: see CpuBound. Operands are decoded and converted as tilewright.matmul does
        it, and nothing else is copied. RuntimeError if this machine cannot run the target's code."""
        self.target.require_runnable()
        p = self.problem
        p.check_factors(alpha, beta)
        self._operand(a, "a", p.shape_a)
        self._operand(b, "b", p.shape_b)
        if out is None:
            if beta != 0:
                raise ValueError(f"out must be given if beta is not 0, and beta is {beta}")
            out = np.empty(p.shapes["out"], formats.FORMATS[p.out].dtype)
        else:
            self._check_out(out, a, b)
        return CpuBound(self, a, b, out, alpha, beta, operands, outs)

    def fuse(self, a: Any, b: Any, out: Array, alpha: Any, beta: Any, operands: Mapping[str, Any] | None,
             outs: Sequence[Array | None], compute: Callable[..., Any] = fusion.compute) -> Any:
        """The results of the epilogue."""
        return fused_problems.by_problem(self.problem, self.planned, self.word, a, b, out, alpha, beta, operands, outs,
                                         compute)

    def multiply(self, a: Any, b: Any, out: Array, alpha: Any, beta: Any, gemm: Callable[..., Any]) -> None:
        """A product by `gemm(kernel, a, b, c, alpha, beta, conj)`, which takes operands as the engine does: decoded or
        converted before, if packing does not convert them, and complex ones rewritten. It is true if an element is none
        of those that this kernel's words hold: then the native product is computed."""
        taken = lowering.taken_operands(self.problem, self.plan.threads)
        if self.problem.blocks:
            alpha = alpha * a.tensor_scale * b.tensor_scale
            if taken.a == "bf16" and decoding.flushed(a, b):
                self.native.multiply(decoding.decoded(a), decoding.decoded(b), out, alpha, beta, gemm)
                return
            a, b = (decoding.decoded(x, formats.FORMATS[taken.a].dtype) for x in (a, b))
        a, b = (x.astype(formats.FORMATS[f].dtype, copy=False) for x, f in ((a, taken.a), (b, taken.b)))
        stored = formats.FORMATS[taken.sums if beta else taken.out].dtype
        c = out if out.dtype == stored and not (beta and self.splits) else np.empty(out.shape, stored)
        native = False

        def run(a: Array, b: Array, c: Array, alpha: Any = 1.0, beta: Any = 0.0, whole: bool = False,
                conj: str = "") -> bool:
            nonlocal native
            native = bool(gemm(self, a, b, c, alpha, beta, conj))
            return True
        with np.errstate(all="ignore"):
            if beta and c is not out:
                c[...] = out.astype(stored)
            (complex_product.by_real_products(run) if c.dtype.kind == "c" else run)(a, b, c, alpha, beta)
            if native:
                self.native.multiply(a, b, out, alpha, beta, gemm)
            elif c is not out:
                out[...] = c.astype(out.dtype)

    @property
    def word(self) -> str:
        """What the engine is to multiply: a word, or "" for elements."""
        return self.shape.dtype if self.shape.depth else ""

    @property
    def splits(self) -> bool:
        """Whether elements are multiplied as several terms, which not every number has."""
        return self.shape.tiles and TILE_WORDS[self.word].terms > 1

    @cached_property
    def native(self) -> CpuKernel:
        """The kernel for operands that this one's words do not hold."""
        p = self.problem
        plain = Gemm(p.m, p.n, p.k, "f32", "f32", p.out, "nt", p.batch) if p.blocks else p
        return CpuKernel(plain, self.target, engine.plan_problem(plain, self.target, self.shape.threads))

    def gemm(self, a: Array, b: Array, c: Array, alpha: Any, beta: Any, conj: str) -> bool:
        """The engine's product by this plan; whether an element has no terms."""
        how = {"threads": self.plan.threads, "plan": self.plan, "target": self.target, "word": self.word, "conj": conj,
               "semiring": self.shape.semiring}
        if c.ndim == 3 and self.splits:
            return any(engine.gemm(*matrices, alpha, beta, **how) for matrices in zip(a, b, c))
        return engine.gemm(a, b, c, alpha, beta, **how)

    def _operand(self, x: Any, name: str, stored: tuple[int, int]) -> None:
        letter = self.problem.layout["ab".index(name)]
        is_stored = letter == "t" and getattr(x, "shape", None) == stored
        self._array(x, name, f"; operands are passed in the shape that is multiplied: pass {name}.T" * is_stored)
        wanted = order(*lowering.contiguous(x.shape[-2], x.shape[-1], letter))
        if isinstance(x, np.ndarray) and x.size and self._order(x) != wanted:
            raise ValueError(f"{name} must have contiguous {wanted}, as layout {self.problem.layout!r} requires, "
                             f"but its strides are {x.strides} bytes")

    def _order(self, x: Array) -> str:
        return order(*engine.strides(x[0] if x.ndim == 3 else x))

    def _array(self, x: Any, name: str, hint: str = "") -> None:
        check_operand(name, x, getattr(self.problem, name), self.problem.shapes[name], hint=hint)
        if isinstance(x, np.ndarray) and (not x.flags.aligned or any(stride % x.itemsize for stride in x.strides)):
            raise ValueError(f"{name} must be aligned to its elements, but its strides are {x.strides} bytes")

    def _check_out(self, out: Any, a: Array, b: Array) -> None:
        self._array(out, "out")
        if not out.flags.writeable:
            raise ValueError("out is read-only")
        if out.size and self._order(out) != "rows":
            raise ValueError(f"out must have contiguous rows, but its strides are {out.strides} bytes")
        if any(isinstance(x, np.ndarray) and np.may_share_memory(out, x) for x in (a, b)):
            raise ValueError("out must not overlap a or b; tilewright.matmul copies operands where they overlap")


class CpuBound:
    """A kernel with its operands: `bound()` multiplies into `bound.out` and returns it. The arrays are kept, and what
    they hold when it is called is multiplied."""

    def __init__(self, kernel: CpuKernel, a: Array, b: Array, out: Array, alpha: Any, beta: Any,
                 operands: Mapping[str, Any] | None = None, outs: Sequence[Array | None] = ()) -> None:
        self.kernel, self.out = kernel, out
        self._operands = a, b, out, alpha, beta
        self._fused = operands, outs

    def __call__(self) -> Any:
        if self.kernel.problem.fused:
            return self.kernel.fuse(*self._operands, *self._fused)
        self.kernel.multiply(*self._operands, CpuKernel.gemm)
        return self.out


CODE = CpuCode


def compile(problem: Gemm, target: CpuTarget, plan: CpuPlan | None = None, algorithm: str | None = None) -> CpuKernel:
    """Compiles as tilewright.compile says. Operands are taken to be contiguous."""
    if plan is None:
        planned = engine.plan_problem(problem, target, algorithm=algorithm)
        asides = few_rows.asides(planned.shape, by_columns=True)           # as its operands are contiguous
        return CpuKernel(problem, target, engine.decoding(planned, asides))
    lowered = lowering.lower_problem(problem, amx.permitted(target), min(plan.threads, MOST_THREADS))
    kernel = CpuKernel(problem, target, Planned(*lowered, plan))
    if reasons := [] if kernel.empty else plan.violations(lowered.shape, lowered.target):
        raise ValueError(f"plan {plan} cannot run {problem} on {target.name}: " + " ".join(reasons))
    return kernel
