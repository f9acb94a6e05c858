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
from tilewright.lab.bench.results import ABSENT, CUBLAS, Report, Result
from tilewright.lab.bench.suites import shapes
from tilewright.lab.measure.gpu_rules import GpuRules
from tilewright.lab.measure.measure import Rules
from tilewright.outputs import Progress
from tilewright.text import plural

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130  # the exit status after Ctrl-C, as a shell has it
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
    cases: list[str] = field(default_factory=list)
    flush: bool = False
    device: int = 0  # the GPU's number
    json: Path | None = None
    plot: Path | None = None

    def recorded(self) -> dict[str, Any]:
        """For the JSON: what changes the figures, not where they are written."""
        return {name: value for name, value in self.__dict__.items() if name not in ("json", "plot")}

    def required(self, device: str = CPU) -> list[str] | None:
        """Mistakes are errors now, not in ten minutes; returns the peers as peer.find takes them."""
        check_outputs(self)
        session.environment(1, self.isa)
        return peer.required(self.peers, device)


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

    found = probes.ceilings()
    if found.disturbed:
        return {}
    name = "x86-avx2" if options.isa == AVX2 else None
    return {f"{d} {n} {options.isa}": round(found.peak_flops(d, n, name) / 1e9, 2)
            for d in dtypes for n in options.threads}


# ---- on a CPU


def bench(options: Options, console: Console) -> int:
    """The comparison with the peers; returns the exit status."""
    wanted = options.required()
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

    return _run("bench", jobs(), len(cases) * len(options.threads), options, console, dtypes)


def ladder(options: Options, console: Console) -> int:
    """The teaching steps over the article's sizes."""
    wanted = options.required()
    sizes = options.sizes or (shapes.LADDER_QUICK if options.quick else shapes.LADDER)
    dtypes = options.dtypes or ["f32"]
    cases = [case for dtype in dtypes for case in shapes.squares("ladder", sizes, dtype)]
    rules = {threads: replace(Rules.choose(threads, options.quick), min_rounds=3) for threads in options.threads}
    jobs = [Job(n, options.isa, cases, rule, ladder=True, peers=wanted) for n, rule in rules.items()]
    return _run("ladder", jobs, len(cases) * len(jobs), options, console, dtypes)


def formats(options: Options, console: Console) -> int:
    """Every number format beside the peers that have it."""
    wanted = options.required()
    sizes = options.sizes or (shapes.FORMAT_QUICK if options.quick else shapes.FORMAT_SIZES)
    cases = shapes.format_cases(shapes.chosen(options.only), sizes)
    jobs = [
        Job(n, options.isa, cases, format_rules(n, options.quick), peers=wanted, prepared=True,
            call_s=0.25 if options.quick else 1.0)
        for n in options.threads
    ]
    return _run("formats", jobs, len(cases) * len(jobs), options, console)


def format_rules(threads: int, quick: bool) -> Rules:
    """The rules of every bench, with less time for each case: there are a hundred and more."""
    usual = Rules.choose(threads, quick)
    return usual if quick else replace(usual, min_rounds=3, budget_s=2.0)


# ---- on a GPU


def gpu(options: Options, console: Console) -> int:
    """`tilewright bench gpu`: suites on a GPU beside cuBLAS and Triton."""
    check_outputs(options)
    named = [case for dtype in options.dtypes or ["f32"] for case in shapes.named(options.cases, dtype)]
    suites = options.suites or ([] if options.cases else ["sweep"])
    cases = shapes.gpu_cases(suites, options.dtypes, options.sizes, options.quick) + named
    wanted = _require_gpu(options)
    job = Job(1, NATIVE, cases, _gpu_rules(options), GPU, options.device, peers=wanted, plans=options.plans,
              flush=options.flush, max_call_s=10.0)
    return _run("gpu", [job], len(cases), replace(options, peers=wanted), console)


def gpu_ladder(options: Options, console: Console) -> int:
    """The steps of the GPU ladder beside cuBLAS."""
    from tilewright.lab.bench.suites import ladders

    dtypes = options.dtypes or ["f32"]
    if unknown := [name for name in dtypes if name not in ladders.GPU_PRODUCTS]:
        raise ValueError(f"the steps of the GPU ladder multiply {' or '.join(ladders.GPU_PRODUCTS)}, not {unknown[0]}")
    wanted, cases = _require_gpu(options), []
    for dtype in dtypes:
        product, layout, sizes = ladders.GPU_PRODUCTS[dtype]
        cases += shapes.squares("ladder", options.sizes or sizes, product, layout)
    job = Job(1, NATIVE, cases, replace(_gpu_rules(options), watch_s=0.0), GPU, options.device, ladder=True,
              peers=wanted)
    return _run("ladder cuda", [job], len(cases), options, console)


def _require_gpu(options: Options) -> list[str] | None:
    """The peers; NoGpu without a GPU."""
    from tilewright.lab.bench.gpu_device import require

    wanted = options.required(GPU)
    require()
    return wanted


def _gpu_rules(options: Options) -> GpuRules:
    return GpuRules.quick() if options.quick else GpuRules()


def simulate(n: int, target_name: str, options: Options, console: Console) -> int:
    """The GPU ladder's steps as the simulator counts them; returns the exit status."""
    from tilewright import targets
    from tilewright.lab.bench.suites import ladders as study

    check_outputs(options)
    target: Any = targets.target(target_name)
    report, found = Report.start("ladder simulated", n=n, target=target.name), []
    steps = study.GPU_STEPS | study.TENSOR_STEPS
    with Progress(console, "simulating", len(steps)) as bar:
        for name, step in steps.items():
            bar.update(step.title)
            found.append(study.count(name, n, target))
            bar.advance()
    report.extra["simulated"] = [asdict(c) for c in found]
    report.extra["ptxas"] = study.assembler()
    return _finish(report, options, console)


# ---- on either


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
    began = time.monotonic()
    if device == GPU:
        wanted, counts = _require_gpu(options) or [CUBLAS], [1]
    else:
        required, counts = options.required(), options.threads
        wanted = (required or []) if options.peers else peer.names()

    def jobs() -> Iterator[Job]:
        for number, threads in enumerate(counts):
            left = None if minutes is None else 60 * minutes - (time.monotonic() - began)
            yield Job(
                threads, options.isa, cases, never_lose_rules(device, threads, options.quick), device, options.device,
                peers=wanted, bounds=True, call_s=0.25 if options.quick else 0.5,
                deadline_s=None if left is None else left / (len(counts) - number),
            )

    return _run(kind, jobs(), len(cases) * len(counts), options, console)


def never_lose_rules(device: str, threads: int, quick: bool) -> Rules:
    """Less time for each cell than elsewhere: there are thousands."""
    if device == GPU:
        return GpuRules(turn_s=0.005, warm_s=0.002, max_rounds=7, budget_s=0.3 if quick else 1.0, watch_s=0.0)
    usual = Rules.choose(threads, quick)
    return replace(usual, min_rounds=3, max_rounds=7 if quick else 15, budget_s=0.3 if quick else 1.0)


def startup(rounds: int, json: Path | None, console: Console) -> int:
    """Import and first result, from outside."""
    from tilewright.lab.bench.suites import startup as study

    check_outputs(Options(json=json))
    report = Report.start("startup", rounds=rounds)
    with Progress(console, "starting processes", rounds * len(study.PROGRAMS)) as bar:
        samples = study.run(rounds, bar.advance)
    rows = [(name, tables.quoted(sample.spread, 3)) for name, sample in samples.items()]
    console.print(tables.shown("wall clock of a whole process", "seconds: median (quartiles)", ("process", "seconds"),
                               rows, left=("process",)))
    report.extra["startup"] = {name: list(sample.seconds) for name, sample in samples.items()}
    if json:
        results.save(report, json)
    return 0


def records(kind: str, options: Options, console: Console) -> int:
    """Elementwise code beside NumPy, epilogues beside torch, or products with their own arithmetic beside scipy, numba,
    torch and KeOps: the suite of this name, which has its own table."""
    suite = import_module(f"tilewright.lab.bench.suites.{kind}")
    check_outputs(options)
    sizes = options.sizes or (suite.SIZES[::2] if options.quick else suite.SIZES)
    report, found = Report.start(kind, **options.recorded()), []
    with Progress(console, "starting", len(sizes) * len(options.threads) * len(suite.CASES)) as bar:
        for each in study.records(suite, sizes, options.threads, options.quick, bar.update):
            bar.advance()
            found.append(each)
    head, rows = study.table(suite, found)
    console.print(tables.shown(kind, suite.CAPTION, head, rows, left=head[:1]))
    report.extra[kind] = found
    if options.json:
        results.save(report, options.json)
    return 0


# ---- what they share


def check_outputs(options: Options) -> None:
    """Before an hour of measuring, not after it: can the results be written?"""
    for path in (options.json, options.plot):
        if path is not None and path != results.STDOUT:
            outputs.check(path)
    if options.plot is not None and not plots.available():
        raise ValueError(plots.MISSING)


def _run(kind: str, jobs: Iterable[Job], total: int, options: Options, console: Console,
         peaks: Iterable[str] = ()) -> int:
    """Measure, show and write; returns the exit status.  `peaks`: the formats whose peaks the report states."""
    began = time.monotonic()
    with Progress(console, "starting", total) as bar:
        report = session.run(kind, jobs, listener(bar), **options.recorded())
    if peaks and not report.interrupted:
        report.extra["peak_gflops"] = measured_peaks(peaks, options)
    report.extra["seconds"] = round(time.monotonic() - began, 1)
    return _finish(report, options, console)


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


def _finish(report: Report, options: Options, console: Console) -> int:
    """Show and write; returns the exit status."""
    reports.show(report, console)
    if "seconds" in report.extra:
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
    if report.interrupted:
        kept = f"in {options.json}" if options.json else "above, and in no file"
        print(f"tilewright: interrupted; {plural(len(report.results), 'result')} until then {kept}", file=sys.stderr)
    return status(report)


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
    return 1 if failed or broken or not (rows or "simulated" in report.extra) else 0
