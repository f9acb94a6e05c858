"""tilewright formats: the number formats, one of them, or one number of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import common, output

if TYPE_CHECKING:
    from rich.table import Table


def formats(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A format, such as e4m3fn, f16, int8 or mxfp4.",
                       show_default="all, as a table", **common.completed(common.format_names)),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="The bits of one number in this format: 0xc5, 0b11000101 or 197.",
                       show_default="the format itself"),
    ] = None,
    json: output.Json = None,
) -> None:
    """Print the table of number formats, one format in detail, or the steps from a bit pattern to its value.

    tilewright formats e4m3fnuz 0xc5 shows sign, exponent and mantissa, the formula with these numbers, and its value.
    In the table S stands for either sign.
    """
    with common.errors():
        from tilewright.formats import block_format, explain, find, get, overview

        if name is None:
            output.show(lambda: [dict(zip(overview.HEADINGS, row)) for row in overview.rows()], _table, json)
            return

        if name.lower().startswith(("mx", "nv")):
            if pattern is not None:
                raise ValueError(f"PATTERN must be left out: numbers of {name} share their scales")
            blocks = block_format(name.lower(), "NAME")
            _show(blocks.name, overview.block_details(blocks), json)
            return
        found = get(find(name.lower()) or name, "NAME")  # E4M3FN is how it is written in prose
        if pattern is not None:
            bits = found.check(_number(pattern), "PATTERN")
            output.show(lambda: {"format": found.name, "pattern": bits, "value": found.decode(bits),
                                 "steps": str(explain(found, bits)).splitlines()},
                        lambda: typer.echo(explain(found, bits)), json)
            return
        _show(found.name, overview.details(found), json)


def _show(name: str, lines: list[tuple[str, str]], json: Path | None) -> None:
    output.show(lambda: {"format": name, "lines": [[what, that] for what, that in lines]}, lambda: _listed(name, lines),
                json)


def _listed(name: str, lines: list[tuple[str, str]]) -> None:
    typer.echo(name)
    typer.echo(output.listed(lines))


def _table() -> None:
    from rich.measure import measure_renderables

    from tilewright.formats import overview

    console, all_columns = common.console(), range(len(overview.HEADINGS))
    tables = [_columns(all_columns)]
    if measure_renderables(console, console.options.update(width=1000), tables).maximum > console.width:
        encodings = [overview.HEADINGS.index(heading) for heading in ("zero", "nan", "inf", "packed")]
        tables = [_columns([i for i in all_columns if i not in encodings]), _columns([0, *encodings])]
    console.print(*tables)
    typer.echo(output.fill("normal and subnormal: the smallest of them. S: either sign. ≠0: every mantissa but 0."))
    typer.echo(output.fill("A number is (-1)^sign * 2^(exponent - bias) * 1.mantissa,"))
    typer.echo(output.fill("and where the exponent field is 0, zero and subnormals, "
                           "(-1)^sign * 2^(1 - bias) * 0.mantissa;"))
    typer.echo(output.fill("e8m0 is 2^(exponent - 127) throughout."))
    typer.echo(output.fill("matmul takes them all; it adds up narrow floats in f32 and narrow integers in i32."))


def _columns(wanted: Sequence[int]) -> Table:
    """These columns of the table."""
    from rich import box
    from rich.table import Table

    from tilewright.formats import overview

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i in wanted:
        heading = overview.HEADINGS[i]
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("bits", "bias") else "left")
    for row in overview.rows():
        table.add_row(*(row[i] for i in wanted))
    return table


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        allowed = "a whole number: hexadecimal (0xc5), binary (0b11000101) or decimal (197)"
        raise common.BadInput(f"PATTERN must be {allowed}, not {text!r}") from None
