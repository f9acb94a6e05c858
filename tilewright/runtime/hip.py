"""Kernels on an AMD GPU: code objects, launches with packed arguments, streams, events and memory, by HIP.

    here = hip.device(0)
    kernel = hip.Module(code_object, here).function(manifest)       # what `tilewright emit -o k.hsaco` writes
    launch = hip.Prepared(kernel, (m // 128, n // 128), (m, n, k, a, b, c))
    seconds = hip.seconds(launch, stream)

HIP has a current device for each thread; a call makes its own current while it lasts and leaves the thread as it was.
Where the arguments lie in the launch's block, and how large workgroups are, is in the manifest (`compiler.amd`).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime import hip_library
from tilewright.runtime.hip_library import HipError, Unavailable, api, call, properties, text, why_not
from tilewright.targets import amd
from tilewright.targets.amd import AmdTarget

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
    "in_turn",
    "seconds",
    "upload",
    "version",
    "why_not",
]

Launch = Callable[[Any], None]  # on the stream that it is given
NON_BLOCKING = 1  # hipStreamNonBlocking: the stream does not wait for the default stream
POINTER, SIZE, END = 1, 2, 3  # HIP_LAUNCH_PARAM_*: what follows in a launch's `extra`
CODES = {"ptr": "Q", "f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "i1": "?"}


def available() -> bool:
    """Is there an AMD GPU, with what it takes to use it? `why_not()` says what is missing."""
    return not why_not()


def count() -> int:
    """How many AMD GPUs HIP shows this process. Unavailable or HipError if there is no HIP."""
    return int(call("hipGetDeviceCount"))


def version() -> int:
    """HIP's own number for its version: 70226015 is 7.2.26015."""
    return int(call("hipRuntimeGetVersion"))


class Device:
    """One GPU. `device(i)` gives the same object every time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = text(call("hipDeviceGetName", 256, index))
        self.memory = int(call("hipDeviceTotalMem", index))  # bytes

    def __repr__(self) -> str:
        return f"<Device {self.index}: {self.name}, {self.arch}>"

    def attribute(self, name: str) -> int:
        """One of HIP's numbers, by the end of its name: "MultiprocessorCount"."""
        return int(call("hipDeviceGetAttribute", getattr(api().hipDeviceAttribute_t, f"hipDeviceAttribute{name}"),
                        self.index))  # fmt: skip

    @cached_property
    def arch(self) -> str:
        """LLVM's name for it: "gfx942"."""
        return text(properties(self.index).gcnArchName).partition(":")[0]

    @cached_property
    def target(self) -> AmdTarget:
        """The record of this very chip; of its architecture, with the compute units and the clock of what is here, if
        the chip has no record. Unavailable for an architecture that tilewright has no kernels for."""
        known = amd.find(self.arch)
        if known is None:
            raise Unavailable(f"{self.name} is {self.arch}; tilewright has kernels for {', '.join(amd.TARGETS)}")
        chip = next((c for c in amd.CHIPS.values() if c.name == self.arch and c.model and c.model in self.name), known)
        cus, clock = self.attribute("MultiprocessorCount"), 1e3 * self.attribute("ClockRate")
        here: dict[str, Any] = {"cus": cus, "clock": clock}
        kept = tuple((name, why) for name, why in chip.sources if name not in here)
        sources = (*kept, *((name, "HIP: hipDeviceGetAttribute") for name in here))
        return replace(chip, **here, model=self.name, missing=(), sources=sources)

    @contextmanager
    def current(self) -> Iterator[None]:
        """This device is the calling thread's inside the block."""
        before = int(call("hipGetDevice"))
        if before == self.index:
            yield
            return
        call("hipSetDevice", self.index)
        try:
            yield
        finally:
            call("hipSetDevice", before)


_devices: dict[int, Device] = {}


def device(index: int = 0) -> Device:
    """The GPU with this number, as HIP counts. Unavailable if there is no HIP; ValueError if there is no such GPU."""
    if index not in _devices:
        there = count()
        if not 0 <= index < there:
            raise ValueError(f"there is no AMD GPU {index}: HIP shows {there}")
        _devices[index] = Device(index)
    return _devices[index]


# ---- streams, events, memory


class Stream:
    """A stream of a device that does not wait for the default stream."""

    def __init__(self, on: Device | None = None) -> None:
        self.device = on or device()
        with self.device.current():
            self.handle = int(call("hipStreamCreateWithFlags", NON_BLOCKING))

    def synchronize(self) -> None:
        """Wait until all that was given to the stream is done. HipError for what went wrong in it."""
        with self.device.current():
            call("hipStreamSynchronize", self.handle)

    def __del__(self) -> None:
        _destroy(self, "hipStreamDestroy")


def handle_of(stream: Any) -> int:
    """The handle of a stream: None and 0 are the default stream, an int is a handle; ours and torch's know theirs."""
    if stream is None:
        return 0
    for name in ("handle", "cuda_stream"):  # torch calls its streams CUDA's on ROCm too
        found = getattr(stream, name, None)
        if found is not None:
            return int(found)
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise TypeError(f"stream must be a HIP stream or its handle, not {type(stream).__name__}") from None


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
        _destroy(self, "hipEventDestroy")


class Memory:
    """`size` bytes of a device's memory at `pointer`, for any streams. Freeing it waits for the device."""

    def __init__(self, on: Device, size: int) -> None:
        self.device, self.size, self.pointer = on, size, 0
        if size:
            with on.current():
                self.pointer = int(call("hipMalloc", size))

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            _destroy(self, "hipFree", "pointer")


def upload(on: Device, array: NDArray[Any]) -> Memory:
    """The elements of an array, in C order, in memory of their own."""
    whole = np.ascontiguousarray(array)
    memory = Memory(on, whole.nbytes)
    if whole.nbytes:
        with on.current():
            call("hipMemcpy", memory.pointer, whole.ctypes.data, whole.nbytes,
                 api().hipMemcpyKind.hipMemcpyHostToDevice)  # fmt: skip
    return memory


def download(memory: Memory, array: NDArray[Any]) -> None:
    """Fill a C-contiguous array with what the memory holds. Wait for the stream that fills it first."""
    if not array.flags.c_contiguous:
        raise ValueError(f"the array to fill must be C-contiguous, but its strides are {array.strides} bytes")
    if array.nbytes > memory.size:
        raise ValueError(f"the array to fill has {array.nbytes} bytes, and the memory {memory.size}")
    if array.nbytes:
        with memory.device.current():
            call("hipMemcpy", array.ctypes.data, memory.pointer, array.nbytes,
                 api().hipMemcpyKind.hipMemcpyDeviceToHost)  # fmt: skip


def _destroy(owner: Any, function: str, what: str = "handle") -> None:
    handle = owner.__dict__.pop(what, None)
    if handle is not None and hip_library.loaded():  # in a forked child it is not, and the parent's things stay
        with suppress(Exception):  # the interpreter, or HIP, may be going down
            call(function, handle)


# ---- kernels


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
        _destroy(self, "hipModuleUnload")


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
                             f"{self.most_threads}; they do not belong together")  # fmt: skip

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


class Prepared:
    """A launch with its grid and its arguments laid out: calling it does nothing but launch."""

    def __init__(self, function: HipFunction, grid: Sequence[int], args: Sequence[Any], dynamic_lds: int = 0) -> None:
        x, y, z = (*map(int, grid), 1, 1)[:3]
        self.function, self.grid, self.dynamic_lds, self.args = function, (x, y, z), dynamic_lds, tuple(args)
        block = function.pack(args)
        self._block = ctypes.create_string_buffer(block, len(block))
        self._size = ctypes.c_size_t(len(block))
        addresses = POINTER, ctypes.addressof(self._block), SIZE, ctypes.addressof(self._size), END
        self._extra = (ctypes.c_void_p * len(addresses))(*addresses)

    def __call__(self, stream: Any = None) -> None:
        """Launch on a stream, the default one if none is named. HipError if HIP refuses; what goes wrong in the kernel
        is found by whoever waits for the stream."""
        f = self.function
        what = f"grid {self.grid}, workgroups of {f.threads} threads, {self.dynamic_lds} bytes of dynamic LDS"
        with f.device.current():
            call("hipModuleLaunchKernel", f.handle, *self.grid, *f.shape, self.dynamic_lds, handle_of(stream),
                 None, self._extra, kernel=f.name, more=what)  # fmt: skip


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
    _devices.clear()


os.register_at_fork(after_in_child=_forget)
