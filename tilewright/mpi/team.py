"""Ranks that multiply together: they agree on what is asked, wait for each other with a time limit, and fail together.

No wait is left to MPI. A wait polls all messages of the rank, sleeps between polls so that another rank may have the
core, looks for notices that a rank has failed and for processes of this machine that have ended, and ends with a
RankError after `timeout` seconds in which nothing arrived. While a product runs a thread polls (`progressing`).
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from tilewright.mpi.errors import RankError
from tilewright.mpi.transport import ANY, MPITransport, Network, Request, SlowTransport, import_mpi

TIMEOUT_S = 120.0
RECORD = 16384  # bytes of what ranks say to each other about a call
SHORT = 2048  # of a notice, which MPI delivers to a rank that does not wait for it
NOTICE, ALIVE, AGREE, MOVE, REDUCE, DATA = 0, 1, 2, 64, 65, 1024  # tags
DATA_TAGS = 30000
PAUSES_S = 2e-4, 2e-3  # between two polls while products run: the least and the most
POLLS = 32  # during the product of a panel, if the pauses allow it
SLEEPS_S = (0.0,) * 10 + (2e-5,) * 10 + (1e-4,) * 10  # of a wait; the last one again and again
LOOK_S = 0.2  # between two looks whether ranks have ended
GRACE_S = 0.3  # for what such a rank has sent
LONGEST = 1500  # characters of an argument that ranks tell each other
TALKATIVE = 256  # ranks, up to which each tells all others that it waits


class Team:
    """The ranks of a communicator that multiply distributed matrices together.

    comm      a communicator of mpi4py; None: MPI.COMM_WORLD. It is duplicated, so that all ranks make the team
    timeout   seconds that a rank waits while nothing arrives, before it raises RankError; by default
              TILEWRIGHT_MPI_TIMEOUT, or 120. Of a process that has ended on the same machine it learns within a second
    network   a Network: messages take its time, as if they went over it; for trials on one machine
    cuda_aware  True: MPI takes addresses in an NVIDIA GPU's memory. Otherwise panels of matrices there go through the
              host's memory
    progress  who drives messages while a product runs: "thread", or "blocks", the product itself between blocks of
              rows, which needs no thread support of MPI. None: a thread if MPI was initialised for it
    """

    def __init__(self, comm: Any = None, *, timeout: float | None = None, network: Network | None = None,
                 progress: str | None = None, cuda_aware: bool = False) -> None:
        self.cuda_aware = cuda_aware
        if progress not in (None, "thread", "blocks"):
            raise ValueError(f'progress must be "thread", "blocks" or None, not {progress!r}')
        self.timeout = float(os.environ.get("TILEWRIGHT_MPI_TIMEOUT", TIMEOUT_S) if timeout is None else timeout)
        if not self.timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        if comm is None:
            comm = import_mpi().COMM_WORLD
        inner = MPITransport(comm) if hasattr(comm, "Get_rank") else comm
        if not hasattr(inner, "receive"):
            raise TypeError(f"comm must be a communicator of mpi4py or None, not {type(comm).__name__}")
        self.transport = inner if network is None else SlowTransport(inner, network)
        self.rank: int = inner.rank
        self.size: int = inner.size
        if progress == "thread" and not inner.threaded:
            raise ValueError('progress must not be "thread": MPI was initialised without support of threads')
        self.progress = progress or ("thread" if inner.threaded else "blocks")
        self.lock = threading.RLock()
        self.flows: list[Any] = []
        self.broken: str | None = None
        self.inside = False  # a call: no rank may leave before all have
        self.arrived = time.perf_counter()
        self.pause = PAUSES_S[0]
        self.failure: BaseException | None = None
        self._notice = np.zeros(SHORT, np.uint8)
        notice = self.transport.receive(self._notice, ANY, NOTICE)
        self._name = np.zeros(4, np.uint8)      # the number of a rank that waits, too, and so is alive
        self._open = [notice, self.transport.receive(self._name, ANY, ALIVE)]
        self._heard: dict[int, float] = {}
        self._looked = self._told = 0.0
        inner.meet(self.everyone(inner.who()))
        weakref.finalize(self, _withdraw, self._open)

    # ---- waiting

    def poll(self) -> None:
        """Test what is under way, and start what may start now."""
        with self.lock:
            self.flows = [flow for flow in self.flows if not flow.advance()]
            if self._told:
                self._listen()

    def start(self, flow: Any) -> None:
        """Poll this flow from now on, until its `advance` says that it is over."""
        with self.lock:
            if not flow.advance():
                self.flows.append(flow)

    def wait(self, done: Callable[[], bool], awaited: Callable[[], Collection[int]], what: str) -> None:
        """Until `done`. awaited: the ranks that must send something for that; what: what it is, for the error."""
        begin = self.arrived = time.perf_counter()
        self._told = 0.0
        for tries in range(1 << 60):
            with self.lock:
                self.poll()
                if done():
                    return
            self._check(begin, awaited, what)
            time.sleep(SLEEPS_S[min(tries, len(SLEEPS_S) - 1)])

    def _check(self, begin: float, awaited: Callable[[], Collection[int]], what: str) -> None:
        """RankError if this wait is in vain."""
        if self.failure is not None:
            raise self.failure
        with self.lock:
            noticed = self._open[0].done()
        if noticed:
            said = json.loads(bytes(self._notice).rstrip(b"\0"))
            raise RankError(said["text"], said["rank"])
        now = time.perf_counter()
        if now - max(begin, self._looked) > LOOK_S:
            self._looked = now
            ranks = range(self.size) if self.inside else awaited()
            ended = [(rank, why) for rank in ranks if (why := self.transport.gone(rank))]
            if ended and self._still(awaited, ended[0][0], GRACE_S):
                rank, why = ended[0]
                raise RankError(f"rank {rank} of {self.size} is missing: {why}; rank {self.rank} waits for {what}",
                                rank)
        quiet = now - self.arrived
        if quiet > self.timeout / 2 and self._told < self.arrived:
            self._told = now
            self._say_alive()
        if quiet > self.timeout:
            ranks = sorted(awaited())
            silent = [x for x in range(self.size) if x != self.rank and self._heard.get(x, 0.0) < self.arrived]
            lost = (silent if self.size <= TALKATIVE else ranks) or ranks
            one = "rank" if len(lost) == 1 else "ranks"
            raise RankError(
                f"rank {self.rank} of {self.size} has waited {self.timeout:g} s for {what} from rank "
                f"{', '.join(map(str, ranks[:8]))}, and has not heard from {one} {', '.join(map(str, lost[:8]))}: "
                "hanging, ended, or not in this call (Team(timeout=) sets the time)", lost[0])

    def _say_alive(self) -> None:
        """Tell the others that this rank waits, so that they look for the culprit elsewhere."""
        if self.size <= TALKATIVE:
            with self.lock:
                for rank in range(self.size):
                    if rank != self.rank:
                        self.start(Told(self, rank))

    def _listen(self) -> None:
        while self._open[1].done():
            self._heard[int(self._name.view(np.uint32)[0])] = time.perf_counter()
            self._open[1] = self.transport.receive(self._name, ANY, ALIVE)

    def _still(self, awaited: Callable[[], Collection[int]], rank: int, seconds: float) -> bool:
        """Whether what a rank that has ended had sent, or a notice, does not arrive meanwhile."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            with self.lock:
                self.poll()
                if self._open[0].done() or (not self.inside and rank not in awaited()):
                    return False
            time.sleep(1e-3)
        return True

    def took(self, seconds: float) -> None:
        """A panel's product took so long: polls need not come oftener than it makes a difference."""
        self.pause = min(max(seconds / POLLS, PAUSES_S[0]), PAUSES_S[1])

    @contextmanager
    def progressing(self) -> Iterator[None]:
        """Meanwhile a thread polls, if that is how this team makes progress."""
        if self.progress != "thread" or self.size == 1:
            yield
            return
        stop = threading.Event()

        def drive() -> None:
            while not stop.wait(self.pause):
                try:
                    self.poll()
                except BaseException as error:
                    self.failure = error
                    return

        thread = threading.Thread(target=drive, name="tilewright.mpi progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        """Withdraw the receives that a team has open; the team can do nothing afterwards."""
        self.broken = self.broken or "it was closed"
        with self.lock:
            _withdraw(self._open)

    # ---- agreeing, failing

    @contextmanager
    def together(self) -> Iterator[None]:
        """What stands in it is done by all ranks or by none: if it raises on one rank, it does on all."""
        self._check_whole()
        self.inside = True
        try:
            yield
            self.inside = False
            self.agree("end", {})
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.inside = False

    def _check_whole(self) -> None:
        if self.broken:
            raise RankError("this team has failed before, and messages may be on their way: make a new Team "
                            f"({self.broken})", self.rank)

    def _fail(self, error: BaseException) -> None:
        """Tell every other rank, and leave what is under way."""
        text = str(error) if isinstance(error, RankError) else f"rank {self.rank}: {type(error).__name__}: {error}"
        self.broken = text.partition("\n")[0]
        record = _encoded({"rank": getattr(error, "rank", self.rank), "text": text[:LONGEST]}, SHORT)
        with suppress(Exception), self.lock:        # MPI may have failed
            told = [self.transport.send(record, rank, NOTICE) for rank in range(self.size)
                    if rank != self.rank and not self.transport.gone(rank)]
            end = time.perf_counter() + 1
            while time.perf_counter() < end and not finished(told):
                time.sleep(1e-3)
        with suppress(Exception), self.lock:
            for flow in self.flows:
                flow.leave()
        self.flows = []
        self._open.clear()
        self.transport.give_up(self.broken)

    def call(self, name: str, check: Callable[[], tuple[dict[str, Any], Any]]) -> Any:
        """`check` looks at this rank's arguments: the fields that must be equal on all ranks, and what it makes of the
        arguments. Its exception, or that of another rank, is raised on all ranks."""
        self._check_whole()
        try:
            try:
                fields, value = check()
            except Exception as error:
                self.agree(name, {}, error)
                raise
            self.agree(name, fields)
        except RankError as error:
            self._fail(error)
            raise
        return value

    def agree(self, name: str, fields: dict[str, Any], error: Exception | None = None) -> None:
        """All ranks say what they do. An exception of the same type and text on all of them, if one of them has an
        error, or if they do not say the same."""
        texts = {"the call": name, **{key: str(value) for key, value in fields.items()}}
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
        state: dict[str, Any] = {"error": None, "all": error is not None, "variants": []}
        if error is None:
            state["variants"] = [[self.rank, digest, {k: v[:LONGEST] for k, v in texts.items()}]]
        else:
            base = next(x.__name__ for x in type(error).__mro__ if getattr(builtins, x.__name__, None) is x)
            state["error"] = [self.rank, base, str(error)[:LONGEST]]
        state = self._combined(state, _merged)
        if state["error"] is not None:
            rank, base, text = state["error"]
            said = text if state["all"] else f"on rank {rank} of {self.size}: {text}"
            raise getattr(builtins, base, RuntimeError)(said) from error
        if len(state["variants"]) > 1:
            (r, _, one), (s, _, other) = state["variants"]
            key = next((key for key in one if one[key] != other.get(key)), "the call")
            raise ValueError(f"{key} must be the same on all ranks, and is {one[key]} on rank {r} and "
                             f"{other.get(key, 'missing')} on rank {s}")

    def _combined(self, state: dict[str, Any], merged: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """The states of all ranks, merged: in round d ranks hear from the one d places before them."""
        d = 1
        while d < self.size:
            theirs = np.zeros(RECORD, np.uint8)
            source = (self.rank - d) % self.size
            tag = AGREE + d.bit_length()
            with self.lock:
                got = self.transport.receive(theirs, source, tag)
                sent = self.transport.send(_encoded(state), (self.rank + d) % self.size, tag)
            self.wait(partial(finished, [got, sent]), partial(list, [source]), "its agreement")
            state = merged(state, json.loads(bytes(theirs).rstrip(b"\0")))
            d *= 2
        return state

    def everyone(self, said: bytes) -> list[bytes]:
        """What every rank says, a short text each, handed on in a ring."""
        every, sender = np.zeros((self.size, 256), np.uint8), self.rank
        every[self.rank, :len(said)] = np.frombuffer(said, np.uint8)
        for _ in range(self.size - 1):
            source = (sender - 1) % self.size
            with self.lock:
                got = self.transport.receive(every[source], (self.rank - 1) % self.size, AGREE)
                sent = self.transport.send(every[sender], (self.rank + 1) % self.size, AGREE)
            self.wait(partial(finished, [got, sent]), lambda: [(self.rank - 1) % self.size], "its name")
            sender = source
        return [bytes(x).rstrip(b"\0") for x in every]


def _withdraw(requests: list[Request]) -> None:
    """At the end of a team: MPI complains of receives that are open when it ends."""
    for request in requests:
        request.cancel()
        request.done()
    requests.clear()


class Told:
    """A word to a rank that this one waits."""

    target = None

    def __init__(self, team: Team, rank: int) -> None:
        self.word = np.array([team.rank], np.uint32).view(np.uint8)
        self.request = team.transport.send(self.word, rank, ALIVE)

    def advance(self) -> bool:
        return self.request.done()

    def leave(self) -> None: ...


def _encoded(state: dict[str, Any], size: int = RECORD) -> Any:
    """A state as a message of so many bytes; long texts are cut until they fit."""
    said = json.dumps(state).encode()
    if len(said) > size:
        said = json.dumps(_cut(state)).encode()
    message = np.zeros(size, np.uint8)
    message[:len(said)] = np.frombuffer(said, np.uint8)
    return message


def _cut(x: Any) -> Any:
    return {k: _cut(v) for k, v in x.items()} if isinstance(x, dict) else [_cut(v) for v in x] if isinstance(x, list) \
        else x[:200] if isinstance(x, str) else x


def _merged(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    """The lowest rank's error, whether all ranks have that error, and the two variants of the lowest ranks: the same
    in whichever order states are merged, and however often."""
    errors = sorted(e for e in (x["error"], y["error"]) if e is not None)
    variants: list[Any] = []
    for variant in sorted(x["variants"] + y["variants"], key=lambda v: v[0]):
        if all(variant[1] != other[1] for other in variants):
            variants.append(variant)
    same = x["all"] and y["all"] and x["error"][1:] == y["error"][1:]
    return {"error": errors[0] if errors else None, "all": bool(same), "variants": variants[:2]}


def finished(requests: list[Request]) -> bool:
    """Whether all are over, each of them polled."""
    return not [x for x in requests if not x.done()]
