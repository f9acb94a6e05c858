"""Memory of AMD GPUs: what outlives streams, blocks in a stream's order, workspaces, copies from and to NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.gpu import driver
from tilewright.runtime.gpu.workspaces import Workspaces
from tilewright.runtime.hip.device import Device
from tilewright.runtime.hip.driver import api, call, library


class Block(driver.Block):
    """Memory in the order of a stream of HIP's."""

    library, frees = library, "hipFreeAsync"


class Memory(driver.Memory):
    """Memory for any streams, freed with the object."""

    library, allocates, frees = library, "hipMalloc", "hipFree"


def fill(at: int, word: int, size: int, stream: int) -> None:
    """Write a word of 32 bits to so many bytes, a multiple of 4. The device must be current."""
    if size:
        call("hipMemsetD32Async", at, word - (word >> 31 << 32), size // 4, stream)


workspaces = Workspaces(Memory, Block, fill)


# ---- NumPy


def upload(on: Device, array: NDArray[Any], stream: Any = None) -> Memory:
    """The elements of an array, in C order, in memory of their own, which any stream may use: the copy is over."""
    whole = np.ascontiguousarray(array)
    memory = Memory(on, whole.nbytes)
    if whole.nbytes:
        with on.current():
            call("hipMemcpy", memory.pointer, whole.ctypes.data, whole.nbytes,
                 api().hipMemcpyKind.hipMemcpyHostToDevice)
    return memory


def download(memory: Memory, array: NDArray[Any]) -> None:
    """Fill a C-contiguous array with what the memory holds. Wait for the stream that fills it first."""
    driver.check_download(memory, array)
    if array.nbytes:
        with memory.device.current():
            call("hipMemcpy", array.ctypes.data, memory.pointer, array.nbytes,
                 api().hipMemcpyKind.hipMemcpyDeviceToHost)
