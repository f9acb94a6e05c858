"""tilewright run: multiply two .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import common


def run(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The first matrix, a .npy file of numbers.", show_default=False)
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The second matrix.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The .npy file to write A @ B to.",
                           show_default=False)
    ],
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many threads to use.", show_default="all")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the result with exact or wider arithmetic before writing it.")
    ] = False,
    format_a: Annotated[
        str | None, typer.Option("--a", metavar="FORMAT", help="The number format of A's raw bytes, for formats that "
                                 ".npy has no name for: bf16, e4m3fn, i4, ...", show_default="as in the file",
                                 **common.completed(common.format_names))
    ] = None,
    format_b: Annotated[
        str | None, typer.Option("--b", metavar="FORMAT", help="The same for B.", show_default="as in the file",
                                 **common.completed(common.format_names))
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite-input", help="Let --output replace A or B.")
    ] = False,
) -> None:
    """Multiply two .npy files, in any number format that matmul takes.

    The inputs are memory-mapped, so they may be as large as memory allows; vectors, stacks of matrices and the format
    of the result follow numpy.matmul. The output appears only when it is complete.
    """
    with common.errors():
        from tilewright.cli import npy

        if not overwrite and any(output.exists() and x.exists() and output.samefile(x) for x in (a, b)):
            raise common.BadInput(f"{output} is an input, which would be overwritten: choose another --output, or give "
                                  "--overwrite-input")
        done = npy.multiply(a, b, output, threads=threads, check=check, named=(format_a, format_b))
        typer.echo(_line(output, done))


def _line(output: Path, done: Any) -> str:
    shape = " x ".join(map(str, done.shape)) or "a number"
    rate = f", {done.flops / done.seconds / 1e9:.1f} GFLOP/s" if done.seconds and done.flops else ""
    verdict = f"; agrees with {done.checked}" if done.checked else ""
    return f"{output}: {shape} {done.dtype}, {done.seconds:.3f} s{rate}{verdict}"
