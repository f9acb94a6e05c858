"""The process in which a plan is launched on a GPU, to be timed or, under ncu, to be counted (measured.py).

It is given a `Launched` (measure/process.py). Its events:

    {"event": "wrong", "reason"}        the product differs from float64's
    {"event": "seconds", "seconds"}     of a product, in each round
    {"event": "launched"}               the product has been launched once, and is right
"""
from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.lab.measure import measure
from tilewright.lab.measure.gpu_rules import GpuRules
from tilewright.lab.measure.process import Emit, serve

if TYPE_CHECKING:
    from tilewright.problem import Gemm


@dataclass(frozen=True)
class Launched:
    problem: Gemm
    target: Any
    plan: str
    seconds: int                # after which the process ends itself
    timed: bool                 # else the product is launched once


class _Once:
    """A tuner's contender that has one set of operands: a profiler replays a launch, and keeps the memory it writes."""

    def sets_of(self, size: int) -> int:
        return 1


def run(job: Launched, emit: Emit) -> None:
    from tilewright.lab.tuner.on_gpu import OnGpu
    with suppress(AttributeError):              # there are no alarms on Windows
        signal.alarm(job.seconds)
    by = (OnGpu if job.timed else type("Once", (_Once, OnGpu), {}))(job.problem, job.target)
    calls = by.tried(job.plan)
    if wrong := by.wrong():
        emit("wrong", reason=wrong)
        return
    if job.timed:
        found = measure.interleave({"plan": calls}, GpuRules.quick(), track=by.track)["plan"]
        emit("seconds", seconds=list(found.seconds))
    emit("launched")


def main() -> None:
    serve(run)
