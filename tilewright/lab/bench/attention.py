"""`tilewright bench attention`: calls of attention beside torch's, a row of the report for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tilewright as tw
from tilewright.lab.bench import study
from tilewright.lab.bench.cases import CPU, GPU
from tilewright.lab.bench.commands import Options, check_outputs, finish
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.bench.results import Report
from tilewright.lab.bench.suites import attention_calls as suite
from tilewright.lab.measure.measure import Rules
from tilewright.outputs import Progress

if TYPE_CHECKING:
    from rich.console import Console


def attention(options: Options, console: Console, device: str = CPU, seed: int | None = None, count: int = 20) -> int:
    """`tilewright bench attention`: calls beside torch's, on CPUs or a GPU."""
    check_outputs(options)
    on = TorchDevice(options.device) if device == GPU else None
    report = Report.start("attention_calls", **options.recorded(), seed=seed, count=count)
    if on is not None:
        report.machine["gpu"] = on.describe()
    found = report.extra["attention_calls"] = []
    kinds = options.only or suite.FORMATS_OF["cuda" if on else "cpu"]
    every = suite.problems(seed, count, kinds, "cuda" if on else "cpu")
    every = every[:4] if options.quick and seed is None else every
    before = tw.get_num_threads()
    with Progress(console, "starting", len(every) * len(options.threads)) as bar:
        try:
            for threads in options.threads:
                tw.set_num_threads(threads)
                for problem in every:
                    bar.update(str(problem))
                    case = suite.make(problem, threads, on)
                    rules = study.gpu_rules(options.quick) if on else Rules.choose(threads, options.quick)
                    found.append({"case": str(problem), "n": problem.queries, "threads": threads, "bytes": case.bytes,
                                  "memory": None, **study.row(case, rules, on)})
                    bar.advance()
        finally:
            tw.set_num_threads(before)
    for line in suite.means(found):
        console.print(line, highlight=False)
    for x in found:
        for side, why in x["failed"].items():
            console.print(f"{x['case']}: {side}: {why}", highlight=False)
    return finish(report, options, console) or int(any(study.OURS in x["failed"] for x in found))
