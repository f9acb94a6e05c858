"""Arrays in a block-scaled format: packed elements and scales as matrix instructions want them, and what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.formats.conversion import Array, convert, pack, unpack
from tilewright.formats.records import Float
from tilewright.formats.scaled import AT_ONCE, Decodable, Scaled, basic, in_groups, on_gpu
from tilewright.formats.table import BLOCK_FORMATS, FORMATS, BlockFormat, array_format, block_format, get


@dataclass(frozen=True, eq=False)
class Quantized(Decodable):
    """An array of `shape` in a block-scaled format, whose blocks lie along one of its axes.

    elements    uint8 [..., bytes]: the array's other axes in their order, then its `axis`, packed as by
                `formats.pack`: lowest bits first, whole blocks only (the last one filled up with zeros), so that every
                row begins with a whole byte and has ceil(length / block) * block_bytes of them.
    scales      uint8 [..., blocks]: the scale of each block as a byte of e8m0, 2^(byte - 127), where 255 is nan; in
                nvfp4 as a byte of e4m3fn.
    shape       the shape of the array of numbers, which `dequantize` returns.
    format      a BlockFormat, or its name.
    axis        the axis of shape along which blocks lie, kept as a negative number: -1 for A, -2 for B in A @ B.
    tensor_scale  a scale for all numbers, an f32, which nvfp4 needs; 1 in MX formats.

    So the right operand [k, n] of a product, with blocks along k, has elements [n, bytes] and scales [n, blocks]: k is
    the contiguous axis of both operands, as AMD's scaled MFMA and NVIDIA's block-scaled MMA read them.

    TypeError and ValueError if the arrays do not fit the other fields. Existing arrays, such as the weights of a file,
    are used without a copy, with any strides; their values are not checked. Both may be in a GPU's memory (torch, CuPy,
    DLPack): matmul takes these, dequantize does not.
    """

    elements: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    shape: tuple[int, ...]
    format: BlockFormat
    axis: int = -1
    tensor_scale: float = 1.0

    def __post_init__(self) -> None:
        f, shape = block_format(self.format), tuple(index(n) for n in self.shape)
        axis, tensor_scale = blocked_axis(self.axis, len(shape)), float(self.tensor_scale)
        kept = {"format": f, "shape": shape, "axis": axis, "tensor_scale": tensor_scale}
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        if f.mx and tensor_scale != 1:
            raise ValueError(f"tensor_scale must be 1 in {f}, which has no scale for all numbers, not {tensor_scale}")
        blocks = f.blocks(self.length)
        given: tuple[tuple[str, Any, int], ...] = (
            ("elements", self.elements, blocks * f.block_bytes), ("scales", self.scales, blocks))
        for name, array, last in given:
            known = isinstance(array, np.ndarray) or on_gpu(array)
            if not known or str(array.dtype).removeprefix("torch.") != "uint8":
                what = f"an array of {array.dtype}" if known else type(array).__name__
                raise TypeError(f"{name} must be an array of uint8, not {what}")
            if tuple(array.shape) != (*self.others, last):
                raise ValueError(f"{name} of {f} {shape} along axis {self.axis} must have the shape "
                                 f"{(*self.others, last)}, not {tuple(array.shape)}")
        if isinstance(self.elements, np.ndarray) != isinstance(self.scales, np.ndarray):
            raise TypeError("elements and scales must both be NumPy arrays or both be in a GPU's memory, not "
                            f"{type(self.elements).__name__} and {type(self.scales).__name__}")

    @staticmethod
    def of(elements: Array, scales: Array, axis: int = -1, tensor_scale: float = 1.0) -> Quantized:
        """A Quantized from elements that are in an element format already, one to a byte as in ml_dtypes, and their
        scales.

        elements    an array of e4m3fn, e5m2, e2m3, e3m2 or e2m1, of any shape.
        scales      float8_e8m0fnu, or uint8 as its patterns: elements' shape with ceil(length / 32) in place of `axis`.
                    float8_e4m3fn beside e2m1 is nvfp4, with ceil(length / 16).
        tensor_scale  a scale for all numbers, of nvfp4 only.
        """
        element = array_format(elements, "elements")
        fitting = [f for f in BLOCK_FORMATS.values() if f.element == element]
        if not fitting:
            known = ", ".join(dict.fromkeys(str(f.element) for f in BLOCK_FORMATS.values()))
            raise TypeError(f"elements must be of one of {known}, not {element}")
        f = next((f for f in fitting if scales.dtype == f.scale.dtype or (f.mx and scales.dtype == np.uint8)), None)
        if f is None:
            known = " or ".join(f.scale.numpy_name for f in fitting)
            raise TypeError(f"scales of {element} must be of {known}, or uint8 as patterns of e8m0, not {scales.dtype}")
        axis = blocked_axis(axis, elements.ndim)
        wanted = list(elements.shape)
        wanted[axis] = f.blocks(elements.shape[axis])
        if scales.shape != tuple(wanted):
            raise ValueError(f"scales for {element} {elements.shape}, one for each {f.block} along axis {axis}, must "
                             f"have the shape {tuple(wanted)}, not {scales.shape}")
        blocks = in_blocks(np.moveaxis(elements, axis, -1), f)
        patterns = np.ascontiguousarray(np.moveaxis(scales, axis, -1)).view(np.uint8)
        return Quantized(packed(blocks), patterns, elements.shape, f, axis, tensor_scale)

    @property
    def length(self) -> int:
        """How many numbers there are along the axis with blocks."""
        return self.shape[self.axis]

    @property
    def others(self) -> tuple[int, ...]:
        """The lengths of all axes but the one with blocks."""
        return tuple(n for i, n in enumerate(self.shape) if i != self.axis + len(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of elements and scales."""
        return math.prod(self.elements.shape) + math.prod(self.scales.shape)

    def unpacked(self) -> Array:
        """The elements by themselves, without their scales: the format's dtype, in this array's shape."""
        along = unpack(_in_host(self).elements, self.format.element, self.length)
        return np.moveaxis(along, -1, self.axis)

    def decoded(self, dtype: np.dtype[Any]) -> Array:
        """The numbers, in f32 or f64."""
        values = scaled(_in_host(self), dtype)
        if self.tensor_scale != 1:
            with np.errstate(all="ignore"):
                values *= dtype.type(self.tensor_scale)
        return values

    @property
    def T(self) -> Quantized:
        """With the axes in reverse order; nothing is copied."""
        last = self.ndim - 1
        order = (*reversed(range(last)), last)  # of the axes of elements and scales, whose last one stays
        elements, scales = (x.permute(order) if hasattr(x, "permute") else x.transpose(order)       # torch's, NumPy's
                            for x in (self.elements, self.scales))
        return self._with(elements, scales, self.shape[::-1], last - self.axis % self.ndim)

    @property
    def mT(self) -> Quantized:
        """The array with its last two axes exchanged, without a copy. The axis with blocks must be one of them."""
        if self.ndim == 2:
            return self.T
        if self.axis < -2:
            raise ValueError(f"the blocks lie along axis {self.axis}, which is none of the last two")
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return self._with(self.elements, self.scales, shape, -3 - self.axis)

    def __getitem__(self, key: Any) -> Quantized:
        """By integers and slices; along the blocked axis by slices of whole blocks. Nothing is copied."""
        keys = basic(key, self.ndim)
        at = self.axis % self.ndim
        along, others = keys[at], (*keys[:at], *keys[at + 1 :])
        start, stop, step = along.indices(self.length) if isinstance(along, slice) else (0, 0, 0)
        block = self.format.block
        if step != 1 or start % block or (stop % block and stop != self.length):
            raise IndexError(f"along axis {self.axis}, the blocked one, an index must be a slice of whole blocks of "
                             f"{block}, such as {block}:{2 * block}, not {along}; np.asarray gives the numbers")
        stop = max(start, stop)
        first, end = start // block, self.format.blocks(stop)
        elements = self.elements[(*others, slice(first * self.format.block_bytes, end * self.format.block_bytes))]
        scales = self.scales[(*others, slice(first, end))]
        behind = sum(isinstance(item, slice) for item in keys[at + 1 :])
        shape = list(scales.shape[:-1])
        shape.insert(len(shape) - behind, stop - start)
        return self._with(elements, scales, tuple(shape), -1 - behind)

    def _with(self, elements: Array, scales: Array, shape: tuple[int, ...], axis: int) -> Quantized:
        return Quantized(elements, scales, shape, self.format, axis, self.tensor_scale)

    def __repr__(self) -> str:
        return f"Quantized({self.format}, shape={self.shape}, axis={self.axis}, {self.nbytes} bytes)"


def _in_host(q: Quantized) -> Quantized:
    if not isinstance(q.elements, np.ndarray):
        raise TypeError(f"the elements of this {q.format} array are in a GPU's memory, a {type(q.elements).__name__}: "
                        "its numbers can be had where elements and scales are NumPy's")
    return q


def blocked_axis(axis: Any, ndim: int) -> int:
    """An axis counted from the end, or a ValueError."""
    if ndim == 0:
        raise ValueError("x must have at least 1 axis, along which there are blocks")
    if not -ndim <= index(axis) < ndim:
        raise ValueError(f"axis must be {-ndim} to {ndim - 1} for an array of {ndim} axes, not {axis}")
    return index(axis) % ndim - ndim


def dequantize(q: Quantized | Scaled, dtype: object = "f32") -> Array:
    """The numbers of q, a Quantized or a Scaled, as an array of q.shape in a floating-point format.

    The numbers of a Quantized are exact in f64. In f32 they are exact too, except from 2^128 on (inf) and in nvfp4,
    where the multiplication by tensor_scale is rounded. The numbers of a Scaled are elements times scales, rounded
    once. Other formats get them rounded once more, to nearest even; numbers beyond their range become inf or nan. A
    scale that is nan makes all numbers of its block nan; nan and inf among the elements (e4m3fn, e5m2) stay.
    """
    if not isinstance(q, Decodable):
        raise TypeError(f"q must be a Quantized or a Scaled, as quantize makes them, not {type(q).__name__}")
    target = get(dtype, "dtype")
    if not isinstance(target, Float):
        raise ValueError(f"dtype must be a floating-point format, not {target}")
    if target.name in ("f32", "f64"):
        return q.decoded(target.dtype)
    return convert(q.decoded(get("f64").dtype), target, saturate=False)


def scaled(q: Quantized, wide: np.dtype[Any], kept: Any = None) -> Array:
    """Elements times their blocks' scales, exact in f32 or f64, in q's shape; the blocked axis is the contiguous one.

    `kept` makes of an array of these what is to be kept of it, if that is not all; a part is in cache at a time.
    """
    f, rows = q.format, math.prod(q.others)
    elements, scales = q.elements.reshape(rows, q.elements.shape[-1]), q.scales.reshape(rows, q.scales.shape[-1])
    width = scales.shape[-1] * f.block
    step = max(1, AT_ONCE // max(1, width))
    scaled_rows = np.empty((rows if kept is None else min(step, rows), width), wide)
    parts = []
    with np.errstate(all="ignore"):
        for i in range(0, rows, step):
            some = scales[i : i + step]
            values = scaled_rows[i : i + step] if kept is None else scaled_rows[: len(some)]
            _look_up(elements[i : i + step], f.element, values)
            by_blocks = values.reshape(*some.shape, f.block)
            by_blocks *= values_of(f.scale, wide, 1).take(some)[..., None]
            if kept is not None:
                parts.append(kept(values[:, : q.length]))
        if kept is not None:
            scaled_rows = np.concatenate(parts) if parts else kept(scaled_rows)
    return np.moveaxis(scaled_rows[:, : q.length].reshape(*q.others, q.length), -1, q.axis)


def _look_up(rows: NDArray[np.uint8], fmt: Float, to: Array) -> None:
    """Packed elements as numbers: two of 4 or 6 bits are looked up at a time."""
    words: Array = rows
    if fmt.bits == 6:
        first, second, third = (rows[:, i::3].astype(np.uint16) for i in range(3))
        words = np.empty((len(rows), rows.shape[-1] // 3 * 2), np.uint16)
        words[:, ::2], words[:, 1::2] = first | (second & 15) << 8, second >> 4 | third << 4
    table = values_of(fmt, to.dtype, 1 if fmt.bits == 8 else 2)
    table.take(words, out=to.view(table.dtype), mode="clip")  # every word is in range, and "raise" would copy


def in_blocks(along: Array, f: BlockFormat) -> Array:
    """[..., length] as [..., blocks, block], with zeros behind the end."""
    return in_groups(along, f.block)


def packed(elements: Array) -> NDArray[np.uint8]:
    """Elements [..., blocks, block] of the element format's dtype as the bytes of rows."""
    return pack(elements.reshape(*elements.shape[:-2], elements.shape[-2] * elements.shape[-1]))


@lru_cache(maxsize=32)
def values_of(fmt: Float, dtype: np.dtype[Any], count: int) -> Array:
    """What packed numbers of a format mean, by their bits; of two at once as a complex number, the first one first."""
    values = np.array([fmt.decode(pattern) for pattern in range(2**fmt.bits)], dtype)
    if count == 2:
        pairs = np.stack([np.tile(values, values.size), np.repeat(values, values.size)], axis=-1)
        values = pairs.view(f"c{2 * dtype.itemsize}").ravel()
    values.flags.writeable = False
    return values


def check_operand(name: str, x: Any, format: str, shape: tuple[int, ...], *, allowed: str = "a NumPy array",
                  given: str = "", hint: str = "") -> None:
    """TypeError or ValueError unless x has this format and shape, and of a block-scaled format blocks along k.

    `allowed` is what x may be and `given` what it is, for the message; `hint` follows a message about the shape.
    """
    given = given or type(x).__name__
    if format in BLOCK_FORMATS:
        if not isinstance(x, Quantized):
            raise TypeError(f"{name} must be Quantized ({format}), not {given}")
        if x.format.name != format or x.shape != shape or x.axis != (-1 if name == "a" else -2):
            raise ValueError(f"{name} must be {format} of shape {shape} with blocks along k, not {x!r}")
        return
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be {allowed}, not {given}")
    dtype = FORMATS[format].dtype
    if x.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, as the problem requires, not {x.dtype}")
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {x.shape}{hint}")
