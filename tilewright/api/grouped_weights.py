"""Right operands of groups that are no arrays: weights of few bits, [groups, k, n], and packed ones.

Groups of few rows read their weights once, decoded in registers; those of more rows have theirs in memory as elements
of a byte or more, of which packing makes numbers: two to a byte are taken apart before, and block-scaled ones decoded,
of these groups alone.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.api import fused
from tilewright.compiled.packed_weights import PackedWeights
from tilewright.expressions.prologue import HALVES
from tilewright.formats.decoding import BF16, decoded, exact_in_bf16
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Decodable, Scaled
from tilewright.plans.prologues import MOST
from tilewright.rules import arguments, prologues, weights
from tilewright.rules.arguments import F32, Array
from tilewright.rules.call import Call
from tilewright.rules.prologues import Prepared
from tilewright.rules.scaling import times


class Right(NamedTuple):
    """b as it is multiplied. `stand_in`: of its shape, for rules. `packed`: a runtime.cpu.packed.Packed whose panels
    that has the addresses of. `q`: a Scaled or Quantized, whose elements and what is beside them these are."""
    stand_in: Array
    prepared: Prepared | None = None
    packed: Any = None
    q: Any = None
    w: weights.Weights | None = None
    trans: str = "n"            # of q


def unwrapped(call: Call) -> Call:
    """With what tilewright.pack has arranged as the weights that it holds."""
    b = call.b
    if not isinstance(b, PackedWeights):
        return call
    if call.trans_b != "n":
        raise ValueError(f"b is packed, and packed operands cannot be transposed: pass trans_b={call.trans_b!r} to "
                         "pack instead of grouped_matmul")
    return call._replace(b=b.weights, trans_b="t")


def right(call: Call, a: Array) -> Right | None:
    """Of what is no array; None if b is one."""
    b, trans = call.b, call.trans_b
    if isinstance(b, Decodable):
        if b.ndim != 3:
            raise ValueError(f"b must be [G, k, n] where it has scales, and its shape is {b.shape}")
        w = weights.of(b, trans, "b")
        if w is None:                               # of 6 bits
            assert isinstance(b, Quantized)
            whole = _numbers(b, call.batch_invariant)
            return Right(whole if trans == "n" else whole.swapaxes(-1, -2), q=b)
        return Right(w.stand_in, _prepared(w, a), q=b, w=w, trans=trans)
    if type(b).__module__ == "tilewright.runtime.cpu.packed":
        if trans != "n":
            raise ValueError(f"b is packed, and packed operands cannot be transposed: pass trans_b={trans!r} to pack "
                             "instead of grouped_matmul")
        if b._factor != 1 or b._scales is not None:
            raise ValueError("b must be packed without scales for groups: give grouped_matmul what quantize made")
        if call.plan is not None:
            raise ValueError(f"b is packed for the plan {b.plan}: plan must be None with it, not {call.plan}")
        return Right(b._stand_in, packed=b)
    return None


def scaled_alpha(call: Call) -> Call:
    """With the factor of all of b's numbers in alpha."""
    factor = getattr(call.b, "tensor_scale", 1.0)
    return call if factor == 1 else call._replace(alpha=times(arguments.number(call.alpha, "alpha"), factor))


def _numbers(q: Quantized, alone: bool) -> Array:
    """alone: in a format that depends on no number, of other groups perhaps."""
    return decoded(q, BF16 if not alone and exact_in_bf16(q) else F32)


def _prepared(w: weights.Weights, a: Array) -> Prepared:
    """The prologue that decodes elements for products with a."""
    formats_of = {"a": prologues.format_of(a.dtype, "a"), "b": w.source.removesuffix(HALVES)}
    result = prologues.multiplied(formats_of, {"b": "float"})["b"]
    beside = {weights.NAMES[kind].format("b"): x for kind, x in w.beside.items()}
    call = Call(a, w.stand_in, prologue_b=weights.made(w, "b", result))
    found = prologues.all_of(call, a, w.stand_in, {"prologue_b": beside})["b"]
    return found._replace(arrays=tuple(map(fused.readable, found.arrays)))


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
                         b._replace(halves=_columns_share(of)), of.prepared, True)
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


def _columns_share(of: Right) -> bool:
    """Whether two elements of a byte are neighbours along n."""
    assert of.w is not None
    return of.w.source.endswith(HALVES) and of.w.elements.shape[-1] != of.stand_in.shape[-1]


def _spread(of: Right, which: NDArray[np.int64], a: Array, alone: bool) -> tuple[Array, Prepared | None]:
    """Matrices of these groups with a byte or more for an element; and what decodes them, with the numbers beside the
    elements of all groups."""
    q, w = of.q, of.w
    assert w is not None
    elements, scales = q.elements[which], q.scales[which] if len(q.scales) > 1 else q.scales
    if isinstance(q, Quantized):
        x = _numbers(replace(q, elements=elements, scales=scales, shape=(len(which), *q.shape[1:])), alone)
        return x if of.trans == "n" else x.swapaxes(-1, -2), None
    x = Scaled(elements, scales, None, q.group, q.nibbles).unpacked()
    plain = w._replace(source=w.source.removesuffix(HALVES), elements=of.stand_in)
    return x if of.trans == "n" else x.swapaxes(-1, -2), _prepared(plain, a)
