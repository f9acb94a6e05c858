"""prologue_a=, prologue_b= of matmul and gemm on CPUs, against the same functions of NumPy's arrays in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.tracing import TracingError

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(17)
BF16 = ml_dtypes.bfloat16


def random(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def int8(*shape):
    return RNG.integers(-128, 128, shape).astype(np.int8)


def test_plans_for_few_rows():
    made = tw.prologue(lambda b, s: b*s, "i8", "bf16", s="f32 full/128")
    for m, layout, algorithm in (1, "nn", "stream"), (4, "nt", "dots"), (16, "nn", "stream"), (17, "nn", "packed"):
        problem = tw.Gemm(m, 4096, 4096, "bf16", "i8", layout=layout, prologue_b=made)
        assert tw.plan(problem, "x86-avx512", threads=1).algorithm == algorithm
    problem = tw.Gemm(2, 40, 48, "bf16", "i8", prologue_b=tw.prologue(lambda b: 0.5*b, "i8", "bf16"))
    a, b = random(2, 48).astype(BF16), int8(48, 40)
    report = tw.compile(problem, "x86-avx2", "stream 2x4").simulate(a, b)
    np.testing.assert_allclose(report.result, a.astype(float) @ (0.5*b), 1e-4, 1e-3)


def test_integers_stay_exact():
    a, b = int8(37, 90), RNG.integers(0, 256, (90, 41)).astype(np.uint8)
    low, high = (tw.matmul(a, b, prologue_b=f) for f in (lambda b: b & 15, lambda b: b >> 4))
    assert low.dtype == np.int32
    np.testing.assert_array_equal(low, a.astype(int) @ (b & 15).astype(int))
    np.testing.assert_array_equal(low + 16*high, a.astype(int) @ b.astype(int))
    x = RNG.integers(-9, 9, (37, 90)).astype(np.float32)
    z = RNG.integers(-9, 9, (9, 41)).astype(np.int8)
    found = tw.matmul(x, b, prologue_b=lambda b, z: 2.0*(b - z), operands={"z": z})
    np.testing.assert_array_equal(found, x @ (2.0*(b.astype(int) - np.repeat(z, 10, 0))))


def test_nan_and_gemm():
    a, b = random(20, 30), random(30, 40)
    a[3, 5] = np.nan
    assert np.isnan(tw.matmul(a, b, prologue_a=lambda a: tw.exp(a))[3]).all()
    clean = tw.matmul(a, b, prologue_a=lambda a: tw.where(a == a, a, 0.0))
    np.testing.assert_allclose(clean, np.nan_to_num(a) @ b, 1e-4, 1e-4)
    c = random(20, 40)
    wanted = 2*(np.abs(a).astype(float) @ b) - c
    np.testing.assert_allclose(tw.gemm(2, a, b, -1, c, prologue_a=abs), wanted, 1e-4, 1e-4)
    found = tw.matmul(a.T, b.T, trans_a=True, trans_b=True, prologue_a=lambda a, s: a*s, operands={"s": b[:, 0]})
    np.testing.assert_allclose(found, (a*b[:, 0]) @ b, 1e-4, 1e-4)


def test_what_is_refused():
    a, b = random(8, 12), int8(12, 6)
    with pytest.raises(TracingError, match=r"test_prologue.py:\d+: float\(\)"):
        tw.matmul(a, b, prologue_a=lambda a: float(a))
    for message, options in {
        "one number for each element": {"prologue_a": lambda a: (a, a)},
        "neither a comparison": {"prologue_a": lambda a: a > 0},
        r"operands\['s'\] must broadcast to the shape of b, \(12, 6\)": {
            "prologue_b": lambda b, s: b*s, "operands": {"s": random(5, 6)}},
        "operands has t, which is a parameter of none": {
            "prologue_b": lambda b, s: b*s, "prologue_a": tw.relu, "operands": {"s": 1, "t": 2}},
        "prologue takes|prologue_b takes": {"prologue_b": lambda b, s: b*s, "operands": {"t": 1}},
        "prologue_b must be a function": {"prologue_b": 3},
        "algorithm= is not supported with a prologue": {"prologue_b": tw.relu, "algorithm": "fastest"},
        "only packed plans convert": {"prologue_b": tw.relu, "plan": "in_place 6x16"},
        "operands must be None": {"operands": {"s": 1}},
        "made for elements of u8": {"prologue_b": tw.prologue(tw.relu, "u8")},
    }.items():
        with pytest.raises((TypeError, ValueError), match=message):
            tw.matmul(a, b, **options)
    with pytest.raises(TypeError, match="a is complex64"):
        tw.matmul(a + 1j, b, prologue_b=tw.relu)


@pytest.mark.parametrize("target", ["zen3", "zen4", "sapphirerapids"])
def test_compiled_and_simulated(target):
    """Every access within its array, and numbers of bf16 multiplied in words and in tiles where the chip has them."""
    m, n, k = (65, 66, 81) if target == "sapphirerapids" else (15, 34, 21)
    of_b = tw.prologue(lambda b, s, z: (b - z)*s + 0.5, "i8", "bf16", s="f32 full/16", z="i8 row")     # of 0 not 0
    of_a = tw.prologue(lambda a, t: tw.silu(a) + t, "bf16", "bf16", t="column")
    a, b, s, z, t = random(m, k).astype(BF16), int8(k, n), random(-(-k // 16), n), int8(n), random(m, 1)
    x = (tw.silu(a.astype(float)) + t).astype(np.float32).astype(BF16).astype(float)
    y = ((b.astype(float) - z)*np.repeat(s, 16, 0)[:k] + 0.5).astype(np.float32).astype(BF16).astype(float)
    for layout in "nt", "tn":                   # both operands along k, where steps are left over, and both across
        problem = tw.Gemm(m, n, k, "bf16", "i8", layout=layout, prologue_a=of_a, prologue_b=str(of_b))
        kernel = tw.compile(problem, target)
        assert (kernel.shape.dtype, problem.sums, problem.out) == (
            {"zen3": "f32", "zen4": "bf16x2", "sapphirerapids": "amx_bf16"}[target], "f32", "f32")
        left, right = (np.asarray(x, order="C" if letter == "n" else "F") for x, letter in zip((a, b), layout))
        report = kernel.simulate(left, right, operands={"s": s, "z": z, "t": t})
        assert np.abs(report.result - x @ y).max() <= 3e-6 * (np.abs(x) @ np.abs(y)).max()
    assert "packing reads i8 and rounds to bf16" in str(tw.explain(problem, target))
    assert f"gemm_bf16-i8-f32_nn_{m}x{n}x{k}_prologue_b_" in tw.Gemm(m, n, k, "bf16", "i8", prologue_b=of_b).key()
    with pytest.raises(ValueError, match="a must be bf16, of which prologue_a was made"):
        tw.Gemm(m, n, k, "f32", "i8", prologue_a=of_a)
