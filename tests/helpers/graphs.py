"""Recording what is given to a stream of ours into a CUDA graph, as torch does with its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tilewright.runtime.cuda import module
from tilewright.runtime.cuda.driver import api, call, library
from tilewright.runtime.gpu.driver import Owned


class Graph(Owned):
    """Recorded work; `launch` does it."""

    library, frees = library, "GraphExecDestroy"

    def launch(self, stream: Any = None) -> None:
        with self.device.current():
            call("cuGraphLaunch", self.handle, module.handle_of(stream))


@contextmanager
def capture(stream: module.Stream) -> Iterator[Graph]:
    """What is given to the stream inside the block is not done but recorded: a graph, to be launched afterwards."""
    graph = Graph()
    with stream.device.current():
        call("cuStreamBeginCapture", stream.handle, api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        try:
            yield graph
        except BaseException:
            with suppress(Exception):  # the capture is void; the stream must be usable again all the same
                call("cuGraphDestroy", call("cuStreamEndCapture", stream.handle))
            raise
        recorded = call("cuStreamEndCapture", stream.handle)
        try:
            graph.create(stream.device, lambda: call("cuGraphInstantiate", recorded, 0))
        finally:
            call("cuGraphDestroy", recorded)
