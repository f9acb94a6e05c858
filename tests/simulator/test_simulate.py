"""tilewright.simulate against the machine: whole products, by every kind of plan, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.every_plan import PLANS, kernel_of
from tilewright.compiled.compile import compile
from tilewright.simulator import Fault
from tilewright.targets import names, target


def matrices(problem, seed=0):
    rng, dtype = np.random.default_rng(seed), {"f32": np.float32, "f64": np.float64}[problem.out]
    batch = (problem.batch,) if problem.batch > 1 else ()
    a, b = (rng.standard_normal((*batch, *shape)).astype(dtype) for shape in (problem.shape_a, problem.shape_b))
    a, b = (x.swapaxes(-1, -2) if letter == "t" else x for x, letter in zip((a, b), problem.layout))
    return a, b, rng.standard_normal((*batch, problem.m, problem.n)).astype(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 0.75)])
@pytest.mark.parametrize("case", PLANS, ids=lambda case: f"{case[0]}-{case[4]}")
def test_the_same_bits_as_the_machine(case, alpha, beta):
    kernel = kernel_of(*case)
    a, b, c = matrices(kernel.problem)
    expected, got = c.copy(), c.copy()
    kernel(a, b, expected, alpha=alpha, beta=beta)
    report = tw.simulate(kernel, a, b, got, alpha=alpha, beta=beta)
    np.testing.assert_array_equal(got, expected)
    assert report.result is got
    assert report.flops >= 2 * a.shape[0] * a.shape[1] * b.shape[1]
    assert report.of("a").distinct == a.nbytes
    assert report.of("b").distinct == b.nbytes


def test_f64_a_batch_and_no_out():
    kernel = kernel_of("nn", 5, 20, 7, "packed 3x{v} mc=3 kc=4 nc={v}", "f64", batch=3)
    a, b, _ = matrices(kernel.problem)
    np.testing.assert_array_equal(tw.simulate(kernel, a, b).result, kernel(a, b))


@pytest.mark.parametrize("name", names("cpu"))
def test_any_target_without_such_a_machine(name):
    kernel = compile(tw.Gemm(17, 44, 23), target(name))
    a, b, _ = matrices(kernel.problem)
    exact = a.astype(np.float64) @ b
    np.testing.assert_allclose(tw.simulate(kernel, a, b).result, exact, rtol=1e-4, atol=1e-5)


def test_empty_products():
    kernel = compile(tw.Gemm(3, 4, 0))
    out = np.ones((3, 4), np.float32)
    report = tw.simulate(kernel, np.ones((3, 0), np.float32), np.ones((0, 4), np.float32), out, beta=0.5)
    assert (out == 0.5).all()
    assert report.flops == 0


def test_operands_are_checked():
    kernel = compile(tw.Gemm(3, 12, 5))
    a, b, c = matrices(kernel.problem)
    with pytest.raises(ValueError, match=r"b must have shape \(5, 12\), not \(12, 5\)"):
        tw.simulate(kernel, a, b.T)
    with pytest.raises(ValueError, match="out must be given if beta is not 0, and beta is 2"):
        tw.simulate(kernel, a, b, beta=2)
    c.flags.writeable = False
    with pytest.raises(Fault, match=r"read-only .* store of out"):
        tw.simulate(kernel, a, b, c)
