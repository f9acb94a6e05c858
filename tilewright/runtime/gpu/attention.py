"""Attention on a GPU's stream: one launch of a plan's kernel for a call's shadows."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.plans import asked, attention_choice, attention_order, nvidia_attention
from tilewright.plans.attention_choice import AttentionCase
from tilewright.plans.measured import choice
from tilewright.plans.nvidia_attention import AttentionPlan
from tilewright.rules.arguments import F32, Array
from tilewright.rules.attending import FACTORS, Asked, Attending, attending, checked_outs
from tilewright.runtime.gpu.operands import address
from tilewright.runtime.gpu.program import Kernel
from tilewright.targets import GpuTarget
from tilewright.targets.tensor_maps import PIECE, Tile, TiledMap

if TYPE_CHECKING:
    from tilewright.attention_problem import Attention
    from tilewright.runtime.gpu.engine import Engine
    from tilewright.runtime.gpu.product import Run

VALUES = "tilewright.kernels.nvidia.attention_values:emit_values"
BYTE = np.dtype(np.uint8)
AXES = "sequence", "head", "row", "column"      # of arrays of score functions, as attention_scores.AXES
NO_END = 1 << 29                # of a band's side
MINUS_INFINITY = 0xFF800000     # the bits of an f32
I32 = np.dtype(np.int32)
WORKSPACE = "workspace", "counters"


def attention(engine: Engine, given: Mapping[str, Any], asked_for: Asked, out: Any, plan: Any = None) -> Any:
    """tilewright.attention of arrays in a GPU's memory, by the names of arguments: on the caller's stream, a result of
    the caller's library."""
    run, looks = engine.begin(given, {"out": out})
    with run:
        seen = {name: looks[name].shadow if name in looks else np.asarray(x) for name, x in given.items()}
        if any(name in seen for name in FACTORS):
            seen = {name: run.number(np.ones((), F32), F32) for name in FACTORS if name not in seen} | seen
        call = attending(seen, asked_for, False)
        if out is None:
            new, into = run.result(call.shape, call.dtype)
        else:
            new, into = out, looks["out"].shadow
            checked_outs(into, call)
        logs, lse = run.result(call.shape[:-1], F32) if asked_for.return_lse else (None, None)
        four = (None,) * (4 - into.ndim)
        attend(run, call, into[four], None if lse is None else lse[four],
               asked.plan(plan, run.on.target, attention=True))
    result = new if out is not None else run.library.result(new, given["q"])
    return (result, run.library.result(logs, given["q"])) if asked_for.return_lse else result


def attend(run: Run, call: Attending, out: Array, lse: Array | None, plan: AttentionPlan | None = None) -> None:
    """Compute a checked call of shadows into these, which have four axes, by the chosen plan or this one.
    NotImplementedError for what no kernel does, ValueError for a plan that cannot run it."""
    p = call.problem
    attention_choice.require(AttentionCase(p), run.on.target)
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
    q, k, v = (readable(run, x) for x in (call.q, call.k, call.v))
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


def readable(run: Run, x: Array) -> Array:
    """It, or a copy that fits."""
    if _fits(x):
        return x
    there = run.temporary(x.shape, x.dtype)
    run.copy(x, there)
    return there


def _launch(run: Run, call: Attending, out: Array, lse: Array | None, plan: AttentionPlan | None) -> None:
    p = call.problem
    turned = p.q == "e4m3fn" and isinstance(run.on.target, GpuTarget)
    v = _keys_contiguous(run, call.v, call.lengths) if turned else call.v
    given = {"out": out, "lse": lse, "sinks": None if call.sinks is None else run.typed(call.sinks, F32),
             **_indices(run, call), **(_factors(run, call) if p.q == "e4m3fn" else {}),
             **({f"of_{aux.name}": x for aux, x in zip(p.function.reads, call.reads)} if p.function else {})}
    arrays = {name: x for name, x in given.items() if x is not None}
    operands = call.q, call.k, v
    key = ("attention", run.on.index, p, plan, *((x.shape, x.strides) for x in operands),
           *((name, x.shape, x.strides) for name, x in arrays.items()))
    ready: Ready = run.engine.prepared.get(key, lambda: Ready(run, p, plan, operands, arrays))
    ready(run, (*operands, *arrays.values()))


def launch(run: Run, function: Any, grid: tuple[int, ...], numbers: Mapping[str, Any], mapped: Mapping[str, Array],
           names: Sequence[str]) -> Kernel:
    """A launch for calls of one kind, of which the addresses of arrays, by `names`, are left open, also of those that
    maps describe. numbers, mapped, names: by the kernel's parameters; those that it does not have are left out."""
    named = {x.name: x for x in function.parameters}
    places = {x: i for i, x in enumerate(names) if x in named and x not in mapped}
    maps = [(named[x].offset, _map(run, named[x].tile, y), names.index(x)) for x, y in mapped.items()]
    given = {**numbers, **dict.fromkeys(places, 0), **{x: bytes(named[x].size) for x in mapped}}
    prepared = run.driver.Prepared(function, grid, {x: y for x, y in given.items() if x in named})
    return Kernel(prepared, [named[x].offset // 8 for x in places], [*places.values()], maps)


def launched(case: AttentionCase, plan: AttentionPlan, target: Any, arrays: Mapping[str, Array],
             operands: Sequence[Array]) -> dict[str, Any]:
    """Numbers that a kernel is launched with, by the names of parameters; arrays: what there is beside q, k and v. A
    kernel without maps of these takes their distances in elements."""
    p, by = case.problem, attention_choice.planner(target)
    shape, _ = by.emitted(case, plan)
    heads = p.kv_heads if shape.packed else p.heads
    pairs = p.sequences*heads
    rows, ctas = by.tiles_of(p, shape, plan) // max(pairs, 1), by.grid_of(p, shape, plan, target)
    return {"queries": p.queries, "keys": p.keys, "heads": heads, "group": p.group, "pairs": pairs,
            "section": attention_order.section(p, pairs, rows, ctas),
            "before": NO_END if p.before is None else p.before, "after": NO_END if p.after is None else p.after,
            "sequences": p.sequences, "splits": plan.splits,
            "factor": nvidia_attention.factor(1.0 if shape.score else p.scale), "scale": p.scale, **distances(arrays),
            **{f"{name}_{axis}": s // x.itemsize if n > 1 else 0 for name, x in zip("qkv", operands) if plan.mma
               for axis, n, s in zip(("by_batch", "by_head", "by_row"), x.shape, x.strides)}}


def maps_of(case: AttentionCase, plan: AttentionPlan, operands: Sequence[Array]) -> dict[str, Array]:
    """q, k and v with the axes of the kernel's tensor maps, if it has any."""
    if plan.mma:
        return {}
    q, k, v = operands
    packed = nvidia_attention.packed_rows(case.problem, plan)
    return {"q": _grouped(q, case.problem.kv_heads) if packed else q, "k": k, "v": v}


class Ready:
    """The launch of calls of one kind."""

    def __init__(self, run: Run, p: Attention, plan: AttentionPlan | None, operands: tuple[Array, ...],
                 arrays: dict[str, Array]) -> None:
        case, target = AttentionCase(p, lengths="lengths" in arrays), run.on.target
        plan = asked.runs(plan, case, target) if plan else choice.chosen(case, target)[0]
        by, options = attention_choice.planner(target), attention_choice.options(case, plan, target)
        shape = options["SHAPE"]
        tiles = by.tiles_of(p, shape, plan)
        self.start = launch(run, run.kernel(by.EMITTERS[plan.algorithm], **options),
                            (by.grid_of(p, shape, plan, target),),
                            launched(case, plan, target, arrays, operands), maps_of(case, plan, operands),
                            (*"qkv", *arrays, *WORKSPACE))
        self.bytes = (4*tiles*plan.splits*plan.rows*(p.value_size + 2), 4*tiles) if shape.split else None

    def __call__(self, run: Run, arrays: Iterable[Array]) -> None:
        """With these arrays, on the call's stream."""
        at, held = [*map(address, arrays)], None
        if self.bytes is not None:
            held, *there = _workspace(run, *self.bytes)
            at += there
        self.start(at, (), (), 1, run.stream)
        del held


def distances(arrays: Mapping[str, Array]) -> dict[str, int]:
    """What lies between numbers of arrays beside the operands, in elements, by parameters; 0 along an axis of one."""
    axes: dict[str, tuple[str, ...]] = {"table": ("table_row",)}
    axes |= {x: (f"{x}_batch", f"{x}_head", f"{x}_row") for x in ("out", "g", "by_q", "by_k", "by_v")}
    axes |= {x: (f"{x}_batch", f"{x}_head") for x in ("lse", "by_lse")}
    axes |= {f"{x}_factors": (f"{x}_sequence", f"{x}_head") for x in "qkv"}
    strides = dict[str, int]()
    for name, x in arrays.items():
        names = axes.get(name) or tuple(f"{name}_{axis}" for axis in AXES)
        strides |= {axis: s // x.itemsize if n > 1 else 0 for axis, n, s in zip(names, x.shape, x.strides)}
    return strides


def _factors(run: Run, call: Attending) -> dict[str, Any]:
    """For q, k and v of 8 bits: one of 1 for all without."""
    factors = call.factors
    if factors is None:
        one = np.broadcast_to(run.number(np.ones((), F32), F32), (1, 1))
        factors = one, one, one
    return {f"{x}_factors": factor for x, factor in zip("qkv", factors)}


def _keys_contiguous(run: Run, v: Array, lengths: Array | None) -> Array:
    """[sequences, kv heads, size, keys], as kernels/nvidia/attention_values.py has them."""
    sequences, heads, keys, size = v.shape
    row = -(-keys // 32) * 32
    there, (by_sequence, by_head, by_key, _) = run.temporary((sequences, heads, size, row), BYTE), v.strides
    given = {} if lengths is None else {"lengths": run.typed(lengths, I32)}
    grid = -(-(-(-row // 256) * size) // 256), heads, sequences
    run.launch(run.kernel(VALUES, SIZE=size, LENGTHS=bool(given)), grid, {
        "v": v, "v_row": by_key, "v_head": by_head, "v_batch": by_sequence, "keys": keys, "heads": heads,
        "target": there, "row": row, **given})
    return there


def _indices(run: Run, call: Attending) -> dict[str, Any]:
    """Offsets, lengths and the table, as i32."""
    given = {"q_offsets": call.q_offsets, "k_offsets": None if call.problem.page else call.k_offsets,
             "lengths": call.lengths, "table": call.table}
    return {name: run.typed(x, I32) for name, x in given.items() if x is not None}


def _workspace(run: Run, bytes: int, counters: int) -> tuple[Any, int, int]:
    """For one launch on the stream: what is held until it is made, memory, and counters of zeros, which it leaves so.
    """
    with run.on.current():
        kept = run.driver.workspaces
        room = kept.get(run.on, bytes, counters, run.stream, run.driver.Answers())
        if room is not None:
            return room, room.workspace, room.counters
        memory, there = kept.recorded(run.on, bytes, counters, run.stream)
        run.blocks.append(memory)
        return memory, memory.pointer, there


def _grouped(q: Array, kv_heads: int) -> Array:
    """[batch, kv heads, queries, group, size] of [batch, heads, queries, size]."""
    batch, heads, queries, size = q.shape
    s = q.strides
    return np.lib.stride_tricks.as_strided(q, (batch, kv_heads, queries, heads // kv_heads, size),
                                           (s[0], s[1] * (heads // kv_heads), s[2], s[1], s[3]))


def _map(run: Run, tile: Tile, x: Array) -> Any:
    """What makes maps of arrays like this one, whose last axis is contiguous, from addresses."""
    strides = tuple(s if n > 1 else PIECE for n, s in zip(x.shape[-2::-1], x.strides[-2::-1]))   # of 1: does not count
    return run.driver.TensorMaps(TiledMap(tile, x.shape[::-1], strides), run.on)
