"""Block-scaled operands as the numbers that kernels multiply: f32, which holds an element times its scale exactly (or
inf, from 2^128 on), or bf16, which does so too, is half as long, and flushes what is below 2^-126."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.formats.conversion import Array
from tilewright.formats.quantized import Quantized, scaled
from tilewright.formats.table import get

LEAST_EXPONENT = -126  # of numbers that no instruction flushes
F32, BF16 = get("f32").dtype, get("bf16").dtype


def decoded(q: Quantized, dtype: np.dtype[Any] = F32) -> Array:
    """Elements times their blocks' scales, without `tensor_scale`, in F32 or BF16; the blocked axis is contiguous."""
    def upper_halves(x: Array) -> Array:        # bf16 patterns; the lower halves are zero
        return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return scaled(q, F32, upper_halves).view(BF16) if dtype == BF16 else scaled(q, F32)


def exact_in_bf16(q: Quantized) -> bool:
    """Whether bf16 holds all numbers, and none of them is flushed."""
    return _unit(q) >= LEAST_EXPONENT


def flushed(a: Quantized, b: Quantized) -> bool:
    """Whether a number, a product of two, or a sum of such, could be smaller than 2^-126 and not 0. Products and sums
    are multiples of the product of both operands' units."""
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
