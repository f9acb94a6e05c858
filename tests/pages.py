"""Runs the Python of a documentation page from top to bottom; the block of text behind each must be what it prints.

    ```python          the code, in one namespace per page
    ```text            its output, to the character
    ```python cuda     only where there is a CUDA device

Lines keep their numbers, so that what the simulator says about them is true of the page.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python( cuda)?\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def outputs(page: Path, cuda: bool) -> Iterator[tuple[re.Match[str], str]]:
    """(a block, what it prints)."""
    linecache.checkcache(str(page))
    text = page.read_text()
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in BLOCK.finditer(text):
        if block[1] and not cuda:
            continue
        above = text.count("\n", 0, block.start(2))
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * above + block[2], str(page), "exec"), namespace)
        yield block, printed.getvalue()


def rewrite(page: Path) -> None:
    """Write what is printed into the page: python -m tests.pages docs/PAGE.md"""
    found = {block.span(3): printed for block, printed in outputs(page, cuda=False) if block[3] is not None}
    text = page.read_text()
    for (start, end), printed in sorted(found.items(), reverse=True):
        text = text[:start] + printed + text[end:]
    page.write_text(text)


def check(page: Path, cuda: bool, equal: Callable[[str, str], None]) -> None:
    for block, printed in outputs(page, cuda):
        equal(printed, block[3] or "")


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:]:
        rewrite(Path(name).resolve())
        rewrite(Path(name).resolve())  # lines may have moved
