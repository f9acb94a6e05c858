"""Numbers of few bits with a scale for each row, each column or the whole array: per-channel and per-tensor scaling.

`Decodable` is what these and block-scaled arrays (`Quantized`) have in common: they stand where arrays stand in
products, indices and np.asarray.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.formats.conversion import convert
from tilewright.formats.records import Float, Format, Integer
from tilewright.formats.table import of

Array = NDArray[Any]
LEAST = float(np.finfo(np.float32).tiny)  # of scales: 2^-126, below which an f32 has fewer digits


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
    for each in keys:
        if not isinstance(each, (int, np.integer, slice, EllipsisType)) or isinstance(each, (bool, np.bool_)):
            raise TypeError(f"arrays with scales are indexed by integers and slices, not by {each!r}; np.asarray gives "
                            "their numbers")
    dots = sum(each is Ellipsis for each in keys)
    if dots > 1 or len(keys) - dots > ndim:
        raise IndexError(f"{len(keys) - dots} indices for an array of {ndim} axes")
    at = next((i for i, each in enumerate(keys) if each is Ellipsis), len(keys))
    missing = (slice(None),) * (ndim - len(keys) + dots)
    return (*keys[:at], *missing, *keys[at + dots :])


@dataclass(frozen=True, eq=False)
class Scaled(Decodable):
    """An array whose numbers are elements times scales, of which those along an axis, or all, share one.

    elements    an array of integers of at most 16 bits, or of floats of smaller range than f32
    scales      f32, of as many axes: elements' length along an axis, or 1 where all along it share a scale

    TypeError and ValueError for other arrays. Nothing is copied.
    """

    elements: Array
    scales: Array

    def __post_init__(self) -> None:
        if not isinstance(self.elements, np.ndarray) or not isinstance(self.scales, np.ndarray):
            raise TypeError("elements and scales must be arrays, not "
                            f"{type(self.elements).__name__} and {type(self.scales).__name__}")
        scalable(of(self.elements, "elements"), "elements")
        if self.scales.dtype != np.float32:
            raise TypeError(f"scales must be float32, not {self.scales.dtype}")
        shape, scales = self.elements.shape, self.scales.shape
        if len(scales) != len(shape) or any(n not in (1, length) for n, length in zip(scales, shape)):
            raise ValueError(f"scales of elements {shape} must have the same axes, each as long or 1, not {scales}")

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.elements.shape

    @property
    def format(self) -> Format:
        """Of the elements."""
        return of(self.elements)

    @property
    def nbytes(self) -> int:
        """Bytes of elements and scales."""
        return self.elements.nbytes + self.scales.nbytes

    @property
    def T(self) -> Scaled:
        """With the axes in reverse order; nothing is copied."""
        return Scaled(self.elements.T, self.scales.T)

    def __getitem__(self, key: Any) -> Scaled:
        """By integers and slices, with the scales that belong to what is left."""
        keys = basic(key, self.ndim)
        of_scales = tuple(
            each if n == length else (0 if not isinstance(each, slice) else slice(None))
            for each, n, length in zip(keys, self.scales.shape, self.shape)
        )
        return Scaled(np.asarray(self.elements[keys]), np.asarray(self.scales[of_scales]))

    def decoded(self, dtype: np.dtype[Any]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(self.elements.astype(dtype) * self.scales.astype(dtype, copy=False))

    def __repr__(self) -> str:
        return f"Scaled({self.format}, shape={self.shape}, scales={self.scales.shape}, {self.nbytes} bytes)"


def scalable(f: Format | None, argument: str) -> Integer | Float:
    """An integer or floating-point format of at most 16 bits, or a TypeError."""
    if not isinstance(f, (Integer, Float)) or f.bits > 16 or f.name in ("bf16", "e8m0"):  # these have f32's range
        raise TypeError(f"{argument} must be of integers of at most 16 bits or floats of smaller range than f32, such "
                        f"as i8, i4 or e4m3fn, not {f}")
    return f


def scale(x: Array, f: Integer | Float, axis: int | None) -> Scaled:
    """x, of f32 or f64, in the format f: scale = the largest size of those that share it / the largest number of f.

    Sizes are those of the finite numbers. Elements are x / scale rounded to nearest even, and saturate. Scales are at
    least 2^-126, and 1 where there are zeros only. nan and inf are kept where f has them, inf is nan where f has only
    that, and both are a ValueError in other formats.
    """
    if isinstance(f, Integer) and not f.signed and (x < 0).any():
        raise ValueError(f"x holds negative numbers, and {f} has none")
    strange = ~np.isfinite(x)
    some = bool(strange.any())
    finite = np.where(strange, 0, x) if some else x
    amax = np.max(np.abs(finite), axis=axis, initial=0, keepdims=True)
    largest = float(f.largest)
    wide = amax.astype(np.float64) / largest
    scales = np.where(amax > 0, np.clip(wide, LEAST, np.finfo(np.float32).max), 1).astype(np.float32)
    with np.errstate(all="ignore"):
        elements = convert(np.divide(finite, scales), f, saturate=True)
        if some:
            elements[strange] = convert(x[strange], f, saturate=False)
    return Scaled(elements, scales)
