"""tilewright loops: what a Python function of loops becomes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.lab.cli import common
from tilewright.lab.cli.command import BadInput

RANKS = 5               # schedules that are shown


def loops(
    function: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function of nested loops.")],
    arguments: Annotated[list[str] | None, typer.Argument(
        metavar="ARGUMENT...", help="For each parameter an array's shape, 512x512, a whole number or a float.")] = None,
    dtype: common.Dtype = "f32",
    target: common.TargetName = "native",
    without_device: Annotated[bool, typer.Option(
        "--without-device", help="Rank schedules by their estimates, and time none.")] = False,
) -> None:
    """Show the record of a function's loops, what of it is recognised as products, and the schedule that is found for
    what remains; where none is timed, the first in rank.
    """
    import numpy as np

    import tilewright as tw
    from tilewright import formats
    from tilewright.lab.show import own

    kind = formats.get(dtype, "--dtype").dtype
    rng = np.random.default_rng(0)
    args = [_argument(text, kind, rng) for text in arguments or []]
    python = own.named(function, "FUNCTION")
    chip = None if target == "native" else common.target(target)
    try:
        optimized = tw.optimize(python, *args, target=chip, timed=not without_device, progress=True)
    except TypeError as error:
        raise BadInput(str(error)) from None
    typer.echo(f"{optimized.nest}\n\n{optimized}")
    for step in optimized.steps:
        ranks = getattr(step.found, "ranks", ())[:RANKS]
        for words, seconds in ranks:
            typer.echo(f"{1e6 * seconds:12.3g} us estimated: {words}")


def _argument(text: str, dtype: Any, rng: Any) -> Any:
    sizes = text.split("x")
    if all(x.isdecimal() for x in sizes) and len(sizes) > 1:
        return rng.standard_normal([int(x) for x in sizes], "float32").astype(dtype, copy=False)
    try:
        return rng.standard_normal(int(text[:-1])).astype(dtype) if text.endswith("x") else int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise BadInput(f"ARGUMENT must be a shape such as 512x512 (512x: of one axis), a whole number or a float, "
                           f"not {text!r}") from None
