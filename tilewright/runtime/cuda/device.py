"""CUDA devices: their numbers as a GpuTarget, and their primary contexts; `tilewright.detect`.

Everything runs in primary contexts, which are those of torch, CuPy, JAX and the CUDA runtime. A call makes that context
current while it lasts if it is not, and leaves the calling thread as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload

from tilewright import targets
from tilewright.forks import cached_property
from tilewright.runtime.cuda.driver import Unavailable, api, call, library
from tilewright.runtime.gpu import driver
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, nvidia


@overload
def detect(family: Literal["cpu"] = "cpu") -> CpuTarget: ...
@overload
def detect(family: Literal["nvidia", "cuda"]) -> GpuTarget: ...
@overload
def detect(family: Literal["amd", "rocm"]) -> AmdTarget: ...
@overload
def detect(family: str) -> Any: ...
def detect(family: str = "cpu") -> Any:
    """The target record of this machine's processor, or with "nvidia" or "cuda" that of its first CUDA
    device, with "amd" or "rocm" that of its first AMD GPU.

    The processor's is the widest instruction set that it can run, or the one that TILEWRIGHT_TARGET names. RuntimeError
    if there is none, no such GPU, or no driver or package to reach it.
    """
    if family == "cpu":
        return targets.detect()
    if family in ("nvidia", "cuda"):
        return device().target
    if family in ("amd", "rocm"):
        from tilewright.runtime.hip import device as hip

        return hip.device().target
    raise ValueError(f"family must be 'cpu', 'nvidia' (or 'cuda') or 'amd' (or 'rocm'), not {family!r}")


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
        known = _record(self.capability)
        if known is None:
            raise Unavailable(
                f"{self.name} has compute capability {self.capability[0]}.{self.capability[1]}; tilewright needs 7.5"
            )
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
        found: GpuTarget = self.recorded(known, here, "driver: cuDeviceGetAttribute")
        return found

    def runs(self, target: GpuTarget) -> bool:
        """Can this device run code for that target? A name that ends in a letter is for one architecture only."""
        if target.name == self.target.name:
            return True
        return not target.name[-1].isalpha() and target.capability <= self.capability

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

    def synchronize(self) -> None:
        """Wait for all that this device has been given to do."""
        with self.current():
            call("cuCtxSynchronize")


def count() -> int:
    """How many CUDA devices this process sees."""
    return int(call("cuDeviceGetCount"))


# By the number that CUDA counts; Unavailable without CUDA.
device = library.device = driver.Devices(Device, lambda: count(), "CUDA device")


def _record(capability: tuple[int, int]) -> GpuTarget | None:
    """That of the architecture itself, or of the newest before it whose PTX goes for later ones too."""
    fits = [
        t
        for t in nvidia.TARGETS.values()
        if t.capability == capability or (t.capability < capability and not t.name[-1].isalpha())
    ]
    return max(fits, key=lambda t: t.capability, default=None)
