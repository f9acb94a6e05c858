"""A process of its own, for work that may hang, crash or leave a GPU unusable: started, listened to and ended.

The process runs `main` of a module, which calls `serve`: it reads a pickled job from standard input and writes one JSON
object a line, an event. What libraries print goes to standard error, whose last line says why a process ended early.
"""
from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# The affinity is set before anything is imported: OpenMP and OpenBLAS count their CPUs when they are loaded, and the
# CPUs are all that keeps MKL under TBB to its number of threads.
START = """
import os, sys
cpus, root, module = sys.argv[1:]
if cpus:
    os.sched_setaffinity(0, map(int, cpus.split(",")))
sys.path.append(root)
from importlib import import_module
import_module(module).main()
"""
GRACE_S = 15.0                  # for a process to end by itself once it has closed its output, or is asked to
Emit = Callable[..., None]


class Child:
    """The process, in a `with` block, at whose end it is terminated if its output is not closed yet.

    module          whose `main` it runs
    job             what `serve` hands to the module's work
    cpus            that it may run on; by default all
    environment     its variables; by default this process's
    under           a command that runs the process and watches it: a profiler's, with its options
    """

    def __init__(self, module: str, job: Any, *, cpus: Iterable[int] = (),
                 environment: Mapping[str, str] | None = None, under: Sequence[str] = ()) -> None:
        self.job, self.closed, self.lines = job, False, queue.Queue[bytes | None]()
        self.errors = tempfile.TemporaryFile("w+")          # closed with the child
        words = ",".join(map(str, cpus)), str(Path(__file__).resolve().parents[3]), module
        self.process = subprocess.Popen([*under, sys.executable, "-c", START, *words], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, env=environment)

    def __enter__(self) -> Child:
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.closed:
            self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.put(line)
        self.lines.put(None)

    def events(self, patience: float | None = None, latest: float = float("inf")) -> Iterator[dict[str, Any]]:
        """What it says as it comes, until it closes its output. TimeoutError if it says nothing for `patience` seconds,
        or until time.monotonic() is `latest`."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as stdin:    # it died before it read its job: see `why`
            pickle.dump(self.job, stdin)
        while True:
            wait = patience and max(min(patience, latest - time.monotonic()), 0.01)
            try:
                line = self.lines.get(timeout=wait)
            except queue.Empty:
                raise TimeoutError(f"it sent no result for {patience:.0f} s" if time.monotonic() < latest
                                   else "the time limit was reached") from None
            if line is None:
                self.closed = True
                return
            yield json.loads(line)

    def why(self, patience: float | None = None) -> str:
        """How it ended, once it has: the last line that it wrote to standard error, and the signal if there was one."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return f"it did not end within {patience:.0f} s"
        self.errors.seek(0)
        last = (self.errors.read().strip().splitlines() or ["it said nothing"])[-1]
        return f"{signal.Signals(-code).name} ({last})" if code < 0 else last


def serve(work: Callable[[Any, Emit], object]) -> None:
    """In the process: `work(job, emit)`, where `emit(event, **details)` writes a line."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)               # whatever else is printed must not end up between the events

    def emit(event: str, **details: Any) -> None:
        out.write(json.dumps({"event": event, **details}) + "\n")

    work(pickle.load(sys.stdin.buffer), emit)
