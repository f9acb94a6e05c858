"""Kernels on a CUDA device: modules of PTX or machine code, launches, streams and memory.

    here, code = cuda.device(0), kernel.loadable                    # of a kernel that tilewright.compile made
    function = cuda.load(code.image, here).function(code.manifest)
    cuda.Prepared(function, (32, 32), {"m": m, "n": n, "k": k, "alpha": 1.0, "a": a, "lda": lda, ...})(stream)

The names of the driver and its devices that a user of kernels needs are here too.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any, ClassVar

from tilewright.runtime.cuda import graphs
from tilewright.runtime.cuda.driver import (
    CudaError,
    Device,
    Unavailable,
    api,
    available,
    call,
    count,
    device,
    entry,
    error,
    library,
    why_not,
)
from tilewright.runtime.gpu import launch as launches, memory
from tilewright.runtime.gpu.driver import Kept
from tilewright.runtime.gpu.launch import MOST_MODULES, Args
from tilewright.runtime.gpu.memory import Workspaces, handle_of
from tilewright.targets import GpuTarget
from tilewright.targets.tensor_maps import ALIGN, BYTES, ELEMENTS, PIECE, ImageMap, TiledMap

__all__ = [
    "Block", "CudaError", "CudaFunction", "Device", "Event", "Memory", "Module", "Prepared", "Stream",
    "TensorMaps", "Unavailable", "available", "count", "device", "fill", "handle_of", "load", "synchronize", "target",
    "tensor_map", "why_not", "workspaces",
]

LOG_BYTES = 1 << 16  # room for what the driver's assembler says
MOST_STREAMS = 256  # whose launch configurations are kept, of one kernel
synchronize, fill = library.synchronize, library.fill


def target(index: int = 0) -> GpuTarget:
    """The record of a device: see Device.target."""
    return device(index).target


# ---- streams and memory


class Event(memory.Event):
    library = library


class Stream(memory.Stream):
    library, event = library, Event


class Memory(memory.Memory):
    """It is of no pool: cuMemFree waits for the device only then."""

    library, allocates, frees = library, "MemAlloc", "MemFree"


class Block(memory.Block):
    """From a pool that keeps what it has been given: neither allocating nor freeing ever waits for the device."""

    library = library

    @classmethod
    def allocate(cls, on: Any, size: int, stream: int) -> int | None:
        (pool, context, get_context, allocate, _), room = _pool(on.index), ctypes.c_uint64()
        at = ctypes.addressof(room)
        if get_context(at) or room.value != context:
            return None
        if status := allocate(at, size, pool, stream):
            raise error(status, "cuMemAllocFromPoolAsync")
        return room.value

    @classmethod
    def deallocate(cls, on: Any, pointer: int, stream: int) -> None:
        if status := _pool(on.index)[-1](pointer, stream):
            raise error(status, "cuMemFreeAsync")


@cache
def _pool(index: int) -> tuple[int, int, Any, Any, Any]:
    """A pool of the device's memory that keeps what is freed, where the device's own gives it back at every chance; its
    context, and what tells the current one, allocates and frees."""
    driver, on, pointer = api(), device(index), ctypes.c_void_p
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = index
    with on.current(), library.unrecorded():  # the first to ask may be a stream that is recording
        pool = call("cuMemPoolCreate", properties)
        keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call("cuMemPoolSetAttribute", pool, keep, driver.cuuint64_t(2**64 - 1))
    return (int(pool), int(on.context), entry("cuCtxGetCurrent", pointer),
            entry("cuMemAllocFromPoolAsync", pointer, ctypes.c_size_t, pointer, pointer),
            entry("cuMemFreeAsync", pointer, pointer))


def _zeroed(on: Device, size: int) -> Memory:
    """Memory full of zeros, also for a stream that is recording."""
    with on.current(), library.unrecorded():
        memory, stream = Memory(on, size), Stream(on)
        fill(memory.pointer, 0, size, stream.handle)
        stream.synchronize()
    return memory


os.register_at_fork(after_in_child=_pool.cache_clear)
workspaces = Workspaces(Memory, Block, fill, prepare=lambda on: _pool(on.index), zeroed=_zeroed)


def tensor_map(described: TiledMap | ImageMap, address: int) -> bytes:
    """A tensor map of memory at this address, 128 bytes, as a kernel's TensorMap parameter takes it. ValueError, with
    the reasons, for what no device can do."""
    return TensorMaps(described)(address)


class TensorMaps:
    """Tensor maps of memory at one address after the other: calling it with an address gives the map. The last ones are
    kept, since the driver takes a microsecond for each."""

    MOST = 256

    def __init__(self, described: TiledMap | ImageMap, on: Device | None = None) -> None:
        """`on`: the device of the memory."""
        described.check()
        driver, tile, rank = api(), described.tile, len(described.dims)

        def enumerator(enumeration: str, name: str) -> int:
            return int(getattr(getattr(driver, enumeration), f"CU_TENSOR_MAP_{name}"))
        swizzle, l2 = (f"{bytes}B" if bytes else "NONE" for bytes in (tile.swizzle, described.l2))
        filled = "NAN_REQUEST_ZERO_FMA" if described.nan else "NONE"
        longs, words, corner = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank, ctypes.c_int * rank
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        shape: tuple[Any, ...]
        types: tuple[Any, ...]
        steps: tuple[int, ...]
        if isinstance(described, ImageMap):
            shape, types = (corner(0, 0), corner(*described.last), *tile.box), (pointer, pointer, number, number)
            steps, self.name = (1, *described.steps, 1), "cuTensorMapEncodeIm2col"
        else:
            shape, types = (words(*tile.box),), (pointer,)
            steps, self.name = tile.steps or (1,) * rank, "cuTensorMapEncodeTiled"
        self.described, self.device, self.found = described, on or device(), dict[int, bytes]()
        self.before = enumerator("CUtensorMapDataType", f"DATA_TYPE_{ELEMENTS[tile.element][0]}"), rank
        self.arrays = longs(*described.dims), longs(*described.strides), *shape, words(*steps)
        self.after = (enumerator("CUtensorMapInterleave", "INTERLEAVE_NONE"),
                      enumerator("CUtensorMapSwizzle", f"SWIZZLE_{swizzle}"),
                      enumerator("CUtensorMapL2promotion", f"L2_PROMOTION_{'L2_' * bool(described.l2)}{l2}"),
                      enumerator("CUtensorMapFloatOOBfill", f"FLOAT_OOB_FILL_{filled}"))
        self._encode = entry(self.name, pointer, number, number, *[pointer] * 3, *types, pointer, *[number] * 4)

    def __call__(self, address: int) -> bytes:
        map_bytes = self.found.get(address)
        if map_bytes is None:
            if address % PIECE:         # all else was checked for any address
                self.described.check(address)
            room = ctypes.create_string_buffer(BYTES + ALIGN)
            at = -(-ctypes.addressof(room) // ALIGN) * ALIGN
            encoding = at, *self.before, address, *self.arrays, *self.after
            if self._encode(*encoding):
                with self.device.current():  # no context may have been
                    status = self._encode(*encoding)
                if status:
                    raise error(status, self.name, "", repr(self.described))
            if len(self.found) >= self.MOST:
                self.found = {}
            map_bytes = self.found[address] = ctypes.string_at(at, BYTES)
            if len(graphs.mapped) >= graphs.MOST_MAPPED:
                graphs.mapped.clear()
            graphs.mapped[map_bytes] = address
        return map_bytes


# ---- code


class CudaFunction(launches.Function):
    library = library

    def check(self) -> None:
        driver, infos = api(), []  # type: Any, list[tuple[int, int]]
        while True:
            status, offset, size = driver.cuFuncGetParamInfo(self.handle, len(infos))
            if status:
                break
            infos.append((int(offset), int(size)))
        if status != driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # there is no such parameter
            raise error(status, "cuFuncGetParamInfo", self.name)
        if infos != [(p.offset, p.size) for p in self.parameters]:
            raise ValueError(f"{self.name}: the manifest has parameters at {self.parameters}, and the code has "
                             f"(offset, size) = {infos}; they do not belong together")
        if self.dynamic:  # above 48 KiB a kernel has to ask for it
            which = library.attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES")
            call("cuFuncSetAttribute", self.handle, which, self.dynamic, kernel=self.name)


class Module(launches.Module):
    """PTX, which the driver assembles, or a cubin, in a device's memory."""

    library, functions = library, CudaFunction
    kept: ClassVar[Kept[Module]] = Kept(MOST_MODULES)

    def loaded(self, code: bytes) -> Any:
        wrong, jit = bytearray(LOG_BYTES), api().CUjit_option
        options = {jit.CU_JIT_ERROR_LOG_BUFFER: wrong, jit.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: LOG_BYTES}
        try:
            return call("cuModuleLoadDataEx", code + b"\0", len(options), list(options), list(options.values()))
        except CudaError as failed:
            first = re.search(rb"\.entry\s+([\w$]+)", code)  # there is none in machine code
            said = wrong.partition(b"\0")[0].decode(errors="replace").strip()
            raise error(failed.code, failed.function, first[1].decode() if first else "", said) from None


load = Module.load


# ---- launches


class Answers:
    """What the driver says at every product, asked by the shortest way. An object is one thread's at a time.

    The room for answers is made once. Of a default stream a thread can only ask while the device's context is current.
    """

    __slots__ = ("_get_number", "_is_capturing", "at", "get_context", "room")

    def __init__(self) -> None:
        pointer = ctypes.c_void_p
        self.room = ctypes.c_uint64()
        self.at = ctypes.addressof(self.room)
        self.get_context = entry("cuCtxGetCurrent", pointer)
        self._is_capturing = entry("cuStreamIsCapturing", pointer, pointer)
        self._get_number = entry("cuStreamGetId", pointer, pointer)

    def is_capturing(self, stream: int) -> bool:
        """Is this stream recording a graph?"""
        self.room.value = 0  # the answer fills half of it
        status = self._is_capturing(stream, self.at)
        if status:
            raise error(status, "cuStreamIsCapturing")
        return self.room.value != 0

    def resting(self, stream: int, context: int) -> int | None:
        """The stream's own number; None while it is recording a graph, or if another context is current."""
        at, room = self.at, self.room
        if self.get_context(at) or room.value != context:
            return None
        room.value = 0
        if self._is_capturing(stream, at) or room.value or self._get_number(stream, at):
            return None
        return room.value

    def number(self, stream: int) -> int:
        """The stream's own, which no other stream of this process will have."""
        status = self._get_number(stream, self.at)
        if status:
            raise error(status, "cuStreamGetId")
        return self.room.value


class Arguments(launches.Arguments):
    """Arguments as cuLaunchKernelEx takes them: a table, at `address`, of where each is in the block; with room for
    what the driver answers on the way."""

    __slots__ = ("address", "answers", "table")

    def __init__(self, block: bytes, parameters: Sequence[launches.Parameter]) -> None:
        super().__init__(block)
        first = ctypes.addressof(self.block)
        self.table = (ctypes.c_void_p * max(len(parameters), 1))(*(first + p.offset for p in parameters))
        self.address = ctypes.addressof(self.table)
        self.answers = Answers()


class Config(ctypes.Structure):
    """CUlaunchConfig: how, and on which stream, cuLaunchKernelEx launches."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


class Prepared(launches.Prepared):
    """A launch by cuLaunchKernelEx. A stream's handle is the fastest way to name it."""

    def __init__(self, function: CudaFunction, grid: Sequence[int], args: Args) -> None:
        super().__init__(function, grid, args)
        self.context = int(function.device.context)
        # Four arguments in place of cuLaunchKernel's eleven, each of which ctypes takes a tenth of a microsecond for.
        self._launch = entry("cuLaunchKernelEx", *[ctypes.c_void_p] * 4)
        self._handle = int(function.handle)
        self._configs: dict[int, tuple[int, Config]] = {}  # of each stream that records no graph, with its address
        if function.overlaps:
            graphs.overlapping[self._handle] = None if function.writes is None else tuple(
                i for i, p in enumerate(function.parameters) if p.name in function.writes)

    def arguments(self) -> Arguments:
        return Arguments(self.block, self.function.parameters)

    def spreads(self) -> bool:
        """Whether CTAs that come while the stream's last kernel ends find their places. Where several fit a
        multiprocessor, and there are more than multiprocessors, early ones crowd where there is room first: f32
        products of 1032 x 928 took 1.17 times as long on an H200."""
        f, chip = self.function, self.function.device.target
        return prod(self.grid) <= chip.sms or 2*(f.shared + f.dynamic) > chip.smem_sm

    def __call__(self, stream: Any = 0) -> None:
        self.attempt(stream, self._arguments)

    def attempt(self, stream: Any, arguments: Arguments) -> None:
        config = self._configs.get(stream) or self._configure(stream, arguments)
        if self._launch(config[0], self._handle, arguments.address, None):
            with self.function.device.current():  # another device's context may have been: the launch was refused then
                self.launch(stream, arguments)

    def launch(self, stream: int, arguments: Arguments) -> None:
        config = self._configs.get(stream) or self._configure(stream, arguments)
        status = self._launch(config[0], self._handle, arguments.address, None)
        if status:
            raise error(status, "cuLaunchKernelEx", self.function.name, self.described())

    def inside(self, launch: Callable[[int, Any], None], stream: int, arguments: Arguments) -> None:
        answers = arguments.answers
        if not answers.get_context(answers.at) and answers.room.value == self.context:
            launch(stream, arguments)
        else:
            with self.function.device.current():
                launch(stream, arguments)

    @staticmethod
    def together(stream: int, launches: Sequence[Sequence[Any]], blocks: Sequence[Any], at: int, size: int) -> None:
        """For the device that is current: where the program has allocated memory, it is."""
        if size:
            fill(at, 0, size, stream)
        for (function, *_), arguments in zip(launches, blocks):
            config = function._configs.get(stream) or function._configure(stream, arguments)
            if function._launch(config[0], function._handle, arguments.address, None):
                function.launch(stream, arguments)      # whose error has the driver's words

    def _early(self, arguments: Arguments) -> Iterator[int]:
        """The addresses of what it reads before the stream's last kernel has ended."""
        for p in self.function.parameters:
            if p.name in self.function.early:
                bytes = arguments.view[p.offset : p.offset + p.size]
                yield graphs.mapped.get(bytes.tobytes(), 0) if p.tile else int.from_bytes(bytes, "little")

    def _configure(self, stream: Any, arguments: Arguments) -> tuple[int, Config]:
        """In a graph behind a kernel of ours, this one begins before that has ended. Elsewhere it does not, as nothing
        is known of the kernel before: behind torch's, which let nothing begin, products of 4 us took 0.2 us more."""
        handle = handle_of(stream)
        config = Config(self.grid, (*self.function.threads, 1), self.function.dynamic, handle)
        entry = ctypes.addressof(config), config
        last = graphs.last_kernel(handle) if self.function.overlaps else None
        if last is not None:
            if last.handle in graphs.overlapping and (
                    graphs.apart(self._early(arguments), last) if self.function.early else self.spreads()):
                config.attributes, config.count = ctypes.addressof(graphs.OVERLAPS), 1
        elif type(stream) is int:  # an object would be kept
            if len(self._configs) >= MOST_STREAMS:
                self._configs = {}
            self._configs[stream] = entry
        return entry
