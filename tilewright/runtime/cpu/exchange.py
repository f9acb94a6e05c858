"""torch's function that describes a tensor to C code: `dltensor_from_py_object_no_sync` of DLPack's exchange API.

It fills in a DLTensor (kernels/cpu/abi.py has its offsets) that owns nothing and is valid as long as the tensor, in 50
nanoseconds. Before emitted code calls it, some real tensors are described by it and compared with what torch says.
"""
from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from tilewright.kernels.cpu import abi

CAPSULE, MAJOR = b"dlpack_exchange_api", 1
READ = 5                    # its place in the table: after the version, the older table and three other functions


class Described(ctypes.Structure):
    """A DLTensor as words."""
    _fields_ = [("words", ctypes.c_int64 * (abi.DL_SIZE // 8))]

    def number(self, offset: int, kind: Any = ctypes.c_int64) -> int:
        return int(kind.from_buffer(self, offset).value)

    @property
    def type(self) -> int:
        """Code, bits and lanes of the elements' type, as one number."""
        return self.number(abi.DL_TYPE, ctypes.c_uint32)

    def array(self, offset: int) -> tuple[int, ...]:
        """The sizes, or the strides in elements."""
        count = self.number(abi.DL_AXES, ctypes.c_int32)
        return tuple((ctypes.c_int64 * count).from_address(self.number(offset))) if count else ()


def described(read: int, tensor: Any) -> Described | None:
    """None for a tensor that torch cannot describe: without memory, say."""
    into = Described()
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(read)
    try:
        return into if function(tensor, ctypes.addressof(into)) == 0 else None
    except (RuntimeError, BufferError, ValueError, TypeError, NotImplementedError):
        return None


@cache
def reader(torch: Any) -> int:
    """The function's address; 0 where this torch has none, or one that says something else than expected."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if type(capsule).__name__ != "PyCapsule":
        return 0
    valid, get = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    valid.argtypes, get.argtypes = [ctypes.py_object, ctypes.c_char_p], [ctypes.py_object, ctypes.c_char_p]
    get.restype = ctypes.c_void_p
    if not valid(capsule, CAPSULE):
        return 0
    table = get(capsule, CAPSULE)
    if ctypes.c_uint32.from_address(table).value != MAJOR:
        return 0
    read = (ctypes.c_uint64 * (READ + 1)).from_address(table)[READ]
    samples = torch.ones(3, 5, dtype=torch.float64)[:, 1:4].t(), torch.ones(7, dtype=torch.bfloat16)[2:], torch.ones(())
    return read if all(_agrees(read, x) for x in samples) else 0


def _agrees(read: int, x: Any) -> bool:
    said = described(read, x)
    if said is None:
        return False
    code = said.type & 255, said.type >> 8 & 255, said.type >> 16
    numbers = [said.number(abi.DL_DATA) + said.number(abi.DL_OFFSET), said.number(abi.DL_DEVICE, ctypes.c_int32),
               said.number(abi.DL_AXES, ctypes.c_int32), *code]
    kind = 4 if "bfloat16" in str(x.dtype) else 2
    return (numbers == [x.data_ptr(), abi.ON_CPU, x.ndim, kind, 8 * x.element_size(), 1]
            and (said.array(abi.DL_SIZES), said.array(abi.DL_STRIDES)) == (tuple(x.shape), x.stride()))
