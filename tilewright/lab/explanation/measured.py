"""How long what is explained takes, by the process that measures for the tuner (tuner/child.py), and what a plan moves
on an NVIDIA GPU, in a process under ncu."""
from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.compiled.compile import compiled
from tilewright.compiler import llvm
from tilewright.ir.program import Function, written
from tilewright.lab.explanation.record import UNMEASURED, Explanation
from tilewright.lab.measure import ncu
from tilewright.lab.measure.measure import spread
from tilewright.lab.measure.process import Child, Emit, serve
from tilewright.lab.tuner import kernels, trial as trials
from tilewright.lab.tuner.child import REFERENCE, Job
from tilewright.lab.tuner.launches import KernelJob
from tilewright.lab.tuner.on_gpu import OnGpu
from tilewright.lab.tuner.running import measured
from tilewright.lab.tuner.space import here
from tilewright.targets import AmdTarget, CpuTarget

SECONDS = 3.0           # for all rounds
NCU_S = 90              # for a process to start, compile and launch under ncu, which launches several times
ONLY = "kernel"         # the configuration's name
UNCOUNTED = "hardware counters are read on CPUs and NVIDIA's GPUs only"


def kernel(explained: Explanation, function: Function, named: Mapping[str, Any], grid: tuple[int, ...]) -> Explanation:
    """With seconds of calls of a user's kernel with copies of these arguments, by name. RuntimeError if this machine
    cannot run it. NotImplementedError for what the measuring process does not call."""
    if function.programs:
        raise NotImplementedError(f"{function.name} is a block program, which on CPUs is not timed")
    chip = here(explained.target)
    code = llvm.object_code(function, chip) if isinstance(chip, CpuTarget) else trials._code(compiled(function, chip))
    return _timed(explained, KernelJob(
        function.name, chip, (ONLY,), SECONDS, ONLY, {ONLY: code}, {ONLY: grid},
        kernels.given_to_child(named, function), tuple(x for x in written(function) if x in named), None,
        {ONLY: function.name}, explained.flops), REFERENCE)


def product(explained: Explanation) -> Explanation:
    """With seconds of a plan on the first device of a GPU's architecture, and bytes where there are counters.
    RuntimeError if there is no such device, or if the product is wrong."""
    chip, plan = here(explained.target), str(explained.plan)
    job = Job(explained.problem, chip, 1, (plan,), SECONDS)
    bytes_, why = ({}, UNCOUNTED) if isinstance(chip, AmdTarget) else _counted(job)
    levels = []
    for level in explained.levels:
        note = ncu.counters_of(chip)[level.name][0] if level.name in bytes_ else f"not counted{': ' * bool(why)}{why}"
        levels.append(replace(level, measured=bytes_.get(level.name), notes={**level.notes, "measured": note}))
    return _timed(replace(explained, levels=tuple(levels)), job, plan)


def _timed(explained: Explanation, job: Any, name: str) -> Explanation:
    run = measured(job, lambda event: None)
    seconds = [turn for phase in run.phases for turn in phase.seconds.get(name, ())]
    if not seconds:
        raise RuntimeError(f"{job} was not measured: {'; '.join([*run.failed.values(), *run.notes])}")
    assert explained.time is not None
    return replace(explained, time=replace(explained.time, measured=spread(seconds), disturbed=run.disturbed,
                                           basis=explained.time.basis.removesuffix(UNMEASURED)))


# ---- under ncu

class _Once(OnGpu):
    """One set of operands: a profiler replays a launch, and keeps the memory it writes."""

    def sets_of(self, size: int) -> int:
        return 1


def _counted(job: Job) -> tuple[dict[str, int], str]:
    """(bytes by level, why there are none)."""
    counters, why = ncu.counters_of(job.target), ""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        try:
            with Child(__name__, job, under=ncu.command(log, counters)) as child:
                try:
                    launched = [*child.events(NCU_S, time.monotonic() + NCU_S)]
                    why = "" if launched else child.why(NCU_S)
                except TimeoutError as late:
                    why = str(late)
            return ncu.read(log.read_text() if log.exists() else "", counters)[0], ""
        except ncu.Missing as missing:
            return {}, str(missing) + f"; the measuring process ended early: {why}" * bool(why)


def _launch(job: Job, emit: Emit) -> None:
    with suppress(AttributeError):              # there are no alarms on Windows
        signal.alarm(NCU_S)
    _Once(job.problem, job.target).tried(job.plans[0])
    emit("launched")


def main() -> None:
    serve(_launch)
