"""Operands in an NVIDIA GPU's memory: panels leave it and come to it on a stream of their own, beside products.

    pieces     copied from the operand, whose rows or columns are contiguous, into a contiguous message: in the host's
               memory, or in the GPU's where MPI takes such addresses (Team(cuda_aware=True))
    panels     new arrays of the caller's library. They are kept until the product after theirs has begun, of which an
               event of the caller's stream tells: its library may give their memory to another array before
    products   on the caller's stream, which is never waited for but for the last product but one
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.mpi.stores import Plain
from tilewright.runtime.gpu.arrays import CUDA, dtype_of, library_of

IN_FLIGHT = 2   # products of panels


class DeviceBytes:
    """Bytes of an array in a GPU's memory, for an MPI library that takes them."""

    def __init__(self, array: Any, pointer: int, size: int) -> None:
        self.array, self.pointer, self.size = array, pointer, size

    def __len__(self) -> int:
        return self.size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.pointer, False), "shape": (self.size,), "strides": None, "typestr": "|u1", "version": 3,
                "stream": None}


class OnDevice(Plain):
    """Elements of arrays of one library in a GPU's memory, like those of a local part."""

    def __init__(self, like: Any, aware: bool = False) -> None:
        library = library_of(like)
        assert library is not None
        self.library = library
        super().__init__(dtype_of(like.dtype, "local"))
        self.aware = aware
        self.index = self.library.device(like)
        self.users = self.library.stream(like, self.index)
        self.on = CUDA.driver.device(self.index)
        self.stream = CUDA.driver.Stream(self.on)
        self.alive: list[tuple[Any, list[Any]]] = []      # products' events, and the panels that they read
        self.panels: list[Any] = []

    def similar(self, dtype: np.dtype[Any]) -> OnDevice:
        """A store of arrays of another dtype there."""
        return OnDevice(self.empty(0, 0, dtype), self.aware)

    def ready(self) -> None:
        """What the caller's stream was given before is done."""
        CUDA.driver.library.synchronize(self.on, self.users)

    def empty(self, rows: int, cols: int, dtype: np.dtype[Any] | None = None) -> Any:
        return self.library.empty((rows, cols), self.dtype if dtype is None else dtype, self.index, self.users)

    def blank(self, rows: int, cols: int) -> Any:
        return self._bytes(self.empty(rows, cols)) if self.aware else np.empty(self.size(rows, cols), np.uint8)

    def _bytes(self, array: Any) -> DeviceBytes:
        look = self.library.look(array, "a panel", self.users)
        return DeviceBytes(array, look.pointer, look.shadow.nbytes)

    def message(self, part: Any) -> Any:
        rows, cols = part.shape
        if self.aware:
            array = self.empty(rows, cols)
            packed: Any = self._bytes(array)
            self._copy(part, packed.pointer, host=False)
            return packed
        packed = np.empty(rows * cols * self.dtype.itemsize, np.uint8)
        self._copy(part, packed.ctypes.data, host=True)
        return packed

    def operand(self, buffer: Any, rows: int, cols: int) -> Any:
        if isinstance(buffer, DeviceBytes):
            array = buffer.array
        else:
            array = self.empty(rows, cols)
            with self.on.current():
                CUDA.driver.library.do("MemcpyHtoDAsync", self._bytes(array).pointer, buffer.ctypes.data, len(buffer),
                                       self.stream.handle)
            self.stream.synchronize()
        self.panels.append(array)
        return array

    def joined(self, parts: list[tuple[Any, Any]], rows: int, cols: int, axis: int) -> Any:
        joint = self.empty(rows, cols)
        for at, part in parts:
            index: Any = slice(int(at[0]), int(at[-1]) + 1, int(at[1] - at[0]) if len(at) > 1 else 1)
            if len(range(index.start, index.stop, index.step)) != len(at) or (np.diff(at) != index.step).any():
                index = at.tolist()
            joint[(index, slice(None)) if axis == 0 else (slice(None), index)] = part
        self.panels.append(joint)
        return joint

    pooled = False

    def launched(self) -> None:
        """A product was given to the caller's stream, that reads the panels made since the one before."""
        event = CUDA.driver.Event(self.on, timing=False).record(self.users)
        self.alive.append((event, self.panels))
        self.panels = []
        while len(self.alive) > IN_FLIGHT:
            self.alive.pop(0)[0].synchronize()

    def finished(self) -> None:
        """No product reads a panel any more."""
        for event, _ in self.alive:
            event.synchronize()
        self.alive.clear()

    def _copy(self, part: Any, to: int, host: bool) -> None:
        """A matrix into contiguous memory by rows."""
        look = self.library.look(part, "a piece of a panel", self.users)
        rows, cols = part.shape
        by_row, by_element = look.shadow.strides
        if by_element != self.dtype.itemsize and cols > 1:      # of a transposed matrix, say
            part = part.contiguous() if hasattr(part, "contiguous") else part.copy()
            self.ready()
            look = self.library.look(part, "a piece of a panel", self.users)
            by_row = look.shadow.strides[0]
        api = CUDA.driver.library.api()
        memory = api.CUmemorytype
        copy = api.CUDA_MEMCPY2D()
        copy.srcMemoryType, copy.srcDevice, copy.srcPitch = memory.CU_MEMORYTYPE_DEVICE, look.pointer, by_row
        if host:
            copy.dstMemoryType, copy.dstHost = memory.CU_MEMORYTYPE_HOST, to
        else:
            copy.dstMemoryType, copy.dstDevice = memory.CU_MEMORYTYPE_DEVICE, to
        copy.dstPitch = copy.WidthInBytes = cols * self.dtype.itemsize
        copy.Height = rows
        if rows == 1:
            copy.srcPitch = copy.WidthInBytes
        with self.on.current():
            CUDA.driver.library.do("Memcpy2DAsync", copy, self.stream.handle)
        self.stream.synchronize()


def on_device(x: Any) -> bool:
    """Is x an array in an NVIDIA GPU's memory?"""
    return not isinstance(x, np.ndarray) and (library := library_of(x)) is not None and library.platform is CUDA
