"""tilewright doctor and tilewright cache: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import common

SELFTEST = Path("tilewright-selftest.json")
cache_app = typer.Typer(help="The compiled kernels on disk.", no_args_is_help=True)


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Measure for one second instead of ten.")] = False,
    measure: Annotated[bool, typer.Option(help="Measure now, or show what was measured before.")] = True,
    json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    selftest: Annotated[bool, typer.Option("--selftest", help="Try all kernels for AMD's GPUs instead.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the selftest's JSON goes.")] = SELFTEST,
) -> None:
    """Print what this machine is and can do: instruction sets, caches, threads, peers, measured ceilings.

    With --selftest: compile, link, run, verify and time every kernel for AMD's GPUs, and write what came of it as JSON,
    a file to attach to an issue of the project. Without such a GPU they are simulated. Status 1 if a kernel is wrong or
    fails.
    """
    with common.errors():
        if selftest:
            _selftest(output)
            return
        from tilewright.runtime import doctor

        found = doctor.report(quick, measure)
        if json:
            import json as notation

            typer.echo(notation.dumps(found, indent=1))
        else:
            typer.echo(doctor.text(found))


def _selftest(output: Path) -> None:
    import json

    from tilewright.runtime import selftest

    found = selftest.report(lambda kernel: typer.echo(selftest.line(kernel)), typer.echo)
    output.write_text(json.dumps(found, indent=1) + "\n")
    typer.echo(f"{selftest.summary(found)} All of it is in {output}.")
    if not all(kernel["right"] for kernel in found["kernels"]):
        raise typer.Exit(1)


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
