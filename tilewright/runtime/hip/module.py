"""Kernels on an AMD GPU: code objects, launches and memory, by HIP.

    here = hip.device(0)
    kernel = hip.Module(code_object, here).function(manifest)       # what `tilewright emit -o k.hsaco` writes
    hip.Prepared(kernel, (m // 128, n // 128), (m, n, k, a, b, c))(stream)

Where the arguments are in the launch's block, and how large workgroups are, is in the manifest. The names of the
driver and its devices that a user of kernels needs are here too.
"""

from __future__ import annotations

import ctypes
from threading import get_ident
from typing import Any, ClassVar

from tilewright.runtime.gpu import launch as launches, memory
from tilewright.runtime.gpu.driver import Kept
from tilewright.runtime.gpu.launch import MOST_MODULES
from tilewright.runtime.gpu.memory import Workspaces, handle_of
from tilewright.runtime.hip.driver import (
    Device,
    HipError,
    Unavailable,
    available,
    call,
    count,
    device,
    library,
    version,
    why_not,
)

__all__ = [
    "Block", "Device", "Event", "HipError", "HipFunction", "Memory", "Module", "Prepared", "Stream", "Unavailable",
    "available", "count", "device", "fill", "handle_of", "load", "synchronize", "version", "why_not",
    "workspaces",
]

PER_THREAD = 2  # hipStreamPerThread: one handle for as many streams as there are threads
POINTER, SIZE, END = 1, 2, 3  # HIP_LAUNCH_PARAM_*: what follows in a launch's `extra`
synchronize, fill = library.synchronize, library.fill


class Event(memory.Event):
    library = library


class Stream(memory.Stream):
    library, event = library, Event


class Memory(memory.Memory):
    library, allocates, frees = library, "Malloc", "Free"


class Block(memory.Block):
    library, allocates, frees = library, "MallocAsync", "FreeAsync"


workspaces = Workspaces(Memory, Block, fill)


class Answers:
    """What HIP says of a stream at a product that needs a workspace."""

    __slots__ = ()

    def is_capturing(self, stream: int) -> bool:
        """Is this stream recording a graph?"""
        return int(call("hipStreamIsCapturing", stream)) != 0

    def resting(self, stream: int, context: int) -> int | None:
        """The number of a stream that is not recording a graph, if it can be told at once."""
        return None

    def number(self, stream: int) -> int:
        """What tells the stream from all others: its handle is the address of an object that HIP keeps while commands
        of the stream are under way. A later stream with that handle finds what this one has left at rest.
        (hipStreamGetId came with ROCm 7.1.)"""
        return stream if stream != PER_THREAD else -get_ident()


class HipFunction(launches.Function):
    """A kernel to launch. `registers` are VGPRs and AGPRs of a lane, `shared` bytes of LDS."""

    library = library


class Module(launches.Module):
    """A linked code object (.hsaco) in a device's memory."""

    library, functions = library, HipFunction
    kept: ClassVar[Kept[Module]] = Kept(MOST_MODULES)

    def loaded(self, code: bytes) -> Any:
        self.code = bytes(code)  # HIP does not copy what it is given
        if self.code[:4] != b"\x7fELF":
            raise ValueError("code must be a linked code object: an ELF file, as compiler.amd.code_object makes it")
        return call("hipModuleLoadData", self.code, more=f"on {self.device}")


load = Module.load


class Arguments(launches.Arguments):
    """Arguments as hipModuleLaunchKernel takes them, in `extra`: the block and its size."""

    __slots__ = ("answers", "extra", "size")

    def __init__(self, block: bytes) -> None:
        super().__init__(block)
        self.size = ctypes.c_size_t(len(block))
        addresses = POINTER, ctypes.addressof(self.block), SIZE, ctypes.addressof(self.size), END
        self.extra = (ctypes.c_void_p * len(addresses))(*addresses)
        self.answers = Answers()


class Prepared(launches.Prepared):
    """A launch by hipModuleLaunchKernel."""

    def arguments(self) -> Arguments:
        return Arguments(self.block)

    def launch(self, stream: int, arguments: Arguments) -> None:
        f = self.function
        call("hipModuleLaunchKernel", f.handle, *self.grid, *f.threads, 1, f.dynamic, stream, None, arguments.extra,
             kernel=f.name, more=self.described)
