"""Rules of products whose sums are multiplied by scales: of which shapes these are, and which formats sums and result
have. api/scaled.py defines the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.formats.scaled import Decodable
from tilewright.problem import SCALE_BLOCK, SCALE_BLOCKS, Gemm
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


def by_blocks(scale: Array, x: Array, name: str) -> Array | None:
    """Scales of blocks of 128 along k as they multiply sums, [..., m, blocks] of a, or [..., blocks, n] of b, where 128
    columns may share one; None for those of all of k. x and scale are as they are multiplied. ValueError for others."""
    if scale.ndim != x.ndim or x.ndim < 2:
        return None
    rows, columns = x.shape[-2:]
    along, across = (columns, (rows,)) if name == "a" else (rows, (columns, -(-columns // SCALE_BLOCK)))
    blocks = -(-along // SCALE_BLOCK)
    got, other = scale.shape[::-1][:2] if name == "a" else scale.shape[-2:]
    if got != blocks or other not in (1, *across) or (blocks == 1 and other in (1, across[0])):
        return None
    if any(n not in (1, length) for n, length in zip(scale.shape[:-2], x.shape[:-2])):
        raise ValueError(f"scale_{name} must have the leading axes of {name}, {x.shape[:-2]}, or 1 where all share it, "
                         f"and its shape is {scale.shape}")
    return scale


def broadcast(pair: Sequence[Array], lead: tuple[int, ...], m: int, n: int, k: int) -> tuple[Array, Array]:
    """Scales of a and b, for all of k or for blocks, with these leading axes and all rows, columns and blocks."""
    of_a, of_b = pair
    blocks = -(-k // SCALE_BLOCK) if max(of_a.shape[-1], of_b.shape[-2]) > 1 else 1
    shared = -(-n // SCALE_BLOCK)
    if of_b.shape[-1] in (1, shared) and (blocks > 1 or of_b.shape[-1] not in (1, n)):
        n = shared
    return np.broadcast_to(of_a, (*lead, m, blocks)), np.broadcast_to(of_b, (*lead, blocks, n))


def kind_of(pair: Sequence[Array], n: int) -> str:
    """Which of problem.SCALES these are, as `broadcast` gives them for n columns; "" for none."""
    if not pair:
        return ""
    of_a, of_b = pair
    return "128x128" if of_b.shape[-1] != n else "rows" if of_a.shape[-1] == 1 else "1x128"


def of_problem(problem: Gemm, pair: Sequence[Array]) -> tuple[Array, Array]:
    """scale_a and scale_b of a problem with scales as views [..., m, blocks] and [..., blocks, n]: of the operand's
    shape as it is multiplied with 1 or blocks for k, or 1 where several share one. ValueError for others."""
    shapes, p, blocked = [], problem, problem.scales in SCALE_BLOCKS
    for scale, name in zip(pair, "ab"):
        x = np.broadcast_to(np.int8(0), p.shapes[name])
        blocks = by_blocks(scale, x, name) if blocked else None
        scale = by_sums(scale, x, "n", name) if blocks is None else blocks
        shapes.append(scale.reshape((1,) * x.ndim) if not scale.ndim else scale)
    lead, (of_a, of_b) = p.shapes["out"][:-2], shapes
    if blocked:
        along, across = -(-p.k // SCALE_BLOCK), -(-p.n // SCALE_BLOCKS[p.scales])
        if of_b.shape[-1] not in (1, across):
            raise ValueError(f"scale_b of {p} must have a scale for each of {across} columns or groups of them, and "
                             f"its shape is {of_b.shape}")
        return np.broadcast_to(of_a, (*lead, p.m, along)), np.broadcast_to(of_b, (*lead, along, across))
    return np.broadcast_to(of_a, (*lead, p.m, 1)), np.broadcast_to(of_b, (*lead, 1, p.n))


def along_k(q: Any, trans: Any, name: str) -> Any:
    """A Quantized; ValueError unless its blocks are along k."""
    axis = k_axis(q.ndim, trans, name)
    if q.axis != axis:
        raise ValueError(f"the blocks of {name} must be along k, its axis {axis}, but they are along axis {q.axis}: "
                         f"quantize(x, {q.format.name!r}, axis={axis}), or trans_{name}")
    return q


def no_scale_beside(x: Any, scale: Any, name: str) -> None:
    """ValueError for scale_a or scale_b beside an operand that has its own."""
    if scale is not None:
        what = f"a {type(x).__name__}" if isinstance(x, Decodable) else "packed with scales"
        raise ValueError(f"{name} is {what}, which has its own scales: scale_{name} must be None with it")


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
    operands = [formats.get(x.dtype, name) for x, name in ((a, "a"), (b, "b"))]
    if any(isinstance(f, formats.Complex) for f in operands):
        raise TypeError(f"operands with scales must be real, but a is {a.dtype} and b is {b.dtype}")
    if _whole(a, b):
        return whole_sums(operands, a.shape[-1])
    return arguments.dtypes(a, np.empty(0, b.dtype), None, None)[0]


def _whole(*operands: Any) -> bool:
    return all(isinstance(formats.get(x.dtype), (formats.Integer, formats.Bool)) for x in operands)


def whole_sums(found: Sequence[Any], k: int) -> np.dtype[Any]:
    """The format in which no sum of k products overflows, or f64."""
    largest = k * int(np.prod([float(2 ** (f.bits - getattr(f, "signed", False))) for f in found]))
    return np.dtype(np.int32 if largest < 2**31 else np.int64 if largest < 2**63 else np.float64)
