"""A child process that prints the line `hangs` before it hangs. Its parent then ends it at once, as after its time
limit, and waits a minute for every other line, whatever else the machine does."""

from __future__ import annotations

import queue
from typing import Any

from tilewright.lab.measure.process import Child


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
