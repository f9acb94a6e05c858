"""Attention on AMD's Matrix Cores: right to the last bits of its formats in the simulator, no races, no bank conflicts;
no spills, and the Matrix Core's share of the time by the static count."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.attention import checked, reference
from tests.helpers.mfma import without_conflicts
from tilewright import simulator
from tilewright.attention_problem import Attention
from tilewright.compiler import amd
from tilewright.formats import get
from tilewright.inspect import amd_cycles
from tilewright.kernels.amd.attention import emit_attention
from tilewright.plans import amd_attention, attention_choice, nvidia_attention
from tilewright.plans.amd_attention import AmdAttention
from tilewright.plans.attention_choice import AttentionCase
from tilewright.plans.nvidia_attention import AttentionShape

CHIPS = "gfx942", "gfx950"


def run(arch, queries, keys, batch=1, heads=1, group=1, size=64, value_size=None, grid=1, before=None, after=None,
        section=1, scale=None, format="f16", splits=1, packed=0, plan="64x64", score=None, **shape):
    """The report of a launch whose result is near that of float64."""
    T, rng = get(format).dtype, np.random.default_rng(queries + keys)
    value_size, kv_heads = value_size or size, heads // group
    to = "bf16" if format == "e4m3fn" else format
    R = get(to).dtype
    operands = [rng.standard_normal(shape).astype(T) for shape in (
        (batch, heads, queries, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, value_size))]
    out, lse = np.full((batch, heads, queries, value_size), np.nan, R), np.full((batch, heads, queries), np.nan, "f4")
    how = {"window": (before, after), "scale": 1 / math.sqrt(size) if scale is None else scale, "return_lse": True}
    factors = {f"{x}_scale": np.full((1, 1), s, np.float32) for x, s in zip("qkv", (0.5, 2.0, 3.0))
               } if format == "e4m3fn" else {}
    call = checked(*operands, bias=score, **how, **factors)
    plan = AmdAttention.parse(f"attention_mfma {plan} resident=1")
    f = emit_attention(AttentionShape(format, to, size, value_size, call.problem.band, packed=packed,
                                      split=splits > 1, lse=True, score=call.problem.score, **shape), plan, arch)
    tiles = batch * (kv_heads if packed else heads) * -(-queries * max(packed, 1) // plan.rows)
    word, words = (np.dtype({"bf16": "i2", "e4m3fn": "i1"}.get(x, "f2")) for x in (format, to))
    values = {"out": out.view(words), "out_row": value_size, "out_head": queries * value_size,
              "out_batch": heads * queries * value_size,
              "queries": queries, "keys": keys, "heads": kv_heads if packed else heads, "group": group,
              "pairs": batch * (kv_heads if packed else heads), "section": section, "scale": how["scale"],
              "factor": np.float32(nvidia_attention.factor(1 if score else how["scale"])), "lse": lse,
              "lse_head": queries, "lse_batch": heads * queries, "before": before or 0, "splits": splits,
              "after": 1 << 20 if after is None else after, "counters": np.zeros(tiles, "i4"),
              "workspace": np.full((tiles * splits, plan.rows * (value_size + 2)), np.nan, "f4")}
    for name, x in factors.items():
        values |= {f"{name[0]}_factors": x, f"{name[0]}_sequence": 0, f"{name[0]}_head": 0}
    for name, x in zip("qkv", operands):
        values |= {f"{name}{of}": x.strides[axis] // x.itemsize if of else x.view(word)
                   for axis, of in enumerate(("_by_batch", "_by_head", "_by_row", ""))}
    report = simulator.run(f, *(values[name] for name in dict(f.params)), grid=grid, target=arch)
    want, sums = reference(call)
    error, largest = abs(out.astype(np.float64) - want), abs(operands[2].astype(np.float64)).max()
    if factors:                             # powers are rounded to four bits, and results are means of many
        assert np.linalg.norm(error) <= 2.0**-4 * np.linalg.norm(want)
    else:
        assert (error <= 2 * get(format).eps * largest).all()
    seen = sums > -np.inf
    np.testing.assert_allclose(lse[seen], sums[seen], atol=2e-5, rtol=1e-6)
    assert (lse[~seen] == -np.inf).all()
    assert not out[~seen].any()
    assert not values["counters"].any()
    return report


@pytest.mark.sampled(5)
@pytest.mark.parametrize("arch", CHIPS)
@pytest.mark.parametrize("options", [
    {"queries": 64, "keys": 128}, {"queries": 1, "keys": 1}, {"queries": 80, "keys": 197, "grid": 2, "heads": 2},
    {"queries": 90, "keys": 140, "after": 0, "heads": 2, "group": 2, "section": 2, "grid": 3, "format": "bf16"},
    {"queries": 150, "keys": 50, "after": 0},                           # the first queries see nothing
    {"queries": 65, "keys": 200, "before": 40, "after": 7, "batch": 2, "grid": 2},
    {"queries": 100, "keys": 140, "size": 128, "plan": "128x32", "before": 20, "after": 0, "format": "bf16"},
    {"queries": 40, "keys": 150, "value_size": 32, "plan": "32x64"},
    {"queries": 70, "keys": 90, "size": 32, "value_size": 96, "plan": "128x64", "scale": 0.0},
    {"queries": 40, "keys": 90, "size": 80, "value_size": 176, "plan": "64x32"},
], ids=str)
def test_against_float64(arch, options):
    without_conflicts(run(arch, **options), "k_smem", "v_smem")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", CHIPS)
@pytest.mark.parametrize("options", [
    {"queries": 1, "keys": 200, "heads": 4, "group": 4, "packed": 4},
    {"queries": 2, "keys": 300, "heads": 3, "group": 3, "packed": 4, "splits": 3, "grid": 4, "batch": 2},
    {"queries": 5, "keys": 330, "heads": 2, "group": 2, "packed": 2, "splits": 4, "grid": 4, "after": 0, "size": 128,
     "plan": "32x32"},
    {"queries": 3, "keys": 140, "packed": 1, "splits": 8, "grid": 8, "before": 60, "after": 0, "value_size": 80},
], ids=str)
def test_few_queries(arch, options):
    """Heads that share keys are rows of one tile, and workgroups have parts of the keys."""
    run(arch, **{"plan": "32x64", **options})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("score", [
    lambda score, i, j, head: 5.0 * tw.tanh(score / 5.0), lambda score, i, j, head: score - 0.1 * (i - j) * (head + 1)])
def test_score_functions(score):
    run("gfx942", 100, 150, heads=2, after=0, score=score)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"queries": 70, "keys": 200, "after": 0, "size": 128}, {"queries": 40, "keys": 131, "size": 64, "plan": "64x32"},
    {"queries": 33, "keys": 70, "size": 96, "value_size": 64, "plan": "32x64", "before": 20, "after": 3}], ids=str)
def test_eight_bits(options):
    """By instructions that take 64 keys at once, and by those that take 16."""
    without_conflicts(run("gfx950", format="e4m3fn", **options), "k_smem", "v_smem")


def test_scores_that_grow():
    """Each tile of keys has larger scores than those before it, visited from the last one on: sums are multiplied."""
    for scale in (3.0, 30.0):
        run("gfx950", 40, 260, scale=scale)


SHARES = {("gfx942", 64): 0.60, ("gfx942", 128): 0.70, ("gfx950", 64): 0.42, ("gfx950", 128): 0.60}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("arch", "size"), SHARES)
def test_the_planners_choice_keeps_the_matrix_core_busy(arch, size):
    """As docs/amd-code.md has it, whose test counts all four; nothing is spilled, and as many waves fit as planned."""
    target, case = tw.target(arch), AttentionCase(Attention(4, 16, 16, 4096, 4096, size, q="bf16"))
    plan = attention_choice.choose(case, target)
    shape, own = amd_attention.emitted(case, plan)
    kernel = emit_attention(shape, own, arch)
    text = amd.assembly(kernel, target)
    uses = amd.usage(kernel, target, text)
    assert uses.vgpr_spills == uses.scratch == 0
    assert uses.waves >= plan.waves_simd
    found = amd_cycles.count(kernel, target, text, waves=plan.waves_simd)
    assert found.share >= SHARES[arch, size] - 0.02, str(found)


def test_plans_are_text():
    plan = AmdAttention(rows=32, keys=32, resident=8, splits=4)
    assert AmdAttention.parse(str(plan)) == plan
