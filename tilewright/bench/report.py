"""A report as tables for a terminal and for documents: on CPUs, on a GPU, of number formats, of the GPU ladder.

A table is a list of columns, each a heading and a cell of a result, so that terminal and documents show the same.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.bench.cases import size
from tilewright.bench.peer import OURS
from tilewright.bench.results import ABSENT, BESIDE, Report, Result, Session
from tilewright.measure.measure import Spread, geomean, spread
from tilewright.measure.probes import OUT_OF_DATE, exceeded
from tilewright.measure.quiet import BUSY, words
from tilewright.text import plural
from tilewright.text import size as bytes_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FEW = 5  # cases left out are listed up to so many
MENTIONED = 0.1  # CPUs that other processes kept busy: below BUSY a remark
NUMPY, KERNEL_0 = "numpy", "cuBLAS"
Group = tuple[str, str, int, str]  # suite, dtype, threads, isa
Column = tuple[str, Callable[[Result], str]]


def groups(results: Iterable[Result]) -> Iterator[tuple[Group, list[Result]]]:
    """Results that belong in one table, in the order they were first seen."""
    found: dict[Group, list[Result]] = {}
    for r in results:
        found.setdefault((r.case.suite, r.case.problem.a, r.threads, r.isa), []).append(r)
    yield from found.items()


def title(group: Group) -> str:
    suite, dtype, threads, isa = group
    if isa.startswith("sm_"):
        return f"{suite}, {dtype}" if suite != dtype else suite
    return f"{suite}, {dtype}, {plural(threads, 'thread')}" + ("" if isa == "native" else f", limited to {isa}")


def names(results: Iterable[Result]) -> list[str]:
    """Peers in order of first appearance, ours first."""
    seen = dict.fromkeys(row.name for r in results for row in r.rows if row.name != BESIDE)
    return sorted(seen, key=lambda name: name != OURS)


# ---- cells


def word(result: Result, name: str) -> str:
    """What stands where there is no sample."""
    row = result.row(name)
    error = (row.error or "") if row else "left out"
    return "wrong" if error.startswith("wrong") else "-" if error.startswith(("left out", ABSENT)) else "error"


def rate(result: Result, name: str) -> str:
    """GFLOP/s, or ns per call in the suite that is about calls; a word where there is no sample."""
    sample = result.sample(name)
    if sample is None:
        return word(result, name)
    if result.case.suite == "overhead":
        return f"{sample.spread.median * 1e9:.0f}"
    gflops = result.gflops(name) or 0.0
    return f"{gflops:.2f}" if gflops < 10 else f"{gflops:.1f}"


def quoted(ratio: Spread, digits: int = 2) -> str:
    """1.08 (1.06 to 1.09): the median of per-round ratios and its quartiles."""
    return f"{ratio.median:.{digits}f} ({ratio.q1:.{digits}f} to {ratio.q3:.{digits}f})"


def best_ratio(result: Result) -> tuple[str, Spread] | None:
    """The fastest peer and how we compare with it.  The ladder's steps are no peers: it has shares of the peak.

    None where other processes disturbed the rounds: the time spent waiting for a CPU then decides.
    """
    name = result.fastest_peer() if result.case.suite != "ladder" and not result.disturbed else None
    ratio = result.ratio(name) if name else None
    return (name, ratio) if name and ratio else None


def peak_of(report: Report, group: Group) -> float | None:
    """GFLOP/s that multiply-adds alone reach on these threads, if that was measured and nothing here was faster."""
    peak = _measured_peak(report, group)
    return None if peak is None or _beyond(report, group) else peak


def _measured_peak(report: Report, group: Group) -> float | None:
    _, dtype, threads, isa = group
    found: float | None = report.extra.get("peak_gflops", {}).get(f"{dtype} {threads} {isa}")
    return found


def _beyond(report: Report, group: Group) -> str:
    """"tilewright, 512: 203.8 GFLOP/s", if that is beyond what multiply-adds alone were measured to reach: then the
    ceiling is out of date, and no share of it means anything.  "" otherwise."""
    peak = _measured_peak(report, group)
    rates: dict[str, float] = {}
    for r in report.results if peak else ():
        if (r.case.problem.a, r.threads, r.isa) == group[1:]:
            rates |= {f"{row.name}, {r.case.size}": r.gflops(row.name) or 0.0 for row in r.rows}
    top = max(rates, key=rates.__getitem__, default=None)
    return f"{top}: {rates[top]:.1f} GFLOP/s" if top and peak and exceeded(rates[top], peak) else ""


def line(result: Result) -> str:
    """One result as it is measured: "1 thread: f32 nn 512: tilewright 228.0, numpy 226.2 GFLOP/s; 1.01 (...) numpy"."""
    unit = "ns per call" if result.case.suite == "overhead" else result.case.product.unit
    rates = ", ".join(f"{name} {rate(result, name)}" for name in names([result]))
    against = _against(result, narrow=False)
    gpu = result.isa.startswith("sm_")
    where = f"{'' if gpu else plural(result.threads, 'thread') + ': '}{result.case.label}"
    return f"{where}: {rates} {unit}" + (f"; {against}" if against != "-" else "")


def _size(results: list[Result]) -> str:
    return "m = n = k" if all(r.case.size.isdecimal() for r in results) else "m x n x k"


def _sizes(results: list[Result], heading: str = "") -> Iterator[Column]:
    """The columns that say which case it is."""
    yield heading or _size(results), lambda r: r.case.size
    if len({r.case.problem.layout for r in results}) > 1:
        yield "layout", lambda r: r.case.problem.layout


# ---- tables on a CPU


def columns(group: Group, results: list[Result], peak: float | None, narrow: bool = False) -> Iterator[Column]:
    """Heading and cell of every column that this table can fill; `narrow` leaves out spreads and shares."""
    suite = group[0]
    yield from _sizes(results, "n" if narrow and _size(results) == "m = n = k" else "")
    top = peak if suite == "ladder" and not narrow else None
    for name in names(results):
        yield name, lambda r, name=name: rate(r, name) + _share(r, name, top)  # type: ignore[misc]
    if suite == "skinny":
        yield f"{OURS} GB/s", _bandwidth
    if any(r.case.beside for r in results):
        yield "against itself" if narrow else "against itself at", lambda r: _beside(r, narrow)
    if any(best_ratio(r) or r.disturbed for r in results) and suite != "ladder":
        against = "called from Python" if suite == "overhead" else "peer"
        yield f"against the fastest {against}", lambda r: _against(r, narrow)


def table(
    group: Group, results: list[Result], peak: float | None = None, narrow: bool = False, busy: bool = False
) -> Table:
    """`busy`: other processes kept CPUs busy meanwhile, so that no mean over sizes is worth stating."""
    caption = ["ns per call" if group[0] == "overhead" else "GFLOP/s"]
    if peak and group[0] != "overhead":
        caption.append(f"multiply-adds alone reach {peak:.1f}")
    found = [best[1].median for best in map(best_ratio, results) if best]
    busy = busy or any(r.disturbed for r in results)
    if len(found) > 1 and not busy:
        caption.append(f"geometric mean of the ratios {geomean(found):.3f}, least {min(found):.3f}")
    beside = [ratio.median for ratio in (r.ratio(BESIDE) for r in results) if ratio]
    if len(beside) > 1 and not busy:
        caption.append(f"against itself {geomean(beside):.3f}, least {min(beside):.3f}")
    cells = list(columns(group, results, peak, narrow))
    heads = [textwrap.fill(heading, 6 if narrow else 12, break_long_words=False) for heading, _ in cells]
    rows = []
    for r in results:
        best, texts = best_ratio(r), [cell(r) for _, cell in cells]
        colour = "green" if best and best[1].median >= 1 else "red"
        rows.append([*texts[:-1], f"[{colour}]{texts[-1]}[/]" if best else texts[-1]])
    left = [head for head, (heading, _) in zip(heads, cells) if heading.startswith("against")]
    return shown(title(group), "; ".join(caption), heads, rows, left=left)


def shown(
    title: str, caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = (),
    bold: Sequence[str] = (OURS,), wrap: bool = False,
) -> Table:
    """A table of texts, figures on the right; columns in `left` are words."""
    from rich import box
    from rich.table import Table

    found = Table(title=title, caption=caption or None, title_justify="left", caption_justify="left")
    found.box, found.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    for heading in head:
        justify: Any = "left" if heading in left else "right"
        found.add_column(heading, justify=justify, no_wrap=not wrap, style="bold" * (heading in bold))
    for row in rows:
        found.add_row(*row)
    return found


def _share(r: Result, name: str, peak: float | None) -> str:
    gflops = r.gflops(name)
    return f" ({gflops / peak:.0%})" if gflops and peak else ""


def _bandwidth(r: Result) -> str:
    """What had to move at the least, per second: to be held against the bandwidth of memory."""
    sample = r.sample(OURS)
    return f"{r.case.problem.min_bytes / sample.spread.median / 1e9:.1f}" if sample else "-"


def _against(r: Result, narrow: bool) -> str:
    best = best_ratio(r)
    if best is None:
        return "disturbed" if r.disturbed else "-"
    return f"{best[1].median:.2f} {best[0]}" if narrow else f"{quoted(best[1])} {best[0]}"


def _beside(r: Result, narrow: bool) -> str:
    """Our rate here over our rate on the neighbouring case: 0.98 of 512."""
    ratio, other = r.ratio(BESIDE), r.case.beside
    if other is None or ratio is None:
        return "disturbed" if r.disturbed and r.sample(BESIDE) else "-"
    layout = "" if other.layout == r.case.problem.layout else f" {other.layout}"
    return f"{ratio.median:.2f}" if narrow else f"{ratio.median:.2f} of {size(other)}{layout}"


# ---- tables of number formats: one per thread count, ISA and size

FORMATS_HEAD = ["product", "G/s", "x our f32", "x NumPy", "x fastest peer", "x prepacked peer", "error", "peer's error"]
REMARK = "remark"  # one more column where a product has no figures
# What the head is too short for.
FORMATS_CAPTION = (
    "G/s: 10^9 operations per second, 2 m n k a product, 8 m n k of complex numbers. x: our rate over the "
    "other's, median over the rounds. x prepacked peer: over the fastest peer that was given B packed in advance; "
    "tilewright packs B in each call. error: max |C - A B| / (u |A| |B|), ours and the fastest peer's, where u is half "
    "the distance from 1 to the next number of the result's format; the documented bound is k. Integers are exact "
    "modulo 2^bits"
)


def format_groups(results: Iterable[Result]) -> dict[tuple[int, str, int], list[Result]]:
    """{(threads, isa, n): what belongs in one table}, in the order in which it was measured."""
    found: dict[tuple[int, str, int], list[Result]] = {}
    for r in results:
        found.setdefault((r.threads, r.isa, r.case.problem.n), []).append(r)
    return found


def format_lines(results: list[Result]) -> list[list[str]]:
    """The head and the lines of one table."""
    body = [format_cells(r) for r in results]
    width = max(map(len, body), default=0)
    return [[*FORMATS_HEAD, REMARK][:width], *([*line, ""][:width] for line in body)]


def format_cells(r: Result) -> list[str]:
    """One line of the table, in the order of FORMATS_HEAD; with a remark where there is nothing else to say."""
    ours = r.row(OURS)
    if ours is None or ours.sample is None:
        reason = (ours.error or "") if ours else "not timed"
        said = reason if reason.startswith((ABSENT, "wrong")) else f"error: {reason}"
        return [r.case.product.label, *["-"] * (len(FORMATS_HEAD) - 1), said]
    fastest, packed = r.peers()[:1], r.peers(prepared=True)[:1]
    return [
        r.case.product.label,
        format_rate(r.gflops()),
        times(r.ratio(BESIDE)) if r.row(BESIDE) else "1",
        times(r.ratio(NUMPY)) + _part(r, NUMPY),
        *(f"{times(r.ratio(name[0]))} {name[0]}{_part(r, name[0])}" if name else "-" for name in (fastest, packed)),
        _deviation(r, OURS),
        _deviation(r, fastest[0]) if fastest else "-",
    ]


def format_rate(found: float | None) -> str:
    if found is None:
        return "-"
    return f"{found:.0f}" if found >= 100 else f"{found:.3g}"


def times(ratio: Spread | None) -> str:
    """A ratio, in as many digits as it is worth."""
    if ratio is None:
        return "-"
    return f"{ratio.median:.{0 if ratio.median >= 100 else 1 if ratio.median >= 10 else 2}f}"


def _part(r: Result, name: str) -> str:
    """A remark where a peer was given fewer rows of A."""
    row = r.row(name)
    return f" ({plural(row.m, 'row')})" if row and row.sample and row.m else ""


def _deviation(r: Result, name: str) -> str:
    row = r.row(name)
    if row is None or row.sample is None or row.deviation is None:
        return "-"
    if r.case.product.exact:
        return "exact" if row.deviation == 0 else f"off by {row.deviation:.0f}"
    return f"{row.deviation:.2g}" if math.isfinite(row.deviation) else "inf"


def _show_formats(report: Report, console: Console) -> None:
    from rich.markup import escape

    for (threads, isa, n), members in format_groups(report.results).items():
        head, *body = format_lines(members)
        where = f"m = n = k = {n}, {plural(threads, 'thread')}" + ("" if isa == "native" else f", limited to {isa}")
        rows = [[escape(cell) for cell in row] for row in body]
        console.print()
        console.print(shown(where, "", head, rows, left=(head[0], REMARK), bold=("G/s",), wrap=True))
    console.print(FORMATS_CAPTION, highlight=False)


# ---- tables on a GPU


def tflops(r: Result, name: str) -> str:
    """Median TFLOP/s, or a word where there is no sample."""
    return f"{(r.gflops(name) or 0.0) / 1e3:.1f}" if r.sample(name) else word(r, name)


def _gpu_ratio(r: Result, name: str) -> str:
    found, sample = r.ratio(name), r.sample(OURS)
    if found is None or sample is None:
        return "-"
    return f"{found.median:.3f}" if len(sample.seconds) == 1 else quoted(found, 3)


def state(r: Result, name: str, what: str) -> Any:
    """A figure of gpu_state.summary for one peer; None if it is not known."""
    row = r.row(name)
    return row.gpu.get(what) if row and row.gpu else None


def held_back(found: dict[str, float] | None) -> str:
    """power cap (100%), or "nothing"; reasons that were given in less than a tenth of the readings do not count."""
    if found is None:
        return "-"
    said = [f"{text} ({share:.0%})" for text, share in found.items() if share >= 0.1 and text != "idle"]
    return ", ".join(said) or "nothing"


def _figure(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(r: Result, what: str, digits: int = 0) -> str:
    """Ours / cuBLAS's."""
    return " / ".join(_figure(state(r, name, what), digits) for name in (OURS, KERNEL_0))


def rate_columns(results: list[Result]) -> Iterator[Column]:
    """Size, layout, TFLOP/s of tilewright and each peer, our ratios."""
    yield from _sizes(results)
    for name in names(results):
        yield name, lambda r, name=name: tflops(r, name)  # type: ignore[misc]
    for name in names(results):
        if name in (KERNEL_0, "triton"):
            yield f"x {name}", lambda r, name=name: _gpu_ratio(r, name)  # type: ignore[misc]


def power_columns(results: list[Result]) -> Iterator[Column]:
    """The state of the GPU while tilewright, and cuBLAS, ran alone."""
    yield _size(results), lambda r: r.case.size
    yield "W", lambda r: _pair(r, "watts")
    yield "SM MHz", lambda r: _pair(r, "sm_mhz")
    yield "memory MHz", lambda r: _pair(r, "memory_mhz")
    yield "°C", lambda r: _pair(r, "celsius")
    yield "J per multiply", lambda r: _pair(r, "joules", 3)
    yield "J x cuBLAS", lambda r: _figure(joules_ratio(r), 3)
    yield "held back by", lambda r: held_back(state(r, OURS, "held_back"))


def joules_ratio(r: Result) -> float | None:
    """Our energy per multiply over cuBLAS's: below 1 we need less."""
    ours, theirs = state(r, OURS, "joules"), state(r, KERNEL_0, "joules")
    return ours / theirs if ours and theirs else None


def gpu_ratios(results: list[Result]) -> tuple[str, str] | None:
    """Geometric mean and least of our ratios to cuBLAS."""
    found = [ratio.median for r in results if (ratio := r.ratio(KERNEL_0))]
    return (f"{geomean(found):.3f}", f"{min(found):.3f}") if found else None


def _show_gpu(report: Report, console: Console) -> None:
    from rich.markup import escape

    for group, results in groups(report.results):
        console.print()
        caption = "TFLOP/s; x: how many times as fast tilewright is, median of rounds (quartiles)"
        if (found := gpu_ratios(results)) and len(results) > 1:
            caption += f"; against cuBLAS: geometric mean {found[0]}, least {found[1]}"
        watched = any(state(r, name, "readings") for r in results for name in (OURS, KERNEL_0))
        power = [(power_columns, "tilewright / cuBLAS, each alone")] if watched else []
        for columns_of, said in [(rate_columns, caption), *power]:
            cells = list(columns_of(results))
            rows = [[cell(r) for _, cell in cells] for r in results]
            console.print(shown(title(group), said, [h for h, _ in cells], rows, left=("held back by",)))
    for text in cost_lines(report):
        console.print(escape(text), highlight=False)


def gpu_where(report: Report) -> str:
    """The chip, its limits and its software."""
    gpu = report.machine.get("gpu", {})
    said = [f"{gpu.get('name', 'a GPU')} ({gpu.get('target', '?')}, {gpu.get('sms', '?')} multiprocessors"]
    if gpu.get("l2"):
        said.append(f"{bytes_of(gpu['l2'])} of L2")
    if gpu.get("power_limit_watts"):
        said.append(f"power limit {gpu['power_limit_watts']:.0f} W")
    if gpu.get("max_sm_mhz"):
        said.append(f"at most {gpu['max_sm_mhz']:.0f} MHz")
    software = [f"driver {gpu['driver']}"] if gpu.get("driver") else []
    software += [f"CUDA {gpu['cuda']}"] if gpu.get("cuda") else []
    software += [f"{name} {version}" for name, version in gpu.get("packages", {}).items()]
    return f"{', '.join(said)}); {', '.join(software)}"


def overheads(report: Report) -> dict[str, Spread]:
    """Seconds per call from Python."""
    return {name: spread(seconds) for name, seconds in report.extra.get("overhead", {}).items()}


def cost_lines(report: Report) -> Iterator[str]:
    for name, s in overheads(report).items():
        yield f"{name}: {s.median * 1e6:.2f} us a call ({s.q1 * 1e6:.2f} to {s.q3 * 1e6:.2f})"
    if found := {name: t["record_s"] + t["llvm_s"] for name, t in report.extra.get("emission", {}).items()}:
        slowest = max(found, key=found.__getitem__)
        yield (
            f"emission of {len(found)} kernels: median {statistics.median(found.values()):.3f} s, "
            f"most {found[slowest]:.3f} s ({slowest})"
        )


def _show_steps(report: Report, console: Console) -> None:
    """The GPU ladder on a GPU."""
    from tilewright.bench.suites import ladders

    head, *rows = ladders.table(report.results)
    device = report.machine.get("gpu", report.extra.get("device", {})).get("name", "")
    caption = "medians; in brackets the share of cuBLAS's rate in the same rounds"
    console.print(shown(device, caption, head, rows, left=head[:1]))


def _show_simulated(report: Report, console: Console) -> None:
    """The GPU ladder as the simulator counts it."""
    from tilewright import targets
    from tilewright.bench.suites import ladder_simulated as study

    target: Any = targets.target(report.options["target"])
    found = study.counted(report)
    for each in study.tables([*found, study.dispatched(found, target)], target):
        console.print(each)
    console.print(f"Registers and CTAs per SM: {report.extra.get('ptxas', 'unknown')}.", highlight=False)


# ---- a whole report


def _show_cpu(report: Report, console: Console) -> None:
    from rich.measure import Measurement

    for group, results in groups(report.results):
        console.print()
        peak, busy = peak_of(report, group), any(map(is_busy, sessions_of(report, group)))
        whole = Measurement.get(console, console.options.update(max_width=1000), table(group, results, peak, busy=busy))
        console.print(table(group, results, peak, whole.maximum > console.width, busy))


def _show_cells(report: Report, console: Console) -> None:
    from tilewright.bench.suites import never_lose

    never_lose.show(report, console)


TABLES: dict[str, Callable[[Report, Console], None]] = {
    "formats": _show_formats, "gpu": _show_gpu, "ladder cuda": _show_steps, "ladder simulated": _show_simulated,
    "never-lose": _show_cells,
}


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs to judge the figures: machine, peers, tables, what is missing and why."""
    from rich.markup import escape

    for text in warnings(report):
        console.print(text, style="bold red", highlight=False, markup=False)
    for text in heading(report) if report.kind != "ladder simulated" else ():
        console.print(escape(text), highlight=False)
    TABLES.get(report.kind, _show_cpu)(report, console)
    for text in remarks(report):
        console.print(escape(text), style="yellow", highlight=False)


def sessions_of(report: Report, group: Group) -> list[Session]:
    """The processes that measured a table."""
    return [s for s in report.sessions if (s.threads, s.isa) == group[2:]]


def is_busy(session: Session) -> bool:
    """Whether others kept so much of the machine busy that its figures are not the machine's."""
    return (session.others or 0.0) > BUSY


def on_gpu(report: Report) -> bool:
    return "gpu" in report.machine


def warnings(report: Report) -> list[str]:
    """What a reader must know before any figure; nothing on an idle machine."""
    cpus = report.machine["cpus"]
    said = [
        f"{plural(session.threads, 'thread')}: {words(session.others or 0.0, cpus)}: repeat on an idle machine."
        for session in report.sessions if is_busy(session) and not on_gpu(report)
    ]
    if said:
        said.append("Rates are too low, no mean is stated, and where rounds were disturbed no ratio.")
    return said


def heading(report: Report) -> list[str]:
    machine = report.machine
    lines = [f"tilewright {report.tilewright}{f' ({report.commit})' if report.commit else ''}, {report.created}"]
    if on_gpu(report):
        why = machine["gpu"].get("why")
        lines += [gpu_where(report), f"clocks: {report.extra.get('clocks', 'unknown')}" + (f" ({why})" if why else "")]
    else:
        caches = ", ".join(f"{name} {bytes_of(number)}" for name, number in machine["caches"].items())
        virtual = " (virtual)" if machine["virtual"] else ""
        lines.append(f"{machine['cpu']}, {machine['cpus_allowed']} CPUs{virtual}; {caches}")
    versions: dict[str, str] = {}
    for session in report.sessions:
        for p in session.peers:
            versions.setdefault(p["name"], f"{p['name']} {p['version']}".strip() + f": {p['how']}")
    return lines + [line for name, line in versions.items() if name != OURS]


def remarks(report: Report) -> list[str]:
    """What is missing or doubtful: peers left out, wrong results, a busy machine."""
    said = []
    gpu = on_gpu(report)
    for session in report.sessions:
        where = "" if gpu else f"{plural(session.threads, 'thread')}: "
        said += [f"{where}{name} left out: {reason}" for name, reason in session.left_out.items()]
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
    for group, _ in groups(report.results):
        if beyond := _beyond(report, group):
            peak = _measured_peak(report, group) or 0.0
            said.append(f"{beyond}, beyond the {peak:.1f} that multiply-adds alone reached: {OUT_OF_DATE}")
    for result in report.results:
        where = result.case.label + ("" if gpu else f", {plural(result.threads, 'thread')}")
        if not any(row.sample for row in result.rows) and result.rows and report.kind != "formats":
            said.append(f"{where}: {result.rows[0].error}")
        for row in result.rows:
            if row.error and not row.error.startswith(("left out", ABSENT)):
                said.append(f"{row.name}, {where}: {row.error}")
    return list(dict.fromkeys(said))
