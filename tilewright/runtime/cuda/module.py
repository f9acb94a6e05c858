"""Kernels on a CUDA device: modules of PTX or machine code, what the driver made of them, launches.

    here = cuda.device(0)
    kernel = cuda.Module(ptx, here).function("sgemm")               # kernel.usage: registers, shared memory, spills
    cuda.launch(kernel, (32, 32), 256, 0, stream, (m, n, k, 1.0, a, lda, b, ldb, 0.0, c, ldc))

Code that tilewright compiled comes with a manifest of each kernel; a launch then knows its parameters by name:

    kernel = cuda.load(code.image, here).function(code.manifest)
    cuda.Prepared(kernel, (32, 32), {"m": m, "n": n, "k": k, "alpha": 1.0, "a": a, "lda": lda, ...})(stream)

The names of the driver, devices, streams and memory that a user of kernels needs are here too.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from tilewright.compiler.ptxas import Usage, usage
from tilewright.runtime.cuda.device import Device, count, device
from tilewright.runtime.cuda.driver import CudaError, Unavailable, api, available, call, entry, error, library, why_not
from tilewright.runtime.cuda.memory import Block, Memory, download, fill, upload, workspaces
from tilewright.runtime.cuda.stream import Answers, Event, Graph, Stream, capture_allowed, handle_of, synchronize
from tilewright.runtime.gpu import launch as launches
from tilewright.runtime.gpu.launch import Args, Kept, Parameter, in_turn, seconds
from tilewright.targets import GpuTarget

__all__ = [
    "Block", "CudaError", "CudaFunction", "Device", "Event", "Graph", "Memory", "Module", "Prepared", "Stream",
    "Unavailable", "available", "count", "device", "download", "fill", "handle_of", "in_turn", "launch", "load",
    "seconds", "synchronize", "target", "upload", "why_not", "workspaces",
]

LOG_BYTES = 1 << 16  # room for what the driver's assembler says
MOST_MODULES = 512  # kept loaded at a time
MOST_STREAMS = 256  # whose launch configurations are kept, of one kernel


class Config(ctypes.Structure):
    """CUlaunchConfig: how, and on which stream, cuLaunchKernelEx launches."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


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
        # They hold the module.
        self._functions: WeakValueDictionary[tuple[str, str], CudaFunction] = WeakValueDictionary()

    def function(self, which: str | Mapping[str, Any]) -> CudaFunction:
        """The kernel of this name, or that this manifest describes."""
        key = (which, "") if isinstance(which, str) else ("", which["symbol"])
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = CudaFunction(self, which)
        return found

    def __del__(self) -> None:
        library.destroy(self, "ModuleUnload")


class CudaFunction(launches.Function):
    """A kernel to launch. `usage` is what the driver's assembler gave it."""

    def __init__(self, module: Module, which: str | Mapping[str, Any]) -> None:
        """`which`: its manifest, or its name alone; then its parameters have sizes and no names."""
        self.module, self.device = module, module.device
        self.name = which if isinstance(which, str) else which["symbol"]
        with self.device.current(), capture_allowed():
            self.handle = call("cuModuleGetFunction", module.handle, self.name.encode(), kernel=self.name)
            registers, shared, local = (
                self._attribute(what) for what in ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES")
            )
            self.parameters, self.threads, self.dynamic = self._parameters(), (), 0
        if not isinstance(which, str):
            places = [(p.offset, p.size) for p in self.parameters]
            super().__init__(module, which)
            if places != [(p.offset, p.size) for p in self.parameters]:
                raise ValueError(f"{self.name}: the manifest has parameters at {self.parameters}, and the code has "
                                 f"(offset, size) = {places}; they do not belong together")
        said = module.assembled.get(self.name)  # the driver says nothing about code that it has in its own cache
        spills = (said.spill_stores, said.spill_loads) if said else (local, local)
        self.usage = Usage(registers, shared, local, *spills, said.barriers if said else 0)
        self._allowed = 0

    def __repr__(self) -> str:
        return f"<CudaFunction {self.name} on {self.device.name}: {self.usage}>"

    def _attribute(self, name: str) -> int:
        which = getattr(api().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(call("cuFuncGetAttribute", which, self.handle, kernel=self.name))

    def _parameters(self) -> tuple[Parameter, ...]:
        driver, found = api(), []  # type: Any, list[Parameter]
        while True:
            status, offset, size = driver.cuFuncGetParamInfo(self.handle, len(found))
            if status == driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # there is no such parameter
                return tuple(found)
            if status:
                raise error(status, "cuFuncGetParamInfo", self.name)
            found.append(Parameter("", "", int(offset), int(size)))

    def allow_shared(self, dynamic: int) -> None:
        """Let a launch add so many bytes of shared memory: above 48 KiB a kernel has to ask for it."""
        if dynamic > self._allowed:
            which = api().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with self.device.current(), capture_allowed():
                call("cuFuncSetAttribute", self.handle, which, dynamic, kernel=self.name)
            self._allowed = dynamic

    def occupancy(self, threads: int, dynamic: int = 0) -> int:
        """CTAs of so many threads and dynamic bytes that share a multiprocessor, as the driver counts them."""
        self.allow_shared(dynamic)
        function = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        with self.device.current():
            return int(call(function, self.handle, threads, dynamic, kernel=self.name))


class Arguments(launches.Arguments):
    """Arguments as cuLaunchKernelEx takes them: a table, at `address`, of where each is in the block; with room for
    what the driver answers on the way."""

    __slots__ = ("address", "answers", "table")

    def __init__(self, block: bytes, parameters: Sequence[Parameter]) -> None:
        super().__init__(block)
        first = ctypes.addressof(self.block)
        self.table = (ctypes.c_void_p * max(len(parameters), 1))(*(first + p.offset for p in parameters))
        self.address = ctypes.addressof(self.table)
        self.answers = Answers()


class Prepared(launches.Prepared):
    """A launch with its grid and its arguments laid out, so that calling it does nothing but launch.

    Several threads may call it; `launch` takes other arguments than these.
    """

    def __init__(self, function: CudaFunction, grid: Sequence[int], args: Args,
                 threads: int | Sequence[int] | None = None, shared: int | None = None) -> None:
        super().__init__(function, grid, args, threads, shared)
        function.allow_shared(self.shared)
        self.context = int(function.device.context)
        # Four arguments in place of cuLaunchKernel's eleven, each of which ctypes takes a tenth of a microsecond for.
        self._launch = entry("cuLaunchKernelEx", *[ctypes.c_void_p] * 4)
        self._handle = int(function.handle)
        self._configs: dict[int, tuple[int, Config]] = {}  # of each stream, with its address

    def arguments(self) -> Arguments:
        return Arguments(self.block, self.function.parameters)

    def __call__(self, stream: Any = 0) -> None:
        """Launch on a stream, the default one if none is named; its handle is the fastest way to name one. CudaError if
        CUDA refuses; what goes wrong in the kernel is found by whoever waits for the stream."""
        config = self._configs.get(stream) or self._configure(stream)
        if self._launch(config[0], self._handle, self._arguments.address, None):
            with self.function.device.current():  # another device's context may have been: the launch was refused then
                self.launch(stream, self._arguments)

    def launch(self, stream: int, arguments: Arguments) -> None:
        config = self._configs.get(stream) or self._configure(stream)
        status = self._launch(config[0], self._handle, arguments.address, None)
        if status:
            raise error(status, "cuLaunchKernelEx", self.function.name, self.described())

    def inside(self, launch: Callable[[int, Any], None], stream: int, arguments: Arguments) -> None:
        answers = arguments.answers
        if not answers.get_context(answers.at) and answers.room.value == self.context:
            launch(stream, arguments)
        else:
            with self.function.device.current():
                launch(stream, arguments)

    def _configure(self, stream: Any) -> tuple[int, Config]:
        config = Config(self.grid, self.threads, self.shared, handle_of(stream))
        found = ctypes.addressof(config), config
        if type(stream) is int:  # an object would be kept
            if len(self._configs) >= MOST_STREAMS:
                self._configs = {}
            self._configs[stream] = found
        return found


def launch(function: CudaFunction, grid: Sequence[int], threads: int | Sequence[int], shared_bytes: int, stream: Any,
           args: Args) -> None:
    """Run a kernel on a stream (None: the default one) with grid = (x[, y[, z]]) CTAs of so many threads.

    `shared_bytes` is dynamic shared memory. Arguments are numbers, addresses as int, structures as bytes; a number for
    a parameter of type f32 or f64 must be a float.
    """
    Prepared(function, grid, args, threads, shared_bytes)(handle_of(stream))


_modules: Kept[Module] = Kept(MOST_MODULES)


def load(code: str | bytes, on: Device | None = None) -> Module:
    """The module of this code on a device, loaded once and kept."""
    on = on or device()
    return _modules.get((int(on.context), code), lambda: Module(code, on))


def _text(log: bytearray) -> str:
    return log.partition(b"\0")[0].decode(errors="replace").strip()


def _first_kernel(image: bytes) -> str:
    """The name of the first kernel in PTX; "" for machine code."""
    found = re.search(rb"\.entry\s+([\w$]+)", image)
    return found[1].decode() if found else ""


os.register_at_fork(after_in_child=_modules.forget)
