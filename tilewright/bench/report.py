"""A report as tables for a terminal: one per suite, format, thread count and ISA, rates of everybody and our ratio."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from tilewright.bench.measure import Spread, geomean
from tilewright.bench.results import BESIDE, OURS, Report, Result
from tilewright.bench.shapes import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Group = tuple[str, str, int, str]  # suite, dtype, threads, isa


def groups(results: Iterable[Result]) -> Iterator[tuple[Group, list[Result]]]:
    """Results that belong in one table, in the order they were first seen."""
    found: dict[Group, list[Result]] = {}
    for r in results:
        found.setdefault((r.case.suite, r.case.problem.a, r.threads, r.isa), []).append(r)
    yield from found.items()


def title(group: Group) -> str:
    suite, dtype, threads, isa = group
    return f"{suite}, {dtype}, {threads} thread{'s' * (threads != 1)}" + ("" if isa == "native" else f", held to {isa}")


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
    """The fastest peer and how we compare with it."""
    peer = result.fastest_peer()
    ratio = result.ratio(peer) if peer else None
    return (peer, ratio) if peer and ratio else None


def table(group: Group, results: list[Result]) -> Table:
    from rich.table import Table

    overhead = group[0] == "overhead"
    shown = Table(title=title(group), caption="ns per call" if overhead else "GFLOP/s", title_justify="left",
                  caption_justify="left")  # fmt: skip
    shown.add_column("m x n x k", justify="right", no_wrap=True)
    many_layouts = len({r.case.problem.layout for r in results}) > 1
    if many_layouts:
        shown.add_column("layout")
    contenders = names(results)
    for name in contenders:
        shown.add_column(name, justify="right", style="bold" if name == OURS else "")
    beside = any(r.case.beside for r in results)
    peers = len(contenders) > 1
    if beside:
        shown.add_column("against itself at", no_wrap=True)
    if peers:
        shown.add_column(
            "against the fastest called from Python" if overhead else "against the fastest peer", no_wrap=True
        )
    for r in results:
        cells = [r.case.size, *([r.case.problem.layout] if many_layouts else []), *(rate(r, n) for n in contenders)]
        if beside:
            cells.append(_beside(r))
        if peers:
            best = best_ratio(r)
            cells.append(f"{_coloured(best[1])} {best[0]}" if best else "-")
        shown.add_row(*cells)
    found = [b[1].median for b in map(best_ratio, results) if b]
    if len(found) > 1:
        shown.caption = f"{shown.caption}; geometric mean of the ratios {geomean(found):.3f}, least {min(found):.3f}"
    return shown


def _coloured(ratio: Spread) -> str:
    colour = "green" if ratio.median >= 1 else "red"
    return f"[{colour}]{quoted(ratio)}[/]"


def _beside(r: Result) -> str:
    """Our rate here over our rate on the neighbouring case: 0.98 of 512."""
    if r.case.beside is None:
        return ""
    ratio = r.ratio(BESIDE)
    other = r.case.beside
    name = size(other) + ("" if other.layout == r.case.problem.layout else f" {other.layout}")
    return f"{ratio.median:.2f} of {name}" if ratio else f"- of {name}"


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs to judge the figures: machine, contenders, tables, what is missing and why."""
    from rich.markup import escape

    for line in heading(report):
        console.print(escape(line), highlight=False)
    for group, results in groups(report.results):
        console.print()
        console.print(table(group, results))
    for line in remarks(report):
        console.print(escape(line), style="yellow", highlight=False)


def heading(report: Report) -> list[str]:
    machine = report.machine
    caches = ", ".join(f"{name} {size_of(number)}" for name, number in machine["caches"].items())
    lines = [
        f"tilewright {report.tilewright}{f' ({report.commit})' if report.commit else ''}, {report.created}",
        f"{machine['cpu']}, {machine['cpus_allowed']} CPUs{' (virtual)' if machine['virtual'] else ''}; {caches}",
    ]
    versions: dict[str, str] = {}
    for session in report.sessions:
        for c in session.contenders:
            versions.setdefault(c["name"], f"{c['name']} {c['version']}: {c['how']}")
    return lines + [line for name, line in versions.items() if name != OURS]


def size_of(number: int) -> str:
    """1048576 -> "1 MiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number} B"


def remarks(report: Report) -> list[str]:
    """What is missing or doubtful: peers left out, wrong results, a busy machine."""
    said = []
    for session in report.sessions:
        where = f"{session.threads} thread{'s' * (session.threads != 1)}"
        said += [f"{where}: {name} left out: {reason}" for name, reason in session.left_out.items()]
        said += [f"{where}: {note}" for note in session.notes]
        if session.stolen is not None and session.stolen > 0.02:
            said.append(f"{where}: the hypervisor gave {session.stolen:.0%} of the CPU time away; trust ratios only")
        if session.load_before is not None and session.load_before > 0.3 * report.machine["cpus_allowed"]:
            said.append(f"{where}: the machine was busy (load {session.load_before:.1f}); trust ratios only")
    for result in report.results:
        for row in result.rows:
            if row.error and not row.error.startswith("left out"):
                said.append(f"{row.name}, {result.case.label}, {result.threads} threads: {row.error}")
    return [text for text, _ in groupby(said)]
