"""How bytes travel between ranks: by MPI, or between threads of one process; at once, or as a slower network would.

A transport has `rank`, `size`, and sends and receives that return at once. Each gives a request, whose `done()` says
whether it is over, and drives it meanwhile. Only bytes are sent, in contiguous arrays of uint8.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.mpi.errors import RankError
from tilewright.text import install

Bytes = NDArray[np.uint8]
ANY = -1  # the source of a message from whichever rank
LATENCY_S = 2e-6


class Request(Protocol):
    """A message under way."""

    def done(self) -> bool: ...
    def cancel(self) -> None: ...


class Transport(Protocol):
    """What a team needs of MPI."""

    rank: int
    size: int

    @property
    def threaded(self) -> bool:
        """Whether a thread beside the caller's may drive messages."""

    def send(self, buffer: Any, to: int, tag: int) -> Request: ...
    def receive(self, buffer: Any, source: int, tag: int) -> Request: ...
    def gone(self, rank: int) -> str | None:
        """A sentence if that rank is known to have ended."""

    def who(self) -> bytes:
        """What others need to know to find out whether this rank has ended."""

    def meet(self, others: Sequence[bytes]) -> None: ...
    def give_up(self, sentence: str) -> None:
        """Messages that will never be over may be left: see to it that the process can end."""


# ---- MPI


class Sent:
    """A request of mpi4py's. What MPI raises of it is a RankError: its other rank has ended."""

    def __init__(self, request: Any, rank: int, error: type[Exception]) -> None:
        self.request, self.rank, self.error = request, rank, error

    def done(self) -> bool:
        try:
            return bool(self.request.Test())
        except self.error as error:
            raise RankError(f"a message from or to rank {self.rank} failed, which has probably ended: {error}",
                            self.rank) from error

    def cancel(self) -> None:
        self.request.Cancel()


class MPITransport:
    """Messages of a communicator of mpi4py, a duplicate of the user's, so that no message is taken for another's."""

    def __init__(self, comm: Any) -> None:
        self.mpi = import_mpi()
        self.comm = comm.Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.watched: dict[int, int] = {}
        self.starts: dict[int, int | None] = {}
        self.left = False

    @property
    def threaded(self) -> bool:
        return bool(self.mpi.Query_thread() >= self.mpi.THREAD_SERIALIZED)

    def send(self, buffer: Any, to: int, tag: int) -> Sent:
        return Sent(self.comm.Isend([buffer, self.mpi.BYTE], to, tag), to, self.mpi.Exception)

    def receive(self, buffer: Any, source: int, tag: int) -> Sent:
        request = self.comm.Irecv([buffer, self.mpi.BYTE], self.mpi.ANY_SOURCE if source == ANY else source, tag)
        return Sent(request, source, self.mpi.Exception)

    def who(self) -> bytes:
        return f"{socket.gethostname()} {os.getpid()} {started(os.getpid())}".encode()

    def meet(self, others: Sequence[bytes]) -> None:
        """Ranks on this machine whose processes can be seen from here, so that their end is seen, too."""
        own = socket.gethostname()
        for rank, said in enumerate(others):
            host, pid, start = said.decode().split()
            if host == own and rank != self.rank and start != "None" and str(started(int(pid))) == start:
                self.watched[rank] = int(pid)
        self.starts = {rank: started(pid) for rank, pid in self.watched.items()}

    def gone(self, rank: int) -> str | None:
        pid = self.watched.get(rank)
        if pid is None or started(pid) == self.starts[rank]:
            return None
        return f"its process {pid} on {socket.gethostname()} has ended"

    def give_up(self, sentence: str) -> None:
        if not self.left:
            import atexit

            self.left = True
            atexit.register(self._abort)

    def _abort(self) -> None:
        """MPI_Finalize would wait for messages that never come: the process ends by MPI_Abort, as soon as other ranks
        have had a second to say what they know."""
        time.sleep(1)
        self.comm.Abort(1)


def import_mpi() -> Any:
    """mpi4py's module MPI. ImportError, with advice, where it or an MPI library is missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        advice = f"{install('mpi')} has both"
        raise ImportError(f"tilewright.mpi needs mpi4py and an MPI library ({error}): {advice}") from error
    return MPI


def started(pid: int) -> int | None:
    """When a process of this machine was started, in ticks; None: it has ended, or is not to be seen."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])


# ---- threads of one process


class Mailbox:
    """Messages between the threads of one process, by (source, destination, tag), in the order of sending."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.waiting: dict[tuple[int, int, int], deque[Bytes]] = {}
        self.ended: dict[int, str] = {}


class Delivered:
    """A message whose bytes the receiver will find: as MPI buffers small ones."""

    def done(self) -> bool:
        return True

    def cancel(self) -> None: ...


class Awaited:
    """A message that a thread waits for."""

    def __init__(self, box: Mailbox, buffer: Any, source: int, to: int, tag: int) -> None:
        self.box, self.buffer, self.source, self.to, self.tag, self.over = box, buffer, source, to, tag, False

    def done(self) -> bool:
        if not self.over:
            with self.box.lock:
                for source in range(self.box.size) if self.source == ANY else (self.source,):
                    if queue := self.box.waiting.get((source, self.to, self.tag)):
                        said = queue.popleft()
                        self.buffer[:len(said)] = said
                        self.over = True
                        break
        return self.over

    def cancel(self) -> None:
        self.over = True


class ThreadTransport:
    """A rank that is a thread."""

    threaded = True

    def __init__(self, box: Mailbox, rank: int) -> None:
        self.box, self.rank, self.size = box, rank, box.size

    def send(self, buffer: Any, to: int, tag: int) -> Delivered:
        with self.box.lock:
            self.box.waiting.setdefault((self.rank, to, tag), deque()).append(np.array(buffer))
        return Delivered()

    def receive(self, buffer: Any, source: int, tag: int) -> Awaited:
        return Awaited(self.box, buffer, source, self.rank, tag)

    def gone(self, rank: int) -> str | None:
        return self.box.ended.get(rank)

    def who(self) -> bytes:
        return b""

    def meet(self, others: Sequence[bytes]) -> None: ...
    def give_up(self, sentence: str) -> None: ...


# ---- a network of stated figures


class Network(NamedTuple):
    """A network as each rank sees it: bytes per second in each direction, and seconds until the first byte arrives."""

    bandwidth: float
    latency: float = LATENCY_S

    def seconds(self, count: float, messages: float = 1) -> float:
        return count / self.bandwidth + messages * self.latency


@dataclass
class Late:
    """A send that a modelled network has not carried yet."""

    start: Callable[[], Request]
    due: float
    sent: Request | None = None

    def done(self) -> bool:
        if self.sent is None and time.perf_counter() >= self.due:
            self.sent = self.start()
        return self.sent is not None and self.sent.done()

    def cancel(self) -> None:
        if self.sent is not None:
            self.sent.cancel()


class SlowTransport:
    """Another transport, behind which each rank has one link of a network's bandwidth: a message leaves when those
    before it have, and arrives after its bytes' time. So overlap can be shown where messages are copies in memory."""

    def __init__(self, inner: Transport, network: Network) -> None:
        self.inner, self.network, self.free = inner, network, 0.0
        self.rank, self.size, self.threaded = inner.rank, inner.size, inner.threaded
        self.receive, self.gone, self.who, self.meet = inner.receive, inner.gone, inner.who, inner.meet
        self.give_up = inner.give_up

    def send(self, buffer: Any, to: int, tag: int) -> Late:
        begin = max(time.perf_counter(), self.free)
        self.free = begin + len(buffer) / self.network.bandwidth
        return Late(lambda: self.inner.send(buffer, to, tag), self.free + self.network.latency)
