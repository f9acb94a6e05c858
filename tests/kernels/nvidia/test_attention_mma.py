"""Attention by mma.sync, in the simulator: right to the last bits of its formats, no races, no bank conflicts."""

from __future__ import annotations

import re

import pytest

import tilewright as tw
from tests.helpers.assembled import assembled
from tests.helpers.attention_launch import run as launched
from tilewright.attention_problem import Attention
from tilewright.kernels.nvidia.attention_mma import emit_attention_mma
from tilewright.plans import nvidia_attention
from tilewright.plans.attention_choice import AttentionCase
from tilewright.targets import target


def run(*sizes, plan="64x64 stages=2", **options):
    return launched(*sizes, plan=f"attention_mma {plan}", **options)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [
    {"queries": 128, "keys": 128}, {"queries": 1, "keys": 1, "plan": "32x16 stages=2"},
    {"queries": 200, "keys": 333, "grid": 2, "heads": 2, "plan": "128x64 stages=2 height=32"},
    {"queries": 90, "keys": 130, "after": 0, "heads": 4, "group": 2, "section": 2, "grid": 3, "format": "f16",
     "plan": "32x32 stages=2"},
    {"queries": 300, "keys": 100, "after": 0, "plan": "128x64 stages=3"},          # the first queries see nothing
    {"queries": 129, "keys": 200, "before": 40, "after": 7, "batch": 2, "grid": 2, "plan": "64x32 stages=3"},
    {"queries": 100, "keys": 200, "size": 128, "plan": "64x64 stages=2", "before": 20, "after": 0},
    {"queries": 67, "keys": 150, "value_size": 48, "size": 16, "plan": "64x32 stages=2 height=32"},
    {"queries": 70, "keys": 90, "size": 80, "value_size": 96, "plan": "64x16 stages=2", "scale": 0.0},
    {"queries": 37, "keys": 70, "size": 256, "plan": "32x32 stages=2", "after": 3},
    {"queries": 37, "keys": 67, "size": 112, "value_size": 16, "plan": "16x32 stages=3"},
], ids=str)
def test_against_float64(options):
    report = run(**options)
    for verb in ("load", "store"):
        traffic = report.of(space="shared", verb=verb)
        assert traffic.moved == traffic.ideal


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"queries": 1, "keys": 200, "heads": 4, "group": 4, "packed": 4},
    {"queries": 2, "keys": 300, "heads": 6, "group": 3, "packed": 4, "splits": 3, "grid": 4, "batch": 2},
    {"queries": 5, "keys": 330, "heads": 2, "group": 2, "packed": 2, "splits": 4, "grid": 4, "after": 0, "size": 128},
    {"queries": 3, "keys": 140, "packed": 1, "splits": 8, "grid": 8, "before": 60, "after": 0, "value_size": 96},
    {"queries": 2, "keys": 90, "heads": 20, "group": 20, "packed": 32, "splits": 2, "plan": "64x32 stages=2"},
], ids=str)
def test_few_queries(options):
    """Heads that share keys are rows of one tile, and CTAs have parts of the keys."""
    run(**{"plan": "16x32 stages=3"} | options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("score", [
    lambda score, i, j, head: 5.0 * tw.tanh(score / 5.0), lambda score, i, j, head: score - 0.1 * (i - j) * (head + 1)])
def test_score_functions(score):
    run(100, 150, heads=2, after=0, score=score)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("chip", "size", "queries", "more"), [
    (chip, *options) for chip in ("sm_80", "sm_86", "sm_89", "b200", "rtx5090") for options in (
        (128, 1, {}), (64, 4096, {"after": 0}), (128, 4096, {}), (256, 4096, {"after": 0}), (80, 4096, {"before": 100}))
], ids=str)
def test_assembled(chip, size, queries, more):
    """The chosen plan's kernel: no spills."""
    case = AttentionCase(Attention(4, 16, 4, queries, 8192, size, q="bf16", lse=True, **more))
    shape, plan = nvidia_attention.emitted(case, nvidia_attention.choose(case, target(chip)))
    _, said = assembled(emit_attention_mma(shape, plan), chip)
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", said), said
