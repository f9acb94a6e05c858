"""What `tilewright bench gpu` does: suites on a GPU beside cuBLAS and Triton; tables, JSON, a plot.

A report is that of every bench (results.py), of kind "gpu": machine["gpu"] is the chip with its versions and settings,
extra["clocks"] whether its clocks were free, extra["overhead"] and extra["emission"] what the two cost studies found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.bench import gpu_child, gpu_cost, gpu_device, gpu_plot, gpu_report, gpu_shapes, results, session
from tilewright.bench.gpu_child import GpuJob
from tilewright.bench.gpu_measure import GpuRules
from tilewright.bench.results import OURS, Report, Result, Row

if TYPE_CHECKING:
    from rich.console import Console

COSTS = ("overhead", "emission")  # suites that are no products
MOST_STARTS = 6  # of processes, if kernels keep breaking them
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class GpuOptions:
    """What was asked for; an empty list means the default."""

    suites: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    peers: list[str] | None = None
    plans: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    quick: bool = False
    flush: bool = False
    device: int = 0
    json: Path | None = None
    plot: Path | None = None

    def recorded(self) -> dict[str, Any]:
        """For the JSON: what changes the figures, not where they are written."""
        return {name: value for name, value in self.__dict__.items() if name not in ("json", "plot")}


class _Heard:
    """What one measuring process has said: the case it is at, whether that one is over, and whether all is."""

    def __init__(self, report: Report, listen: Listener) -> None:
        self.report, self.listen = report, listen
        self.at, self.over, self.done = -1, False, False

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "case":
            self.at, self.over = event["number"], False
        elif kind == "device":
            self.report.machine["gpu"] = {**event["gpu"], **event["state"]}
        elif kind == "clocks":
            self.report.extra["clocks"] = event["setting"]
        self.over = self.over or kind == "result"
        self.done = self.done or kind == "done"
        self.listen(event)


def measure(job: GpuJob, report: Report, listen: Listener = lambda event: None) -> None:
    """Every case of a job, in a process that is started anew, with the case after, if one breaks it."""
    left = job
    for _ in range(MOST_STARTS):
        heard = _Heard(report, listen)
        state = session.measure(left, report, heard, gpu_child.__name__, pin=False)
        if heard.done or heard.at < 0:
            return
        if not heard.over:
            row = Row(OURS, error=f"the process ended: {state.notes[-1]}")
            target = report.machine.get("gpu", {}).get("target", "")
            report.results.append(Result(left.cases[heard.at], job.threads, target, (row,)))
        left = replace(left, cases=left.cases[heard.at + 1 :])
        if not left.cases:
            return
    report.sessions[-1].notes.append(f"{len(left.cases)} cases were not tried: {MOST_STARTS} processes broke")


def run(options: GpuOptions, listen: Listener = lambda event: None) -> Report:
    """Everything that was asked for.  NoGpu without one; Ctrl-C keeps what was found until then."""
    suites = options.suites or ([] if options.cases else ["sweep"])
    if "emission" in suites:  # which times the driver's assembler, not the driver's cache
        os.environ["CUDA_CACHE_DISABLE"] = "1"
    gpu_device.require()
    products = [name for name in suites if name not in COSTS]
    dtypes = options.dtypes or ["f32"]
    cases = gpu_shapes.cases(products, dtypes, options.sizes, options.quick)
    cases += [case for dtype in dtypes for case in gpu_shapes.named(options.cases, dtype)]
    began = time.monotonic()
    report = Report.start("gpu", **options.recorded())
    try:
        if cases:
            rules = GpuRules.quick() if options.quick else GpuRules()
            measure(
                GpuJob(cases, rules, peers=options.peers, plans=options.plans, flush=options.flush,
                       device=options.device), report, listen)
        if set(COSTS) & set(suites):
            gpu_cost.measure(report, [name for name in COSTS if name in suites], options.device)
    except (KeyboardInterrupt, Exception) as end:  # an hour of measuring is worth more than its last minute
        if not report.results:
            raise
        why = f"{type(end).__name__}: {end}" if isinstance(end, Exception) else "what comes after is missing"
        report.sessions[-1].notes.append(f"interrupted: {why}")
    report.extra["seconds"] = round(time.monotonic() - began, 1)
    return report


def bench(options: GpuOptions, console: Console) -> int:
    """`tilewright bench gpu`: measure, show, write; the exit status."""
    from tilewright.bench.commands import Options, check_outputs
    from tilewright.bench.progress import progress

    check_outputs(Options(json=options.json, plot=options.plot))
    unknown = [name for name in options.suites if name not in (*gpu_shapes.SUITES, *COSTS)]
    if unknown:
        known = ", ".join((*gpu_shapes.SUITES, *COSTS))
        raise ValueError(f"unknown suite {unknown[0]!r} on a GPU; it may be {known}")
    gpu_shapes.named(options.cases, "f32")
    gpu_device.require()
    with progress(console) as bar:
        task = bar.add_task("starting", total=None)

        def listen(event: dict[str, Any]) -> None:
            if event["event"] == "case":
                bar.update(task, description=event["label"])
            elif event["event"] == "result":
                bar.advance(task)

        report = run(options, listen)
    gpu_report.show(report, console)
    console.print(f"took {report.extra['seconds']:.0f} s", highlight=False)
    if options.json:
        results.save(report, options.json)
        console.print(f"results: {options.json}", highlight=False)
    if options.plot:
        gpu_plot.draw(report, options.plot)
        console.print(f"plot: {options.plot}", highlight=False)
    return status(report)


def status(report: Report) -> int:
    """1 if something was wrong, broken or interrupted."""
    failed = any(row.error and not row.error.startswith("left out") for r in report.results for row in r.rows)
    notes = [note for s in report.sessions for note in s.notes]
    found = bool(report.results) or any(name in report.extra for name in COSTS)
    return 1 if failed or notes or not found else 0
