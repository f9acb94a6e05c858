"""Files that a command was asked for: whole or not at all, and what is no regular file is never replaced."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write(path: Path, content: str | bytes) -> None:
    """Write a file by `replacing`."""
    with replacing(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of the one at `path` when the block succeeds; a symbolic link stays and
    the file that it points to is replaced. A device, a pipe or a terminal is opened and written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with open(path, "wb") as device:
            yield device
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".part")
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
