"""Attention of arrays in the host's memory: a checked call as jobs of emitted code, and its results."""
from __future__ import annotations

import struct
from array import array
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.attention_problem import Attention
from tilewright.kernels.cpu import jobs
from tilewright.plans import attention as plans
from tilewright.plans.attention import Layout
from tilewright.rules.arguments import Array
from tilewright.rules.attending import Attending
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.host import Host, host
from tilewright.targets import CpuTarget, detect

FIELDS = jobs.ATTENTION


def attend(call: Attending, out: Array | None = None, threads: int | None = None, target: CpuTarget | None = None,
           on: Host = host) -> tuple[Array, Array | None]:
    """The result [..., value_size] and the logarithms of sums, if they are asked for, both with four axes."""
    p, threads = call.problem, threads or pool.get_num_threads()
    target = target or extended()
    shape = (*call.q.shape[:-1], p.value_size)
    direct = out is not None and out.strides[-1] == out.itemsize and not _overlap(out, call)
    result = out if direct and out is not None else np.empty(shape, call.dtype)
    lse = np.empty(shape[:-1], formats.FORMATS[p.sums].dtype) if p.lse else None
    if p.ragged:                            # rows that belong to no sequence
        result[...] = 0
        if lse is not None:
            lse[...] = -np.inf
    if result.size or lse is not None:
        _run(call, result, lse, threads, target, on)
    if out is not None and result is not out:
        out[...] = result
        return out, lse
    return result, lse


def _overlap(out: Array, call: Attending) -> bool:
    given = call.q, call.k, call.v, *call.reads
    return any(np.may_share_memory(out, x) for x in given)


@cache
def extended() -> CpuTarget:
    return detect().extended


@lru_cache(maxsize=512)
def _planned(problem: Attention, target: CpuTarget, threads: int) -> tuple[plans.Spec, Layout, int]:
    spec = plans.spec(problem, target)
    lanes = spec.NV * target.lanes(8 if spec.WORD == "f64" else 4)
    return spec, Layout.on_target(spec, target), plans.strips(problem, lanes, threads)


def sequences(call: Attending) -> np.ndarray:
    """jobs.SEQUENCE of each."""
    p = call.problem
    rows = np.zeros((p.sequences, len(jobs.SEQUENCE)), np.int64)
    rows[:, 1], rows[:, 3] = p.queries, p.keys
    if call.q_offsets is not None:
        rows[:, 0], rows[:, 1] = call.q_offsets[:-1], np.diff(call.q_offsets)
    if call.k_offsets is not None:
        rows[:, 2], rows[:, 3] = call.k_offsets[:-1], np.diff(call.k_offsets)
    if call.lengths is not None:
        rows[:, 3] = call.lengths
    return rows


def fields_of(call: Attending, result: Array, lse: Array | None, on: Host) -> tuple[dict[str, Any], list[Any]]:
    """Fields of a job that say where the arrays are; and what has to stay alive."""
    p, kept = call.problem, list[Any]()
    fields: dict[str, Any] = dict.fromkeys(FIELDS, 0)

    def place(name: str, x: Array, letters: str, ragged: bool = False) -> None:
        fields[f"{name}_at"] = on.address_of(x)
        for letter, stride in zip(letters, x.strides):
            fields[f"{name}_{letter}"] = stride // x.itemsize
        if ragged:
            fields[f"{name}_s"] = 0

    def table(x: Array | None, dtype: Any) -> int:
        if x is None:
            return 0
        kept.append(np.ascontiguousarray(x, dtype))
        return on.of_table(kept[-1]) if kept[-1].size else 0
    place("q", call.q, "shid", p.ragged)
    place("k", call.k, "shjd", p.ragged and not p.page)
    place("v", call.v, "shjd", p.ragged and not p.page)
    place("out", result, "shi", p.ragged)
    if lse is not None:
        place("lse", lse, "shi", p.ragged)
        fields["wants_lse"] = 1
    sums = formats.FORMATS[p.sums].dtype
    fields["sinks"] = table(call.sinks, sums)
    reads = np.array([[on.address_of(x), *(y // x.itemsize for y in x.strides)] for x in call.reads], np.int64)
    fields["reads"], fields["rows"] = table(reads, np.int64), table(sequences(call), np.int64)
    for name, x in zip("qkv", call.factors or ()):
        fields[f"{name}_scales"] = table(x, sums)
    if call.table is not None:
        fields["table"], fields["table_s"], fields["page"] = table(call.table, np.int64), call.table.shape[1], p.page
    fields |= {"sequences": p.sequences, "heads": p.heads, "kv_heads": p.kv_heads, "upper": int(p.upper),
               "before": jobs.UNBOUNDED if p.before is None else min(p.before, jobs.UNBOUNDED),
               "after": jobs.UNBOUNDED if p.after is None else min(p.after, jobs.UNBOUNDED),
               "scale": struct.unpack("q", struct.pack("d", p.scale))[0]}
    return fields, kept


def _run(call: Attending, result: Array, lse: Array | None, threads: int, target: CpuTarget, on: Host) -> None:
    """Run the call's tasks. Of plain calls the job is kept, for others with the same strides."""
    plain = on is host and not (call.reads or call.sinks is not None or call.factors or call.problem.ragged
                                or call.lengths is not None)
    key = call.problem, target, threads, call.q.strides, call.k.strides, call.v.strides, result.strides
    tasks = _tasks.get(key) if plain else None
    if tasks is None:
        tasks = _planned_tasks(call, result, lse, threads, target, on)
        if plain and len(_tasks) < MOST:
            _tasks[key] = tasks
    if not tasks.tasks:
        return
    fields, names = array("q", tasks.fields), tasks.names
    for name, x in (("q_at", call.q), ("k_at", call.k), ("v_at", call.v), ("out_at", result), ("lse_at", lse)):
        if x is not None:
            fields[names.index(name)] = on.address_of(x)
    kept: list[Any] = []
    for name, size, dtype in tasks.own:
        kept.append(np.zeros(size, dtype) if name == "counters" else np.empty(size, dtype))
        fields[names.index(name)] = on.of_table(kept[-1])
    claimed(on, tasks.function, fields, names, tasks.each, min(threads, tasks.tasks), [*kept, *tasks.kept])


class Tasks(NamedTuple):
    """A job but for the addresses of arrays. own: fields that point to arrays of each call, with sizes and dtypes;
    kept: what the others point to."""
    function: int
    names: tuple[str, ...]
    fields: list[int]
    tasks: int
    each: int                   # bytes of a thread
    own: tuple[tuple[str, int, Any], ...]
    kept: tuple[Any, ...]


MOST = 1024
_tasks: dict[tuple[Any, ...], Tasks] = {}


def _planned_tasks(call: Attending, result: Array, lse: Array | None, threads: int, target: CpuTarget, on: Host
                   ) -> Tasks:
    p = call.problem
    contiguous = call.k.strides[-1] == call.k.itemsize and call.v.strides[-1] == call.v.itemsize
    few = plans.rows_spec(p, target, contiguous)
    heads, own = p.sequences * p.kv_heads, tuple[tuple[str, int, Any], ...]()
    names: tuple[str, ...] = FIELDS
    fields, kept = fields_of(call, result, lse, on)
    if few is not None:
        parts = max(-(-int(sequences(call)[:, 3].max(initial=0)) // few.PART), 1)
        count, dtype = parts * heads, formats.FORMATS[few.WORD].dtype
        lanes, names = target.lanes(dtype.itemsize), jobs.ATTENTION_ROWS
        size, value_size = (-(-x // lanes) * lanes for x in (few.SIZE, few.VALUE_SIZE))
        fields |= {"count": count, "parts": parts}
        own = (("partials", count * few.ROWS * (2*lanes + value_size), dtype), ("counters", heads, np.int64))
        each = few.ROWS*(size + few.KEYS) + few.KEYS*(size + value_size)
        each, emitter, spec = -(-each * dtype.itemsize // 64) * 64, "attention_rows:emit_rows", tuple(few)
    else:
        strip_spec, layout, strips = _planned(p, target, threads)
        lanes = strip_spec.NV * target.lanes(8 if strip_spec.WORD == "f64" else 4)
        blocks = -(-p.group * int(sequences(call)[:, 1].max(initial=0)) // (lanes*strips))
        count = blocks * heads
        fields |= {"strips": strips, "blocks": blocks, "count": count}
        each, emitter = strips*layout.state_bytes + layout.shared_bytes, "attention:emit_attention"
        spec = tuple(strip_spec)
    function = on.address(emitter, target, *spec) if count else 0
    return Tasks(function, names, [fields.get(name, 0) for name in names], count, each, own, tuple(kept))


def claimed(on: Host, function: int, fields: array[int], names: tuple[str, ...], each: int, threads: int,
            kept: list[Any]) -> None:
    """Run tasks, which so many threads claim, each of which has so many bytes. `kept`: what the job points to."""
    team = on.reserve(threads) if threads > 1 else 1
    space = on.take(team * each)
    fields[names.index("space")], fields[names.index("space_step")] = space.address, each
    try:
        if team > 1:
            on.run_parts(function, on.job(fields), team, team, team)
        else:
            on.callable(function)(on.job(fields), 0)
    finally:
        on.give(space)
        kept.clear()
