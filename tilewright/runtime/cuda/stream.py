"""Streams, events and graphs of CUDA, and what the driver is asked at every product."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, call, entry, error, library
from tilewright.runtime.gpu import driver
from tilewright.runtime.gpu.driver import handle_of

__all__ = ["Answers", "Event", "Graph", "Stream", "capture_allowed", "handle_of", "is_capturing", "synchronize"]


class Event(driver.Event):
    """A moment in a stream of CUDA's."""

    library = library


class Stream(driver.Stream):
    """A stream of a device that does not wait for the default stream."""

    library, event = library, Event

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
        library.destroy(self, "GraphExecDestroy")


synchronize = library.synchronize


class Answers:
    """What the driver says at every product, asked by the shortest way. An object is one thread's at a time.

    The room for answers is made once; `context` is 0 where a thread has none. Of a default stream a thread can only ask
    while the device's context is current.
    """

    __slots__ = ("_get_number", "_is_capturing", "at", "get_context", "room")

    def __init__(self) -> None:
        pointer = ctypes.c_void_p
        self.room = ctypes.c_uint64()
        self.at = ctypes.addressof(self.room)
        self.get_context = entry("cuCtxGetCurrent", pointer)
        self._is_capturing = entry("cuStreamIsCapturing", pointer, pointer)
        self._get_number = entry("cuStreamGetId", pointer, pointer)

    def context(self) -> int:
        """The handle of the calling thread's current context."""
        status = self.get_context(self.at)
        if status:
            raise error(status, "cuCtxGetCurrent")
        return self.room.value

    def is_capturing(self, stream: int) -> bool:
        """Is this stream recording a graph?"""
        self.room.value = 0  # the answer fills half of it
        status = self._is_capturing(stream, self.at)
        if status:
            raise error(status, "cuStreamIsCapturing")
        return self.room.value != 0

    def number(self, stream: int) -> int:
        """The stream's own, which no other stream of this process will have."""
        status = self._get_number(stream, self.at)
        if status:
            raise error(status, "cuStreamGetId")
        return self.room.value


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
