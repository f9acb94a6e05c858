"""Streams, events and graphs of CUDA; anybody's stream as the number by which the driver knows it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tilewright.runtime.cuda.device import Device, device
from tilewright.runtime.cuda.driver import api, call, entry, error
from tilewright.runtime.gpu import driver_errors

LEGACY, PER_THREAD = 1, 2  # the default streams: the one of all threads, which 0 is too, and each thread's own


def handle_of(stream: Any) -> int:
    """The handle of a stream: None and 0 are the default stream, an int is a handle; streams of tilewright, torch and
    CuPy, and whatever has CUDA's __cuda_stream__, know theirs."""
    if type(stream) is int:
        return stream
    if stream is None:
        return 0
    if isinstance(stream, Stream):
        return stream.handle
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    return driver_errors.handle_of(stream, ("handle", "cuda_stream", "ptr"), "CUDA")


class Stream:
    """A stream of a device that does not wait for the default stream."""

    def __init__(self, on: Device | None = None) -> None:
        self.device = on or device()
        with self.device.current():
            self.handle = int(call("cuStreamCreate", api().CUstream_flags.CU_STREAM_NON_BLOCKING.value))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        """Wait until all that was given to the stream is done. CudaError for what went wrong in it."""
        synchronize(self.device, self.handle)

    def wait(self, event: Event) -> None:
        """What is given to the stream from now on begins after the event."""
        event.before(self.handle)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """What is given to the stream inside the block is not done but recorded: a graph, to be launched afterwards."""
        graph = Graph(self.device)
        with self.device.current():
            call("cuStreamBeginCapture", self.handle, api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            try:
                yield graph
            except BaseException:
                with suppress(Exception):  # the capture is void; the stream must be usable again all the same
                    call("cuGraphDestroy", call("cuStreamEndCapture", self.handle))
                raise
            graph.instantiate(call("cuStreamEndCapture", self.handle))

    def __del__(self) -> None:
        _destroy(self, "cuStreamDestroy")


class Event:
    """A moment in a stream."""

    def __init__(self, on: Device | None = None, *, timing: bool = True) -> None:
        self.device = on or device()
        flags = api().CUevent_flags
        with self.device.current():
            self.handle = call(
                "cuEventCreate", (flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING).value
            )

    def record(self, stream: Any = None) -> Event:
        """The moment when all is done that the stream was given so far."""
        with self.device.current():
            call("cuEventRecord", self.handle, handle_of(stream))
        return self

    def before(self, stream: Any) -> None:
        """What a stream is given from now on begins after this moment."""
        with self.device.current():
            call("cuStreamWaitEvent", handle_of(stream), self.handle, 0)

    def synchronize(self) -> None:
        """Wait for it."""
        with self.device.current():
            call("cuEventSynchronize", self.handle)

    def since(self, start: Event) -> float:
        """Seconds from `start` to this event, both over."""
        with self.device.current():
            return 1e-3 * float(call("cuEventElapsedTime", start.handle, self.handle))

    def __del__(self) -> None:
        _destroy(self, "cuEventDestroy")


class Graph:
    """Recorded work, made by Stream.capture; `launch` does it."""

    def __init__(self, on: Device) -> None:
        self.device = on

    def instantiate(self, graph: Any) -> None:
        try:
            self.handle = call("cuGraphInstantiate", graph, 0)
        finally:
            call("cuGraphDestroy", graph)

    def launch(self, stream: Any = None) -> None:
        with self.device.current():
            call("cuGraphLaunch", self.handle, handle_of(stream))

    def __del__(self) -> None:
        _destroy(self, "cuGraphExecDestroy")


def synchronize(on: Device, stream: int) -> None:
    """Wait until all that was given to a stream is done."""
    with on.current():
        call("cuStreamSynchronize", stream)


class Answers:
    """What the driver says at every product, asked by the shortest way. An object is one thread's at a time.

    The room for answers is made once; `context` is 0 where a thread has none. Of a default stream a thread can only ask
    while the device's context is current.
    """

    __slots__ = ("_at", "_get_context", "_get_number", "_is_capturing", "_room")

    def __init__(self) -> None:
        pointer = ctypes.c_void_p
        self._room = ctypes.c_uint64()
        self._at = ctypes.addressof(self._room)
        self._get_context = entry("cuCtxGetCurrent", pointer)
        self._is_capturing = entry("cuStreamIsCapturing", pointer, pointer)
        self._get_number = entry("cuStreamGetId", pointer, pointer)

    def context(self) -> int:
        """The handle of the calling thread's current context."""
        status = self._get_context(self._at)
        if status:
            raise error(status, "cuCtxGetCurrent")
        return self._room.value

    def is_capturing(self, stream: int) -> bool:
        """Is this stream recording a graph?"""
        self._room.value = 0  # the answer fills half of it
        status = self._is_capturing(stream, self._at)
        if status:
            raise error(status, "cuStreamIsCapturing")
        return self._room.value != 0

    def number(self, stream: int) -> int:
        """The stream's own, which no other stream of this process will have."""
        status = self._get_number(stream, self._at)
        if status:
            raise error(status, "cuStreamGetId")
        return self._room.value


def is_capturing(on: Device, stream: int) -> bool:
    """Is this stream recording a graph?"""
    with on.current():
        return Answers().is_capturing(stream)


@contextmanager
def capture_allowed() -> Iterator[None]:
    """What is not for a stream, such as loading a module, may be done in the block although a stream is recording."""
    relaxed = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


def _destroy(owner: Any, function: str) -> None:
    def free(handle: Any) -> None:
        with owner.device.current():
            call(function, handle)

    driver_errors.destroy(owner, free)
