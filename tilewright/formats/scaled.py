"""Numbers of few bits with a scale for each row, each column, the whole array, or each group along an axis.

Bytes of two elements, groups, zero points and minima are described at `Scaled`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.formats.conversion import Array, convert, pack
from tilewright.formats.decodable import Decodable, basic
from tilewright.formats.records import Float, Format, Integer
from tilewright.formats.table import array_format, find, get

HOST = 1  # DLPack's kind of device
AT_ONCE = 1 << 16  # numbers that are decoded at a time, so that all that is made on the way stays in L2
LEAST = float(np.finfo(np.float32).tiny)  # of scales: 2^-126, below which an f32 has fewer digits


class Nibbles(NamedTuple):
    """How elements of 4 bits share bytes: two neighbours along an axis, the first one in the lower half."""

    format: str
    axis: int  # negative
    length: int  # elements along it

    @property
    def bytes(self) -> int:
        return -(-self.length // 2)


@dataclass(frozen=True, eq=False)
class Scaled(Decodable):
    """An array of numbers (element - zero point) * scale, or element * scale + minimum. Numbers along an axis, or in
    groups along it, share a scale.

    elements    an array of integers of at most 16 bits, or of floats of smaller range than f32; with `nibbles` uint8
                that hold two of i4, u4 or e2m1 each
    scales      f32, f16 or bf16 (the last two become f32), with as many axes as the numbers; along each axis its
                length, or 1 if all numbers along it share a scale, or, along one axis, ceil(length / group)
    zeros       the zero points, with the scales' shape, for integer elements: integers in the elements' dtype (int8 or
                uint8 for 4 bits); or, for NumPy's arrays, f32, f16 or bf16 (which become f32). None: all are 0
    group       how many neighbours share a scale, along the axis that has groups; 0: there are no groups
    nibbles     for bytes with two elements each, neighbours along an axis, the first in the lower half: their format,
                "i4", "u4" or "e2m1", along the last axis; or (format, axis, length), length being that of the array of
                numbers along the axis. None: each element has its own byte or more
    minima      what is added to each number, as in GGUF's Q4_1 and Q4_K: f32, f16 or bf16 (the last two become f32),
                with the scales' shape, for integer elements without zero points. None: nothing

    TypeError and ValueError for other arrays. Elements are not copied. All may be in a GPU's memory (torch,
    CuPy, DLPack); dequantize refuses these.
    """

    elements: Array
    scales: Array
    zeros: Array | None = None
    group: int = 0
    nibbles: Nibbles | Any = None
    minima: Array | None = None

    def __post_init__(self) -> None:
        arrays = {name: x for name, x in self._arrays.items() if x is not None or name in ("elements", "scales")}
        for name, x in arrays.items():
            if not held(x):
                raise TypeError(f"{name} must be an array, not {type(x).__name__}")
        if len({isinstance(x, np.ndarray) for x in arrays.values()}) > 1:
            raise TypeError(f"{', '.join(arrays)} must all be NumPy arrays or all be in a GPU's memory")
        object.__setattr__(self, "nibbles", _nibbles(self.nibbles, self.elements))
        if self.nibbles is None:
            scalable(format_of(self.elements, "elements"), "elements")
        else:
            self._check_nibbles(self.nibbles)
        for name in ("scales", "zeros", "minima"):
            if name in arrays and format_of(arrays[name], name).name in ("f16", "bf16"):
                object.__setattr__(self, name, _in_f32(arrays[name]))
        if format_of(self.scales, "scales").name != "f32":
            raise TypeError(f"scales must be float32, float16 or bfloat16, not {self.scales.dtype}")
        self._check_groups()
        self._check_minima()
        if self.zeros is None:
            return
        if not isinstance(self.format, Integer):
            raise TypeError(f"zeros must be None beside elements of {self.format}: zero points are of integers")
        wanted = self.format.name if self.format.bits >= 8 else "i8" if self.format.signed else "u8"
        if format_of(self.zeros, "zeros").name not in (wanted, "f32"):
            raise TypeError(f"zeros beside elements of {self.format} must be of {wanted}, float32, float16 or "
                            f"bfloat16, not {self.zeros.dtype}")
        if self.by_floats and not isinstance(self.zeros, np.ndarray):
            raise TypeError(f"zeros in a GPU's memory must be integers, of {wanted}, not {self.zeros.dtype}")
        if tuple(self.zeros.shape) != tuple(self.scales.shape):
            raise ValueError(f"zeros must have the shape of scales, {tuple(self.scales.shape)}, not "
                             f"{tuple(self.zeros.shape)}")

    def _check_nibbles(self, how: Nibbles) -> None:
        axes = len(self.elements.shape)
        if format_of(self.elements, "elements").name != "u8" or how.format not in HALVES:
            raise TypeError(f"elements that share bytes must be of {', '.join(HALVES)} in an array of uint8, not of "
                            f"{how.format} in one of {self.elements.dtype}")
        if not -axes <= how.axis < 0 or self.elements.shape[how.axis] != how.bytes:
            raise ValueError(f"elements must have {how.bytes} bytes for {how.length} numbers along axis {how.axis}, "
                             f"and their shape is {tuple(self.elements.shape)}")

    def _check_minima(self) -> None:
        if self.minima is None:
            return
        if self.zeros is not None or not isinstance(self.format, Integer):
            raise TypeError("minima must be None beside zero points, and beside elements that are no integers: numbers "
                            "are (element - zero point) * scale or element * scale + minimum")
        if format_of(self.minima, "minima").name != "f32" or tuple(self.minima.shape) != tuple(self.scales.shape):
            raise ValueError(f"minima must be float32, float16 or bfloat16 with the shape of scales, "
                             f"{tuple(self.scales.shape)}, not {self.minima.dtype} of {tuple(self.minima.shape)}")

    def _check_groups(self) -> None:
        shape, scales = self.shape, tuple(self.scales.shape)
        counts = {n: -(-n // self.group) if self.group > 0 else 1 for n in shape}
        fits = len(scales) == len(shape) and all(n in (1, length, counts[length]) for n, length in zip(scales, shape))
        if not fits or sum(n not in (1, length) for n, length in zip(scales, shape)) > 1 or self.group < 0:
            groups = f", or along one of them a number for each {self.group}" if self.group > 0 else ""
            raise ValueError(f"scales of elements {shape} must have the same axes, each as long or 1{groups}, not "
                             f"{scales}")

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of the numbers."""
        shape = list(self.elements.shape)
        if self.nibbles:
            shape[self.nibbles.axis] = self.nibbles.length
        return tuple(shape)

    @property
    def format(self) -> Any:
        """The format of the elements."""
        return get(self.nibbles.format) if self.nibbles else format_of(self.elements)

    @property
    def axis(self) -> int | None:
        """The axis with groups, a negative number; None: there are no groups."""
        shape, scales = self.shape, tuple(self.scales.shape)
        return next((i - len(shape) for i, (n, length) in enumerate(zip(scales, shape)) if n not in (1, length)), None)

    @property
    def by_floats(self) -> bool:
        """Whether zero points are floats."""
        return self.zeros is not None and format_of(self.zeros).name == "f32"

    @property
    def plain(self) -> bool:
        """Whether there is a scale for each row, each column or the whole array, without groups and zero points."""
        return self.axis is None and self.zeros is None and self.nibbles is None and self.minima is None

    @property
    def nbytes(self) -> int:
        """Bytes of elements, scales, zero points and minima."""
        return sum(math.prod(x.shape) * format_of(x).itemsize for x in self._arrays.values() if x is not None)

    @property
    def T(self) -> Scaled:
        """With the axes in reverse order; nothing is copied."""
        how = self.nibbles
        arrays: Any = {name: None if x is None else _reversed(x) for name, x in self._arrays.items()}
        return replace(self, **arrays, nibbles=how and how._replace(axis=-1 - (how.axis + self.ndim)))

    @property
    def mT(self) -> Scaled:
        """With the last two axes exchanged; nothing is copied."""
        how = self.nibbles
        arrays: Any = {name: None if x is None else x.swapaxes(-1, -2) for name, x in self._arrays.items()}
        return replace(self, **arrays, nibbles=how and how._replace(axis={-1: -2, -2: -1}.get(how.axis, how.axis)))

    @property
    def _arrays(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("elements", "scales", "zeros", "minima")}

    def __getitem__(self, key: Any) -> Scaled:
        """By integers and slices, with the scales that belong to what is left; along an axis with groups by slices of
        whole ones, along one with two elements to a byte by slices of whole bytes. Nothing is copied."""
        keys, how = basic(key, self.ndim), self.nibbles
        parts: dict[str, list[Any]] = {"elements": [], "scales": []}
        for at, (item, length, count) in enumerate(zip(keys, self.shape, self.scales.shape)):
            axis = at - self.ndim
            unit = self.group if axis == self.axis else 1
            parts["scales"].append(_whole(item, length, unit, axis) if count != 1 else
                                   0 if not isinstance(item, slice) else slice(None))
            parts["elements"].append(_whole(item, length, 2, axis) if how and axis == how.axis else item)
        keys_of = {name: tuple(parts["elements" if name == "elements" else "scales"]) for name in self._arrays}
        arrays: Any = {name: None if x is None else np.asarray(x[keys_of[name]]) for name, x in self._arrays.items()}
        if how:
            behind = sum(isinstance(item, slice) for item in keys[how.axis + self.ndim + 1:])
            along: Any = keys[how.axis]
            how = Nibbles(how.format, -1 - behind, len(range(*along.indices(how.length))))
        return replace(self, **arrays, nibbles=how)

    def unpacked(self) -> Array:
        """The elements by themselves, one to a byte if they have no more than 8 bits: the format's dtype."""
        if not isinstance(self.elements, np.ndarray):
            raise TypeError(f"the elements of this {self.format} array are in a GPU's memory, a "
                            f"{type(self.elements).__name__}: its numbers can be had where they are NumPy's")
        return self.elements if (x := self.nibbles) is None else apart(x, self.format.dtype, x.axis, self.elements)

    def decoded(self, dtype: np.dtype[Any]) -> Array:
        numbers = self.unpacked().astype(dtype)
        with np.errstate(all="ignore"):
            if self.zeros is not None:
                numbers -= self._spread(self.zeros).astype(dtype)
            numbers *= self._spread(self.scales).astype(dtype, copy=False)
            if self.minima is not None:
                numbers += self._spread(self.minima).astype(dtype, copy=False)
        return numbers

    def _spread(self, x: Array) -> Array:
        """Numbers of groups, once for each of their elements."""
        if self.axis is None:
            return x
        along = np.moveaxis(np.repeat(x, self.group, self.axis), self.axis, -1)[..., : self.shape[self.axis]]
        return np.moveaxis(along, -1, self.axis)

    def __repr__(self) -> str:
        more = f", groups of {self.group}" * (self.axis is not None) + ", zero points" * (self.zeros is not None)
        more += ", minima" * (self.minima is not None)
        return (f"Scaled({self.format}, shape={self.shape}, scales={tuple(self.scales.shape)}{more}, "
                f"{self.nbytes} bytes)")


HALVES = ("i4", "u4", "e2m1")


def _nibbles(given: Any, elements: Any) -> Nibbles | None:
    """The Nibbles record for the argument `nibbles` of Scaled."""
    if given is None or isinstance(given, Nibbles):
        return given
    name, *where = (given,) if isinstance(given, (str, Format)) else given if isinstance(given, tuple) else (None,)
    f = find(name) if isinstance(name, (str, Format)) else None
    if f is None or f.name not in HALVES or len(where) not in (0, 2) or not all(isinstance(x, int) for x in where):
        raise TypeError(f"nibbles must be one of {', '.join(HALVES)}, or (format, axis, length), not {given!r}")
    axis, length = where or (-1, 2 * elements.shape[-1])
    return Nibbles(f.name, axis - len(elements.shape) * (axis >= 0), length)


def _in_f32(x: Any) -> Any:
    return x.astype(np.float32) if hasattr(x, "astype") else x.float()  # NumPy's and CuPy's, torch's


def apart(how: Nibbles, dtype: np.dtype[Any], axis: int, elements: Array) -> Array:
    """Elements that share bytes, one to a byte of the format's dtype. axis: where the one that shares them is then."""
    along = np.moveaxis(elements, how.axis, -1)
    pairs, flat = np.empty(along.shape, "<u2"), (math.prod(along.shape[:-1]), along.shape[-1])
    source, every = along.reshape(flat), pairs.reshape(flat)
    for i in range(0, flat[0], rows := max(1, AT_ONCE // max(1, how.length))):
        every[i : i + rows] = ((some := source[i : i + rows].astype("<u2")) | some << np.uint16(4)) & np.uint16(0x0F0F)
    return np.moveaxis(pairs.view(np.uint8)[..., : how.length].view(dtype), -1, axis)


def _reversed(x: Any) -> Any:
    return x.permute(*range(x.ndim - 1, -1, -1)) if hasattr(x, "permute") else x.T  # torch's, NumPy's


def _whole(key: Any, length: int, unit: int, axis: int) -> Any:
    """A slice of whole groups of `unit`, in groups. IndexError for others."""
    if unit == 1:
        return key
    start, stop, step = key.indices(length) if isinstance(key, slice) else (1, 0, 0)
    if step != 1 or start % unit or (stop % unit and stop != length):
        raise IndexError(f"along axis {axis}, where {unit} elements share a byte or a scale, an index must be a slice "
                         f"of whole groups of {unit}, not {key}; np.asarray gives the numbers")
    return slice(start // unit, -(-max(start, stop) // unit))


def held(x: Any) -> bool:
    """Is it NumPy's, or an array in a GPU's memory?"""
    return isinstance(x, np.ndarray) or on_gpu(x)


def on_gpu(x: Any) -> bool:
    """Is it an array in a GPU's memory, by one of the protocols for such?"""
    if type(x).__module__ == "numpy":
        return False
    where = getattr(x, "__dlpack_device__", None)
    return hasattr(x, "__cuda_array_interface__") if where is None else where()[0] != HOST


def format_of(x: Any, argument: str = "x") -> Format:
    """The format of an array's elements: of NumPy's, or of one in a GPU's memory."""
    if isinstance(x, np.ndarray):
        return array_format(x, argument)
    return get(str(x.dtype).removeprefix("torch."), argument)


def scalable(f: Format | None, argument: str) -> Integer | Float:
    """An integer or floating-point format of at most 16 bits, or a TypeError."""
    if not isinstance(f, (Integer, Float)) or f.bits > 16 or f.name in ("bf16", "e8m0"):  # these have f32's range
        raise TypeError(f"{argument} must be of integers of at most 16 bits or floats of smaller range than f32, such "
                        f"as i8, i4 or e4m3fn, not {f}")
    return f


def scale(x: Array, f: Integer | Float, axis: int | None, group: int = 0, zero_points: bool = False) -> Scaled:
    """x, of f32 or f64, in the format f: scale = the largest size of those that share it / the largest number of f.

    Sizes are those of the finite numbers. Elements are x / scale rounded to nearest even, and saturate. Scales are at
    least 2^-126, and 1 where there are zeros only. nan and inf are kept where f has them, inf is nan where f has only
    that, and both are a ValueError in other formats. `group`: of so many along the axis; 0: of all.

    With zero points scale = (largest - smallest number) / (those of f), 0 counting as one of them, and the zero point
    is the smallest of f - smallest number / scale, rounded: elements are x / scale, rounded, + that.
    """
    if isinstance(f, Integer) and not f.signed and not zero_points and (x < 0).any():
        raise ValueError(f"x holds negative numbers, and {f} has none but with zero_points=True")
    strange = ~np.isfinite(x)
    some = bool(strange.any())
    finite = np.where(strange, 0, x) if some else x
    groups, along = finite, axis
    if group and axis is not None:
        groups, along = in_groups(np.moveaxis(finite, axis, -1), group), -1
    low, high = (how(groups, axis=along, initial=0, keepdims=True) for how in (np.min, np.max))
    width = float(f.largest) - float(f.smallest) if zero_points else float(f.largest)
    wide = (high.astype(np.float64) - low if zero_points else np.maximum(high, -low).astype(np.float64)) / width
    scales = np.where(wide > 0, np.clip(wide, LEAST, np.finfo(np.float32).max), 1).astype(np.float32)
    zeros = np.clip(np.rint(float(f.smallest) - low / scales.astype(np.float64)), f.smallest, f.largest)
    with np.errstate(all="ignore"):
        elements = np.divide(groups, scales)
        if zero_points:
            elements = np.rint(elements) + zeros.astype(elements.dtype)
        elements = convert(elements, f, saturate=True)
    if group and axis is not None:
        elements = elements.reshape(*elements.shape[:-2], math.prod(elements.shape[-2:]))[..., : x.shape[axis]]
        elements, scales, zeros = (np.ascontiguousarray(np.moveaxis(y, -1, axis))
                                   for y in (elements, scales[..., 0], zeros[..., 0]))
    if some:
        elements[strange] = convert(x[strange], f, saturate=False)
    kept = f.dtype if f.bits >= 8 else np.dtype(np.int8 if f.smallest else np.uint8)
    return Scaled(elements, scales, zeros.astype(kept) if zero_points else None, group)


def in_groups(along: Array, length: int) -> Array:
    """[..., n] as [..., groups, length], with zeros behind the end."""
    lead, n = along.shape[:-1], along.shape[-1]
    count = -(-n // length)
    if n == count * length:
        return np.ascontiguousarray(along).reshape(*lead, count, length)
    padded = np.zeros((*lead, count * length), along.dtype)
    padded[..., :n] = along
    return padded.reshape(*lead, count, length)


def two_to_a_byte(q: Scaled) -> Scaled:
    """These numbers with elements of 4 bits two to a byte, along the last axis."""
    return replace(q, elements=pack(q.elements), nibbles=Nibbles(q.format.name, -1, q.shape[-1]))
