"""Gradients of attention on GPUs: by a kernel (kernels/nvidia/attention_backward.py) where there is one, on Hopper for
bf16 and f16 with heads up to 128; else by products with epilogues, five of them for some heads at a time, whose powers
and slopes of scores, in the format of the operands, are in memory meanwhile.

    P  = exp(scale Q K^T - lse), 0 where a query does not see a key          an epilogue of Q K^T
    dS = scale P (dO V^T - delta), delta = rows of sum(dO O) - dlse          an epilogue of dO V^T
    dV = P^T dO     dK = dS^T Q     dQ = dS K                                sums over query heads of a kv head, too

The products are deterministic; the kernel's gradients by queries are if torch.use_deterministic_algorithms(True) asks
for it. The environment variable TILEWRIGHT_ATTENTION_GRADIENTS takes one of the two: "kernel" or "products".
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import tilewright as tw
from tilewright.api import attention as api

WAY = "TILEWRIGHT_ATTENTION_GRADIENTS"
HELD = 1 << 30              # bytes of powers at a time
FAR = 1 << 29               # keys: a window without an end


def gradients(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, g: Tensor, g_lse: Tensor | None,
              sinks: Tensor | None = None, **how: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """By q, k, v and sinks, with arguments of tilewright.attention. NotImplementedError for score functions, arrays of
    scores and soft caps, and without a kernel for offsets."""
    way = os.environ.get(WAY, "")
    by_q, by_k, by_v = None, None, None
    if q.is_cuda and way != "products":
        try:
            by_q, by_k, by_v = api.gradients(q, k, v, out, lse, g, g_lse, sinks=sinks, **how,
                                             deterministic=torch.are_deterministic_algorithms_enabled())[:3]
        except NotImplementedError:
            if way == "kernel":
                raise
    if by_q is None:
        by_q, by_k, by_v = _by_products(q, k, v, out, lse, g, g_lse, **how)
    return by_q, by_k, by_v, None if sinks is None else _by_sinks(out, lse, g, g_lse, sinks)


def _by_sinks(out: Tensor, lse: Tensor, g: Tensor, g_lse: Tensor | None, sinks: Tensor) -> Tensor:
    share = torch.exp(sinks.float()[:, None] - lse.float()) * _delta(out, g, g_lse)
    share = torch.where(torch.isfinite(lse), share, 0)
    return -share.reshape(-1, *share.shape[-2:]).sum((0, 2))


def _delta(out: Tensor, g: Tensor, g_lse: Tensor | None) -> Tensor:
    """What is subtracted from the slope by each power of a row."""
    delta = (g.float() * out.float()).sum(-1)
    return delta if g_lse is None else delta - g_lse


def _by_products(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, g: Tensor, g_lse: Tensor | None,
                 causal: bool | str = False, window: Any = None, scale: float | None = None, **more: Any
                 ) -> tuple[Tensor, Tensor, Tensor]:
    if given := [name for name, x in more.items() if x is not None]:
        raise NotImplementedError(f"attention has no gradients on GPUs with {', '.join(given)}")
    shapes = q.shape, k.shape, v.shape
    q, k, v, out, g = (x.reshape((1,) * (4 - x.dim()) + tuple(x.shape)) for x in (q, k, v, out, g))
    heads, queries, kv_heads, keys = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    lse = lse.reshape(q.shape[:3]).float()
    delta = _delta(out, g, None if g_lse is None else g_lse.reshape(lse.shape))
    before, after = window if isinstance(window, (tuple, list)) else (window, window)
    ends = FAR if before is None else before, 0 if causal else FAR if after is None else after
    shift = 0 if causal == "upper left" else keys - queries
    scale = q.shape[-1]**-0.5 if scale is None else scale
    by_q, by_k, by_v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    group = heads // max(kv_heads, 1)
    step = max(HELD // max(group*queries*keys*q.element_size(), 1), 1)
    for s, first in _parts(q.shape[0] if queries and keys else 0, kv_heads, step):
        own, rows = slice(first, first + step), slice(first*group, (first + step)*group)
        parts = _of_heads(q[s, rows], g[s, rows], lse[s, rows], delta[s, rows], k[s, own], v[s, own], scale, ends,
                          shift)
        by_q[s, rows], by_k[s, own], by_v[s, own] = parts
    by_q, by_k, by_v = (x.reshape(shape) for x, shape in zip((by_q, by_k, by_v), shapes))
    return by_q, by_k, by_v


def _parts(sequences: int, kv_heads: int, each: int) -> Iterator[tuple[int, int]]:
    """(sequence, first kv head)."""
    return ((s, first) for s in range(sequences) for first in range(0, kv_heads, each))


def _of_heads(q: Tensor, g: Tensor, lse: Tensor, delta: Tensor, k: Tensor, v: Tensor, scale: float,
              ends: tuple[int, int], shift: int) -> tuple[Tensor, Tensor, Tensor]:
    """Some query heads [heads, queries, size] of one sequence, and their kv heads."""
    kv_heads, keys, size = k.shape
    before, after = ends
    heads, queries = q.shape[:2]
    rows = heads // kv_heads * queries
    positions = (torch.arange(queries, dtype=torch.int32, device=q.device) + shift).repeat(rows // queries)
    q, g = (x.reshape(kv_heads, rows, x.shape[-1]).contiguous() for x in (q, g))
    lse, delta = (x.reshape(kv_heads, rows, 1).contiguous() for x in (lse, delta))
    i, j = positions[:, None], torch.arange(keys, dtype=torch.int32, device=q.device)

    def powers(acc: Any, lse: Any, i: Any, j: Any) -> Any:
        return tw.where(j <= i + after, tw.where(j >= i - before, tw.exp(acc * scale - lse), 0.0), 0.0)

    def slopes(acc: Any, p: Any, delta: Any) -> Any:
        return p * (acc - delta) * scale
    p = tw.matmul(q, k.transpose(1, 2), epilogue=powers, operands={"lse": lse, "i": i, "j": j}, out_dtype=q.dtype)
    ds = tw.matmul(g, v.transpose(1, 2), epilogue=slopes, operands={"p": p, "delta": delta}, out_dtype=q.dtype)
    by_q = tw.matmul(ds, k).reshape(heads, queries, size)
    return by_q, tw.matmul(ds.transpose(1, 2), q), tw.matmul(p.transpose(1, 2), g)
