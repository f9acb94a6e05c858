"""AMD's HIP runtime library, by the package hip-python: loaded when first asked for, every status checked.

    call("hipGetDeviceCount")               what hipGetDeviceCount returns beside its status, or a HipError

Nothing else in tilewright imports hip-python. Its functions differ in little between ROCm 6 or 7 and ROCm 7.14 or
later (10.0 of the package): `properties` and `text` know both. https://rocm.docs.amd.com/projects/hip-python
"""

from __future__ import annotations

import os
from typing import Any

from tilewright import extras
from tilewright.runtime.gpu import driver_errors
from tilewright.runtime.gpu.driver_errors import LibraryError, Unavailable


class HipError(LibraryError):
    """A HIP function failed: see LibraryError."""


_api: Any = None


def api() -> Any:
    """The module hip.hip, after hipInit. Unavailable if that cannot be had."""
    global _api
    if _api is None:
        try:
            from hip import hip
        except ImportError as error:
            raise Unavailable(
                f"AMD GPUs need the package hip-python, of the version of ROCm ({extras.install('rocm')}): {error}"
            ) from None
        try:
            (status,) = hip.hipInit(0)
        except RuntimeError as error:  # hip-python looks for libamdhip64.so when it is first called
            raise Unavailable(f"there is no ROCm on this machine: {error}") from None
        if int(status):
            raise Unavailable(f"HIP cannot be used: {_error(hip, status, 'hipInit')}")
        _api = hip
    return _api


def loaded() -> bool:
    """Is HIP in use in this process?"""
    return _api is not None


def call(function: str, *args: Any, kernel: str = "", more: str = "") -> Any:
    """What a HIP function returns beside its status: nothing, a value, or a list of them."""
    hip = api()
    status, *results = getattr(hip, function)(*args)
    if int(status):
        raise _error(hip, status, function, kernel, more)
    return driver_errors.answer(results)


def _error(hip: Any, status: Any, function: str, kernel: str = "", more: str = "") -> HipError:
    """The exception for a status that is not success, in HIP's words and those of `more`."""
    _, said = hip.hipGetErrorString(status)
    hip.hipGetLastError()  # HIP keeps it for the thread, and torch would take it for its own after its next launch
    return HipError(status.name, int(status), text(said) or "HIP says nothing more", function, kernel, more)


def text(said: Any) -> str:
    """A C string as hip-python gives it: a str, or what has the buffer protocol, which may go on behind the zero."""
    if said is None or isinstance(said, str):
        return said or ""
    return bytes(said).partition(b"\0")[0].decode(errors="replace")


def properties(index: int) -> Any:
    """hipDeviceProp_t of a device, which the function returns since hip-python 10 and fills before."""
    hip = api()
    if "(prop" not in (hip.hipGetDeviceProperties.__doc__ or "").partition("\n")[0]:
        return call("hipGetDeviceProperties", index)
    found = hip.hipDeviceProp_t()
    call("hipGetDeviceProperties", found, index)
    return found


def why_not() -> str:
    """Why there is no AMD GPU to run on; "" if there is one."""
    return driver_errors.why_not(lambda: call("hipGetDeviceCount"), "HIP sees no GPU")


def _forget() -> None:
    global _api
    _api = None


os.register_at_fork(after_in_child=_forget)  # so that hipInit is asked again, and can say that a child has no HIP
