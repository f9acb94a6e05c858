"""The time of a kernel of a user's own, in the process that measures configurations (tuner/launches.py)."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.compiled.compile import compiled
from tilewright.compiler import llvm
from tilewright.ir.program import Function, written
from tilewright.lab.explanation.record import Explanation
from tilewright.lab.measure.measure import spread
from tilewright.lab.tuner import kernels
from tilewright.lab.tuner import trial as trials
from tilewright.lab.tuner.child import REFERENCE
from tilewright.lab.tuner.launches import KernelJob
from tilewright.lab.tuner.search import measured
from tilewright.runtime.gpu.engine import first_device
from tilewright.targets import CpuTarget

SECONDS = 3.0           # for all rounds
ONLY = "kernel"         # the configuration's name


def timed(found: Explanation, function: Function, named: Mapping[str, Any], grid: tuple[int, ...]) -> Explanation:
    """With seconds of calls with copies of these arguments, by name. RuntimeError if this machine cannot run it.
    NotImplementedError for what the measuring process does not call."""
    chip = found.target
    if function.programs:
        raise NotImplementedError(f"{function.name} is a block program, which on CPUs is not timed")
    if isinstance(chip, CpuTarget):
        chip.require_runnable()
        code: Any = llvm.object_code(function, chip)
    else:
        chip = first_device(chip)[1].target
        code = trials._code(compiled(function, chip))
    job = KernelJob(function.name, chip, (ONLY,), SECONDS, ONLY, {ONLY: code}, {ONLY: grid},
                    kernels.given_to_child(named, function), tuple(x for x in written(function) if x in named), None,
                    {ONLY: function.name}, found.flops)
    run = measured(job, lambda event: None)
    seconds = [each for phase in run.phases for each in phase.seconds[REFERENCE]]
    assert found.time is not None
    return replace(found, time=replace(found.time, measured=spread(seconds), disturbed=run.disturbed))
