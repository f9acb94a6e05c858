"""A compiled CPU kernel's product on NumPy: the engine's own way, with recorded functions, memory and threads of the
simulator in place of the process's."""
from __future__ import annotations

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Function
from tilewright.kernels.cpu.jobs import BARRIER_BYTES
from tilewright.runtime.cpu import engine
from tilewright.runtime.cpu.host import Host, Part
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.report import Report
from tilewright.targets import CpuTarget

Array = NDArray[Any]


class SimulatedHost(Host):
    """Functions at simulated addresses, each recorded when it is first asked for; one thread after the other, a team
    as the simulator interleaves it.

    recorded    functions that are recorded already
    """

    def __init__(self, memory: AddressSpace, recorded: dict[Part, Function] | None = None) -> None:
        super().__init__()
        self.memory, self.recorded, self.functions = memory, dict(recorded or {}), dict[int, Function]()
        self.report: Report | None = None

    def address(self, name: str, emitter: str, target: CpuTarget, *args: Any) -> int:
        part = Part(emitter, args)
        if part not in self.recorded:
            self.recorded[part] = part.record(target)
        found = self.memory.address(self.recorded[part])
        self.functions[found] = self.recorded[part]
        return found

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

    def run_parts(self, function: int, job: Any, parts: int, threads: int, wake: bool) -> None:
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

    def run(self, a: int, b: int, c: int, alpha: Any, beta: Any) -> bool:
        for address, name in zip((a, b, c), self.names):
            region = self.host.memory.find(address)
            if region is not None and not region.name:
                region.name = name
        return super().run(a, b, c, alpha, beta)

    def _run_packed(self, job: array) -> None:
        plan = self.plan
        for field, name, size in (("a_space", "packed A", self.a_blocks * self.a_block),
                                  ("b_space", "packed B", self.b_blocks * self.b_block),
                                  ("sums", "sums", plan.jc_ways * self.sums),
                                  ("barriers", "barriers", plan.jc_ways * (1 + plan.ic_ways) * BARRIER_BYTES)):
            job[self.at[field]] = self.host.memory.address(np.zeros(size, np.uint8), name)
        struct = self.host.job(job)
        if plan.threads > 1:
            self.host.run_team(self.function, struct, plan.threads)
        else:
            self._call(struct, 0)


class CpuProduct:
    """Products of one compiled kernel."""

    def __init__(self, kernel: Any, alpha: Any, beta: Any) -> None:
        kernel.check_arrays()
        self.kernel, self.alpha, self.beta = kernel, alpha, beta
        self.host = SimulatedHost(AddressSpace(), dict(zip(kernel.parts, kernel.functions)))

    @property
    def report(self) -> Report:
        return self.host.report or Report(64)

    def run(self, a: Array, b: Array, c: Array) -> None:
        """As `kernel(a, b, c)` computes it."""
        for name, x in (("a", a), ("b", b), ("out", c)):
            if x.size:
                self.host.memory.address(x, name)
        self.kernel.multiply(a, b, c, self.alpha, self.beta, self._gemm)

    def _gemm(self, a: Array, b: Array, c: Array, alpha: Any, beta: Any, conj: str) -> None:
        if not c.size or not a.shape[1] or alpha == 0:          # nothing to multiply
            engine.scale(c, beta)
            return
        planned = self.kernel.planned
        lowered, transposed, conj = engine.lowered(a, b, c, planned.shape.threads, planned.target, self.kernel.word,
                                                   conj)
        recipe = engine.ready(planned._replace(shape=lowered.shape, strides=lowered.strides), conj,
                              make=SimulatedRecipe, host=self.host)
        swapped = transposed != planned.plan.swap
        recipe.names = ("b", "a", "out") if swapped else ("a", "b", "out")      # type: ignore[attr-defined]
        engine.run(recipe, swapped, a, b, c, alpha, beta)
