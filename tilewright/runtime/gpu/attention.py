"""Attention on a GPU's stream: one launch of kernels/nvidia/attention.py for a call's shadows."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.plans import nvidia_attention
from tilewright.plans.nvidia_attention import AttentionPlan, AttentionShape
from tilewright.rules.arguments import Array
from tilewright.runtime.gpu.operands import address
from tilewright.targets.tensor_maps import PIECE, Tile, TiledMap

if TYPE_CHECKING:
    from tilewright.rules.attending import Attending
    from tilewright.runtime.gpu.product import Run

HOPPER = "tilewright.kernels.nvidia.attention:emit_attention"
NO_END = 1 << 29                # of a band's side
INT = np.dtype(np.int32)


def attend(run: Run, call: Attending, out: Array, lse: Array | None, plan: AttentionPlan | None = None) -> None:
    """Compute a checked call of shadows into these. NotImplementedError for what no kernel does."""
    p = call.problem
    if not out.size:
        return
    if not p.keys or p.scale < 0 or (refused := nvidia_attention.refusal(p, run.on.target)):
        raise NotImplementedError(refused if p.keys and p.scale >= 0 else "without keys or with a scale below 0")
    shape, plan, splits = nvidia_attention.chosen(p, run.on.target.sms, call.lengths is not None, plan)
    function = run.kernel(HOPPER, SHAPE=shape, PLAN=plan)
    tiles = {x.name: x.tile for x in function.parameters if x.tile is not None}
    heads, item = (p.kv_heads, p.heads // p.kv_heads) if shape.packed else (p.heads, p.group)
    sequences = 1 if p.ragged else p.sequences
    rows = nvidia_attention.tiles_of(p, shape, plan)
    values: dict[str, Any] = {
        "q": _map(run, tiles["q"], _grouped(call.q, p.kv_heads) if shape.packed else call.q),
        "k": _map(run, tiles["k"], call.k), "v": _map(run, tiles["v"], call.v), "out": out,
        **dict(zip(("out_batch", "out_head", "out_row"), _strides(out))),
        "queries": p.queries, "keys": p.keys, "heads": heads, "group": item, "pairs": p.sequences*heads,
        "section": nvidia_attention.section(p, heads), "before": NO_END if p.before is None else p.before,
        "after": NO_END if p.after is None else p.after, "sequences": p.sequences, "splits": splits,
        "factor": nvidia_attention.factor(1.0 if shape.score else p.scale), "scale": p.scale}
    for name, x in (("q_offsets", call.q_offsets), ("k_offsets", call.k_offsets), ("lengths", call.lengths),
                    ("table", call.table)):
        if x is not None:
            values[name] = run.typed(x, INT) if x.dtype != INT else x
    if call.table is not None:
        values["table_row"] = values["table"].strides[0] // INT.itemsize
    if call.sinks is not None:
        values["sinks"] = run.typed(call.sinks, np.dtype(np.float32))
    if lse is not None:
        values |= {"lse": lse, **dict(zip(("lse_batch", "lse_head"), _strides(lse)))}
    if shape.score:
        values |= _beside(call)
    if shape.split:
        values["workspace"] = run.temporary((rows*splits, 64*(p.value_size + 2)), np.dtype(np.float32))
        values["counters"] = run.zeros((rows,), INT)
    named = {x.name for x in function.parameters}
    run.launch(function, (min(rows*splits, run.on.target.sms*plan.resident),),
               {name: x for name, x in values.items() if name in named})
    assert sequences


def _strides(x: Array) -> tuple[int, ...]:
    """In elements."""
    return tuple(s // x.itemsize for s in x.strides)


def _grouped(q: Array, kv_heads: int) -> Array:
    """[batch, kv heads, queries, group, size] of [batch, heads, queries, size]."""
    batch, heads, queries, size = q.shape
    s = q.strides
    return np.lib.stride_tricks.as_strided(q, (batch, kv_heads, queries, heads // kv_heads, size),
                                           (s[0], s[1] * (heads // kv_heads), s[2], s[1], s[3]))


def _beside(call: Attending) -> dict[str, Any]:
    """Arrays of the score function, by the names of parameters."""
    function, values = call.problem.function, dict[str, Any]()
    assert function is not None
    for aux, x in zip(function.reads, call.reads):
        values[f"of_{aux.name}"] = x
        strides = (s if n > 1 else 0 for n, s in zip(x.shape, _strides(x)))
        values |= {f"of_{aux.name}_{axis}": s for axis, s in zip(("sequence", "head", "row", "column"), strides)}
    return values


def _map(run: Run, tile: Tile, x: Array) -> bytes:
    """The map of an array whose last axis is contiguous."""
    strides = tuple(s if n > 1 else PIECE for n, s in zip(x.shape[-2::-1], x.strides[-2::-1]))   # of 1: does not count
    made: bytes = _maps(run.driver, run.on.index, tile, x.shape[::-1], strides)(address(x))
    return made


@lru_cache(maxsize=256)
def _maps(driver: Any, device: int, tile: Tile, dims: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return driver.TensorMaps(TiledMap(tile, dims, strides), driver.device(device))
