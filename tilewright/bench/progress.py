"""How far a run is: a bar where standard error is a terminal, else a line for every step, on standard error too.

Standard output is for results, so that `tilewright bench | tee file` keeps the tables and still shows what goes on.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """Of a command that prints its results to `console`: `total` steps, if it is an int, or seconds."""

    def __init__(self, console: Console, description: str, total: float) -> None:
        self.quiet, self.description, self.total, self.done = console.quiet, description, total, 0
        self.began = time.monotonic()
        self.bar = _bar() if sys.stderr.isatty() and not self.quiet else None
        if self.bar:
            self.bar.add_task(description, total=total)

    def __enter__(self) -> Progress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, description: str | None = None, completed: float | None = None) -> None:
        if self.bar:
            self.bar.update(self.bar.task_ids[0], description=description, completed=completed)
        elif description not in (None, self.description):
            self.description = description
            count = f" {min(self.done + 1, self.total)} of {self.total}" if isinstance(self.total, int) else ""
            self.say(f"{time.monotonic() - self.began:5.0f} s{count}  {description}")

    def advance(self) -> None:
        self.done += 1
        if self.bar:
            self.bar.advance(self.bar.task_ids[0])

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.bar:
            self.bar.console.print(text, highlight=False, markup=False)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)


def _bar() -> Any:
    """It is redrawn twice a second: it runs on the cores that are being measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True)
