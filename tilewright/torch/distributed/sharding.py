"""DTensor's rules for tilewright's operators: along which axes operands may be split over a mesh without a gather.

A product of split rows or columns gives such parts of the result; split steps of k give partial sums. They are
registered when tilewright.torch.distributed is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

import tilewright.torch  # noqa: F401  defines the operators

Placement = Any
Rule = list[tuple[list[Placement], list[Placement]]]    # placements of results, and of arguments, of one axis of a mesh
WHOLE = Replicate()


def _mm(a: Any, b: Any) -> Rule:
    batch = a.ndim - 2
    return [([WHOLE], [WHOLE, WHOLE]), *[([Shard(x)], [Shard(x), Shard(x)]) for x in range(batch)],
            ([Shard(batch)], [Shard(batch), WHOLE]), ([Shard(batch + 1)], [WHOLE, Shard(batch + 1)]),
            ([Partial()], [Shard(batch + 1), Shard(batch)]),
            ([Partial()], [Partial(), WHOLE]), ([Partial()], [WHOLE, Partial()])]


def _addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Rule:
    rows, columns = (Shard(c.ndim - 2 + x) if c.ndim - 2 + x >= 0 and c.shape[c.ndim - 2 + x] > 1 else WHOLE
                     for x in (0, 1))
    return [([WHOLE], [WHOLE]*3), ([Shard(0)], [rows, Shard(0), WHOLE]), ([Shard(1)], [columns, WHOLE, Shard(1)]),
            ([Partial()], [Partial(), Shard(1), Shard(0)])]


def _layer(x: Any, bias: Any, activation: str, results: int, more: int) -> Rule:
    """x [..., k], weight [n, k], bias."""
    last, none, rest = x.ndim - 1, bias is None, [None]*more

    def rule(out: Placement, of_x: Placement, weight: Placement, of_bias: Placement
             ) -> tuple[list[Placement], list[Placement]]:
        return [out]*results, [of_x, weight, None if none else of_bias, *rest]
    rules = [rule(WHOLE, WHOLE, WHOLE, WHOLE), rule(Shard(last), WHOLE, Shard(0), Shard(0)),
             *[rule(Shard(axis), Shard(axis), WHOLE, WHOLE) for axis in range(last)]]
    if activation == "none":
        rules += [rule(Partial(), Shard(last), Shard(1), Partial()), rule(Partial(), Partial(), WHOLE, Partial())]
    return rules


def _linear(x: Any, weight: Any, bias: Any = None, activation: str = "none") -> Rule:
    return _layer(x, bias, activation, 1, 1)


def _linear_sums(x: Any, weight: Any, bias: Any, activation: str) -> Rule:
    return _layer(x, bias, activation, 2, 1)


def _grouped(a: Any, b: Any, offs: Any) -> Rule:
    """Columns, and steps of k within groups of rows; the groups are everyone's."""
    if b.ndim == 3:
        return [([WHOLE], [WHOLE]*3), ([Shard(1)], [WHOLE, Shard(2), WHOLE]),
                ([Partial()], [Shard(1), Shard(1), WHOLE])]
    return [([WHOLE], [WHOLE]*3), ([Shard(1)], [Shard(0), WHOLE, WHOLE]), ([Shard(2)], [WHOLE, Shard(1), WHOLE])]


def _einsum(subscripts: str, a: Any, b: Any) -> Rule:
    of_a, of_b, result = subscripts.replace("->", ",").split(",")
    rules: Rule = [([WHOLE], [None, WHOLE, WHOLE])]
    for label in dict.fromkeys(of_a + of_b):
        pair = [Shard(term.index(label)) if label in term else WHOLE for term in (of_a, of_b)]
        rules.append(([Shard(result.index(label)) if label in result else Partial()], [None, *pair]))
    return rules


def _scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = torch.float32) -> Rule:
    rows = Shard(0) if scale_a.shape[0] > 1 else WHOLE
    columns = Shard(1) if scale_b.shape[1] > 1 else WHOLE

    def rule(out: Placement, *inputs: Placement) -> tuple[list[Placement], list[Placement]]:
        return [out], [*inputs[:4], None if bias is None else inputs[4], None]
    return [rule(WHOLE, *[WHOLE]*5), rule(Shard(0), Shard(0), WHOLE, rows, WHOLE, WHOLE),
            rule(Shard(1), WHOLE, Shard(1), WHOLE, columns, Shard(0)),
            rule(Partial(), Shard(1), Shard(0), WHOLE, WHOLE, Partial())]


def _quantize_rows(x: Any) -> Rule:
    return [([WHOLE, WHOLE], [WHOLE]), ([Shard(0), Shard(0)], [Shard(0)])]


def _fp8_linear(x: Any, weight: Any, scales: Any, bias: Any = None) -> Rule:
    """Where steps of k are split each rank quantises its part of a row by a scale of its own."""
    return [(out, [of_x, of_weight, Shard(0) if of_weight == Shard(0) else WHOLE, of_bias])
            for out, (of_x, of_weight, of_bias) in _layer(x, bias, "none", 1, 0)
            if of_x != Partial()]                            # rounding is not linear


def _weight_linear(x: Any, elements: Any, scales: Any, zeros: Any, minima: Any, bias: Any, format: str, group: int,
                   tensor_scale: float) -> Rule:
    rules: Rule = []
    for out, (of_x, weight, of_bias) in _layer(x, bias, "none", 1, 0):
        of_scales = WHOLE if weight == Shard(1) and scales.shape[1] == 1 else weight
        parts = [None if part is None else of_scales for part in (zeros, minima)]
        rules.append((out, [of_x, weight, of_scales, *parts, of_bias, None, None, None]))
    return rules


RULES: dict[str, Callable[..., Rule]] = {
    "mm": _mm, "bmm": _mm, "addmm": _addmm, "linear": _linear, "linear_sums": _linear_sums, "grouped_mm": _grouped,
    "einsum": _einsum, "scaled_mm": _scaled_mm, "quantize_rows": _quantize_rows, "fp8_linear": _fp8_linear,
    "weight_linear": _weight_linear}


def register() -> None:
    """Tell DTensor how each operator may be split."""
    for name, rule in RULES.items():
        register_sharding(getattr(torch.ops.tilewright, name).default)(rule)
