"""A whole report for a terminal: machine, peers, tables, what is missing or doubtful and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from tilewright.lab.bench import tables
from tilewright.lab.bench.cases import GPU
from tilewright.lab.bench.peer import OURS, is_peer
from tilewright.lab.bench.results import ABSENT, CELLS, CUBLAS, OWN, SUITES, Report, Result, Session
from tilewright.lab.bench.tables import REMARK, Column, display, groups, shown
from tilewright.lab.measure.measure import Spread, spread
from tilewright.lab.measure.probes import OUT_OF_DATE
from tilewright.lab.measure.quiet import BUSY, words
from tilewright.targets import nvidia
from tilewright.text import plural, size

if TYPE_CHECKING:
    from rich.console import Console

FEW = 5  # cases left out are listed up to so many
MENTIONED = 0.1  # CPUs that other processes kept busy: below BUSY a remark
WORST = 10  # cells of never-lose
FASTEST = "the fastest"  # of the peers on a GPU


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs to judge the figures."""
    from rich.markup import escape

    for text in warnings(report):
        console.print(text, style="bold red", highlight=False, markup=False)
    for text in heading(report) if on_gpu(report) or report.extra.keys().isdisjoint(OWN) else ():
        console.print(escape(text), highlight=False)
    TABLES.get(report.kind, _show_cpu)(report, console)
    for text in remarks(report):
        console.print(escape(text), style="yellow", highlight=False)


# ---- tables, by the kind of report


def _show_cpu(report: Report, console: Console) -> None:
    from rich.measure import Measurement

    for group, results in groups(report.results):
        console.print()
        peak = tables.peak_of(report, group)
        busy = any(is_busy(s) for s in report.sessions if (s.threads, s.isa) == group[2:])
        table = tables.table(group, results, peak, busy=busy)
        if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
            table = tables.table(group, results, peak, narrow=True, busy=busy)
        display(table, console)


def _show_formats(report: Report, console: Console) -> None:
    from rich.markup import escape

    for (threads, isa, n), members in tables.format_groups(report.results).items():
        head, *body = tables.format_lines(members)
        rows = [[escape(cell) for cell in row] for row in body]
        console.print()
        display(shown(tables.formats_title(n, threads, isa), "", head, rows, left=(head[0], REMARK),
                            bold=("G/s",), wrap=True), console)
    console.print(tables.FORMATS_CAPTION, highlight=False)


def _show_gpu(report: Report, console: Console) -> None:
    for group, results in groups(report.results):
        console.print()
        unit = "TOP/s" if results[0].case.product.exact else "TFLOP/s"
        caption = f"{unit}; x: how many times as fast tilewright is, median of rounds (quartiles)"
        if peak := gpu_peak(report, results[0]):
            caption += f"; instructions alone reach {peak / 1e12:.0f}"
        compared = _compared(results)
        for name in (*compared, *[FASTEST] * (len(compared) > 1)):
            if (ratios := gpu_ratios(results, name)) and len(results) > 1:
                caption += f"; against {name}: geometric mean {ratios[0]}, least {ratios[1]}"
        watched = any(tables.state(r, name, "readings") for r in results for name in (OURS, CUBLAS))
        power = [(power_columns, "tilewright / cuBLAS, each alone")] if watched else []
        for columns_of, said in [(rate_columns, caption), *power]:
            cells = list(columns_of(results))
            rows = [[cell(r) for _, cell in cells] for r in results]
            display(shown(tables.title(group), said, [h for h, _ in cells], rows, left=("held back by",)), console)


def _show_steps(report: Report, console: Console) -> None:
    """The GPU ladder on a GPU."""
    from tilewright.lab.bench.suites import ladders

    head, *rows = ladders.table(report.results)
    device = report.machine.get("gpu", report.extra.get("device", {})).get("name", "")
    caption = "medians; in brackets the share of cuBLAS's rate in the same rounds"
    display(shown(device, caption, head, rows, left=head[:1]), console)


def _show_simulated(report: Report, console: Console) -> None:
    """The GPU ladder as the simulator counts it."""
    from tilewright.lab.bench.suites import ladders as study

    for table in study.tables(report):
        display(table, console)
    console.print(f"Registers and CTAs per SM: {report.extra.get('ptxas', 'unknown')}.", highlight=False)


def _show_cells(report: Report, console: Console) -> None:
    """Shows never-lose, or random: geometric means, the worst ten, and every cell below 1."""
    from tilewright.lab.bench.suites.never_lose import LOST, MEANS, lost, means

    console.print()
    display(shown(f"{report.kind}: the fastest peer's time over ours", "", MEANS, means(report.results),
                        left=MEANS[:1], bold=("geometric mean",)), console)
    lost_cells = lost(report.results)
    if not lost_cells:
        console.print("No cell is below 1.00.", highlight=False)
    for title, rows in ((f"the worst {min(WORST, len(lost_cells))}", lost_cells[:WORST]),
                        (f"all {len(lost_cells)} cells below 1.00", lost_cells if len(lost_cells) > WORST else [])):
        if rows:
            display(shown(title, "", LOST, rows, left=(LOST[0], LOST[3], LOST[5]), bold=("ratio",)), console)


def _show_startup(report: Report, console: Console) -> None:
    rows = [(name, tables.quoted(spread(seconds), 3)) for name, seconds in report.extra["startup"].items()]
    display(shown("wall clock of a whole process", "seconds: median (quartiles)", ("process", "seconds"), rows,
                        left=("process",)), console)


def _show_tiles(report: Report, console: Console) -> None:
    from tilewright.lab.bench.suites import tiles

    display(tiles.table(report), console)
    for line in tiles.remarks(report):
        console.print(line, highlight=False)


def _show_records(report: Report, console: Console) -> None:
    from tilewright.lab.bench import study

    suite = import_module(f"tilewright.lab.bench.suites.{report.kind}")
    if on_gpu(report) and not hasattr(suite, "problems"):  # of a script of bench/ by this name
        return
    head, rows = study.table(suite, report.extra[report.kind])
    display(shown(report.kind, suite.CAPTION, head, rows, left=head[:1]), console)


TABLES: dict[str, Callable[[Report, Console], None]] = {
    "formats": _show_formats, "gpu": _show_gpu, "ladder cuda": _show_steps, "ladder simulated": _show_simulated,
    "startup": _show_startup, "tiles": _show_tiles, **dict.fromkeys(CELLS, _show_cells),
    **dict.fromkeys(SUITES, _show_records)}


# ---- columns on a GPU


def tflops(r: Result, name: str) -> str:
    """Median TFLOP/s, or a word where there is no sample."""
    return f"{(r.gflops(name) or 0.0) / 1e3:.1f}" if r.sample(name) else tables.word(r, name)


def _gpu_ratio(r: Result, name: str) -> str:
    ratio, sample = r.ratio(name), r.sample(OURS)
    if ratio is None or sample is None:
        return "-"
    return f"{ratio.median:.3f}" if len(sample.seconds) == 1 else tables.quoted(ratio, 3)


def held_back(found: dict[str, float] | None) -> str:
    """power cap (100%), or "nothing"; reasons that were given in less than a tenth of the readings do not count."""
    if found is None:
        return "-"
    said = [f"{text} ({share:.0%})" for text, share in found.items() if share >= 0.1 and text != "idle"]
    return ", ".join(said) or "nothing"


def _figures(*values: float | None, digits: int = 0) -> str:
    return " / ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def _pair(r: Result, what: str, digits: int = 0) -> str:
    """Ours / cuBLAS's."""
    return _figures(tables.state(r, OURS, what), tables.state(r, CUBLAS, what), digits=digits)


def rate_columns(results: list[Result]) -> Iterator[Column]:
    """Size, layout, TFLOP/s of tilewright and each peer, our ratios."""
    yield from tables.sizes(results)
    peers = tables.names(results)
    yield from ((name, partial(tflops, name=name)) for name in peers)
    yield from ((f"x {name}", partial(_gpu_ratio, name=name)) for name in _compared(results))


def power_columns(results: list[Result]) -> Iterator[Column]:
    """The state of the GPU while tilewright, and cuBLAS, ran alone."""
    yield tables.size_of(results), lambda r: r.case.size
    for heading, what in (("W", "watts"), ("SM MHz", "sm_mhz"), ("memory MHz", "memory_mhz"), ("°C", "celsius")):
        yield heading, partial(_pair, what=what)
    yield "J per multiply", partial(_pair, what="joules", digits=3)
    yield "J x cuBLAS", lambda r: _figures(joules_ratio(r), digits=3)
    yield "held back by", lambda r: held_back(tables.state(r, OURS, "held_back"))


def joules_ratio(r: Result) -> float | None:
    """Our energy per multiply over cuBLAS's: below 1 we need less."""
    ours, theirs = tables.state(r, OURS, "joules"), tables.state(r, CUBLAS, "joules")
    return ours / theirs if ours and theirs else None


def _compared(results: list[Result]) -> list[str]:
    """The peers among the rows, without tilewright by other plans."""
    return [name for name in tables.names(results) if is_peer(name, GPU)]


def gpu_peak(report: Report, r: Result) -> float | None:
    """Operations per second that the chip's matrix instructions alone reach at its highest clock on these operands; of
    f32 and f64 None."""
    gpu, target = report.machine.get("gpu", {}), nvidia.find(r.isa)
    if target is None or r.case.algorithm or r.case.problem.a != r.case.problem.b:
        return None
    rate = max(rates.get(r.case.problem.a, 0) for rates in (target.matrix_rates, target.wgmma_rates))
    return rate * gpu.get("sms", target.sms) * 1e6 * (gpu.get("max_sm_mhz") or target.clock / 1e6) or None


def ratio_to(r: Result, name: str) -> Spread | None:
    """Result.ratio, also to the fastest of the peers on a GPU."""
    if name == FASTEST:
        name = next((peer for peer in r.peers() if is_peer(peer, GPU)), "")
    return r.ratio(name)


def gpu_ratios(results: list[Result], name: str = CUBLAS) -> tuple[str, str] | None:
    """Geometric mean and least of our ratios to a peer, or to the fastest of each case."""
    medians = [ratio.median for r in results if (ratio := ratio_to(r, name))]
    return (f"{geometric_mean(medians):.3f}", f"{min(medians):.3f}") if medians else None


# ---- what stands around them


def is_busy(session: Session) -> bool:
    """Whether others kept so much of the machine busy that its figures are not the machine's."""
    return (session.others or 0.0) > BUSY


def on_gpu(report: Report) -> bool:
    return "gpu" in report.machine


OWN_TIME = ("1 thread: timed by the CPU time of the process, which others do not use; caches and memory they do share "
            "with it, so that rates are somewhat too low.")


def warnings(report: Report) -> list[str]:
    """What a reader must know before any figure; nothing on an idle machine."""
    cpus, own = report.machine["cpus"], report.options.get("despite_load")
    said = [
        f"{plural(session.threads, 'thread')}: {words(session.others or 0.0, cpus)}: repeat on an idle machine."
        for session in report.sessions if is_busy(session) and not on_gpu(report) and not (own and session.threads == 1)
    ]
    if own and any(session.threads == 1 for session in report.sessions):
        return [OWN_TIME, *said]
    if said:
        said.append("The machine was busy: absolute rates are too low, no mean is stated, and disturbed sizes have no "
                    "ratio.")
    return said


def heading(report: Report) -> list[str]:
    machine = report.machine
    lines = [f"tilewright {report.tilewright}{f' ({report.commit})' if report.commit else ''}, {report.created}"]
    if on_gpu(report):
        why = machine["gpu"].get("why")
        lines += [gpu_where(report), f"clocks: {report.extra.get('clocks', 'unknown')}" + (f" ({why})" if why else "")]
    else:
        caches = ", ".join(f"{name} {size(number)}" for name, number in machine["caches"].items())
        virtual = " (virtual)" if machine["virtual"] else ""
        lines.append(f"{machine['cpu']}, {machine['cpus_allowed']} CPUs{virtual}; {caches}")
    versions: dict[str, str] = {}
    for p in (p for session in report.sessions for p in session.peers if p["name"] != OURS):
        versions.setdefault(p["name"], f"{p['name']} {p['version']}".strip() + f": {p['how']}")
    return [*lines, *versions.values()]


def gpu_where(report: Report) -> str:
    """The chip, its limits and its software."""
    gpu: dict[str, Any] = report.machine.get("gpu", {})
    said = [f"{gpu.get('name', 'a GPU')} ({gpu.get('target', '?')}, {gpu.get('sms', '?')} multiprocessors"]
    said += [f"{size(gpu['l2'])} of L2"] if gpu.get("l2") else []
    said += [f"power limit {gpu['power_limit_watts']:.0f} W"] if gpu.get("power_limit_watts") else []
    said += [f"at most {gpu['max_sm_mhz']:.0f} MHz"] if gpu.get("max_sm_mhz") else []
    software = [f"driver {gpu['driver']}"] if gpu.get("driver") else []
    software += [f"CUDA {gpu['cuda']}"] if gpu.get("cuda") else []
    software += [f"{name} {version}" for name, version in gpu.get("packages", {}).items()]
    return f"{', '.join(said)}); {', '.join(software)}"


def remarks(report: Report) -> list[str]:
    """What is missing or doubtful: peers left out, wrong results, a busy machine."""
    gpu, every = on_gpu(report), [session.left_out.items() for session in report.sessions]
    always = [remark for remark in every[0] if all(remark in left_out for left_out in every)] if every[1:] else []
    said = [f"{name} left out: {reason}" for name, reason in always]
    for session in report.sessions:
        where = "" if gpu else f"{plural(session.threads, 'thread')}: "
        said += [f"{where}{name} left out: {reason}" for name, reason in session.left_out.items()
                 if (name, reason) not in always]
        late = [note for note in session.notes if note.endswith(" planned")]
        if len(late) > FEW:
            said.append(f"{where}{len(late)} cases were left out, since the time planned was over")
        said += [f"{where}{note}" for note in session.notes if note not in late or len(late) <= FEW]
        if session.stolen is not None and session.stolen > 0.02 and not gpu:
            said.append(f"{where}the hypervisor gave {session.stolen:.0%} of the CPU time away: rates are too low")
        if session.others is not None and MENTIONED < session.others <= BUSY and not gpu:
            said.append(f"{where}other processes kept {session.others:.1f} CPUs busy: rates may be too low")
    left_out = sum(max((row.sample.left_out for row in r.rows if row.sample), default=0) for r in report.results)
    if left_out:
        said.append(f"{plural(left_out, 'round')} disturbed by other processes left out")
    said += [f"{beyond}: {OUT_OF_DATE}" for group, _ in groups(report.results)
             if (beyond := tables.beyond(report, group))]
    for result in report.results:
        where = result.case.label + ("" if gpu else f", {plural(result.threads, 'thread')}")
        if not any(row.sample for row in result.rows) and result.rows and report.kind != "formats":
            said.append(f"{where}: {result.rows[0].error}")
        said += [f"{row.name}, {where}: {row.error}" for row in result.rows
                 if row.error and not row.error.startswith(("left out", ABSENT))]
    return list(dict.fromkeys(said))
