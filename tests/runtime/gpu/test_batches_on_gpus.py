"""A batch on a GPU is one launch: products of stacks, by their strides, on the fake drivers of both makers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import machine
from tests.runtime.gpu.test_plans_of_operands import aligned, compiled
from tilewright.runtime.gpu import engine

pytestmark = pytest.mark.sampled


@pytest.fixture(params=["sm_90a", "gfx942", "gfx950"])
def on(request, monkeypatch):
    """A GPU."""
    found = machine(monkeypatch, request.param)
    found.made = compiled(monkeypatch, found.engine)
    return found


def stack(*shape, seed=0):
    return aligned(small_integers(seed, shape, np.float32))


def apart(*shape):
    """A stack whose matrices are one element more than their size apart: they lie at every alignment."""
    size = int(np.prod(shape[1:]))
    return as_strided(stack(shape[0], size + 1), shape, (4*size + 4, 4*shape[2], 4))


def heads(seed=0):
    """[2, 3, 8, 4] of an array [2, 8, 3, 4]: the first two axes do not fold."""
    return stack(2, 8, 3, 4, seed=seed).transpose(0, 2, 1, 3)


# A, B, and how many launches
CASES: dict[str, tuple[Callable, Callable, int]] = {
    "stacks": (lambda: stack(5, 16, 16), lambda: stack(5, 16, 16, seed=1), 1),
    "awkward": (lambda: stack(3, 17, 9), lambda: stack(3, 9, 35, seed=1), 1),
    "two axes that fold": (lambda: stack(2, 3, 10, 12), lambda: stack(2, 3, 12, 8, seed=1), 1),
    "two that do not": (heads, lambda: heads(1).swapaxes(-1, -2), 2),
    "one A": (lambda: stack(12, 8), lambda: stack(5, 8, 20, seed=1), 1),
    "one B, which makes one product": (lambda: stack(5, 12, 8), lambda: stack(8, 20, seed=1), 1),
    "one B for every second axis": (lambda: stack(3, 2, 12, 8), lambda: stack(3, 1, 8, 20, seed=1), 1),
    "columns": (lambda: stack(4, 8, 12).swapaxes(1, 2), lambda: stack(4, 20, 8, seed=1).swapaxes(1, 2), 1),
    "backwards": (lambda: stack(4, 12, 8)[::-1], lambda: stack(4, 8, 20, seed=1), 1),
    "gaps": (lambda: stack(8, 12, 8)[::2], lambda: stack(4, 8, 20, seed=1), 1),
    "unaligned": (lambda: apart(4, 8, 8), lambda: stack(4, 8, 8, seed=1), 1),
    "rows": (lambda: stack(5, 1, 32), lambda: stack(5, 32, 24, seed=1), 1),
    "elements": (lambda: stack(70, 1, 1), lambda: stack(70, 1, 1, seed=1), 1),
    "no products": (lambda: stack(0, 4, 5), lambda: stack(0, 5, 6), 0),
    "no rows": (lambda: stack(3, 0, 5), lambda: stack(3, 5, 6), 0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_one_launch(on, case):
    make_a, make_b, launches = CASES[case]
    a, b = make_a(), make_b()
    got = tw.matmul(on.array(a), on.array(b))
    on.finish()
    np.testing.assert_array_equal(got.host, a @ b)
    assert len(on.machine.launches) == launches


def test_epilogues_of_axes_that_do_not_fold(on):
    """A launch for each of the shorter axis."""
    if on.name != "sm_90a":
        return
    a, b, bias = heads(), heads(1).swapaxes(-1, -2), stack(3, 1, 8, seed=2)
    got = tw.matmul(on.array(a), on.array(b), epilogue=lambda acc, x: acc + x, operands={"x": on.array(bias)})
    on.finish()
    np.testing.assert_array_equal(got.host, a @ b + bias)
    assert len(on.machine.launches) == 2


def test_formats_are_converted_in_one_launch(on):
    a, b = stack(5, 16, 12), stack(5, 12, 16, seed=1).astype(np.float64)
    got = tw.matmul(on.array(a), on.array(b))
    on.finish()
    np.testing.assert_array_equal(got.host, a @ b)
    assert len(on.machine.launches) == 2


def test_nothing_to_add_up(on):
    got = tw.matmul(on.array(stack(3, 4, 0)), on.array(stack(3, 0, 6)))
    on.finish()
    np.testing.assert_array_equal(got.host, np.zeros((3, 4, 6)))


@pytest.mark.parametrize("columns", [False, True])
def test_gemm_of_stacks(on, columns):
    """beta reads C, which has rows or columns."""
    a, b = stack(3, 18, 12), stack(3, 12, 10, seed=1)
    c = stack(3, 10, 18, seed=2).swapaxes(1, 2) if columns else stack(3, 18, 10, seed=2)
    wanted = 2 * (a @ b) + 3 * c
    tw.gemm(2, on.array(a), on.array(b), 3, on.array(c))
    on.finish()
    np.testing.assert_array_equal(c, wanted)
    assert len(on.machine.launches) == 1


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


def test_the_second_of_two_alike_goes_the_short_way(on, monkeypatch):
    a, b = (stack(3, 12, 12, seed=seed) for seed in (0, 1))
    tw.matmul(on.array(a), on.array(b))
    monkeypatch.setattr(engine, "multiplied", None)                   # the long way is closed
    for seed in (2, 4):
        x, y = (stack(3, 12, 12, seed=seed + s) for s in (0, 1))
        got = tw.matmul(on.array(x), on.array(y))
        on.finish()
        np.testing.assert_array_equal(got.host, x @ y)


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
