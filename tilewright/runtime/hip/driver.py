"""AMD's HIP runtime library, by the package hip-python, and its devices.

    call("hipGetDeviceCount")               what hipGetDeviceCount returns beside its status, or a HipError

Nothing else in tilewright imports hip-python. Its functions differ in little between ROCm 6 or 7 and ROCm 7.14 or
later (10.0 of the package): `properties` and `text` know both. https://rocm.docs.amd.com/projects/hip-python

HIP has a current device for each thread; a call makes its own current while it lasts and leaves the thread as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.forks import cached_property
from tilewright.runtime.gpu import driver
from tilewright.runtime.gpu.driver import LibraryError, Unavailable
from tilewright.targets import AmdTarget, amd
from tilewright.text import install


class HipError(LibraryError):
    """A HIP function failed: see LibraryError."""


class _Hip(driver.Library):
    prefix, with_flags, counts = "hip", "WithFlags", "hipGetDeviceCount"
    no_device = "HIP sees no GPU"

    def load(self) -> Any:
        """The module hip.hip, after hipInit."""
        try:
            from hip import hip
        except ImportError as error:
            raise Unavailable(
                f"AMD GPUs need the package hip-python, of the version of ROCm ({install('rocm')}): {error}"
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

    def attribute(self, name: str) -> Any:
        return getattr(self.api().hipFunction_attribute, f"HIP_FUNC_ATTRIBUTE_{name}")

    def copy(self, to: int, source: int, size: int, back: bool) -> None:
        kind = self.api().hipMemcpyKind
        self.call("hipMemcpy", to, source, size, kind.hipMemcpyDeviceToHost if back else kind.hipMemcpyHostToDevice)

    def word(self, word: int) -> int:
        return word - (word >> 31 << 32)


library = _Hip()
api, call, error = library.api, library.call, library.error
why_not, available, count = library.why_not, library.available, library.count


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
    record = hip.hipDeviceProp_t()
    call("hipGetDeviceProperties", record, index)
    return record


class Device(driver.Device):
    """One GPU. `device(i)` gives the same object every time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = text(call("hipDeviceGetName", 256, index))

    def __repr__(self) -> str:
        return f"<Device {self.index}: {self.name}, {self.arch}>"

    def attribute(self, name: str) -> int:
        """One of HIP's numbers, by the end of its name: "MultiprocessorCount"."""
        which = getattr(api().hipDeviceAttribute_t, f"hipDeviceAttribute{name}")
        return int(call("hipDeviceGetAttribute", which, self.index))

    @cached_property
    def memory(self) -> int:
        """Bytes of it."""
        return int(call("hipDeviceTotalMem", self.index))

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
        here = {"cus": self.attribute("MultiprocessorCount"), "clock": 1e3 * self.attribute("ClockRate")}
        return self.recorded(chip, here, "HIP: hipDeviceGetAttribute", str(version()))

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


# By the number that HIP counts; Unavailable without HIP.
device = library.device = driver.Devices(Device, library, "AMD GPU")


def version() -> int:
    """HIP's own number for its version: 70226015 is 7.2.26015."""
    return int(call("hipRuntimeGetVersion"))
