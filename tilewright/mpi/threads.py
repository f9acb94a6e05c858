"""Ranks that are threads of this process: to try a program, to test, and to read a page without an MPI library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tilewright.mpi.team import Team
from tilewright.mpi.transport import Mailbox, Network, ThreadTransport


def run_threads(ranks: int, function: Callable[[Team], Any], *, timeout: float = 30.0, network: Network | None = None,
                progress: str | None = None) -> list[Any]:
    """What function(team) returns on each of so many ranks, which are threads. The exception of the lowest rank that
    raised one; a thread that ends is missed by the others as a process of the same machine would be."""
    box = Mailbox(ranks)
    results: list[Any] = [None] * ranks
    errors: dict[int, BaseException] = {}

    def one(rank: int) -> None:
        try:
            results[rank] = function(Team(ThreadTransport(box, rank), timeout=timeout, network=network,
                                          progress=progress))
            box.ended[rank] = "its thread has returned"
        except BaseException as error:
            errors[rank] = error
            box.ended[rank] = f"its thread has raised {type(error).__name__}"

    threads = [threading.Thread(target=one, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return results
