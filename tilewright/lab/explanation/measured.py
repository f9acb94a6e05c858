"""A plan's time and its bytes on a GPU, in processes of their own: explanation/launched.py, and ncu around it."""
from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.lab.explanation.launched import Launched
from tilewright.lab.measure import ncu
from tilewright.lab.measure.measure import Spread, spread
from tilewright.lab.measure.process import Child
from tilewright.targets import AmdTarget

if TYPE_CHECKING:
    from tilewright.problem import Gemm

MODULE = "tilewright.lab.explanation.launched"
PATIENCE_S = 60                 # for a process to start, compile, launch and compare
NCU_S = 90                      # the same under ncu, which starts slowly and launches several times


@dataclass(frozen=True)
class OnGpu:
    """What was measured. `notes`: by level what was counted, or why nothing was; of the time under ""."""
    seconds: Spread | None = None
    bytes: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def measure(problem: Gemm, target: Any, plan: Any) -> OnGpu:
    """Time a plan on the first device of a target's architecture, and count bytes where there are counters.
    RuntimeError if there is no such device, or if the product is wrong."""
    from tilewright.runtime.gpu.engine import first_device
    here = first_device(target)[1].target
    seconds, why = _run(Launched(problem, here, str(plan), PATIENCE_S, True))
    notes = {} if seconds else {"": why}
    if isinstance(target, AmdTarget):
        return OnGpu(spread(seconds) if seconds else None, {}, notes | {
            "bytes": "hardware counters are read on CPUs and NVIDIA's GPUs only"})
    counted, reason = _counted(Launched(problem, here, str(plan), NCU_S, False))
    said = {level: what for level, (what, _) in ncu.of(here).items() if level in counted}
    return OnGpu(spread(seconds) if seconds else None, counted, notes | said | ({"bytes": reason} if reason else {}))


def _counted(job: Launched) -> tuple[dict[str, int], str]:
    counters = ncu.of(job.target)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        why = ""
        try:
            _, why = _run(job, ncu.command(log, counters))
            found, _ = ncu.read(log.read_text() if log.exists() else "", counters)
            return found, ""
        except ncu.Missing as missing:
            return {}, f"{missing}{'; ' * bool(why)}{why}"


def _run(job: Launched, under: Sequence[str] = ()) -> tuple[list[float], str]:
    """(seconds of each round, why there are none). RuntimeError if the product is wrong."""
    seconds, done = [], False
    with Child(MODULE, job, under=under) as child:
        try:
            for event in child.events(job.seconds, time.monotonic() + job.seconds):
                match event["event"]:
                    case "wrong":
                        raise RuntimeError(f"{job.plan} computes a wrong result for {job.problem}: {event['reason']}")
                    case "seconds":
                        seconds = event["seconds"]
                    case "launched":
                        done = True
            why = "" if done else child.why(job.seconds)
        except TimeoutError as late:
            why = str(late)
    return seconds, f"the measuring process ended early: {why}" * bool(why)
