"""The tables of a report: their cells, and the columns on CPUs and of number formats. Those on a GPU are in report.py.

A table is a list of columns, each a heading and a cell of a result, so that terminal and documents show the same.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.lab.bench.cases import size
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.results import ABSENT, BESIDE, NUMPY, Report, Result
from tilewright.lab.measure.measure import Spread
from tilewright.lab.measure.probes import exceeded
from tilewright.text import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

K = TypeVar("K")
Group = tuple[str, str, int, str]  # suite, formats in words, threads, isa
Column = tuple[str, Callable[[Result], str]]


def groups(results: Iterable[Result]) -> Iterator[tuple[Group, list[Result]]]:
    """Results that belong in one table, in the order they were first seen."""
    yield from _grouped(results, lambda r: (r.case.suite, r.case.product.label, r.threads, r.isa)).items()


def _grouped(results: Iterable[Result], key: Callable[[Result], K]) -> dict[K, list[Result]]:
    members: dict[K, list[Result]] = {}
    for r in results:
        members.setdefault(key(r), []).append(r)
    return members


def title(group: Group) -> str:
    suite, dtype, threads, isa = group
    if isa.startswith("sm_"):
        return f"{suite}, {dtype}" if suite != dtype else suite
    return f"{suite}, {dtype}, {setting(threads, isa)}"


def setting(threads: int, isa: str) -> str:
    """1 thread; 2 threads, limited to avx2."""
    return plural(threads, "thread") + ("" if isa == "native" else f", limited to {isa}")


def formats_title(n: int, threads: int, isa: str) -> str:
    return f"m = n = k = {n}, {setting(threads, isa)}"


def names(results: Iterable[Result]) -> list[str]:
    """Peers in order of first appearance, ours first."""
    seen = dict.fromkeys(row.name for r in results for row in r.rows if row.name != BESIDE)
    return sorted(seen, key=lambda name: name != OURS)


def shown(
    title: str, caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = (),
    bold: Sequence[str] = (OURS,), wrap: bool = False,
) -> Table:
    """A table of texts, figures on the right; columns in `left` are words."""
    from rich import box
    from rich.table import Table

    table_shown = Table(title=title, caption=caption or None, title_justify="left", caption_justify="left")
    table_shown.box, table_shown.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    for heading in head:
        justify: Any = "left" if heading in left else "right"
        table_shown.add_column(heading, justify=justify, no_wrap=not wrap, style="bold" * (heading in bold))
    for row in rows:
        table_shown.add_row(*row)
    return table_shown


WORDS = 40  # letters of a column above which its cells are broken into lines
GAP = 2  # between columns


def display(table: Table, console: Console) -> None:
    """Print a table. One that is wider than the terminal goes on below with the further columns, and no cell is cut."""
    for part in fitted(table, console.width):
        console.print(part)


def fitted(table: Table, width: int) -> list[Table]:
    """The table; or, where it is wider, tables that are not, each with the first column."""
    from copy import copy

    from rich.table import Table
    from rich.text import Text

    heads = [str(column.header) for column in table.columns]
    cells = [max((len(line) for cell in column.cells for line in Text.from_markup(str(cell)).plain.splitlines()),
                 default=0) for column in table.columns]
    if sum(max(cell, *map(len, (head or " ").splitlines())) + GAP for cell, head in zip(cells, heads)) < width:
        return [table]
    heads = [textwrap.fill(head, max(cell, *map(len, head.split()), 10), break_long_words=False)
             for cell, head in zip(cells, heads)]
    widths = [min(max(cell, *map(len, (head or " ").splitlines())), WORDS) + GAP for cell, head in zip(cells, heads)]
    groups: list[list[int]] = [[0]]
    for column in range(1, len(heads)):
        if sum(widths[i] for i in groups[-1]) + widths[column] >= width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(column)
    fields = []
    for number, group in enumerate(groups):
        part = Table(title=table.title if number == 0 else None, title_justify="left", caption_justify="left",
                     caption=table.caption if number == len(groups) - 1 else None, box=table.box)
        part.padding = table.padding
        for i in group:
            part.columns.append(copy(table.columns[i]))
            part.columns[-1]._index, part.columns[-1].header = len(part.columns) - 1, heads[i]
            part.columns[-1].no_wrap = cells[i] <= WORDS
        part.rows.extend(table.rows)
        fields.append(part)
    return fields


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


def short(rate: float | None) -> str:
    """A rate in three digits or more."""
    if rate is None:
        return "-"
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def quoted(ratio: Spread, digits: int = 2) -> str:
    """1.08 (1.06 to 1.09): the median of per-round ratios and its quartiles."""
    return f"{ratio.median:.{digits}f} ({ratio.q1:.{digits}f} to {ratio.q3:.{digits}f})"


def times(ratio: Spread | None) -> str:
    """A ratio, in as many digits as it is worth."""
    if ratio is None:
        return "-"
    return f"{ratio.median:.{0 if ratio.median >= 100 else 1 if ratio.median >= 10 else 2}f}"


def best_ratio(result: Result) -> tuple[str, Spread] | None:
    """The fastest peer and how we compare with it; None where other processes disturbed the rounds.  The ladder's steps
    are no peers: it has shares of the peak."""
    name = result.fastest_peer() if result.case.suite != "ladder" else None
    ratio = result.ratio(name) if name else None
    return (name, ratio) if name and ratio else None


def baseline(results: Sequence[Result]) -> str | None:
    """The one peer that a figure compares with: of those that have the most cells the fastest."""
    ratios: dict[str, list[float]] = {}
    for r in results if results and results[0].case.suite != "ladder" else ():
        for name in r.peers():
            if ratio := r.ratio(name, hollow=True):
                ratios.setdefault(name, []).append(ratio.median)
    most = max(map(len, ratios.values()), default=0)
    return min((x for x in ratios if len(ratios[x]) == most), key=lambda x: geometric_mean(ratios[x]), default=None)


def state(r: Result, name: str, what: str) -> Any:
    """A figure of gpu_state.summary for one peer; None if it is not known."""
    row = r.row(name)
    return row.gpu.get(what) if row and row.gpu else None


def line(result: Result) -> str:
    """One result as it is measured: "1 thread: f32 nn 512: tilewright 228.0, numpy 226.2 GFLOP/s; 1.01 (...) numpy"."""
    unit = "ns per call" if result.case.suite == "overhead" else result.case.product.unit
    rates = ", ".join(f"{name} {rate(result, name)}" for name in names([result]))
    against = _against(result)
    where = f"{'' if result.isa.startswith('sm_') else plural(result.threads, 'thread') + ': '}{result.case.label}"
    return f"{where}: {rates} {unit}" + (f"; {against}" if against != "-" else "")


def size_of(results: list[Result]) -> str:
    if all(r.case.subscripts for r in results):
        return "subscripts"
    return "m = n = k" if all(r.case.size.isdecimal() for r in results) else "m x n x k"


def sizes(results: list[Result], heading: str = "") -> Iterator[Column]:
    """The columns that say which case it is."""
    yield heading or size_of(results), lambda r: r.case.size
    if len({r.case.problem.layout for r in results}) > 1:
        yield "layout", lambda r: r.case.problem.layout
    if len({r.case.gap for r in results}) > 1:
        yield "gap", lambda r: str(r.case.gap)


# ---- the peak of the machine


def peak_of(report: Report, group: Group) -> float | None:
    """GFLOP/s that multiply-adds alone reach on these threads, if that was measured and nothing here was faster."""
    return _peak(report, group)[0]


def beyond(report: Report, group: Group) -> str:
    """"tilewright, 512: 203.8 GFLOP/s, beyond the 190.0 that multiply-adds alone reached": then the ceiling is out of
    date, and no share of it means anything.  "" otherwise."""
    return _peak(report, group)[1]


def _peak(report: Report, group: Group) -> tuple[float | None, str]:
    peak: float | None = report.extra.get("peak_gflops", {}).get(" ".join(map(str, group[1:])))
    rates = [(r.gflops(row.name) or 0.0, f"{row.name}, {r.case.size}") for r in report.results for row in r.rows
             if (r.case.product.label, r.threads, r.isa) == group[1:]]
    top, where = max(rates, default=(0.0, ""))
    if peak is None or not exceeded(top, peak):
        return peak, ""
    return None, f"{where}: {top:.1f} GFLOP/s, beyond the {peak:.1f} that multiply-adds alone reached"


# ---- on a CPU


def columns(group: Group, results: list[Result], peak: float | None, narrow: bool = False) -> Iterator[Column]:
    """Heading and cell of every column that this table can fill; `narrow` leaves out spreads and shares."""
    suite = group[0]
    yield from sizes(results, "n" if narrow and size_of(results) == "m = n = k" else "")
    top = peak if suite == "ladder" and not narrow else None
    for name in names(results):
        yield name, partial(_rate_and_share, name=name, peak=top)
    if suite == "skinny":
        yield f"{OURS} GB/s", _bandwidth
    if any(r.case.beside for r in results):
        yield "against itself" if narrow else "against itself at", partial(_beside, narrow=narrow)
    if any(best_ratio(r) or r.disturbed for r in results) and suite != "ladder":
        against = "called from Python" if suite == "overhead" else "peer"
        yield f"against the fastest {against}", partial(_against, narrow=narrow)


def table(
    group: Group, results: list[Result], peak: float | None = None, narrow: bool = False, busy: bool = False
) -> Table:
    """`busy`: other processes kept CPUs busy meanwhile, so that no mean over sizes is worth stating."""
    caption = ["ns per call" if group[0] == "overhead" else "GFLOP/s"]
    if peak and group[0] != "overhead":
        caption.append(f"multiply-adds alone reach {peak:.1f}")
    if not busy and not any(r.disturbed for r in results):
        against = [best[1].median for best in map(best_ratio, results) if best]
        ratios_to_reference = [ratio.median for ratio in (r.ratio(BESIDE) for r in results) if ratio]
        caption += [f"{what} {geometric_mean(ratios):.3f}, least {min(ratios):.3f}" for what, ratios in (
            ("geometric mean of the ratios", against), ("against itself", ratios_to_reference)) if len(ratios) > 1]
    cells = list(columns(group, results, peak, narrow))
    heads = [textwrap.fill(heading, 6 if narrow else 12, break_long_words=False) for heading, _ in cells]
    rows = []
    for r in results:
        best, texts = best_ratio(r), [cell(r) for _, cell in cells]
        colour = "green" if best and best[1].median >= 1 else "red"
        rows.append([*texts[:-1], f"[{colour}]{texts[-1]}[/]" if best else texts[-1]])
    left = [head for head, (heading, _) in zip(heads, cells) if heading.startswith("against")]
    return shown(title(group), "; ".join(caption), heads, rows, left=left)


def _rate_and_share(r: Result, name: str, peak: float | None) -> str:
    gflops = r.gflops(name)
    return rate(r, name) + (f" ({gflops / peak:.0%})" if gflops and peak else "")


def _bandwidth(r: Result) -> str:
    """What had to move at the least, per second: to be held against the bandwidth of memory."""
    sample = r.sample(OURS)
    return f"{r.case.problem.min_bytes / sample.spread.median / 1e9:.1f}" if sample else "-"


def _against(r: Result, narrow: bool = False) -> str:
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


# ---- of number formats: a table per thread count, ISA and size

FORMATS_HEAD = ["product", "G/s", "x our f32", "x NumPy", "x fastest peer", "x prepacked peer", "error", "peer's error"]
REMARK = "remark"  # one more column where a product has no figures
FORMATS_CAPTION = (
    "G/s: 10^9 operations per second, 2 m n k a product, 8 m n k of complex numbers. x: our rate over the "
    "other's, median over the rounds. x prepacked peer: over the fastest peer that was given B packed in advance; "
    "tilewright packs B in each call. error: max |C - A B| / (u |A| |B|), ours and the fastest peer's, where u is half "
    "the distance from 1 to the next number of the result's format; the documented bound is k. Integers are exact "
    "modulo 2^bits"
)


def format_groups(results: Iterable[Result]) -> dict[tuple[int, str, int], list[Result]]:
    """{(threads, isa, n): what belongs in one table}, in the order in which it was measured."""
    return _grouped(results, lambda r: (r.threads, r.isa, r.case.problem.n))


def format_lines(results: list[Result]) -> list[list[str]]:
    """The head and the lines of one table; with a remark where a product has nothing else."""
    body = [_format_cells(r) for r in results]
    width = max(map(len, body), default=0)
    return [[*FORMATS_HEAD, REMARK][:width], *([*line, ""][:width] for line in body)]


def _format_cells(r: Result) -> list[str]:
    ours = r.row(OURS)
    if ours is None or ours.sample is None:
        reason = (ours.error or "") if ours else "not timed"
        said = reason if reason.startswith((ABSENT, "wrong")) else f"error: {reason}"
        return [r.case.product.label, *["-"] * (len(FORMATS_HEAD) - 1), said]
    fastest, packed = r.peers()[:1], r.peers(prepared=True)[:1]
    return [
        r.case.product.label,
        short(r.gflops()),
        times(r.ratio(BESIDE)) if r.row(BESIDE) else "1",
        times(r.ratio(NUMPY)) + _part(r, NUMPY),
        *(f"{times(r.ratio(name[0]))} {name[0]}{_part(r, name[0])}" if name else "-" for name in (fastest, packed)),
        _deviation(r, OURS),
        _deviation(r, fastest[0]) if fastest else "-",
    ]


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
