"""Memory of the simulated machine: bytes at flat 64-bit addresses, seen through typed views.

An address tells which allocation it points into, whatever the kernel did to it on the way: stored it in a table, passed
it to another function, moved it backwards. Allocations lie so far apart that an overrun never reaches the next one.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Array, Function
from tilewright.ir.types import Pointer, Type

SPAN_BITS = 40                              # an allocation owns 2^40 addresses and begins in the middle of them
_MIDDLE = 1 << (SPAN_BITS - 1)


def numpy_type(t: Type | Pointer) -> np.dtype[Any]:
    """How a value of this type is held: an address is an integer."""
    return np.dtype(np.int64) if isinstance(t, Pointer) else t.numpy


@dataclass(frozen=True)
class Uninitialised:
    """Wraps an argument of `run` whose contents mean nothing yet: reading an element that the kernel has not written is
    a fault."""
    array: NDArray[Any]


uninitialised = Uninitialised


class Region:
    """One allocation. Shared and local arrays have a copy for each CTA or thread, `pitch` bytes apart, gaps between."""

    def __init__(self, name: str, space: str, base: int, data: NDArray[np.uint8], *, writable: bool = True,
                 initialised: bool = True, size: int | None = None, pitch: int | None = None, align: int = 1) -> None:
        self.name, self.space, self.base, self.data, self.writable = name, space, base, data, writable
        self.size = data.size if size is None else size         # bytes of one copy
        self.pitch = pitch                                      # None: there is one copy
        self.align = align                                      # of a copy, in bytes, as the kernel declares it
        self.copies: NDArray[np.int64] | None = None            # thread → its copy, where there are several
        self.swizzles: NDArray[np.int16] | None = None          # of tensor maps, by which 16-byte pieces came; -1: none
        self.written = None if initialised else np.zeros(data.size, bool)
        if self.written is not None and pitch is not None:
            self.written.reshape(-1, pitch)[:, self.size:] = True       # the gaps, which are never written
        self._views: dict[tuple[Any, int], NDArray[Any]] = {}

    def view(self, dtype: np.dtype[Any], phase: int) -> NDArray[Any]:
        """[n] elements of this type, the first `phase` bytes after the base."""
        typed = self._views.get((dtype, phase))
        if typed is None:
            length = (self.data.size - phase) // dtype.itemsize * dtype.itemsize
            typed = self._views[dtype, phase] = self.data[phase:phase + length].view(dtype)
        return typed

    def holds(self, offset: Any, size: int) -> Any:
        """Are these `size` bytes inside one copy?"""
        if self.pitch is None:
            return (offset >= 0) & (offset + size <= self.size)
        return (offset >= 0) & (offset % self.pitch + size <= self.size) & (offset < self.data.size)


class AddressSpace:
    """All allocations and functions, by address.

    `alignment`: the addresses of arrays are multiples of it, and of nothing larger, so that a kernel which counts on
    more is found out. Take addresses from an AddressSpace to build tables of pointers, and pass it to `run`.
    """

    def __init__(self, alignment: int = 64) -> None:
        if alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"alignment must be a power of two, not {alignment}")
        self.alignment = alignment
        self._regions: dict[int, Region] = {}
        self._arrays: dict[tuple[int, int], Region] = {}
        self._kept: list[Any] = []                              # owners of the bytes that regions look at
        self._temporary: WeakValueDictionary[int, Region] = WeakValueDictionary()     # live as long as their frames
        self._functions: dict[int, Function] = {}
        self._addresses: dict[Function, int] = {}
        self._last = 0

    def address(self, x: NDArray[Any] | Uninitialised | Function, name: str | None = None) -> int:
        """The address of an array's first element, or of a function. The same bytes keep the same address, and the
        first name that they were given."""
        if isinstance(x, Function):
            if x not in self._addresses:
                self._addresses[x] = self._base()
                self._functions[self._addresses[x]] = x
            return self._addresses[x]
        array = x.array if isinstance(x, Uninitialised) else x
        low, high = extent(array)
        region = self._arrays.get((low, high))
        if region is None:
            data = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
            region = Region("", "global", self._base() + self.alignment, data, writable=array.flags.writeable)
            self._arrays[low, high] = self._regions[region.base >> SPAN_BITS] = region
            self._kept.append(array)
        region.name = region.name or name or ""
        if isinstance(x, Uninitialised):
            region.written = np.zeros(region.data.size, bool)
        return region.base + array.ctypes.data - low

    def allocate(self, array: Array, copies: int) -> Region:
        """A shared or local array, uninitialised, for as long as the region is referred to."""
        assert array.size is not None
        size = array.size * array.element.bytes
        pitch = None if copies == 1 else max(64, array.align, 1 << (2*size - 1).bit_length())
        data = np.zeros(size if pitch is None else copies * pitch, np.uint8)
        region = Region(array.name, array.space, self._base(), data, initialised=False, size=size, pitch=pitch,
                        align=array.align)
        self._temporary[region.base >> SPAN_BITS] = region
        return region

    def find(self, address: int) -> Region | None:
        """The allocation that this address was made from, whether it is still inside or not."""
        index = address >> SPAN_BITS
        return self._regions.get(index) or self._temporary.get(index)

    def function(self, address: int) -> Function | None:
        return self._functions.get(address)

    def is_function(self, address: int) -> bool:
        """Was this address made from a function's?"""
        return any(address >> SPAN_BITS == at >> SPAN_BITS for at in self._functions)

    def _base(self) -> int:
        self._last += 1
        return (self._last << SPAN_BITS) + _MIDDLE


def extent(array: NDArray[Any]) -> tuple[int, int]:
    """First and one past the last byte of the elements; what lies between the elements of a view is inside too."""
    low = high = array.ctypes.data
    if array.size == 0:
        return low, high
    for extent, stride in zip(array.shape, array.strides):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + array.itemsize
