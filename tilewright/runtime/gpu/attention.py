"""Attention on a GPU's stream: one launch of kernels/nvidia/attention.py."""
from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tilewright.plans import nvidia_attention
from tilewright.plans.nvidia_attention import AttentionPlan
from tilewright.rules.arguments import Array
from tilewright.runtime.gpu.operands import address, format_of
from tilewright.targets.tensor_maps import Tile, TiledMap

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

HOPPER = "tilewright.kernels.nvidia.attention:emit_attention"
NO_END = 1 << 30                # of a band's side


def forward(run: Run, q: Array, k: Array, v: Array, out: Array, lse: Array | None, scale: float,
            first: int | None = None, last: int | None = None, plan: AttentionPlan | None = None) -> None:
    """Shadows q, out [batch, heads, queries, size], k, v [batch, kv heads, keys, size], lse [batch, heads, queries] that
    is contiguous: query i sees keys i + first to i + last. None of them is empty."""
    (batch, heads, queries, size), (kv_heads, keys), value_size = q.shape, k.shape[1:3], v.shape[-1]
    band = "" if first is None and last is None else "causal" if first is None else "window"
    plan = plan or nvidia_attention.chosen(size, value_size, queries, keys, band)
    function = run.kernel(HOPPER, FORMAT=format_of(q.dtype), D=size, DV=value_size, WARPGROUPS=plan.warpgroups,
                          KEYS=plan.keys, STAGES=plan.stages, BAND=band, LSE=lse is not None)
    tiles = {p.name: p.tile for p in function.parameters if p.tile is not None}
    section = nvidia_attention.section(batch*heads, keys*(size + value_size)*q.itemsize, bool(band))
    values: dict[str, Any] = {
        **{name: mapped(run, tiles[name], x) for name, x in (("q", q), ("k", k), ("v", v))},
        "out": out, "out_row": out.strides[2] // out.itemsize, "out_head": out.strides[1] // out.itemsize,
        "out_batch": out.strides[0] // out.itemsize, "queries": queries, "keys": keys, "heads": heads,
        "group": heads // kv_heads, "pairs": batch*heads, "section": section, "factor": scale * math.log2(math.e),
        "first": -NO_END if first is None else first, "last": NO_END if last is None else last, "lse": lse}
    named = {p.name for p in function.parameters}
    count = -(-queries // (64*plan.warpgroups)) * batch*heads
    run.launch(function, (min(count, run.on.target.sms),), {name: x for name, x in values.items() if name in named})


def mapped(run: Run, tile: Tile, x: Array) -> bytes:
    """The map of an array [batch, heads, length, size]."""
    batch, heads, length, row = (s if n > 1 else 0 for n, s in zip(x.shape, x.strides))
    strides = tuple(s or 16 for s in (length, heads, batch))            # along an axis of one element it does not count
    return _maps(run.driver, run.on.index, tile, (x.shape[3], x.shape[2], x.shape[1], x.shape[0]), strides)(address(x))


@lru_cache(maxsize=256)
def _maps(driver: Any, device: int, tile: Tile, dims: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return driver.TensorMaps(TiledMap(tile, dims, strides), driver.device(device))
