"""Epilogues in the simulator: for chips that are not here, with every access and every race checked."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.drivers import HERE
from tilewright.expressions.function import epilogue
from tilewright.plans import epilogues
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.lowering import shape_of
from tilewright.plans.model import cost
from tilewright.runtime.cpu import fusion, ways
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.product import SimulatedHost, SimulatedRecipe

AVX512 = tw.target("x86-avx512")
AMX = replace(AVX512, extensions=("amx-tile", "amx-bf16", "amx-int8"))
RNG = np.random.default_rng(8)


def function(acc, bias, res):
    y = tw.silu(acc + bias) * res
    return y, tw.row_sum(y), tw.column_max(acc), acc


def gated(acc):
    gate, up = tw.pairs(acc)
    return gate * up, tw.row_amax(up)


def simulated(made, a, b, arrays, operands, target, plan, threads=1, word=None):
    """The results; `arrays` are those that are no reductions."""
    host = SimulatedHost(AddressSpace())
    for x in (a, b, *arrays, *operands):
        host.memory.address(x if x.base is None else x.base)
    given = iter(arrays)
    results = [None if x.reduced else next(given) for x in made.expression.results]
    of = ways.Sums(a, b, np.dtype(np.float32), threads, plan and CpuPlan.parse(plan), target, word)
    reduced = iter(fusion.compute(of, results, operands, made, host, SimulatedRecipe))
    return [next(reduced) if x is None else x for x in results]


@pytest.mark.parametrize(("chip", "plan", "dtype", "out", "m", "n", "k"), [
    (AVX512, "packed 4x32 mc=8 kc=8 nc=32 ways=1x2x1", np.float32, np.float32, 11, 70, 21),
    (AVX512, "packed 4x32 mc=8 kc=24 nc=64", np.float32, ml_dtypes.bfloat16, 6, 37, 21),
    (AVX512, "in_place 3x32 kc=8", np.float32, np.float32, 7, 45, 19),
    (AVX512, "stream 2x4", np.float32, np.float32, 2, 50, 9),
    (AMX, "packed 32x32 mc=32 kc=8 nc=64 swap", ml_dtypes.bfloat16, np.float32, 40, 70, 33),
    (AMX, "packed 32x32 mc=32 kc=16 nc=64 swap", ml_dtypes.bfloat16, ml_dtypes.bfloat16, 33, 34, 33),
], ids=str)
def test_algorithms(chip, plan, dtype, out, m, n, k):
    a, b = RNG.standard_normal((m, k)).astype(dtype), RNG.standard_normal((k, n)).astype(dtype)
    bias, res = RNG.standard_normal((2, n), dtype=np.float32)[0], RNG.standard_normal((m, n)).astype(np.float16)
    made = epilogue(function, bias="row", res="f16 full")
    word = "amx_bf16" if chip is AMX else None
    operands = [np.broadcast_to(bias, (m, n)), res]
    found = simulated(made, a, b, [np.empty((m, n), out), np.empty((m, n), np.float32)], operands, chip, plan,
                      CpuPlan.parse(plan).threads, word)
    wanted = function(a.astype(np.float64) @ b.astype(np.float64), bias.astype(np.float64), res.astype(np.float64))
    for x, y in zip(found, wanted, strict=True):
        within = 2**-8 if x.dtype == ml_dtypes.bfloat16 else 1e-5
        np.testing.assert_allclose(x.astype(np.float64), y, rtol=within, atol=within * np.abs(y).max())
    if n % 2 == 0:
        made = epilogue(gated)
        found = simulated(made, a, b, [np.empty((m, n // 2), np.float32)], [], chip, plan, 1, word) \
            if plan.startswith("packed") else []
        for x, y in zip(found, gated(a.astype(np.float64) @ b.astype(np.float64))):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * np.abs(y).max())


def test_a_compiled_kernel():
    """To the last bit what it computes here."""
    kernel = tw.compile(tw.Gemm(9, 40, 21, epilogue=epilogue(function, bias="row", res="f16 full")), HERE[0])
    a, b = RNG.standard_normal((9, 21), dtype=np.float32), RNG.standard_normal((21, 40), dtype=np.float32)
    operands = {"bias": RNG.standard_normal(40, dtype=np.float32), "res": RNG.random((9, 40)).astype(np.float16)}
    report = kernel.simulate(a, b, operands=operands)
    for x, y in zip(report.result, kernel(a, b, operands=operands), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_cost_counts_operations_and_operands():
    plain, few = tw.Gemm(1000, 1000, 100), tw.Gemm(1000, 1000, 100, epilogue=epilogue(lambda acc: acc * 2))
    many = tw.Gemm(1000, 1000, 100, epilogue=epilogue(lambda acc, res: tw.gelu(acc) + res, res="full"))
    plan = tw.plan(plain, "x86-avx512", threads=1)
    seconds = [dict(cost(shape_of(p, 1, "x86-avx512"), plan, AVX512).parts).get("the epilogue", 0.0)
               for p in (plain, few, many)]
    assert seconds[0] == 0
    assert 0 < 5*seconds[1] < seconds[2]
    assert few.min_bytes == plain.min_bytes
    assert many.min_bytes == plain.min_bytes + 4_000_000
    assert epilogues.read(few.epilogue).expression.flops == 1
