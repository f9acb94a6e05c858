"""Operands with scales: Quantized arrays, and scale_a and scale_b beside plain ones, as matmul takes them on CPUs.

They are decoded before they are multiplied. An element times its scale is exactly one of f32, unless it is 2^128 or
more, which is inf; the scale that nvfp4 has for a whole array becomes part of alpha. Where both operands are
block-scaled, a large product takes them as bf16 instead, which is exact too, takes half the memory and is multiplied at
twice f32's rate and more. But that flushes what is below 2^-126; where a number, a product or a sum of products could
be so small, f32 is taken: one contract.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright import arguments, engines, formats
from tilewright.arguments import F32, Array
from tilewright.formats.quantized import Quantized, scaled

LEAST_EXPONENT = -126  # of numbers that no instruction flushes


def plain(
    a: Any, b: Any, scale_a: Any, scale_b: Any, trans_a: Any, trans_b: Any, alpha: Any, native: bool
) -> tuple[Any, Any, Any]:
    """Arrays without scales instead of a and b, and alpha with the scales of whole operands.

    native      nobody asks for arithmetic of a certain kind, so that bf16 may serve.
    """
    a, factor_a = _operand(a, scale_a, trans_a, "a")
    b, factor_b = _operand(b, scale_b, trans_b, "b")
    for factor in (factor_a, factor_b):
        if factor is not None and factor != 1:
            alpha = _times(arguments.number(alpha, "alpha"), factor)
    if isinstance(a, Quantized) and isinstance(b, Quantized):
        narrow = native and _large(a, b) and not _flushed(a, b)
        return _decoded(a, narrow), _decoded(b, narrow), alpha
    return *(_decoded(x, False) if isinstance(x, Quantized) else x for x in (a, b)), alpha


def _operand(x: Any, scale: Any, trans: Any, name: str) -> tuple[Any, float | None]:
    """x, a Quantized if it has scales for blocks, which lie along k; and the one scale of all its numbers, if any."""
    if isinstance(x, Quantized):
        if scale is not None:
            raise ValueError(f"{name} is a Quantized, which has its own scales: scale_{name} must be None with it")
        return _along_k(x, trans, name), x.tensor_scale
    if scale is None:
        return x, None
    x, scales = arguments.operand(x, name), np.asarray(scale)
    if scales.ndim == 0:
        if not isinstance(formats.find(x.dtype), formats.Float):
            raise TypeError(f"scale_{name} must be None for {name} of {x.dtype}, which is none of tilewright's "
                            "floating-point formats")  # fmt: skip
        return x, arguments.real(scale, f"scale_{name}")
    axis = _k_axis(x.ndim, trans, name)
    try:
        return Quantized.of(x, scales, axis), None
    except (TypeError, ValueError) as error:
        raise type(error)(f"scale_{name} must be a number, or scales of blocks along k, axis {axis} of {name}: "
                          f"{error}") from None  # fmt: skip


def _times(alpha: Any, factor: float) -> Any:
    return (alpha if isinstance(alpha, complex) else arguments.real(alpha, "alpha")) * factor


def _k_axis(ndim: int, trans: Any, name: str) -> int:
    """Which axis of an operand, as it is given, is k."""
    transposed = arguments.layout(trans, name) != "n"
    return -1 if ndim == 1 or transposed == (name == "b") else -2


def _along_k(q: Quantized, trans: Any, name: str) -> Quantized:
    axis = _k_axis(q.ndim, trans, name)
    if q.axis != axis:
        raise ValueError(f"the blocks of {name} must lie along k, its axis {axis}, but they lie along axis {q.axis}: "
                         f"quantize(x, {q.format.name!r}, axis={axis}), or trans_{name}")  # fmt: skip
    return q


def _large(a: Quantized, b: Quantized) -> bool:
    """Is the product one whose operands the engine takes as bf16?"""
    bf16 = np.empty(0, formats.get("bf16").dtype)
    rows, columns = (math.prod(q.others[-1:]) for q in (a, b))
    return bool(engines.cpu().converts(bf16, F32, rows, columns, a.length))


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


def _decoded(q: Quantized, narrow: bool) -> Array:
    """The numbers of q in f32 or, half as long, in bf16."""
    return scaled(q, F32, _upper_half).view(formats.get("bf16").dtype) if narrow else scaled(q, F32)


def _upper_half(x: Array) -> Array:
    """Of f32: a bf16, whose lower half is zero."""
    return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
