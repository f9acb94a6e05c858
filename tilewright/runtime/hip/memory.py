"""Memory of AMD GPUs: what outlives streams, blocks in a stream's order, workspaces, copies from and to NumPy."""

from __future__ import annotations

import os
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.gpu.workspaces import Space, Spaces, recorded
from tilewright.runtime.hip.device import Device
from tilewright.runtime.hip.driver import api, call
from tilewright.runtime.hip.stream import PER_THREAD, destroy, is_capturing


class Memory:
    """`size` bytes of a device's memory at `pointer`, for any streams. Freeing it waits for the device."""

    def __init__(self, on: Device, size: int) -> None:
        self.device, self.size, self.pointer = on, size, 0
        if size:
            with on.current():
                self.pointer = int(call("hipMalloc", size))

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            destroy(self, "hipFree", "pointer")


class Block:
    """`size` bytes of a device's memory at `pointer`, for work on one stream, in whose order they are allocated and
    freed: neither waits, and a stream that is recording a graph records both. To be freed by `free` or `with`, while
    the stream is there."""

    def __init__(self, on: Device, size: int, stream: int) -> None:
        self.device, self.size, self.stream, self.pointer = on, size, stream, 0
        if size:
            with on.current():
                self.pointer = int(call("hipMallocAsync", size, stream))

    def free(self) -> None:
        """Give it back when the stream has done what it was given so far. Nothing happens the second time."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            with self.device.current():
                call("hipFreeAsync", pointer, self.stream)

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()


def fill(at: int, word: int, size: int, stream: int) -> None:
    """Write a word of 32 bits to so many bytes, a multiple of 4. The device must be current."""
    if size:
        call("hipMemsetD32Async", at, word - (word >> 31 << 32), size // 4, stream)


# ---- workspaces


def space(on: Device, workspace: int, counters: int, stream: int) -> Space | None:
    """The stream's space, of so many bytes at least. None if it is recording a graph, which needs memory of its own.

    A stream is known by its handle: that is the address of an object which HIP keeps while commands of the stream are
    under way, so whoever gets it next finds the space at rest. (hipStreamGetId came with ROCm 7.1.) The device must be
    current. Hold the space until the kernel is launched: see Spaces.get.
    """
    if is_capturing(stream):
        return None
    number = stream if stream != PER_THREAD else -get_ident()
    return _spaces.get(on, number, workspace, counters, stream)


def recorded_space(on: Device, workspace: int, counters: int, stream: int) -> tuple[Block, int]:
    """For one kernel in a graph that is being recorded: a block to be freed behind it, and where its counters are."""
    return recorded(lambda size: Block(on, size, stream), _zero, workspace, counters, stream)


def _zero(at: int, size: int, stream: int) -> None:
    fill(at, 0, size, stream)


_spaces = Spaces(Memory, _zero)


# ---- NumPy


def upload(on: Device, array: NDArray[Any]) -> Memory:
    """The elements of an array, in C order, in memory of their own."""
    whole = np.ascontiguousarray(array)
    memory = Memory(on, whole.nbytes)
    if whole.nbytes:
        with on.current():
            call("hipMemcpy", memory.pointer, whole.ctypes.data, whole.nbytes,
                 api().hipMemcpyKind.hipMemcpyHostToDevice)
    return memory


def download(memory: Memory, array: NDArray[Any]) -> None:
    """Fill a C-contiguous array with what the memory holds. Wait for the stream that fills it first."""
    if not array.flags.c_contiguous:
        raise ValueError(f"the array to fill must be C-contiguous, but its strides are {array.strides} bytes")
    if array.nbytes > memory.size:
        raise ValueError(f"the array to fill has {array.nbytes} bytes, and the memory {memory.size}")
    if array.nbytes:
        with memory.device.current():
            call("hipMemcpy", array.ctypes.data, memory.pointer, array.nbytes,
                 api().hipMemcpyKind.hipMemcpyDeviceToHost)


os.register_at_fork(after_in_child=_spaces.forget)
