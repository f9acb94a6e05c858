"""What `tilewright bench` and its studies do: which jobs, their progress, then tables, JSON and a plot."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright import outputs
from tilewright.lab.bench import peer, plot as plots, report as reports, results, session, study, tables
from tilewright.lab.bench.cases import AVX2, CPU, GPU, NATIVE, Case, Job
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.results import ABSENT, CUBLAS, Report, Result, Session
from tilewright.lab.bench.suites import shapes
from tilewright.lab.drawing import raster
from tilewright.lab.measure import timing
from tilewright.lab.measure.gpu_rules import GpuRules
from tilewright.lab.measure.measure import Rules
from tilewright.lab.measure.quiet import Load
from tilewright.outputs import Progress
from tilewright.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.targets import CpuTarget

INTERRUPTED = 130  # the exit status after Ctrl-C, as a shell has it
ARTICLE = "article"  # the suite with the sizes of the article on CPUs, which --minutes chooses from
QUICK_S = 53.0  # what --quick promises is a minute, and there is a plot to draw


@dataclass(frozen=True)
class Options:
    """The options of the command line; an empty list means the default."""

    suites: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    threads: list[int] = field(default_factory=lambda: [1])
    sizes: list[int] = field(default_factory=list)
    only: list[str] = field(default_factory=list)  # products of formats
    peers: list[str] | None = None
    isa: str = NATIVE
    quick: bool = False
    plans: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    flush: bool = False
    despite_load: bool = False
    device: int = 0  # the GPU's number
    json: Path | None = None
    html: Path | None = None
    plot: Path | None = None

    def recorded(self) -> dict[str, Any]:
        """For the JSON: what changes the figures, not where they are written."""
        return {name: value for name, value in self.__dict__.items() if name not in ("json", "html", "plot")}


def all_threads() -> int:
    """How many threads tilewright uses by itself."""
    import tilewright as tw

    return int(tw.get_num_threads())


def register_tile() -> tuple[int, int]:
    """(mr, nr) of the plan tilewright would choose, which the sizes "one past a tile" are made from."""
    import tilewright as tw

    plan = tw.plan(tw.Gemm(1024, 1024, 1024), tw.detect())
    return int(plan.mr), int(plan.nr)


def measured_peaks(dtypes: Iterable[str], options: Options) -> dict[str, float]:
    """{"f32 1 native": GFLOP/s, ...}: what loops of nothing but multiply-adds reach, for "percent of peak"."""
    from tilewright.lab.measure import probes

    measured = probes.ceilings()
    if measured.disturbed:
        return {}
    name = "x86-avx2" if options.isa == AVX2 else None
    return {f"{d} {n} {options.isa}": round(measured.peak_flops(d, n, name) / 1e9, 2)
            for d in dtypes for n in options.threads}


# ---- beside other libraries, on a CPU or a GPU


def bench(options: Options, console: Console, minutes: float | None = None) -> int:
    """The comparison with the peers, in so many minutes if given: the article's sizes that fit; the exit status."""
    quick = options.quick
    suites = options.suites or (["square"] if quick else list(shapes.DEFAULT_SUITES))
    dtypes = options.dtypes or (["f32"] if quick else list(shapes.DTYPES))
    every = shapes.cases(suites, dtypes, register_tile())
    if minutes is not None:
        seconds = 60 * minutes

        def chosen(threads: int) -> list[Case]:
            fitting = {dtype: _fitting(options, dtype, threads, seconds) for dtype in dtypes if ARTICLE in suites}
            return [x for x in every if x.suite != ARTICLE or x.problem.n in fitting[x.problem.a]]

        return _measure("bench", chosen, lambda n: Rules.choose(n, True), options, console, peaks=dtypes,
                        seconds=seconds, despite_load=options.despite_load)
    return _measure("bench", every, lambda n: Rules.choose(n, quick), options, console, peaks=dtypes,
                    seconds=QUICK_S if quick else None, max_call_s=4.0 if quick else 60.0,
                    max_case_s=16.0 if quick else None, despite_load=options.despite_load)


def _fitting(options: Options, dtype: str, threads: int, seconds: float) -> list[int]:
    """Sizes of the article's sweep that a share of the time allows, by the rate of a loop of FMAs: each peer computes a
    product once to be checked, once to be calibrated, and in every round."""
    from tilewright.lab.measure import cpu_peaks

    rate = 0.85 * threads * max(x.measured or 0.0 for x in cpu_peaks.here(effort=timing.QUICK) if x.format == dtype)
    rules, peers = Rules.choose(threads, True), len(options.peers or peer.names()) + 1
    calls = 2 + rules.min_rounds

    def cost(n: int) -> float:
        return max(rules.budget_s, peers * calls * 2.0 * n**3 / rate)

    return shapes.within(shapes.LADDER, 0.8 * seconds / len(options.threads), cost)


def ladder(options: Options, console: Console) -> int:
    """The teaching steps over the article's sizes."""
    sizes = options.sizes or (shapes.LADDER_QUICK if options.quick else shapes.LADDER)
    dtypes = options.dtypes or ["f32"]
    cases = [case for dtype in dtypes for case in shapes.squares("ladder", sizes, dtype)]
    return _measure("ladder", cases, lambda n: replace(Rules.choose(n, options.quick), min_rounds=3), options, console,
                    peaks=dtypes, ladder=True)


def formats(options: Options, console: Console) -> int:
    """Every number format beside the peers that have it, with less time for each case than elsewhere: there are a
    hundred and more."""
    sizes = options.sizes or (shapes.FORMAT_QUICK if options.quick else shapes.FORMAT_SIZES)

    def rules(threads: int) -> Rules:
        usual = Rules.choose(threads, options.quick)
        return usual if options.quick else replace(usual, min_rounds=3, budget_s=2.0)

    return _measure("formats", shapes.format_cases(shapes.chosen(options.only), sizes), rules, options, console,
                    prepared=True, call_s=0.25 if options.quick else 1.0)


def gpu(options: Options, console: Console) -> int:
    """`tilewright bench gpu`: suites on a GPU beside cuBLAS and Triton."""
    named = [case for dtype in options.dtypes or ["f32"] for case in shapes.named(options.cases, dtype)]
    suites = options.suites or ([] if options.cases else ["sweep"])
    cases = shapes.gpu_cases(suites, options.dtypes, options.sizes, options.quick) + named
    if options.steps:
        from tilewright.lab.bench.suites import ladders

        ladders.gpu_steps(options.steps)
    return _measure("gpu", cases, lambda n: GpuRules.choose(n, options.quick), options, console, GPU,
                    plans=options.plans, steps=options.steps, flush=options.flush, max_call_s=10.0)


def gpu_ladder(options: Options, console: Console) -> int:
    """The steps of the GPU ladder beside cuBLAS."""
    from tilewright.lab.bench.suites import ladders

    dtypes, cases = options.dtypes or ["f32"], []
    if unknown := [name for name in dtypes if name not in ladders.GPU_PRODUCTS]:
        raise ValueError(f"the steps of the GPU ladder multiply {' or '.join(ladders.GPU_PRODUCTS)}, not {unknown[0]}")
    for dtype in dtypes:
        product, layout, sizes = ladders.GPU_PRODUCTS[dtype]
        cases += shapes.squares("ladder", options.sizes or sizes, product, layout)
    return _measure("ladder cuda", cases, lambda n: replace(GpuRules.choose(n, options.quick), watch_s=0.0), options,
                    console, GPU, ladder=True)


# ---- many products, each beside its fastest peer


def never_lose(options: Options, device: str, minutes: float | None, console: Console) -> int:
    """Every cell in which a peer is faster, on the CPU or the GPU; `minutes` bounds the time for all of it."""
    from tilewright.lab.bench.suites import never_lose as suite

    return _cells("never-lose", suite.cases(options.only, options.quick, device), options, device, minutes, console)


def random(options: Options, device: str, seed: int, count: int, layers: bool, minutes: float | None, console: Console
           ) -> int:
    """Shapes drawn at random, or layers of models, on the CPU or the GPU."""
    from tilewright.lab.bench.suites import random_shapes as suite

    cases = suite.cases(seed, count, options.only or ["f32"], device, layers)
    return _cells("random", cases, options, device, minutes, console)


def einsum(options: Options, seed: int | None, count: int, console: Console) -> int:
    """Contractions of TCCG, or drawn at random, on the CPU."""
    from tilewright.lab.bench.suites import contractions as suite

    cases = suite.einsums(seed, count, options.only or ["f32"], options.quick)
    return _cells("einsum", cases, options, CPU, None, console)


def _cells(kind: str, cases: list[Case], options: Options, device: str, minutes: float | None, console: Console) -> int:
    """Less time for each cell than elsewhere: there are thousands. On a GPU the peer is cuBLAS by default."""
    budget = 0.3 if options.quick else 1.0

    def rules(threads: int) -> Rules:
        if device == GPU:
            return GpuRules(turn_s=0.005, warm_s=0.002, max_rounds=7, budget_s=budget, watch_s=0.0)
        return replace(Rules.choose(threads, options.quick), min_rounds=3, max_rounds=7 if options.quick else 15,
                       budget_s=budget)

    return _measure(kind, cases, rules, replace(options, peers=options.peers or [CUBLAS]) if device == GPU else options,
                    console, device, seconds=minutes and 60 * minutes, bounds=True,
                    call_s=0.25 if options.quick else 0.5)


# ---- figures of their own


def simulate(n: int, target_name: str, options: Options, console: Console) -> int:
    """The GPU ladder's steps as the simulator counts them; returns the exit status."""
    from tilewright import targets
    from tilewright.lab.bench.suites import ladders as study

    check_outputs(options)
    target: Any = targets.target(target_name)
    report, counted = Report.start("ladder simulated", n=n, target=target.name), []
    steps = study.GPU_STEPS | study.TENSOR_STEPS
    with Progress(console, "simulating", len(steps)) as bar:
        for name, step in steps.items():
            bar.update(step.title)
            counted.append(study.count(name, n, target))
            bar.advance()
    report.extra["simulated"] = [asdict(c) for c in counted]
    report.extra["ptxas"] = study.assembler()
    return finish(report, options, console)


def startup(rounds: int, options: Options, console: Console) -> int:
    """Import and first result, from outside."""
    from tilewright.lab.bench.suites import startup as study

    check_outputs(options)
    report = Report.start("startup", rounds=rounds)
    with Progress(console, "starting processes", rounds * len(study.PROGRAMS)) as bar:
        samples = study.run(rounds, bar.advance)
    report.extra["startup"] = {name: list(sample.seconds) for name, sample in samples.items()}
    return finish(report, options, console)


def tiles(target: CpuTarget, dtype: str, options: Options, console: Console) -> int:
    """Every register tile that is legal, or with `quick` those that have a name."""
    from tilewright.lab.bench.suites import tiles as study

    check_outputs(options)
    report = Report.start("tiles", target=target.name, dtype=dtype, quick=options.quick, kc=study.KC)
    before = Load.now()
    report.extra |= study.run(target, dtype, options.quick, console)
    report.sessions.append(Session(1, NATIVE, **Load.now().beside(before)))  # type: ignore[arg-type]
    return finish(report, options, console)


def records(kind: str, options: Options, console: Console, device: str = CPU, **drawn: Any) -> int:
    """The suite of this name, which has its own table, on CPUs or a GPU. `drawn`: what it draws its cases by."""
    suite = import_module(f"tilewright.lab.bench.suites.{kind}")
    check_outputs(options)
    on = study.TorchDevice(options.device) if device == GPU else None
    report = Report.start(kind, **options.recorded(), **drawn)
    report.machine |= {"gpu": on.describe()} if on else {}
    cases = suite.cases(options, device, **drawn) if drawn else [
        (name, n) for name in suite.CASES for n in options.sizes or suite.SIZES[::1 + options.quick]]
    rows = report.extra[kind] = []
    with Progress(console, "starting", len(cases) * len(options.threads)) as bar:
        for record in study.records(suite, cases, options.threads, options.quick, bar.update, on, options.despite_load,
                                  **({"plans": options.plans} if drawn else {})):
            bar.advance()
            rows.append(record)
    for line in suite.means(rows) if drawn else ():
        console.print(line, highlight=False)
    return finish(report, options, console) or int(any(study.OURS in x.get("failed", ()) for x in rows))


# ---- what they share


def check_outputs(options: Options) -> None:
    """Before an hour of measuring, not after it: can the results be written?"""
    for path in (options.json, options.html, options.plot):
        if path is not None and path != results.STDOUT:
            outputs.check(path)
    if options.plot is not None and options.plot.suffix != ".svg" and not raster.available():
        raise ValueError(raster.MISSING)


def _measure(kind: str, cases: list[Case] | Callable[[int], list[Case]], rules: Callable[[int], Rules],
             options: Options, console: Console, device: str = CPU, *, peaks: Iterable[str] = (),
             seconds: float | None = None, **job: Any) -> int:
    """Measure these cases in a process for each number of threads, show and write; returns the exit status.

    cases       the same for all, or by the number of threads
    rules       by which a number of threads is measured
    peaks       formats whose peaks the report states
    seconds     that all of it may take: no case is begun that would end later
    job         further fields of the Job
    """
    check_outputs(options)
    session.environment(1, options.isa)
    wanted = peer.required(options.peers, device)
    if device == GPU:
        from tilewright.lab.bench.gpu_device import require

        require()
        options = replace(options, peers=wanted)
    began = time.monotonic()
    by_threads = {n: cases(n) if callable(cases) else cases for n in options.threads}

    def jobs() -> Iterator[Job]:
        for number, threads in enumerate(options.threads):
            remaining, left = len(options.threads) - number, seconds and seconds - (time.monotonic() - began)
            # Of two runs the first, on one thread, needs more than half of the time.
            share = left if left is None or remaining == 1 else 1.2 * left / remaining
            yield Job(threads, options.isa, by_threads[threads], rules(threads), device, options.device, peers=wanted,
                      deadline_s=share, **job)

    with Progress(console, "starting", sum(map(len, by_threads.values()))) as bar:
        report = session.run(kind, jobs(), listener(bar), **options.recorded())
    if peaks and not report.interrupted:
        report.extra["peak_gflops"] = measured_peaks(peaks, options)
    report.extra["seconds"] = round(time.monotonic() - began, 1)
    return finish(report, options, console)


def listener(bar: Progress) -> Callable[[Job, dict[str, Any]], None]:
    """Shows what a measuring process says."""

    def listen(job: Job, event: dict[str, Any]) -> None:
        where = "GPU" if job.device == GPU else plural(job.threads, "thread")
        if event["event"] == "peers":
            bar.update(f"{where}: {', '.join(p['name'] for p in event['session']['peers'])}")
        elif event["event"] == "case":
            bar.update(f"{where}: {event['label']}")
        elif event["event"] in ("result", "left_out"):
            bar.advance()
            if event["event"] == "result":
                bar.say(tables.line(Result.from_json(event["result"])))

    return listen


def finish(report: Report, options: Options, console: Console) -> int:
    """Show and write; returns the exit status."""
    reports.show(report, console)
    if "seconds" in report.extra:
        console.print(f"took {report.extra['seconds']:.0f} s", highlight=False)
    if options.json:
        results.save(report, options.json)
        console.print(f"results: {options.json}", highlight=False)
    _pictures(report, options.html, options.plot, console)
    if report.interrupted:
        kept = f"in {options.json}" if options.json else "above, and in no file"
        print(f"tilewright: interrupted; {plural(len(report.results), 'result')} until then {kept}", file=sys.stderr)
    return status(report)


def shown(file: Path, html: Path | None, plot: Path | None, console: Console) -> None:
    """A result file once more."""
    report = results.load(file)
    reports.show(report, console)
    _pictures(report, html, plot, console)


def _pictures(report: Report, html: Path | None, plot: Path | None, console: Console) -> None:
    if html:
        from tilewright.lab.bench import page

        page.write(report, html)
        console.print(f"page: {html}", highlight=False)
    if plot:
        try:
            plots.draw(report, plot)
        except ValueError as nothing:
            console.print(str(nothing), highlight=False)
        else:
            console.print(f"plot: {plot}", highlight=False)


def status(report: Report) -> int:
    """130 after Ctrl-C; 1 if something was wrong or broken. Of number formats and in never-lose a peer's mistake is
    only reported, and what this version does not have is no failure."""
    rows = [row for r in report.results for row in r.rows if report.kind not in ("formats", *results.CELLS)
            or row.name == OURS]
    failed = any(row.error and not row.error.startswith(("left out", ABSENT)) for row in rows)
    notes = [note for s in report.sessions for note in s.notes]
    broken = any(words in note for note in notes for words in ("ended early", "not tried"))
    if report.interrupted:
        return INTERRUPTED
    return 1 if failed or broken or not (rows or report.extra.keys() & results.OWN) else 0
