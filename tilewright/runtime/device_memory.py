"""Memory of CUDA devices: blocks that live in the order of a stream, workspaces that stay, copies from and to NumPy.

Blocks are allocated and freed by the stream itself, from a pool that keeps what it has been given. So allocating never
waits for the device, a block may be freed while the kernel that uses it still runs, and a stream that is recording a
graph records the allocation too.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.devices import Device, device
from tilewright.runtime.driver import api, call
from tilewright.runtime.streams import is_capturing

MOST_WORKSPACES = 128  # kept at a time


class Block:
    """`size` bytes of a device's memory at `pointer`, to be used by work on one stream; freed after that work."""

    def __init__(self, on: Device, size: int, stream: int) -> None:
        self.device, self.size, self.stream = on, size, stream
        self.pointer = 0
        if size:
            with on.current():
                self.pointer = int(call("cuMemAllocFromPoolAsync", size, _pool(on.index), stream))

    def free(self) -> None:
        """Give it back when the stream has done what it was given so far. Nothing happens the second time."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            with self.device.current():
                call("cuMemFreeAsync", pointer, self.stream)

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            with suppress(Exception):  # the interpreter, or CUDA, may be going down
                self.free()


@cache
def _pool(index: int) -> Any:
    """A pool of the device's memory that keeps what is freed, where the device's own gives it back at every chance."""
    driver, on = api(), device(index)
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = index
    with on.current():
        pool = call("cuMemPoolCreate", properties)
        keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call("cuMemPoolSetAttribute", pool, keep, driver.cuuint64_t(2**64 - 1))
    return pool


# ---- workspaces


_workspaces: OrderedDict[tuple[int, int, bool], Block] = OrderedDict()
_lock = Lock()


def workspace(on: Device, size: int, stream: int, *, zeroed: bool = False) -> Block:
    """Memory of at least `size` bytes for kernels on this stream; `zeroed`: zeros, and they leave it as zeros.

    It is the same for every call on a stream, since kernels there take turns, and grows when more is asked for. A graph
    that is being recorded gets memory of its own.
    """
    if is_capturing(on, stream):
        return _new(on, size, stream, zeroed)
    with on.current():
        key = on.index, int(call("cuStreamGetId", stream)), zeroed  # handles are used again, numbers are not
    with _lock:
        found = _workspaces.get(key)
        if found is None or found.size < size:
            found = _workspaces[key] = _new(on, size, stream, zeroed)
        _workspaces.move_to_end(key)
        while len(_workspaces) > MOST_WORKSPACES:
            _workspaces.popitem(last=False)
    return found


def _new(on: Device, size: int, stream: int, zeroed: bool) -> Block:
    block = Block(on, size, stream)
    if zeroed and size:
        with on.current():
            call("cuMemsetD8Async", block.pointer, 0, size, stream)
    return block


# ---- NumPy


def upload(on: Device, array: NDArray[Any], stream: int) -> Block:
    """The elements of an array, in C order, in a block of the stream's."""
    whole = np.ascontiguousarray(array)
    block = Block(on, whole.nbytes, stream)
    if whole.nbytes:
        with on.current():
            call("cuMemcpyHtoDAsync", block.pointer, whole.ctypes.data, whole.nbytes, stream)
            # the driver has taken what it needs of pageable memory when it returns; pinned memory it may read later
            call("cuStreamSynchronize", stream)
    return block


def download(block: Block, array: NDArray[Any]) -> None:
    """Fill a C-contiguous array with what the block will hold when its stream gets here; waits for that."""
    if not array.flags.c_contiguous:
        raise ValueError(f"the array to fill must be C-contiguous, but its strides are {array.strides} bytes")
    with block.device.current():
        if array.nbytes:
            call("cuMemcpyDtoHAsync", array.ctypes.data, block.pointer, array.nbytes, block.stream)
        call("cuStreamSynchronize", block.stream)


def _forget() -> None:
    global _lock
    _workspaces.clear()
    _pool.cache_clear()
    _lock = Lock()


os.register_at_fork(after_in_child=_forget)
