"""`tilewright.simulate`: a whole product by a compiled kernel, on NumPy.

Here is how a CPU's runs, with its threads and its packed panels; `launches` has a GPU's.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.formats import Quantized
from tilewright.ir.program import Function
from tilewright.kernels.cpu.jobs import BARRIER_BYTES, Microkernel
from tilewright.kernels.cpu.scale import emit_scale
from tilewright.runtime.cpu import engine
from tilewright.runtime.cpu.kernel_addresses import Microkernels
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.simulator.launches import Launches
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import Memory
from tilewright.simulator.report import Report
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, coerce

Array = NDArray[Any]


def simulate(kernel: Any, *args: Any, out: Array | None = None, alpha: float = 1.0, beta: float = 0.0,
             grid: int | Sequence[int] | None = None, target: GpuTarget | AmdTarget | str | None = None) -> Report:
    """Run a kernel on NumPy, and report what each line of it moved and did; a Fault if it did wrong.

    simulate(kernel, a, b[, out])               what `compile` made, for a CPU or a GPU: alpha * A @ B + beta * out as
                                                `kernel(a, b, out)` computes it, to the last bit; `report.result`.
                                                a and b: arrays [m, k] and [k, n] of the problem's formats; of
                                                a block-scaled one Quantized, with blocks along k
    simulate(function, *args, grid=(x, y, z))   a kernel as it is recorded, on arguments in the order of its parameters;
                                                with a `target`, a GPU or its name, the report tells the
                                                occupancy, and counts conflicts over that chip's banks

    Threads, warps and CTAs run as on the machine, and a race between them is a Fault, as is any access outside the
    arrays or of unwritten elements. For any target, on any machine. For problems of a few hundred rows and
    columns: a CPU kernel takes about a second for a million multiply-adds, a GPU kernel for some ten million.
    """
    if isinstance(kernel, Function):
        if out is not None or (alpha, beta) != (1.0, 0.0):
            raise TypeError("a recorded function takes its arguments in order: out, alpha and beta are among them")
        return simulate_function(kernel, args, grid, None if target is None else coerce(target, GpuTarget | AmdTarget))
    if not hasattr(kernel, "problem"):
        raise TypeError("kernel must be what tilewright.compile made, or a recorded function, not "
                        f"{type(kernel).__name__} {kernel!r}")
    if grid is not None or target is not None:
        raise TypeError("grid and target are for recorded functions: a compiled kernel has its own")
    if not 2 <= len(args) <= 3 or (len(args) == 3 and out is not None):
        raise TypeError(f"a compiled kernel is simulated on a, b and optionally out, not on {len(args)} arrays"
                        + " and out" * (out is not None))
    a, b, out = (*args, out)[:3]
    return simulate_kernel(kernel, a, b, out, alpha, beta)


def simulate_kernel(kernel: Any, a: Any, b: Any, out: Array | None = None, alpha: float = 1.0,
                    beta: float = 0.0) -> Report:
    """A product by a compiled kernel: see `simulate`."""
    p = kernel.problem
    batch = (p.batch,) if p.batch != 1 else ()
    if out is None:
        if beta:
            raise ValueError(f"beta = {beta} needs an out to multiply")
        out = np.empty((*batch, p.m, p.n), formats.FORMATS[p.out].dtype)
    for name, x, sizes in ("a", a, (p.m, p.k)), ("b", b, (p.k, p.n)), ("out", out, (p.m, p.n)):
        _check(name, x, (*batch, *sizes), getattr(p, name))
    product = _Product(kernel, alpha, beta) if isinstance(kernel.target, CpuTarget) else Launches(kernel, alpha, beta)
    for index in range(p.batch):
        product.run(*((a[index], b[index], out[index]) if batch else (a, b, out)))
    product.report.result = out
    return product.report


def simulate_function(function: Function, args: Sequence[Any], grid: int | Sequence[int] | None,
                      target: GpuTarget | AmdTarget | None) -> Report:
    """A kernel as it is recorded, on its arguments in order: see `simulate`."""
    report = Machine(function, Memory(), {}, target=target.name if target else None).run_grid(args, grid)
    if target is not None:
        from tilewright.simulator.occupancy import assembled
        report.occupancy = assembled(function, target)
    return report


def _check(name: str, x: Any, shape: tuple[int, ...], format: str) -> None:
    if format in formats.BLOCK_FORMATS:
        if not isinstance(x, Quantized):
            raise TypeError(f"{name} must be Quantized ({format}), not {type(x).__name__}")
        if x.format.name != format or x.shape != shape or x.axis != (-1 if name == "a" else -2):
            raise ValueError(f"{name} must be {format} of shape {shape} with blocks along k, not {x!r}")
        return
    dtype = formats.FORMATS[format].dtype
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be an array, not {type(x).__name__}")
    if x.shape != shape or x.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} of shape {shape}, not {x.dtype} of {x.shape}")


class _Product:
    def __init__(self, kernel: Any, alpha: float, beta: float) -> None:
        self.kernel, self.plan, self.alpha, self.beta = kernel, kernel.plan, alpha, beta
        self.memory = Memory()
        self.machine = Machine(kernel.functions[-1], self.memory, {}) if kernel.functions else None
        self.report = self.machine.report if self.machine else Report(64)

    def run(self, a: Array, b: Array, c: Array) -> None:
        if self.machine is None or self.alpha == 0:         # nothing to multiply
            c[...] = c * c.dtype.type(self.beta) if self.beta else 0
            return
        plan, target = self.plan, self.kernel.target
        shape, strides = engine._describe(a, b, c, plan.threads)
        if plan.copy:
            shape, strides = engine._with_copy(shape, strides, plan)
        recipe = Recipe(shape, strides, plan, target, _Code(self.kernel, self.memory))
        if recipe.takes_c:
            self._multiply(recipe, a, b, c, self.beta)
            return
        rows = recipe.strides._replace(rsc=recipe.shape.n, csc=1)
        whole = np.empty((recipe.shape.m, recipe.shape.n), c.dtype)
        if self.beta:
            whole[...] = c.T if plan.swap else c
        self._multiply(Recipe(recipe.shape, rows, recipe.plan, target, recipe.code), a, b, whole, self.beta)
        c[...] = whole.T if plan.swap else whole

    def _multiply(self, recipe: Recipe, a: Array, b: Array, c: Array, beta: float) -> None:
        """As Recipe.run does it."""
        out, ld = self.memory.address(c, "out"), recipe.template[recipe.at["ldc"]] if "ldc" in recipe.at else 0
        if recipe.at_once(self.alpha, beta):
            self._run(recipe, a, b, out, ld, self.alpha, beta)
            return
        sums, wide = out, ld
        if beta:
            beside = np.empty(recipe.written, c.dtype)
            sums, wide = self.memory.address(beside, "sums"), beside.shape[1]
        self._run(recipe, a, b, sums, wide, 1.0, 0.0)
        function = emit_scale(self.kernel.target, recipe.added_in)
        job = np.array(recipe.scaling(sums, wide, out, self.alpha, beta))
        Machine(function, self.memory, {}, self.report).run_thread([job.view(np.int8), 0])

    def _run(self, recipe: Recipe, a: Array, b: Array, c: int, ld: int, alpha: float, beta: float) -> None:
        """The driver, with C at this address and its rows `ld` elements apart."""
        assert self.machine is not None
        plan, address = self.plan, self.memory.address
        (x, x_name), (y, y_name) = ((b.T, "b"), (a.T, "a")) if plan.swap else ((a, "a"), (b, "b"))
        if plan.copy:
            y = engine._copied(y, plan.reads_b == "rows")
        job = np.array(recipe.job(address(x, x_name), address(y, y_name), c, alpha, beta))
        if "ldc" in recipe.at:
            job[recipe.at["ldc"]] = ld
        if plan.algorithm != "packed":
            for part in range(plan.threads):
                self.machine.run_thread([job.view(np.int8), part])
            return
        for field, name, size in (("a_space", "packed A", plan.jc_ways * plan.ic_ways * recipe.a_block),
                                  ("b_space", "packed B", plan.jc_ways * recipe.b_block),
                                  ("barriers", "barriers", plan.jc_ways * (1 + plan.ic_ways) * BARRIER_BYTES)):
            job[recipe.at[field]] = address(np.zeros(size, np.uint8), name)
        struct = job.view(np.int8)
        self.machine.run_team([struct], plan.threads) if plan.threads > 1 else self.machine.run_thread([struct, 0])


class _Code:
    """What runtime.code is to the engine: the kernel's recorded functions, at addresses of the simulator."""

    def __init__(self, kernel: Any, memory: Memory) -> None:
        self.recorded, self.memory = dict(zip(kernel.parts, kernel.functions)), memory

    def address(self, emitter: str, *args: Any) -> int:
        """Of the function that runtime.code would load by this name and these arguments."""
        return self.memory.address(self.recorded[emitter, args])

    def driver(self, *_: Any) -> int:
        return self.memory.address(list(self.recorded.values())[-1])

    def packing(self, target: CpuTarget, *args: Any) -> int:
        return self.address("packing:emit_pack", *args)

    def microkernels(self, target: CpuTarget, dtype: str, mr: int, nr: int, a: str) -> Microkernels:
        return _Microkernels(self, target, dtype, mr, nr, a)


class _Microkernels(Microkernels):
    def __init__(self, code: _Code, target: CpuTarget, dtype: str, mr: int, nr: int, a: str) -> None:
        super().__init__(target, dtype, mr, nr, a)
        self.code, self.address = code, code.memory.address(self.table, "table")

    def compiled(self, kernel: Microkernel) -> int:
        return self.code.address("microkernel:emit_microkernel", *kernel.arguments(self.dtype, self.a))
