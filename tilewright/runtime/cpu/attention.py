"""Attention of arrays in the host's memory: a checked call as jobs of emitted code, and its results."""
from __future__ import annotations

import ctypes
import struct
from functools import cache, lru_cache
from typing import Any

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
from tilewright.runtime.cpu.layout import address
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
    return spec, Layout.on_target(spec, target), plans.strips(problem, target, threads)


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


def fields_of(call: Attending, result: Array, lse: Array | None) -> tuple[dict[str, Any], list[Any]]:
    """Fields of a job that say where the arrays are; and what has to stay alive."""
    p, kept = call.problem, list[Any]()
    fields: dict[str, Any] = dict.fromkeys(FIELDS, 0)

    def place(name: str, x: Array, letters: str, ragged: bool = False) -> None:
        fields[f"{name}_at"] = address(x)
        for letter, stride in zip(letters, x.strides):
            fields[f"{name}_{letter}"] = stride // x.itemsize
        if ragged:
            fields[f"{name}_s"] = 0

    def table(x: Array | None, dtype: Any) -> int:
        if x is None:
            return 0
        kept.append(np.ascontiguousarray(x, dtype))
        return address(kept[-1])
    place("q", call.q, "shid", p.ragged)
    place("k", call.k, "shjd", p.ragged and not p.page)
    place("v", call.v, "shjd", p.ragged and not p.page)
    place("out", result, "shi", p.ragged)
    if lse is not None:
        place("lse", lse, "shi", p.ragged)
        fields["wants_lse"] = 1
    sums = formats.FORMATS[p.sums].dtype
    fields["sinks"] = table(call.sinks, sums)
    reads = np.array([[address(x), *(stride // x.itemsize for stride in x.strides)] for x in call.reads], np.int64)
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
    p = call.problem
    contiguous = call.k.strides[-1] == call.k.itemsize and call.v.strides[-1] == call.v.itemsize
    few = plans.rows_spec(p, target, contiguous)
    if few is not None:
        return _run_rows(call, few, result, lse, threads, target, on)
    spec, layout, strips = _planned(p, target, threads)
    longest = int(sequences(call)[:, 1].max(initial=0))
    lanes = 2 * target.lanes(8 if spec.WORD == "f64" else 4)
    blocks = -(-p.group * longest // (lanes*strips))
    count = blocks * p.sequences * p.kv_heads
    if not count:
        return None
    fields, kept = fields_of(call, result, lse)
    fields |= {"strips": strips, "blocks": blocks, "count": count}
    return claimed(on, on.address("attention:emit_attention", target, *spec), fields, FIELDS,
                   strips*layout.state_bytes + layout.shared_bytes, threads, kept)


def _run_rows(call: Attending, spec: plans.RowsSpec, result: Array, lse: Array | None, threads: int, target: CpuTarget,
              on: Host) -> None:
    """Few queries: the keys of each kv head in parts."""
    p = call.problem
    parts = max(-(-int(sequences(call)[:, 3].max(initial=0)) // spec.PART), 1)
    count = parts * p.sequences * p.kv_heads
    if not count:
        return
    dtype = formats.FORMATS[spec.WORD].dtype
    lanes = target.lanes(dtype.itemsize)
    size, value_size = (-(-x // lanes) * lanes for x in (spec.SIZE, spec.VALUE_SIZE))
    partials = np.empty(count * spec.ROWS * (2*lanes + value_size), dtype)
    counters = np.zeros(p.sequences * p.kv_heads, np.int64)
    fields, kept = fields_of(call, result, lse)
    fields |= {"count": count, "parts": parts, "partials": address(partials), "counters": address(counters)}
    numbers = spec.ROWS*(size + spec.KEYS) + spec.KEYS*(size + value_size)
    claimed(on, on.address("attention_rows:emit_rows", target, *spec), fields, jobs.ATTENTION_ROWS,
            -(-numbers * dtype.itemsize // 64) * 64, threads, [partials, counters, *kept])


def claimed(on: Host, function: int, fields: dict[str, Any], names: tuple[str, ...], each: int, threads: int,
            kept: list[Any]) -> None:
    """Run tasks, which threads claim, each of which has so many bytes. `kept`: what the job points to."""
    team = on.reserve(min(threads, fields["count"]))
    space = on.take(team * each)
    fields |= {"space": space.address, "space_step": each}
    try:
        run(on, function, fields, names, team)
    finally:
        on.give(space)
        kept.clear()


def run(on: Host, function: int, fields: dict[str, Any], names: tuple[str, ...], team: int) -> None:
    """A function whose every part claims tasks until none is left."""
    job = (ctypes.c_int64 * len(names))(*(fields.get(name, 0) for name in names))
    if team > 1:
        on.run_parts(function, ctypes.addressof(job), team, team, team)
    else:
        on.callable(function)(ctypes.addressof(job), 0)
