"""How far a run is: a bar where standard error is a terminal, else a line for every step, on standard error too.

Standard output is for results, so that `tilewright bench | tee file` keeps the tables and still shows what goes on.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """The part of rich's Progress that is needed here, on a terminal or not."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream, self.quiet = stream or sys.stderr, quiet
        self.bar = _bar(self.stream) if not quiet and self.stream.isatty() else None
        self.began = time.monotonic()
        self.tasks: list[dict[str, Any]] = []

    def __enter__(self) -> Progress:
        if self.bar:
            self.bar.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.bar:
            self.bar.__exit__(*exception)

    def add_task(self, description: str, total: float | None = None) -> Any:
        if self.bar:
            return self.bar.add_task(description, total=total)
        self.tasks.append({"description": description, "total": total, "done": 0})
        return len(self.tasks) - 1

    def update(self, task: Any, description: str | None = None, completed: float | None = None) -> None:
        if self.bar:
            changed = {"description": description, "completed": completed}
            self.bar.update(task, **{name: value for name, value in changed.items() if value is not None})
        elif description not in (None, self.tasks[task]["description"]):
            at = self.tasks[task]
            at["description"] = description
            total = at["total"] if isinstance(at["total"], int) else None
            count = f" {min(at['done'] + 1, total)} of {total}" if total else ""
            self._line(f"{time.monotonic() - self.began:5.0f} s{count}  {description}")

    def advance(self, task: Any) -> None:
        if self.bar:
            self.bar.advance(task)
        else:
            self.tasks[task]["done"] += 1

    def remove_task(self, task: Any) -> None:
        if self.bar:
            self.bar.remove_task(task)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.bar:
            self.bar.console.print(text, highlight=False, markup=False)
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        if not self.quiet:
            print(text, file=self.stream, flush=True)


def _bar(stream: TextIO) -> Any:
    """It is redrawn twice a second: it runs on the cores that are being measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Bar(*columns, console=Console(file=stream), refresh_per_second=2, transient=True)


def progress(console: Console) -> Progress:
    """Of a command that prints its results to `console`."""
    return Progress(console.quiet)
