"""matmul and gemm on arrays of AMD GPUs, from the call to the result, on the HIP of tests/doubles/fake_hip.py."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import finish, recipes, started
from tests.runtime.gpu.test_hip_kernels import (  # noqa: F401  (fixtures)
    Tensor,
    fake,
    integers,
)
from tilewright.plans.amd import AmdPlan
from tilewright.runtime.gpu import engine

pytestmark = pytest.mark.sampled


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def test_scalars_of_any_size(fake):  # noqa: F811
    a, b = (integers(*s, dtype=np.int8, seed=i) for i, s in enumerate(((13, 24), (24, 12))))
    c = integers(13, 12, dtype=np.int32, seed=2)
    for alpha, beta in ((2**31, 1), (1, 2**31), (2**40 + 3, -(2**70) - 1)):
        for k in (24, 0):
            there = Tensor(c.copy())
            tw.gemm(alpha, Tensor(a[:, :k]), Tensor(b[:k]), beta, there)
            finish(fake)
            wide = np.frompyfunc(int, 1, 1)
            exact_sums = alpha * (wide(a) @ wide(b) if k else 0) + beta * wide(c)
            np.testing.assert_array_equal(there.host.astype(object) % 2**32, exact_sums % 2**32)
    one = np.ones((8, 8), np.float16)
    got = tw.matmul(Tensor(one), Tensor(one), alpha=1e39)
    finish(fake)
    assert np.isposinf(got.host).all()
    with pytest.raises(TypeError, match="alpha = 1j is complex"):
        tw.matmul(Tensor(one), Tensor(one), alpha=1j)


def test_plans(fake, monkeypatch):  # noqa: F811
    a, b = integers(70, 40), integers(68, 40, seed=1)
    text = "mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2 vector_c=2 split_k=2"
    for plan in (text, AmdPlan.parse(text)):
        got = tw.matmul(Tensor(a), Tensor(b.T), plan=plan, out_dtype="f32")
        finish(fake)
        np.testing.assert_array_equal(got.host, exact(a, b.T))
        assert fake.launches[-1][1] == (4, 1, 2)
    x = a.astype(np.float32)
    got = tw.matmul(Tensor(x), Tensor(b.T.astype(np.float32)),
                    plan="xf32 64x64x32 wave=32x32 mfma=32 copy=registers stages=2 vector_c=4")
    finish(fake)
    np.testing.assert_array_equal(got.host, exact(a, b.T))
    with pytest.raises(ValueError, match="split_k = 9 exceeds the number of tiles along k"):
        tw.matmul(Tensor(a), Tensor(b.T), plan=text.replace("split_k=2", "split_k=9"))
    with pytest.raises(ValueError, match="not a plan: 'no plan'; one looks like"):
        tw.matmul(Tensor(a), Tensor(b.T), plan="no plan")


def test_quantized_operands_by_a_plan(monkeypatch):
    started(monkeypatch, "gfx950")
    plan = AmdPlan.parse("scaled 64x64x128 wave=32x32 mfma=32 copy=registers stages=2")
    qa = tw.quantize(integers(40, 70, dtype=np.float32), "mxfp4")  # k is no multiple of 32
    qb = tw.quantize(integers(70, 36, dtype=np.float32, seed=1), "mxfp8", axis=0)
    expected = exact(tw.dequantize(qa, "f64"), tw.dequantize(qb, "f64"))
    np.testing.assert_array_equal(tw.matmul(qa, qb, plan=plan), expected)
    c = np.ones((40, 36), np.float32)
    assert tw.gemm(2, qa, qb, -1, c, plan=plan) is c
    np.testing.assert_array_equal(c, 2 * expected - 1)
    with pytest.raises(TypeError, match="b must be Quantized, as the other operand is, not ndarray"):
        tw.matmul(qa, c, plan=plan)
    with pytest.raises(ValueError, match="trans_a and trans_b must be False"):
        tw.matmul(qa, qb, plan=plan, trans_a=True)


def test_products_that_are_alike_are_looked_up(fake):  # noqa: F811
    a, b = integers(13, 24), integers(24, 12, seed=1)
    for _ in range(2):
        got = tw.matmul(Tensor(a), Tensor(b))
        calls = len(fake.log)
        again = tw.matmul(Tensor(a), Tensor(b), alpha=2)
        assert fake.names()[calls:] == ["hipGetDevice", "hipModuleLaunchKernel"]
        finish(fake)
        np.testing.assert_array_equal(again.host, 2 * got.host)
    assert recipes(engine.AMD) == 1
    i = integers(8, 8, dtype=np.int8)
    tw.matmul(Tensor(i), Tensor(i))
    with pytest.raises(TypeError, match="alpha must be a whole number where integers are multiplied"):
        tw.matmul(Tensor(i), Tensor(i), alpha=0.5)


def test_rows_that_cannot_be_copied_straight_into_lds(monkeypatch):
    """A plan that lies with the operands is chosen: the recipe is another one."""
    machine = started(monkeypatch, "gfx950")
    wide = integers(128, 136)
    b = integers(128, 128, seed=1)
    for x in (np.ascontiguousarray(wide[:, :128]), wide[:, 4:132]):
        got = tw.matmul(Tensor(x), Tensor(b.T))
        finish(machine)
        np.testing.assert_array_equal(got.host.astype(np.float64), exact(x, b.T).astype(np.float16))
    first, second = (name for name, *_ in machine.launches)
    assert "_s" in first  # stages: it is direct
    assert "_s" not in second
