"""The graph that a stream records: which kernel a launch comes behind, and the attribute by which it may begin before
that one has ended (CUDA C++ Programming Guide, programmatic dependent launch)."""
from __future__ import annotations

import ctypes
from typing import Final

from tilewright.runtime.cuda.driver import entry


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: its kind, and a value of at most 64 bytes."""

    _fields_ = [("kind", ctypes.c_uint64), ("value", ctypes.c_uint64 * 8)]


# The kernel may begin before the stream's last one has ended, for which it waits (CUDA: programmatic dependent launch).
OVERLAPS: Final = Attribute(6, (1,))    # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
KERNEL = 0                              # CU_GRAPH_NODE_TYPE_KERNEL
overlapping = set[int]()                # handles of functions that let the next kernel begin


def last_kernel(stream: int) -> int | None:
    """The handle of the kernel that the next launch on a stream which is recording a graph comes behind, with nothing
    else; 0 if it comes behind something else. None of a stream that is recording none."""
    pointer, room = ctypes.c_void_p, (ctypes.c_uint64 * 16)()   # CUDA_KERNEL_NODE_PARAMS: 72 bytes, the function first
    answer, number, graph, nodes, count = (ctypes.addressof(room) + 8*i for i in range(5))
    if entry("cuStreamGetCaptureInfo", *[pointer] * 6)(stream, answer, number, graph, nodes, count) or not room[0]:
        return None
    if room[4] != 1:
        return 0
    node = ctypes.c_uint64.from_address(room[3]).value
    if entry("cuGraphNodeGetType", pointer, pointer)(node, answer) or ctypes.c_int.from_buffer(room).value != KERNEL:
        return 0
    return 0 if entry("cuGraphKernelNodeGetParams", pointer, pointer)(node, answer) else room[0]
