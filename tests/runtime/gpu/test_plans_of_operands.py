"""The plan of a product on a GPU is chosen once, for its operands, and it is the plan that `tilewright.plan` gives."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.doubles.fake_arrays import CuPyArray
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import aligned, machine
from tilewright import formats
from tilewright.plans import gpu
from tilewright.runtime import repeats
from tilewright.runtime.gpu.program import Chain

SIZES = [(13, 12, 24), (1, 16, 8), (40, 1, 33)]


def operands(m, n, k, dtype, layout):
    for seed, (rows, columns), letter in zip((0, 1), ((m, k), (k, n)), layout):
        x = small_integers(seed, (columns, rows) if letter == "t" else (rows, columns), dtype)
        yield aligned(x).T if letter == "t" else aligned(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_matmul_runs_the_plan_that_plan_gives_on_nvidia(on, dtype, layout):
    made, target = on.made, on.engine.driver.device(0).target
    for m, n, k in SIZES:
        if 1 in (m, n) and layout != "nn":
            continue  # a row or a column has several layouts
        a, b = operands(m, n, k, formats.get(dtype).dtype, layout)
        c = CuPyArray(aligned(np.zeros((m, n), a.dtype)))
        tw.matmul(CuPyArray(a), CuPyArray(b), c)
        wanted = tw.plan(tw.Gemm(m, n, k, dtype, layout=made[-1].problem.layout), target)
        assert made.pop().plan == wanted
        assert made == []


class Chosen(Exception):
    """The kernel of a plan, before it is emitted."""


AMD = [(chip, name) for chip in ("gfx942", "gfx950") for name in tw.target(chip).matrix_rates
       if name not in ("xf32", "e2m1", "e2m3", "e3m2")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("chip", "name"), AMD)
def test_matmul_runs_the_plan_that_plan_gives_on_amd(monkeypatch, chip, name):
    """Its code is not needed for that: test_formats_on_gpus.py runs it."""
    on = machine(monkeypatch, chip)
    target, compile = on.engine.driver.device(0).target, on.engine.compile

    def chosen(*args):
        raise Chosen(compile(*args))
    monkeypatch.setattr(on.engine, "compile", chosen)
    for layout in ("nn", "tt"):
        a, b = operands(16, 32, 64, formats.get(name).dtype, layout)
        with pytest.raises(Chosen) as found:
            tw.matmul(on.array(a), on.array(b))
        (kernel,) = found.value.args
        out = kernel.problem.out
        assert kernel.plan == tw.plan(tw.Gemm(16, 32, 64, name, out=out, layout=layout), target)
        assert (kernel.problem.a, kernel.problem.b) == (name, name)


def test_columns_of_a_wider_matrix_on_nvidia(on):
    """Rows are an odd number of elements apart: single elements are copied, by a plan for that."""
    x, y = small_integers(0, (64, 65), np.float32), aligned(small_integers(1, (64, 64), np.float32))
    c = CuPyArray(np.zeros((64, 64), np.float32))
    tw.matmul(CuPyArray(x[:, :64]), CuPyArray(y), c)
    (kernel,) = on.made
    assert (kernel.plan.vector, kernel.plan.tail) == (1, False)
    on.finish()
    np.testing.assert_array_equal(c.host, x[:, :64] @ y)


@pytest.mark.parametrize("n", [2048, 3072, 4096])
def test_plans_for_columns_of_a_wider_matrix(n):
    """Their sizes alone would allow vectors of 4, with which the plan is another one."""
    problem, target = tw.Gemm(n, n, n), tw.target("sm_90a")
    wide = gpu.planner(target).shape_of(problem, [(0, 4*(n + 1)), (0, 4*n), (0, 4*n)])
    plan = gpu.choose(wide, target)
    assert (plan.vector, plan.tail, plan.prefetch_first) == (1, False, plan.copy == "registers")
    assert tw.plan(problem, target).vector == 4
    odd = gpu.choose(gpu.planner(target).shape_of(tw.Gemm(n - 1, n - 1, n - 1)), target)
    assert odd.vector == 1


def test_rows_that_do_not_begin_at_16_bytes_on_amd():
    problem, target = tw.Gemm(4096, 4096, 4096, "f16", layout="nt"), tw.target("gfx950")
    assert tw.plan(problem, target).copy == "lds"
    for at in ([(8, 8192), (0, 8192), (0, 8192)], [(0, 8192), (0, 8194), (0, 8192)], [(0, -8192), (0, 8192), (0, 8192)],
               [(0, 1 << 28), (0, 8192), (0, 8192)]):
        assert gpu.choose(gpu.planner(target).shape_of(problem, at), target).copy == "registers"


def test_a_chain_of_launches_does_what_its_programs_do(on):
    """As a repeated layer runs them, by one list of addresses: the second product reads what the first one has written.
    """
    x, w, v = (aligned(small_integers(seed, (16, 16), np.float32)) for seed in range(3))
    between, out = (on.array(aligned(np.zeros((16, 16), np.float32))) for _ in range(2))
    repeats.forget()
    with repeats.watching() as ran:
        tw.matmul(on.array(x), on.array(w), between, trans_b=True)
        tw.matmul(between, on.array(v), out)
    (first, _), (second, _) = ran
    chain = Chain.of_runs([(first.run, (0, 1, 4)), (second.run, (4, 2, 3))])
    assert chain
    x, w, v = changed = [aligned(small_integers(seed, (16, 16), np.float32)) for seed in range(3, 6)]
    given = [on.array(each) for each in changed]
    on.finish()
    between.host[...] = out.host[...] = 0
    chain([each.data_ptr() for each in (*given, out, between)], 0)
    on.finish()
    np.testing.assert_array_equal(out.host, x @ w.T @ v)
    assert Chain.of_runs([(first.run, (0, 1, 4)), (repeats.no_program, (4, 2, 3))]) is None
