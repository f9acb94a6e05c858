"""Runs the Python of a documentation page from top to bottom; the block of text behind each must be what it prints.

    ```python          the code, in one namespace per page
    ```text            its output, to the character
    ```python cuda     only where there is a CUDA device
    ```python torch    only where torch is installed
    ```console run     a line `$ tilewright ...` and what the command prints, blanks at the ends of lines left out

Lines keep their numbers, so that what the simulator says about them is true of the page.
"""

from __future__ import annotations

import linecache
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"^```python(?P<needs> cuda| torch)?\n(?P<code>.*?)^```\n(?:\n^```text\n(?P<output>.*?)^```\n)?"
    r"|^```console run\n\$ tilewright (?P<command>[^\n]*)\n(?P<said>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)


def outputs(page: Path, cuda: bool) -> Iterator[tuple[tuple[int, int], str, str]]:
    """(where the page has an output, or (-1, -1); what stands there; what is printed), for each block."""
    linecache.checkcache(str(page))
    text = page.read_text()
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in BLOCK.finditer(text):
        if block["command"] is not None:
            yield block.span("said"), block["said"], said_by(block["command"])
        elif not block["needs"] or (cuda if block["needs"] == " cuda" else find_spec("torch")):
            above = text.count("\n", 0, block.start("code"))
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile("\n" * above + block["code"], str(page), "exec"), namespace)
            yield block.span("output"), block["output"] or "", printed.getvalue()


def said_by(command: str) -> str:
    from typer.testing import CliRunner

    from tilewright.lab.cli import app

    output = CliRunner().invoke(app, shlex.split(command)).output
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def rewrite(page: Path) -> None:
    """Write what is printed into the page: python -m tests.pages docs/PAGE.md"""
    found = [(span, printed) for span, _, printed in outputs(page, cuda=False) if span != (-1, -1)]
    text = page.read_text()
    for (start, end), printed in sorted(found, reverse=True):
        text = text[:start] + printed + text[end:]
    page.write_text(text)


def check(page: Path, cuda: bool, equal: Callable[[str, str], None]) -> None:
    for _, written, printed in outputs(page, cuda):
        equal(printed, written)


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:]:
        rewrite(Path(name).resolve())
        rewrite(Path(name).resolve())  # lines may have moved
