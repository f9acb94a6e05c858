"""Kernels on an AMD GPU: code objects, launches with packed arguments, streams, events and memory, by HIP.

    here = hip.device(0)
    kernel = hip.Module(code_object, here).function(manifest)       # what `tilewright emit -o k.hsaco` writes
    launch = hip.Prepared(kernel, (m // 128, n // 128), (m, n, k, a, b, c))
    seconds = hip.seconds(launch, stream)

Devices are in `hip_devices`, streams and events in `hip_streams`, memory in `hip_memory`; the names that a user of
kernels needs are here too. Where the arguments lie in the launch's block, and how large workgroups are, is in the
manifest (`compiler.amd`).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from tilewright import forks
from tilewright.runtime.hip.device import Device, count, device
from tilewright.runtime.hip.driver import HipError, Unavailable, api, call, why_not
from tilewright.runtime.hip.memory import Memory, download, upload
from tilewright.runtime.hip.stream import Event, Stream, destroy, handle_of, synchronize

__all__ = [
    "Device",
    "Event",
    "HipError",
    "HipFunction",
    "Memory",
    "Module",
    "Prepared",
    "Stream",
    "Unavailable",
    "available",
    "count",
    "device",
    "download",
    "handle_of",
    "in_turn",
    "load",
    "seconds",
    "synchronize",
    "upload",
    "version",
    "why_not",
]

Launch = Callable[[Any], None]  # on the stream that it is given
MOST_MODULES = 512  # kept loaded at a time
POINTER, SIZE, END = 1, 2, 3  # HIP_LAUNCH_PARAM_*: what follows in a launch's `extra`
CODES = {"ptr": "Q", "f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "i1": "?"}


def available() -> bool:
    """Is there an AMD GPU, with what it takes to use it? `why_not()` says what is missing."""
    return not why_not()


def version() -> int:
    """HIP's own number for its version: 70226015 is 7.2.26015."""
    return int(call("hipRuntimeGetVersion"))


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
        destroy(self, "hipModuleUnload")


class HipFunction:
    """A kernel to launch. `registers` (VGPRs and AGPRs of a lane), `lds` and `scratch` (bytes) are what HIP read."""

    def __init__(self, module: Module, manifest: Mapping[str, Any]) -> None:
        self.module, self.device, self.manifest = module, module.device, dict(manifest)
        self.name: str = manifest["symbol"]
        self.threads: int = manifest["workgroup"]
        self.shape: tuple[int, ...] = tuple(manifest["shape"])  # of a workgroup
        with self.device.current():
            self.handle = call("hipModuleGetFunction", module.handle, self.name.encode(), kernel=self.name)
            self.registers, self.lds, self.scratch, self.most_threads = (
                self._attribute(what)
                for what in ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES", "MAX_THREADS_PER_BLOCK")
            )
        if self.most_threads and self.threads > self.most_threads:
            raise ValueError(f"{self.name}: the manifest says workgroups of {self.threads}, the code at most "
                             f"{self.most_threads}; they do not belong together")

    def __repr__(self) -> str:
        return f"<HipFunction {self.name} on {self.device.name}: {self.registers} registers, {self.lds} bytes of LDS>"

    def _attribute(self, name: str) -> int:
        which = getattr(api().hipFunction_attribute, f"HIP_FUNC_ATTRIBUTE_{name}")
        return int(call("hipFuncGetAttribute", which, self.handle, kernel=self.name))

    def pack(self, args: Sequence[Any]) -> bytes:
        """The block of arguments as the kernel reads it: numbers, addresses as int or Memory, each where the manifest
        says."""
        parameters = self.manifest["arguments"]
        if len(args) != len(parameters):
            names = ", ".join(p["name"] for p in parameters)
            raise TypeError(f"{self.name} takes {len(parameters)} arguments ({names}), not {len(args)}")
        block = bytearray(self.manifest["argument_bytes"])
        for parameter, x in zip(parameters, args):
            x = x.pointer if isinstance(x, Memory) else getattr(x, "value", x)
            wanted = f"{self.name}: {parameter['name']} is {parameter['type']}"
            if hasattr(type(x), "__dlpack__"):  # one with a single element would pass for a number
                raise TypeError(f"{wanted}, and not an array; one in the GPU's memory goes to rocm_arrays.launch")
            try:
                struct.pack_into("<" + CODES[parameter["type"]], block, parameter["offset"], x)
            except struct.error as error:
                raise TypeError(f"{wanted}, and {x!r}: {error}") from None
        return bytes(block)


class Arguments:
    """A launch's block of arguments as hipModuleLaunchKernel takes it, in `extra`. One call's at a time."""

    __slots__ = ("block", "extra", "size")

    def __init__(self, block: bytes) -> None:
        self.block = ctypes.create_string_buffer(block, len(block))
        self.size = ctypes.c_size_t(len(block))
        addresses = POINTER, ctypes.addressof(self.block), SIZE, ctypes.addressof(self.size), END
        self.extra = (ctypes.c_void_p * len(addresses))(*addresses)


class Prepared:
    """A launch with its grid and its arguments laid out: calling it does nothing but launch.

    Several threads may call it; `launch` takes other arguments than these.
    """

    def __init__(self, function: HipFunction, grid: Sequence[int], args: Sequence[Any], dynamic_lds: int = 0) -> None:
        x, y, z = (*map(int, grid), 1, 1)[:3]
        self.function, self.grid, self.dynamic_lds, self.args = function, (x, y, z), dynamic_lds, tuple(args)
        self.block = function.pack(args)
        self._arguments = Arguments(self.block)

    def __call__(self, stream: Any = None) -> None:
        """Launch on a stream, the default one if none is named. HipError if HIP refuses; what goes wrong in the kernel
        is found by whoever waits for the stream."""
        with self.function.device.current():
            self.launch(handle_of(stream), self._arguments)

    def launch(self, stream: int, arguments: Arguments) -> None:
        """The same with other arguments, on the stream with this handle. The device must be current."""
        f = self.function
        what = f"grid {self.grid}, workgroups of {f.threads} threads, {self.dynamic_lds} bytes of dynamic LDS"
        call("hipModuleLaunchKernel", f.handle, *self.grid, *f.shape, self.dynamic_lds, stream, None, arguments.extra,
             kernel=f.name, more=what)


_modules: dict[tuple[int, bytes], Module] = {}
_lock = forks.Lock()


def load(code: bytes, on: Device) -> Module:
    """The module of this code object on a device, loaded once and kept."""
    key = on.index, code
    found = _modules.get(key)
    if found is None:
        with _lock:
            found = _modules.get(key)
            if found is None:
                if len(_modules) >= MOST_MODULES:
                    _modules.clear()
                found = _modules[key] = Module(code, on)
    return found


def seconds(launch: Launch, stream: Stream, turns: int = 7, least: float = 0.01) -> float:
    """Of one launch: the median over turns of as many launches as fill `least` seconds, after some that warm up."""
    return median(in_turn({"": launch}, stream, turns, least)[""])


def in_turn(launches: Mapping[str, Launch], stream: Stream, turns: int, least: float = 0.01) -> dict[str, list[float]]:
    """Seconds of one launch of each, in every turn. A turn is as many launches as fill `least` seconds, which follow
    one another on the stream without a wait, between two events; all take their turns one after the other."""
    start, end = Event(stream.device), Event(stream.device)

    def turn(launch: Launch, count: int) -> float:
        start.record(stream)
        for _ in range(count):
            launch(stream)
        end.record(stream).synchronize()
        return end.since(start) / count

    counts = {}
    for name, launch in launches.items():
        turn(launch, 1)
        counts[name] = max(1, round(least / max(turn(launch, 3), 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in launches}
    for _ in range(turns):
        for name, launch in launches.items():
            found[name].append(turn(launch, counts[name]))
    return found


def _forget() -> None:
    _modules.clear()


os.register_at_fork(after_in_child=_forget)
