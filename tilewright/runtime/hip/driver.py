"""AMD's HIP runtime library, by the package hip-python: loaded when first asked for, every status checked.

    call("hipGetDeviceCount")               what hipGetDeviceCount returns beside its status, or a HipError

Nothing else in tilewright imports hip-python. Its functions differ in little between ROCm 6 or 7 and ROCm 7.14 or
later (10.0 of the package): `properties` and `text` know both. https://rocm.docs.amd.com/projects/hip-python
"""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.runtime.gpu.driver import Library, LibraryError, Unavailable


class HipError(LibraryError):
    """A HIP function failed: see LibraryError."""


class _Hip(Library):
    prefix, with_flags, counts = "hip", "WithFlags", "hipGetDeviceCount"
    no_device = "HIP sees no GPU"

    def load(self) -> Any:
        """The module hip.hip, after hipInit."""
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
            raise Unavailable(f"HIP cannot be used: {self.error_of(hip, status, 'hipInit')}")
        return hip

    def error_of(self, api: Any, status: Any, function: str, kernel: str = "", more: str = "") -> HipError:
        _, said = api.hipGetErrorString(status)
        api.hipGetLastError()  # HIP keeps it for the thread, and torch would take it for its own after its next launch
        return HipError(status.name, int(status), text(said) or "HIP gives no description", function, kernel, more)


library = _Hip()
api, call, error, why_not, available = library.api, library.call, library.error, library.why_not, library.available


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
