"""Attention as an operator of torch, tilewright::attention, with gradients; in place of scaled_dot_product_attention;
and for transformers.

Gradients are ours: on the CPU by kernels/cpu/attention_gradients.py, on GPUs by attention_gradients.py. The operator
returns (out, lse).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tilewright
from tilewright.api import attention as on_host
from tilewright.attention_problem import traced
from tilewright.expressions.program import Expression
from tilewright.rules import arguments, attending
from tilewright.rules.fusing import named_operands
from tilewright.torch import attention_gradients
from tilewright.torch.library import define, differentiate, library, refuse_gradients

FP8 = torch.float8_e4m3fn
KINDS = {torch.bool: "bool", torch.int8: "int", torch.int16: "int", torch.int32: "int", torch.int64: "int",
         torch.uint8: "int"}
HOW = "str causal, int before, int after, float? scale, float softcap, str names, str score"
ARRAYS = "Tensor q, Tensor k, Tensor v, Tensor[] operands, Tensor? sinks, Tensor? q_offsets, Tensor? k_offsets"
BIAS = "bias"


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool | str = False, window: Any = None,
              scale: float | None = None, bias: Tensor | Callable[..., Any] | None = None,
              operands: dict[str, Tensor] | None = None, softcap: float | None = None, sinks: Tensor | None = None,
              q_offsets: Tensor | None = None, k_offsets: Tensor | None = None, return_lse: bool = False) -> Any:
    """softmax(score(scale q k^T)) v as tilewright.attention computes it, whose arguments these are: differentiable in
    q, k, v and sinks, also by lse; on GPUs without score functions and soft caps. On Hopper, for bf16 and f16 and heads
    of up to 128, a kernel computes gradients, whose sums by queries have an order, and always the same bits, if
    torch.use_deterministic_algorithms(True) asks for it; elsewhere products do, without offsets, always with the same
    bits, and with all powers of some heads in memory. A score function's slope is found from its expression.

    bias and operands have no gradients: ValueError if one requires one. TypeError and ValueError for other arguments.
    """
    before, after, _ = attending.mask(False, window)
    attending.mask(causal, None)
    softcap = 0.0 if softcap is None else attending.positive(softcap, "softcap")
    scale = None if scale is None else arguments.real(scale, "scale")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(x).__name__}")
    given = {name: torch.as_tensor(x) for name, x in named_operands(operands).items()}
    score = ""
    if given and (bias is None or not callable(bias)):
        raise ValueError("operands must be None unless bias is a function")
    if callable(bias):
        score = _score(bias, tuple((name, KINDS.get(x.dtype, "float")) for name, x in given.items()))
    elif bias is not None:
        if not isinstance(bias, (Tensor, np.ndarray)):
            raise TypeError(f"bias must be a tensor or a function of (score, i, j, head), not {bias!r}")
        given = {BIAS: torch.as_tensor(bias)}
    for name, x in given.items():
        if x.requires_grad:
            raise ValueError(f"{name} requires a gradient, and attention has none for it: x.detach() has no such need")
    out, lse = _operator(q, k, v, list(given.values()), sinks, q_offsets, k_offsets,
                         causal if isinstance(causal, str) else "lower right" if causal else "",
                         -1 if before is None else before, -1 if after is None else after, scale, softcap,
                         ",".join(given), score)
    return (out, lse) if return_lse else out


@torch.compiler.assume_constant_result
def _score(bias: Callable[..., Any], kinds: tuple[tuple[str, str], ...]) -> str:
    """The text of a score function's expression."""
    return traced(bias, kinds, 0.0).text


def _arguments(operands: list[Tensor], sinks: Any, q_offsets: Any, k_offsets: Any, causal: str, before: int, after: int,
               scale: float | None, softcap: float, names: str, score: str) -> dict[str, Any]:
    """Arguments of tilewright.attention."""
    arrays = dict(zip(names.split(","), operands)) if names else {}
    window = None if before < 0 and after < 0 else tuple(None if x < 0 else x for x in (before, after))
    bias = arrays.pop(BIAS) if not score and arrays else Expression.read(score) if score else None
    options = {"causal": causal or False, "window": window, "scale": scale, "softcap": softcap or None, "bias": bias,
             "operands": arrays or None, "sinks": sinks, "q_offsets": q_offsets, "k_offsets": k_offsets}
    return {name: x for name, x in options.items() if x is not None}


def _kernel(q: Tensor, k: Tensor, v: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    out, lse = tilewright.attention(q, k, v, return_lse=True, **_arguments(*how))
    return out, lse


def _fake(q: Tensor, k: Tensor, v: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"q, k and v must fit each other, and are {tuple(q.shape)}, {tuple(k.shape)} and "
                         f"{tuple(v.shape)}")
    dtype = torch.bfloat16 if q.dtype is FP8 else q.dtype
    sums = torch.float64 if q.dtype is torch.float64 else torch.float32
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype), q.new_empty(q.shape[:-1], dtype=sums)


_operator = define(f"attention({ARRAYS}, {HOW}) -> (Tensor, Tensor)", _kernel, _fake, autocast=True)


def _gradients(g: Tensor, g_lse: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *how: Any
               ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = _arguments(*how)
    gradients = attention_gradients.gradients if q.is_cuda else on_host.gradients
    results = gradients(q.detach(), k.detach(), v.detach(), out, lse, g, g_lse, **given)
    *rows, sinks = results
    by_q, by_k, by_v = rows
    return by_q, by_k, by_v, lse.new_empty(0) if sinks is None else sinks.to(how[1].dtype)


def _fake_gradients(g: Tensor, g_lse: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *how: Any
                    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sinks = lse.new_empty(0) if how[1] is None else torch.empty_like(how[1])
    return (*(x.new_empty(x.shape) for x in (q, k, v)), sinks)


_backward_operator = define(
    f"attention_backward(Tensor g, Tensor g_lse, Tensor out, Tensor lse, {ARRAYS}, {HOW}) -> (Tensor, Tensor, Tensor, "
    "Tensor)", _gradients, _fake_gradients)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, operands, *rest = inputs
    ctx.save_for_backward(q, k, v, *output, *operands, *(x for x in rest[:3] if x is not None))
    ctx.there = [x is not None for x in rest[:3]]
    ctx.operands, ctx.how = len(operands), rest[3:]


def _backward(ctx: Any, g: Tensor, g_lse: Tensor) -> Any:
    q, k, v, out, lse, *others = ctx.saved_tensors
    operands, rest = list(others[:ctx.operands]), iter(others[ctx.operands:])
    read = [next(rest) if there else None for there in ctx.there]
    by_q, by_k, by_v, by_sinks = _backward_operator(g, g_lse, out, lse, q, k, v, operands, *read, *ctx.how)
    return (by_q, by_k, by_v, None, by_sinks if ctx.there[0] else None, *[None] * (2 + len(ctx.how)))


def _tangent(inputs: Any, tangents: Any, output: Any) -> Any:
    raise RuntimeError("tilewright::attention has no forward-mode derivative")


differentiate(_operator, _backward, _save, _tangent)
refuse_gradients(_backward_operator, "second derivatives of attention are not there")


# ---- torch.vmap: more sequences; with offsets, or arrays for each part of the batch, one call for each part

def _first(x: Tensor, dim: int | None, parts: int) -> Tensor:
    """With the axis that is mapped over in front."""
    return x.expand(parts, *x.shape) if dim is None else x.movedim(dim, 0)


def _folded(x: Tensor) -> Tensor:
    """[parts, ..., tokens, size] as [parts * sequences, heads, tokens, size]."""
    return x[(slice(None), *(None,) * (5 - x.dim()))].flatten(0, 1)


def _one_by_one(operator: Any, info: Any, dims: Any, given: Any) -> Any:
    def part(x: Any, dim: Any, i: int) -> Any:
        if isinstance(x, (list, tuple)):
            return [part(y, d, i) for y, d in zip(x, dim if isinstance(dim, (list, tuple)) else [dim] * len(x))]
        return x if dim is None else x.select(dim, i)
    outputs = [operator(*(part(x, d, i) for x, d in zip(given, dims))) for i in range(info.batch_size)]
    return tuple(map(torch.stack, zip(*outputs))), (0,) * len(outputs[0])


def _mapped(info: Any, dims: Any, q: Tensor, k: Tensor, v: Tensor, operands: Any, sinks: Any, *how: Any) -> Any:
    rows = [_first(x, dim, info.batch_size) for x, dim in zip((q, k, v), dims)]
    if operands or dims[4] is not None or how[0] is not None or max(x.dim() for x in rows) > 5:
        return _one_by_one(_operator, info, dims, (q, k, v, operands, sinks, *how))
    out, lse = _operator(*map(_folded, rows), operands, sinks, *how)
    shape = rows[0].shape[:-1]
    return (out.reshape(*shape, out.shape[-1]), lse.reshape(shape)), (0, 0)


def _mapped_gradients(info: Any, dims: Any, *given: Any) -> Any:
    g, g_lse, out, lse, q, k, v = (_first(x, dim, info.batch_size) for x, dim in zip(given[:7], dims))
    operands, sinks, *how = given[7:]
    if operands or sinks is not None or how[0] is not None or max(x.dim() for x in (q, k, v)) > 5:
        return _one_by_one(_backward_operator, info, dims, given)
    logs = (_folded(x[..., None])[..., 0] for x in (g_lse, lse))
    results = _backward_operator(_folded(g), next(logs), _folded(out), next(logs), *map(_folded, (q, k, v)),
                               operands, sinks, *how)
    return (*(x.reshape(y.shape) for x, y in zip(results, (q, k, v))), results[3]), (0, 0, 0, None)


for _each, _rule in (_operator, _mapped), (_backward_operator, _mapped_gradients):
    torch.library.register_vmap(_each._schema.name, _rule, lib=library)


# ---- in place of other functions

def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, without dropout: ValueError for dropout_p above 0. A mask that
    requires a gradient has none here."""
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, not {dropout_p}")
    if not enable_gqa and query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        raise ValueError(f"query and key must have as many heads, {query.shape[-3]} and {key.shape[-3]}, unless "
                         "enable_gqa is True")
    return attention(query, key, value, causal="upper left" if is_causal else False, bias=attn_mask, scale=scale)


def transformers_attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                           scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
                           sliding_window: int | None = None, s_aux: Tensor | None = None,
                           is_causal: bool | None = None, **_: Any) -> tuple[Tensor, None]:
    """An attention function of transformers, which `register_attention` makes known there: [batch, heads, tokens, size]
    to [batch, tokens, heads, size]. A mask that transformers made says what is seen; without one a causal module sees
    no later key."""
    if dropout:
        raise ValueError(f"dropout must be 0, not {dropout}")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    window = None if sliding_window is None or attention_mask is not None else (sliding_window - 1, None)
    mask = None if attention_mask is None else attention_mask[..., :key.shape[-2]]
    out = attention(query, key, value, causal=causal, window=window, scale=scaling, bias=mask, softcap=softcap,
                    sinks=s_aux)
    return out.transpose(1, 2).contiguous(), None


def register_attention(name: str = "tilewright") -> None:
    """Make this attention known to transformers: from_pretrained(..., attn_implementation="tilewright"), or
    model.set_attn_implementation("tilewright"). ImportError without transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    AttentionInterface.register(name, transformers_attention)
    AttentionMaskInterface.register(name, sdpa_mask)
