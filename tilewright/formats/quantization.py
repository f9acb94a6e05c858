"""From numbers to a block-scaled format, by the rule that OCP's MX specification, version 1.0, gives in section 6.3.

    scale    2^(floor(log2(the largest |number| of the block)) - emax), emax being the exponent of the largest element
    element  number / scale, rounded to nearest even; what exceeds the largest element becomes it, with its sign

The scale is cut to what e8m0 has, 2^-127 to 2^127. A block of zeros has the smallest one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.formats.blocks import BlockFormat, block_format
from tilewright.formats.conversion import convert, to_odd
from tilewright.formats.quantized import Quantized, blocked_axis, in_blocks, packed
from tilewright.formats.records import Complex
from tilewright.formats.table import of

Array = NDArray[Any]


def quantize(x: ArrayLike, format: object, axis: int = -1) -> Quantized:
    """x in a block-scaled format: mxfp8 (of e4m3fn), mxfp8_e5m2, mxfp6 (of e2m3), mxfp6_e3m2 or mxfp4 (of e2m1).

    x       an array of numbers that are not complex, of any format, any shape with at least one axis, any strides.
    axis    along which 32 neighbours share a scale. For a product it is k: -1 of the left operand, -2 of the right one
            (or -1 of one that trans_b transposes). A last block of fewer numbers is filled up with zeros.

    Rounding is once, to nearest even, from the numbers as they are (f64 too), subnormal elements included. Numbers
    between the largest element and the next power of two saturate, as the specification says: with the largest number
    of a block in f = [1, 2) times a power of two, those are f > 1.75 in mxfp8 and mxfp6_e3m2 and mxfp8_e5m2, f > 1.875
    in mxfp6 and f > 1.5 in mxfp4.

    The specification's rule is one for numbers. Of nan and inf none is lost here, and the scale is that of the finite
    numbers: they stay what they are where the element format has them (e5m2), inf becomes nan where it has only that
    (e4m3fn), and where it has neither (6 and 4 bits), the scale is nan and with it the block.
    """
    f = block_format(format)
    array = np.asarray(x)
    source = of(array)
    if isinstance(source, Complex):
        raise TypeError(f"x is {source}; quantize x.real and x.imag, each by itself")
    axis = blocked_axis(axis, array.ndim)
    wide = to_odd(array) if source.name in ("i64", "u64") else array.astype(_wide(source.bits, source.name))
    elements, scales = _quantized(in_blocks(np.moveaxis(wide, axis, -1), f), f)
    return Quantized(packed(elements), scales, array.shape, f, axis)


def _wide(bits: int, name: str) -> Any:
    """f32 where it holds every number. Dividing by a scale there is exact but for numbers below 2^-126, far below half
    of any smallest element, which round to zero either way."""
    return np.float32 if bits <= 16 or name == "f32" else np.float64


def _quantized(blocks: Array, f: BlockFormat) -> tuple[Array, NDArray[np.uint8]]:
    """Elements of the element format's dtype, and the patterns of the scales."""
    amax = np.max(np.abs(blocks), axis=-1, initial=0)
    lost = ~np.isfinite(amax)
    finite = blocks
    if lost.any():
        strange = ~np.isfinite(blocks)
        finite = np.where(strange, 0, blocks)
        amax = np.max(np.abs(finite), axis=-1, initial=0)
    exponent = np.where(amax > 0, np.frexp(amax)[1] - 1 - f.emax, -f.scale.bias)
    exponent = np.clip(exponent, -f.scale.bias, f.scale.bias)
    with np.errstate(all="ignore"):
        elements = convert(finite * np.ldexp(amax.dtype.type(1), -exponent)[..., None], f.element, saturate=True)
    scales = (exponent + f.scale.bias).astype(np.uint8)
    if not lost.any():
        return elements, scales
    if f.element.nans:
        elements[strange] = convert(blocks[strange], f.element, saturate=False)
    else:
        elements[lost], scales[lost] = 0, f.scale.nans[0].start
    return elements, scales
