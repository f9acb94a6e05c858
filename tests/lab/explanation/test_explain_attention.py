"""Attention as a family: planned, explained, simulated and compiled by the same commands and functions as products."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright.lab.cli import app
from tilewright.lab.explanation.record import Explanation

LLAMA = "1x32x4096x128 bf16 kv_heads=8 causal"


@pytest.mark.parametrize("target", ["x86-avx512", "sm_90a"])
def test_an_explanation_has_its_parts(target: str) -> None:
    """The times of the parts add up; what scores in memory would take is said; the record reads back."""
    found = tw.explain(tw.Attention.parse(LLAMA), target)
    assert found.time is not None
    assert found.time.predicted == pytest.approx(sum(part.seconds for part in found.time.parts))
    assert "scores in memory would take 2 GiB" in str(found)
    assert found.flops == 2 * 32 * (4096 * 4097 // 2) * 256
    assert found.alternatives
    assert found.level("memory").bytes == 2 * 128 * 4096 * (2*32 + 2*8)
    assert str(Explanation.of_record(json.loads(json.dumps(found.record())))) == str(found)
    assert "<svg" in found.svg()


def test_a_call_is_explained() -> None:
    q, k = np.zeros((4, 9, 64), np.float32), np.zeros((2, 70, 64), np.float32)
    found = tw.explain(tw.attention, q, k, k, causal=True, bias=lambda s, i, j, h: s * 0.5, target="x86-avx2")
    assert str(found.problem).startswith("1x4x9x64 f32 keys=70 kv_heads=2 causal score=")
    with pytest.raises(TypeError, match="causal"):
        tw.explain(tw.Gemm(2, 2, 2), causal=True)
    with pytest.raises(TypeError, match="algorithm is for products"):
        tw.explain(found.problem, "x86-avx2", algorithm="bf16x3")


def test_a_plan_is_refused_with_its_reasons() -> None:
    found = tw.explain(tw.Attention.parse(LLAMA), "sm_90a", "attention_wgmma 192x256 stages=4")
    assert any("shared memory" in why for why in found.violations)
    with pytest.raises(ValueError, match="plans for attention look like"):
        tw.explain(tw.Attention.parse(LLAMA), "sm_90a", "wgmma 128x128x64")
    with pytest.raises(NotImplementedError, match="sm_80 or later"):
        tw.plan(tw.Attention.parse(LLAMA), "sm_75")


@pytest.mark.parametrize(("text", "target", "plan"), [
    ("1x2x3x32 f32 keys=40", "x86-avx2", "attention_strips 8x14 strips=1"),
    ("1x2x1x64 bf16 keys=130 kv_heads=1", "sm_90a", "attention_wgmma 64x64 stages=2 splits=2"),
    ("1x2x3x48 bf16 keys=40", "sm_86", "attention_mma 16x32 stages=2")])
def test_simulated_by_name(text: str, target: str, plan: str) -> None:
    """`tilewright simulate` runs a kernel of attention beside float64, and `emit` writes its code."""
    said = CliRunner().invoke(app, ["simulate", "-a", text, "-t", target, "-p", plan])
    assert said.exit_code == 0, said.output
    assert "the largest error beside float64" in said.output
    code = CliRunner().invoke(app, ["emit", "-a", text, "-t", target, "-p", plan])
    assert code.exit_code == 0, code.output
    assert "attention" in code.output


def test_planned_by_name() -> None:
    said = CliRunner().invoke(app, ["plan", "-a", LLAMA, "-t", "h100", "--top", "3", "--json", "-"])
    record = json.loads(said.output)
    assert [each["plan"].split()[0] for each in record["plans"]] == ["attention_wgmma"] * 3
    kernel = tw.compile(tw.Attention.parse(LLAMA), "sm_90a", record["plans"][0]["plan"])
    assert str(kernel.plan) == record["plans"][0]["plan"]
    assert CliRunner().invoke(app, ["plan", "8", "8", "8", "-a", LLAMA]).exit_code == 2


def test_compiled_kernels_are_called() -> None:
    problem = tw.Attention.parse("1x2x5x16 bf16 keys=40")
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((1, 2, n, 16)).astype(ml_dtypes.bfloat16) for n in (5, 40, 40))
    np.testing.assert_array_equal(tw.compile(problem)(q, k, v), tw.attention(q, k, v))
