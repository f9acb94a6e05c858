"""HIP without a GPU: memory in NumPy, kernels in the simulator, streams put off until somebody waits.

It takes the place of hip-python's module hip.hip; SIGNATURES are what that package shows for its own functions, and
tests/runtime/hip/test_hip_runtime.py compares them where the package is installed, and runs the same through it. Every
call is recorded with its arguments, which are checked as HIP's runtime and hip-python check them; where the real thing
would have crashed or quietly read something else, an assertion fails. Arguments of a launch are read from the block
where the code object's own metadata says that they are, not where tilewright's manifest does.

Kernels are found by their code among what `compiler.amd` has compiled in this process, else by name among all that it
has recorded.
"""

from __future__ import annotations

import ctypes
import enum
import sys
import types
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import pytest

from tests.doubles.fake_device import HANDLES, FakeDevice, recorded
from tests.helpers import code_object
from tilewright.compiler import amd
from tilewright.ir import Function
from tilewright.ir.types import Pointer

COMPILED: dict[bytes, Any] = {}  # kernels by their code objects: names are not all different


def _compiling(code_object: Callable[..., bytes]) -> Callable[..., bytes]:
    @wraps(code_object)
    def compiled(functions: Any, target: Any, **options: Any) -> bytes:
        image = code_object(functions, target, **options)
        every = [functions] if isinstance(functions, Function) else list(functions)
        if len(every) == 1:
            COMPILED[image] = every[0]
        return image

    return compiled


amd.code_object = _compiling(amd.code_object)

# From hip-python 7.2 and 10.0: the names of parameters, in order.
SIGNATURES = {
    "hipInit": "flags", "hipGetErrorString": "hipError", "hipGetLastError": "", "hipGetDeviceCount": "",
    "hipGetDevice": "", "hipSetDevice": "deviceId", "hipDeviceGetName": "len device", "hipDeviceTotalMem": "device",
    "hipDeviceGetAttribute": "attr deviceId", "hipRuntimeGetVersion": "",
    "hipModuleLoadData": "image", "hipModuleUnload": "module", "hipModuleGetFunction": "module kname",
    "hipFuncGetAttribute": "attrib hfunc", "hipModuleLaunchKernel":
    "f gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes stream kernelParams extra",
    "hipStreamCreateWithFlags": "flags", "hipStreamDestroy": "stream", "hipStreamSynchronize": "stream",
    "hipStreamWaitEvent": "stream event flags", "hipEventCreateWithFlags": "flags", "hipEventRecord": "event stream",
    "hipEventSynchronize": "event", "hipEventElapsedTime": "start stop", "hipEventDestroy": "event",
    "hipMalloc": "size", "hipFree": "ptr", "hipMemcpy": "dst src sizeBytes kind", "hipMallocAsync": "size stream",
    "hipFreeAsync": "dev_ptr stream", "hipMemsetD32Async": "dst value count stream", "hipStreamIsCapturing": "stream",
}


class hipError_t(enum.IntEnum):
    hipSuccess = 0
    hipErrorInvalidValue = 1
    hipErrorOutOfMemory = 2
    hipErrorNotInitialized = 3
    hipErrorInvalidConfiguration = 9
    hipErrorNoDevice = 100
    hipErrorInvalidDevice = 101
    hipErrorInvalidImage = 200
    hipErrorNoBinaryForGpu = 209
    hipErrorInvalidHandle = 400
    hipErrorNotFound = 500
    hipErrorNotReady = 600
    hipErrorIllegalAddress = 700
    hipErrorLaunchFailure = 719


class hipDeviceAttribute_t(enum.IntEnum):
    hipDeviceAttributeClockRate = 5
    hipDeviceAttributeMultiprocessorCount = 63


class hipFunction_attribute(enum.IntEnum):
    HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0
    HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1
    HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3
    HIP_FUNC_ATTRIBUTE_NUM_REGS = 4


class hipMemcpyKind(enum.IntEnum):
    hipMemcpyHostToHost = 0
    hipMemcpyHostToDevice = 1
    hipMemcpyDeviceToHost = 2
    hipMemcpyDeviceToDevice = 3


class hipStreamCaptureStatus(enum.IntEnum):
    hipStreamCaptureStatusNone = 0
    hipStreamCaptureStatusActive = 1


ENUMS = (hipError_t, hipDeviceAttribute_t, hipFunction_attribute, hipMemcpyKind, hipStreamCaptureStatus)
SUCCESS, INVALID, HANDLE = hipError_t.hipSuccess, hipError_t.hipErrorInvalidValue, hipError_t.hipErrorInvalidHandle
MI300X = {"ClockRate": 2_100_000, "MultiprocessorCount": 304}
LDS = {"gfx942": 64 << 10, "gfx950": 160 << 10}


class Handle:
    """What hip-python gives for a handle or a pointer."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __int__(self) -> int:
        return self.at


class hipDeviceProp_t:
    gcnArchName: Any = b""  # a str since hip-python 10


def address(x: Any) -> int:
    """The pointer that hip-python makes of an argument: of None, an address, a handle, or anything with a buffer."""
    if x is None:
        return 0
    if isinstance(x, Handle):
        return x.at
    if isinstance(x, int):
        return x
    if isinstance(x, bytes):
        return ctypes.cast(ctypes.c_char_p(x), ctypes.c_void_p).value or 0
    assert isinstance(x, (ctypes.Array, bytearray)), f"hip-python takes no {type(x).__name__} for a pointer"
    return ctypes.addressof((ctypes.c_char * len(x)).from_buffer(x) if isinstance(x, bytearray) else x)


class FakeHip(FakeDevice, types.ModuleType):
    """The module. `old`: device properties as hip-python 6 and 7 give them."""

    def __init__(self, arch: str = "gfx942", devices: int = 1, old: bool = False) -> None:
        types.ModuleType.__init__(self, "hip.hip")
        self.start(devices, alignment=256)
        self.arch, self.old, self.attributes = arch, old, dict(MI300X)
        self.last = 0  # what hipGetLastError will say
        self.current = 0  # the calling thread's device
        self.queues: dict[int, list[Callable[[], None]]] = {0: []}
        self.homes: dict[int, int] = {}  # the device of each stream, module and function
        self.modules: dict[int, tuple[bytes, code_object.CodeObject]] = {}
        self.functions: dict[int, dict[str, Any]] = {}
        self.recorded: dict[int, Any] = {}  # the kernel of each function
        self.capturing: set[int] = set()  # streams that are said to be recording a graph
        self.events: dict[int, Any] = {}
        for enumeration in ENUMS:
            setattr(self, enumeration.__name__, enumeration)
        self.hipDeviceProp_t = hipDeviceProp_t
        for name, parameters in SIGNATURES.items():
            setattr(self, name, self._function(name, len(parameters.split())))
        self.hipGetDeviceProperties = self._properties()

    def _function(self, name: str, takes: int) -> Callable[..., tuple[Any, ...]]:
        def called(*args: Any) -> tuple[Any, ...]:
            assert len(args) == takes, f"{name} takes {takes} arguments, not {len(args)}"
            self.log.append((name, args))
            if name in self.fail:
                self.last = self.fail[name]
                return hipError_t(self.fail[name]), None
            found = getattr(Functions, name)(self, *args)
            found = found if isinstance(found, tuple) else (SUCCESS,) if found is None else (SUCCESS, found)
            if name != "hipGetLastError":
                self.last = found[0] or self.last
            return found

        return called

    def _properties(self) -> Any:
        if self.old:

            def filled(prop: hipDeviceProp_t, deviceId: int) -> tuple[Any, ...]:
                """hipGetDeviceProperties(prop, int deviceId)"""
                prop.gcnArchName = f"{self.arch}:sramecc+:xnack-".encode()
                return (SUCCESS,)

            return filled

        def returned(deviceId: int) -> tuple[Any, ...]:
            """hipGetDeviceProperties(int deviceId)"""
            prop = hipDeviceProp_t()
            prop.gcnArchName = f"{self.arch}:sramecc+:xnack-"
            return SUCCESS, prop

        return returned

    # ---- what tests do beside

    def new(self, home: bool = True) -> int:
        handle = next(HANDLES)
        if home:
            self.homes[handle] = self.current
        return handle

    def queue(self, stream: Any) -> list[Callable[[], None]]:
        handle = address(stream)
        assert handle in self.queues, f"the process would have crashed: there is no stream {handle}"
        return self.queues[handle]

    def run(self, stream: Any) -> None:
        queue = self.queue(stream)
        while queue:
            queue.pop(0)()


class Functions:
    """Each takes what the real one takes, and gives its result or nothing, or a status and results."""

    def hipInit(self: FakeHip, flags: int) -> Any:
        return (SUCCESS if flags == 0 else INVALID,)

    def hipGetErrorString(self: FakeHip, error: hipError_t) -> bytes:
        return b"a text of HIP's\0 and what was there before"

    def hipGetLastError(self: FakeHip) -> Any:
        last, self.last = self.last, 0
        return (hipError_t(last),)

    def hipGetDeviceCount(self: FakeHip) -> Any:
        return self.devices if self.devices else (hipError_t.hipErrorNoDevice, 0)

    def hipGetDevice(self: FakeHip) -> int:
        return self.current

    def hipSetDevice(self: FakeHip, index: int) -> Any:
        if not 0 <= index < self.devices:
            return (hipError_t.hipErrorInvalidDevice,)
        self.current = index
        return None

    def hipDeviceGetName(self: FakeHip, size: int, device: int) -> bytes:
        return b"AMD Instinct MI300X\0\xff\xfe"[:size]

    def hipDeviceTotalMem(self: FakeHip, device: int) -> int:
        return 192 << 30

    def hipDeviceGetAttribute(self: FakeHip, which: Any, device: int) -> int:
        return self.attributes[which.name.removeprefix("hipDeviceAttribute")]

    def hipRuntimeGetVersion(self: FakeHip) -> int:
        return 70226015

    # ---- modules and kernels

    def hipModuleLoadData(self: FakeHip, image: Any) -> Any:
        assert type(image) is bytes
        try:
            found = code_object.read(image)
        except ValueError:
            return hipError_t.hipErrorInvalidImage, None
        if not found.linked or found.arch != self.arch:
            return hipError_t.hipErrorNoBinaryForGpu, None
        handle = self.new()
        self.modules[handle] = image, found  # the image too: it must stay, since HIP reads it when it likes
        return Handle(handle)

    def hipModuleUnload(self: FakeHip, module: Any) -> Any:
        return None if self.modules.pop(address(module), None) else (HANDLE,)

    def hipModuleGetFunction(self: FakeHip, module: Any, name: Any) -> Any:
        assert type(name) is bytes  # hip-python takes no str for a C string
        image, code = self.modules[address(module)]
        kernel = code.kernels.get(name.decode())
        if kernel is None or f"{name.decode()}.kd" not in code.symbols:
            return hipError_t.hipErrorNotFound, None
        handle = self.new()
        assert self.homes[handle] == self.homes[address(module)], "another device is current than the module's"
        self.functions[handle] = kernel
        self.recorded[handle] = COMPILED.get(image) or recorded(name.decode(), image)
        return Handle(handle)

    def hipFuncGetAttribute(self: FakeHip, which: hipFunction_attribute, function: Any) -> int:
        kernel = self.functions[address(function)]
        return {
            "MAX_THREADS_PER_BLOCK": kernel[".max_flat_workgroup_size"],
            "SHARED_SIZE_BYTES": kernel[".group_segment_fixed_size"],
            "LOCAL_SIZE_BYTES": kernel[".private_segment_fixed_size"],
            "NUM_REGS": kernel[".vgpr_count"],
        }[which.name.removeprefix("HIP_FUNC_ATTRIBUTE_")]

    def hipModuleLaunchKernel(self: FakeHip, f: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, lds: int,
                              stream: Any, params: Any, extra: Any) -> Any:
        kernel = self.functions[address(f)]
        if self.homes[address(f)] != self.current:
            return (HANDLE,)
        if gx * gy * gz == 0 or bx * by * bz > kernel[".max_flat_workgroup_size"]:
            return (hipError_t.hipErrorInvalidConfiguration,)
        if kernel[".group_segment_fixed_size"] + lds > LDS[self.arch]:
            return (INVALID,)
        assert max(gx * bx, gy * by, gz * bz) < 1 << 32  # HIP's limit
        assert params is None, "either parameters one by one or a block of them"
        config = (ctypes.c_uint64 * 5).from_address(address(extra))
        if (config[0], config[2], config[4]) != (1, 2, 3):  # HIP_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END
            return (INVALID,)
        block = bytes((ctypes.c_uint8 * ctypes.c_size_t.from_address(config[3]).value).from_address(config[1]))
        function = self.recorded[address(f)]
        assert (bx, by, bz) == (*function.threads, 1)
        explicit = [x for x in kernel[".args"] if not x[".value_kind"].startswith("hidden_")]
        assert len(block) >= max((x[".offset"] + x[".size"] for x in explicit), default=0)
        args = [
            _argument(value.type, block[where[".offset"] :][: where[".size"]])
            for where, (_, value) in zip(explicit, function.params, strict=True)
        ]

        self.queue(stream).append(lambda: self.launched(function, args, (gx, gy, gz), address(stream)))
        return None

    # ---- memory

    def hipMalloc(self: FakeHip, size: int) -> Any:
        if size == 0:
            return SUCCESS, None
        return Handle(self.allocated(size))

    def hipFree(self: FakeHip, pointer: Any) -> Any:
        if address(pointer) not in self.blocks:
            return (INVALID,)
        for stream in self.queues:  # it waits for the device
            self.run(stream)
        del self.blocks[address(pointer)]
        self.freed.add(address(pointer))
        return None

    def hipMallocAsync(self: FakeHip, size: int, stream: Any) -> Any:
        self.queue(stream)
        return Handle(self.allocated(size))

    def hipFreeAsync(self: FakeHip, pointer: Any, stream: Any) -> Any:
        at = address(pointer)
        if at not in self.blocks or at in self.freed:
            return (INVALID,)

        def free() -> None:
            del self.blocks[at]
            self.freed.add(at)

        self.queue(stream).append(free)
        return None

    def hipMemsetD32Async(self: FakeHip, to: Any, value: int, count: int, stream: Any) -> None:
        assert -(1 << 31) <= value < 1 << 31  # C's int
        at = address(to)
        self.queue(stream).append(lambda: self.bytes_at(at, 4 * count).view(np.int32).__setitem__(slice(None), value))

    def hipMemcpy(self: FakeHip, to: Any, source: Any, size: int, kind: hipMemcpyKind) -> None:
        self.run(0)  # the default stream only: streams of ours do not wait for it, nor it for them
        if kind == hipMemcpyKind.hipMemcpyHostToDevice:
            content = np.frombuffer((ctypes.c_uint8 * size).from_address(address(source)), np.uint8)
            self.bytes_at(address(to), size)[:] = content
        else:
            assert kind == hipMemcpyKind.hipMemcpyDeviceToHost
            ctypes.memmove(address(to), self.bytes_at(address(source), size).tobytes(), size)

    # ---- streams and events

    def hipStreamCreateWithFlags(self: FakeHip, flags: int) -> Any:
        assert flags == 1  # hipStreamNonBlocking
        handle = self.new()
        self.queues[handle] = []
        return Handle(handle)

    def hipStreamDestroy(self: FakeHip, stream: Any) -> None:
        self.run(stream)
        del self.queues[address(stream)]

    def hipStreamIsCapturing(self: FakeHip, stream: Any) -> Any:
        self.queue(stream)
        return hipStreamCaptureStatus(int(address(stream) in self.capturing))

    def hipStreamSynchronize(self: FakeHip, stream: Any) -> None:
        self.run(stream)

    def hipStreamWaitEvent(self: FakeHip, stream: Any, event: Any, flags: int) -> None:
        at = self.events[address(event)]
        self.queue(stream).append(lambda: at["wait"]())

    def hipEventCreateWithFlags(self: FakeHip, flags: int) -> Any:
        assert flags in (0, 2)  # hipEventDefault, hipEventDisableTiming
        handle = self.new()
        self.events[handle] = {}
        return Handle(handle)

    def hipEventRecord(self: FakeHip, event: Any, stream: Any) -> Any:
        if address(stream) and self.homes[address(stream)] != self.homes[address(event)]:
            return (HANDLE,)
        at, queue = self.events[address(event)], self.queue(stream)
        at.pop("time", None)
        queue.append(lambda: at.__setitem__("time", self.clock))

        def wait() -> None:
            while "time" not in at:
                queue.pop(0)()

        at["wait"] = wait
        return None

    def hipEventSynchronize(self: FakeHip, event: Any) -> None:
        self.events[address(event)]["wait"]()

    def hipEventElapsedTime(self: FakeHip, start: Any, end: Any) -> Any:
        first, last = self.events[address(start)], self.events[address(end)]
        if not first or not last:
            return HANDLE, 0.0
        return last["time"] - first["time"] if "time" in last else (hipError_t.hipErrorNotReady, 0.0)

    def hipEventDestroy(self: FakeHip, event: Any) -> None:
        del self.events[address(event)]


def _argument(t: Any, block: bytes) -> Any:
    """The argument of this type in these bytes."""
    if isinstance(t, Pointer):
        return int.from_bytes(block, "little")
    assert len(block) == t.bytes
    return np.frombuffer(block, t.numpy)[0]


def install(monkeypatch: pytest.MonkeyPatch, arch: str = "gfx942", devices: int = 1, old: bool = False) -> FakeHip:
    """The fake instead of hip-python for one test, and no memory of what there was before."""
    from tilewright.runtime import repeats
    from tilewright.runtime.gpu import engine
    from tilewright.runtime.hip import driver, module

    fake = FakeHip(arch, devices, old)
    package: Any = types.ModuleType("hip")
    package.hip = fake
    monkeypatch.setitem(sys.modules, "hip", package)
    monkeypatch.setitem(sys.modules, "hip.hip", fake)
    monkeypatch.setattr(driver.library, "loaded", None)
    for kept in (module.device, module.Module.kept, engine.AMD.prepared, module.workspaces):
        monkeypatch.setattr(kept, "found", {})
    monkeypatch.setattr(repeats, "records", {})
    return fake
