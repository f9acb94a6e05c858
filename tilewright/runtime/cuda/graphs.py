"""The graph that a stream records: which kernel a launch comes behind, and the attribute by which it may begin before
that one has ended (CUDA C++ Programming Guide, programmatic dependent launch).

A kernel with `early` parameters (compiler/manifest.py) reads their memory before the last kernel has ended: weights,
for which it need not wait. The last kernel must not write there. It stays inside of the allocations that it has
pointers to, so that no memory of another allocation is written: `apart`. What wrote there before that kernel has ended,
since a kernel lets the next one begin only when it has waited itself.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final, NamedTuple

from tilewright.runtime.cuda.driver import entry


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: its kind, and a value of at most 64 bytes."""

    _fields_ = [("kind", ctypes.c_uint64), ("value", ctypes.c_uint64 * 8)]


# The kernel may begin before the stream's last one has ended, for which it waits (CUDA: programmatic dependent launch).
OVERLAPS: Final = Attribute(6, (1,))    # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
KERNEL = 0                              # CU_GRAPH_NODE_TYPE_KERNEL
# CU_POINTER_ATTRIBUTE_: whether cuMemAlloc has allocated it, and where its allocation begins
IS_LEGACY_CUDA_IPC_CAPABLE, RANGE_START_ADDR = 10, 11
PARAMETERS = 5                          # the word of CUDA_KERNEL_NODE_PARAMS that says where arguments' addresses are
# By the handles of functions that let the next kernel begin: numbers of the parameters that point to what they may
# write; None: unknown.
overlapping = dict[int, tuple[int, ...] | None]()


mapped, MOST_MAPPED = dict[bytes, int](), 4096      # addresses of the last tensor maps, which do not say them


class Last(NamedTuple):
    """A kernel of a graph: its handle, and where the addresses of its arguments are. 0: something else."""
    handle: int = 0
    arguments: int = 0


def last_kernel(stream: int) -> Last | None:
    """The kernel that the next launch on a stream which is recording a graph comes behind, with nothing else. None of a
    stream that is recording none."""
    pointer, room = ctypes.c_void_p, (ctypes.c_uint64 * 16)()   # CUDA_KERNEL_NODE_PARAMS: 72 bytes, the function first
    answer, number, graph, nodes, count = (ctypes.addressof(room) + 8*i for i in range(5))
    if entry("cuStreamGetCaptureInfo", *[pointer] * 6)(stream, answer, number, graph, nodes, count) or not room[0]:
        return None
    if room[4] != 1:
        return Last()
    node = ctypes.c_uint64.from_address(room[3]).value
    if entry("cuGraphNodeGetType", pointer, pointer)(node, answer) or ctypes.c_int.from_buffer(room).value != KERNEL:
        return Last()
    if entry("cuGraphKernelNodeGetParams", pointer, pointer)(node, answer):
        return Last()
    return Last(room[0], room[PARAMETERS])


def apart(addresses: Iterable[int], last: Last) -> bool:
    """Whether a kernel of ours writes to none of the allocations that have these addresses, all by cuMemAlloc."""
    written = overlapping[last.handle]
    if written is None or not last.arguments:
        return False
    word = ctypes.c_uint64.from_address
    theirs = {_attribute(RANGE_START_ADDR, word(word(last.arguments + 8*i).value).value) for i in written}
    return all(_attribute(IS_LEGACY_CUDA_IPC_CAPABLE, x) and _attribute(RANGE_START_ADDR, x) not in theirs
               for x in addresses)


def _attribute(which: int, address: int) -> int:
    """The answer for memory of a device; 0 if the driver knows of none there."""
    room, pointer = ctypes.c_uint64(), ctypes.c_void_p
    asked = entry("cuPointerGetAttribute", pointer, ctypes.c_int, ctypes.c_uint64)
    return 0 if asked(ctypes.addressof(room), which, address) else room.value
