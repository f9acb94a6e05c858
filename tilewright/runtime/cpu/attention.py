"""Attention of arrays in the host's memory: a checked call as jobs of emitted code, and its results."""
from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks, formats
from tilewright.attention_problem import Attention
from tilewright.kernels.cpu import jobs
from tilewright.plans import asked, cpu_attention as plans
from tilewright.plans.attention_choice import AttentionCase
from tilewright.plans.cpu_attention import CpuAttention, Layout
from tilewright.plans.measured import choice
from tilewright.rules.arguments import Array, ready
from tilewright.rules.attending import Attending
from tilewright.runtime import repeats
from tilewright.runtime.cpu import amx, pool
from tilewright.runtime.cpu.host import Host, host
from tilewright.targets import CpuTarget, detect

FIELDS = jobs.ATTENTION
SPACE, PARTIALS = FIELDS.index("space"), jobs.ATTENTION_ROWS.index("partials")


def attend(call: Attending, out: Array | None = None, threads: int | None = None, target: CpuTarget | None = None,
           on: Host = host, plan: CpuAttention | None = None) -> tuple[Array, Array | None, Tasks | None]:
    """The result [..., value_size] and the logarithms of sums, if they are asked for, both with four axes; and what was
    done, but nothing beside it, if anything was. By the chosen plan or this one: ValueError if it cannot run it."""
    p, threads = call.problem, threads or pool.get_num_threads()
    shape = (*call.q.shape[:-1], p.value_size)
    if not p.value_size and p.lse:                              # kernels have at least one number of each value
        p = replace(p, value_size=1)
        lse = attend(call._replace(problem=p, v=np.zeros((*call.v.shape[:-1], 1), call.v.dtype)), None, threads, target,
                     on)[1]
        return np.empty(shape, call.dtype) if out is None else out, lse, None
    direct = (out is not None and out.strides[-1] == out.itemsize and ready(out, out.dtype) and not _overlap(out, call))
    result = out if direct and out is not None else np.empty(shape, call.dtype)
    lse = np.empty(shape[:-1], formats.FORMATS[p.sums].dtype) if p.lse else None
    if p.ragged:                            # rows that belong to no sequence
        result[...] = 0
        if lse is not None:
            lse[...] = -np.inf
    tasks = None
    if result.size or lse is not None:
        tasks = tasks_of(call, result, lse, threads, target, on, plan)
        tasks.run([on.address_of(x) for x in (call.q, call.k, call.v, result, *(() if lse is None else (lse,)))])
    if out is not None and result is not out:
        out[...] = result
        return out, lse, None
    return result, lse, None if p.ragged else tasks


def _overlap(out: Array, call: Attending) -> bool:
    given = call.q, call.k, call.v, call.sinks, *call.reads, *(call.factors or ())
    return any(x is not None and np.may_share_memory(out, x) for x in given)


@cache
def extended() -> CpuTarget:
    """The target of this process, with AMX where it may be used."""
    return amx.permitted(detect()).extended


_planned: dict[Any, CpuAttention] = {}              # by case and target
repeats.derived.append(_planned)


def _chosen(case: AttentionCase, target: CpuTarget) -> CpuAttention:
    planned: CpuAttention = forks.looked_up(_planned, (case, target), lambda: choice.chosen(case, target)[0])
    return planned


@lru_cache(maxsize=512)
def _strips(p: Attention, target: CpuTarget, plan: CpuAttention) -> tuple[plans.Spec, Layout]:
    spec = plans.spec(p, target, plan)
    return spec, Layout.on_target(spec, target)


def case_of(call: Attending, threads: int) -> AttentionCase:
    """What the choice of the call's plan depends on."""
    contiguous = call.k.strides[-1] == call.k.itemsize and call.v.strides[-1] == call.v.itemsize
    return AttentionCase(call.problem, threads, contiguous, call.lengths is not None)


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


def placed(on: Host, name: str, x: Array, letters: str, ragged: bool) -> dict[str, Any]:
    """Fields that say where an array is, and how far it is from each index to the next."""
    places = {f"{name}_at": on.address_of(x), **{f"{name}_{letter}": stride // x.itemsize
                                                for letter, stride in zip(letters, x.strides)}}
    return places | ({f"{name}_s": 0} if ragged else {})


def fields_of(call: Attending, result: Array, lse: Array | None, on: Host) -> tuple[dict[str, Any], list[Any]]:
    """Fields of a job that say where the arrays are; and what has to stay alive."""
    p, kept = call.problem, list[Any]()
    fields: dict[str, Any] = dict.fromkeys(FIELDS, 0)

    def table(x: Array | None, dtype: Any) -> int:
        if x is None:
            return 0
        kept.append(np.ascontiguousarray(x, dtype))
        return on.of_table(kept[-1]) if kept[-1].size else 0
    own = p.ragged and not p.page
    fields |= {**placed(on, "q", call.q, "shid", p.ragged), **placed(on, "k", call.k, "shjd", own),
               **placed(on, "v", call.v, "shjd", own), **placed(on, "out", result, "shi", p.ragged)}
    if lse is not None:
        fields |= {**placed(on, "lse", lse, "shi", p.ragged), "wants_lse": 1}
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


class Tasks(NamedTuple):
    """A job but for the addresses of arrays.

    function    0: there is nothing to do; `call` calls it
    fields      of the job, and `kept` what they point to
    each        bytes of a thread
    own         bytes that tasks share: results of parts
    """
    function: int
    call: Callable[[Any, int], object]
    fields: array[int]
    threads: int
    each: int
    on: Host
    kept: tuple[Any, ...]
    own: int

    @classmethod
    def filled(cls, on: Host, function: int, names: Sequence[str], fields: Mapping[str, int], threads: int, each: int,
               kept: Sequence[Any], counters: int = 0, own: int = 0) -> Tasks:
        """`counters`: numbers behind the fields, 0 at the start."""
        job = array("q", [*(fields.get(name, 0) for name in names), *[0]*counters])
        return cls(function, on.callable(function), job, threads, -(-each // 64) * 64, on, tuple(kept), own)

    def run(self, at: Sequence[int], *_: Any) -> bool:
        """The job for q, k, v, the result and the logarithms at these addresses; False (see runtime/repeats.py)."""
        if not self.function:
            return False
        on, fields = self.on, self.fields[:]
        fields[:len(at)] = array("q", at)
        team = on.reserve(self.threads) if self.threads > 1 else 1
        space = on.take(self.own + team*self.each)
        fields[SPACE], fields[SPACE + 1] = space.address + self.own, self.each
        if self.own:
            fields[PARTIALS] = space.address
        try:
            if team > 1:
                on.run_parts(self.function, on.job(fields), team, team, team)
            else:
                self.call(on.job(fields), 0)
        finally:
            on.give(space)
        return False


def tasks_of(call: Attending, result: Array, lse: Array | None, threads: int, target: CpuTarget | None = None,
             on: Host = host, plan: CpuAttention | None = None) -> Tasks:
    """What calls with such arrays do."""
    p, target, case = call.problem, target or extended(), case_of(call, threads)
    plan = asked.runs(plan, case, target) if plan else _chosen(case, target)
    names: tuple[str, ...] = FIELDS
    heads, counters, own = p.sequences * p.kv_heads, 0, 0
    fields, kept = fields_of(call, result, lse, on)
    if plan.algorithm != "attention_strips":
        few = plans.rows_spec(case, plan)
        parts = max(-(-int(sequences(call)[:, 3].max(initial=0)) // few.PART), 1)
        count, size = parts * heads, formats.FORMATS[few.WORD].dtype.itemsize
        lanes, names = target.lanes(size), jobs.ATTENTION_ROWS
        value_width, rows = -(-few.VALUE_SIZE // lanes) * lanes, p.group * p.queries
        fields |= {"count": count, "parts": parts}
        counters, own = heads, -(-count * rows * (2*lanes + value_width) * size // 64) * 64
        room = sum(plans.rows_memory(few, rows, lanes).values()) * size
        emitter, spec = f"attention_rows:emit_{'rows' if few.ROWS else 'few'}", tuple(few)
    else:
        (strip_spec, layout), strips = _strips(p, target, plan), plan.strips
        lanes = strip_spec.NV * target.lanes(8 if strip_spec.WORD == "f64" else 4)
        blocks = -(-p.group * int(sequences(call)[:, 1].max(initial=0)) // (lanes*strips))
        count = blocks * heads
        fields |= {"strips": strips, "blocks": blocks, "count": count}
        room, emitter = strips*layout.state_bytes + layout.shared_bytes, "attention:emit_attention"
        spec = tuple(strip_spec)
    function = on.address(emitter, target, *spec) if count else 0
    return Tasks.filled(on, function, names, fields, min(threads, count), room, kept, counters, own)
