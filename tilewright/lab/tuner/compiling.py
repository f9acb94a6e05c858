"""Kernels compiled ahead of their use, in several processes: what they make is in the kernel cache afterwards."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tilewright import forks
from tilewright.compiler import cache
from tilewright.compiler.artefact import Asked
from tilewright.lab.measure.process import Child, Emit, serve
from tilewright.targets.machine import cpus

MODULE = "tilewright.lab.tuner.compiling"
MOST = 16                       # processes
EACH = 3                        # kernels for which another process pays: it takes half a second to start
PATIENCE_S = 300.0              # for one kernel

counting = forks.Lock()


def compile_all(asked: Iterable[Asked], workers: int | None = None,
                listen: Callable[[int, int], object] = lambda done, of: None, patience: float = PATIENCE_S) -> None:
    """Compile what is not in the cache. `listen(done, of)` is called with how many kernels are. What a process failed
    to compile, or for which one kernel took longer than `patience` seconds, is not there: its first use compiles it
    again and learns why."""
    missing = {code.address: code for code in asked}
    waiting = [code for address, code in missing.items() if not cache.has(address)]
    count = min(workers or min(cpus().count, MOST), -(-len(waiting) // EACH))
    if count <= 1:
        for done, code in enumerate(waiting):
            listen(done, len(waiting))
            with suppress(Exception):
                code.content()
        return
    shares, done = [waiting[i::count] for i in range(count)], 0

    def run(share: list[Asked]) -> None:
        nonlocal done
        try:
            with Child(MODULE, share, environment=os.environ) as child:
                for _ in child.events(patience):
                    with counting:
                        done += 1
                        listen(done, len(waiting))
        except TimeoutError:
            return
    listen(0, len(waiting))
    with ThreadPoolExecutor(count) as pool:
        for _ in pool.map(run, shares):
            pass


def _work(share: list[Asked], emit: Emit) -> None:
    for code in share:
        try:
            code.content()
        except Exception as error:
            emit("failed", reason=f"{type(error).__name__}: {error}")
        else:
            emit("compiled")


def main() -> None:
    """The main function of a compiling process."""
    serve(_work)
