"""Memory of CUDA devices: what outlives streams, blocks in a stream's order, workspaces, copies from and to NumPy."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.cuda.device import Device, device
from tilewright.runtime.cuda.driver import api, call, library
from tilewright.runtime.cuda.stream import Stream, capture_allowed, handle_of
from tilewright.runtime.gpu import driver
from tilewright.runtime.gpu.workspaces import Workspaces


class Block(driver.Block):
    """Memory in the order of a stream of CUDA's, from a pool that keeps what it has been given: neither allocating nor
    freeing ever waits for the device."""

    library, frees = library, "cuMemFreeAsync"

    def allocate(self, size: int) -> Any:
        return call("cuMemAllocFromPoolAsync", size, _pool(self.device.index), handle_of(self.stream))


class Memory(driver.Memory):
    """Memory for any streams, freed with the object. It is of no pool: cuMemFree waits for the device only then."""

    library, allocates, frees = library, "cuMemAlloc", "cuMemFree"

    def unrecorded(self) -> AbstractContextManager[None]:
        return capture_allowed()


@cache
def _pool(index: int) -> Any:
    """A pool of the device's memory that keeps what is freed, where the device's own gives it back at every chance."""
    driver, on = api(), device(index)
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = index
    with on.current(), capture_allowed():           # the first to ask may be a stream that is recording
        pool = call("cuMemPoolCreate", properties)
        keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call("cuMemPoolSetAttribute", pool, keep, driver.cuuint64_t(2**64 - 1))
    return pool


def prepare(on: Device) -> None:
    """Make the pool, which a stream that is recording a graph would have to be talked into."""
    _pool(on.index)


def fill(at: int, word: int, size: int, stream: int) -> None:
    """Write a word of 32 bits to so many bytes, a multiple of 4. The device's context must be current."""
    if size:
        call("cuMemsetD32Async", at, word, size // 4, stream)


workspaces = Workspaces(Memory, Block, fill, prepare)


# ---- NumPy


def upload(on: Device, array: NDArray[Any], stream: Stream | None = None) -> Block | Memory:
    """The elements of an array, in C order, in a block of the stream's, or in memory for any streams. The copy is over.
    """
    whole = np.ascontiguousarray(array)
    there = Memory(on, whole.nbytes) if stream is None else Block(on, whole.nbytes, stream)
    if whole.nbytes:
        with on.current():
            call("cuMemcpyHtoDAsync", there.pointer, whole.ctypes.data, whole.nbytes, handle_of(stream))
            # the driver has taken what it needs of pageable memory when it returns; pinned memory it may read later
            call("cuStreamSynchronize", handle_of(stream))
    return there


def download(memory: Block | Memory, array: NDArray[Any]) -> None:
    """Fill a C-contiguous array with what the memory holds when its stream, or the default one, gets here; waits for
    that."""
    driver.check_download(memory, array)
    stream = handle_of(getattr(memory, "stream", None))
    with memory.device.current():
        if array.nbytes:
            call("cuMemcpyDtoHAsync", array.ctypes.data, memory.pointer, array.nbytes, stream)
        call("cuStreamSynchronize", stream)


os.register_at_fork(after_in_child=_pool.cache_clear)
