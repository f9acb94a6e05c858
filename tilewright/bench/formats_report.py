"""What was found of the formats, as tables for a terminal and for documents: one per thread count, ISA and size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tilewright.bench import report as tables
from tilewright.bench.formats_results import ABSENT, F32, NUMPY, Group, Timed, groups, timed
from tilewright.bench.results import OURS, Report
from tilewright.measure.measure import Spread

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

HEAD = ["product", "G/s", "x our f32", "x NumPy", "x fastest peer", "x prepacked peer", "error", "peer's error"]
REMARK = "remark"  # one more column where a product has no figures
# What the head is too short for.
CAPTION = (
    "G/s: 10^9 operations per second, 2 m n k a product, 8 m n k of complex numbers. x: our rate over the "
    "other's, median over the rounds. x prepacked peer: over the fastest peer that was given B packed in advance; "
    "tilewright packs B in each call. error: max |C - A B| / (u |A| |B|), ours and the fastest peer's, where u is half "
    "the distance from 1 to the next number of the result's format; the documented bound is k. Integers are exact "
    "modulo 2^bits"
)


def title(group: Group) -> str:
    threads, isa, n = group
    return f"m = n = k = {n}, {tables.plural(threads, 'thread')}" + ("" if isa == "native" else f", held to {isa}")


def lines(found: list[Timed]) -> list[list[str]]:
    """The head and the lines of one table."""
    body = [cells(t) for t in found]
    width = max(map(len, body), default=0)
    return [[*HEAD, REMARK][:width], *([*line, ""][:width] for line in body)]


def line(t: Timed) -> str:
    """One product as it is measured."""
    named = zip(HEAD[1:], cells(t)[1:])
    said = ", ".join(f"{cell} {heading}" for heading, cell in named if cell != "-")
    return f"{t.product.label} {t.n}, {tables.plural(t.threads, 'thread')}: {said or cells(t)[-1]}"


def cells(t: Timed) -> list[str]:
    """One line of the table, in the order of HEAD; with a remark where there is nothing else to say."""
    ours = t.row(OURS)
    if ours is None or ours.sample is None:
        reason = ours.reason if ours else "not timed"
        said = reason if reason.startswith((ABSENT, "wrong")) else f"error: {reason}"
        return [t.product.label, *["-"] * (len(HEAD) - 1), said]
    fastest, packed = t.peers()[:1], t.peers(prepared=True)[:1]
    return [
        t.product.label,
        rate(t.rate()),
        times(t.ratio(F32)) if t.row(F32) else "1",
        times(t.ratio(NUMPY)) + _part(t, NUMPY),
        *(_against(t, name) for name in (fastest, packed)),
        _error(t, OURS),
        _error(t, fastest[0]) if fastest else "-",
    ]


def rate(found: float | None) -> str:
    if found is None:
        return "-"
    return f"{found:.0f}" if found >= 100 else f"{found:.3g}"


def times(ratio: Spread | None) -> str:
    """A ratio, in as many digits as it is worth."""
    if ratio is None:
        return "-"
    return f"{ratio.median:.{0 if ratio.median >= 100 else 1 if ratio.median >= 10 else 2}f}"


def _against(t: Timed, names: list[str]) -> str:
    return f"{times(t.ratio(names[0]))} {names[0]}{_part(t, names[0])}" if names else "-"


def _part(t: Timed, name: str) -> str:
    """A remark where a contender was given fewer rows of A."""
    row = t.row(name)
    return f" ({tables.plural(row.m, 'row')})" if row and row.sample and row.m < t.n else ""


def _error(t: Timed, name: str) -> str:
    row = t.row(name)
    if row is None or row.sample is None:
        return "-"
    if t.product.exact:
        return "exact" if row.error == 0 else f"off by {row.error:.0f}"
    return f"{row.error:.2g}" if math.isfinite(row.error) else "inf"


def table(group: Group, found: list[Timed]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=title(group), title_justify="left")
    shown.box, shown.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    head, *body = lines(found)
    for heading in head:
        justify: Any = "left" if heading in (HEAD[0], REMARK) else "right"
        shown.add_column(heading, justify=justify, style="bold" * (heading == "G/s"))
    for line in body:
        shown.add_row(*map(escape, line))
    return shown


def remarks(found: list[Timed]) -> list[str]:
    """Whose result was wrong, or what a library said instead of multiplying."""
    return list(dict.fromkeys(
        f"{row.name}, {t.product.label}, n = {t.n}, {tables.plural(t.threads, 'thread')}: {row.reason}"
        for t in found for row in t.rows if row.reason and not row.reason.startswith(ABSENT)
    ))


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs to judge the figures."""
    from rich.markup import escape

    tables.warn(report, console)
    for line in tables.heading(report):
        console.print(escape(line), highlight=False)
    found = timed(report)
    for group, members in groups(found).items():
        console.print()
        console.print(table(group, members))
    console.print(CAPTION, highlight=False)
    for line in [*tables.remarks(report), *remarks(found)]:
        console.print(escape(line), style="yellow", highlight=False)


def figure(report: Report, options: dict[str, str]) -> str:
    """The same table for a document; threads, n and isa choose one."""
    for key in options:
        if key not in ("threads", "n", "isa"):
            raise ValueError(f"unknown option {key!r}")
    fits = [
        members
        for (threads, isa, n), members in groups(timed(report)).items()
        if all({"threads": str(threads), "n": str(n), "isa": isa}[key] == value for key, value in options.items())
    ]
    if len(fits) != 1:
        raise ValueError(f"{options} chooses {len(fits)} tables of formats; threads, n and isa choose one")
    head, *body = lines(fits[0])
    rule = ["---" if heading in (HEAD[0], REMARK) else "---:" for heading in head]
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, rule, *body)) + f"\n{CAPTION}.\n"
