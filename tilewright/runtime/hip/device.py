"""AMD GPUs as HIP shows them: their numbers as an AmdTarget, and which of them is the calling thread's.

HIP has a current device for each thread; a call makes its own current while it lasts and leaves the thread as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.forks import cached_property
from tilewright.runtime.gpu import driver
from tilewright.runtime.hip.driver import Unavailable, api, call, library, properties, text
from tilewright.targets import amd
from tilewright.targets.amd import AmdTarget


class Device(driver.Device):
    """One GPU. `device(i)` gives the same object every time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = text(call("hipDeviceGetName", 256, index))

    def __repr__(self) -> str:
        return f"<Device {self.index}: {self.name}, {self.arch}>"

    def attribute(self, name: str) -> int:
        """One of HIP's numbers, by the end of its name: "MultiprocessorCount"."""
        return int(call("hipDeviceGetAttribute", getattr(api().hipDeviceAttribute_t, f"hipDeviceAttribute{name}"),
                        self.index))

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
        cus, clock = self.attribute("MultiprocessorCount"), 1e3 * self.attribute("ClockRate")
        here: dict[str, Any] = {"cus": cus, "clock": clock}
        found: AmdTarget = self.recorded(chip, here, "HIP: hipDeviceGetAttribute")
        return found

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


def count() -> int:
    """How many AMD GPUs HIP shows this process. Unavailable or HipError if there is no HIP."""
    return int(call("hipGetDeviceCount"))


# By the number that HIP counts; Unavailable without HIP.
device = library.device = driver.Devices(Device, lambda: count(), "AMD GPU")


def version() -> int:
    """HIP's own number for its version: 70226015 is 7.2.26015."""
    return int(call("hipRuntimeGetVersion"))
