"""The ladder of attention: from loops with all scores in memory to kernels in registers (docs/attention-derived.md).

    for step in ATTENTION_STEPS: print(counted(step, target, n, D))         counts of one head in the simulator

The first three steps are block programs (attention_naive.py), the others the kernels of tilewright.attention, by plans.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tilewright import simulator
from tilewright.attention_problem import Attention
from tilewright.compiled.attention import compile, expected
from tilewright.formats import FORMATS
from tilewright.ir import bf16, f32
from tilewright.lab.ladder.attention_naive import emit_online, emit_rows, emit_scores, emit_values
from tilewright.runtime.run import run
from tilewright.targets import CpuTarget, GpuTarget

Launch = tuple[Any, tuple[Any, ...], tuple[int, ...]]       # a function, its arguments, its grid


@dataclass(frozen=True)
class AttentionStep:
    """`programs(target, T, D, n, arrays)` are launches; or `plans`, of a CPU and of Hopper, name a kernel's plan."""
    title: str
    idea: str
    programs: Callable[..., list[Launch]] | None = None
    plans: tuple[str, str] = "", ""

    def runs_on(self, target: Any) -> bool:
        return self.programs is not None or bool(self.plan(target))

    def plan(self, target: Any) -> str:
        """The plan's text; "chosen": the planner's; "": a step of another kind of target."""
        return self.plans[0 if isinstance(target, CpuTarget) else 1]

    def kernel(self, target: Any, problem: Attention, threads: int | None = None) -> Any:
        text = self.plan(target)
        return compile(problem, target, None if text == "chosen" else text, threads)


def _naive(target: Any, T: Any, D: int, n: int, q: Any, k: Any, v: Any, o: Any, s: Any) -> list[Launch]:
    return [(emit_scores(target, T, D), (s, q, k, n), (n // 16, n)), (emit_rows(target, n), (s, n), (n,)),
            (emit_values(target, T, D), (o, s, v, n), (n,))]


def _tiled(target: Any, T: Any, D: int, n: int, q: Any, k: Any, v: Any, o: Any, s: Any) -> list[Launch]:
    return [(emit_scores(target, T, D, 64, 64), (s, q, k, n), (n // 64, n // 64)), (emit_rows(target, n), (s, n), (n,)),
            (emit_values(target, T, D, 64, 64), (o, s, v, n), (n // 64,))]


def _online(target: Any, T: Any, D: int, n: int, q: Any, k: Any, v: Any, o: Any, s: Any) -> list[Launch]:
    return [(emit_online(target, T, D), (o, q, k, v, n), (n // 64,))]


ATTENTION_STEPS = {
    "naive": AttentionStep("1 naive", "each query by itself, its scores in memory", _naive),
    "tiled": AttentionStep("2 tiled", "products of tiles of 64 queries and 64 keys, scores in memory", _tiled),
    "online": AttentionStep("3 online", "one pass with a level that rises: no scores in memory", _online),
    "registers": AttentionStep("4 in registers", "scores become operands of the second product where they are",
                               plans=("chosen", "attention_wgmma 64x64 stages=2")),
    "pipelined": AttentionStep("5 pipelined", "larger tiles of keys, and copies further ahead of them",
                               plans=("", "attention_wgmma 64x128 stages=3")),
    "turns": AttentionStep("6 in turns", "two warpgroups: one's products under the other's softmax",
                           plans=("", "attention_wgmma 128x128 stages=2")),
}


def arrays_of(target: Any, n: int, D: int) -> tuple[Any, ...]:
    """q, k, v, in f32 on a CPU and bf16 on a GPU, and o and s."""
    draw, dtype = np.random.default_rng(0), np.float32 if isinstance(target, CpuTarget) else FORMATS["bf16"].dtype
    q, k, v = draw.standard_normal((3, n, D), np.float32).astype(dtype)
    return q, k, v, np.full((n, D), np.nan, np.float32), np.full((n, n), np.nan, np.float32)


def _problem(target: Any, n: int, D: int) -> Attention:
    format = "f32" if isinstance(target, CpuTarget) else "bf16"
    return Attention(1, 1, 1, n, n, D, D, format, format, format, D**-0.5)


def counted(step: AttentionStep, target: CpuTarget | GpuTarget, n: int, D: int) -> dict[str, Any]:
    """A step in the simulator: launches, bytes of global memory, of these the scores', and of shared memory,
    instructions, of these matrix instructions, and the largest error beside float64. simulator.Fault for a wrong access
    or a race."""
    q, k, v, o, s = arrays_of(target, n, D)
    exact = expected(_problem(target, n, D), *(x[None, None] for x in (q, k, v)))[0, 0]
    if step.programs is not None:
        launches = step.programs(target, f32 if isinstance(target, CpuTarget) else bf16, D, n, q, k, v, o, s)
        reports = [simulator.run(f, *args, grid=grid, target=target.name) for f, args, grid in launches]
    else:
        kernel = step.kernel(target, _problem(target, n, D), 1)
        reports = [kernel.simulate(*(x[None, None] for x in (q, k, v)))]
        o = reports[0].result.reshape(n, D)
    kinds = sum((report.instructions for report in reports), Counter[str]())
    spaces = {space: sum(report.of(space=space).bytes for report in reports) for space in ("global", "shared")}
    error = float(np.abs(o.astype(np.float64) - exact).max())
    return {"step": step.title, "idea": step.idea, "launches": len(reports), "global": spaces["global"],
            "scores": sum(report.of("s", space="global").bytes for report in reports), "shared": spaces["shared"],
            "instructions": sum(kinds.values()), "matrix": kinds["mma"] + kinds["wgmma"], "error": error,
            "right": error < (1e-5 if isinstance(target, CpuTarget) else 2e-2)}


def milliseconds(step: AttentionStep, target: CpuTarget, n: int, D: int, rounds: int = 5) -> float:
    """A step's time on this CPU by the threads of the pool, the median of several."""
    q, k, v, o, s = arrays_of(target, n, D)
    if step.programs is not None:
        launches = step.programs(target, f32, D, n, q, k, v, o, s)

        def call() -> None:
            for f, args, grid in launches:
                run(f, *args, grid=grid)
    else:
        kernel, given = step.kernel(target, _problem(target, n, D)), [x[None, None] for x in (q, k, v)]

        def call() -> None:
            kernel(*given)
    call()
    times = []
    for _ in range(rounds):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return 1e3 * sorted(times)[rounds // 2]
