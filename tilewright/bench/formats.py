"""What `tilewright bench formats` does: every number format beside NumPy and the peers; a table, JSON, a plot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.bench import (
    formats_child,
    formats_plot,
    formats_products,
    formats_report,
    peers,
    results,
    session,
)
from tilewright.bench.commands import Options, check_outputs
from tilewright.bench.formats_child import FormatsJob
from tilewright.bench.formats_results import ABSENT, Timed, timed
from tilewright.bench.peers import NATIVE
from tilewright.bench.progress import progress
from tilewright.bench.results import OURS, Report
from tilewright.measure.measure import Rules
from tilewright.text import plural

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class FormatsOptions:
    """What was asked for; an empty list means the default."""

    only: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=lambda: [1])
    peers: list[str] | None = None
    isa: str = NATIVE
    quick: bool = False
    json: Path | None = None
    plot: Path | None = None

    def recorded(self) -> dict[str, Any]:
        """For the JSON: what changes the figures, not where they are written."""
        return {name: value for name, value in self.__dict__.items() if name not in ("json", "plot")}


def rules(threads: int, quick: bool) -> Rules:
    """Those of every bench, in less time for each case: there are a hundred and more."""
    usual = Rules.choose(threads, quick)
    return usual if quick else replace(usual, min_rounds=3, budget_s=2.0)


def bench(options: FormatsOptions, console: Console) -> int:
    """Measure, show, write; the exit status."""
    check_outputs(Options(json=options.json, plot=options.plot))
    session.environment(1, options.isa)  # an unknown isa is an error now, not after the first run
    wanted = peers.required(options.peers)
    products = formats_products.chosen(options.only)
    sizes = options.sizes or list(formats_products.QUICK if options.quick else formats_products.SIZES)
    began = time.monotonic()
    found: list[dict[str, Any]] = []
    at: list[str] = []  # what the process at work has begun, and "done"

    def jobs() -> Iterator[FormatsJob]:
        for threads in options.threads:
            cases = [(product, n) for n in sizes for product in products]
            while cases:
                at.clear()
                yield FormatsJob(
                    threads, options.isa, cases, rules(threads, options.quick), wanted,
                    call_s=0.25 if options.quick else 1.0,
                )
                # A library that crashes takes one product along, and the process after it does the rest.
                if "done" in at or not at:
                    break
                cases = cases[len(at) :]

    with progress(console) as bar:
        task = bar.add_task("starting", total=len(products) * len(sizes) * len(options.threads))

        def listen(job: FormatsJob, event: dict[str, Any]) -> None:
            if event["event"] in ("case", "done"):
                at.append(event.get("label", "done"))
            if event["event"] == "case":
                bar.update(task, description=f"{plural(job.threads, 'thread')}: {event['label']}")
            elif event["event"] == "product":
                found.append(event["product"])
                bar.advance(task)
                bar.say(formats_report.line(Timed.from_json(event["product"])))

        report = session.run("formats", jobs(), listen, formats_child.__name__, **options.recorded())
    report.extra["products"] = found
    report.extra["seconds"] = round(time.monotonic() - began, 1)
    return _finish(report, options, console)


def _finish(report: Report, options: FormatsOptions, console: Console) -> int:
    formats_report.show(report, console)
    console.print(f"took {report.extra['seconds']:.0f} s", highlight=False)
    if options.json:
        results.save(report, options.json)
        console.print(f"results: {options.json}", highlight=False)
    if options.plot and any(t.rate() for t in timed(report)):
        formats_plot.draw(report, options.plot)
        console.print(f"plot: {options.plot}", highlight=False)
    return status(report)


def status(report: Report) -> int:
    """1 if a product of ours was wrong or broke, or if the run did.  What is absent is no failure."""
    ours = [row for t in timed(report) if (row := t.row(OURS))]
    failed = any(row.reason and not row.reason.startswith(ABSENT) for row in ours)
    broken = any(s.notes for s in report.sessions)
    return 1 if failed or broken or not ours else 0
