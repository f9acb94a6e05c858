"""NVIDIA's driver, by the package cuda-bindings, and its devices; `tilewright.detect`.

    call("cuCtxGetDevice")                  what cuCtxGetDevice returns beside its status, or a CudaError
    entry("cuCtxGetCurrent", c_void_p)      the function itself, for what is called at every product

Nothing else in tilewright imports cuda-bindings. Everything runs in primary contexts, which are those of torch, CuPy,
JAX and the CUDA runtime. A call makes that context current while it lasts if it is not, and leaves the calling thread
as it was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, overload

from tilewright import targets
from tilewright.forks import cached_property
from tilewright.runtime.gpu import driver
from tilewright.runtime.gpu.driver import LibraryError, Unavailable
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, nvidia
from tilewright.text import install

VERSION = 12000  # of the functions that `entry` gives; nothing that is used has changed since
FILL = "cuMemsetD32Async"
LEGACY_STREAM = 1  # CU_GET_PROC_ADDRESS_LEGACY_STREAM: handle 0 is the default stream of all threads


class CudaError(LibraryError):
    """A driver function failed: see LibraryError."""


class _Cuda(driver.Library):
    prefix, with_flags, counts = "cu", "", "cuDeviceGetCount"
    no_device = "the NVIDIA driver sees no GPU"

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, Any] = {}

    def forget(self) -> None:
        super().forget()
        self.entries = {}

    def load(self) -> Any:
        """The module cuda.bindings.driver, after cuInit."""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise Unavailable(
                f"CUDA arrays need the package cuda-bindings ({install('cuda')}): {error}"
            ) from None
        try:
            status, *_ = driver.cuInit(0)
        except RuntimeError as error:  # cuda-bindings looks for the driver's library when it is first called
            raise Unavailable(f"there is no NVIDIA driver on this machine: {error}") from None
        if status:
            said = self.error_of(driver, status, "cuInit")
            hint = "; a process that was forked from one that uses CUDA cannot use it" if said.code == 3 else ""
            raise Unavailable(f"CUDA cannot be used: {said}{hint}")
        return driver

    def error_of(self, api: Any, status: Any, function: str, kernel: str = "", more: str = "") -> CudaError:
        code = int(status)
        try:
            value = api.CUresult(code)
        except ValueError:  # newer than cuda-bindings
            unknown = "unknown to this version of cuda-bindings"
            return CudaError(f"CUDA error {code}", code, unknown, function, kernel, more)
        name, text = (said for _, said in (api.cuGetErrorName(value), api.cuGetErrorString(value)))
        words = (said.decode() if said else value.name for said in (name, text))
        return CudaError(next(words), code, next(words), function, kernel, more)

    def entry(self, name: str, *types: Any) -> Any:
        """A driver function by its address, to be called with arguments of these ctypes types: it gives its status.

        That takes a third of a microsecond, where cuda-bindings makes objects of everything for several. The
        interpreter's lock is released meanwhile: a launch waits when the device's queue is full.
        """
        function = self.entries.get(name)
        if function is None:
            address, _ = self.call("cuGetProcAddress", name.encode(), VERSION, LEGACY_STREAM)
            if not address:
                raise Unavailable(f"the NVIDIA driver has no {name}: CUDA 12.0 or newer is needed")
            function = self.entries[name] = ctypes.CFUNCTYPE(ctypes.c_int, *types)(int(address))
        return function

    def fill(self, at: int, word: int, size: int, stream: int) -> None:
        """By the shortest way."""
        if size:
            memset = self.entries.get(FILL) or self.entry(FILL, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t,
                                                          ctypes.c_void_p)
            if status := memset(at, word, size // 4, stream):
                raise self.error(status, FILL)

    def attribute(self, name: str) -> Any:
        return getattr(self.api().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")

    def copy(self, to: int, source: int, size: int, back: bool) -> None:
        self.call("cuMemcpyDtoHAsync" if back else "cuMemcpyHtoDAsync", to, source, size, 0)
        # the driver has taken what it needs of pageable memory when it returns; pinned memory it may read later
        self.call("cuStreamSynchronize", 0)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        relaxed = self.api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", before)


library = _Cuda()
api, call, error, entry = library.api, library.call, library.error, library.entry
why_not, available, count = library.why_not, library.available, library.count


class Device(driver.Device):
    """One GPU and its primary context. `device(i)` gives the same object every time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = call("cuDeviceGet", index)
        self.name = call("cuDeviceGetName", 256, self.handle).partition(b"\0")[0].decode()

    def attribute(self, name: str) -> int:
        """One of CUDA's numbers, by the end of its name: "MULTIPROCESSOR_COUNT"."""
        which = getattr(api().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", which, self.handle))

    @cached_property
    def memory(self) -> int:
        """Bytes of it."""
        return int(call("cuDeviceTotalMem", self.handle))

    @cached_property
    def capability(self) -> tuple[int, int]:
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    @cached_property
    def target(self) -> GpuTarget:
        """The record of this very chip: what its architecture can do, with the sizes and the speed of what is here.

        An architecture that has no record is taken for the newest one whose code it can run.
        """
        major, minor = self.capability
        known = nvidia.NEWER.get(self.capability) or max(
            filter(self.runs, nvidia.TARGETS.values()), key=lambda t: t.capability, default=None)
        if known is None:
            raise Unavailable(f"{self.name} has compute capability {major}.{minor}; tilewright needs 7.5")
        here: dict[str, Any] = {
            "sms": self.attribute("MULTIPROCESSOR_COUNT"),
            "clock": 1e3 * self.attribute("CLOCK_RATE"),
            "l2": self.attribute("L2_CACHE_SIZE"),
            # twice per clock of the memory, over a bus of so many bits
            "bandwidth": 2e3 * self.attribute("MEMORY_CLOCK_RATE") * self.attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8,
            "smem_sm": self.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            "smem_cta": self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            "smem_reserved": self.attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
            "threads_sm": self.attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            "ctas_sm": self.attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        }
        known = known if known.capability == self.capability else replace(known, chip=f"sm_{major}{minor}")
        return self.recorded(known, here, "driver: cuDeviceGetAttribute", version())

    def runs(self, target: GpuTarget) -> bool:
        """Can this device run code for that target? Of a name that ends in a letter, on one architecture only."""
        return target.capability == self.capability or (
            target.capability < self.capability and not target.name[-1].isalpha())

    @cached_property
    def context(self) -> Any:
        """The primary context, kept until the process ends."""
        return call("cuDevicePrimaryCtxRetain", self.handle)

    @contextmanager
    def current(self) -> Iterator[None]:
        """This device's context is the calling thread's while the block lasts; afterwards what was current is again."""
        if int(call("cuCtxGetCurrent")) == int(self.context):
            yield
            return
        call("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent")


def bus_id(on: Device) -> str:
    """Where the device is on the PCI bus, by which NVML finds it: "0000:65:00.0"."""
    return str(call("cuDeviceGetPCIBusId", 32, on.handle).partition(b"\0")[0].decode())


def version() -> str:
    """The newest CUDA that the driver, whose assembler takes PTX, is made for: "13.0"."""
    number = int(call("cuDriverGetVersion"))
    return f"{number // 1000}.{number % 1000 // 10}"


# By the number that CUDA counts; Unavailable without CUDA.
device = library.device = driver.Devices(Device, library, "CUDA device")


@overload
def detect(family: Literal["cpu"] = "cpu") -> CpuTarget: ...
@overload
def detect(family: Literal["nvidia", "cuda"]) -> GpuTarget: ...
@overload
def detect(family: Literal["amd", "rocm"]) -> AmdTarget: ...
@overload
def detect(family: str) -> Any: ...
def detect(family: str = "cpu") -> Any:
    """The target record of this machine's processor; with "nvidia" or "cuda" that of its first CUDA
    device, with "amd" or "rocm" that of its first AMD GPU.

    For the processor it is the widest instruction set that it can run, or the one that TILEWRIGHT_TARGET names.
    RuntimeError if there is none, no such GPU, or no driver or package to reach it.
    """
    if family == "cpu":
        return targets.detect()
    if family in ("nvidia", "cuda"):
        return device().target
    if family in ("amd", "rocm"):
        from tilewright.runtime.hip import driver as hip

        return hip.device().target
    raise ValueError(f"family must be 'cpu', 'nvidia' (or 'cuda') or 'amd' (or 'rocm'), not {family!r}")
