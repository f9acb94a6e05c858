"""tilewright reproduce: what an article or lecture shows, drawn, counted or measured again, beside its own figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput


def source_names() -> list[str]:
    return ["cpu", "nvidia", "cdna", "lecture"]


def reproduce(
    source: Annotated[str, typer.Argument(
        metavar="SOURCE", help="cpu, nvidia or cdna: the articles on matrix products on CPUs, NVIDIA's GPUs and AMD's "
        "Matrix Cores; lecture: the lecture on matrix products on GPUs and compilers.",
        **common.completed(source_names))],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller measurements: under two minutes.")] = False,
    page: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="Write the report, one HTML page that needs no network.",
        show_default=False, callback=output.checked)] = None,
    only: Annotated[list[str] | None, typer.Option(
        "--only", metavar="LIST", help="Items by name, or figure, table, listing, formula, number.",
        show_default="all")] = None,
    json: output.Json = None,
) -> None:
    """Reproduce every figure, table, listing, formula and number of an article or lecture, in its order.

    Each row shows what tilewright draws, simulates, measures or computes beside the source's own figure, and says what
    differs and why.  What cannot be reproduced is named, with the reason.  docs/howto/reproduce.md explains the labels.
    """
    from tilewright.lab.reproduce import report, run
    from tilewright.lab.reproduce.row import SOURCES, Setting
    from tilewright.outputs import Progress

    if source not in SOURCES:
        raise BadInput(f"there is no source {source!r}; the sources are {', '.join(SOURCES)}")
    setting, chosen = Setting(quick), common.listed(only)
    rows = run.rows_of(source, chosen)
    with Progress(common.console(json == output.STDOUT), source, len(rows)) as bar:

        def before(row: run.Row) -> None:
            if row is not rows[0]:
                bar.advance()
            bar.update(f"{row.item.kind} {row.item.name}")

        made = run.reproduce(source, setting, chosen, before)

    def text() -> None:
        typer.echo(output.table(report.table(made)))
        typer.echo("\n" + output.fill(report.summary(made)))
        for done in made.rows:
            if done.how in (report.MISSING, report.WRONG):
                typer.echo(output.hanging(f"{done.row.item.name}: {done.why}", 2))

    output.show(made.to_json, text, json)
    if page is not None:
        output.write(page, report.page(made))
        typer.echo(f"the report is in {page}", err=json == output.STDOUT)
    if made.failed:
        output.fail(f"failed: {', '.join(done.row.item.name for done in made.failed)}")
