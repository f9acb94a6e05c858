"""Attention on Hopper's tensor cores: right to the last bits of its formats in the simulator, no races, no spills."""

from __future__ import annotations

import re

import pytest

import tilewright as tw
from tests.helpers.assembled import assembled
from tests.helpers.attention_launch import run
from tilewright.attention_problem import Attention
from tilewright.kernels.nvidia.attention import emit_attention
from tilewright.plans import asked, attention_order, nvidia_attention
from tilewright.plans.attention_choice import AttentionCase
from tilewright.plans.nvidia_attention import AttentionPlan, AttentionShape
from tilewright.targets import target


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", [
    {"queries": 128, "keys": 128}, {"queries": 1, "keys": 1}, {"queries": 200, "keys": 333, "grid": 2, "heads": 2},
    {"queries": 150, "keys": 222, "after": 0, "heads": 4, "group": 2, "section": 3, "grid": 3, "format": "f16"},
    {"queries": 300, "keys": 100, "after": 0},                          # the first queries see nothing
    {"queries": 129, "keys": 200, "before": 40, "after": 7, "batch": 2, "grid": 2},
    {"queries": 100, "keys": 200, "size": 128, "plan": "128x80 stages=2", "before": 20, "after": 0},
    {"queries": 260, "keys": 150, "value_size": 32, "plan": "192x80 stages=3"},
    {"queries": 70, "keys": 90, "size": 32, "value_size": 96, "plan": "64x64 stages=2", "scale": 0.0},
], ids=str)
def test_against_float64(options):
    run(**options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"queries": 1, "keys": 200, "heads": 4, "group": 4, "packed": 4},
    {"queries": 2, "keys": 300, "heads": 6, "group": 3, "packed": 4, "splits": 3, "grid": 4, "batch": 2},
    {"queries": 5, "keys": 330, "heads": 2, "group": 2, "packed": 2, "splits": 4, "grid": 4, "after": 0, "size": 128},
    {"queries": 3, "keys": 140, "packed": 1, "splits": 8, "grid": 8, "before": 60, "after": 0, "value_size": 96},
], ids=str)
def test_few_queries(options):
    """Heads that share keys are rows of one tile, and CTAs have parts of the keys."""
    run(plan="64x64 stages=3", **options)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("score", [
    lambda score, i, j, head: 5.0 * tw.tanh(score / 5.0), lambda score, i, j, head: score - 0.1 * (i - j) * (head + 1)])
def test_score_functions(score):
    run(100, 150, heads=2, after=0, score=score)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("size", "band"), [(64, ""), (128, "causal"), (128, "")])
def test_assembled(size, band):
    """No spills, and no products that ptxas serialises: C7510 to C7518; C7519 is a fence more, which is free."""
    problem = Attention(1, 1, 1, 4096, 4096, size, q="bf16", after=0 if band else None)
    plan = nvidia_attention.choose(AttentionCase(problem), target("sm_90a"))
    _, said = assembled(emit_attention(AttentionShape("bf16", "bf16", size, size, band), plan))
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said), said
    assert not re.search(r"C751[0-8]|serialized", said), said


@pytest.mark.parametrize(("sequences", "heads", "kv_heads", "keys", "size"), [
    (16, 16, 16, 1024, 128), (4, 16, 16, 4096, 128), (4, 32, 8, 4096, 128), (16, 32, 32, 1024, 64),
    (1, 16, 16, 16384, 128)])
def test_sections(sequences, heads, kv_heads, keys, size):
    """CTAs are seldom without work, and of short sequences read keys and values from L2."""
    p, rows = Attention(sequences, heads, kv_heads, keys, keys, size, q="bf16", after=0), keys // 128
    together, taken = attention_order.section(p, sequences*heads, rows, 132), [0.0]*132
    assert attention_order.section(Attention(1, 2, 2, 300, 0, 64, after=0), 2, 3, 132) == 1     # no keys
    tiles = [i for first in range(0, sequences*heads, together) for i in range(rows, 0, -1)
             for _ in range(min(together, sequences*heads - first))]
    for n, i in enumerate(tiles):
        place = n % 132
        taken[131 - place if n // 132 % 2 else place] += i + 1              # tiles of keys, and a tile's begin and end
    assert max(taken) < 1.02*sum(taken)/132
    assert keys > 4096 or together * 4*keys*size*kv_heads//heads <= attention_order.SECTION_BYTES


def test_heads_of_up_to_64_have_three_warpgroups():
    """In formats of 8 bits as in those of 16, where a tile of 192 queries is not mostly empty."""
    for queries, format, rows in ((4096, "bf16", 192), (4096, "e4m3fn", 192), (100, "e4m3fn", 128)):
        p = Attention(1, 16, 16, queries, queries, 64, q=format, kv=format, out="bf16")
        assert nvidia_attention.choose(AttentionCase(p), target("sm_90a")).rows == rows


def test_plans_are_text():
    plan = AttentionPlan(rows=192, keys=96, stages=4)
    assert asked.plan(str(plan), target("sm_90a"), attention=True) == plan
    with pytest.raises(ValueError, match="plans for attention look like"):
        asked.plan("wgmma 128x128x64", attention=True)
