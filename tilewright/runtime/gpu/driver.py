"""What NVIDIA's driver and AMD's HIP have in common: calls with a status, devices, handles that are given back.

`runtime.cuda` and `runtime.hip` are two bindings of one shape: driver.py has the library and its devices, module.py the
code, launches and memory. The classes here, in memory.py and in launch.py are the halves that they share, with the
functions of which both drivers have one under their prefix. What the engine and recipes need of a binding's module:
`device`, `load`, `Stream`, `Event`, `Memory`, `Block`, `Prepared`, `workspaces`, `fill` and `synchronize`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from tilewright import forks

T = TypeVar("T")


class LibraryError(RuntimeError):
    """A function of the driver failed. `name` ("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress") and `code`
    (700) are the driver's, as is `text`; `kernel` is the kernel that was being loaded or launched, if one was."""

    def __init__(self, name: str, code: int, text: str, function: str, kernel: str = "", more: str = "") -> None:
        self.name, self.code, self.text, self.function, self.kernel = name, code, text, function, kernel
        where = f"{function}, kernel {kernel}" if kernel else function
        super().__init__(f"{name} ({code}): {text} [{where}]" + (f"\n{more}" if more else ""))


class Unavailable(RuntimeError):
    """There is no such driver, or no such device, here; the message says what is missing."""


class Kept(Generic[T]):
    """What is made once for a key and kept, at most so many at a time: devices, modules, recipes. A forked child, in
    which no driver's handle is valid, begins without any."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: dict[Hashable, T] = {}
        os.register_at_fork(after_in_child=self.forget)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        entry = self.found.get(key)
        return forks.looked_up(self.found, key, make, self.most) if entry is None else entry

    def forget(self) -> None:
        self.found.clear()


class Library:
    """A driver behind its Python package: imported and initialised when first needed, every status checked."""

    prefix: ClassVar[str]  # of the functions' names
    with_flags: ClassVar[str]  # what the names of functions that create streams and events end in
    counts: ClassVar[str]  # the function that counts devices
    no_device: ClassVar[str]  # a sentence
    device: Devices[Any]  # the binding's

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

    def do(self, function: str, *args: Any, **context: Any) -> Any:
        """Calls a function that both drivers have, by its name without the prefix."""
        return self.call(self.prefix + function, *args, **context)

    def error(self, status: int, function: str, kernel: str = "", more: str = "") -> LibraryError:
        """The exception for a status that is not success, in the driver's words and those of `more`."""
        return self.error_of(self.api(), status, function, kernel, more)

    def count(self) -> int:
        """How many devices this process sees. Unavailable or LibraryError if there is no driver."""
        return int(self.call(self.counts))

    def why_not(self) -> str:
        """Why there is no device to run on; "" if there is one."""
        try:
            return "" if self.count() else self.no_device
        except (Unavailable, LibraryError) as error:
            return str(error)

    def available(self) -> bool:
        """Is there a device, with what it takes to use it? `why_not()` says what is missing."""
        return not self.why_not()

    def synchronize(self, on: Device, stream: int) -> None:
        """Wait until all that was given to a stream is done."""
        with on.current():
            self.do("StreamSynchronize", stream)

    def fill(self, at: int, word: int, size: int, stream: int) -> None:
        """Write a word of 32 bits to so many bytes, a multiple of 4. The device must be current."""
        if size:
            self.do("MemsetD32Async", at, self.word(word), size // 4, stream)

    # ---- a driver's own

    def load(self) -> Any:
        raise NotImplementedError

    def error_of(self, api: Any, status: Any, function: str, kernel: str = "", more: str = "") -> LibraryError:
        raise NotImplementedError

    def attribute(self, name: str) -> Any:
        """The number by which the driver asks for this property of a function, by the end of its name."""
        raise NotImplementedError

    def copy(self, to: int, source: int, size: int, back: bool) -> None:
        """Copy so many bytes from the host to the device, or back, and wait for it. The device must be current."""
        raise NotImplementedError

    def word(self, word: int) -> int:
        """An unsigned number of 32 bits as `fill`'s function takes it."""
        return word

    def unrecorded(self) -> AbstractContextManager[None]:
        """What is done in the block is allowed while a stream records a graph, and is not recorded."""
        return nullcontext()


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

    def recorded(self, known: Any, here: dict[str, Any], source: str, driver: str) -> Any:
        """The record `known` with what the driver, of this version, says of this device."""
        kept = tuple((name, why) for name, why in known.sources if name not in here)
        said = (*kept, *((name, source) for name in here))
        return replace(known, **here, model=self.name, driver=driver, missing=(), sources=said)


class Devices(Kept[T]):
    """`devices(index)` is the device of that number, made once. ValueError if there is none of that number."""

    def __init__(self, make: Callable[[int], T], library: Library, kind: str) -> None:
        super().__init__(1 << 16)
        self.make, self.library, self.kind = make, library, kind

    def __call__(self, index: int = 0) -> T:
        entry = self.found.get(index)
        if entry is None:
            some = self.library.count()
            if not 0 <= index < some:
                raise ValueError(f"there is no {self.kind} {index}: this process sees {some}")
            entry = self.get(index, lambda: self.make(index))
        return entry


# ---- what has a handle of the driver's


class Owned:
    """An object of the driver's, given back once: by `free`, or with the Python object.

    A handle is valid in the driver that made it alone. Of a driver that is gone since, by a fork, at the interpreter's
    end, or since a test has replaced it, handles are left alone: the driver would follow them to anywhere.
    """

    library: ClassVar[Library]
    frees: ClassVar[str]  # the function, without the driver's prefix
    device: Any
    handle: Any

    def create(self, on: Device | None, make: Callable[[], Any]) -> Any:
        """The handle that make() gives while the device is current."""
        self.device = on or self.library.device()
        with self.device.current(), self.library.unrecorded():
            self.handle = make()
        self._maker = self.library.loaded
        return self.handle

    def free(self) -> None:
        """Give it back. Nothing happens the second time."""
        handle = self.__dict__.pop("handle", None)
        if handle is not None and self._maker is self.library.loaded:
            with self.device.current():
                self.release(handle)

    def release(self, handle: Any) -> None:
        self.library.do(self.frees, handle)

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter, or the driver, may be going down
            self.free()
