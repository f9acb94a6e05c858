"""tilewright build: kernels compiled ahead of time, in one file that tilewright.load reads without a compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.compiler.bundle import Bundle


def build(
    shapes: Annotated[Path | None, typer.Argument(
        metavar="SHAPES", help="A file of shapes, JSON lines, as TILEWRIGHT_RECORD writes it.",
        show_default=False)] = None,
    file: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="The bundle to write.", show_default=False,
        callback=output.checked)] = None,
    target: common.TargetName = "native",
    threads: Annotated[list[str] | None, typer.Option(
        "--threads", metavar="LIST", help="Thread counts of a CPU's products, such as 1,16.",
        show_default="those of the file")] = None,
    workers: Annotated[int | None, typer.Option(
        metavar="N", help="Processes that compile.", min=1, show_default="one for each CPU")] = None,
    contents: Annotated[Path | None, typer.Option(
        "--list", metavar="FILE", help="Print what a bundle holds instead; nothing of it is run.",
        show_default=False)] = None,
    json: output.Json = None,
) -> None:
    """Compile the kernels of many products ahead of time, into one file that tilewright.load uses without a compiler.

    The target need not be here.  With --list, print what such a file holds.
    """
    if contents is not None:
        from tilewright.compiler.bundle import Bundle

        if shapes is not None or file is not None:
            raise BadInput("--list FILE takes no SHAPES and no --output")
        _list(Bundle(contents), json)
        return
    if shapes is None or file is None:
        raise BadInput("give SHAPES, a file of shapes, and --output FILE, the bundle to write")
    import tilewright as tw
    from tilewright.outputs import Progress

    chip, console = common.target(target), common.console(json == output.STDOUT)
    counts = common.numbers(threads, [], "--threads") or None
    with Progress(console, "reading", 1.0) as bar:
        built = tw.build(shapes, file, chip, threads=counts, workers=workers, listen=bar.update)
    output.show(lambda: {"file": str(built.path), "target": built.target, "products": [*built.names],
                         "kernels": built.kernels, "bytes": built.bytes, "left_out": built.left_out},
                lambda: typer.echo(output.fill(str(built))), json)


def _list(found: Bundle, json: Path | None) -> None:
    index = found.index
    rows: list[dict[str, Any]] = [
        {"name": product.name, "plan": chosen.plan, "measured": chosen.measured} for product in index.products
        for chosen in product.plans[:1]]

    def say() -> None:
        made = ", ".join(f"{name} {value}" for name, value in index.made.items() if value)
        typer.echo(f"{found.path}: {plural(len(rows), 'product')}, {plural(len(index.pieces), 'kernel')} for "
                   f"{index.target.name}\ntilewright {index.tilewright}, {made}\n")
        typer.echo(output.table([["product", "plan", ""], *(
            [row["name"], row["plan"], "measured" if row["measured"] else "the model's"] for row in rows)]))

    output.show(lambda: {"target": index.target.name, "tilewright": index.tilewright, "made": index.made,
                         "kernels": len(index.pieces), "products": rows}, say, json)
