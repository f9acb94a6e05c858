"""NVIDIA's driver, by the package cuda-bindings: loaded when first asked for, every status checked.

    call("cuCtxGetDevice")                  what cuCtxGetDevice returns beside its status, or a CudaError
    entry("cuCtxGetCurrent", c_void_p)      the function itself, for what is called at every product

Nothing else in tilewright imports cuda-bindings.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from tilewright import extras
from tilewright.runtime.gpu import driver_errors
from tilewright.runtime.gpu.driver_errors import LibraryError, Unavailable

VERSION = 12000  # of the functions that `entry` gives; nothing that is used has changed since
LEGACY_STREAM = 1  # CU_GET_PROC_ADDRESS_LEGACY_STREAM: handle 0 is the default stream of all threads


class CudaError(LibraryError):
    """A driver function failed: see LibraryError."""


_api: Any = None


def api() -> Any:
    """The module cuda.bindings.driver, after cuInit. Unavailable if that cannot be had."""
    global _api
    if _api is None:
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
            said = _error(driver, status, "cuInit")
            hint = "; a process that was forked from one that uses CUDA cannot use it" if said.code == 3 else ""
            raise Unavailable(f"CUDA cannot be used: {said}{hint}")
        _api = driver
    return _api


def call(function: str, *args: Any, kernel: str = "") -> Any:
    """What a driver function returns beside its status: nothing, a value, or a list of them."""
    driver = api()
    status, *results = getattr(driver, function)(*args)
    if status:
        raise _error(driver, status, function, kernel)
    return driver_errors.answer(results)


_entries: dict[str, Any] = {}


def entry(name: str, *types: Any) -> Any:
    """A driver function by its address, to be called with arguments of these ctypes types: it gives its status.

    That takes a third of a microsecond, where cuda-bindings makes objects of everything for several. The interpreter's
    lock is released meanwhile: a launch waits when the device's queue is full.
    """
    found = _entries.get(name)
    if found is None:
        address, _ = call("cuGetProcAddress", name.encode(), VERSION, LEGACY_STREAM)
        if not address:
            raise Unavailable(f"the NVIDIA driver has no {name}: CUDA 12.0 or newer is needed")
        found = _entries[name] = ctypes.CFUNCTYPE(ctypes.c_int, *types)(int(address))
    return found


def error(status: int, function: str, kernel: str = "", more: str = "") -> CudaError:
    """The exception for a status that is not success, in CUDA's words and those of `more`."""
    return _error(api(), status, function, kernel, more)


def _error(driver: Any, status: Any, function: str, kernel: str = "", more: str = "") -> CudaError:
    code = int(status)
    try:
        value = driver.CUresult(code)
    except ValueError:  # newer than cuda-bindings
        return CudaError(f"CUDA error {code}", code, "unknown to this version of cuda-bindings", function, kernel, more)
    name, text = (said for _, said in (driver.cuGetErrorName(value), driver.cuGetErrorString(value)))
    words = (said.decode() if said else value.name for said in (name, text))
    return CudaError(next(words), code, next(words), function, kernel, more)


def why_not() -> str:
    """Why there is no CUDA device to run on; "" if there is one."""
    return driver_errors.why_not(lambda: call("cuDeviceGetCount"), "the NVIDIA driver sees no GPU")


def _forget() -> None:
    global _api
    _api = None
    _entries.clear()


os.register_at_fork(after_in_child=_forget)  # so that cuInit is asked again, and can say that a child has no CUDA
