"""Arrays of other libraries in the host's memory, known by DLPack alone (https://data-apis.org/array-api): read and
written where they are; results are arrays of their namespace, on their device.

Left out are those with an __array_ufunc__, which multiply themselves, torch's tensors (tensors.py) and arrays on GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.gpu import dlpack
from tilewright.runtime.gpu.arrays import TORCH, DeviceArray, check_writable, dtype_of, kind, shadow, taker

CPU = 1  # DLPack's kind of device

_has_protocol: dict[type, bool] = {np.ndarray: False, type(None): False}


def knows(x: Any) -> bool:
    """Is x such an array?"""
    cls = type(x)
    known = _has_protocol.get(cls)
    if known is None:
        known = _has_protocol[cls] = (
            hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__") and not hasattr(cls, "__array_ufunc__")
            and not issubclass(cls, (np.ndarray, np.generic, DeviceArray)) and TORCH.knows(x) is None)
    if not known:
        return False
    try:
        return bool(x.__dlpack_device__()[0] == CPU)
    except Exception:  # on several devices, on none, or being traced
        return False


def array(x: Any, name: str, write: bool = False) -> np.ndarray:
    """The array of NumPy that shares x's memory. ValueError if it is to be written and must not be."""
    try:
        capsule = x.__dlpack__(max_version=dlpack.VERSION)
    except TypeError:  # from before DLPack had versions
        capsule = x.__dlpack__()
    look = dlpack.read(capsule)
    if write:
        check_writable(look.readonly, name, x)
    return shadow(look.pointer, look.shape, look.strides, dtype_of(look.dtype, name), (x, capsule))


def result(x: Any, like: Any) -> Any:
    """An array as one of `like`'s namespace, which shares its memory if the namespace allows it."""
    if (take := taker(like)) is None:
        raise TypeError(f"{kind(like)} has no namespace with from_dlpack, by which it could be given a result")
    x = np.asarray(x)
    given: Any = x if x.dtype.isbuiltin == 1 else _Memory(np.ascontiguousarray(x))
    device = getattr(like, "device", None)
    if device is not None:
        try:
            return take(given, device=device)
        except (TypeError, ValueError, RuntimeError):  # without the keyword, or with other devices for it
            pass
    return take(given)


class _Memory:
    """An array in C order, of a format that NumPy does not hand over."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, **options: Any) -> Any:
        x = self.x
        return dlpack.make(x.__array_interface__["data"][0], x.shape, x.dtype, 0, x, CPU)
