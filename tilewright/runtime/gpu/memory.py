"""Streams, events and memory of both drivers' GPUs, and workspaces of kernels: one for each stream."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright import forks
from tilewright.runtime.gpu.driver import Device, Owned

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING and hipStreamNonBlocking: does not wait for the default stream
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING and hipEventDisableTiming
MOST_WORKSPACES = 128  # kept at a time
LINE = 256  # what the counters of a workspace begin at a multiple of
ZEROS, MOST_ZEROS = 1 << 20, 64  # bytes of counters for graphs at a time, and how often
Fill = Callable[[int, int, int, int], None]  # a word of 32 bits from an address on, so many bytes, on a stream


def handle_of(stream: Any) -> int:
    """The handle of a stream: None and 0 are the default stream, an int is a handle; streams of tilewright, torch and
    CuPy, and whatever has CUDA's __cuda_stream__, know theirs. torch uses CUDA's names on AMD GPUs too."""
    if type(stream) is int:
        return stream
    if stream is None:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("handle", "cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle)
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise TypeError(f"stream must be a GPU's stream or its handle, not {type(stream).__name__}") from None


class Stream(Owned):
    """A stream of a device that does not wait for the default stream."""

    event: ClassVar[type[Event]]
    frees = "StreamDestroy"

    def __init__(self, on: Device | None = None) -> None:
        self.create(on, lambda: int(self.library.do("StreamCreate" + self.library.with_flags, NON_BLOCKING)))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        """Wait until all that was given to the stream is done. The driver's error for what went wrong in it."""
        self.library.synchronize(self.device, self.handle)


class Event(Owned):
    """A moment in a stream."""

    frees = "EventDestroy"

    def __init__(self, on: Device | None = None, *, timing: bool = True) -> None:
        flags = 0 if timing else NO_TIMING
        self.create(on, lambda: self.library.do("EventCreate" + self.library.with_flags, flags))

    def _do(self, function: str, *args: Any) -> Any:
        with self.device.current():
            return self.library.do(function, *args)

    def record(self, stream: Any = None) -> Event:
        """The moment when all is done that the stream was given so far."""
        self._do("EventRecord", self.handle, handle_of(stream))
        return self

    def before(self, stream: Any) -> None:
        """What a stream is given from now on begins after this moment."""
        self._do("StreamWaitEvent", handle_of(stream), self.handle, 0)

    def synchronize(self) -> None:
        """Wait for it."""
        self._do("EventSynchronize", self.handle)

    def since(self, start: Event) -> float:
        """Seconds from `start` to this event, both over."""
        return 1e-3 * float(self._do("EventElapsedTime", start.handle, self.handle))


# ---- memory


class Memory(Owned):
    """`size` bytes of a device's memory at `pointer` (0 if the size is), for any streams. To free it waits for the
    device."""

    pointer: int
    allocates: ClassVar[str]

    def __init__(self, on: Device, size: int) -> None:
        self.device, self.size = on, size
        self.pointer = self.create(on, lambda: int(self.allocated(size))) if size else 0

    def allocated(self, size: int) -> Any:
        return self.library.do(self.allocates, size)

    def release(self, handle: int) -> None:
        with self.library.unrecorded():
            super().release(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()

    @classmethod
    def upload(cls, on: Device, array: NDArray[Any]) -> Self:
        """Memory with the elements of an array, in C order. The copy is over."""
        contiguous = np.ascontiguousarray(array)
        there = cls(on, contiguous.nbytes)
        if contiguous.nbytes:
            with on.current():
                cls.library.copy(there.pointer, contiguous.ctypes.data, contiguous.nbytes, back=False)
        return there

    def download(self, array: NDArray[Any]) -> None:
        """Fill a C-contiguous array with what the memory holds. Wait for the stream that fills it first."""
        if not array.flags.c_contiguous:
            raise ValueError(f"the array to fill must be C-contiguous, but its strides are {array.strides} bytes")
        if array.nbytes > self.size:
            raise ValueError(f"the array to fill has {array.nbytes} bytes, and the memory {self.size}")
        if array.nbytes:
            with self.device.current():
                self.library.copy(array.ctypes.data, self.pointer, array.nbytes, back=True)


class Block(Memory):
    """Memory for work on the stream with this handle, in whose order it is allocated and freed: neither waits, and a
    stream that is recording a graph records both.

    The drivers follow a stream's handle without a check: to free memory in the order of a stream that is gone crashes
    the process. So `free` or `with` frees a block, while its stream exists, and never the end of the object.
    """

    def __init__(self, on: Device, size: int, stream: int) -> None:
        self.stream = stream
        super().__init__(on, size)

    def allocated(self, size: int) -> Any:
        return self.allocate(self.device, size, self.stream)

    def release(self, handle: int) -> None:
        self.deallocate(self.device, handle, self.stream)

    @classmethod
    def allocate(cls, on: Device, size: int, stream: int) -> int | None:
        """The address of so many bytes, for work on the stream; None if it takes that the device is current."""
        with on.current():
            return int(cls.library.do(cls.allocates, size, stream))

    @classmethod
    def deallocate(cls, on: Device, pointer: int, stream: int) -> None:
        """Give back what `allocate` gave, in the order of the stream. The device must be current, if it was then."""
        with on.current():
            cls.library.do(cls.frees, pointer, stream)

    def __del__(self) -> None:
        if "handle" in self.__dict__ and self._maker is self.library.loaded:
            warnings.warn(f"{self.size} bytes on {self.device.name} were never freed", ResourceWarning, stacklevel=2)


# ---- workspaces


class Workspace:
    """What kernels on one stream may use in turn: a workspace, and counters that are zero whenever none of them runs.

    A smaller one that it replaces stays as long as it does, since kernels on their way may use it: to free it now would
    wait for them. As each is twice as large as the last one, that is less than it takes itself.
    """

    __slots__ = ("before", "counter_bytes", "counters", "memory", "workspace", "workspace_bytes")

    workspace_bytes: int
    counter_bytes: int

    def __init__(self, memory: Callable[[int], Any], fill: Fill, workspace: int, counters: int, stream: int,
                 before: Workspace | None) -> None:
        if before is not None:
            workspace = max(workspace, 2 * before.workspace_bytes)
            counters = max(counters, 2 * before.counter_bytes)
        at = lines(workspace)
        self.before, self.memory = before, memory(at + counters)
        self.workspace, self.workspace_bytes = self.memory.pointer, workspace
        self.counters, self.counter_bytes = self.memory.pointer + at, counters
        fill(self.counters, 0, counters, stream)


class Workspaces:
    """A workspace for each stream: memory, and counters that are zero whenever no kernel runs there. `get` finds it or
    makes it, of memory that outlives streams."""

    def __init__(self, memory: Callable[[Any, int], Any], block: Callable[[Any, int, Any], Any], fill: Fill,
                 prepare: Callable[[Any], Any] = lambda on: None,
                 zeroed: Callable[[Any, int], Any] | None = None) -> None:
        """memory(device, size) and block(device, size, stream) have a `pointer`; `prepare` is called for a device whose
        kernels need workspaces, before a stream records a graph of them. zeroed(device, size): memory of zeros, if that
        can be had while a graph is recorded."""
        self._memory, self._block, self._fill, self.prepare, self._zeroed = memory, block, fill, prepare, zeroed
        self._lock = forks.Lock()
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self.found: dict[tuple[int, int], Workspace] = {}  # by device and stream, the oldest first
        # by device: memory of counters for graphs, the newest last, and how many of its bytes no kernel has
        self.zeros: dict[int, list[tuple[Any, int]]] = {}

    def get(self, on: Any, workspace: int, counters: int, stream: int, answers: Any) -> Workspace | None:
        """The stream's, of at least so many bytes each. None if the stream is recording a graph: see `recorded`.

        `answers` knows of a stream whether it is recording, and a number that tells it from all others. The device must
        be current. A workspace is the same for every call on a stream, since kernels there take turns; hold it until
        the kernel is launched, as another thread may make this method forget it.
        """
        if answers.is_capturing(stream):
            return None
        key = on.index, answers.number(stream)
        room = self.found.get(key)
        if room is None or room.workspace_bytes < workspace or room.counter_bytes < counters:
            with self._lock:
                room = self.found.get(key)
                if room is None and len(self.found) >= MOST_WORKSPACES:
                    # Most streams of a program with so many are gone. Half at a time, for the first to be freed waits.
                    for old in list(self.found)[: (len(self.found) + 1) // 2]:
                        del self.found[old]
                if room is None or room.workspace_bytes < workspace or room.counter_bytes < counters:
                    room = self.found[key] = Workspace(lambda size: self._memory(on, size), self._fill, workspace,
                                                        counters, stream, room)
        return room

    def recorded(self, on: Any, workspace: int, counters: int, stream: int) -> tuple[Any, int]:
        """For one kernel in a graph that is being recorded, or several of a product: a block of memory, to be freed
        behind them, and where their counters are."""
        at, kept = lines(workspace), self._zeros(on, lines(counters))
        made = self._block(on, max(at, LINE) if kept else at + counters, stream)
        if kept is not None:
            return made, kept
        try:
            self._fill(made.pointer + at, 0, counters, stream)
        except BaseException:
            made.free()
            raise
        return made, made.pointer + at

    def _zeros(self, on: Any, size: int) -> int | None:
        """Where counters of a kernel in a graph are, which has them for ever: a node that clears them takes 3 us of
        each launch on an H200. No launch finds them in use, for CUDA launches a graph that has memory of its own only
        when it is not running. None if they have to be cleared."""
        with self._lock:
            made = self.zeros.setdefault(on.index, [])
            if self._zeroed is None or not 0 < size <= ZEROS:
                return None
            if not made or made[-1][1] < size:
                if len(made) == MOST_ZEROS:
                    return None
                made.append((self._zeroed(on, ZEROS), ZEROS))
            zeros, left = made[-1]
            made[-1] = zeros, left - size
            return int(zeros.pointer) + left - size


def lines(size: int) -> int:
    """The next multiple of LINE."""
    return -(-size // LINE) * LINE
