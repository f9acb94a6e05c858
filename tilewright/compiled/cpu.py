"""Functions for a CPU, and a GEMM by one plan on it, as code that can be read, counted, written out and run.

Reading needs no such chip: a kernel for another machine is recorded, lowered and assembled here, and only calling it is
refused. What is read is what runs: a test compares `parts` with what the engine loads.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tilewright import formats
from tilewright.compiled.base import Compiled, CompiledGemm, Launch, planned
from tilewright.forks import cached_property
from tilewright.inspect.resources import HotLoop, hot_loop
from tilewright.ir.types import Pointer
from tilewright.kernels.cpu import jobs
from tilewright.plans import asked
from tilewright.plans.choose import choose
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.runtime.cpu import engine, pool
from tilewright.runtime.cpu.recipe import Strides, order
from tilewright.targets import CpuTarget

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.problem import Gemm

Array = NDArray[Any]


class Part(NamedTuple):
    """An emitter of tilewright.kernels.cpu and its arguments after the target: one recorded function."""
    emitter: str                # "microkernel:emit_microkernel"
    args: tuple[Any, ...]


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
        return llvm.object_code(self.functions, self.target, jit=False)

    @cached_property
    def resources(self) -> HotLoop:
        """The hot loop, counted: FMAs, loads, vector registers, spills. ValueError if there is no code.

        Of the function that takes the longest: for a GEMM the micro-kernel that most of C is computed by.
        """
        return self.loop()

    def loop(self, function: str | None = None) -> HotLoop:
        return hot_loop(self.asm, function)

    def report(self, function: str | None = None) -> str:
        loop = self.loop(function)
        return f"{loop.function}: " + ", ".join(f"{count} {what}" for what, count in loop.counts.items())

    @property
    def manifest(self) -> dict[str, Any]:
        """The function that is called, and the parameters that it takes."""
        arguments = [{"name": name, "type": "ptr" if isinstance(value.type, Pointer) else str(value.type)}
                     for name, value in self.function.params]
        return {"symbol": self.function.name, "target": self.target.name, "functions": self.names,
                "arguments": arguments}


class CpuKernel(CompiledGemm, CpuCode):
    """A GEMM by one plan on a CPU."""

    def __init__(self, problem: Gemm, target: CpuTarget, plan: CpuPlan) -> None:
        super().__init__(problem, target, plan)
        self.shape, self.strides = _laid_out(problem, plan.threads)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the plan needs: micro-kernels for the tiles that this C has, packing for these layouts, the loops."""
        return tuple(dict.fromkeys(_parts(self.shape, self.strides, self.plan, self.target)))

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when somebody looks
        """The same, recorded."""
        from tilewright.compiler import llvm
        found = []
        for part in self.parts:
            module, _, name = part.emitter.partition(":")
            emitter = getattr(import_module(f"tilewright.kernels.cpu.{module}"), name)
            with llvm.uncollected():
                found.append(emitter(self.target, *part.args))
        return tuple(found)

    def loop(self, function: str | None = None) -> HotLoop:
        """By default of the micro-kernel that most of C is computed by, the first of the functions; smaller ones may be
        unrolled."""
        self.function       # noqa: B018    # ValueError if there is none
        return super().loop(function or self.functions[0].name)

    @property
    def manifest(self) -> dict[str, Any]:
        """The loops' function, which takes a job: `fields` of 8 bytes, in this order (kernels/cpu/jobs.py)."""
        return super().manifest | {"plan": str(self.plan), "problem": str(self.problem)}

    @property
    def launches(self) -> tuple[Launch, ...]:
        return () if self.empty else (Launch(self, (self.plan.threads, 1, 1)),)

    # ---- running

    def __call__(self, a: Array, b: Array, out: Array | None = None, *, alpha: float = 1.0,
                 beta: float = 0.0) -> Array:
        return self.bind(a, b, out, alpha=alpha, beta=beta)()

    def bind(self, a: Array, b: Array, out: Array | None = None, *, alpha: float = 1.0, beta: float = 0.0) -> CpuBound:
        """A call with these operands: see CpuBound. Nothing is converted or copied, which is what tilewright.matmul is
        for. RuntimeError if this machine cannot run the target's code."""
        self.target.require_runnable()
        p = self.problem
        batch = (p.batch,) if p.batch != 1 else ()
        a, b = (self._operand(x, name, batch + sizes, stored) for name, x, sizes, stored in (
            ("a", a, (p.m, p.k), p.shape_a), ("b", b, (p.k, p.n), p.shape_b)))
        if out is None:
            if beta != 0:
                raise ValueError(f"beta = {beta} needs an out to multiply")
            out = np.empty((*batch, p.m, p.n), self._dtype)
        else:
            self._check_out(out, (*batch, p.m, p.n), a, b)
        return CpuBound(self, a, b, out, float(alpha), float(beta))

    @property
    def _dtype(self) -> np.dtype[Any]:
        return formats.FORMATS[self.problem.out].dtype

    def _operand(self, x: Any, name: str, shape: tuple[int, ...], stored: tuple[int, int]) -> Array:
        letter = self.problem.layout["ab".index(name)]
        self._array(x, name)
        if x.shape != shape:
            hint = f"; it is given as it is multiplied, so pass {name}.T" if x.shape == stored and letter == "t" else ""
            raise ValueError(f"{name} must have shape {shape}, not {x.shape}{hint}")
        wanted = self.shape.a if name == "a" else self.shape.b
        if x.size and self._order(x) != wanted:
            raise ValueError(f"{name} must have contiguous {wanted}, as layout {self.problem.layout!r} says, but its "
                             f"strides are {x.strides} bytes")
        return x

    def _order(self, x: Array) -> str:
        matrix = x[0] if x.ndim == 3 else x
        return order(*engine._strides(matrix, x.itemsize))

    def _array(self, x: Any, name: str) -> None:
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array, not {type(x).__name__}")
        if x.dtype != self._dtype or not x.dtype.isnative:
            raise TypeError(f"{name} must have dtype {self._dtype}, as the problem says, not {x.dtype}")
        if not x.flags.aligned or any(stride % x.itemsize for stride in x.strides):
            raise ValueError(f"{name} must be aligned to its elements, but its strides are {x.strides} bytes")

    def _check_out(self, out: Any, shape: tuple[int, ...], a: Array, b: Array) -> None:
        self._array(out, "out")
        if out.shape != shape:
            raise ValueError(f"out must have shape {shape}, not {out.shape}")
        if not out.flags.writeable:
            raise ValueError("out is read-only")
        if out.size and self._order(out) != "rows":
            raise ValueError(f"out must have contiguous rows, but its strides are {out.strides} bytes")
        if np.may_share_memory(out, a) or np.may_share_memory(out, b):
            raise ValueError("out overlaps a or b; tilewright.matmul makes the copy that this needs")


class CpuBound:
    """A kernel with its operands: `bound()` multiplies into `bound.out` and returns it. The arrays are kept, and what
    they hold when it is called is multiplied."""

    def __init__(self, kernel: CpuKernel, a: Array, b: Array, out: Array, alpha: float, beta: float) -> None:
        self.kernel, self.out = kernel, out
        self._gemm = engine.gemm_batched if kernel.problem.batch != 1 else engine.gemm
        self._operands = a, b, out, alpha, beta

    def __call__(self) -> Array:
        kernel = self.kernel
        self._gemm(*self._operands, threads=kernel.plan.threads, plan=kernel.plan, target=kernel.target)
        return self.out


CODE = CpuCode


def compile(problem: Gemm, target: CpuTarget, plan: CpuPlan | None = None) -> CpuKernel:
    """As tilewright.compile says. Operands are taken to be contiguous."""
    asked.supported(problem, target.name, single=True)
    if plan is None:
        shape = _laid_out(problem, pool.get_num_threads())[0]
        plan = engine.tuned(shape, target) or choose(shape, target)
    return CpuKernel(problem, target, planned(plan, problem, _laid_out(problem, plan.threads)[0], target, choose))


def _laid_out(problem: Gemm, threads: int) -> tuple[Shape, Strides]:
    """The problem as the engine meets it when its operands are contiguous. The arrays here are never touched."""
    p, s = problem, formats.FORMATS[problem.compute].itemsize
    element = np.empty(1, formats.FORMATS[p.compute].dtype)

    def matrix(rows: int, cols: int, letter: str) -> Array:
        return as_strided(element, (rows, cols), (max(cols, 1)*s, s) if letter == "n" else (s, max(rows, 1)*s))
    a, b, c = matrix(p.m, p.k, p.layout[0]), matrix(p.k, p.n, p.layout[1]), matrix(p.m, p.n, "n")
    return engine._describe(a, b, c, threads)


def _parts(shape: Shape, strides: Strides, plan: CpuPlan, target: CpuTarget) -> list[Part]:
    """As runtime.recipe loads them."""
    if 0 in (shape.m, shape.n, shape.k):
        return []
    if plan.copy:
        shape, strides = engine._with_copy(shape, strides, plan)
    if plan.swap:
        shape, strides = shape.swapped, strides.swapped
    dtype, lanes = shape.dtype, target.lanes(shape.itemsize)
    if plan.algorithm in ("dots", "stream"):
        return [Part(f"{plan.algorithm}:emit_{plan.algorithm}", (dtype, plan.mr, plan.nr))]
    vectors = plan.nr // lanes
    a = "packed" if plan.algorithm == "packed" else "rows" if strides.csa == 1 else "columns"
    found = [Part("microkernel:emit_microkernel", kernel.arguments(dtype, a))
             for kernel in jobs.microkernels(shape.m, shape.n, plan.mr, plan.nr, lanes, a)]
    if plan.algorithm == "packed":
        along = {"rows": "along", "columns": "across", "any": "any"}
        found.append(Part("packing:emit_pack", (dtype, plan.mr, along[order(strides.rsa, strides.csa)])))
        found.append(Part("packing:emit_pack", (dtype, plan.nr, along[order(strides.csb, strides.rsb)])))
        return [*found, Part("gemm:emit_gemm", (dtype, plan.mr, vectors))]
    return [*found, Part("in_place:emit_in_place", (dtype, plan.mr, vectors))]
