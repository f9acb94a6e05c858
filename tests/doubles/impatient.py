"""A child process that prints a line `hangs` before it does: its parent is told at once that its patience is over, and
waits for everything else as long as a busy machine takes."""

from __future__ import annotations

import queue
from typing import Any

from tilewright.measure.process import Child


class Lines(queue.Queue):
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        line = super().get(timeout=60)
        if line == b"hangs\n":
            raise queue.Empty
        return line


class Impatient(Child):
    def __enter__(self) -> Child:
        self.lines = Lines()
        return super().__enter__()
