"""A report as one HTML page without a network: machine, date and commit, charts, and every table of the terminal. Its
frame is page.html."""
from __future__ import annotations

import html
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright import outputs
from tilewright.lab.bench import plot
from tilewright.lab.bench.report import heading, show, warnings
from tilewright.lab.bench.results import Report
from tilewright.lab.measure.machine import DIRTY

FRAME = Path(__file__).with_name("page.html")


class Collected(Console):
    """What a report prints, as parts of a page: tables as tables, lines as paragraphs."""

    def __init__(self, charts: Mapping[str, str]) -> None:
        super().__init__(width=1000, file=StringIO())
        self.charts = charts
        self.parts: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        for x in objects:
            if isinstance(x, Table):
                self.parts.append(table(x, self.charts.get(str(x.title), "")))
            elif words := str(x) if options.get("markup") is False else Text.from_markup(str(x)).plain:
                self.parts.append(f"<p>{html.escape(words)}</p>")


def write(report: Report, path: Path) -> None:
    outputs.write(path, page(report))


def page(report: Report) -> str:
    collected = Collected({title: "".join(f"<h3>{html.escape(x.title)}</h3>" * (len(pictures) > 1) + str(x)
                                          for x in pictures) for title, pictures in plot.of_tables(report).items()})
    show(report, collected)
    said = {f"<p>{html.escape(x)}</p>" for x in (*warnings(report), *heading(report))}
    name = "tilewright bench" + f" {report.kind}" * (report.kind != "bench")
    return Template(FRAME.read_text(encoding="utf-8")).substitute(
        title=html.escape(f"{name}: {_machine(report)}"),
        body="\n".join(part for part in collected.parts if part not in said),
        facts="".join(f"<dt>{name}</dt><dd>{html.escape(value)}</dd>" for name, value in _facts(report)),
        warnings="".join(f'<p class="warning">{html.escape(x)}</p>' for x in _warnings(report)))


def _machine(report: Report) -> str:
    gpu = report.machine.get("gpu", {}).get("name")
    return str(gpu or report.machine.get("cpu", "a machine"))


def _facts(report: Report) -> list[tuple[str, str]]:
    head = heading(report)
    facts = [("date", report.created.replace("T", " ").replace("+00:00", " UTC")),
             ("commit", report.commit or "unknown: measured outside a checkout"),
             ("tilewright", report.tilewright), ("machine", head[1])]
    facts += [("", x) for x in head[2:]]
    options = {k: v for k, v in report.options.items() if v not in (None, False, [], "native", 0)}
    return facts + ([("options", ", ".join(f"{k} {_words(v)}" for k, v in options.items()))] if options else [])


def _words(x: Any) -> str:
    return " ".join(map(str, x)) if isinstance(x, list | tuple) else str(x)


def _warnings(report: Report) -> list[str]:
    dirty = (report.commit or "").endswith(DIRTY)
    return warnings(report) + ["Measured from a checkout with changes: these figures belong to no commit."] * dirty


def table(x: Table, picture: str = "") -> str:
    """A table of the terminal, with a picture below its title."""
    right = [column.justify == "right" for column in x.columns]
    heads = "".join(f"<th{' class=n' * n}>{html.escape(str(c.header))}</th>" for c, n in zip(x.columns, right))
    rows = "".join("<tr>" + "".join(_cell(cell, n) for cell, n in zip(row, right)) + "</tr>"
                   for row in zip(*(list(column.cells) for column in x.columns)))
    title = f"<h2>{html.escape(str(x.title))}</h2>" if x.title else ""
    caption = f'<p class="caption">{html.escape(str(x.caption))}</p>' if x.caption else ""
    drawn = f'<div class="wide">{picture}</div>' if picture else ""
    return (f'{title}{drawn}<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
            f"{caption}")


def _cell(cell: Any, right: bool) -> str:
    text = Text.from_markup(str(cell))
    classes = " ".join(sorted({str(span.style) for span in text.spans} & {"green", "red"}) + ["n"] * right)
    return (f'<td class="{classes}">' if classes else "<td>") + f"{html.escape(text.plain)}</td>"
