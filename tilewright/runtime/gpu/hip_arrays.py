"""Arrays in an AMD GPU's memory, whoever they belong to: where they are, and on which stream their library works.

torch on ROCm calls its GPU "cuda" and says the rest by itself; any other library is known by DLPack, whose kind of
device kDLROCM is. Nothing here imports a library: whoever passes a torch tensor has imported torch.
https://dmlc.github.io/dlpack/latest/python_spec.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.gpu import dlpack
from tilewright.runtime.gpu.arrays import DLPACK_ROCM, ROCM, TORCH_ROCM, library_of
from tilewright.runtime.hip.module import Device, HipFunction, Memory, Prepared, handle_of


class Found(NamedTuple):
    """One array: the address of its first element, and whatever keeps its memory while that is in use."""

    pointer: int
    device: int
    stream: int
    keep: Any


def find(x: Any, stream: int | None = None) -> Found | None:
    """Where an array is, and what its library has given it to do is done before what `stream` is given next (None: the
    library's own, or the default one); None if it is not in an AMD GPU's memory."""
    library = library_of(x)
    if library is None or library.platform is not ROCM:
        return None
    if library is TORCH_ROCM:
        index = TORCH_ROCM.device(x)
        return Found(TORCH_ROCM.pointer(x), index, TORCH_ROCM.stream(x, index), x)
    given = ROCM.default_stream if stream is None else stream
    capsule = DLPACK_ROCM.capsule(x, given)
    contents = dlpack.read(capsule)
    return Found(contents.pointer, contents.device, given, (x, capsule))


def launch(function: HipFunction, grid: Sequence[int], args: Sequence[Any], stream: Any = None) -> None:
    """Run a kernel with grid = (x[, y[, z]]) workgroups. Arguments are numbers, addresses, and arrays in the memory of
    the kernel's device; the stream is theirs if none is named. Nothing waits for the kernel.

    torch's tensors that are used on another stream than torch's own need torch's `record_stream`, as always.
    """
    asked = None if stream is None else handle_of(stream)
    found = {place: f for place, x in enumerate(args) if (f := find(x, asked)) is not None}
    for place, where in found.items():
        if where.device != function.device.index:
            name = function.manifest["arguments"][place]["name"]
            raise ValueError(
                f"{name} is on AMD GPU {where.device}, and {function.name} was loaded for {function.device.index}"
            )
    theirs = next((where.stream for where in found.values()), ROCM.default_stream)
    addresses = [found[place].pointer if place in found else x for place, x in enumerate(args)]
    Prepared(function, grid, addresses)(theirs if asked is None else asked)


class RocmArray:
    """An array in C order in memory of ours, which any library with DLPack takes over: torch.from_dlpack(x).

    It has no arithmetic; the memory goes with the last who refers to it.
    """

    def __init__(self, on: Device, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.memory = Memory(on, self.dtype.itemsize * int(np.prod(shape, dtype=np.int64)))

    def __repr__(self) -> str:
        return f"<RocmArray of shape {self.shape}, {self.dtype}, on AMD GPU {self.memory.device.index}>"

    @property
    def pointer(self) -> int:
        return self.memory.pointer

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.ROCM, self.memory.device.index

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None,
                   copy: bool | None = None) -> Any:
        """A capsule. Who has launched a kernel that fills the array waits for it before handing the array over."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a RocmArray is handed over where it is, without a copy")
        device = self.memory.device.index
        return dlpack.make(self.pointer, self.shape, self.dtype, device, self.memory, dlpack.ROCM)
