"""The measuring process of the tuner (child.py) as its parent runs it, and what it says.

A plan that hangs or crashes takes its process with it and nothing else: what was measured until then counts, and if
it was still being tried the rest is measured in another process.
"""
from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite

import tilewright
from tilewright.lab.measure import machine, measure, quiet
from tilewright.lab.measure.process import Child
from tilewright.lab.tuner.child import REFERENCE, Phase, against
from tilewright.plans.measured import store
from tilewright.targets import CpuTarget

Listener = Callable[[dict[str, Any]], object]
SLOWEST = 5e9                   # operations per second: a call that is slower still is taken for one that hangs
CHILD = "tilewright.lab.tuner.child"
THREADS = "TILEWRIGHT_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"      # ours, and those of NumPy's BLAS
PATIENCE_S = 15.0               # for a process to start, to compile, and for a machine that is busy
GPU_PATIENCE_S = 60.0           # of a GPU's, whose driver takes seconds to start, and compiles once more


@dataclass
class Run:
    phases: list[Phase] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    disturbed: bool = False
    certain: bool = True
    clock: float | None = None
    vendor: str | None = None
    vendor_ratio: float | None = None
    trying: str = ""                                # the plan that is being run for the first time
    finished: bool = False

    def heard(self, event: dict[str, Any]) -> None:
        """Take down what the measuring process says."""
        match event["event"]:
            case "trying":
                self.trying = event["name"]
            case "out":
                self.failed[event["name"]] = event["reason"]
            case "phase":
                self.trying = ""
                self.phases.append(Phase(tuple(event["names"])))
            case "turn":
                self.phases[-1].seconds[event["name"]].append(event["seconds"])
            case "disturbed":
                self.disturbed = True
            case "vendor":
                self.vendor, self.vendor_ratio = event["name"], event["ratio"]
            case "clock":
                self.clock = event["hz"]
            case "done":
                self.finished, self.certain = True, event.get("certain", True)

    def turns(self) -> dict[str, tuple[Sequence[float], measure.Spread]]:
        """Seconds of each contender but the reference, and the reference's over them within a round, from the last
        phase that it took part in."""
        last: dict[str, tuple[Sequence[float], measure.Spread]] = {}
        for phase in self.phases:
            seconds = phase.complete()
            for name, ratios in against(REFERENCE, seconds).items():
                if name != REFERENCE:
                    last[name] = seconds[name], ratios
        return last


def measured(job: Any, listen: Listener) -> Run:
    """Children, until one has finished, or the time is over. Each that ends while it tries a plan is followed by one
    that does without this plan."""
    run, deadline, on_cpu = Run(), time.monotonic() + job.time_limit, isinstance(job.target, CpuTarget)
    patience = (PATIENCE_S if on_cpu else GPU_PATIENCE_S) + 2 * job.flops / SLOWEST
    environment, pin = {**os.environ, "TILEWRIGHT_TUNE_DB": store.OFF}, []
    if on_cpu:
        environment |= dict.fromkeys(THREADS, str(job.threads)) | {"TILEWRIGHT_TARGET": job.target.name}
        pin = quiet.fastest_cpus(1) if job.threads == 1 and hasattr(os, "sched_setaffinity") else []
    while True:
        run.trying = ""
        with Child(CHILD, job, cpus=pin, environment=environment) as child:
            try:
                for event in child.events(patience, deadline + patience):
                    listen(event)
                    run.heard(event)
                why = "" if run.finished else child.why(PATIENCE_S)     # it closed its output: it is about to end
            except TimeoutError as late:
                why = str(late)
        if run.finished:
            break
        if run.trying in job.plans and not run.phases:
            run.failed.setdefault(run.trying, why)
            plans, left = tuple(p for p in job.plans if p != run.trying), deadline - time.monotonic()
            if plans and left > 0:
                job = dataclasses.replace(job, plans=plans, time_limit=left)
                continue
        run.notes.append(f"The measuring process ended early: {why}.")
        break
    run.phases = [phase for phase in run.phases if phase.rounds]
    if not run.phases:
        reasons = "; ".join([*(f"{name}: {reason}" for name, reason in run.failed.items()), *run.notes])
        raise RuntimeError(f"nothing could be measured for {job}: {reasons or 'the time limit was reached'}")
    return run


def provenance() -> dict[str, Any]:
    """The fields of a row that say where and when it was measured, for here and now."""
    facts = machine.describe()
    return {"date": machine.now(), "machine": f"{facts['cpu']}, {facts['cpus_allowed']} CPUs, {facts['system']}",
            "tilewright": tilewright.__version__, "llvmlite": llvmlite.__version__, "commit": machine.commit()}
