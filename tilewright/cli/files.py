"""tilewright run: multiply two .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import common


def run(
    a: Annotated[Path, typer.Argument(help="The first matrix, a .npy file of float32 or float64.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="The second matrix.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The .npy file to write A @ B to.", show_default=False)
    ],
    threads: Annotated[int | None, typer.Option(min=1, help="How many threads to use.", show_default="all")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare the result with float64 before writing it.")] = False,
) -> None:
    """Multiply two .npy files.

    The inputs are memory-mapped, so they may be as large as memory allows; vectors and stacks of matrices follow
    numpy.matmul.  The output appears only when it is complete.
    """
    with common.errors():
        from tilewright.cli import npy

        done = npy.multiply(a, b, output, threads=threads, check=check)
    shape = " x ".join(map(str, done.shape)) or "a number"
    rate = f", {done.flops / done.seconds / 1e9:.1f} GFLOP/s" if done.seconds and done.flops else ""
    verdict = "; agrees with float64" if done.checked else ""
    typer.echo(f"{output}: {shape} {done.dtype}, {done.seconds:.3f} s{rate}{verdict}")
