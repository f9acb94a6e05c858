"""A report as tables for a terminal: one per suite, format, thread count and ISA, rates of everybody and our ratio."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tilewright.bench.results import BESIDE, OURS, Report, Result
from tilewright.bench.shapes import size
from tilewright.doctor.doctor import size as bytes_of
from tilewright.measure.ceilings import OUT_OF_DATE, exceeded
from tilewright.measure.disturbance import BUSY, words
from tilewright.measure.measure import Spread, geomean
from tilewright.text import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tilewright.bench.results import Session

MENTIONED = 0.1  # CPUs that other processes kept busy: below BUSY a remark
Group = tuple[str, str, int, str]  # suite, dtype, threads, isa


def groups(results: Iterable[Result]) -> Iterator[tuple[Group, list[Result]]]:
    """Results that belong in one table, in the order they were first seen."""
    found: dict[Group, list[Result]] = {}
    for r in results:
        found.setdefault((r.case.suite, r.case.problem.a, r.threads, r.isa), []).append(r)
    yield from found.items()


def title(group: Group) -> str:
    suite, dtype, threads, isa = group
    return f"{suite}, {dtype}, {plural(threads, 'thread')}" + ("" if isa == "native" else f", held to {isa}")


def names(results: Iterable[Result]) -> list[str]:
    """Contenders in order of first appearance, ours first."""
    seen = dict.fromkeys(row.name for r in results for row in r.rows if row.name != BESIDE)
    return sorted(seen, key=lambda name: name != OURS)


def rate(result: Result, name: str) -> str:
    """GFLOP/s, or ns per call in the suite that is about calls; a word where there is no sample."""
    row = result.row(name)
    if row is None:
        return "-"
    if row.sample is None:
        return "wrong" if (row.error or "").startswith("wrong") else "-" if "left out" in (row.error or "") else "error"
    if result.case.suite == "overhead":
        return f"{row.sample.spread.median * 1e9:.0f}"
    gflops = result.gflops(name) or 0.0
    return f"{gflops:.2f}" if gflops < 10 else f"{gflops:.1f}"


def quoted(ratio: Spread) -> str:
    """1.08 (1.06 to 1.09): the median of per-round ratios and its quartiles."""
    return f"{ratio.median:.2f} ({ratio.q1:.2f} to {ratio.q3:.2f})"


def best_ratio(result: Result) -> tuple[str, Spread] | None:
    """The fastest peer and how we compare with it.  The ladder's steps are no peers: it has shares of the peak.

    None where other processes disturbed the rounds: who waits for whom then decides, not who is faster.
    """
    peer = result.fastest_peer() if result.case.suite != "ladder" and not result.disturbed else None
    ratio = result.ratio(peer) if peer else None
    return (peer, ratio) if peer and ratio else None


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
    for r in report.results:
        if (r.case.problem.a, r.threads, r.isa) == group[1:]:
            rates |= {f"{row.name}, {r.case.size}": r.gflops(row.name) or 0.0 for row in r.rows}
    top = max(rates, key=rates.__getitem__, default=None)
    return f"{top}: {rates[top]:.1f} GFLOP/s" if top and peak and exceeded(rates[top], peak) else ""


def sessions_of(report: Report, group: Group) -> list[Session]:
    """The processes that measured a table."""
    return [s for s in report.sessions if (s.threads, s.isa) == group[2:]]


def line(result: Result) -> str:
    """One result as it is measured: "1 thread: f32 nn 512: tilewright 228.0, numpy 226.2 GFLOP/s; 1.01 (...) numpy"."""
    unit = "ns per call" if result.case.suite == "overhead" else "GFLOP/s"
    rates = ", ".join(f"{name} {rate(result, name)}" for name in names([result]))
    against = _against(result, narrow=False)
    where = f"{plural(result.threads, 'thread')}: {result.case.label}"
    return f"{where}: {rates} {unit}" + (f"; {against}" if against != "-" else "")


Column = tuple[str, Callable[[Result], str]]


def columns(group: Group, results: list[Result], peak: float | None, narrow: bool = False) -> Iterator[Column]:
    """Heading and cell of every column that this table can fill; `narrow` leaves out spreads and shares."""
    suite = group[0]
    square = all(r.case.size.isdecimal() for r in results)
    yield ("n" if narrow else "m = n = k") if square else "m x n x k", lambda r: r.case.size
    if len({r.case.problem.layout for r in results}) > 1:
        yield "layout", lambda r: r.case.problem.layout
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
    from rich import box
    from rich.table import Table

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
    shown = Table(title=title(group), caption="; ".join(caption), title_justify="left", caption_justify="left")
    shown.box, shown.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    cells = list(columns(group, results, peak, narrow))
    for heading, _ in cells:
        words = heading.startswith("against")
        lines = textwrap.fill(heading, 6 if narrow else 12, break_long_words=False)
        shown.add_column(lines, justify="left" if words else "right", no_wrap=True, style="bold" * (heading == OURS))
    for r in results:
        best = best_ratio(r)
        colour = "green" if best and best[1].median >= 1 else "red"
        texts = [cell(r) for _, cell in cells]
        shown.add_row(*texts[:-1], f"[{colour}]{texts[-1]}[/]" if best else texts[-1])
    return shown


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
    if other is None or ratio is None or r.disturbed:
        return "-" if other is None or ratio is None else "disturbed"
    layout = "" if other.layout == r.case.problem.layout else f" {other.layout}"
    return f"{ratio.median:.2f}" if narrow else f"{ratio.median:.2f} of {size(other)}{layout}"


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs to judge the figures: machine, contenders, tables, what is missing and why."""
    from rich.markup import escape
    from rich.measure import Measurement

    warn(report, console)
    for line in heading(report):
        console.print(escape(line), highlight=False)
    for group, results in groups(report.results):
        console.print()
        peak, busy = peak_of(report, group), any(map(is_busy, sessions_of(report, group)))
        whole = Measurement.get(console, console.options.update(max_width=1000), table(group, results, peak, busy=busy))
        console.print(table(group, results, peak, whole.maximum > console.width, busy))
    for line in remarks(report):
        console.print(escape(line), style="yellow", highlight=False)


def is_busy(session: Session) -> bool:
    """Whether others kept so much of the machine busy that its figures are not the machine's."""
    return (session.others or 0.0) > BUSY


def warnings(report: Report) -> list[str]:
    """What a reader must know before any figure; nothing on an idle machine."""
    cpus = report.machine["cpus"]
    said = [
        f"{plural(session.threads, 'thread')}: {words(session.others or 0.0, cpus)}: repeat on an idle machine."
        for session in report.sessions if is_busy(session)
    ]
    if said:
        said.append("Rates are too low, no mean is stated, and where rounds were disturbed no ratio.")
    return said


def warn(report: Report, console: Console) -> None:
    for line in warnings(report):
        console.print(line, style="bold red", highlight=False, markup=False)


def heading(report: Report) -> list[str]:
    machine = report.machine
    caches = ", ".join(f"{name} {bytes_of(number)}" for name, number in machine["caches"].items())
    lines = [
        f"tilewright {report.tilewright}{f' ({report.commit})' if report.commit else ''}, {report.created}",
        f"{machine['cpu']}, {machine['cpus_allowed']} CPUs{' (virtual)' if machine['virtual'] else ''}; {caches}",
    ]
    versions: dict[str, str] = {}
    for session in report.sessions:
        for c in session.contenders:
            versions.setdefault(c["name"], f"{c['name']} {c['version']}".strip() + f": {c['how']}")
    return lines + [line for name, line in versions.items() if name != OURS]


def remarks(report: Report) -> list[str]:
    """What is missing or doubtful: peers left out, wrong results, a busy machine."""
    said = []
    for session in report.sessions:
        where = plural(session.threads, "thread")
        said += [f"{where}: {name} left out: {reason}" for name, reason in session.left_out.items()]
        said += [f"{where}: {note}" for note in session.notes]
        if session.stolen is not None and session.stolen > 0.02:
            said.append(f"{where}: the hypervisor gave {session.stolen:.0%} of the CPU time away: rates are too low")
        if session.others is not None and MENTIONED < session.others <= BUSY:
            said.append(f"{where}: other processes kept {session.others:.1f} CPUs busy: rates may be too low")
    left_out = sum(max((row.sample.left_out for row in r.rows if row.sample), default=0) for r in report.results)
    if left_out:
        said.append(f"{plural(left_out, 'round')} disturbed by other processes left out")
    for group, _ in groups(report.results):
        if beyond := _beyond(report, group):
            peak = _measured_peak(report, group) or 0.0
            said.append(f"{beyond}, beyond the {peak:.1f} that multiply-adds alone reached: {OUT_OF_DATE}")
    for result in report.results:
        if not any(row.sample for row in result.rows) and result.rows:
            said.append(f"{result.case.label}, {plural(result.threads, 'thread')}: {result.rows[0].error}")
        for row in result.rows:
            if row.error and not row.error.startswith("left out"):
                said.append(f"{row.name}, {result.case.label}, {plural(result.threads, 'thread')}: {row.error}")
    return list(dict.fromkeys(said))
