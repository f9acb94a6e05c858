"""What the commands share: errors in one line, lists in options, a problem and a target from what was typed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.problem import Gemm
    from tilewright.targets import CpuTarget

BAD_INPUT = 2  # the exit status of anything the caller can put right, as of a mistyped option

M = Annotated[int, typer.Argument(min=0, help="Rows of A and C.", show_default=False)]
N = Annotated[int, typer.Argument(min=0, help="Columns of B and C.", show_default=False)]
K = Annotated[int, typer.Argument(min=0, help="Columns of A, rows of B.", show_default=False)]
# The same, where a kernel can be named instead.
SomeM = Annotated[int | None, typer.Argument(min=0, help="Rows of A and C.", show_default=False)]
SomeN = Annotated[int | None, typer.Argument(min=0, help="Columns of B and C.", show_default=False)]
SomeK = Annotated[int | None, typer.Argument(min=0, help="Columns of A, rows of B.", show_default=False)]
Dtype = Annotated[str, typer.Option("--dtype", "-d", help="f32 or f64; for AMD's GPUs f16, e4m3fn, mxfp4, ... too.")]
Layout = Annotated[str, typer.Option("--layout", "-l", help="How A and B are stored: nn, nt, tn, tt.")]
TargetName = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        help="native, nvidia or amd: what is here; or a name such as x86-avx2, sm_90a or gfx950.",
        metavar="NAME",
    ),
]


class BadInput(Exception):
    """Something the caller can put right; the message is one line and says what."""


@contextmanager
def errors() -> Iterator[None]:
    """Turn what bad input raises into one line on standard error and exit status 2.

    TILEWRIGHT_TRACEBACK=1 lets the exception through, for whoever suspects a bug behind it.
    """
    try:
        yield
    except typer.Exit:  # itself a RuntimeError
        raise
    except (BadInput, ValueError, TypeError, OSError, RuntimeError) as error:
        if os.environ.get("TILEWRIGHT_TRACEBACK"):
            raise
        typer.echo(f"tilewright: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(BAD_INPUT) from None


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    # Piped into a file, a table is worth more unfolded than wrapped at 80 columns.
    probe = Console(stderr=stderr)
    return probe if probe.is_terminal else Console(stderr=stderr, width=200)


def listed(values: list[str] | None, default: list[str]) -> list[str]:
    """`--dtype f32,f64` and `--dtype f32 --dtype f64` say the same."""
    if not values:
        return default
    return [item.strip() for value in values for item in value.split(",") if item.strip()]


def numbers(
    values: list[str] | None, default: list[str], option: str, words: dict[str, int] | None = None
) -> list[int]:
    """As `listed`, for positive whole numbers; `words` are names for some of them, such as "all"."""
    found = []
    for item in listed(values, default):
        if words and item in words:
            found.append(words[item])
        elif item.isdecimal() and int(item) > 0:
            found.append(int(item))
        else:
            allowed = " or ".join(["a positive whole number", *map(repr, words or ())])
            raise BadInput(f"{option} takes {allowed} (several with commas), got {item!r}")
    return list(dict.fromkeys(found))


def aligned(rows: list[list[str]]) -> str:
    """A table as text, columns as wide as they need to be."""
    widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(max(map(len, rows)))]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows)
    return "\n".join(lines).rstrip()


def problem(m: int, n: int, k: int, dtype: str, layout: str) -> Gemm:
    from tilewright.problem import Gemm

    return Gemm(m, n, k, dtype, layout=layout)


def target(name: str) -> Any:
    if name in ("nvidia", "cuda", "amd", "rocm"):
        from tilewright.runtime import devices

        return devices.detect(name)
    from tilewright import targets

    return targets.detect() if name == "native" else targets.target(name)


def cpu(name: str) -> CpuTarget:
    """The same, for what is done with CPUs only."""
    from tilewright import targets

    found = target(name)
    if not isinstance(found, targets.CpuTarget):
        raise BadInput(f"this is for CPUs, and {found.name} is a GPU's; there are: {', '.join(targets.names('cpu'))}")
    return found
