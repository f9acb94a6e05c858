"""Streams and events of HIP; anybody's stream as the number by which HIP knows it."""

from __future__ import annotations

from typing import Any

from tilewright.runtime.gpu import driver_errors
from tilewright.runtime.hip import driver
from tilewright.runtime.hip.device import Device, device
from tilewright.runtime.hip.driver import call

NON_BLOCKING = 1  # hipStreamNonBlocking: the stream does not wait for the default stream
PER_THREAD = 2  # hipStreamPerThread: one handle for as many streams as there are threads


class Stream:
    """A stream of a device that does not wait for the default stream."""

    def __init__(self, on: Device | None = None) -> None:
        self.device = on or device()
        with self.device.current():
            self.handle = int(call("hipStreamCreateWithFlags", NON_BLOCKING))

    def synchronize(self) -> None:
        """Wait until all that was given to the stream is done. HipError for what went wrong in it."""
        synchronize(self.device, self.handle)

    def __del__(self) -> None:
        destroy(self, "hipStreamDestroy")


def handle_of(stream: Any) -> int:
    """The handle of a stream: None and 0 are the default stream, an int is a handle; ours and torch's know theirs."""
    if type(stream) is int:
        return stream
    if stream is None:
        return 0
    return driver_errors.handle_of(stream, ("handle", "cuda_stream"), "HIP")  # torch on ROCm: CUDA's name


class Event:
    """A moment in a stream."""

    def __init__(self, on: Device | None = None) -> None:
        self.device = on or device()
        with self.device.current():
            self.handle = int(call("hipEventCreateWithFlags", 0))

    def record(self, stream: Any = None) -> Event:
        """The moment when all is done that the stream was given so far."""
        with self.device.current():
            call("hipEventRecord", self.handle, handle_of(stream))
        return self

    def synchronize(self) -> None:
        """Wait for it."""
        call("hipEventSynchronize", self.handle)

    def since(self, start: Event) -> float:
        """Seconds from `start` to this event, both over."""
        return 1e-3 * float(call("hipEventElapsedTime", start.handle, self.handle))

    def __del__(self) -> None:
        destroy(self, "hipEventDestroy")


def destroy(owner: Any, function: str, what: str = "handle") -> None:
    """Give back what `owner` has under this name, in the process that made it: in a forked child it stays."""
    if driver.loaded():
        driver_errors.destroy(owner, lambda handle: call(function, handle), what)


def synchronize(on: Device, stream: int) -> None:
    """Wait until all that was given to a stream is done."""
    with on.current():
        call("hipStreamSynchronize", stream)


def is_capturing(stream: int) -> bool:
    """Is this stream recording a graph?"""
    return int(call("hipStreamIsCapturing", stream)) != 0
