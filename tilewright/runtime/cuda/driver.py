"""NVIDIA's driver, by the package cuda-bindings: loaded when first asked for, every status checked.

    call("cuCtxGetDevice")                  what cuCtxGetDevice returns beside its status, or a CudaError
    entry("cuCtxGetCurrent", c_void_p)      the function itself, for what is called at every product

Nothing else in tilewright imports cuda-bindings.
"""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright import extras
from tilewright.runtime.gpu.driver import Library, LibraryError, Unavailable

VERSION = 12000  # of the functions that `entry` gives; nothing that is used has changed since
LEGACY_STREAM = 1  # CU_GET_PROC_ADDRESS_LEGACY_STREAM: handle 0 is the default stream of all threads


class CudaError(LibraryError):
    """A driver function failed: see LibraryError."""


class _Cuda(Library):
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
                f"CUDA arrays need the package cuda-bindings ({extras.install('cuda')}): {error}"
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


library = _Cuda()
api, call, error, why_not, available = library.api, library.call, library.error, library.why_not, library.available


def entry(name: str, *types: Any) -> Any:
    """A driver function by its address, to be called with arguments of these ctypes types: it gives its status.

    That takes a third of a microsecond, where cuda-bindings makes objects of everything for several. The interpreter's
    lock is released meanwhile: a launch waits when the device's queue is full.
    """
    found = library.entries.get(name)
    if found is None:
        address, _ = call("cuGetProcAddress", name.encode(), VERSION, LEGACY_STREAM)
        if not address:
            raise Unavailable(f"the NVIDIA driver has no {name}: CUDA 12.0 or newer is needed")
        found = library.entries[name] = ctypes.CFUNCTYPE(ctypes.c_int, *types)(int(address))
    return found
