"""Kernels on an AMD GPU: code objects and launches, by HIP.

    here = hip.device(0)
    kernel = hip.Module(code_object, here).function(manifest)       # what `tilewright emit -o k.hsaco` writes
    launch = hip.Prepared(kernel, (m // 128, n // 128), (m, n, k, a, b, c))
    seconds = hip.seconds(launch, stream)

Where the arguments are in the launch's block, and how large workgroups are, is in the manifest. The names of the
driver, devices, streams and memory that a user of kernels needs are here too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.runtime.gpu import launch as launches
from tilewright.runtime.gpu.arrays import HIP, located
from tilewright.runtime.gpu.launch import Kept, in_turn, seconds
from tilewright.runtime.hip.device import Device, count, device, version
from tilewright.runtime.hip.driver import HipError, Unavailable, api, available, call, library, why_not
from tilewright.runtime.hip.memory import Block, Memory, download, fill, upload, workspaces
from tilewright.runtime.hip.stream import Answers, Event, Stream, handle_of, synchronize

__all__ = [
    "Block", "Device", "Event", "HipError", "HipFunction", "Memory", "Module", "Prepared", "Stream", "Unavailable",
    "available", "count", "device", "download", "fill", "handle_of", "in_turn", "launch", "load", "seconds",
    "synchronize", "upload", "version", "why_not", "workspaces",
]

MOST_MODULES = 512  # kept loaded at a time
POINTER, SIZE, END = 1, 2, 3  # HIP_LAUNCH_PARAM_*: what follows in a launch's `extra`


class Module:
    """A linked code object (.hsaco) in a device's memory. It stays as long as the object lives."""

    def __init__(self, code: bytes, on: Device | None = None) -> None:
        self.device, self.code = on or device(), bytes(code)  # HIP does not copy what it is given
        if self.code[:4] != b"\x7fELF":
            raise ValueError("code must be a linked code object: an ELF file, as compiler.amd.code_object makes it")
        with self.device.current():
            self.handle = call("hipModuleLoadData", self.code, more=f"on {self.device}")

    def function(self, manifest: Mapping[str, Any]) -> HipFunction:
        """The kernel that this manifest describes."""
        return HipFunction(self, manifest)

    def __del__(self) -> None:
        library.destroy(self, "ModuleUnload")


class HipFunction(launches.Function):
    """A kernel to launch. `registers` (VGPRs and AGPRs of a lane), `lds` and `scratch` (bytes) are what HIP read."""

    def __init__(self, module: Module, manifest: Mapping[str, Any]) -> None:
        super().__init__(module, manifest)
        with self.device.current():
            self.handle = call("hipModuleGetFunction", module.handle, self.name.encode(), kernel=self.name)
            self.registers, self.lds, self.scratch, self.most_threads = (
                self._attribute(what)
                for what in ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES", "MAX_THREADS_PER_BLOCK")
            )
        if self.most_threads and manifest["workgroup"] > self.most_threads:
            raise ValueError(f"{self.name}: the manifest says workgroups of {manifest['workgroup']}, the code at most "
                             f"{self.most_threads}; they do not belong together")

    def __repr__(self) -> str:
        return f"<HipFunction {self.name} on {self.device.name}: {self.registers} registers, {self.lds} bytes of LDS>"

    def _attribute(self, name: str) -> int:
        which = getattr(api().hipFunction_attribute, f"HIP_FUNC_ATTRIBUTE_{name}")
        return int(call("hipFuncGetAttribute", which, self.handle, kernel=self.name))


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
    """A launch with its grid and its arguments laid out: calling it does nothing but launch.

    Several threads may call it; `launch` takes other arguments than these.
    """

    def arguments(self) -> Arguments:
        return Arguments(self.block)

    def __call__(self, stream: Any = None) -> None:
        """Launch on a stream (None: the default one). HipError if HIP refuses; what goes wrong in the kernel is found
        by whoever waits for the stream."""
        self.inside(self.launch, handle_of(stream), self._arguments)

    def launch(self, stream: int, arguments: Arguments) -> None:
        f = self.function
        call("hipModuleLaunchKernel", f.handle, *self.grid, *self.threads, self.shared, stream, None, arguments.extra,
             kernel=f.name, more=self.described)

    def described(self) -> str:
        x, y, z = self.threads
        return f"grid {self.grid}, workgroups of {x * y * z} threads, {self.shared} bytes of dynamic LDS"

    def inside(self, launch: Callable[[int, Any], None], stream: int, arguments: Arguments) -> None:
        with self.function.device.current():
            launch(stream, arguments)


def launch(function: HipFunction, grid: Sequence[int], args: Sequence[Any], stream: Any = None) -> None:
    """Run a kernel with grid = (x[, y[, z]]) workgroups. Arguments are numbers, addresses, and arrays in the memory of
    the kernel's device; the stream is theirs if none is named. Nothing waits for the kernel.

    torch's tensors that are used on another stream than torch's own need torch's `record_stream`, as always.
    """
    asked = None if stream is None else handle_of(stream)
    found = {place: where for place, x in enumerate(args) if (where := located(x, HIP, asked)) is not None}
    for place, (_, index, _, _) in found.items():
        if index != function.device.index:
            name = function.parameters[place].name
            here = function.device.index
            raise ValueError(f"{name} is on AMD GPU {index}, and {function.name} was loaded for {here}")
    theirs = next((stream for _, _, stream, _ in found.values()), HIP.default_stream)
    given = [found[place][0] if place in found else x for place, x in enumerate(args)]
    Prepared(function, grid, given)(theirs if asked is None else asked)


_modules: Kept[Module] = Kept(MOST_MODULES)


def load(code: bytes, on: Device | None = None) -> Module:
    """The module of this code object on a device, loaded once and kept."""
    on = on or device()
    return _modules.get((on.index, code), lambda: Module(code, on))


os.register_at_fork(after_in_child=_modules.forget)
