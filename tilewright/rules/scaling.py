"""Rules of products whose sums are multiplied by scales: of which shapes these are, and which formats sums and result
have. api/scaled.py defines the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.problem import Gemm
from tilewright.rules import arguments
from tilewright.rules.arguments import F32, F64, Array
from tilewright.rules.call import Arithmetic

SCALE_DTYPES = tuple(formats.get(name).dtype for name in ("f32", "f64", "f16", "bf16"))  # of rows' and columns' scales
SIDES = {"a": "row", "b": "column"}


def by_sums(scales: Array, x: Any, trans: Any, name: str, remedy: str = "") -> Array:
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


def of_problem(problem: Gemm, scale: Array, name: str) -> Array:
    """scale_a or scale_b of a problem with scales as a view [..., m, 1] or [..., 1, n]: of the operand's shape as it is
    multiplied with 1 for k, or 1 where several share it. ValueError for others."""
    shape = problem.shapes[name[-1]]
    found = by_sums(scale, np.broadcast_to(np.int8(0), shape), "n", name[-1])
    return np.broadcast_to(found, (*shape[:-1], 1) if name == "scale_a" else (*shape[:-2], 1, shape[-1]))


def times(alpha: Any, factor: float) -> Any:
    """alpha, which may be complex, by a factor of all numbers of an operand."""
    return (alpha if isinstance(alpha, complex) else arguments.real(alpha, "alpha")) * factor


def k_axis(ndim: int, trans: Any, name: str) -> int:
    """Which axis of an operand, as it is given, is k."""
    transposed = arguments.layout(trans, name) != "n"
    return -1 if ndim == 1 or transposed == (name == "b") else -2


# ---- formats of the sums and of the result


def _dtypes(a: Array, b: Any, c: Any, out_dtype: Any, *_: Any) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """In what sums are scaled, and the result's."""
    sums = sums_of(a, b)
    result = F32 if _whole(a, b) else sums
    if c is not None and not isinstance(c, (int, float)):
        result = formats.promote(result, formats.get(c.dtype, "c")).dtype
    if out_dtype is not None:
        result = formats.get(out_dtype, "out_dtype").dtype
    if not isinstance(formats.get(result), formats.Float):
        raise TypeError(f"out_dtype and c must be of a floating-point format where operands have scales, not {result}")
    return (F64 if F64 in (sums, result) else F32), result


SCALED = Arithmetic(_dtypes, arguments.factor)


def sums_of(a: Array, b: Any) -> np.dtype[Any]:
    """In what elements' products are added up."""
    found = [formats.get(x.dtype, name) for x, name in ((a, "a"), (b, "b"))]
    if any(isinstance(f, formats.Complex) for f in found):
        raise TypeError(f"operands with scales must be real, but a is {a.dtype} and b is {b.dtype}")
    if _whole(a, b):
        return whole_sums(found, a.shape[-1])
    return arguments.dtypes(a, np.empty(0, b.dtype), None, None)[0]


def _whole(*operands: Any) -> bool:
    return all(isinstance(formats.get(x.dtype), (formats.Integer, formats.Bool)) for x in operands)


def whole_sums(found: Sequence[Any], k: int) -> np.dtype[Any]:
    """The format in which no sum of k products overflows, or f64."""
    largest = k * int(np.prod([float(2 ** (f.bits - getattr(f, "signed", False))) for f in found]))
    return np.dtype(np.int32 if largest < 2**31 else np.int64 if largest < 2**63 else np.float64)
