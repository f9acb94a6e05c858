"""What ranks of one host share: symmetric memory in two slots, flags in it, a stream for copies, and a watch.

Memory is torch's (torch.distributed._symmetric_memory, the backend "CUDA"): each rank sees all others' by ordinary
addresses. A wait for another rank ends after `set_timeout` seconds and says so in a word of the host's memory, which a
thread looks at ten times a second: it raises PeerTimeout in the thread that made the last call.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from tilewright.torch.distributed import signals
from tilewright.torch.distributed.schedules import COPY, MOST_PIECES, Await, Flag, Post

SLOTS = 2
LEAST, ALIGN = 1 << 25, 1024        # bytes of a slot; what its parts begin at
NAMES = {"free": 0, "data": 1, "done": 2}
MOST_TABLES = 64
LOOK = 0.1                          # seconds between looks

_timeout = 600.0


class PeerTimeout(RuntimeError):
    """Another rank did not do its part of a product in time."""


def set_timeout(seconds: float) -> None:
    """How long a product waits for another rank before PeerTimeout is raised; 600 s unless this is called."""
    global _timeout
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, not {seconds!r}")
    _timeout = float(seconds)


class Memory:
    """Symmetric memory of one size: flags of all slots, then the slots."""

    def __init__(self, peers: Peers, size: int) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self.peers, self.size, self.turn, self.captured = peers, size, 0, False
        self.of_slot = len(NAMES) * peers.ranks * MOST_PIECES
        self.begin = -(-4 * (SLOTS*self.of_slot + 1) // ALIGN) * ALIGN
        size_of_all = self.begin + SLOTS * size
        self.memory = symmetric.empty(size_of_all, dtype=torch.uint8, device=peers.device)
        self.handle: Any = symmetric.rendezvous(self.memory, peers.group.group_name)
        self.flags = self.memory[:4 * (SLOTS*self.of_slot + 1)].view(torch.int32)
        self.flags.zero_()
        for slot in range(SLOTS):
            for peer in range(peers.ranks):
                self.flags[self.number(slot, Flag("free", peer))] = 1
        torch.cuda.synchronize(peers.device)
        peers.say("memory", str(size))
        self.launches: dict[Any, list[signals.Launch]] = {}
        self.one = torch.ones(1, dtype=torch.int32, device=peers.device)

    def number(self, slot: int, flag: Flag) -> int:
        return slot*self.of_slot + (NAMES[flag.name]*self.peers.ranks + flag.block)*MOST_PIECES + flag.piece

    def view(self, slot: int, rank: int, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of a rank, from byte `at` of a slot on."""
        first = (self.begin + slot*self.size + at) // dtype.itemsize
        buffer: Tensor = self.handle.get_buffer(rank, shape, dtype, first)
        return buffer

    def next_slot(self) -> int:
        self.turn = (self.turn + 1) % SLOTS
        return self.turn

    def signal(self, stream: Any, slot: int, step: Post | Await, label: str) -> None:
        """Give a stream the launch of a step, or beside copies another copy, of the word 1."""
        if step.stream == COPY:
            assert isinstance(step, Post)
            with torch.cuda.stream(stream):
                for rank, flag in step.flags:
                    self.handle.get_buffer(rank, (1,), torch.int32, self.number(slot, flag)).copy_(self.one)
            return
        key = slot, step, label, _timeout
        made = self.launches.get(key)
        if made is None:
            made = self.launches[key] = self._made(slot, step, label)
        for launch in made:
            launch(self.peers.device.index, stream.cuda_stream)

    def _made(self, slot: int, step: Post | Await, label: str) -> list[signals.Launch]:
        pointers, peers = self.handle.buffer_ptrs, self.peers
        if isinstance(step, Post):
            return signals.posts([pointers[rank] + 4*self.number(slot, flag) for rank, flag in step.flags])
        own = pointers[peers.rank]
        return signals.awaits([own + 4*self.number(slot, flag) for flag in step.flags], _timeout,
                              own + 4*SLOTS*self.of_slot, peers.word.data_ptr(), peers.waits(step, label))


class Peers:
    """A group of ranks on this rank's device, `peers_of(group)`."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.ranks = group.rank(), group.size()
        self.store = distributed_c10d._get_process_group_store(group)
        self.said, self.kinds, self.memories = 0, set[str](), list[Memory]()
        self.word = torch.zeros(1, dtype=torch.int32, pin_memory=True)      # which wait has ended in vain
        self.table: list[tuple[int, str, float]] = [(0, "", 0)]             # of each word of each wait
        signals.load(device.index)
        self.broken, self.caller, self.tables = "", 0, dict[tuple[tuple[int, ...], ...], Tensor]()
        here = f"{socket.gethostname()} {_boot()}"
        self.together = len(set(self.say("host", here))) == 1
        self.copies = torch.cuda.Stream(device, priority=-1)
        self.watch: threading.Thread | None = None

    def say(self, what: str, text: str) -> list[str]:
        """What each rank says at this point, by the group's store. PeerTimeout if one says nothing."""
        self.said += 1
        keys = [f"tilewright/{self.said}/{rank}" for rank in range(self.ranks)]
        self.store.set(keys[self.rank], text)
        heard = []
        for rank, key in enumerate(keys):
            try:
                self.store.wait([key], timedelta(seconds=_timeout))
            except (RuntimeError, dist.DistStoreError) as error:
                raise PeerTimeout(f"rank {self.rank} has waited {_timeout:g} s for rank {rank} of the group "
                                  f"{self.group.group_name} to make the same call ({what}: {text})") from error
            heard.append(self.store.get(key).decode())
        return heard

    def agree(self, kind: str) -> None:
        """ValueError unless all ranks make this call, of shapes that belong together: in the first call of a kind."""
        if self.broken:
            raise PeerTimeout(self.broken)
        if kind not in self.kinds:
            compare(self.rank, kind, self.say("call", kind))
            self.kinds.add(kind)

    def memory(self, size: int) -> Memory:
        """Symmetric memory with slots of at least so many bytes: a collective call where it must grow."""
        capturing = torch.cuda.is_current_stream_capturing()
        if not self.memories or self.memories[-1].size < size:
            if capturing:
                raise RuntimeError(f"symmetric memory of {size} bytes cannot be allocated while a CUDA graph is "
                                   "captured: make the call once before")
            torch.cuda.synchronize(self.device)
            self.say("grow", str(size))
            self.memories = [x for x in self.memories if x.captured]    # graphs may be replayed
            self.memories.append(Memory(self, max(LEAST, 1 << (size - 1).bit_length())))
        newest = self.memories[-1]
        newest.captured |= capturing
        return newest

    def numbers(self, given: tuple[tuple[int, ...], ...]) -> Tensor:
        """A table of int32 on the device, which is kept for a graph that is captured later."""
        table = self.tables.get(given)
        if table is None:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("counts cannot be copied to the device while a CUDA graph is captured: make the "
                                   "call once before")
            if len(self.tables) >= MOST_TABLES:
                self.tables.clear()
            table = self.tables[given] = torch.tensor(given, dtype=torch.int32, device=self.device)
        return table

    def waits(self, step: Await, label: str) -> int:
        """The number by which the first word of a wait is reported."""
        self.table += [(sender, label, _timeout) for sender in step.senders]
        return len(self.table) - len(step.senders)

    def streams(self) -> tuple[Any, Any]:
        """The caller's, and that of copies."""
        return torch.cuda.current_stream(self.device), self.copies

    def using(self, stream: Any) -> Any:
        return torch.cuda.stream(stream)

    @contextmanager
    def calling(self) -> Iterator[None]:
        self.caller = threading.get_ident()
        if self.watch is None:
            self.watch = threading.Thread(target=self._look, name="tilewright peers", daemon=True)
            self.watch.start()
        yield

    def _look(self) -> None:
        """In a thread of its own: has a wait ended in vain?"""
        word = self.word.numpy()
        while not word[0]:
            time.sleep(LOOK)
        sender, label, seconds = self.table[int(word[0])]
        message = self.broken = (
            f"rank {self.rank} has waited {seconds:g} s in {label} for rank {sender} of the group "
            f"{self.group.group_name}: results since then are undefined, and the group can make no further call "
            "(set_timeout changes the time)")
        kind = type("PeerTimeout", (PeerTimeout,), {"__init__": lambda self, *_: RuntimeError.__init__(self, message)})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.caller), ctypes.py_object(kind))


def compare(own: int, kind: str, calls: Sequence[str]) -> None:
    """ValueError unless the calls of all ranks are of this rank's kind."""
    for rank, text in enumerate(calls):
        if text != kind:
            raise ValueError(f"all ranks must make the same call with rows of one shape: rank {own} makes {kind}, and "
                             f"rank {rank} {text}")


def _boot() -> str:
    """A name of this machine, by which containers of one host know each other."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return str(os.getppid())


_all: dict[tuple[str, torch.device], Peers] = {}


def peers_of(group: dist.ProcessGroup, device: torch.device) -> Peers:
    """Made by the first call, which is collective."""
    key = group.group_name, device
    if key not in _all or _all[key].group is not group:
        _all[key] = Peers(group, device)
    return _all[key]
