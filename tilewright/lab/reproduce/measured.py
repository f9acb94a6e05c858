"""What several rows of the article on CPUs measure together, once: peaks, steps, tiles, blocks."""
from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from rich.console import Console

import tilewright as tw
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.suites import tiles as study
from tilewright.lab.ladder import run, run_cpu, steps
from tilewright.lab.measure import check, cpu_peaks, measure, quiet
from tilewright.lab.measure.measure import Call, Rules, Sample
from tilewright.targets import CpuTarget, cpu

AVX2 = cpu.record(cpu.AVX2)
Array = np.ndarray[Any, np.dtype[Any]]


@cache
def peaks() -> list[cpu_peaks.CpuPeak]:
    return cpu_peaks.here()


def peak(instructions: str = "AVX2") -> cpu_peaks.CpuPeak:
    return next(x for x in peaks() if (x.format, x.instructions) == ("f32", instructions))


def native() -> CpuTarget:
    target = tw.detect()
    assert isinstance(target, CpuTarget)
    return target


def threads() -> int:
    return int(tw.get_num_threads())


def timed(n: int, calls: Mapping[str, Callable[[Array, Array, Array], Any]], team: int, quick: bool
          ) -> dict[str, Sample]:
    """Products of n x n by these functions of a, b and c, in turn on the same matrices, each checked once, with so many
    threads; of one thread the time is that which it had a CPU. RuntimeError for a wrong product."""
    before = tw.get_num_threads()
    tw.set_num_threads(team)
    try:
        return _timed(n, calls, team, quick)
    finally:
        tw.set_num_threads(before)


def _timed(n: int, calls: Mapping[str, Callable[[Array, Array, Array], Any]], team: int, quick: bool
           ) -> dict[str, Sample]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n, n)).astype(np.float32)
    outs = {name: np.empty((n, n), np.float32) for name in calls}
    ready: dict[str, list[Call]] = {}
    for name, call in calls.items():
        call(a, b, outs[name])
        if wrong := check.wrong(a, b, outs[name]):
            raise RuntimeError(f"{name} is wrong at {n}: {wrong}")
        ready[name] = [(call, (a, b, outs[name]))]
    if team == 1:
        return measure.interleave(ready, Rules.choose(1, quick), clock=time.thread_time)
    return measure.interleave(ready, Rules.choose(team, quick), settle=quiet.settle, disturbed=quiet.Watch().disturbed)


def gflops(n: int, sample: Sample) -> float:
    return 2.0 * n**3 / sample.spread.median / 1e9


def quartiles(n: int, sample: Sample) -> str:
    return f"{2.0 * n**3 / sample.spread.q3 / 1e9:.1f} to {2.0 * n**3 / sample.spread.q1 / 1e9:.1f}"


def product(a: Array, b: Array, c: Array) -> Any:
    return tw.matmul(a, b, out=c)


LADDER_N = 1000


@cache
def ladder(quick: bool) -> dict[str, Sample]:
    """The steps for one thread with AVX2, and tilewright.matmul, at LADDER_N."""
    n = LADDER_N
    one = {name: step for name, step in steps.CPU_STEPS.items() if not step.parallel}
    calls: dict[str, Any] = {name: run_cpu.prepare(name, n, n, n, "f32", AVX2) for name in one}
    return timed(n, calls | {OURS: product}, 1, quick)


def step_says(name: str, quick: bool) -> str:
    """The rate of a step now, and what share of the peak that is."""
    seconds = ladder(quick)
    rate = gflops(LADDER_N, seconds[name])
    best = peak().measured or 0.0
    return (f"Measured now with AVX2 on one thread, in CPU time, at n = {LADDER_N}: {rate:.1f} GFLOP/s, "
            f"{rate * 1e9 / best:.0%} of a loop of nothing but multiply-adds.")


def short(name: str, quick: bool) -> str:
    return f"{gflops(LADDER_N, ladder(quick)[name]):.1f} GFLOP/s"


@cache
def code(name: str, target: CpuTarget = AVX2) -> Any:
    """A step's compiled code."""
    return run.compiled(name, target, "f32")


@cache
def tiles(quick: bool) -> dict[str, Any]:
    """The register tiles of the article, or all that fit, with AVX2."""
    return study.run(AVX2, "f32", quick, Console(file=io.StringIO(), quiet=True))


@cache
def article_blocks(team: int, quick: bool) -> tuple[int, dict[str, Sample]]:
    """The size, and the article's order and blocks beside those of tilewright's steps and product, with AVX2."""
    n = 1600 if quick else 3000
    ours = "micro" if team == 1 else "parallel"
    step: Any = steps.ARTICLE
    calls: dict[str, Any] = {"the article's blocks": run_cpu.prepare(step, n, n, n, "f32", AVX2, team),
                             f"step {steps.CPU_STEPS[ours].title}": run_cpu.prepare(ours, n, n, n, "f32", AVX2, team),
                             "tilewright.matmul": product}
    return n, timed(n, calls, team, quick)
