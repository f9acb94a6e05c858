"""Attention's gradients on Hopper's tensor cores: right to the last bits of their formats in the simulator, no races,
no spills."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.helpers.assembled import assembled
from tests.helpers.attention import checked, gradients_of, reference
from tilewright import simulator
from tilewright.attention_problem import Attention
from tilewright.formats import get
from tilewright.kernels.nvidia.attention_backward import emit_attention_backward
from tilewright.kernels.nvidia.attention_backward_ends import emit_rounded, emit_rows
from tilewright.kernels.nvidia.attention_backward_tiles import LINE, BackwardSizes
from tilewright.plans import nvidia_attention_backward as plans
from tilewright.plans.nvidia_attention_backward import BackwardPlan, BackwardShape
from tilewright.targets import target
from tilewright.targets.tensor_maps import Mapped, TiledMap


def mapped(x, tile):
    """A map of an array as a kernel takes it."""
    return Mapped(TiledMap(tile, x.shape[::-1], x.strides[-2::-1]), x)


def strides(**arrays):
    """Arrays of four axes by names, and their distances."""
    found = dict(arrays)
    for name, x in arrays.items():
        steps = zip(("batch", "head", "row"), x.strides)
        found |= {f"{name}_{axis}": step // x.itemsize for axis, step in steps}
    return found


def launched(f, values, grid, **how):
    return simulator.run(f, *(values[name] for name, _ in f.params), grid=grid, **how)


def run(queries, keys, batch=1, heads=1, group=1, size=64, value_size=None, before=None, after=None, section=1,
        scale=None, format="bf16", plan=None, by_lse=False, ordered=False,
        **how):
    """The report of the main launch, after gradients were compared with those of float64."""
    T, rng = get(format).dtype, np.random.default_rng(queries + keys)
    value_size, kv_heads = value_size or size, heads // group
    q, k, v, g = (rng.standard_normal(shape).astype(T) for shape in (
        (batch, heads, queries, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, value_size),
        (batch, heads, queries, value_size)))
    call = checked(q, k, v, window=(before, after), scale=1 / math.sqrt(size) if scale is None else scale)
    p, (out, lse) = call.problem, reference(call)
    g_lse = rng.standard_normal(lse.shape).astype(np.float32) if by_lse else None
    want = gradients_of(call, g, g_lse)
    plan = BackwardPlan.parse(f"attention_backward {plan}") if plan else plans.choose(p)
    assert not plan.violations(p, target("sm_90a"))
    shape = plans.emitted(p, ordered)
    s, tiles = BackwardSizes(shape, plan), -(-queries // plan.queries)
    rows = np.full((batch, heads, tiles, s.ROWS), np.nan, np.float32)
    sums = np.full((batch*heads*tiles*plan.queries*size // LINE, LINE), np.nan, np.float32)
    by_q, by_k, by_v = (np.full(x.shape, np.nan, T) for x in (q, k, v))
    numbers = {"queries": queries, "keys": keys, "heads": heads, "group": group, "kv_heads": kv_heads,
               "pairs": batch*kv_heads, "section": section, "before": before or 0, "scale": p.scale,
               "after": 1 << 20 if after is None else after, "factor": np.float32(p.scale * math.log2(math.e)),
               "rows": rows, "counters": np.full(batch*heads*tiles, 7, np.int32), "lse_head": queries,
               "ticket": np.full(1, 7, np.int32),
               "lse_batch": heads*queries, "lse": lse.astype(np.float32), "by_lse": g_lse, "by_lse_head": queries,
               "by_lse_batch": heads*queries, "sums": sums}
    launched(emit_rows(shape, plan, by_lse), numbers | strides(out=out.astype(T), g=g), (tiles, heads, batch))
    f = emit_attention_backward(shape, plan)
    types = dict(f.params)
    maps = {x: mapped(y, types[x].type.tile) for x, y in zip(("q", "k", "v", "g", "sums"), (q, k, v, g, sums))}
    numbers |= strides(by_k=by_k, by_v=by_v)
    report = launched(f, numbers | maps, -(-keys // plans.KEYS)*batch*kv_heads, **how)
    launched(emit_rounded(shape, plan), numbers | strides(by_q=by_q), (tiles, heads, batch))
    for found, wanted in zip((by_q, by_k, by_v), want, strict=True):
        near(found, wanted)
    if ordered:
        assert (numbers["counters"] <= -(-keys // plans.KEYS)).all()
    return report


def near(found, wanted, norm=3e-3, each=1e-2):
    """In norm, and every element beside the largest one."""
    apart = found.astype(np.float64) - wanted
    assert np.linalg.norm(apart) <= norm * np.linalg.norm(wanted), np.linalg.norm(apart) / np.linalg.norm(wanted)
    assert abs(apart).max(initial=0) <= each * abs(wanted).max(initial=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [
    {"queries": 128, "keys": 128}, {"queries": 1, "keys": 1}, {"queries": 129, "keys": 257, "heads": 2, "size": 128},
    {"queries": 150, "keys": 222, "after": 0, "heads": 4, "group": 2, "section": 2, "format": "f16"},
    {"queries": 200, "keys": 70, "after": 0, "size": 128, "by_lse": True},     # the first queries see nothing
    {"queries": 129, "keys": 300, "before": 40, "after": 7, "size": 96, "ordered": True},
    {"queries": 150, "keys": 257, "after": 0, "heads": 2, "size": 128, "ordered": True, "section": 2},
    {"queries": 70, "keys": 131, "size": 32, "value_size": 64, "scale": -0.3},
    {"queries": 70, "keys": 90, "size": 64, "value_size": 128, "plan": "64x128 stages=3"},
    {"queries": 300, "keys": 130, "after": 0, "heads": 2, "group": 2, "plan": "64x128 stages=3 ahead"},
], ids=str)
def test_against_float64(options):
    run(**options)


def test_sums_have_an_order():
    """Later keys, which smaller CTAs have, are added first to each tile of queries."""
    added = defaultdict(list)

    def watch(event):
        if event.what == "copy" and event.array == "sums":
            added[int(event.at.min()) // (128*32)].append(int(event.threads[0]) // (3*128))
    run(140, 260, size=32, after=200, ordered=True, observer=watch)
    assert len(added) == 2
    for ctas in added.values():
        assert len(set(ctas)) > 1
        assert ctas == sorted(ctas)


@pytest.mark.parametrize("options", [{"queries": 70, "keys": 1100}, {"queries": 200, "keys": 520, "after": 0},
                                     {"queries": 260, "keys": 300, "heads": 4, "group": 2, "before": 90, "after": 60}],
                         ids=["full", "causal", "window"])
def test_ctas_may_start_in_any_order(options):
    """A CTA that waited for one that starts behind it would never end."""
    ctas = -(-options["keys"] // 128) * options.get("heads", 1) // options.get("group", 1)
    for starts in ([*range(ctas)][::-1], Random(3).sample(range(ctas), ctas)):
        run(**options, size=32, ordered=True, starts=starts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "band", "more"), [
    (64, "", {}), (128, "causal", {}), (96, "window", {}), (128, "", {"ahead": True})])
def test_assembled(size, band, more):
    """No spills, and no products that ptxas serialises or waits for: C7510 to C7518."""
    plan = replace(plans.choose(Attention(1, 1, 1, 4096, 4096, size, size, "bf16")), **more)
    _, said = assembled(emit_attention_backward(BackwardShape("bf16", size, size, band), plan))
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said), said
    assert not re.search(r"C751[0-8]|serialized", said), said


def test_plans_are_text():
    plan, p, h200 = BackwardPlan(queries=128, stages=3), Attention(1, 1, 1, 8, 8, 128, 128, "bf16"), target("sm_90a")
    assert BackwardPlan.parse(str(plan)) == plan
    assert "shared memory" in plan.violations(p, h200)[0]
    assert "64 or 128" in BackwardPlan(queries=80).violations(p, h200)[0]


def test_refused():
    p = Attention(1, 1, 1, 8, 8, 64, 64, "bf16")
    h200, a100 = target("sm_90a"), target("sm_80")
    assert not plans.refusal(p, h200)
    assert "Hopper" in plans.refusal(p, a100)
    assert "256" in plans.refusal(Attention(1, 1, 1, 8, 8, 256, 64, "bf16"), h200)
