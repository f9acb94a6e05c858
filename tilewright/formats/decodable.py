"""`Decodable`: what arrays with scales (`Scaled`) and block-scaled arrays (`Quantized`) have in common: they stand
where arrays stand in products, indices and np.asarray.
"""

from __future__ import annotations

import math
from types import EllipsisType
from typing import Any

import numpy as np

from tilewright.formats.conversion import Array


class Decodable:
    """Frozen numbers with scales. A subclass has `shape`, `format`, `decoded(dtype)`, `T` and `__getitem__`."""

    __array_ufunc__ = None  # array @ x is x.__rmatmul__(array)
    shape: tuple[int, ...]
    format: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        """The record of the format, which is no dtype of NumPy's; dequantize gives numbers of one."""
        return self.format

    def __len__(self) -> int:
        return self.shape[0]

    def decoded(self, dtype: np.dtype[Any]) -> Array:
        """Elements times scales, in f32 or f64."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The numbers, in f32 unless another dtype is asked for: dequantize."""
        if copy is False:
            raise ValueError(f"copy must not be False for a {type(self).__name__}, whose numbers are made from "
                             "elements and scales")
        wide = np.dtype(np.float64 if dtype is not None and np.dtype(dtype) == np.float64 else np.float32)
        values = self.decoded(wide)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __matmul__(self, other: Any) -> Any:
        import tilewright

        return tilewright.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        import tilewright

        return tilewright.matmul(other, self)


def basic(key: Any, ndim: int) -> tuple[int | slice, ...]:
    """An index as an integer or a slice for each of so many axes; TypeError for other kinds."""
    keys = key if isinstance(key, tuple) else (key,)
    for item in keys:
        if not isinstance(item, (int, np.integer, slice, EllipsisType)) or isinstance(item, (bool, np.bool_)):
            raise TypeError(f"arrays with scales are indexed by integers and slices, not by {item!r}; np.asarray gives "
                            "their numbers")
    dots = sum(item is Ellipsis for item in keys)
    if dots > 1 or len(keys) - dots > ndim:
        raise IndexError(f"{len(keys) - dots} indices for an array of {ndim} axes")
    at = next((i for i, item in enumerate(keys) if item is Ellipsis), len(keys))
    missing = (slice(None),) * (ndim - len(keys) + dots)
    return (*keys[:at], *missing, *keys[at + dots :])
