"""Arrays in the memory of the fake driver: torch and CuPy by their own names, other libraries by protocol."""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright.api.tensors  # noqa: F401  (which takes TORCH.tensors as it is imported: not while it is replaced)
from tests.doubles.fake_cuda import FakeDriver
from tilewright import formats
from tilewright.runtime.gpu import arrays, dlpack


class _Array:
    """`host` is the device's memory, for tests to read; the other attributes are those of the library it stands for."""

    fake: FakeDriver
    current = 0  # the library's current stream
    readonly = False
    dtypes = staticmethod(lambda dtype: dtype)

    def __init__(self, host: np.ndarray, device: int = 0) -> None:
        self.host, self.number = host, device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def pointer(self) -> int:
        return self.fake.array(self.host) if self.host.size else 0

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.host[key]

    def __setitem__(self, key: Any, value: np.ndarray) -> None:
        if self.readonly:
            raise TypeError("immutable, as JAX's arrays are")

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise AssertionError("an array on a device was copied to the host")


class Device(NamedTuple):
    """torch.device"""

    type: str
    index: int


class Tensor(_Array):
    """torch.Tensor"""

    is_cuda, requires_grad, layout, negated = True, False, "torch.strided", False

    @property
    def dtype(self) -> str:
        return sys.intern(f"torch.{self.host.dtype.name}")  # the object that the module has

    @property
    def device(self) -> Any:
        return Device("cuda" if self.is_cuda else "cpu", self.number)

    def data_ptr(self) -> int:
        return self.pointer if self.is_cuda else self.host.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.host.itemsize for s in self.host.strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.number

    def permute(self, axes: tuple[int, ...]) -> Tensor:
        return Tensor(self.host.transpose(axes))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.host[key])

    def is_neg(self) -> bool:
        return self.negated

    def is_conj(self) -> bool:
        return False

    def resolve_neg(self) -> Tensor:
        return Tensor(-self.host)


def take_the_place_of_torch(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """This module is torch, and nothing that tilewright has learnt of the real one counts; both are as before after the
    test."""
    # Of a type that it knows tilewright does not ask torch for words again: a fake's would be left for real tensors.
    for attribute, value in (("tensors", set()), ("made", {}), ("strided", None), ("parts", ())):
        monkeypatch.setattr(arrays.TORCH, attribute, value)
    monkeypatch.setitem(sys.modules, "torch", module)


def torch(fake: FakeDriver) -> types.ModuleType:
    """A module torch with what tilewright asks of it. `torch.current` is its current stream."""
    module: Any = types.ModuleType("torch")
    Tensor.fake = fake
    module.Tensor, module.strided, module.current, module.grad = Tensor, "torch.strided", 0, False
    dtypes = {}
    for format in ("f64", "f32", "f16", "bf16", "e4m3fn", "e5m2", "i64", "i32", "i16", "i8", "u8", "bool",
                   "c64", "c128"):
        its = formats.FORMATS[format]
        name = sys.intern(f"torch.{its.numpy_name}")
        dtypes[name] = its.dtype
        setattr(module, its.numpy_name, name)
    module.version = types.SimpleNamespace(hip=None)
    module.is_grad_enabled = lambda: module.grad
    module._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: module.current)
    module.device = lambda kind, index: index
    module.empty = lambda shape, dtype, device: Tensor(_nowhere(shape, dtypes[dtype]), device)
    module.from_numpy = on_host
    return module


def on_host(host: np.ndarray) -> Tensor:
    """A tensor in the host's memory."""
    found = Tensor(host)
    found.is_cuda = False
    return found


def _nowhere(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What no result is: nan, or as many sevens as there are."""
    return np.full(shape, 77 if dtype.kind in "iu" else np.nan, dtype)


class CuPyArray(_Array):
    """cupy.ndarray"""

    @property
    def dtype(self) -> np.dtype:
        return self.host.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        return self.host.strides

    @property
    def device(self) -> Any:
        return types.SimpleNamespace(id=self.number)

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.pointer)


def cupy(fake: FakeDriver) -> types.ModuleType:
    module: Any = types.ModuleType("cupy")
    CuPyArray.fake = fake
    module.ndarray, module.current = CuPyArray, 0

    class Device:
        def __init__(self, number: int) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    module.cuda = types.SimpleNamespace(
        Device=Device, get_current_stream=lambda device: types.SimpleNamespace(ptr=module.current)
    )
    module.empty = lambda shape, dtype: CuPyArray(np.full(shape, np.nan, dtype))
    return module


class Exporter(_Array):
    """An array of a library that is known by DLPack alone, as JAX's are. `asked` holds the streams it was asked for."""

    versions = True

    def __init__(self, host: np.ndarray, device: int = 0) -> None:
        super().__init__(host, device)
        self.asked: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.number

    def __dlpack__(self, *, stream: int, **options: Any) -> Any:
        if options and not self.versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(stream)
        return dlpack.make(self.pointer, self.shape, self.host.dtype, self.number, self)

    def __array_namespace__(self) -> Any:
        return types.SimpleNamespace(from_dlpack=Imported)


class Imported:
    """What the library of Exporter makes of a result, on its stream 77."""

    def __init__(self, given: Any) -> None:
        self.capsule = given.__dlpack__(stream=77)
        self.contents = dlpack.read(self.capsule)

    def read(self, fake: FakeDriver) -> np.ndarray:
        fake.run(77)
        found = self.contents
        size = int(np.prod(found.shape)) * found.dtype.itemsize
        return fake.memory.find(found.pointer).data[:size].view(found.dtype).reshape(found.shape)


class Interface(_Array):
    """An array known by __cuda_array_interface__ alone, as Numba's are."""

    mask = stream = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.pointer, self.readonly), "shape": self.shape, "strides": self.host.strides,
                "typestr": self.host.dtype.str, "version": 3, "mask": self.mask, "stream": self.stream}
