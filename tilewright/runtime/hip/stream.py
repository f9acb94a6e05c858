"""Streams and events of HIP, and what it is asked at every product."""

from __future__ import annotations

from threading import get_ident

from tilewright.runtime.gpu import driver
from tilewright.runtime.gpu.driver import handle_of
from tilewright.runtime.hip.driver import call, library

__all__ = ["Answers", "Event", "Stream", "handle_of", "synchronize"]

PER_THREAD = 2  # hipStreamPerThread: one handle for as many streams as there are threads


class Event(driver.Event):
    """A moment in a stream of HIP's."""

    library = library


class Stream(driver.Stream):
    """A stream of a device that does not wait for the default stream."""

    library, event = library, Event


synchronize = library.synchronize


class Answers:
    """What HIP says of a stream at a product that needs a workspace."""

    __slots__ = ()

    def is_capturing(self, stream: int) -> bool:
        """Is this stream recording a graph?"""
        return int(call("hipStreamIsCapturing", stream)) != 0

    def number(self, stream: int) -> int:
        """What tells the stream from all others: its handle is the address of an object that HIP keeps while commands
        of the stream are under way. A later stream with that handle finds what this one has left at rest.
        (hipStreamGetId came with ROCm 7.1.)"""
        return stream if stream != PER_THREAD else -get_ident()
