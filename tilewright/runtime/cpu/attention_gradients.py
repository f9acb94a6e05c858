"""Gradients of attention of arrays in the host's memory, by the kernels of kernels/cpu/attention_gradients.py."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.attention_problem import FLOATS, Attention
from tilewright.kernels.cpu import jobs
from tilewright.plans import cpu_attention as plans
from tilewright.plans.cpu_attention import Layout, Spec
from tilewright.rules.arguments import Array
from tilewright.rules.attending import Attending
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.attention import Tasks, extended, fields_of, placed, sequences
from tilewright.runtime.cpu.host import Host, host
from tilewright.targets import CpuTarget

FIELDS = jobs.ATTENTION_GRADIENTS


class Gradients(NamedTuple):
    """By q, k and v, with four axes and in their formats, and by sinks in f32."""
    q: Array
    k: Array
    v: Array
    sinks: Array | None


def gradients(call: Attending, out: Array, lse: Array, by_out: Array, by_lse: Array | None = None,
              threads: int | None = None, target: CpuTarget | None = None, on: Host = host) -> Gradients:
    """The gradients of a call whose results were `out` and `lse` by those of its results, all with four axes. No bits
    depend on threads. NotImplementedError for paged caches and for keys and values in another format than queries."""
    p = call.problem
    if p.page or p.q != p.kv or p.q not in FLOATS or p.factors:
        raise NotImplementedError("attention has gradients for f32, f64, f16 and bf16 that are not paged, not for "
                                  f"{'pages' if p.page else f'{p.q} queries by {p.kv} keys'}")
    target, threads = target or extended(), threads or pool.get_num_threads()
    sums = formats.FORMATS[p.sums].dtype
    wide = np.ascontiguousarray(by_out, sums)           # sums are added in an order that strides do not change
    with np.errstate(all="ignore"):
        delta = np.multiply(wide, np.ascontiguousarray(out, sums)).sum(-1)
        delta = np.ascontiguousarray(delta if by_lse is None else delta - by_lse, sums)
        by_sinks = None
        if call.sinks is not None:
            share = np.exp(call.sinks.astype(sums)[None, :, None] - lse)
            by_sinks = -np.where(np.isfinite(lse), share * delta, 0).sum((0, 2)).astype(np.float32)
    lse = np.ascontiguousarray(lse, sums)
    by_out = np.ascontiguousarray(by_out, call.q.dtype)
    by_q, by_k, by_v = (np.zeros(x.shape, x.dtype) for x in (call.q, call.k, call.v))
    for side, results in (("queries", (by_q,)), ("keys", (by_k, by_v))):
        _run(call, side, results, lse, delta, by_out, threads, target, on)
    return Gradients(by_q, by_k, by_v, by_sinks)


@lru_cache(maxsize=512)
def _planned(problem: Attention, target: CpuTarget) -> tuple[Spec, Layout]:
    spec = plans.gradient_spec(problem, target)
    return spec, plans.gradient_layout(spec, target)


def _run(call: Attending, side: str, results: tuple[Array, ...], lse: Array, delta: Array, by_out: Array, threads: int,
         target: CpuTarget, on: Host) -> None:
    p = call.problem
    spec, layout = _planned(p, target)
    plain, kept = fields_of(call, by_out, lse, on)
    fields: dict[str, Any] = {**plain}
    for name, x, letters in (("do", by_out, "shid"), *zip("gh", results, ("shi", "shi"))):
        fields |= placed(on, name, x, letters, p.ragged)
    fields["delta_at"] = on.address_of(delta)
    longest = int(sequences(call)[:, 1 if side == "queries" else 3].max(initial=0))
    lanes = 2 * target.lanes(8 if spec.WORD == "f64" else 4)
    rows, strips = longest * (p.group if side == "queries" else 1), plans.MOST_STRIPS
    while strips > 1 and -(-rows // (lanes*strips)) * p.sequences * p.kv_heads < 3*threads:
        strips //= 2
    blocks = -(-rows // (lanes*strips))
    count = blocks * p.sequences * p.kv_heads
    if not count:
        return
    fields |= {"strips": strips, "blocks": blocks, "count": count}
    Tasks.filled(on, on.address("attention_gradients:emit_gradients", target, side, *spec), FIELDS,
                 fields, min(threads, count), strips*layout.state_bytes + layout.shared_bytes, kept).run(())
