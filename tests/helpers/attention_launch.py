"""Launches of attention's kernels for NVIDIA's GPUs in the simulator, beside float64."""

from __future__ import annotations

import math

import numpy as np

from tests.helpers.attention import checked, reference
from tilewright import simulator
from tilewright.formats import get
from tilewright.kernels.nvidia.attention import emit_attention
from tilewright.kernels.nvidia.attention_mma import emit_attention_mma
from tilewright.plans import nvidia_attention
from tilewright.plans.nvidia_attention import AttentionPlan, AttentionShape
from tilewright.targets.tensor_maps import Mapped, TiledMap


def mapped(x, tile):
    """Maps of arrays as a kernel takes them."""
    return Mapped(TiledMap(tile, x.shape[::-1], x.strides[-2::-1]), x)


def run(queries, keys, batch=1, heads=1, group=1, size=64, value_size=None, grid=1, before=None, after=None, section=1,
        scale=None, format="bf16", splits=1, packed=0, plan="128x64 stages=2", score=None, **shape):
    """The report of a launch whose result is near that of float64."""
    T, rng = get(format).dtype, np.random.default_rng(queries + keys)
    value_size, kv_heads = value_size or size, heads // group
    q, k, v = (rng.standard_normal(shape).astype(T) for shape in (
        (batch, heads, queries, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, value_size)))
    out, lse = np.full((batch, heads, queries, value_size), np.nan, T), np.full((batch, heads, queries), np.nan, "f4")
    how = {"window": (before, after), "scale": 1 / math.sqrt(size) if scale is None else scale, "return_lse": True}
    call = checked(q, k, v, bias=score, **how)
    band = "" if after is None and before is None else "causal" if before is None else "window"
    plan = AttentionPlan.parse(plan if plan.startswith("attention") else f"attention_wgmma {plan}")
    emit = emit_attention_mma if plan.mma else emit_attention
    f = emit(AttentionShape(format, format, size, value_size, band, packed=packed, split=splits > 1, lse=True,
                            score=call.problem.score, **shape), plan)
    tiles = batch*(kv_heads if packed else heads) * -(-queries*max(packed, 1) // plan.rows)
    values = {"out": out, "out_row": value_size, "out_head": queries*value_size, "out_batch": heads*queries*value_size,
              "queries": queries, "keys": keys, "heads": kv_heads if packed else heads, "group": group,
              "pairs": batch*(kv_heads if packed else heads), "section": section, "scale": how["scale"],
              "factor": np.float32(nvidia_attention.factor(1 if score else how["scale"])), "lse": lse,
              "lse_head": queries, "lse_batch": heads*queries, "before": before or 0, "splits": splits,
              "after": 1 << 20 if after is None else after, "counters": np.zeros(tiles, "i4"),
              "workspace": np.full((tiles*splits, plan.rows*(value_size + 2)), np.nan, "f4")}
    parameters = dict(f.params)
    if plan.mma:
        values |= {f"{name}{of}": x.strides[axis] // x.itemsize if of else x for name, x in zip("qkv", (q, k, v))
                   for axis, of in enumerate(("_by_batch", "_by_head", "_by_row", ""))}
    else:
        q = q.reshape(batch, kv_heads, group, queries, size).transpose(0, 1, 3, 2, 4) if packed else q
        values |= {name: mapped(x, parameters[name].type.tile) for name, x in zip("qkv", (q, k, v))}
    report = simulator.run(f, *(values[name] for name in parameters), grid=grid)
    want, sums = reference(call)
    assert (abs(out.astype(np.float64) - want) <= 2 * get(format).eps * abs(v.astype(np.float64)).max()).all()
    seen = sums > -np.inf
    np.testing.assert_allclose(lse[seen], sums[seen], atol=2e-5)
    assert (lse[~seen] == -np.inf).all()
    assert not out[~seen].any()
    assert not values["counters"].any()
    return report
