"""A step of any ladder, by name: its code for a target, and a product by it in the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import simulator
from tilewright.compiled import compile
from tilewright.ladder.gpu11_texture import aligned
from tilewright.ladder.gpu13_dispatch import choose
from tilewright.ladder.gpu_steps import GPU_STEPS
from tilewright.ladder.names import Choice, step
from tilewright.simulator.occupancy import assembled
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, Target

if TYPE_CHECKING:
    from tilewright.compiled.base import Compiled
    from tilewright.problem import Gemm

Array = NDArray[Any]
FALLBACK = "stored"  # for the step "texture": the GPU step before it, which takes every matrix


def compiled(name: str, target: Target, dtype: str = "f32") -> Compiled:
    """The code of a step. ValueError for a name that is none on the target's ladder, and for "dispatch", which has no
    code of its own. `dtype`: of a CPU's, f32 or f64."""
    found = step(name, target)
    if isinstance(found, Choice):
        raise ValueError(f"step {found.title} has no kernel of its own: it launches {' or '.join(found.among)}; name "
                         "one of them")
    if isinstance(target, AmdTarget):
        return compile.compiled(found.emit(target.name), target, (1,))
    if isinstance(target, GpuTarget):
        return compile.compiled(found.emit(), target)
    return compile.compiled(found.emit(target, dtype, *found.blocks(target, dtype, 1)), target)


def simulate(name: str, problem: Gemm, target: CpuTarget | GpuTarget, a: Array, b: Array, c: Array,
             beta: float = 0.0) -> tuple[simulator.Report, str]:
    """C = A B + beta C by a step in the simulator: what it did, and a sentence where another step took its place, else
    "". A CPU's steps know no beta. ValueError if the step cannot multiply these; simulator.Fault if it does wrong."""
    found = step(name, target)
    kind = "CPU" if isinstance(target, CpuTarget) else "GPU"
    formats = ("f32", "f64") if kind == "CPU" else ("f32",)
    if problem.layout != "nn" or problem.a not in formats or not problem.a == problem.b == problem.out:
        raise ValueError(f"the steps of the {kind} ladder are for --dtype {' or '.join(formats)} --layout nn")
    if isinstance(target, CpuTarget):
        if beta:
            raise ValueError("the steps of the CPU ladder compute C = A B: they know no --beta")
        return _on_cpu(found, problem, target, a, b, c), ""
    note = ""
    m, n, k = sizes = problem.m, problem.n, problem.k
    if isinstance(found, Choice):
        name = choose(target, m, n, k, 0, k, 0, n)
        note = f"{found.title} chooses step {GPU_STEPS[name].title}"
    elif found.textures and not aligned(m, n, k, 0, k, 0, n):
        name, note = FALLBACK, (f"step {found.title} reads A and B in pieces of 16 bytes, for which n and k must be "
                                f"multiples of 4, and all of m, n and k more than 0; step {GPU_STEPS[FALLBACK].title} "
                                "takes its place, as in step 13 dispatch")
    chosen = GPU_STEPS[name]
    function = chosen.emit()
    operands = (a.ravel(), b.ravel()) if chosen.textures else (a, b)
    report = simulator.run(function, *sizes, 1.0, operands[0], k, operands[1], n, beta,
                           c if beta else simulator.uninitialised(c), n, grid=chosen.grid(m, n), target=target.name)
    report.occupancy = assembled(function, target)
    return report, note


def _on_cpu(found: Any, problem: Gemm, target: CpuTarget, a: Array, b: Array, c: Array) -> simulator.Report:
    sizes, dtype, team = (problem.m, problem.n, problem.k), problem.a, 2 if found.parallel else 1
    blocks = found.blocks(target, dtype, team)
    work = np.zeros(max(1, found.work(target, dtype, *sizes, *blocks)), a.dtype)
    function = found.emit(target, dtype, *blocks)
    arrays = a, b, simulator.uninitialised(c), simulator.uninitialised(work)
    if not found.parallel:
        return simulator.run(function, *sizes, *arrays[: len(function.params) - 3])
    memory, barrier = simulator.AddressSpace(), np.zeros(2, np.int64)
    addresses = (memory.address(x) for x in (*arrays, barrier))
    *operands, meet = addresses
    job = np.array([*sizes, *operands, team, meet], np.int64)
    return simulator.run_team(function, job.view(np.int8), threads=team, memory=memory)
