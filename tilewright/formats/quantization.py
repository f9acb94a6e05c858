"""From numbers to a block-scaled format, by the rule that OCP's MX specification, version 1.0, gives in section 6.3.

    scale    2^(floor(log2(the largest |number| of the block)) - emax), emax being the exponent of the largest element
    element  number / scale, rounded to nearest even; what exceeds the largest element becomes it, with its sign

The scale is cut to what e8m0 has, 2^-127 to 2^127. A block of zeros has the smallest one.

nvfp4 has scales of e4m3fn instead, relative to one f32 for the whole array, which makes the largest of them 448: each
is the block's largest |number| / 6 / that, rounded to nearest even, so that the largest of a block becomes about 6.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.formats.conversion import Array, convert, to_odd
from tilewright.formats.quantized import Quantized, blocked_axis, in_blocks, packed
from tilewright.formats.records import Complex, Float, Integer
from tilewright.formats.scaled import HALVES, scalable, scale, two_to_a_byte
from tilewright.formats.table import BLOCK_FORMATS, BlockFormat, advice, array_format, block_format, find

BlockName = Literal["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "nvfp4"]


@overload
def quantize(x: ArrayLike, format: BlockFormat | BlockName, axis: int = -1) -> Quantized: ...
@overload
def quantize(x: ArrayLike, format: object, axis: int | None = -1, *, group: int | None = None,
             zero_points: bool = False, nibbles: bool | None = None) -> Any: ...
def quantize(x: ArrayLike, format: object, axis: int | None = -1, *, group: int | None = None,
             zero_points: bool = False, nibbles: bool | None = None) -> Any:
    """x in a format of few bits, with scales.

    In a block-scaled format, mxfp8 (its elements are e4m3fn), mxfp8_e5m2, mxfp6 (e2m3), mxfp6_e3m2, mxfp4 (e2m1) or
    nvfp4 (e2m1), the result is a Quantized. In integers of at most 16 bits and floats of smaller range than f32 (i8,
    i4, e4m3fn, e5m2 and others) it is a Scaled, with f32 scales for whole rows, columns, groups or the array.

    x       an array of real numbers in any format, with at least one axis and any strides; or a torch tensor on the
            CPU, bf16 and fp8 included.
    axis    the axis along which neighbours share a scale: 32 of them in MX formats, 16 in nvfp4, all in others. For a
            product it is k: -1 for the left operand (a scale for each row), -2 for the right one (a scale for each
            column), or -1 if trans_b transposes it. None (not for blocks): all of x has one scale. The last block is
            filled up with zeros.

    group       for formats that are not block-scaled: how many neighbours along `axis` share a scale. None: all.
    zero_points True, for integers: each scale has a zero point, too. Numbers are (element - zero point) * scale,
                so that elements use the format's whole range even if most numbers have one sign.
    nibbles     whether i4, u4 and e2m1 have two elements to a byte, along the last axis. None: yes with groups.

    In formats that are not block-scaled a scale is the largest absolute value divided by the format's largest number,
    an f32 of at least 2^-126 (1 if all are zero). Elements are x / scale, in f32 (f64 where x has more digits than
    f32), rounded to nearest even. ValueError for nan and inf in integer formats, and for negative numbers in unsigned
    ones.

    In block-scaled formats numbers are rounded once, to nearest even, subnormal elements included. Numbers between
    the largest element and the next power of two saturate, as the OCP specification says: if the largest number of a
    block is f times a power of two with f in [1, 2), those are f > 1.75 in mxfp8, mxfp6_e3m2 and mxfp8_e5m2, f > 1.875
    in mxfp6 and f > 1.5 in mxfp4.

    The specification does not say what becomes of nan and inf. Here the scale is that of the finite numbers. nan and
    inf stay if the element format has them (e5m2), inf becomes nan if it has only nan (e4m3fn); in 6 and 4 bits, which
    have neither, the scale becomes nan, and with it the whole block.
    """
    plain = find(format)
    f = None if plain is not None else _block_format(format)
    array = _array(x)
    source = array_format(array)
    if isinstance(source, Complex):
        raise TypeError(f"x is {source}; quantize x.real and x.imag, each by itself")
    if axis is None and f is not None:
        raise ValueError(f"axis must be an integer for {f}, whose blocks are along one")
    along = None if axis is None else blocked_axis(axis, array.ndim)
    if f is not None and (group is not None or zero_points or nibbles is not None):
        raise ValueError(f"group, zero_points and nibbles must not be given for {f}, whose blocks of {f.block} are "
                         "stored in one way")
    if f is None:
        _check(scalable(plain, "format"), along, group, zero_points, nibbles)
    wide = to_odd(array) if source.name in ("i64", "u64") else array.astype(_wide(source.bits, source.name))
    if f is None or along is None:
        quantized = scale(wide, scalable(plain, "format"), along, group or 0, zero_points)
        halves = quantized.format.name in HALVES and (nibbles or (nibbles is None and bool(group)))
        return two_to_a_byte(quantized) if halves else quantized
    elements, scales, tensor_scale = _quantized(in_blocks(np.moveaxis(wide, along, -1), f), f)
    return Quantized(packed(elements), scales, array.shape, f, along, tensor_scale)


def _array(x: Any) -> Array:
    """np.asarray(x), also of torch's tensors in formats that NumPy lacks."""
    torch: Any = sys.modules.get("torch")
    tensor: Any = getattr(torch, "Tensor", None)        # None: torch is being imported
    if tensor is None or not isinstance(x, tensor):
        return np.asarray(x)
    f, x = find(str(x.dtype).removeprefix("torch.")), x.detach()
    if f is None or f.dtype.isbuiltin == 1:
        return np.asarray(x)
    return np.asarray(x.view(getattr(torch, f"int{f.bits}"))).view(f.dtype)


def _check(f: Integer | Float, axis: int | None, group: Any, zero_points: Any, nibbles: Any) -> None:
    """ValueError for keywords that a format with scales does not have."""
    if group is not None and (axis is None or not isinstance(group, (int, np.integer)) or group < 1):
        raise ValueError("group must be None, or how many neighbours along an axis share a scale, not "
                         f"{group!r}{' with axis=None' if axis is None else ''}")
    if zero_points and not isinstance(f, Integer):
        raise ValueError(f"zero_points must be False for {f}: zero points are of integers")
    if nibbles and f.name not in HALVES:
        raise ValueError(f"nibbles must be None or False for {f}: of 4 bits are {', '.join(HALVES)}")


def _block_format(format: object) -> BlockFormat:
    try:
        return block_format(format)
    except ValueError as error:
        blocks = f", or, with a scale for every 32 numbers, mx{format}" if f"mx{format}" in BLOCK_FORMATS else ""
        raise ValueError(f"{error}; or integers of at most 16 bits or floats of smaller range than f32, such as i8, i4 "
                         f"or e4m3fn{advice(format)}{blocks}") from None


def _wide(bits: int, name: str) -> Any:
    """f32 where it holds every number. Dividing by a scale there is exact but for numbers below 2^-126, far below half
    of any smallest element, which round to zero either way."""
    return np.float32 if bits <= 16 or name == "f32" else np.float64


def _quantized(blocks: Array, f: BlockFormat) -> tuple[Array, NDArray[np.uint8], float]:
    """Elements of the element format's dtype, the patterns of the scales, and the scale of all."""
    amax = np.max(np.abs(blocks), axis=-1, initial=0)
    lost = ~np.isfinite(amax)
    finite = blocks
    if lost.any():
        strange = ~np.isfinite(blocks)
        finite = np.where(strange, 0, blocks)
        amax = np.max(np.abs(finite), axis=-1, initial=0)
    with np.errstate(all="ignore"):
        scaled, scales, tensor_scale = _by_powers_of_two(finite, amax, f) if f.mx else _by_numbers(finite, amax, f)
        elements = convert(scaled, f.element, saturate=True)
    if not lost.any():
        return elements, scales, tensor_scale
    if f.element.nans:
        elements[strange] = convert(blocks[strange], f.element, saturate=False)
    else:
        elements[lost], scales[lost] = 0, f.scale.nans[0].start
    return elements, scales, tensor_scale


def _by_powers_of_two(x: Array, amax: Array, f: BlockFormat) -> tuple[Array, NDArray[np.uint8], float]:
    """x divided by its blocks' scales, and those scales."""
    exponent = np.where(amax > 0, np.frexp(amax)[1] - 1 - f.emax, -f.scale.bias)
    exponent = np.clip(exponent, -f.scale.bias, f.scale.bias)
    scaled = x * np.ldexp(amax.dtype.type(1), -exponent)[..., None]
    return scaled, (exponent + f.scale.bias).astype(np.uint8), 1.0


def scale_of_all(largest: float, f: BlockFormat) -> float:
    """The nvfp4 tensor scale of numbers whose largest finite magnitude is `largest`."""
    limits, most = np.finfo(np.float32), largest / f.element.largest
    return float(np.float32(np.clip(most / f.scale.largest, limits.tiny, limits.max))) if most else 1.0


def _by_numbers(x: Array, amax: Array, f: BlockFormat) -> tuple[Array, NDArray[np.uint8], float]:
    """x divided by its blocks' scales, these scales, which are no powers of two, and the tensor scale, in f64. A block
    whose scale rounds to zero becomes zeros."""
    tensor_scale = scale_of_all(float(np.max(amax, initial=0)), f)
    scales = convert(amax.astype(np.float64) / f.element.largest / tensor_scale, f.scale, saturate=True)
    divisor = scales.astype(np.float64)[..., None] * tensor_scale
    return np.where(divisor > 0, x / divisor, np.copysign(0.0, x)), scales.view(np.uint8), tensor_scale
