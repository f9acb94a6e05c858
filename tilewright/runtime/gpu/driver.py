"""What NVIDIA's driver and AMD's HIP have in common: calls with a status, devices, streams, events, memory.

`runtime.cuda` and `runtime.hip` are two bindings of the same shape: each has driver.py (the library), device.py,
stream.py, memory.py and module.py (code, launches, and the names of the other four). The classes here are the halves
that they share; a binding adds the functions that differ. `Driver` is what recipes and the engine need of a binding.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from tilewright import forks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.runtime.gpu.launch import Prepared
    from tilewright.runtime.gpu.workspaces import Workspaces

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING and hipStreamNonBlocking: does not wait for the default stream
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING and hipEventDisableTiming


class LibraryError(RuntimeError):
    """A function of the driver failed. `name` ("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress") and `code`
    (700) are the driver's, as is `text`; `kernel` is the kernel that was being loaded or launched, if one was."""

    def __init__(self, name: str, code: int, text: str, function: str, kernel: str = "", more: str = "") -> None:
        self.name, self.code, self.text, self.function, self.kernel = name, code, text, function, kernel
        where = f"{function}, kernel {kernel}" if kernel else function
        super().__init__(f"{name} ({code}): {text} [{where}]" + (f"\n{more}" if more else ""))


class Unavailable(RuntimeError):
    """There is no such driver, or no such device, here; the message says what is missing."""


class Driver(Protocol):
    """What recipes and the engine need of a binding: the modules runtime.cuda.module and runtime.hip.module have it."""

    @property
    def workspaces(self) -> Workspaces: ...
    @property
    def device(self) -> Devices[Any]: ...
    @property
    def Stream(self) -> Callable[[Any], Any]: ...
    @property
    def Block(self) -> Callable[[Any, int, Any], Block]: ...
    @property
    def Prepared(self) -> Callable[..., Prepared]: ...

    def load(self, code: Any, on: Any) -> Any: ...
    def synchronize(self, on: Any, stream: int) -> None: ...
    def fill(self, at: int, word: int, size: int, stream: int) -> None: ...
    def upload(self, on: Any, array: NDArray[Any], stream: Any) -> Any: ...
    def download(self, memory: Any, array: NDArray[Any]) -> None: ...


class Library:
    """A driver behind its Python package: imported and initialised when first needed, every status checked."""

    prefix: ClassVar[str]  # of the functions' names
    with_flags: ClassVar[str]  # what the names of functions that create streams and events end in
    counts: ClassVar[str]  # the function that counts devices
    no_device: ClassVar[str]  # a sentence
    device: Devices[Any]  # that of the binding's device.py

    def __init__(self) -> None:
        self.loaded: Any = None
        os.register_at_fork(after_in_child=self.forget)  # a child initialises it again, or learns that it cannot

    def forget(self) -> None:
        self.loaded = None

    def api(self) -> Any:
        """The package's module with the driver's functions. Unavailable if there is no package, driver or device."""
        if self.loaded is None:
            self.loaded = self.load()
        return self.loaded

    def call(self, function: str, *args: Any, kernel: str = "", more: Callable[[], str] | str = "") -> Any:
        """What a function returns beside its status: nothing, a value, or a list of them. Else the driver's error, with
        `more` behind it."""
        api = self.api()
        status, *results = getattr(api, function)(*args)
        if int(status):
            raise self.error_of(api, status, function, kernel, more() if callable(more) else more)
        return results[0] if len(results) == 1 else results or None

    def do(self, function: str, *args: Any) -> Any:
        """The same for a function that both drivers have, by its name without the prefix."""
        return self.call(self.prefix + function, *args)

    def error(self, status: int, function: str, kernel: str = "", more: str = "") -> LibraryError:
        """The exception for a status that is not success, in the driver's words and those of `more`."""
        return self.error_of(self.api(), status, function, kernel, more)

    def why_not(self) -> str:
        """Why there is no device to run on; "" if there is one."""
        try:
            return "" if self.call(self.counts) else self.no_device
        except (Unavailable, LibraryError) as error:
            return str(error)

    def available(self) -> bool:
        """Is there a device, with what it takes to use it? `why_not()` says what is missing."""
        return not self.why_not()

    def synchronize(self, on: Device, stream: int) -> None:
        """Wait until all that was given to a stream is done."""
        with on.current():
            self.do("StreamSynchronize", stream)

    def destroy(self, owner: Any, function: str) -> None:
        """Give back the handle of `owner`, once, in the process that made it. Nothing is raised: the interpreter, or
        the driver, may be going down. What is collected together with the owner may ask for the handle: it is gone."""
        handle = owner.__dict__.pop("handle", None)
        if handle is not None and self.loaded is not None:
            with suppress(Exception), owner.device.current():
                self.do(function, handle)

    # ---- a driver's own

    def load(self) -> Any:
        raise NotImplementedError

    def error_of(self, api: Any, status: Any, function: str, kernel: str = "", more: str = "") -> LibraryError:
        raise NotImplementedError


# ---- devices


class Device:
    """One GPU. `device(i)` gives the same object every time."""

    index: int
    name: str
    target: Any  # the record of this very chip
    current: Callable[[], AbstractContextManager[None]]  # the device is the calling thread's in a `with` block

    def __repr__(self) -> str:
        return f"<Device {self.index}: {self.name}>"

    def runs(self, target: Any) -> bool:
        """Can this device run code for that target?"""
        return bool(target.name == self.target.name)

    def recorded(self, known: Any, here: dict[str, Any], source: str) -> Any:
        """The record `known` with what the driver says of this device."""
        kept = tuple((name, why) for name, why in known.sources if name not in here)
        return replace(known, **here, model=self.name, missing=(), sources=(*kept, *((name, source) for name in here)))


D = TypeVar("D")


class Devices(Generic[D]):
    """`devices(index)` is the device of that number, made once. ValueError if there is none of that number."""

    def __init__(self, make: Callable[[int], D], count: Callable[[], int], kind: str) -> None:
        self.make, self.count, self.kind, self._lock = make, count, kind, forks.Lock()
        self.found: dict[int, D] = {}
        os.register_at_fork(after_in_child=self.forget)  # a context does not survive a fork

    def __call__(self, index: int = 0) -> D:
        found = self.found.get(index)
        if found is None:
            some = self.count()
            if not 0 <= index < some:
                raise ValueError(f"there is no {self.kind} {index}: this process sees {some}")
            with self._lock:
                found = self.found.get(index) or self.found.setdefault(index, self.make(index))
        return found

    def forget(self) -> None:
        self.found.clear()


# ---- streams and events


def handle_of(stream: Any) -> int:
    """The handle of a stream: None and 0 are the default stream, an int is a handle; streams of tilewright, torch and
    CuPy, and whatever has CUDA's __cuda_stream__, know theirs. torch uses CUDA's names on AMD GPUs too."""
    if type(stream) is int:
        return stream
    if stream is None:
        return 0
    if isinstance(stream, Stream):
        return stream.handle
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("handle", "cuda_stream", "ptr"):
        found = getattr(stream, name, None)
        if found is not None:
            return int(found)
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise TypeError(f"stream must be a GPU's stream or its handle, not {type(stream).__name__}") from None


class Stream:
    """A stream of a device that does not wait for the default stream."""

    library: ClassVar[Library]
    event: ClassVar[type[Event]]
    handle: int

    def __init__(self, on: Device | None = None) -> None:
        self.device: Any = on or self.library.device()
        with self.device.current():
            self.handle = int(self.library.do("StreamCreate" + self.library.with_flags, NON_BLOCKING))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        """Wait until all that was given to the stream is done. The driver's error for what went wrong in it."""
        self.library.synchronize(self.device, self.handle)

    def wait(self, event: Event) -> None:
        """What is given to the stream from now on begins after the event."""
        event.before(self.handle)

    def __del__(self) -> None:
        self.library.destroy(self, "StreamDestroy")


class Event:
    """A moment in a stream."""

    library: ClassVar[Library]
    handle: Any

    def __init__(self, on: Device | None = None, *, timing: bool = True) -> None:
        self.device: Any = on or self.library.device()
        with self.device.current():
            self.handle = self.library.do("EventCreate" + self.library.with_flags, 0 if timing else NO_TIMING)

    def record(self, stream: Any = None) -> Event:
        """The moment when all is done that the stream was given so far."""
        with self.device.current():
            self.library.do("EventRecord", self.handle, handle_of(stream))
        return self

    def before(self, stream: Any) -> None:
        """What a stream is given from now on begins after this moment."""
        with self.device.current():
            self.library.do("StreamWaitEvent", handle_of(stream), self.handle, 0)

    def synchronize(self) -> None:
        """Wait for it."""
        with self.device.current():
            self.library.do("EventSynchronize", self.handle)

    def since(self, start: Event) -> float:
        """Seconds from `start` to this event, both over."""
        with self.device.current():
            return 1e-3 * float(self.library.do("EventElapsedTime", start.handle, self.handle))

    def __del__(self) -> None:
        self.library.destroy(self, "EventDestroy")


# ---- memory


class Allocation:
    """`size` bytes of a device's memory at `pointer`; 0 if the size is. Freed once."""

    library: ClassVar[Library]
    frees: ClassVar[str]  # the function
    allocate: Callable[[int], Any]
    release: Callable[[int], None]

    def __init__(self, on: Device, size: int) -> None:
        self.device: Any = on
        self.size, self.pointer = size, 0
        if size:
            with on.current():
                self.pointer = int(self.allocate(size))

    def free(self) -> None:
        """Give it back. Nothing happens the second time."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            with self.device.current():
                self.release(pointer)

    def __enter__(self: A) -> A:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()


A = TypeVar("A", bound=Allocation)


class Memory(Allocation):
    """Memory for any streams, freed with the object. To free it waits for the device."""

    def allocate(self, size: int) -> Any:
        with self.unrecorded():
            return self.library.call(self.allocates, size)

    def release(self, pointer: int) -> None:
        with self.unrecorded():
            self.library.call(self.frees, pointer)

    def __del__(self) -> None:
        if getattr(self, "pointer", 0) and self.library.loaded is not None:
            with suppress(Exception):  # the interpreter, or the driver, may be going down
                self.free()

    allocates: ClassVar[str]

    def unrecorded(self) -> AbstractContextManager[None]:
        """What is done in the block is allowed while a stream records a graph, and is not recorded."""
        return nullcontext()


class Block(Allocation):
    """Memory for work on one stream, in whose order it is allocated and freed: neither waits, and a stream that is
    recording a graph records both.

    The drivers follow a stream's handle without a check: to free memory in the order of a stream that is gone crashes
    the process. So with a Stream, which it keeps, a block is freed with the object; with a handle, whose stream may be
    gone by then, only `free` or `with` frees it.
    """

    def __init__(self, on: Device, size: int, stream: Stream | int) -> None:
        self.stream = stream
        super().__init__(on, size)

    def allocate(self, size: int) -> Any:
        return self.library.do("MallocAsync", size, handle_of(self.stream))

    def release(self, pointer: int) -> None:
        self.library.call(self.frees, pointer, handle_of(self.stream))

    def __del__(self) -> None:
        if not getattr(self, "pointer", 0) or self.library.loaded is None:
            return
        if isinstance(self.stream, Stream):
            with suppress(Exception):  # the interpreter, or the driver, may be going down; in a cycle, the stream first
                self.free()
        else:
            warnings.warn(f"{self.size} bytes on {self.device.name} were never freed", ResourceWarning, stacklevel=2)


def check_download(memory: Allocation, array: NDArray[Any]) -> None:
    """ValueError for an array that cannot be filled with what the memory holds."""
    if not array.flags.c_contiguous:
        raise ValueError(f"the array to fill must be C-contiguous, but its strides are {array.strides} bytes")
    if array.nbytes > memory.size:
        raise ValueError(f"the array to fill has {array.nbytes} bytes, and the memory {memory.size}")
