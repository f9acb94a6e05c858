"""tilewright einsum: how a contraction would be computed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput
from tilewright.lab.cli.kernels import Threads


def einsum(
    subscripts: Annotated[str, typer.Argument(metavar="SUBSCRIPTS", help='Such as "abc,bda->dc".')],
    sizes: Annotated[list[str] | None, typer.Argument(metavar="LABEL=SIZE...", help="The size of each label: a=24 b=16."
                                                      )] = None,
    dtype: common.Dtype = "f32",
    threads: Threads = None,
    json: output.Json = None,
) -> None:
    """Explain a contraction: the order of products, which labels become m, n, k and the batch, which of these merge,
    how each operand is packed, the plan, predicted bytes and time. Operands are contiguous.
    """
    import numpy as np

    import tilewright as tw
    from tilewright import formats

    extents = dict(_size(text) for text in sizes or [])
    terms = subscripts.replace(" ", "").partition("->")[0].split(",")
    if "." in subscripts:
        raise BadInput(f"SUBSCRIPTS must name every axis here, and {subscripts!r} has '...'")
    missing = sorted({label for term in terms for label in term} - {*extents})
    if missing:
        raise BadInput(f"LABEL=SIZE is missing for {', '.join(missing)}")
    if unknown := sorted({*extents} - {*"".join(terms)}):
        raise BadInput(f"LABEL=SIZE names {', '.join(unknown)}, which SUBSCRIPTS do not have")
    if "-" in dtype:
        raise BadInput(f"--dtype must be one format, that of all operands, not {dtype!r}")
    kind = formats.get(dtype, "--dtype").dtype
    arrays: list[Any] = [np.empty([extents[label] for label in term], kind) for term in terms]
    _, path = tw.einsum_path(subscripts, *arrays, threads=threads)
    output.show(path.record, lambda: typer.echo("\n".join(
        line if " plan " in line else output.hanging(line, 9) for line in str(path).splitlines())), json)


def _size(text: str) -> tuple[str, int]:
    label, equals, number = text.partition("=")
    if not equals or len(label) != 1 or not number.isdecimal():
        raise BadInput(f"LABEL=SIZE must be a letter and a whole number, such as a=24, not {text!r}")
    return label, int(number)
