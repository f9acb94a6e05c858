"""A batch on a GPU is one launch: products of stacks, by their strides, on the fake drivers of both makers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import aligned, machine

pytestmark = pytest.mark.sampled


@pytest.fixture(params=["sm_90a", "gfx942", "gfx950"])
def on(request, monkeypatch):
    """A GPU."""
    return machine(monkeypatch, request.param)


def stack(*shape, seed=0):
    return aligned(small_integers(seed, shape, np.float32))


def apart(*shape):
    """A stack whose matrices are one element more than their size apart: they lie at every alignment."""
    size = int(np.prod(shape[1:]))
    return as_strided(stack(shape[0], size + 1), shape, (4*size + 4, 4*shape[2], 4))


def test_the_plan_is_the_one_that_plan_gives(on):
    target = on.engine.driver.device(0).target
    for batch, m, n, k in ((1000, 16, 16, 16), (3, 20, 40, 32), (300, 1, 64, 16)):
        run = on.engine.run(on.engine.platform.own, 0, 0, None)
        run.recipe(stack(batch, m, k), stack(batch, k, n), stack(batch, m, n))
        problem = on.made[-1].problem
        assert problem.batch == batch
        assert on.made.pop().plan == tw.plan(tw.Gemm(m, n, k, layout=problem.layout, batch=batch), target)


def test_the_plan_knows_how_matrices_lie(on):
    tw.matmul(on.array(apart(4, 8, 8)), on.array(stack(4, 8, 8, seed=1)), out := on.array(stack(4, 8, 8, seed=2)))
    assert on.made[-1].plan.vector == 1 if on.name == "sm_90a" else on.made[-1].plan.copy == "registers"
    on.finish()
    assert out.host.any()


def test_compiled_kernels_take_a_batch(on):
    """Arrays of the GPU, and NumPy's; bound and called; one launch each."""
    maker = on.engine
    kernel = tw.compile(tw.Gemm(20, 24, 16, "f32", layout="nt", batch=3), maker.driver.device(0).target)
    a, b = stack(3, 20, 16), stack(3, 24, 16, seed=1).swapaxes(1, 2)
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    out = on.array(np.zeros((3, 20, 24), np.float32))
    kernel.bind(on.array(a), on.array(b), out, alpha=2)()
    on.finish()
    np.testing.assert_array_equal(out.host, 2 * (a @ b))
    assert len(on.machine.launches) == 2
    empty = tw.compile(tw.Gemm(20, 24, 16, "f32", batch=0), maker.driver.device(0).target)
    assert empty.launches == ()
