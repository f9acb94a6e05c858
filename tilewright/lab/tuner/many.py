"""Many products tuned one after the other: what was measured before on this chip is passed over, so that a run that was
interrupted goes on where it ended; each result is stored when it is there."""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.attention_problem import Attention
from tilewright.lab.tuner.search import CPU_S, GPU_S, Result, tune
from tilewright.lab.tuner.space import here, space_of
from tilewright.plans.measured import choice
from tilewright.problem import Gemm
from tilewright.runtime.cpu import engine
from tilewright.shape_list import Listed
from tilewright.targets import CpuTarget


@dataclass(frozen=True)
class Task:
    """A product to be measured, by so many threads; on a GPU None. `reason`: why it is not, or ""."""
    problem: Gemm | Attention
    threads: int | None
    reason: str = ""


@dataclass(frozen=True)
class Step:
    """How far a run is. `result` is None before the task is measured, and where it failed, for this `reason`."""
    task: Task
    number: int
    of: int
    seconds_left: float
    result: Result | None = None
    reason: str = ""


def tasks(listed: Iterable[Listed], chip: Any, threads: Iterable[int | None] = (), again: bool = False) -> list[Task]:
    """What is to be measured on this chip, and what is not. `threads`: instead of those that the shapes have. `again`:
    what was measured before, too."""
    on_cpu = isinstance(chip, CpuTarget)
    there = chip if on_cpu else here(chip)
    distinct: dict[Task, None] = {}
    for line in listed:
        if on_cpu and isinstance(line.problem, Gemm) and line.problem.batch > 1:    # a batch runs by the plan of one
            line = replace(line, problem=replace(line.problem, batch=1))
        for count in (list(threads) or [line.threads or engine.default_threads(chip)]) if on_cpu else [None]:
            before = not again and _tuned(line.problem, there, count)
            distinct[Task(line.problem, count, line.unlike(chip) or "it was measured before" * before)] = None
    return [*distinct]


def _tuned(problem: Any, chip: Any, threads: int | None) -> bool:
    if not problem.flops:
        return False
    try:
        there = space_of(problem, chip, threads)
        return choice.tuned(there.shape, there.target)
    except (ValueError, TypeError, NotImplementedError):        # tune says why
        return False


def run(wanted: Iterable[Task], chip: Any, time_limit: float | None = None, **options: Any) -> Iterator[Step]:
    """Measure these: a Step before each and one behind it. `seconds_left`: from the seconds of those that are done.
    `options`: of tune."""
    waiting = [task for task in wanted if not task.reason]
    seconds = time_limit or (CPU_S if isinstance(chip, CpuTarget) else GPU_S)
    began = time.monotonic()
    for done, task in enumerate(waiting):
        if done:
            seconds = (time.monotonic() - began) / done
        yield Step(task, done + 1, len(waiting), (len(waiting) - done) * seconds)
        try:
            result, why = tune(task.problem, chip, threads=task.threads, time_limit=time_limit, **options), ""
        except (RuntimeError, ValueError, TypeError) as error:
            result, why = None, " ".join(str(error).split())
        yield Step(task, done + 1, len(waiting), (len(waiting) - done - 1) * seconds, result, why)
