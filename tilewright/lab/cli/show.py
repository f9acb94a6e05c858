"""tilewright show: the figures of the sources, from our own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput


def figure_names() -> list[str]:
    from tilewright.lab.drawing.catalogue import FIGURES

    return ["list", *FIGURES]


def show(
    figure: Annotated[
        str, typer.Option("--figure", "-f", metavar="NAME", help="A figure, such as nvidia/bank_conflict, or the name "
                          "without its source where only one has it; list names them all.",
                          **common.completed(figure_names))
    ] = "list",
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The .svg file to write, or .png, which needs "
                                  "matplotlib.", show_default="standard output, as SVG", callback=output.checked)
    ] = None,
) -> None:
    """Draw a figure of the four sources from tilewright's own data: plans, recorded kernels, the simulator, formats.

    The sources are two articles on products of matrices on CPUs and on NVIDIA's GPUs (cpu, nvidia), one on AMD's Matrix
    Cores (cdna), and a lecture on GPUs and compilers (lecture).
    """
    from tilewright.lab.drawing.catalogue import FIGURES, find

    if figure == "list":
        typer.echo(output.listed((key, found.title if found.drawn or found.measured else f"not drawn: {found.reason}")
                                 for key, found in FIGURES.items()))
        return
    found = find(figure)
    if found.drawn:
        save(found.drawn(), to)
    elif found.measured:
        save(_row(found), to)
    else:
        raise BadInput(f"{found.key} is not drawn: {found.reason}")
    if to is not None:
        typer.echo(output.fill(f"{found.title}. {found.caption}"))


def _row(figure: Any) -> str:
    """The plot of a row of `tilewright reproduce`: the first, where it has several."""
    from tilewright.lab.reproduce import run
    from tilewright.lab.reproduce.row import Setting

    (row,) = run.rows_of(figure.source, [f"{figure.name}.png"])
    done = run.make(row, Setting(quick=True))
    if done.cell is None or "</svg>" not in done.cell.svg:
        raise BadInput(f"{figure.key} is not drawn: {done.why or (done.cell and done.cell.text)}")
    return done.cell.svg.partition("</svg>")[0] + "</svg>\n"


def save(drawn: object, to: Path | None) -> None:
    """A pen's picture, or SVG, to a file or to standard output."""
    if to is None:
        typer.echo(str(drawn), nl=False)
        return
    if to.suffix == ".png":
        from tilewright.lab.drawing import pen, raster

        if not isinstance(drawn, pen.Svg):
            raise BadInput(f"{to} cannot be written: this figure is drawn as SVG only")
        raster.png(drawn, to)
    else:
        output.write(to, str(drawn))
    typer.echo(f"wrote {to}", err=True)
