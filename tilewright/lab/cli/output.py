"""How commands print: text or JSON, and plain tables that fit the terminal.

Tables are those of tilewright.text: one that is wider than the terminal goes on below, and no cell is cut or broken, so
that a plan can be copied back onto the command line.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tilewright import outputs, text
from tilewright.outputs import write as write

STDOUT = Path("-")


def checked(path: Path | None) -> Path | None:
    """The callback of an option that names a file to write: refused before the work, not after it."""
    if path is not None and path != STDOUT:
        outputs.check(path)
    return path


Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="[FILE]", help="Write the result as JSON to FILE; to standard output, instead of "
                 "text, if FILE is - or left out.", show_default=False, callback=checked),
]


def show(record: Callable[[], Any], say: Callable[[], object], json: Path | None) -> None:
    """Print the text, and write the record where --json asks for it: in the text's stead if that is standard output."""
    if json != STDOUT:
        say()
    if json is not None:
        write_json(record(), json)


def fail(message: str) -> NoReturn:
    """The command has done its work, and something is wrong with what it found: exit status 1."""
    typer.echo(f"tilewright: {message}", err=True)
    raise typer.Exit(1)


def write_json(record: Any, path: Path) -> None:
    """The record as JSON, to a file or, as `-`, to standard output."""
    import json

    notation = json.dumps(plain(record), indent=1, allow_nan=False)
    if path == STDOUT:
        typer.echo(notation)
    else:
        write(path, notation + "\n")


def plain(x: Any) -> Any:
    """What JSON has words for: infinities and nan as text, records and mappings as objects, the rest by its text."""
    if isinstance(x, dict):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple, set, frozenset)):
        return [plain(item) for item in x]
    if is_dataclass(x) and not isinstance(x, type):
        return plain(asdict(x))
    if hasattr(x, "item") and getattr(x, "ndim", 1) == 0:  # a NumPy scalar
        x = x.item()
    if isinstance(x, float) and (x != x or x in (float("inf"), -float("inf"))):
        return str(x)
    return x if x is None or isinstance(x, (bool, int, float, str)) else str(x)


def width() -> int | None:
    """Columns of the terminal, or those that COLUMNS asks for; None for a pipe, where lines may be of any length."""
    if "COLUMNS" not in os.environ and not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """text.table, as wide as the terminal."""
    return text.table(rows, right, width())


def listed(lines: Iterable[tuple[str, str]]) -> str:
    """What each thing is, in two columns of which the second is wrapped."""
    pairs = list(lines)
    first = max(len(what) for what, _ in pairs) + text.GAP
    return "\n".join(hanging(f"{what:<{first}}{that}".rstrip(), first) for what, that in pairs)


def hanging(line: str, indent: int) -> str:
    """A line wrapped to the terminal's width, all but its first part behind so many blanks; words stay whole."""
    most = width()
    if most is None or len(line) <= most:
        return line
    return textwrap.fill(line, max(most, indent + 20), subsequent_indent=" " * indent, break_long_words=False,
                         break_on_hyphens=False)


BESIDE = 28  # columns that words need below a cell


def columns(line: str, first: int) -> str:
    """A line of cells, two blanks or more apart, wrapped to the terminal's width: below the last cell, or where there
    is little room, and where there is but one cell, two blanks to the right of `first`."""
    most, last = width(), max((cell.start() for cell in re.finditer(r"(?<=  )\S", line)), default=0)
    return hanging(line, last if last > first and most is not None and most - last >= BESIDE else first + text.GAP)


def fill(sentence: str) -> str:
    """A sentence or more, wrapped at blanks to the terminal's width."""
    most = width()
    return sentence if most is None else textwrap.fill(" ".join(sentence.split()), most)
