"""tilewright doctor and tilewright cache: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli import common

cache_app = typer.Typer(help="The compiled kernels on disk.", no_args_is_help=True)


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Measure for one second instead of ten.")] = False,
    measure: Annotated[bool, typer.Option(help="Measure now, or show what was measured before.")] = True,
    json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Print what this machine is and can do: instruction sets, caches, threads, peers, measured ceilings."""
    with common.errors():
        from tilewright.runtime import doctor

        found = doctor.report(quick, measure)
        if json:
            import json as notation

            typer.echo(notation.dumps(found, indent=1))
        else:
            typer.echo(doctor.text(found))


@cache_app.command("info")
def cache_info() -> None:
    """Where the cache is, how many kernels it holds, how large it is."""
    with common.errors():
        from tilewright.compiler import cache
        from tilewright.runtime.doctor import size

        for name, value in cache.info().items():
            typer.echo(f"{name:<10} {size(value) if name == 'bytes' and isinstance(value, int) else value}")


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel; they are built again when they are needed."""
    with common.errors():
        from tilewright.compiler import cache

        count = cache.clear()
        typer.echo(f"{count} kernel{'s' * (count != 1)} removed")
