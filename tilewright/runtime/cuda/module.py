"""Kernels on a CUDA device: modules of PTX or machine code, what the driver made of them, launches.

    here = cuda.device(0)
    kernel = cuda.Module(ptx, here).function("sgemm")               # kernel.usage: registers, shared memory, spills
    cuda.launch(kernel, (32, 32), 256, 0, stream, (m, n, k, 1.0, a, lda, b, ldb, 0.0, c, ldc))

Devices and contexts are in `devices`, streams, events and graphs in `streams`, memory in `device_memory`, textures in
`textures`; the names that a user of kernels needs are here too.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tilewright import forks
from tilewright.compiler.ptxas import Usage, usage
from tilewright.runtime.cuda.device import Device, count, device
from tilewright.runtime.cuda.driver import CudaError, Unavailable, api, call, entry, error, why_not
from tilewright.runtime.cuda.stream import Answers, Event, Graph, Stream, capture_allowed, handle_of
from tilewright.targets import GpuTarget

__all__ = [
    "CudaError",
    "CudaFunction",
    "Device",
    "Event",
    "Graph",
    "Module",
    "Prepared",
    "Stream",
    "Unavailable",
    "available",
    "count",
    "device",
    "launch",
    "load",
    "target",
    "why_not",
]

LOG_BYTES = 1 << 16  # room for what the driver's assembler says
MOST_MODULES = 512  # kept loaded at a time
MOST_STREAMS = 256  # whose launch configurations are kept, of one kernel


class Config(ctypes.Structure):
    """CUlaunchConfig: how, and on which stream, cuLaunchKernelEx launches."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


def available() -> bool:
    """Is there a CUDA device, with what it takes to use it? `why_not()` says what is missing."""
    return not why_not()


def target(index: int = 0) -> GpuTarget:
    """The record of a device: see Device.target."""
    return device(index).target


class Module:
    """Code in a device's memory: PTX, which the driver assembles, or a cubin. It stays as long as the object lives."""

    def __init__(self, code: str | bytes, on: Device | None = None) -> None:
        self.device = on or device()
        image = code.encode() if isinstance(code, str) else bytes(code)
        said, wrong = bytearray(LOG_BYTES), bytearray(LOG_BYTES)
        jit = api().CUjit_option
        options = {
            jit.CU_JIT_INFO_LOG_BUFFER: said,
            jit.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: LOG_BYTES,
            jit.CU_JIT_ERROR_LOG_BUFFER: wrong,
            jit.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: LOG_BYTES,
            jit.CU_JIT_LOG_VERBOSE: 1,
        }
        try:
            with self.device.current(), capture_allowed():
                self.handle = call(
                    "cuModuleLoadDataEx", image + b"\0", len(options), list(options), list(options.values())
                )
        except CudaError as failed:
            raise error(failed.code, failed.function, _first_kernel(image), _text(wrong)) from None
        self.assembled = usage(_text(said))
        self._functions: WeakValueDictionary[str, CudaFunction] = WeakValueDictionary()  # which hold the module

    def function(self, name: str) -> CudaFunction:
        """The kernel of this name."""
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = CudaFunction(self, name)
        return found

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            with suppress(Exception):  # the interpreter, or CUDA, may be going down
                with self.device.current():
                    call("cuModuleUnload", self.handle)


class CudaFunction:
    """A kernel to launch. `usage` is what the driver's assembler gave it, `sizes` are its parameters' in bytes."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.device, self.name = module, module.device, name
        with self.device.current(), capture_allowed():
            self.handle = call("cuModuleGetFunction", module.handle, name.encode(), kernel=name)
            registers, shared, local = (
                self._attribute(what) for what in ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES")
            )
            self.sizes = self._parameters()
        said = module.assembled.get(name)  # the driver says nothing about code that it has in its own cache
        spills = (said.spill_stores, said.spill_loads) if said else (local, local)
        self.usage = Usage(registers, shared, local, *spills, said.barriers if said else 0)
        self._dynamic = 0

    def __repr__(self) -> str:
        return f"<CudaFunction {self.name} on {self.device.name}: {self.usage}>"

    def _attribute(self, name: str) -> int:
        which = getattr(api().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(call("cuFuncGetAttribute", which, self.handle, kernel=self.name))

    def _parameters(self) -> tuple[int, ...]:
        driver, sizes = api(), []  # type: Any, list[int]
        while True:
            status, _, size = driver.cuFuncGetParamInfo(self.handle, len(sizes))
            if status == driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # there is no such parameter
                return tuple(sizes)
            if status:
                raise error(status, "cuFuncGetParamInfo", self.name)
            sizes.append(int(size))

    def allow_shared(self, dynamic: int) -> None:
        """Let a launch add so many bytes of shared memory: above 48 KiB a kernel has to ask for it."""
        if dynamic > self._dynamic:
            which = api().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with self.device.current(), capture_allowed():
                call("cuFuncSetAttribute", self.handle, which, dynamic, kernel=self.name)
            self._dynamic = dynamic

    def occupancy(self, threads: int, dynamic: int = 0) -> int:
        """CTAs of so many threads and dynamic bytes that share a multiprocessor, as the driver counts them."""
        self.allow_shared(dynamic)
        function = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        with self.device.current():
            return int(call(function, self.handle, threads, dynamic, kernel=self.name))


class Arguments:
    """A launch's arguments as cuLaunchKernel takes them: `slots` of 8 bytes, and a table of where they are; with room
    for what the driver answers on the way. One call's at a time."""

    __slots__ = ("address", "answers", "slots", "table")

    def __init__(self, values: Sequence[int]) -> None:
        count = max(len(values), 1)
        self.slots = (ctypes.c_uint64 * count)(*values)
        first = ctypes.addressof(self.slots)
        self.table = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        self.address = ctypes.addressof(self.table)
        self.answers = Answers()


def bits(x: Any, size: int) -> int:
    """What a slot holds for a parameter of `size` bytes: a float in that precision, an integer in two's complement."""
    x = getattr(x, "value", x)  # a ctypes number, or a plain or NumPy one
    if isinstance(x, (float, np.floating)):
        # by way of ctypes, to which a number beyond f32's range is inf
        return int.from_bytes(bytes((ctypes.c_float if size == 4 else ctypes.c_double)(float(x))), "little")
    return int(x) & 0xFFFF_FFFF_FFFF_FFFF


class Prepared:
    """A launch with its grid and its arguments laid out, so that calling it does nothing but launch.

    Several threads may call it; `launch` takes other arguments than these.
    """

    def __init__(self, function: CudaFunction, grid: Sequence[int], threads: int | Sequence[int], shared: int,
                 args: Sequence[Any]) -> None:
        if len(args) != len(function.sizes):
            raise TypeError(f"{function.name} takes {len(function.sizes)} arguments, not {len(args)}")
        function.allow_shared(shared)
        self.function, self.grid, self.shared = function, _three(grid), shared
        self.threads = _three((threads,) if isinstance(threads, int) else threads)
        self.values = [bits(x, size) for x, size in zip(args, function.sizes)]
        self.context = int(function.device.context)
        self._arguments = Arguments(self.values)
        # Four arguments in place of cuLaunchKernel's eleven, each of which ctypes takes a tenth of a microsecond for.
        self._launch = entry("cuLaunchKernelEx", *[ctypes.c_void_p] * 4)
        self._handle = int(function.handle)
        self._configs: dict[int, tuple[int, Config]] = {}  # of each stream, with its address

    def __call__(self, stream: int = 0) -> None:
        """Launch on the stream with this handle. CudaError if CUDA refuses; what goes wrong in the kernel is found by
        whoever waits for the stream."""
        config = self._configs.get(stream) or self._configure(stream)
        if self._launch(config[0], self._handle, self._arguments.address, None):
            with self.function.device.current():  # another device's context may have been: the launch was refused then
                self.launch(stream, self._arguments.address)

    def holding(self, slots: dict[int, int]) -> Prepared:
        """The same launch with other arguments, as `bits`, in these places."""
        other = copy(self)
        other.values = [slots.get(place, x) for place, x in enumerate(self.values)]
        other._arguments = Arguments(other.values)
        return other

    def launch(self, stream: int, arguments: int) -> None:
        """The same with the arguments whose table is at this address. The device's context must be current."""
        config = self._configs.get(stream) or self._configure(stream)
        status = self._launch(config[0], self._handle, arguments, None)
        if status:
            what = f"grid {self.grid}, CTAs of {self.threads} threads, {self.shared} bytes of dynamic shared memory"
            raise error(status, "cuLaunchKernelEx", self.function.name, what)

    def _configure(self, stream: int) -> tuple[int, Config]:
        if len(self._configs) >= MOST_STREAMS:
            self._configs = {}
        config = Config(self.grid, self.threads, self.shared, stream)
        self._configs[stream] = found = ctypes.addressof(config), config
        return found


def launch(function: CudaFunction, grid: Sequence[int], threads: int | Sequence[int], shared_bytes: int, stream: Any,
           args: Sequence[Any]) -> None:
    """Run a kernel on a stream (None: the default one) with grid = (x[, y[, z]]) CTAs of so many threads.

    `shared_bytes` is dynamic shared memory. Arguments are numbers, addresses as int; a number for a parameter of type
    f32 or f64 must be a float.
    """
    Prepared(function, grid, threads, shared_bytes, args)(handle_of(stream))


_modules: dict[tuple[int, str | bytes], Module] = {}
_lock = forks.Lock()


def load(code: str | bytes, on: Device | None = None) -> Module:
    """The module of this code on a device, loaded once and kept."""
    on = on or device()
    key = (int(on.context), code)
    found = _modules.get(key)
    if found is None:
        with _lock:
            found = _modules.get(key)
            if found is None:
                if len(_modules) >= MOST_MODULES:
                    _modules.clear()
                found = _modules[key] = Module(code, on)
    return found


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*map(int, extents), 1, 1)[:3]
    return x, y, z


def _text(log: bytearray) -> str:
    return log.partition(b"\0")[0].decode(errors="replace").strip()


def _first_kernel(image: bytes) -> str:
    """The name of the first kernel in PTX; "" for machine code."""
    found = re.search(rb"\.entry\s+([\w$]+)", image)
    return found[1].decode() if found else ""


def _forget() -> None:
    _modules.clear()


os.register_at_fork(after_in_child=_forget)
