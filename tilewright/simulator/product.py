"""`tilewright.simulate`: a whole product by a compiled kernel, on NumPy.

A CPU kernel's product goes the engine's own way, with recorded functions, memory and threads of the simulator in place
of the process's (`CpuProduct`). A GPU kernel's goes launch after launch, with arguments found by the names of
parameters (`Launches`).
"""
from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.expressions.numerics import Numerics
from tilewright.formats import Quantized
from tilewright.formats.quantized import check_operand
from tilewright.ir import Function, TensorMap, Texture
from tilewright.kernels.cpu.jobs import BARRIER_BYTES, NOTHING, Beside
from tilewright.problem import kernel_arrays
from tilewright.rules.arguments import Array
from tilewright.runtime.cpu import engine, fusion
from tilewright.runtime.cpu.host import Host, Part
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.runtime.gpu import auxiliary, blocks
from tilewright.runtime.gpu.arrays import Look
from tilewright.runtime.gpu.operands import MAPPED, maps
from tilewright.simulator import occupancy
from tilewright.simulator.machine import SECTOR, Machine
from tilewright.simulator.memory import AddressSpace, uninitialised
from tilewright.simulator.report import Fault, Report
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, coerce
from tilewright.targets.tensor_maps import Mapped


def simulate(kernel: Any, *args: Any, out: Array | None = None, alpha: float = 1.0, beta: float = 0.0,
             scale_a: Any = None, scale_b: Any = None, grid: int | Sequence[int] | None = None,
             target: GpuTarget | AmdTarget | str | None = None) -> Report:
    """Run a kernel in NumPy, and report the traffic and instructions of each of its lines; a Fault if it is incorrect.

    simulate(kernel, a, b[, out])               a result of `compile`, for a CPU or a GPU: `report.result` is alpha *
                                                A @ B + beta * out as by `kernel(a, b, out)`, to the last bit.
                                                a and b: arrays [m, k] and [k, n] in the problem's formats, or
                                                Quantized with blocks along k for block-scaled ones; scale_a and
                                                scale_b as for that call
    simulate(function, *args, grid=(x, y, z))   a recorded kernel, on arguments in the order of its parameters;
                                                with a `target`, a GPU or its name, the report has the
                                                occupancy, and counts conflicts over that chip's banks

    Threads, warps and CTAs run as on the machine, and a race between them is a Fault, as is any access outside the
    arrays or of unwritten elements. It works for any target, on any machine, for problems of a few hundred rows and
    columns: a CPU kernel takes about a second for a million multiply-adds, a GPU kernel for some ten million.
    """
    if isinstance(kernel, Function):
        if out is not None or (alpha, beta, scale_a, scale_b) != (1.0, 0.0, None, None):
            raise TypeError("a recorded function takes its arguments in order: out, alpha, beta and scales are among "
                            "them")
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
    return simulate_kernel(kernel, a, b, out, alpha, beta, scale_a, scale_b)


def simulate_kernel(kernel: Any, a: Any, b: Any, out: Array | None = None, alpha: float = 1.0, beta: float = 0.0,
                    scale_a: Any = None, scale_b: Any = None, operands: Mapping[str, Any] | None = None,
                    outs: Sequence[Any] = ()) -> Report:
    """A product by a compiled kernel: see `simulate`."""
    p = kernel.problem
    if out is None:
        if beta:
            raise ValueError(f"out must be given if beta is not 0, and beta is {beta}")
        out = np.empty(p.shapes["out"], formats.FORMATS[p.out].dtype)
    for name, x in ("a", a), ("b", b), ("out", out):
        check_operand(name, x, getattr(p, name), p.shapes[name])
    p.check_factors(alpha, beta)
    given = auxiliary.scales_of_kernel(p, scale_a, scale_b)
    if not isinstance(kernel.target, CpuTarget):
        return _simulate_launches(kernel, a, b, out, alpha, beta, given, operands, outs)
    product = CpuProduct(kernel, alpha, beta)
    if p.fused:
        results = product.fused(a, b, out, operands, outs)
        product.report.result = results
        return product.report
    for matrices in zip(a, b, out) if p.batch != 1 else ((a, b, out),):
        product.run(*matrices)
    product.report.result = out
    return product.report


def _simulate_launches(kernel: Any, a: Any, b: Any, out: Array, alpha: float, beta: float,
                       given: Mapping[str, Any], operands: Mapping[str, Any] | None, outs: Sequence[Any]) -> Report:
    product, c = Launches(kernel.inner, alpha, beta, given, operands, outs), out
    if kernel.inner is not kernel:
        a, b, c = kernel.converted(a, b, out)
    product.run(a, b, c)
    product.report.result = out if c is out else kernel.delivered(c, out)
    return product.report


def simulate_function(function: Function, args: Sequence[Any], grid: int | Sequence[int] | None,
                      target: GpuTarget | AmdTarget | None) -> Report:
    """A kernel as it is recorded, on its arguments in order: see `simulate`."""
    report = Machine(function, AddressSpace(), {}, target=target.name if target else None).run_grid(args, grid)
    if target is not None:
        report.compiled = partial(occupancy.assembled, function, target)
    return report


# ---- on a CPU

class SimulatedHost(Host):
    """Functions at simulated addresses, each recorded when it is first asked for; one thread after the other, a team
    as the simulator interleaves it.

    recorded    functions that are recorded already
    """

    def __init__(self, memory: AddressSpace, recorded: dict[Part, Function] | None = None) -> None:
        super().__init__()
        self.memory, self.recorded, self.functions = memory, dict(recorded or {}), dict[int, Function]()
        self.report: Report | None = None

    def address(self, emitter: str, target: CpuTarget, *args: Any) -> int:
        part = Part(emitter, args)
        if part not in self.recorded:
            self.recorded[part] = part.record(target)
        recorded = self.memory.address(self.recorded[part])
        self.functions[recorded] = self.recorded[part]
        return recorded

    def of_table(self, table: Array) -> int:
        return self.memory.address(table, "table")

    def address_of(self, x: Array) -> int:
        return self.memory.address(x)

    def machine(self, function: int) -> Machine:
        made = Machine(self.functions[function], self.memory, {}, self.report)
        self.report = made.report
        return made

    # ---- memory and threads

    def take(self, size: int) -> Any:
        return SimpleNamespace(address=self.memory.address(np.empty(size, np.uint8), "sums"))

    def give(self, space: Any) -> None:
        pass

    def job(self, fields: array) -> Any:
        return np.frombuffer(fields, np.int8)

    def callable(self, function: int) -> Callable[[Any, int], object]:
        return lambda job, part: self.machine(function).run_thread([job, part])

    def run_parts(self, function: int, job: Any, parts: int, threads: int, wake: int) -> None:
        machine = self.machine(function)
        for part in range(parts):
            machine.run_thread([job, part])

    def run_team(self, function: int, job: Any, threads: int) -> bool:
        self.machine(function).run_team([job], threads)
        return True

    def reserve(self, threads: int) -> int:
        return threads


class SimulatedRecipe(Recipe):
    """A recipe on a SimulatedHost, whose blocks and barriers are arrays of their own."""
    host: SimulatedHost
    names = "a", "b", "out"         # of what the recipe reads and writes, where it is a copy or a temporary

    def run(self, a: int, b: int, c: int, alpha: Any, beta: Any, beside: Beside = NOTHING, index: int = 0) -> bool:
        for address, name in zip((a, b, c), self.names):
            region = self.host.memory.find(address)
            if region is not None and not region.name:
                region.name = name
        return super().run(a, b, c, alpha, beta, beside, index)

    def run_job(self, job: array) -> bool:
        plan = self.plan
        if plan.algorithm != "packed":
            return super().run_job(job)
        for field, name, size in (("a_space", "packed A", self.a_blocks * self.a_block),
                                  ("b_space", "packed B", self.b_blocks * self.b_block),
                                  ("sums", "sums", plan.jc_ways * self.sums),
                                  ("barriers", "barriers", plan.jc_ways * (1 + plan.ic_ways) * BARRIER_BYTES)):
            job[self.at[field]] = self.host.memory.address(np.zeros(size, np.uint8), name)
        struct = self.host.job(job)
        if plan.threads > 1:
            self.host.run_team(self.function, struct, plan.threads)
        else:
            self.call(struct, 0)
        return self.special is not None and job[self.special] != 0


class CpuProduct:
    """Products of one compiled kernel."""

    def __init__(self, kernel: Any, alpha: Any, beta: Any) -> None:
        self.kernel, self.alpha, self.beta = kernel, alpha, beta
        self.host = SimulatedHost(AddressSpace(), dict(zip(kernel.parts, kernel.functions)))

    @property
    def report(self) -> Report:
        return self.host.report or Report(64)

    def run(self, a: Any, b: Any, c: Array) -> None:
        """Simulate `kernel(a, b, c)`."""
        for name, x in (("a", a), ("b", b), ("out", c)):
            if isinstance(x, np.ndarray) and x.size:
                self.host.memory.address(x, name)
        self.kernel.multiply(a, b, c, self.alpha, self.beta, self._gemm)

    def fused(self, a: Any, b: Any, c: Array, operands: Mapping[str, Any] | None, outs: Sequence[Any]) -> Any:
        """The results of the kernel's epilogue, as the kernel computes them."""
        for name, x in (("a", a), ("b", b), ("out", c), *(operands or {}).items()):
            if isinstance(x, np.ndarray) and x.size:
                self.host.memory.address(x if x.base is None else x.base, name)
        compute = partial(fusion.compute, on=self.host, make=SimulatedRecipe)
        return self.kernel.fuse(a, b, c, self.alpha, self.beta, operands, outs, compute)

    def _gemm(self, kernel: Any, a: Array, b: Array, c: Array, alpha: Any, beta: Any, conj: str) -> bool:
        if not c.size or not a.shape[1] or alpha == 0:          # nothing to multiply
            engine.scale(c, beta)
            return False
        planned = kernel.planned
        lowered, transposed, conj = engine.lowered(a, b, c, planned.shape.threads, planned.target, kernel.word, conj,
                                                   Numerics(semiring=planned.shape.semiring))
        recipe = engine.ready(planned._replace(shape=lowered.shape, strides=lowered.strides), conj,
                              make=SimulatedRecipe, host=self.host)
        swapped = transposed != planned.plan.swap
        recipe.names = ("b", "a", "out") if swapped else ("a", "b", "out")      # type: ignore[attr-defined]
        return engine.run(recipe, swapped, a, b, c, alpha, beta)


# ---- on a GPU

class Launches:
    """`run(a, b, c)` by a compiled GPU kernel: its `problem`, `launches`, `target` and `resources` are used.

    m n k alpha a lda b ldb beta c ldc are those of C = alpha A @ B + beta C; beside them there are
    the arrays of `kernel_arrays`. `workspace` and `counters` are for CTAs that add up parts of sums.
    """

    def __init__(self, kernel: Any, alpha: float, beta: float, given: Mapping[str, Any],
                 operands: Mapping[str, Any] | None = None, outs: Sequence[Any] = ()) -> None:
        self.kernel, self.alpha, self.beta = kernel, alpha, beta
        self.memory, self.report = AddressSpace(), Report(SECTOR)
        placed = auxiliary.scales_placed(kernel.problem, given, lambda x, name: Look(x, None))
        self.scales = [x.shadow for x in placed]
        self.operands, self.outs = operands, list(outs)
        if kernel.launches:
            self.report.compiled = partial(occupancy.compiled_occupancy, kernel)

    def run(self, a: Array | Quantized, b: Array | Quantized, c: Array) -> None:
        """Matrices or stacks. Elements of c that no launch writes are a fault, and reading them first if beta is 0."""
        if not self.kernel.launches:
            c[...] = c * c.dtype.type(self.beta) if self.beta else 0
            return
        p, (target, ldc) = self.kernel.problem, _rows(c)
        alpha = self.alpha * factor if (factor := blocks.factor(a, b)) != 1 else self.alpha
        values = {"m": p.m, "n": p.n, "k": p.k, "alpha": alpha, "beta": self.beta, "ldc": ldc,
                  "batch": p.batch, "stride_c": target.strides[0] // c.itemsize,
                  "columns_c": c.shape[-1]}
        if c.dtype.kind == "c":
            values |= {"alpha": alpha.real, "alpha_imaginary": alpha.imag, "beta": self.beta.real,
                       "beta_imaginary": self.beta.imag}
        scale_arrays = list(self.scales)
        arrays: dict[str, Any] = {"c": target if self.beta else uninitialised(target)}
        for name, x, letter in zip("ab", (a, b), p.layout):
            if isinstance(x, Quantized):
                values["k"] = x.scales.shape[-1] * x.format.block           # of whole blocks
                arrays[name], by_rows = _bytes(x.elements), _bytes(x.scales)
                values |= {f"ld{name}": arrays[name].shape[-1], f"stride_{name}": arrays[name].strides[0]}
                scale_arrays.append(by_rows if name == "a" else by_rows.swapaxes(-1, -2))
            else:
                rows, values[f"ld{name}"] = _rows(x.swapaxes(-1, -2) if letter == "t" else x)
                values[f"stride_{name}"] = rows.strides[0] // rows.itemsize
                arrays[name] = rows.view(np.int8) if rows.itemsize == 1 else rows
        auxiliaries = auxiliary.of_kernel(p, scale_arrays, self.operands, self.outs, np.asarray)
        values |= auxiliary.strides(p, auxiliaries)
        results = {x.parameter: y for x, y in zip(kernel_arrays(p), auxiliaries) if x.written}
        arrays |= {x.parameter: uninitialised(y) if x.written else y for x, y in zip(kernel_arrays(p), auxiliaries)}
        if workspace := max(launch.workspace for launch in self.kernel.launches):
            arrays["workspace"] = uninitialised(np.zeros(workspace, np.uint8))
        if counters := max(launch.counters for launch in self.kernel.launches):
            arrays["counters"] = np.zeros(counters, np.uint8)
        at = {name: self.memory.address(x, name) for name, x in arrays.items()}
        for launch in self.kernel.launches:
            inside = {name: at["workspace"] + offset for name, offset in launch.at}
            if launch.zero[1]:
                self._zero(at["workspace"], *launch.zero)
            numbers: dict[str, Any] = {**values, **dict(launch.more)}
            tiles = {name: value.type.tile for name, value in launch.function.params
                     if isinstance(value.type, TensorMap)}
            mapped = {name: Mapped(described, {**at, **inside}[MAPPED[name]]) for name, described in (
                maps(tiles, self.kernel.shape, numbers) if tiles else {}).items()}
            given: dict[str, Any] = {**numbers, **at, **inside, **mapped}
            args: list[Any] = []
            for name, value in launch.function.params:
                if name in ("alpha", "beta") and not value.type.is_float and not float(values[name]).is_integer():
                    raise TypeError(f"{name} must be a whole number where integers are multiplied, not "
                                    f"{values[name]!r}")
                if isinstance(value.type, Texture):
                    args.append(_texels(arrays[name], value.type))
                else:
                    args.append(given[name])
            machine = Machine(launch.function, self.memory, {}, self.report, self.kernel.target.name)
            machine.run_grid(args, launch.grid)
        if not self.beta:
            self._check_written(at["c"], target)
        for name, result in results.items():
            self._check_written(at[name], result)
        if "counters" in arrays and arrays["counters"].any():
            raise self._fault("counters", "the counters are not 0 again, as the next call expects")
        if target is not c:
            c[...] = target

    def _zero(self, workspace: int, offset: int, size: int) -> None:
        region = self.memory.find(workspace)
        assert region is not None
        region.data[offset:offset + size] = 0
        if region.written is not None:
            region.written[offset:offset + size] = True

    def _fault(self, kind: str, message: str) -> Fault:
        function: Function = self.kernel.launches[-1].function
        return Fault(kind, function.body[-1].line, function.name, message)

    def _check_written(self, address: int, c: Array) -> None:
        region = self.memory.find(address)
        assert region is not None
        if region.written is None or not c.size:
            return
        written = region.written[sum(i * stride for i, stride in zip(np.indices(c.shape), c.strides))]
        if not written.all():
            raise self._fault("unwritten",
                              f"element {tuple(map(int, np.argwhere(~written)[0]))} of c has not been written")


def _rows(x: Array) -> tuple[Array, int]:
    """The matrix or stack, or a copy of it, by rows, and how many elements are from row to row."""
    rows, columns = x.shape[-2:]
    if (x.strides[-1] != x.itemsize and columns > 1) or (x.strides[-2] < columns * x.itemsize and rows > 1):
        x = np.ascontiguousarray(x)
    return x, x.strides[-2] // x.itemsize if rows > 1 else max(columns, 1)


def _bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.int8)


def _texels(x: Array, t: Texture) -> Array:
    """The elements as they lie in memory, up to a whole number of texels."""
    rows, columns = x.shape
    flat = np.lib.stride_tricks.as_strided(x, ((rows - 1) * x.strides[0] // x.itemsize + columns,), (x.itemsize,))
    return np.pad(flat, (0, -flat.size % t.length))
