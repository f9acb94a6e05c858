"""`tilewright.compile`: one plan for one problem on one target, as code that can be read, counted, written out and run.

Reading needs no such chip: a kernel for another machine is recorded, lowered and assembled here, and only calling it is
refused. What is read is what runs: a test compares `parts` with what the engine loads.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tilewright import formats
from tilewright.compiler import llvm
from tilewright.forks import cached_property
from tilewright.inspect import resources
from tilewright.kernels.cpu import jobs
from tilewright.plans import asked
from tilewright.plans.choose import choose
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.runtime.cpu import engine, pool
from tilewright.runtime.cpu.recipe import Strides, order
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, coerce

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.problem import Gemm

Array = NDArray[Any]


class Part(NamedTuple):
    """An emitter of tilewright.kernels.cpu and its arguments after the target: one recorded function."""
    emitter: str                # "microkernel:emit_microkernel"
    args: tuple[Any, ...]


class Kernel:
    """The code of one plan. `kernel(a, b, out=c)` runs it; everything else can be had for any target."""

    def __init__(self, problem: Gemm, target: CpuTarget, plan: CpuPlan) -> None:
        self.problem, self.target, self.plan = problem, target, plan
        self.shape, self.strides = _laid_out(problem, plan.threads)

    def __repr__(self) -> str:
        return f"<Kernel {self.problem} on {self.target.name}: {self.plan}>"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the plan needs: micro-kernels for the tiles that this C has, packing for these layouts, the loops."""
        return tuple(dict.fromkeys(_parts(self.shape, self.strides, self.plan, self.target)))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The same, recorded."""
        found = []
        for part in self.parts:
            module, _, name = part.emitter.partition(":")
            emitter = getattr(import_module(f"tilewright.kernels.cpu.{module}"), name)
            with llvm.uncollected():
                found.append(emitter(self.target, *part.args))
        return tuple(found)

    @cached_property
    def llvm(self) -> str:
        """LLVM IR, as it was lowered and before optimisation."""
        return llvm.text(self.functions, self.target) if self.functions else _EMPTY

    @cached_property
    def asm(self) -> str:
        """Assembly after optimisation."""
        return llvm.assembly(self.functions, self.target) if self.functions else ""

    @property
    def object(self) -> bytes:
        """A relocatable ELF object with the same functions."""
        module, machine = llvm.optimise(self._some_functions(), self.target)
        return bytes(machine.emit_object(module))

    @cached_property
    def resources(self) -> resources.HotLoop:
        """The hot loop, counted: FMAs, loads, vector registers, spills. ValueError if the product is empty.

        Of the micro-kernel that most of C is computed by, the first of the functions; smaller ones may be unrolled.
        """
        return resources.hot_loop(self.asm, self._some_functions()[0].name)

    def _some_functions(self) -> tuple[Function, ...]:
        if not self.functions:
            raise ValueError(f"{self.problem} is an empty product, for which there is no code")
        return self.functions

    # ---- running

    def __call__(self, a: Array, b: Array, out: Array | None = None, *, alpha: float = 1.0,
                 beta: float = 0.0) -> Array:
        """alpha * A @ B + beta * out, by this plan on this machine; into `out`, or into a new array.

        a and b are given as they are multiplied, [m, k] and [k, n] (with a leading axis if the problem has a batch):
        an operand of layout "t" is a view like x.T whose columns are contiguous. Nothing is converted or copied, which
        is what tilewright.matmul is for. RuntimeError if this machine cannot run the target's code.
        """
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
        gemm = engine.gemm_batched if batch else engine.gemm
        gemm(a, b, out, float(alpha), float(beta), threads=self.plan.threads, plan=self.plan, target=self.target)
        return out

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


def compile(problem: Gemm, target: Any = None, plan: Any = None) -> Any:
    """The kernel for a problem on a target (default: this machine) by a plan: a Kernel for a CPU, a GpuKernel
    (compiler.gpu) for a GPU of NVIDIA's, an AmdKernel (compiler.amd_gemm) for one of AMD's. Target and plan are
    records, or the texts of these: "x86-avx2", "packed 6x16 mc=96 kc=256 nc=4080".

    Without a plan it is the one that tilewright.matmul runs: what the tuner measured to be best, else what the model of
    the caches expects to be, for as many threads as matmul would use. ValueError with every reason if the plan cannot
    run the problem on the target.
    """
    asked.problem(problem)
    target = coerce(target)
    plan = asked.plan(plan, target)
    if isinstance(target, GpuTarget):
        from tilewright.compiled import nvidia
        return nvidia.compile(problem, target, plan)
    if isinstance(target, AmdTarget):
        from tilewright.compiled import amd
        return amd.compile(problem, target, plan)
    asked.supported(problem, target.name, single=True)
    if plan is None:
        shape = _laid_out(problem, pool.get_num_threads())[0]
        plan = engine.tuned(shape, target) or choose(shape, target)
    shape = _laid_out(problem, plan.threads)[0]
    reasons = plan.violations(shape, target) if shape.m and shape.n and shape.k else []    # else nothing will run
    if reasons:
        raise ValueError(f"plan {plan} cannot run {problem} on {target.name}: " + " ".join(reasons))
    return Kernel(problem, target, plan)


_EMPTY = "; the product is empty: there is no code\n"


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
