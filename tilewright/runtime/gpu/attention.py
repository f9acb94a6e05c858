"""Attention on a GPU's stream: one launch of kernels/nvidia/attention.py for a call's shadows."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.plans import nvidia_attention
from tilewright.plans.nvidia_attention import AttentionPlan
from tilewright.rules.arguments import F32, Array
from tilewright.rules.attending import Asked, Attending, attending, checked_outs
from tilewright.runtime.gpu.arrays import HIP
from tilewright.runtime.gpu.operands import address
from tilewright.targets.tensor_maps import PIECE, Tile, TiledMap

if TYPE_CHECKING:
    from tilewright.runtime.gpu.engine import Engine
    from tilewright.runtime.gpu.product import Run

HOPPER = "tilewright.kernels.nvidia.attention:emit_attention"
VALUES = "tilewright.kernels.nvidia.attention_values:emit_values"
FACTORS = "q_scale", "k_scale", "v_scale"
BYTE = np.dtype(np.uint8)
NO_END = 1 << 29                # of a band's side
MINUS_INFINITY = 0xFF800000     # the bits of an f32
I32 = np.dtype(np.int32)


def attention(engine: Engine, given: Mapping[str, Any], asked: Asked, out: Any) -> Any:
    """tilewright.attention of arrays in a GPU's memory, by the names of arguments: on the caller's stream, a result of
    the caller's library."""
    if engine.platform is HIP:
        raise NotImplementedError("attention runs on NVIDIA's GPUs and on CPUs, not on AMD's GPUs")
    run, looks = engine.begin(given, {"out": out})
    with run:
        seen = {name: looks[name].shadow if name in looks else np.asarray(x) for name, x in given.items()}
        if any(name in seen for name in FACTORS):
            seen = {name: run.number(np.ones((), F32), F32) for name in FACTORS if name not in seen} | seen
        call = attending(seen, asked, False)
        if out is None:
            new, into = run.result(call.shape, call.dtype)
        else:
            new, into = out, looks["out"].shadow
            checked_outs(into, call)
        logs, lse = run.result(call.shape[:-1], F32) if asked.return_lse else (None, None)
        four = (None,) * (4 - into.ndim)
        attend(run, call, into[four], None if lse is None else lse[four])
    result = new if out is not None else run.library.result(new, given["q"])
    return (result, run.library.result(logs, given["q"])) if asked.return_lse else result


def attend(run: Run, call: Attending, out: Array, lse: Array | None, plan: AttentionPlan | None = None) -> None:
    """Compute a checked call of shadows into these, which have four axes. NotImplementedError for what no kernel does.
    """
    p = call.problem
    if refused := nvidia_attention.refusal(p, run.on.target):
        raise NotImplementedError(refused)
    if not out.size:
        return
    if p.ragged:                                            # there may be rows behind the last sequence
        run.copy(out, out, 0.0)
        if lse is not None:
            with run.on.current():
                run.driver.fill(address(lse), MINUS_INFINITY, lse.nbytes, run.stream)
    if not p.keys:
        call = _without_keys(run, call)
        p = call.problem
    if p.scale < 0:
        q = run.temporary(call.q.shape, call.q.dtype)
        run.copy(call.q, q, -1.0)
        call = call._replace(q=q, problem=replace(p, scale=-p.scale))
        p = call.problem
    q, k, v = (_readable(run, x) for x in (call.q, call.k, call.v))
    call = call._replace(q=q, k=k, v=v)
    into = out if _fits(out) else run.temporary(out.shape, out.dtype)
    _launch(run, call, into, lse, plan)
    if into is not out:
        run.copy(into, out)


def _without_keys(run: Run, call: Attending) -> Attending:
    """The call, with a key to point to that no query sees."""
    p = call.problem
    first = 1 if p.ragged or p.page else p.sequences
    k, v = (run.zeros((first, p.kv_heads, p.page or 1, n), call.k.dtype) for n in (p.size, p.value_size))
    table = None if call.table is None else run.zeros((p.sequences, 1), I32)
    return call._replace(problem=replace(p, score=""), k=k, v=v, table=table)


def _fits(x: Array) -> bool:
    """Whether tensor maps and stores of 16 bytes take it."""
    last = x.strides[-1] == x.itemsize or x.shape[-1] == 1
    others = all(0 < s and s % PIECE == 0 for n, s in zip(x.shape[:-1], x.strides) if n > 1)
    return last and others and address(x) % PIECE == 0


def _readable(run: Run, x: Array) -> Array:
    """It, or a copy that fits."""
    if _fits(x):
        return x
    there = run.temporary(x.shape, x.dtype)
    run.copy(x, there)
    return there


def _launch(run: Run, call: Attending, out: Array, lse: Array | None, plan: AttentionPlan | None) -> None:
    p = call.problem
    shape, plan, splits = nvidia_attention.chosen(p, run.on.target.sms, call.lengths is not None, plan)
    function = run.kernel(HOPPER, SHAPE=shape, PLAN=plan)
    tiles = {x.name: x.tile for x in function.parameters if x.tile is not None}
    heads, rows = p.kv_heads if shape.packed else p.heads, nvidia_attention.tiles_of(p, shape, plan)
    values: dict[str, Any] = {
        "q": _map(run, tiles["q"], _grouped(call.q, p.kv_heads) if shape.packed else call.q),
        "k": _map(run, tiles["k"], call.k), "out": out,
        **dict(zip(("out_batch", "out_head", "out_row"), _strides(out))),
        "queries": p.queries, "keys": p.keys, "heads": heads, "group": p.group, "pairs": p.sequences*heads,
        "section": nvidia_attention.section(p, heads), "before": NO_END if p.before is None else p.before,
        "after": NO_END if p.after is None else p.after, "sequences": p.sequences, "splits": splits,
        "factor": nvidia_attention.factor(1.0 if shape.score else p.scale), "scale": p.scale, **_indices(run, call)}
    if p.q != "e4m3fn":
        values["v"] = _map(run, tiles["v"], call.v)
    else:
        values |= _factors(run, call) | {"v": _map(run, tiles["v"], _keys_contiguous(run, call.v))}
    if call.sinks is not None:
        values["sinks"] = run.typed(call.sinks, F32)
    if lse is not None:
        values |= {"lse": lse, **dict(zip(("lse_batch", "lse_head"), _strides(lse)))}
    if shape.score:
        values |= _beside(call)
    if shape.split:
        values |= _workspace(run, 4*rows*splits*nvidia_attention.ROWS*(p.value_size + 2), 4*rows)
    named = {x.name for x in function.parameters}
    run.launch(function, (min(rows*splits, run.on.target.sms),), {x: y for x, y in values.items() if x in named})


def _factors(run: Run, call: Attending) -> dict[str, Any]:
    """For q, k and v of 8 bits: one of 1 for all without."""
    found, factors = dict[str, Any](), call.factors
    if factors is None:
        one = np.broadcast_to(run.number(np.ones((), F32), F32), (1, 1))
        factors = one, one, one
    for x, each in zip("qkv", factors):
        strides = (s // 4 if n > 1 else 0 for n, s in zip(each.shape, each.strides))
        found |= {f"{x}_factors": each, **dict(zip((f"{x}_sequence", f"{x}_head"), strides))}
    return found


def _keys_contiguous(run: Run, v: Array) -> Array:
    """[sequences, kv heads, size, keys], as kernels/nvidia/attention_values.py has them."""
    sequences, heads, keys, size = v.shape
    row = -(-keys // 32) * 32
    there, (by_sequence, by_head, by_key, _) = run.temporary((sequences, heads, size, row), BYTE), v.strides
    run.launch(run.kernel(VALUES, SIZE=size), (-(-row * size // 128 // 256), heads, sequences), {
        "v": v, "v_row": by_key, "v_head": by_head, "v_batch": by_sequence, "keys": keys, "heads": heads,
        "target": there, "row": row})
    return there


def _indices(run: Run, call: Attending) -> dict[str, Any]:
    """Offsets, lengths and the table, as i32."""
    given = {"q_offsets": call.q_offsets, "k_offsets": call.k_offsets, "lengths": call.lengths, "table": call.table}
    found: dict[str, Any] = {name: run.typed(x, I32) for name, x in given.items() if x is not None}
    return found | ({"table_row": found["table"].strides[0] // I32.itemsize} if "table" in found else {})


def _workspace(run: Run, bytes: int, counters: int) -> dict[str, Any]:
    """For one launch on the stream: memory, and counters of zeros, which it leaves so; and what is `held` for it."""
    with run.on.current():
        kept = run.driver.workspaces
        found = kept.get(run.on, bytes, counters, run.stream, run.driver.Answers())
        if found is not None:
            return {"workspace": found.workspace, "counters": found.counters, "held": found}
        memory, there = kept.recorded(run.on, bytes, counters, run.stream)
        run.blocks.append(memory)
        return {"workspace": memory.pointer, "counters": there}


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
