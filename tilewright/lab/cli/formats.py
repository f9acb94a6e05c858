"""tilewright formats: the number formats, one of them, or one number of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput

LEGEND = (
    "normal and subnormal: the smallest of them. S: either sign. ≠0: every mantissa but 0.",
    "A number is (-1)^sign * 2^(exponent - bias) * 1.mantissa,",
    "and where the exponent field is 0, zero and subnormals, (-1)^sign * 2^(1 - bias) * 0.mantissa;",
    "e8m0 is 2^(exponent - 127) throughout.",
    "matmul takes them all; it adds up narrow floats in f32 and narrow integers in i32.",
)


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
    svg: Annotated[bool, typer.Option("--svg", help="Draw the bits instead: of all formats with their ranges, or of "
                                      "one number.")] = False,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="With --svg: the .svg or .png file to write.",
                                  show_default="standard output", callback=output.checked)
    ] = None,
    json: output.Json = None,
) -> None:
    """Print the table of number formats, one format in detail, or the steps from a bit pattern to its value.

    tilewright formats e4m3fnuz 0xc5 shows sign, exponent and mantissa, the formula with these numbers, and its value.
    In the table S stands for either sign.
    """
    from tilewright.formats import block_format, explain, find, get
    from tilewright.lab.drawing import format_table

    if to is not None and not svg:
        raise BadInput("--output is for drawings: give --svg, too; --json FILE writes the text as data")
    if name is None and svg:
        from tilewright.lab.cli.show import save
        from tilewright.lab.drawing import bits as drawing

        save(drawing.table(), to)
        return
    if name is None:
        output.show(lambda: [dict(zip(format_table.HEADINGS, row)) for row in format_table.rows()], _table, json)
        return
    blocks = block_format(name.lower(), "NAME") if name.lower().startswith(("mx", "nv")) else None
    if blocks is not None and pattern is not None:
        raise ValueError(f"PATTERN must be left out: numbers of {name} share their scales")
    chosen: Any = blocks or get(find(name.lower()) or name, "NAME")  # E4M3FN is how it is written in prose
    if svg:
        from tilewright.lab.cli.show import save
        from tilewright.lab.drawing import bits as drawing

        if blocks is not None:
            raise BadInput(f"{name} is a block of numbers with a scale: draw one of them, --svg {blocks.element}")
        save(drawing.one(chosen, None if pattern is None else chosen.check(_number(pattern), "PATTERN")), to)
        return
    if pattern is None:
        lines = format_table.details(chosen) if blocks is None else format_table.block_details(blocks)
        output.show(lambda: {"format": chosen.name, "lines": lines},
                    lambda: typer.echo(f"{chosen.name}\n{output.listed(lines)}"), json)
    else:
        bits = chosen.check(_number(pattern), "PATTERN")
        steps = str(explain(chosen, bits)).splitlines()
        output.show(lambda: {"format": chosen.name, "pattern": bits, "value": chosen.decode(bits), "steps": steps},
                    lambda: typer.echo("\n".join(output.hanging(x, 10) for x in steps)), json)


def _table() -> None:
    from tilewright.lab.drawing import format_table

    right = [format_table.HEADINGS.index(heading) for heading in ("bits", "bias")]
    typer.echo(output.table([format_table.HEADINGS, *format_table.rows()], right))
    for sentence in LEGEND:
        typer.echo(output.fill(sentence))


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        allowed = "a whole number: hexadecimal (0xc5), binary (0b11000101) or decimal (197)"
        raise BadInput(f"PATTERN must be {allowed}, not {text!r}") from None
