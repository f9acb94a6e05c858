"""Memory of CUDA devices: blocks that live in the order of a stream, memory that outlives streams, workspaces.

A stream's handle is a pointer inside the driver, which follows it without a check: to free memory in the order of a
stream that is gone crashes the process. Other people's streams go without a word. So a Block, whose memory is freed in
a stream's order, either holds that stream or is freed by hand while its caller works with it; whatever may be there
longer is Memory, whose freeing knows of no stream and waits instead.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.cuda.device import Device, device
from tilewright.runtime.cuda.driver import api, call
from tilewright.runtime.cuda.stream import Answers, Stream, capture_allowed, handle_of
from tilewright.runtime.gpu.workspaces import Space, Spaces, recorded


class Block:
    """`size` bytes of a device's memory at `pointer`, for work on one stream; freed after that work.

    It comes from a pool that keeps what it has been given, so neither allocating nor freeing ever waits for the device,
    and a stream that is recording a graph records both. With a Stream, which it keeps, it is freed when nobody has it
    any more. With a handle, behind which somebody else's stream may be gone by then, only `free` or `with` frees it.
    """

    def __init__(self, on: Device, size: int, stream: Stream | int) -> None:
        self.device, self.size, self.stream = on, size, stream
        self.pointer = 0
        if size:
            with on.current():
                self.pointer = int(call("cuMemAllocFromPoolAsync", size, _pool(on.index), handle_of(stream)))

    def free(self) -> None:
        """Give it back when the stream has done what it was given so far. Nothing happens the second time."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            with self.device.current():
                call("cuMemFreeAsync", pointer, handle_of(self.stream))

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()

    def __del__(self) -> None:
        if not getattr(self, "pointer", 0):
            return
        if isinstance(self.stream, Stream):
            with suppress(Exception):  # the interpreter, or CUDA, may be going down; in a cycle, the stream before us
                self.free()
        else:
            warnings.warn(f"{self.size} bytes on {self.device.name} were never freed", ResourceWarning, stacklevel=2)


class Memory:
    """`size` bytes of a device's memory at `pointer`, for any streams. Freeing it waits for the device.

    That wait is the driver's: cuMemFree does so for memory of cuMemAlloc, and not for a pool's. Like allocating it is
    refused while another thread records a graph unless one insists, as `capture_allowed` does; it is not recorded.
    """

    def __init__(self, on: Device, size: int) -> None:
        self.device, self.size, self.pointer = on, size, 0
        if size:
            with on.current(), capture_allowed():
                self.pointer = int(call("cuMemAlloc", size))

    def __del__(self) -> None:
        pointer = getattr(self, "pointer", 0)
        if pointer:
            with suppress(Exception), self.device.current(), capture_allowed():  # CUDA may be going down
                call("cuMemFree", pointer)


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


# ---- workspaces


def space(on: Device, workspace: int, counters: int, stream: int, answers: Answers) -> Space | None:
    """The stream's space, of so many bytes at least. None if it is recording a graph, which needs memory of its own.

    The device's context must be current. Hold it until the kernel is launched: see Spaces.get.
    """
    if answers.is_capturing(stream):
        return None
    return _spaces.get(on, answers.number(stream), workspace, counters, stream)  # handles are used again, numbers not


def recorded_space(on: Device, workspace: int, counters: int, stream: int) -> tuple[Block, int]:
    """For one kernel in a graph that is being recorded: a block to be freed behind it, and where its counters are."""
    return recorded(lambda size: Block(on, size, stream), _zero, workspace, counters, stream)


def _zero(at: int, size: int, stream: int) -> None:
    if size:
        call("cuMemsetD8Async", at, 0, size, stream)


_spaces = Spaces(Memory, _zero)


# ---- NumPy


def upload(on: Device, array: NDArray[Any], stream: Stream) -> Block:
    """The elements of an array, in C order, in a block of the stream's."""
    whole = np.ascontiguousarray(array)
    block = Block(on, whole.nbytes, stream)
    if whole.nbytes:
        with on.current():
            call("cuMemcpyHtoDAsync", block.pointer, whole.ctypes.data, whole.nbytes, stream.handle)
            # the driver has taken what it needs of pageable memory when it returns; pinned memory it may read later
            call("cuStreamSynchronize", stream.handle)
    return block


def download(block: Block, array: NDArray[Any]) -> None:
    """Fill a C-contiguous array with what the block will hold when its stream gets here; waits for that."""
    if not array.flags.c_contiguous:
        raise ValueError(f"the array to fill must be C-contiguous, but its strides are {array.strides} bytes")
    with block.device.current():
        if array.nbytes:
            call("cuMemcpyDtoHAsync", array.ctypes.data, block.pointer, array.nbytes, handle_of(block.stream))
        call("cuStreamSynchronize", handle_of(block.stream))


def _forget() -> None:
    _spaces.forget()
    _pool.cache_clear()


os.register_at_fork(after_in_child=_forget)
