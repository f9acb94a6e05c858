"""DLPack, the protocol by which array libraries hand each other memory: capsules, read and made, and `DeviceArray`, an
array of ours that has it.

https://dmlc.github.io/dlpack/latest/python_spec.html. A capsule holds the address of a C structure, and the
consumer that takes it over calls the structure's deleter when done. Here a capsule that is read stays the producer's:
it is kept while the memory is in use and dropped afterwards, and then it calls the deleter itself.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tilewright.runtime.gpu.arrays import Platform

CUDA, CUDA_MANAGED = 2, 13  # kinds of device: memory that a CUDA device can use as its own
HIP = 10  # and an AMD GPU's: kDLROCM
VERSION = (1, 0)  # what is asked for; producers that know nothing of versions give the older structure
READ_ONLY = 1  # a flag of versioned capsules


class _DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("dtype", _DataType), ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", _Tensor)]


class Contents(NamedTuple):
    """What a capsule says. Strides in bytes."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any] | str  # the name of a type that NumPy does not have
    device: int
    kind: int
    readonly: bool


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """One of CPython's functions for capsules."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _function("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)
_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, py_object, c_char_p)
_pointer = _function("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
# By the address of an object that is being destroyed:
_is_valid_at = _function("PyCapsule_IsValid", ctypes.c_int, c_void_p, c_char_p)
_pointer_at = _function("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)

_CODES = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # as in NumPy's type strings
_KINDS = {letter: code for code, letter in _CODES.items()}
# What NumPy has no words for, by code and bits. https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h
_NARROW = {(4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2",
           (13, 8): "float8_e5m2fnuz"}


def read(capsule: Any) -> Contents:
    """What is in a capsule, which stays its producer's."""
    versioned = _is_valid(capsule, b"dltensor_versioned")
    name = b"dltensor_versioned" if versioned else b"dltensor"
    address = _pointer(capsule, name)
    managed: Any = (_Versioned if versioned else _Managed).from_address(address)
    if versioned and managed.major != VERSION[0]:
        raise BufferError(f"the array comes by DLPack {managed.major}.{managed.minor}; tilewright reads 1.x and older")
    tensor, ndim = managed.tensor, managed.tensor.ndim
    shape = tuple(tensor.shape[:ndim])
    dtype = _dtype(tensor.dtype)
    size = max(tensor.dtype.bits // 8, 1)
    strides = tuple(s * size for s in tensor.strides[:ndim]) if tensor.strides else contiguous(shape, size)
    readonly = bool(versioned and managed.flags & READ_ONLY)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Contents(pointer, shape, strides, dtype, tensor.device_id, tensor.device_type, readonly)


def _dtype(t: _DataType) -> np.dtype[Any] | str:
    if t.lanes == 1 and t.code in _CODES and t.bits % 8 == 0:
        try:
            return np.dtype(f"{_CODES[t.code]}{t.bits // 8}")
        except TypeError:
            pass
    if t.lanes == 1 and (t.code, t.bits) in _NARROW:
        return _NARROW[t.code, t.bits]
    return f"DLPack type {t.code} of {t.bits} bits" + (f", {t.lanes} lanes" if t.lanes > 1 else "")


def _code(dtype: np.dtype[Any]) -> int:
    return next((code for (code, _), name in _NARROW.items() if name == dtype.name), None) or _KINDS[dtype.kind]


def contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of an array in C order."""
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(shape)])


def make(pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, owner: Any, kind: int = CUDA) -> Any:
    """A capsule for an array in C order in a device's memory. `owner` lives until the taker's deleter call."""
    managed = _Managed()
    shape_c = (c_int64 * len(shape))(*shape)
    strides_c = (c_int64 * len(shape))(*(s // dtype.itemsize for s in contiguous(shape, dtype.itemsize)))
    managed.tensor.data, managed.tensor.device_type, managed.tensor.device_id = pointer, kind, device
    managed.tensor.ndim = len(shape)
    managed.tensor.shape = ctypes.cast(shape_c, ctypes.POINTER(c_int64))
    managed.tensor.strides = ctypes.cast(strides_c, ctypes.POINTER(c_int64))
    managed.tensor.dtype = _DataType(_code(dtype), 8 * dtype.itemsize, 1)
    managed.deleter = ctypes.cast(_deleter, c_void_p).value
    address = ctypes.addressof(managed)
    _given[address] = managed, shape_c, strides_c, owner
    return _new(address, b"dltensor", ctypes.cast(_destructor, c_void_p))


_given: dict[int, Any] = {}  # structures that a capsule or its taker holds, by address


@ctypes.CFUNCTYPE(None, c_void_p)
def _deleter(address: int) -> None:
    """Called by the taker when it needs the memory no longer, from any thread."""
    _given.pop(address, None)


@ctypes.PYFUNCTYPE(None, c_void_p)
def _destructor(capsule: int) -> None:
    """Called when a capsule goes; one that was not taken is still named dltensor."""
    if _is_valid_at(capsule, b"dltensor"):
        _given.pop(_pointer_at(capsule, b"dltensor"), None)


class DeviceArray:
    """An array in C order in a GPU's memory of ours: a result for a library that cannot be given one of its own.

    It has DLPack, on CUDA devices __cuda_array_interface__ too, and no arithmetic: `torch.from_dlpack(x)`. The memory
    goes with the last who refers to it. `stream`: that of the work which fills it; None is the default stream.
    """

    def __init__(self, platform: Platform, on: Any, shape: tuple[int, ...], dtype: Any,
                 stream: int | None = None) -> None:
        self.platform, self.shape, self.dtype = platform, shape, np.dtype(dtype)
        self.stream = stream or platform.default_stream
        self.memory = platform.driver.Memory(on, self.dtype.itemsize * int(np.prod(shape, dtype=np.int64)))

    def __repr__(self) -> str:
        where = f"{self.platform.name} {self.memory.device.index}"
        return f"<DeviceArray of shape {self.shape}, {self.dtype}, on {where}>"

    @property
    def pointer(self) -> int:
        return int(self.memory.pointer)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if CUDA not in self.platform.kinds:
            raise AttributeError(f"an array on an {self.platform.name} has no __cuda_array_interface__")
        return {"data": (self.pointer, False), "shape": self.shape, "strides": None, "typestr": self.dtype.str,
                "version": 3, "stream": self.stream}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.platform.kinds[0], self.memory.device.index

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None,
                   copy: bool | None = None) -> Any:
        """A capsule; what the taker gives to its stream from now on comes after what fills the array."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a DeviceArray is handed over where it is, without a copy")
        taker, device = stream or self.platform.default_stream, self.memory.device
        if stream != -1 and taker != self.stream:
            self.platform.driver.Event(device, timing=False).record(self.stream).before(taker)
        return make(self.pointer, self.shape, self.dtype, device.index, self.memory, self.platform.kinds[0])
