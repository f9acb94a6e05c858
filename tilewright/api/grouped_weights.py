"""Right operands of groups that are no arrays: weights of few bits, [groups, k, n], and packed ones.

Groups of few rows read their weights once, decoded in registers; those of more rows have theirs in memory as elements
of a byte or more, of which packing makes numbers: two to a byte are taken apart before, and block-scaled ones decoded,
of these groups alone.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.api import fused
from tilewright.compiled.packed_weights import PackedWeights
from tilewright.expressions.prologue import HALVES
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Scaled
from tilewright.plans.prologues import MOST
from tilewright.rules import weights
from tilewright.rules.arguments import F32, Array
from tilewright.rules.call import Call
from tilewright.rules.grouped_weights import Right, prepared
from tilewright.rules.grouped_weights import numbers as numbers_of
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
    """Whether groups of up to MOST rows may read their weights once."""
    one = np.broadcast_to(a[:1], (1, a.shape[1])) if len(a) else a
    return of.w is not None and len(of.q) > 0 and weights.few(call._replace(a=one, b=of.q[0]), "b")


def sides(of: Right, a: Array, numbers: Array, starts: NDArray[np.int64], rows: NDArray[np.int64], reads_once: bool,
          alone: bool) -> tuple[Any, Any]:
    """The operands of groups of many rows, and of few; None where there is no such group. `numbers`: a as it is
    multiplied where b is packed. `alone`: whether no group may depend on another one."""
    ways = forks.imported("tilewright.runtime.cpu.grouped_ways")
    groups = np.arange(len(rows))
    if of.packed is not None:
        return ways.Side(ways.Grouped.of(numbers, starts, 0), ways.Grouped.of(of.stand_in, groups, 0),
                         packed=of.packed), None
    once, some = (rows <= MOST) & reads_once, None
    if once.any():
        b = ways.Grouped.of(of.stand_in, groups, 0)
        some = ways.Side(ways.Grouped.of(np.ascontiguousarray(a, F32), starts, 0),
                         b._replace(halves=of.w is not None and of.w.halves == -1), of.prepared, True)
    left = ways.Grouped.of(numbers, starts, 0)
    if of.w is None:
        return ways.Side(left, ways.Grouped.of(of.stand_in, groups, 0)), some
    if isinstance(of.q, Scaled) and of.q.nibbles is None:
        return ways.Side(left, ways.Grouped.of(of.stand_in, groups, 0), of.prepared), some
    others = np.flatnonzero(~once & (rows > 0))
    places = np.zeros(len(rows), np.int64)
    places[others] = np.arange(len(others))
    x, prepared = _spread(of, others, a, alone)
    return ways.Side(left, ways.Grouped.of(x, places, 0), prepared), some


def _spread(of: Right, which: NDArray[np.int64], a: Array, alone: bool) -> tuple[Array, Prepared | None]:
    """Matrices of these groups with a byte or more for an element; and what decodes them, with the numbers beside the
    elements of all groups."""
    q, w = of.q, of.w
    assert w is not None
    elements, scales = q.elements[which], q.scales[which] if len(q.scales) == len(q.elements) else q.scales
    if isinstance(q, Quantized):
        x = numbers_of(replace(q, elements=elements, scales=scales, shape=(len(which), *q.shape[1:])), alone)
        return x if of.trans == "n" else x.swapaxes(-1, -2), None
    x = Scaled(elements, scales, None, q.group, q.nibbles).unpacked()
    plain = of._replace(prepared=prepared(w._replace(source=w.source.removesuffix(HALVES), elements=of.stand_in), a))
    return x if of.trans == "n" else x.swapaxes(-1, -2), readable(plain).prepared
