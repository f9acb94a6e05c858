"""Attention's gradients on a GPU's stream: three launches of kernels/nvidia/attention_backward.py and its parts for a
call's shadows."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.plans import asked, nvidia_attention_backward
from tilewright.plans.nvidia_attention_backward import KEYS, BackwardPlan
from tilewright.rules.arguments import F32, Array
from tilewright.rules.attending import Asked, Attending, attending
from tilewright.runtime.gpu.arrays import HIP
from tilewright.runtime.gpu.attention import I32, NO_END, distances, launch, readable
from tilewright.runtime.gpu.operands import address

if TYPE_CHECKING:
    from tilewright.attention_problem import Attention
    from tilewright.runtime.gpu.engine import Engine
    from tilewright.runtime.gpu.product import Run

MAIN = "tilewright.kernels.nvidia.attention_backward:emit_attention_backward"
PARTS = "tilewright.kernels.nvidia.attention_backward_ends:emit_"
LINE = 256                          # as attention_backward_tiles.LINE


class Gradients(NamedTuple):
    """What gradients are computed from beside the call: its results and the gradients of these; by_lse None is 0."""
    out: Array
    lse: Array
    by_out: Array
    by_lse: Array | None = None


def gradients(engine: Engine, given: Mapping[str, Any], how: Asked, results: Mapping[str, Any], deterministic: bool
              ) -> tuple[Any, Any, Any]:
    """The gradients by q, k and v of attention of arrays in a GPU's memory, by the names of arguments, from `results`,
    by the names of Gradients: on the caller's stream, arrays of the caller's library. NotImplementedError for what no
    kernel does."""
    if engine.platform is HIP:
        raise NotImplementedError("attention's gradients run on NVIDIA's GPUs and on CPUs, not on AMD's GPUs")
    there = {name: x for name, x in results.items() if x is not None}
    run, looks = engine.begin({**given, **there}, {})
    with run:
        seen = {name: looks[name].shadow if name in looks else np.asarray(x) for name, x in given.items()}
        call = attending(seen, how, False)
        _check(run, call)
        four = {name: looks[name].shadow for name in there}
        four = {name: x[(None,) * (3 + ("out" in name) - x.ndim)] for name, x in four.items()}
        new, into = zip(*(run.result(seen[x].shape, seen[x].dtype) for x in "qkv"))
        differentiate(run, call, Gradients(**four), [x[(None,) * (4 - x.ndim)] for x in into], deterministic)
    by_q, by_k, by_v = (run.library.result(x, given["q"]) for x in new)
    return by_q, by_k, by_v


def _check(run: Run, call: Attending) -> None:
    """NotImplementedError for what no kernel does."""
    refused = nvidia_attention_backward.refusal(call.problem, run.on.target)
    if not refused and call.lengths is not None:
        refused = "attention's gradients on GPUs have no lengths"
    if refused:
        raise NotImplementedError(refused)


def differentiate(run: Run, call: Attending, given: Gradients, into: list[Array], deterministic: bool,
                  plan: BackwardPlan | None = None) -> None:
    """The gradients of a checked call of shadows by q, k and v into these, which have four axes."""
    _check(run, call)
    p = call.problem
    if p.ragged or not (p.queries and p.keys):                          # rows that no sequence has
        for x in into:
            run.copy(x, x, 0.0)
    if not (p.queries and p.keys and p.sequences and p.heads):
        return
    operands = dict(zip("qkvg", (readable(run, x) for x in (call.q, call.k, call.v, given.by_out))))
    offsets = {"q_offsets": call.q_offsets, "k_offsets": call.k_offsets}
    arrays = {"out": readable(run, given.out), "g": operands["g"], "lse": _rows_contiguous(run, given.lse),
              **dict(zip(("by_q", "by_k", "by_v"), into)),
              **({} if given.by_lse is None else {"by_lse": _rows_contiguous(run, given.by_lse)}),
              **{name: run.typed(x, I32) for name, x in offsets.items() if x is not None}}
    key = ("gradients", run.on.index, p, deterministic, plan, *((x.shape, x.strides) for x in operands.values()),
           *((name, x.shape, x.strides) for name, x in arrays.items()))
    made: Ready = run.engine.prepared.get(key, lambda: Ready(run, p, plan, deterministic, operands, arrays))
    made(run, operands, arrays)


def _rows_contiguous(run: Run, x: Array) -> Array:
    """[..., queries] in f32, one behind the other."""
    if x.dtype == F32 and (x.strides[-1] == F32.itemsize or x.shape[-1] == 1):
        return x
    return run.copied(x, F32)


class Ready:
    """The launches of calls of one kind."""

    def __init__(self, run: Run, p: Attention, plan: BackwardPlan | None, deterministic: bool,
                 operands: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
        plan = asked.runs(plan or nvidia_attention_backward.choose(p), p, run.on.target)
        shape = nvidia_attention_backward.emitted(p, deterministic)
        M, pairs = plan.queries, p.sequences*p.kv_heads
        tiles = p.queries // M + p.sequences if p.ragged else -(-p.queries // M)
        batch = 1 if p.ragged else p.sequences
        every = tiles*p.heads*batch                                     # tiles of queries
        self.shapes = {"rows": ((every, 2*M), F32), "sums": ((every*M*p.size // LINE, LINE), F32),
                       **({"counters": ((every,), I32), "ticket": ((1,), I32)} if deterministic else {})}
        numbers = {
            "queries": p.queries, "keys": p.keys, "heads": p.heads, "group": p.group, "kv_heads": p.kv_heads,
            "pairs": pairs, "section": nvidia_attention_backward.section(p), "sequences": p.sequences,
            "before": NO_END if p.before is None else p.before, "after": NO_END if p.after is None else p.after,
            "scale": p.scale, "factor": p.scale * math.log2(math.e), **distances(arrays)}
        names, how = (*"qkv", *arrays, *self.shapes), {"SHAPE": shape, "PLAN": plan}
        rows = run.kernel(PARTS + "rows", **how, BY_LSE="by_lse" in arrays)
        grid = ((p.keys // KEYS + p.sequences) * p.kv_heads if p.ragged else -(-p.keys // KEYS) * pairs,)
        sums = np.lib.stride_tricks.as_strided(np.zeros(1, F32), self.shapes["sums"][0], (4*LINE, 4))   # a shadow
        mapped = {**operands, "sums": sums}
        self.starts = (launch(run, rows, (tiles, p.heads, batch), numbers, {}, names),
                       launch(run, run.kernel(MAIN, **how), grid, numbers, mapped, names),
                       launch(run, run.kernel(PARTS + "rounded", **how), (tiles, p.heads, batch), numbers, {}, names))

    def __call__(self, run: Run, operands: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
        """With these arrays, on the call's stream."""
        held = [run.temporary(*how) for how in self.shapes.values()]
        at = [address(x) for x in (*(operands[name] for name in "qkv"), *arrays.values(), *held)]
        for start in self.starts:
            start(at, (), (), 1, run.stream)
