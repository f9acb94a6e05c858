"""What is particular to products of arrays on GPUs. Values are in tests/products, refusals in test_refusals.py."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import aligned, machine


@pytest.fixture(params=["sm_90a", "gfx942"])
def on(request, monkeypatch):
    return machine(monkeypatch, request.param)


def test_a_permuted_copy(on):
    a = aligned(small_integers(0, (3, 4, 5), np.float32))
    got = tw.einsum("abc->cab", on.array(a))
    on.finish()
    np.testing.assert_array_equal(got.host, a.transpose(2, 0, 1))


def test_an_infinite_sum_times_a_real_factor_has_no_nan(on):
    a, b = np.array([[[np.inf + 0j]]]*2, np.complex64), np.array([[[1 + 0j]]]*2, np.complex64)
    got = tw.matmul(on.array(aligned(a)), on.array(aligned(b.real.astype(np.float32))), alpha=2)
    on.finish()
    assert np.isinf(got.host.real).all()


def test_rows_that_may_not_change_bits(on):
    """A row has the same bits in any number of rows, by real products."""
    if on.name != "sm_90a":
        return
    rng = np.random.default_rng(0)
    a, b = (aligned((rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(np.complex64))
            for s in ((3, 12, 20), (3, 20, 8)))
    found = []
    for x in (a, aligned(a[:, 5:6])):
        found.append(tw.matmul(on.array(x), on.array(b), batch_invariant=True))
    on.finish()
    np.testing.assert_array_equal(found[0].host[:, 5:6], found[1].host)


# ---- prologues


def test_plans_with_prologues_and_what_explain_says():
    of_b = tw.prologue(lambda b, s: b * s, "i8", "bf16", s="f32 full/128")
    problem = tw.Gemm(512, 512, 512, "bf16", "i8", prologue_b=of_b)
    for target in "sm_90a", "gfx942":
        assert tw.plan(problem, target) == tw.plan(tw.Gemm(512, 512, 512, "bf16"), target)
        assert "prologue of B: a pass before the product reads i8 and writes bf16" in str(tw.explain(problem, target))
    few = tw.Gemm(4, 4096, 4096, "bf16", "i8", layout="nt", prologue_b=of_b)
    assert tw.plan(few, "sm_90a").algorithm == "gemv"
    assert "prologue of B: the kernel reads i8 and multiplies bf16" in str(tw.explain(few, "sm_90a"))
