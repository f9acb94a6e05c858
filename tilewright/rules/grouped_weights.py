"""Right operands of groups that are no arrays: weights of few bits, [groups, k, n], and packed ones. Of their arrays
only dtypes, shapes and strides are read, but of elements of 6 bits, which are decoded."""
from __future__ import annotations

from typing import Any, NamedTuple

from tilewright.expressions import HALVES
from tilewright.formats.decoding import BF16, decoded, exact_in_bf16
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Decodable
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


def right(call: Call, a: Array) -> Right | None:
    """The record of a b that is no array; None if b is one."""
    b, trans = call.b, call.trans_b
    if isinstance(b, Decodable):
        if b.ndim != 3:
            raise ValueError(f"b must be [G, k, n] where it has scales, and its shape is {b.shape}")
        w = weights.weights_of(b, trans, "b")
        if w is None:                               # of 6 bits
            assert isinstance(b, Quantized)
            values = numbers(b, call.batch_invariant)
            return Right(values if trans == "n" else values.swapaxes(-1, -2), q=b)
        return Right(w.stand_in, prepared(w, a), q=b, w=w, trans=trans)
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


def numbers(q: Quantized, alone: bool) -> Array:
    """alone: in a format that depends on no number, of other groups perhaps."""
    return decoded(q, BF16 if not alone and exact_in_bf16(q) else F32)


def prepared(w: weights.Weights, a: Array) -> Prepared:
    """The prologue that decodes elements for products with a."""
    formats_of = {"a": prologues.format_of(a.dtype, "a"), "b": w.source.removesuffix(HALVES)}
    result = prologues.multiplied(formats_of, {"b": "float"})["b"]
    arrays = {weights.NAMES[kind].format("b"): x for kind, x in w.beside.items()}
    call = Call(a, w.stand_in, prologue_b=weights.decoding_of(w, "b", result))
    return prologues.all_of(call, a, w.stand_in, {"prologue_b": arrays})["b"]
