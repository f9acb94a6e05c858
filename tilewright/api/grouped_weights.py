"""Right operands of groups that are no arrays: weights of few bits, [groups, k, n], and packed ones.

Groups of few rows read their weights once, decoded in registers; those of more rows have theirs in memory as elements
of a byte or more, of which packing makes numbers: two to a byte are taken apart before, and block-scaled ones decoded,
of these groups alone.
"""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.api import fused
from tilewright.compiled.packed_weights import PackedWeights
from tilewright.expressions import HALVES
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Scaled, apart
from tilewright.rules import shapes, weights
from tilewright.rules.arguments import F32, Array
from tilewright.rules.call import Call
from tilewright.rules.grouped_weights import Right, prepared
from tilewright.rules.grouped_weights import numbers as numbers_of
from tilewright.rules.grouping import Axes
from tilewright.rules.prologues import Prepared


def unwrapped(call: Call) -> Call:
    """With what tilewright.pack has arranged as the weights that it holds."""
    b = call.b
    if not isinstance(b, PackedWeights):
        return call
    if call.trans_b != "n":
        raise ValueError(f"b is packed, and packed operands cannot be transposed: pass trans_b={call.trans_b!r} to "
                         "pack instead of grouped_matmul")
    return call._replace(b=b.weights, trans_b="t")


def readable(of: Right) -> Right:
    """With arrays beside the elements as kernels read them."""
    if of.prepared is None:
        return of
    return of._replace(prepared=of.prepared._replace(arrays=tuple(map(fused.readable, of.prepared.arrays))))


def few(call: Call, of: Right, a: Array) -> bool:
    """Whether groups of few rows may read their weights once."""
    one = np.broadcast_to(a[:1], (1, a.shape[1])) if len(a) else a
    return of.w is not None and len(of.q) > 0 and weights.few(call._replace(a=one, b=of.q[0]), "b")


def sides(of: Right, a: Array, numbers: Array, axes: Axes, reads_once: bool, sums: np.dtype[Any], alone: bool
          ) -> tuple[tuple[Any, ...], list[Array]]:
    """The operands of groups of many rows, and of few, None where there are none, for runtime.cpu.grouped.Program; and
    the arrays of which it decodes b's matrices of some groups in each call, if it has to. `numbers`: a as it is
    multiplied by numbers. `alone`: whether no group may depend on another one."""
    ways = forks.imported("tilewright.runtime.cpu.grouped_ways")
    by_rows, few = axes.along == "m", None
    left = ways.place_of(numbers, "rows" if by_rows else "columns")
    q, w = of.q, of.w
    if w is None:
        b = ways.place_of(of.stand_in, "group" if by_rows else "rows")
        return (ways.Side(left, b, packed=of.packed),), []
    b = ways.place_of(of.stand_in, "group", w.halves == -1)
    if reads_once and of.prepared and ways.reads_once(of.prepared, axes.n, sums):
        few = ways.Side(ways.place_of(np.ascontiguousarray(a, F32), "rows"), b, shadows(of.prepared), True)
    if isinstance(q, Scaled) and q.nibbles is None:
        return (ways.Side(left, b, shadows(of.prepared)), few), []
    if isinstance(q, Quantized):
        return (None, few, (left, None), partial(_decoded, q.shape[1:], q.format, q.axis, alone, of.trans)), [
            q.elements, q.scales]
    elements = of._replace(prepared=prepared(w._replace(source=w.source.removesuffix(HALVES), elements=of.stand_in), a))
    return (None, few, (left, shadows(readable(elements).prepared)), partial(
        apart, q.nibbles, q.format.dtype, q.nibbles.axis if of.trans == "n" else -3 - q.nibbles.axis)), [q.elements]


def shadows(x: Prepared | None) -> Prepared | None:
    """With arrays of which only dtypes, shapes and strides mean anything, and which take no memory."""
    return x and x._replace(arrays=tuple(shapes.strided(np.empty(1, y.dtype), y.shape, y.strides) for y in x.arrays))


def _decoded(shape: tuple[int, ...], format: Any, axis: int, alone: bool, trans: str, elements: Array, scales: Array
             ) -> Array:
    """Matrices of some groups as numbers."""
    x = numbers_of(Quantized(elements, scales, (len(elements), *shape), format, axis), alone)
    return x if trans == "n" else x.swapaxes(-1, -2)
