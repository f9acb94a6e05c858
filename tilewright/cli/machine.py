"""tilewright doctor and tilewright cache: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli import common

cache_app = typer.Typer(help="The compiled kernels on disk.", no_args_is_help=True)


def doctor(
    measure: Annotated[bool, typer.Option(help="Measure what the machine can do (seconds).")] = True,
) -> None:
    """Print what this machine is and can do: instruction sets, caches, cores, threads, peers, measured ceilings."""
    with common.errors():
        from tilewright.cli import checkup

        checkup.show(common.console(), measure)


@cache_app.command("info")
def cache_info() -> None:
    """Where the cache is, how many kernels it holds, how large it is."""
    with common.errors():
        from tilewright.compiler import cache

        for name, value in cache.info().items():
            typer.echo(f"{name:<10} {common.size(value) if name == 'bytes' and isinstance(value, int) else value}")


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel; they are built again when they are needed."""
    with common.errors():
        from tilewright.compiler import cache

        count = cache.clear()
        typer.echo(f"{count} kernel{'s' * (count != 1)} removed")
