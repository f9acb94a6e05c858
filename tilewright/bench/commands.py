"""What `tilewright bench` and its studies do: which jobs, their progress, then tables, JSON and a plot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.bench import peers, results, session, shapes
from tilewright.bench import plot as plots
from tilewright.bench import report as tables
from tilewright.bench.child import Job
from tilewright.bench.peers import NATIVE
from tilewright.bench.progress import Progress, progress
from tilewright.bench.results import Report
from tilewright.measure.measure import Rules

if TYPE_CHECKING:
    from rich.console import Console

QUICK_S = 53.0  # what --quick promises is a minute, and there is a plot to draw


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line; an empty list means the default."""

    suites: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    threads: list[int] = field(default_factory=lambda: [1])
    sizes: list[int] = field(default_factory=list)
    peers: list[str] | None = None
    isa: str = NATIVE
    quick: bool = False
    json: Path | None = None
    plot: Path | None = None

    def recorded(self) -> dict[str, Any]:
        """For the JSON: what changes the figures, not where they are written."""
        return {name: value for name, value in self.__dict__.items() if name not in ("json", "plot")}


def register_tile() -> tuple[int, int]:
    """(mr, nr) of the plan tilewright would choose, which the sizes "one past a tile" are made from."""
    import tilewright as tw

    plan = tw.plan(tw.Gemm(1024, 1024, 1024), tw.detect())
    return int(plan.mr), int(plan.nr)


def measured_peaks(dtypes: Iterable[str], threads: Iterable[int], isa: str) -> dict[str, float]:
    """{"f32 1 native": GFLOP/s, ...}: what loops of nothing but multiply-adds reach, for "percent of peak"."""
    from tilewright.measure import probes

    found = probes.ceilings()
    if found.disturbed:
        return {}
    name = session.ISA_ENVIRONMENT[isa].get("TILEWRIGHT_TARGET")
    return {f"{d} {n} {isa}": round(found.peak_flops(d, n, name) / 1e9, 2) for d in dtypes for n in threads}


def all_threads() -> int:
    """How many threads tilewright uses by itself."""
    import tilewright as tw

    return int(tw.get_num_threads())


def bench(options: Options, console: Console) -> int:
    """The comparison with the peers; returns the exit status."""
    check_outputs(options)
    session.environment(1, options.isa)  # an unknown isa is an error now, not in ten minutes
    wanted = peers.required(options.peers)
    suites = options.suites or (["square"] if options.quick else list(shapes.DEFAULT_SUITES))
    dtypes = options.dtypes or (["f32"] if options.quick else list(shapes.DTYPES))
    cases = shapes.cases(suites, dtypes, register_tile())
    began = time.monotonic()

    def jobs() -> Iterator[Job]:
        for number, threads in enumerate(options.threads):
            remaining = len(options.threads) - number
            left = QUICK_S - (time.monotonic() - began)
            yield Job(
                threads, options.isa, cases, Rules.choose(threads, options.quick), peers=wanted,
                max_call_s=4.0 if options.quick else 60.0,
                max_case_s=16.0 if options.quick else None,
                # Of two runs the first, on one thread, needs more than half of the time.
                deadline_s=(left if remaining == 1 else 1.2 * left / remaining) if options.quick else None,
            )

    report = _run("bench", jobs(), len(cases) * len(options.threads), options, console)
    report.extra["peak_gflops"] = measured_peaks(dtypes, options.threads, options.isa)
    return _finish(report, options, began, console)


def ladder(options: Options, console: Console) -> int:
    """The teaching steps over the article's sizes."""
    began = time.monotonic()
    check_outputs(options)
    session.environment(1, options.isa)
    wanted = peers.required(options.peers)
    sizes = options.sizes or (shapes.LADDER_QUICK if options.quick else shapes.LADDER)
    cases = [case for dtype in options.dtypes or ["f32"] for case in shapes.squares("ladder", sizes, dtype)]
    rules = {threads: replace(Rules.choose(threads, options.quick), min_rounds=3) for threads in options.threads}
    jobs = [Job(n, options.isa, cases, rule, "ladder", wanted) for n, rule in rules.items()]
    report = _run("ladder", jobs, len(cases) * len(jobs), options, console)
    report.extra["peak_gflops"] = measured_peaks(options.dtypes or ["f32"], options.threads, options.isa)
    return _finish(report, options, began, console)


def startup(rounds: int, json: Path | None, console: Console) -> int:
    """Import and first result, from outside."""
    from rich.table import Table

    from tilewright.bench import startup as study

    options = Options(json=json)
    check_outputs(options)
    report = Report.start("startup", rounds=rounds)
    with progress(console) as bar:
        task = bar.add_task("starting processes", total=rounds * len(study.PROGRAMS))
        samples = study.run(rounds, lambda: bar.advance(task))
    shown = Table(title="wall clock of a whole process", caption="seconds: median (quartiles)", title_justify="left")
    shown.add_column("process")
    shown.add_column("seconds", justify="right")
    for name, sample in samples.items():
        s = sample.spread
        shown.add_row(name, f"{s.median:.3f} ({s.q1:.3f} to {s.q3:.3f})")
    console.print(shown)
    report.extra["startup"] = {name: list(sample.seconds) for name, sample in samples.items()}
    if json:
        results.save(report, json)
    return 0


def _run(kind: str, jobs: Iterable[Job], total: int, options: Options, console: Console) -> Report:
    with progress(console) as bar:
        task = bar.add_task("starting", total=total)
        return session.run(kind, jobs, _listener(bar, task), **options.recorded())


def _listener(bar: Progress, task: Any) -> Callable[[Job, dict[str, Any]], None]:
    def listen(job: Job, event: dict[str, Any]) -> None:
        threads = tables.plural(job.threads, "thread")
        if event["event"] == "contenders":
            bar.update(task, description=f"{threads}: {', '.join(c['name'] for c in event['contenders'])}")
        elif event["event"] == "case":
            bar.update(task, description=f"{threads}: {event['label']}")
        elif event["event"] in ("result", "left_out"):
            bar.advance(task)
            if event["event"] == "result":
                bar.say(tables.line(results.Result.from_json(event["result"])))

    return listen


def check_outputs(options: Options) -> None:
    """Before an hour of measuring, not after it: can the results be written?"""
    for path in (options.json, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path} cannot be written: there is no directory {path.parent}")
    if options.plot is not None and not plots.available():
        raise ValueError(plots.MISSING)


def _finish(report: Report, options: Options, began: float, console: Console) -> int:
    """Show and write; the status is 1 if something was wrong, broken or interrupted."""
    report.extra["seconds"] = round(time.monotonic() - began, 1)
    tables.show(report, console)
    console.print(f"took {report.extra['seconds']:.0f} s", highlight=False)
    if options.json:
        results.save(report, options.json)
        console.print(f"results: {options.json}", highlight=False)
    if options.plot:
        try:
            plots.draw(report, options.plot)
        except ValueError as nothing:
            console.print(str(nothing), highlight=False)
        else:
            console.print(f"plot: {options.plot}", highlight=False)
    failed = any(row.error and not row.error.startswith("left out") for r in report.results for row in r.rows)
    broken = any("ended early" in note or "interrupted" in note for s in report.sessions for note in s.notes)
    return 1 if failed or broken or not report.results else 0
