"""The command line: `tilewright doctor | formats | mfma | peak | plan | emit | asm | run | explain | simulate | ...`.

Only typer is imported here and at the top of the command modules; each command imports what it needs when it runs, so
that `tilewright --help` answers at once.

    machine.py   doctor, cache: what there is
    formats.py   formats: the number formats, one of them, or one number of it
    mfma.py      mfma, peak: matrix instructions of AMD's chips, peaks of GPUs
    kernels.py   plan, explain, emit, asm: how a problem would be, and is, computed
    contraction.py  einsum: the same of a contraction
    loops.py     loops: what a function of loops becomes
    products.py  run: multiply .npy files, which npy.py does;  simulate: run kernels on NumPy, checked and counted
    ladder.py    ladder: the teaching kernels for CPUs, NVIDIA's GPUs and AMD's, compiled, run or simulated, and checked
    show.py      show: a kernel as a page, figures
    tuning.py    tune
    ahead.py     build: kernels in a file
    benches.py   bench and its studies
    reproduce.py reproduce: articles and a lecture, row by row
    common.py    what they share: options, lists in them, target and problem from them
    output.py    text or JSON (`--json`), tables that fit the terminal
    command.py   what typer lacks: help that wraps, negative numbers, errors in one line, closed pipes
"""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.lab.cli import (
    ahead,
    benches,
    contraction,
    formats,
    kernels,
    ladder,
    loops,
    machine,
    mfma,
    products,
    reproduce,
    show,
    tuning,
)
from tilewright.lab.cli.command import App

app = App(
    name="tilewright",
    help="Matrix multiplication for every number format on CPUs and GPUs, written in readable Python.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import tilewright

        typer.echo(f"tilewright {tilewright.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command()(machine.doctor)
app.command()(formats.formats)
app.command()(mfma.mfma)
app.command()(mfma.peak)
app.command()(kernels.plan)
app.command()(kernels.explain)
app.command()(contraction.einsum)
app.command()(loops.loops)
app.command()(kernels.emit)
app.command()(kernels.asm)
app.command()(ahead.build)
app.command()(products.run)
app.command()(products.simulate)
app.command()(show.show)
app.command()(reproduce.reproduce)
app.add_typer(ladder.app, name="ladder")
app.add_typer(tuning.app, name="tune")
app.add_typer(benches.app, name="bench")
app.add_typer(machine.cache_app, name="cache")
