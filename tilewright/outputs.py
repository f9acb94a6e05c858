"""Files that a caller names to be written: whole or not at all, a sentence where one cannot be, and what is no regular
file is never replaced; and how far a command is.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tilewright import inputs

if TYPE_CHECKING:
    from rich.console import Console


def check(path: Path) -> None:
    """OSError, whose message is a sentence, if a file cannot be written there: before the work whose results it is to
    hold."""
    folder = path.resolve().parent
    if path.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a directory")
    if not folder.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no directory {path.parent}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written: permission denied")


def write(path: Path, content: str | bytes) -> None:
    """Write a file by `replacing`."""
    with replacing(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of the one at `path` when the block succeeds; a symbolic link stays and
    the file that it points to is replaced. A device, a pipe or a terminal is opened and written to as it is.
    """
    check(path)
    named, path = path, path.resolve()
    if path.exists() and not path.is_file():
        with open(path, "wb") as device:
            yield device
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".part")
    except OSError as error:
        raise inputs.sentence(error, f"{named} cannot be written") from None
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's files are private, a result need not be
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Progress:
    """The progress of a command that prints its results to `console`: `total` steps, if it is an int, or seconds.

    A bar where standard error is a terminal, else a line for every step, on standard error too: standard output is for
    results, so that `tilewright bench | tee file` keeps the tables and still shows what goes on.
    """

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
