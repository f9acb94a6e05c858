"""NumPy's array structure: what emitted builtins and the engine read without asking NumPy; and what a builtin is to
CPython.

Before anything does so, the layout is compared with what Python says about some real arrays.
"""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tilewright.kernels.cpu.abi import BASE, BYTEORDER, DATA, DESCR, DIMS, FLAGS, ND, STRIDES, TYPE_NUM


def agrees() -> bool:
    """Whether arrays, their dtypes and the head of every object are laid out as emitted code reads them."""
    if sys.implementation.name != "cpython":        # where an id is no address
        return False
    block = np.arange(420, dtype=np.float32).reshape(3, 5, 28)
    readonly = block[1].copy()
    readonly.flags.writeable = False
    samples = (block, block[:, ::-1, ::3], block.T, readonly, readonly.astype(np.float64)[::-1], block.astype(">f4"),
               np.zeros(41, np.int8)[1:].view(np.float32), np.empty((0, 11), np.int64))
    return all(map(_agrees, samples))


def _agrees(x: np.ndarray) -> bool:
    """Pointers are followed only when all around them is right: another layout must not end in a bad access. NumPy
    keeps the sizes and the strides of an array in one piece of memory, which tells that these two are pointers."""
    def value(kind: Any, address: int) -> Any: return kind.from_address(address).value
    start, dtype = id(x) + object.__basicsize__, id(x.dtype) + object.__basicsize__
    pointer, number = ctypes.c_void_p, ctypes.c_int
    kind, data, base, descr, dims, strides = (
        value(pointer, start + offset) or 0 for offset in (-8, DATA, BASE, DESCR, DIMS, STRIDES))
    read = kind, data, value(number, start + ND), base, descr, value(number, start + FLAGS), strides - dims
    owner = 0 if x.base is None else id(x.base)
    if read != (id(type(x)), x.__array_interface__["data"][0], x.ndim, owner, id(x.dtype), x.flags.num, 8 * x.ndim):
        return False
    order = value(ctypes.c_char, dtype + BYTEORDER).decode("latin-1")
    if (order, value(number, dtype + TYPE_NUM)) != (x.dtype.byteorder, x.dtype.num):
        return False
    return [tuple((ctypes.c_ssize_t * x.ndim).from_address(p)) for p in (dims, strides)] == [x.shape, x.strides]


def _readers() -> tuple[Callable[[np.ndarray], int], Callable[[Iterable[np.ndarray]], list[int]]]:
    """x.ctypes.data, which takes most of a microsecond, ten times as fast where the structure is known: as an element
    of all memory. And the same of several arrays."""
    if not agrees():
        return lambda x: x.ctypes.data, lambda arrays: [x.ctypes.data for x in arrays]
    size = ctypes.sizeof(ctypes.c_size_t)
    memory, offset = (ctypes.c_size_t * (sys.maxsize // size)).from_address(0), object.__basicsize__ + DATA
    return (lambda x: memory[(id(x) + offset) // size],
            lambda arrays: [memory[(id(x) + offset) // size] for x in arrays])


address, addresses = _readers()         # of an array's first element; of those of several


# ---- builtins

FASTCALL = 0x80 | 0x02                                  # METH_FASTCALL | METH_KEYWORDS


class Method(ctypes.Structure):
    """PyMethodDef"""
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


def vectorcall() -> int:
    """PyObject_Vectorcall, or what it comes to for a function written in Python: Python 3.10 has it in headers only."""
    api = ctypes.pythonapi
    name = "PyObject_Vectorcall" if hasattr(api, "PyObject_Vectorcall") else "_PyFunction_Vectorcall"
    return ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0


_kept: list[Any] = []           # what CPython only points to: it must outlive the builtins


def builtin(name: str, address: int, owner: Any, own: int) -> Callable[..., Any]:
    """A function of Python in front of emitted code, whose first argument is the int `own`; it keeps its owner
    alive."""
    method = Method(name.encode(), address, FASTCALL, None)
    _kept.append((method, owner))
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return new(ctypes.addressof(method), own, None)
