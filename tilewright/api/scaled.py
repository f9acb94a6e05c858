"""Operands with scales: Quantized arrays, and scale_a and scale_b beside plain ones, as matmul takes them on CPUs.

They are decoded before they are multiplied. An element times its scale is exactly one of f32, unless it is 2^128 or
more, which is inf; the scale that nvfp4 has for a whole array becomes part of alpha. Where both operands are
block-scaled, a large product takes them as bf16 instead, which is exact too, takes half the memory and is multiplied at
twice f32's rate and more. But that flushes what is below 2^-126; where a number, a product or a sum of products could
be so small, f32 is taken: one contract.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.api import dispatch
from tilewright.formats.decodable import Decodable
from tilewright.formats.quantized import Quantized, scaled
from tilewright.formats.scaled import Scaled
from tilewright.rules import arguments
from tilewright.rules.arguments import F32, Array

LEAST_EXPONENT = -126  # of numbers that no instruction flushes
BF16 = formats.get("bf16").dtype
SCALE_DTYPES = tuple(formats.get(name).dtype for name in ("f32", "f64", "f16", "bf16"))  # of rows' and columns' scales
SIDES = {"a": "row", "b": "column"}


class Plain(NamedTuple):
    """A product without scales in its operands: those of blocks are in the numbers, those of whole operands in alpha,
    and those of rows and columns multiply the sums."""

    a: Any
    b: Any
    alpha: Any
    scales: tuple[Array, ...]


class _Operand(NamedTuple):
    x: Any  # a Quantized if it has scales for blocks, which are along k
    factor: float | None = None  # of all numbers, for alpha
    scales: Array | None = None  # of the sums, as if the operand were not transposed


def present(a: Any, b: Any, scale_a: Any, scale_b: Any) -> bool:
    """Does either operand have scales?"""
    if not (scale_a is scale_b is None) or isinstance(a, Decodable) or isinstance(b, Decodable):
        return True
    return type(b) is not np.ndarray and (getattr(b, "_scales", None) is not None or getattr(b, "_factor", 1.0) != 1.0)


def plain(
    a: Any, b: Any, scale_a: Any, scale_b: Any, trans_a: Any, trans_b: Any, alpha: Any, native: bool
) -> Plain:
    """The same product of arrays without scales.

    native      nobody asks for arithmetic of a certain kind, so that bf16 may serve.
    """
    left, right = operand(a, scale_a, trans_a, "a"), operand(b, scale_b, trans_b, "b")
    for factor in (left.factor, right.factor):
        if factor is not None and factor != 1:
            alpha = _times(arguments.number(alpha, "alpha"), factor)
    a, b = left.x, right.x
    narrow = False
    if isinstance(a, Quantized):
        if isinstance(b, Quantized):
            narrow = native and _large(a, b) and not _flushed(a, b)
        else:  # panels that are multiplied with bf16
            narrow = getattr(b, "a", None) == BF16 and exact_in_bf16(a)
    scales = []
    for side, other, missing in ((left, b, -1), (right, a, -2)):
        if side.scales is not None:
            dropped = other.ndim == 1 and side.scales.ndim > 1  # the axis that a vector takes from the result
            scales.append(side.scales.squeeze(missing) if dropped else side.scales)
    a, b = (decoded(x, narrow) if isinstance(x, Quantized) else x for x in (a, b))
    return Plain(a, b, alpha, tuple(scales))


def operand(x: Any, scale: Any, trans: Any, name: str) -> _Operand:
    """An operand without the scales that products do not meet in its numbers."""
    if isinstance(x, Decodable) or getattr(x, "_scales", None) is not None:
        if scale is not None:
            what = "packed with scales" if not isinstance(x, Decodable) else f"a {type(x).__name__}"
            raise ValueError(f"{name} is {what}, which has its own scales: scale_{name} must be None with it")
    if isinstance(x, Quantized):
        return _Operand(_along_k(x, trans, name), x.tensor_scale)
    if isinstance(x, Scaled):
        return _Operand(x.elements, None, _by_sums(x.scales, x, trans, name, "axis"))
    if type(x) is not np.ndarray and hasattr(x, "_scales"):  # packed
        return _Operand(x, x._factor, x._scales if scale is None else _by_sums(np.asarray(scale), x, trans, name))
    if scale is None:
        return _Operand(arguments.operand(x, name))
    x, scales = arguments.operand(x, name), np.asarray(scale)
    found = formats.find(x.dtype)
    if scales.ndim == 0:
        if isinstance(found, formats.Float):
            return _Operand(x, arguments.real(scale, f"scale_{name}"))
        return _Operand(x, None, np.asarray(arguments.real(scale, f"scale_{name}")))
    if scales.dtype in SCALE_DTYPES:
        return _Operand(x, None, _by_sums(scales, x, trans, name))
    axis = k_axis(x.ndim, trans, name)
    try:
        return _Operand(Quantized.of(x, scales, axis))
    except (TypeError, ValueError) as error:
        raise type(error)(f"scale_{name} must be a number, f32 for each {SIDES[name]} of {name}, or scales of blocks "
                          f"along k, axis {axis} of {name}: {error}") from None


def _by_sums(scales: Array, x: Any, trans: Any, name: str, remedy: str = "") -> Array:
    """Scales of rows of a or columns of b, of x's shape with 1 for k, as they multiply the sums. ValueError for others.
    """
    axis = k_axis(x.ndim, trans, name)
    if scales.ndim == 0:
        return scales
    wanted = tuple(1 if i == axis + x.ndim else n for i, n in enumerate(x.shape))
    if scales.ndim != x.ndim or any(n not in (1, length) for n, length in zip(scales.shape, wanted)):
        if remedy:
            raise ValueError(f"the numbers of {name} that share a scale must be those along k, its axis {axis}: "
                             f"quantize(x, {x.format.name!r}, axis={axis}), or trans_{name}")
        raise ValueError(f"scale_{name} with one scale per {SIDES[name]} of {name} must have the shape {wanted}, or 1 "
                         f"where all share it, and its shape is {scales.shape}")
    return scales.swapaxes(-1, -2) if x.ndim > 1 and arguments.layout(trans, name) != "n" else scales


def _times(alpha: Any, factor: float) -> Any:
    return (alpha if isinstance(alpha, complex) else arguments.real(alpha, "alpha")) * factor


def k_axis(ndim: int, trans: Any, name: str) -> int:
    """Which axis of an operand, as it is given, is k."""
    transposed = arguments.layout(trans, name) != "n"
    return -1 if ndim == 1 or transposed == (name == "b") else -2


def _along_k(q: Quantized, trans: Any, name: str) -> Quantized:
    axis = k_axis(q.ndim, trans, name)
    if q.axis != axis:
        raise ValueError(f"the blocks of {name} must lie along k, its axis {axis}, but they lie along axis {q.axis}: "
                         f"quantize(x, {q.format.name!r}, axis={axis}), or trans_{name}")
    return q


def _large(a: Quantized, b: Quantized) -> bool:
    """Is the product one whose operands the engine takes as bf16?"""
    bf16 = np.empty(0, BF16)
    rows, columns = (math.prod(q.others[-1:]) for q in (a, b))
    return bool(dispatch.cpu().converts(bf16, F32, rows, columns, a.length))


def _flushed(a: Quantized, b: Quantized) -> bool:
    """Could a number, a product of two, or a sum of such, be smaller than 2^-126 and not 0? Products and sums are
    multiples of the product of both operands' units."""
    units = _unit(a), _unit(b)
    return min(*units, sum(units)) < LEAST_EXPONENT


def _unit(q: Quantized) -> int:
    """The exponent of a power of two of which all numbers of q are multiples."""
    f = q.format
    unit = _exponent(f.element.smallest_subnormal)
    if not f.mx:
        return unit + _exponent(f.scale.smallest_subnormal)
    least = int(np.min(q.scales, initial=255))
    if not least:  # blocks of zeros have the smallest scale, and are multiples of anything
        used = q.elements.reshape(*q.scales.shape, f.block_bytes).any(axis=-1)
        least = int(np.min(q.scales, where=used, initial=255))
    return unit + least - f.scale.bias


def _exponent(power: float) -> int:
    return math.frexp(power)[1] - 1


def decoded(q: Quantized, narrow: bool) -> Array:
    """The numbers of q in f32 or, half as long, in bf16."""
    return as_bf16(q) if narrow else scaled(q, F32)


def exact_in_bf16(q: Quantized) -> bool:
    """Are all numbers of q, and none that is flushed, among bf16's?"""
    return _unit(q) >= LEAST_EXPONENT


def as_bf16(q: Quantized) -> Array:
    """The numbers of q, which are exact in bf16."""
    return scaled(q, F32, _upper_half).view(BF16)


def _upper_half(x: Array) -> Array:
    """Of f32: a bf16, whose lower half is zero."""
    return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
