"""A CUDA driver without a GPU: memory in NumPy, kernels in the simulator, streams put off until somebody waits.

It takes the place of cuda.bindings.driver, whose enumerations and structures are the real ones; functions are called
with as many arguments as the real ones take. A stream is a queue that runs when it is synchronised, or when something
that another stream waits for is in it: work that is not ordered by a stream or an event is found in the wrong order.
What is done to memory that is not allocated, or no longer, raises, and so does what is done to a stream that is gone.

Kernels are found by name among all that this process has recorded, and loaded from real PTX.
"""

from __future__ import annotations

import ctypes
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.doubles.fake_device import HANDLES, FakeDevice, recorded
from tilewright.ir.types import Pointer, TensorMap, Texture
from tilewright.targets.tensor_maps import ELEMENTS, ImageMap, Mapped, Tile, TiledMap

real = pytest.importorskip("cuda.bindings.driver")

SUCCESS = real.CUresult.CUDA_SUCCESS
INVALID, CAPTURING, BAD_PTX = (
    real.CUresult.CUDA_ERROR_INVALID_VALUE,
    real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    real.CUresult.CUDA_ERROR_INVALID_PTX,
)
RELAXED = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
GLOBAL = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

H200 = {
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132, "CLOCK_RATE": 1_980_000,
    "L2_CACHE_SIZE": 60 << 20, "MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1 << 10, "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32, "TEXTURE_ALIGNMENT": 512, "MAXIMUM_TEXTURE1D_LINEAR_WIDTH": 1 << 27,
}


POINTER, NUMBER = ctypes.c_void_p, ctypes.c_uint
# What cuGetProcAddress gives: the types of arguments, and of the result that goes where the last of them points, or the
# first of what allocates.
ENTRIES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "cuLaunchKernelEx": ((POINTER,) * 4, None),
    "cuCtxGetCurrent": ((POINTER,), ctypes.c_uint64),
    "cuMemAllocFromPoolAsync": ((POINTER, ctypes.c_size_t, POINTER, POINTER), ctypes.c_uint64),
    "cuMemFreeAsync": ((POINTER, POINTER), None),
    "cuStreamIsCapturing": ((POINTER, POINTER), ctypes.c_int),
    "cuStreamGetId": ((POINTER, POINTER), ctypes.c_uint64),
    "cuStreamGetCaptureInfo": ((POINTER,) * 6, None),
    "cuGraphNodeGetType": ((POINTER, POINTER), ctypes.c_int),
    "cuGraphKernelNodeGetParams": ((POINTER, POINTER), None),
    "cuPointerGetAttribute": ((POINTER, ctypes.c_int, ctypes.c_uint64), None),
    "cuMemsetD32Async": ((ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t, POINTER), None),
    "cuTensorMapEncodeTiled": ((POINTER, NUMBER, NUMBER, *(POINTER,) * 5, *(NUMBER,) * 4), None),
    "cuTensorMapEncodeIm2col": ((POINTER, NUMBER, NUMBER, *(POINTER,) * 5, NUMBER, NUMBER, POINTER, *(NUMBER,) * 4),
                                None),
}


class FakeDriver(FakeDevice):
    """The module. `attributes` are those of every device."""

    def __init__(self, devices: int = 1) -> None:
        self.start(devices, alignment=512)
        self.attributes = dict(H200)
        self.contexts: list[int] = []  # the calling thread's, the current one last
        self.mode = GLOBAL
        self.nodes: dict[int, tuple[int, int, Any]] = {}    # of graphs: a function, attributes of the launch, addresses
        self.queues: dict[int, list[Callable[[], None]]] = {}
        self.captures: dict[int, list[Callable[[], None]]] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.modules: dict[int, bytes] = {}
        self.homes: dict[int, int] = {}  # the context of each module and function
        self.images: dict[int, bytes] = {}  # the code of each function
        self.functions: dict[int, tuple[str, tuple[tuple[int, int], ...], int]] = {}
        self.textures: dict[int, tuple[int, int]] = {}
        self.maps: list[Mapped] = []  # of tensors
        self.gone: set[int] = set()  # streams that have been destroyed
        self.standing: set[int] = set()  # blocks that are of no pool
        self.entries: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """The real enumerations and structures; functions of ours, called as the real ones are."""
        theirs = getattr(real, name)
        if not name.startswith("cu") or name.startswith("cuuint"):
            return theirs
        function = getattr(Functions, name, None)
        assert function, f"the fake driver has no {name}"
        takes = _count(theirs.__doc__.strip().splitlines()[0])

        def called(*args: Any) -> tuple[Any, ...]:
            assert len(args) == takes, f"{name} takes {takes} arguments, not {len(args)}"
            self.log.append((name, args))
            if name in self.fail:
                return real.CUresult(self.fail[name]), None
            found = function(self, *args)
            return found if isinstance(found, tuple) else (SUCCESS,) if found is None else (SUCCESS, found)

        return called

    # ---- what tests do beside

    def new(self) -> int:
        return next(HANDLES)

    def give(self, stream: Any, work: Callable[[], None]) -> None:
        """Append to a stream, or to the graph that it is recording."""
        self.there(stream)
        stream = int(stream) or 1
        self.captures.get(stream, self.queues.setdefault(stream, [])).append(work)

    def run(self, stream: Any) -> None:
        """All that the stream was given."""
        queue = self.queues.get(int(stream) or 1, [])
        while queue:
            queue.pop(0)()

    def there(self, stream: Any) -> None:
        """The real driver follows the pointer that a handle is."""
        assert int(stream) not in self.gone, f"the process would have crashed: stream {int(stream)} is destroyed"


def _count(signature: str) -> int:
    """Parameters in a line like "f(a, list[b] c: Optional[tuple[x, y]])"."""
    inside, depth, count = signature[signature.index("(") + 1 : signature.rindex(")")], 0, 1
    for char in inside:
        depth += (char in "[(") - (char in ")]")
        count += char == "," and depth == 0
    return count if inside.strip() else 0


class Functions:
    """Each takes what the real one takes, and gives its result or nothing, or a status and results."""

    def cuInit(self: Any, flags: int) -> None: ...

    def cuDeviceGetCount(self: Any) -> int:
        return self.devices

    def cuDeviceGet(self: Any, index: int) -> int:
        return index

    def cuDeviceGetName(self: Any, size: int, device: int) -> bytes:
        return b"NVIDIA fake H200\0\0"

    def cuDeviceGetPCIBusId(self: Any, size: int, device: int) -> bytes:
        return b"0000:%02x:00.0\0" % device

    def cuDeviceTotalMem(self: Any, device: int) -> int:
        return 141 << 30

    def cuDriverGetVersion(self: Any) -> int:
        return 13000

    def cuDeviceGetAttribute(self: Any, which: Any, device: int) -> int:
        return self.attributes[which.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuGetErrorName(self: Any, status: Any) -> bytes:
        return status.name.encode()

    def cuGetErrorString(self: Any, status: Any) -> bytes:
        return b"CUDA's words for " + status.name.encode()

    def cuGetProcAddress(self: Any, name: bytes, version: int, flags: int) -> Any:
        if name.decode() not in self.entries:
            self.entries[name.decode()] = _entry(self, name.decode())
        address = ctypes.cast(self.entries[name.decode()], ctypes.c_void_p).value
        return SUCCESS, address, real.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS

    # ---- contexts: 0x70 + device

    def cuDevicePrimaryCtxRetain(self: Any, device: int) -> Any:
        return real.CUcontext(0x70 + device)

    def cuCtxGetCurrent(self: Any) -> Any:
        return real.CUcontext(self.contexts[-1] if self.contexts else 0)

    def cuCtxPushCurrent(self: Any, context: Any) -> None:
        self.contexts.append(int(context))

    def cuCtxPopCurrent(self: Any) -> Any:
        return real.CUcontext(self.contexts.pop())

    def cuCtxSynchronize(self: Any) -> None:
        for stream in list(self.queues):
            self.run(stream)

    # ---- modules

    def cuModuleLoadDataEx(self: Any, image: bytes, count: int, options: list, values: list) -> Any:
        given = dict(zip(options, values))
        if self.captures and self.mode != RELAXED:
            return CAPTURING, None
        if b".entry" not in image or b"bad" in image:
            words = b"ptxas application ptx input, line 3; fatal   : Parsing error near 'bad': syntax error"
            given[real.CUjit_option.CU_JIT_ERROR_LOG_BUFFER][: len(words)] = words
            return BAD_PTX, None
        handle = self.new()
        self.modules[handle], self.homes[handle] = image, self.contexts[-1]
        return real.CUmodule(handle)

    def cuModuleUnload(self: Any, module: Any) -> None:
        self.modules.pop(int(module), None)

    def cuModuleGetFunction(self: Any, module: Any, name: bytes) -> Any:
        image = self.modules[int(module)]
        if name.decode() not in _entries(image):
            return real.CUresult.CUDA_ERROR_NOT_FOUND, None
        text = image.decode().rstrip("\0").partition(f".entry {name.decode()}(")[2].partition(")")[0]
        handle = self.new()
        # bytes of arrays, and of single numbers, as LLVM writes arrays of one
        static = [int(size) if size else int(bits) // 8 for bits, size in
                  re.findall(r"^\s*\.shared \.align \d+ \.[bufs](\d+) [^\[;]*(?:\[(\d+)\])?;", image.decode(), re.M)]
        self.homes[handle], self.images[handle] = self.homes[int(module)], image.rstrip(b"\0")
        self.functions[handle] = name.decode(), _parameters(text), sum(static)
        return real.CUfunction(handle)

    def cuFuncGetAttribute(self: Any, which: Any, function: Any) -> int:
        shared = self.functions[int(function)][2]
        found = {"NUM_REGS": 40, "SHARED_SIZE_BYTES": shared, "LOCAL_SIZE_BYTES": 0, "MAX_THREADS_PER_BLOCK": 1024}
        return found[which.name.removeprefix("CU_FUNC_ATTRIBUTE_")]

    def cuFuncSetAttribute(self: Any, function: Any, which: Any, value: int) -> Any:
        return (INVALID if value > self.attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] else SUCCESS,)

    def cuFuncGetParamInfo(self: Any, function: Any, index: int) -> Any:
        places = self.functions[int(function)][1]
        return (SUCCESS, *places[index]) if index < len(places) else (INVALID, 0, 0)

    def cuLaunchKernelEx(self: Any, config: int, f: Any, params: int, extra: int) -> Any:
        if not self.contexts:
            return (real.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        if self.contexts[-1] != self.homes[int(f)]:
            return (real.CUresult.CUDA_ERROR_INVALID_HANDLE,)
        how = real.CUlaunchConfig(config)
        gx, gy, gz, bx, by, bz = how.gridDimX, how.gridDimY, how.gridDimZ, how.blockDimX, how.blockDimY, how.blockDimZ
        shared, stream = how.sharedMemBytes, int(how.hStream)
        assert how.numAttrs <= (b"griddepcontrol.wait" in self.images[int(f)])
        if gx * gy * gz == 0 or bx * by * bz > 1024 or shared > self.attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]:
            return (INVALID,)
        name, places, static = self.functions[int(f)]
        function = recorded(name, self.images[int(f)])
        assert (bx, by, bz) == (*function.threads, 1)
        assert static + shared >= function.shared_bytes
        assert not shared or not static
        table = (ctypes.c_void_p * len(places)).from_address(params)
        args = [_argument(self, value.type, at) for at, (_, value) in zip(table, function.params, strict=True)]

        def work() -> None:
            self.launched(function, args, (gx, gy, gz), stream)
        if int(stream) in self.captures:
            values = (ctypes.c_uint64 * len(args))(*(x if isinstance(value.type, Pointer) else 0
                                                     for x, (_, value) in zip(args, function.params)))
            self.nodes[id(work)] = int(f), how.numAttrs, values
        self.give(stream, work)
        return (SUCCESS,)

    # ---- memory

    def cuMemPoolCreate(self: Any, properties: Any) -> Any:
        assert properties.location.id < self.devices
        return real.CUmemoryPool(self.new())

    def cuMemPoolSetAttribute(self: Any, pool: Any, which: Any, value: Any) -> None: ...

    def cuMemAllocFromPoolAsync(self: Any, size: int, pool: Any, stream: Any) -> Any:
        assert size > 0
        self.there(stream)
        address = self.allocated(size)
        return real.CUdeviceptr(address)

    def cuMemAlloc(self: Any, size: int) -> Any:
        if self.captures and self.mode != RELAXED:
            return CAPTURING, None
        pointer = Functions.cuMemAllocFromPoolAsync(self, size, None, 0)
        self.standing.add(int(pointer))
        return pointer

    def cuMemFree(self: Any, pointer: int) -> Any:
        if self.captures and self.mode != RELAXED:
            return (CAPTURING,)
        assert int(pointer) in self.standing, "memory of a pool would be freed under a kernel that uses it"
        Functions.cuCtxSynchronize(self)
        del self.blocks[int(pointer)]
        self.freed.add(int(pointer))
        return (SUCCESS,)

    def cuMemFreeAsync(self: Any, pointer: int, stream: Any) -> None:
        self.there(stream)
        del self.blocks[int(pointer)]  # nobody may free it twice
        if int(stream) not in self.captures:  # a graph's memory is there whenever it is launched
            self.give(stream, lambda: self.freed.add(int(pointer)))

    def cuMemcpyHtoDAsync(self: Any, to: int, source: int, size: int, stream: Any) -> None:
        content = bytes((ctypes.c_uint8 * size).from_address(source))  # staged, as pageable memory is
        self.give(
            stream, lambda: self.bytes_at(int(to), size).__setitem__(slice(None), np.frombuffer(content, np.uint8))
        )

    def cuMemcpyDtoHAsync(self: Any, to: int, source: int, size: int, stream: Any) -> Any:
        if int(stream) in self.captures:
            return (CAPTURING,)

        def work() -> None:
            ctypes.memmove(to, self.bytes_at(int(source), size).tobytes(), size)

        self.give(stream, work)
        return (SUCCESS,)

    def cuMemsetD8Async(self: Any, to: int, value: int, count: int, stream: Any) -> None:
        self.give(stream, lambda: self.bytes_at(int(to), count).fill(value))

    def cuMemsetD32Async(self: Any, to: int, value: int, count: int, stream: Any) -> None:
        self.give(stream, lambda: self.bytes_at(int(to), 4 * count).view(np.uint32).fill(value))

    def cuPointerGetAttribute(self: Any, which: Any, pointer: int) -> Any:
        assert which == real.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return 0 if self.memory.find(int(pointer)) else (INVALID, None)

    def cuTexObjectCreate(self: Any, memory: Any, how: Any, view: Any) -> int:
        linear = memory.res.linear
        handle = self.new()
        self.textures[handle] = int(linear.devPtr), int(linear.sizeInBytes)
        return handle

    def encoded(self: Any, to: int, element: int, rank: int, address: int, dims: int, strides: int, *more: int) -> int:
        """cuTensorMapEncodeTiled or, with four arguments more, cuTensorMapEncodeIm2col by its address. The map itself
        is the number of what it stands for."""
        if not self.contexts:
            return int(real.CUresult.CUDA_ERROR_INVALID_CONTEXT)
        names = {f"CU_TENSOR_MAP_DATA_TYPE_{theirs}": ours for ours, (theirs, _) in ELEMENTS.items()}
        *shape, steps, interleave, swizzle, l2, fill = more
        assert to % 64 == interleave == 0

        def numbers(at: int, count: int, t: Any) -> tuple[int, ...]:
            return tuple((t * count).from_address(at))
        apart = numbers(steps, rank, ctypes.c_uint32)
        extents = numbers(dims, rank, ctypes.c_uint64), numbers(strides, rank - 1, ctypes.c_uint64)
        kind, pattern, fetched = names[real.CUtensorMapDataType(element).name], (0, 32, 64, 128)[swizzle], (
            0, 64, 128, 256)[l2]
        described: Any
        if len(shape) == 1:
            tile = Tile(kind, numbers(shape[0], rank, ctypes.c_uint32), pattern,
                        apart if any(step != 1 for step in apart) else ())
            described = TiledMap(tile, *extents, fetched, bool(fill))
        else:
            first, last = (numbers(x, 2, ctypes.c_int) for x in shape[:2])
            assert first == (0, 0)
            assert apart[::3] == (1, 1)
            assert not fill
            tile = Tile(kind, (shape[2], shape[3]), pattern, images=True)
            described = ImageMap(tile, *extents, last, apart[1:3], fetched)
        self.log.append((f"cuTensorMapEncode{'Im2col' if tile.images else 'Tiled'}", (described, address)))
        if [*tile.violations(), *described.violations(address)]:
            return int(INVALID)
        self.maps.append(Mapped(described, address))
        (ctypes.c_uint64 * 16).from_address(to)[:] = [len(self.maps) - 1] * 16
        return 0

    def cuTexObjectDestroy(self: Any, handle: int) -> None:
        self.textures.pop(handle, None)

    # ---- streams, events, graphs

    def cuStreamCreate(self: Any, flags: int) -> Any:
        return real.CUstream(self.new())

    def cuStreamDestroy(self: Any, stream: Any) -> None:
        self.there(stream)
        self.run(stream)
        self.gone.add(int(stream))

    def cuStreamGetId(self: Any, stream: Any) -> int:
        self.there(stream)
        return int(stream) + (1 << 32)

    def cuStreamSynchronize(self: Any, stream: Any) -> Any:
        self.there(stream)
        if (int(stream) or 1) in self.captures:
            return (CAPTURING,)
        self.run(stream)
        return (SUCCESS,)

    def cuStreamIsCapturing(self: Any, stream: Any) -> Any:
        self.there(stream)
        return real.CUstreamCaptureStatus(int((int(stream) or 1) in self.captures))

    def captured(self: Any, stream: int, status: int, number: int, graph: int, nodes: int, count: int) -> int:
        """cuStreamGetCaptureInfo."""
        works = self.captures.get(stream or 1)
        ctypes.c_uint64.from_address(status).value = works is not None
        ctypes.c_uint64.from_address(count).value = bool(works)
        if works:
            self.last = ctypes.c_uint64(id(works[-1]))
            ctypes.c_uint64.from_address(nodes).value = ctypes.addressof(self.last)
        return 0

    def cuGraphNodeGetType(self: Any, node: int) -> Any:
        return real.CUgraphNodeType(node not in self.nodes)

    def node_params(self: Any, node: int, params: int) -> int:
        """cuGraphKernelNodeGetParams."""
        function, _, values = self.nodes[node]
        self.table = (ctypes.c_uint64 * len(values))(*(ctypes.addressof(values) + 8*i for i in range(len(values))))
        words = (ctypes.c_uint64 * 9).from_address(params)
        words[0], words[5] = function, ctypes.addressof(self.table)
        return 0

    def attribute_of(self: Any, answer: int, which: int, address: int) -> int:
        """cuPointerGetAttribute."""
        found = self.memory.find(address)
        ctypes.c_uint64.from_address(answer).value = bool(found) if which == 10 else found.base if found else 0
        return 0 if found else int(INVALID)

    def cuStreamWaitEvent(self: Any, stream: Any, event: Any, flags: int) -> None:
        before = event.at
        self.give(stream, lambda: before())

    def cuThreadExchangeStreamCaptureMode(self: Any, mode: Any) -> Any:
        before, self.mode = self.mode, mode
        return before

    def cuStreamBeginCapture(self: Any, stream: Any, mode: Any) -> None:
        self.captures[int(stream)] = []

    def cuStreamEndCapture(self: Any, stream: Any) -> int:
        handle = self.new()
        self.graphs[handle] = self.captures.pop(int(stream))
        return handle

    def cuGraphInstantiate(self: Any, graph: int, flags: int) -> int:
        handle = self.new()
        self.graphs[handle] = list(self.graphs[graph])
        return handle

    def cuGraphLaunch(self: Any, graph: int, stream: Any) -> None:
        for work in self.graphs[graph]:
            self.give(stream, work)

    def cuGraphDestroy(self: Any, graph: int) -> None:
        self.graphs.pop(graph, None)

    cuGraphExecDestroy = cuGraphDestroy

    def cuEventCreate(self: Any, flags: int) -> Any:
        return FakeEvent()

    def cuEventRecord(self: Any, event: Any, stream: Any) -> None:
        stream, event.times = int(stream) or 1, (done := [])
        self.give(stream, lambda: done.append(self.clock))

        def wait() -> None:
            queue = self.queues[stream]
            while not done:
                queue.pop(0)()

        event.at = wait

    def cuEventSynchronize(self: Any, event: Any) -> None:
        event.at()

    def cuEventElapsedTime(self: Any, start: Any, end: Any) -> Any:
        if not start.times or not end.times:
            return real.CUresult.CUDA_ERROR_NOT_READY, None
        return end.times[0] - start.times[0]

    def cuEventDestroy(self: Any, event: Any) -> None: ...


class FakeEvent:
    at: Callable[[], None]
    times: list[float]  # when it happened


def _entries(image: bytes) -> list[str]:
    return re.findall(r"\.entry\s+([\w$]+)", image.decode(errors="replace"))


_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.[a-z]+(\d+)[^,\[]*(?:\[(\d+)\])?")


def _parameters(text: str) -> tuple[tuple[int, int], ...]:
    """(offset, size) of the parameters that are declared in this text: each is at the next multiple of its alignment,
    a number's or an address's of its size, in sm_90's bank of constants, where they begin 16 bytes past one of 64."""
    found, end, bank = [], 0, 16
    for align, width, count in _PARAMETER.findall(text):
        size = int(width) // 8 * int(count or 1)
        unit = int(align or size)
        offset = -(-(bank + end) // unit) * unit - bank
        found.append((offset, size))
        end = offset + size
    return tuple(found)


def _argument(fake: FakeDriver, t: Any, at: int) -> Any:
    """The argument of this type at an address of the host's."""
    if isinstance(t, TensorMap):
        words = (ctypes.c_uint64 * 16).from_address(at)
        assert len(set(words)) == 1, "no tensor map, or not at a multiple of 64 bytes"
        return fake.maps[words[0]]
    if isinstance(t, Texture):
        where, size = fake.textures[ctypes.c_uint64.from_address(at).value]
        return fake.bytes_at(where, size).view(t.element.numpy)
    if isinstance(t, Pointer):
        return ctypes.c_uint64.from_address(at).value
    return np.frombuffer((ctypes.c_uint8 * t.bytes).from_address(at), t.numpy)[0].copy()


# Those that answer in other places than one.
BY_POINTERS: dict[str, Callable[..., int]] = {
    "cuStreamGetCaptureInfo": Functions.captured, "cuGraphKernelNodeGetParams": Functions.node_params,
    "cuPointerGetAttribute": Functions.attribute_of}


def _entry(fake: FakeDriver, name: str) -> Any:
    """A function at an address, for C to call. An exception cannot pass through C: it is printed, and a status."""
    types, result = ENTRIES[name]
    to = 0 if name.startswith("cuMemAlloc") else len(types) - 1

    def called(*args: Any) -> int:
        given = [x or 0 for i, x in enumerate(args) if i != to or not result]  # ctypes has None for a null pointer
        try:
            if name.startswith("cuTensorMapEncode"):
                return Functions.encoded(fake, *given)
            if name in BY_POINTERS:
                return BY_POINTERS[name](fake, *given)
            status, *found = getattr(fake, name)(*given)
        except Exception:
            traceback.print_exc()
            return int(real.CUresult.CUDA_ERROR_UNKNOWN)
        if result and not status:
            result.from_address(args[to]).value = int(found[0])
        return int(status)

    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)


def install(monkeypatch: pytest.MonkeyPatch, devices: int = 1) -> FakeDriver:
    """The fake instead of the driver for one test, and no memory of what there was before."""
    import cuda.bindings

    from tilewright.runtime import repeats
    from tilewright.runtime.cuda import driver, module
    from tilewright.runtime.gpu import engine

    fake = FakeDriver(devices)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    monkeypatch.setattr(cuda.bindings, "driver", fake, raising=False)
    monkeypatch.setattr(driver.library, "loaded", None)
    monkeypatch.setattr(driver.library, "entries", {})
    for kept in (module.device, module.Module.kept, module.workspaces, engine.NVIDIA.prepared):
        monkeypatch.setattr(kept, "found", {})
    monkeypatch.setattr(module.workspaces, "zeros", {})
    monkeypatch.setattr(repeats, "records", {})
    module._pool.cache_clear()
    return fake
