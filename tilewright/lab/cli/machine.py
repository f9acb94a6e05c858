"""tilewright doctor and tilewright cache: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright import outputs
from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import App, BadInput, errors
from tilewright.text import plural

SELFTEST = Path("tilewright-selftest.json")
cache_app = App(help="Show or remove the compiled kernels on disk.", no_args_is_help=True)


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure for one second instead of ten. With --selftest: axpy, the ladder, "
                           "and one product of each format.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure now, or show what was measured before. With "
                           "--selftest: time each kernel, or only verify it.")
    ] = True,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget the ceilings measured before, instead of keeping the larger of old "
                           "and new.")
    ] = False,
    selftest: Annotated[bool, typer.Option("--selftest", help="Try all kernels for AMD's GPUs instead.")] = False,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file for the selftest's JSON.",
                                  show_default=str(SELFTEST))
    ] = None,
    json: output.Json = None,
) -> None:
    """Print this machine's instruction sets, caches, threads, GPUs, peers and measured ceilings.

    With --selftest: compile, link, run, verify and time every kernel for AMD's GPUs, and write the results as JSON, to
    be attached to an issue. Without such a GPU they are simulated, which takes about two minutes. The file is complete
    JSON at any time: after Ctrl-C it has the kernels tried so far, and names the others as missing. Status 1 if a
    kernel is wrong or fails.
    """
    refused = {
        "--forget or --selftest, not both: the selftest measures no ceilings": forget and selftest,
        "--quick or --no-measure, not both: one measures, the other does not": quick and not (measure or selftest),
        "--forget or --no-measure, not both: what is forgotten is measured again": forget and not measure,
    }
    if wrong := [sentence for sentence, given in refused.items() if given]:
        raise BadInput(f"give {wrong[0]}")
    if selftest:
        _selftest(file or SELFTEST, quick, measure, json)
        return
    if file is not None:
        raise BadInput("--output is the selftest's file; --json FILE writes this report")
    from tilewright.lab.doctor import doctor

    with outputs.Progress(common.console(json == output.STDOUT), "measuring", 1.0) as bar:
        facts = doctor.report(quick, measure, forget, lambda what: bar.update(f"measuring {what} ..."))
    output.show(lambda: facts, lambda: typer.echo("\n".join(
        output.hanging(line, 14) for line in doctor.lines(facts))), json)


def _selftest(path: Path, quick: bool, measure: bool, json: Path | None) -> None:
    from tilewright.lab.doctor import selftest

    if json not in (None, output.STDOUT):
        raise BadInput(f"with --selftest the file is named by --output; --json - prints it, not {json}")
    outputs.check(path)
    record, quiet = selftest.begun(quick), json == output.STDOUT  # then only the record goes to standard output
    count = len(record["missing"])

    def what_is_left() -> str:
        return f"{plural(len(record['kernels']), 'kernel')} of {count} are in {path}"

    for words in selftest.heading(record):
        typer.echo(words, err=quiet)
    output.write_json(record, path)
    with errors(what_is_left), outputs.Progress(common.console(quiet), plural(count, "kernel"), count) as bar:
        for outcome in selftest.tries(record, quick, measure):
            if isinstance(outcome, str):
                bar.update(outcome)
                continue
            output.write_json(record, path)
            bar.advance()
            typer.echo(selftest.line(outcome), err=quiet)
    typer.echo(f"{selftest.summary(record)} All of it is in {path}.", err=quiet)
    if quiet:
        output.write_json(record, output.STDOUT)
    if not all(kernel["right"] for kernel in record["kernels"]):
        raise typer.Exit(1)


@cache_app.command("info")
def cache_info(json: output.Json = None) -> None:
    """Print the cache's directory, how many kernels it holds, and its size."""
    from tilewright.compiler import cache
    from tilewright.text import size

    info = cache.info()
    shown = info | {"bytes": size(info["bytes"]) if isinstance(info["bytes"], int) else info["bytes"]}
    rows = [(name, str(value)) for name, value in shown.items() if value != ""]  # nothing is refused
    output.show(lambda: info, lambda: typer.echo(output.listed(rows)), json)


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel; they are built again when they are needed."""
    from tilewright.compiler import cache

    count = cache.clear()
    typer.echo(f"{plural(count, 'kernel')} removed")
