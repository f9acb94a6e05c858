"""prologue_a=, prologue_b= of arrays in a GPU's memory, on fake drivers: the results that they have on a CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine

RNG = np.random.default_rng(5)
BF16 = ml_dtypes.bfloat16


@pytest.fixture(params=["sm_90a", "sm_80", "gfx942"])
def on(request, monkeypatch):
    return machine(monkeypatch, request.param)


def random(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def same_as_on_a_cpu(on, a, b, operands, host=(), tolerance=2e-5, **options):
    """`host`: operands that stay in the host's memory."""
    wanted = tw.matmul(a, b, operands=operands, **options)
    found = tw.matmul(on.array(a), on.array(b), operands={
        name: x if name in host or not isinstance(x, np.ndarray) else on.array(x) for name, x in operands.items()},
        **{name: on.array(x) if isinstance(x, np.ndarray) else x for name, x in options.items()})
    on.finish()
    assert (found.host.dtype, found.host.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(found.host.astype(float), wanted.astype(float), rtol=tolerance,
                               atol=tolerance*np.abs(wanted.astype(float)).max())


def dequantised(b, s, z):
    return (b - z) * s


def test_weights_in_every_layout(on):
    """Groups of 16 and of 4 steps of k, which vectors of 8 meet whole and in parts, and numbers of columns and rows."""
    a, b = random(17, 48).astype(BF16), RNG.integers(-128, 128, (48, 40)).astype(np.int8)
    z = RNG.integers(-9, 9, 40).astype(np.int8)
    by_columns = np.asfortranarray(random(12, 40))
    for right, scales in (b, (random(3, 40), random(48, 1))), (np.asfortranarray(b), (random(3, 40), by_columns)):
        for s in scales:
            same_as_on_a_cpu(on, a, right, {"s": s, "z": z}, prologue_b=dequantised)
    same_as_on_a_cpu(on, a, b[::-1, 1::3], {"s": 0.5, "z": z[1::3]}, ("z",), prologue_b=dequantised)


def test_both_operands_batches_and_an_epilogue(on):
    a, b, res = random(2, 9, 32), random(2, 32, 24), random(2, 9, 24)
    options = {"prologue_a": lambda a, t: tw.silu(a) + t, "prologue_b": lambda b, s: b*s,
               "epilogue": lambda acc, bias: tw.relu(acc + bias)}
    same_as_on_a_cpu(on, a, b, {"t": random(9, 1), "s": random(4, 24), "bias": random(24)}, ("bias",), **options)
    same_as_on_a_cpu(on, a, b[0], {"t": random(2, 1, 32), "s": random(32, 1), "bias": 1.5}, alpha=0.5, beta=2.0, c=res,
                     **options)
    same_as_on_a_cpu(on, a[0, :, :0], b[0, :0], {"t": 1.0, "s": 1.0, "bias": 2.0}, **options)


def test_constant_factors(on):
    """Which nothing but the elements have in common: no sum is multiplied by them later."""
    a, b = random(9, 24), random(24, 32)
    same_as_on_a_cpu(on, a, b, {}, prologue_a=lambda x: 0.5*(x*3.0), prologue_b=lambda x: x*0.25)
    same_as_on_a_cpu(on, a.astype(BF16), b.astype(BF16), {}, prologue_b=lambda x: x*0.5)


def test_refused(on):
    a, b = on.array(random(8, 16)), on.array(RNG.integers(-9, 9, (16, 8)).astype(np.int8))
    with pytest.raises(TypeError, match="prologue_b gives integers, which GPUs do not multiply"):
        tw.matmul(a, b, prologue_b=lambda b: b + 1)
    with pytest.raises(ValueError, match="prologue_a and prologue_b must be None where rows or columns of an operand"):
        tw.matmul(a, b, prologue_b=lambda b: 1.0*b, scale_a=np.ones((8, 1), np.float32))
    with pytest.raises(ValueError, match="kernels of gfx942 take no prologue"):
        tw.compile(tw.Gemm(8, 8, 16, "bf16", "i8", prologue_b=tw.prologue(lambda b: 1.0*b, "i8", "bf16")), "gfx942")


def test_plan_and_explain():
    of_b = tw.prologue(lambda b, s: b * s, "i8", "bf16", s="f32 full/128")
    problem = tw.Gemm(512, 512, 512, "bf16", "i8", prologue_b=of_b)
    for target in "sm_90a", "gfx942":
        assert tw.plan(problem, target) == tw.plan(tw.Gemm(512, 512, 512, "bf16"), target)
        assert "prologue of B: a pass before the product reads i8 and writes bf16" in str(tw.explain(problem, target))
    few = tw.Gemm(4, 4096, 4096, "bf16", "i8", layout="nt", prologue_b=of_b)
    assert tw.plan(few, "sm_90a").algorithm == "gemv"
    assert "prologue of B: the kernel reads i8 and multiplies bf16" in str(tw.explain(few, "sm_90a"))
