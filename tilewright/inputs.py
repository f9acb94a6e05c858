"""Files that a caller names to be read: regular files only, and a sentence where one cannot be read.

A FIFO or a terminal is refused at once: to open one would wait for somebody who writes to it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a directory", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
         stat.S_IFSOCK: "a socket"}


def read(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """The content of a regular file, or its first `most` bytes. ValueError for what is no regular file; OSError, whose
    message is a sentence, if it cannot be read."""
    path = Path(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            return file.read(most) if _regular(path, file.fileno()) else b""
    except OSError as error:
        if path.exists():
            _regular(path)  # a socket cannot be opened at all
        raise sentence(error, f"{path} cannot be read") from None


def text(path: str | os.PathLike[str]) -> str:
    """A file's text in UTF-8; ValueError for other bytes."""
    try:
        return read(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error.reason} at byte {error.start:,}") from None


def sentence(error: OSError, about: str) -> OSError:
    """An OSError with a sentence instead of "[Errno 2]" and a name in quotes."""
    worded = type(error)(f"{about}: {(error.strerror or str(error)).lower()}")
    worded.errno = error.errno
    return worded


def _regular(path: Path, opened: int | None = None) -> bool:
    mode = (os.stat(path) if opened is None else os.fstat(opened)).st_mode
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is {KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")
    return True
