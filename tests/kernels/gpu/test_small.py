"""Batches of small products: exact on integers in the simulator for awkward sizes, layouts and strides; global memory
is read and written once, in whole sectors; no bank conflicts, no spills."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gemms import right
from tests.helpers.gpu_kernels import emit_small
from tilewright import simulator
from tilewright.kernels.gpu.small import PARTS
from tilewright.plans import gpu, small_rules
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.small_rules import passes
from tilewright.targets.banks import NVIDIA

SM_90A = tw.target("sm_90a")
FORMATS = {"f32": "f4", "f64": "f8", "c64": "c8", "c128": "c16"}


def numbers(seed, kind, *shape):
    x = small_integers(seed, shape, np.float32)
    return (x + 1j*small_integers(seed + 9, shape, np.float32) if kind[0] == "c" else x).astype(FORMATS[kind])


def lying(x, letter):
    return x if letter == "n" else x.swapaxes(1, 2).copy().swapaxes(1, 2)


def shape_of(problem):
    return gpu.planner(SM_90A).shape_of(problem)


def by_small(problem):
    """The plan by small that the model likes best."""
    return next(p for p in gpu.ranked(shape_of(problem), SM_90A) if p.algorithm == "small")


# sizes, format, layout, how many; each kind of copy, of tile and of store
CASES = [((4, 4, 4), "f32", "nn", 70), ((1, 1, 1), "f32", "tt", 131), ((5, 7, 3), "f32", "tn", 41),
         ((33, 1, 9), "f64", "nt", 5), ((13, 12, 17), "f32", "nn", 7), ((32, 32, 8), "f32", "nt", 3),
         ((6, 10, 2), "c64", "nn", 23), ((24, 23, 5), "f64", "tt", 3), ((32, 32, 8), "c128", "nn", 2),
         ((2, 33, 31), "c64", "nt", 5)]


@pytest.mark.parametrize(("sizes", "kind", "layout", "batch"), CASES, ids=str)
def test_values(sizes, kind, layout, batch):
    m, n, k = sizes
    problem = tw.Gemm(m, n, k, kind, layout=layout, batch=batch)
    kernel = tw.compile(problem, SM_90A, by_small(problem))
    right(kernel)
    alpha, beta = (1 - 2j, 3j) if kind[0] == "c" else (2, -1)
    right(kernel, alpha=alpha, beta=beta)


def launched(kind, layout, a, b, c, alpha=1, beta=0, **options):
    """What a kernel makes of operands by their strides, and the report. C is given by rows."""
    pair = PARTS[kind][1]
    (batch, m, k), n = a.shape, b.shape[2]
    stored = [x if letter == "n" else x.swapaxes(1, 2) for x, letter in zip((a, b, c), layout + "n")]
    memory = simulator.AddressSpace()
    at = [memory.address(x, name) for x, name in zip(stored, "abc")]
    ld, stride = ([x.strides[axis] // x.itemsize for x in stored] for axis in (1, 0))
    f = emit_small(DTYPE=kind, LAYOUT=layout, M=m, N=n, K=k, **options)
    grid = -(-batch // (options["MATRICES"] * (1 if options.get("SHARED") else options.get("WARPS", 4))))
    factors = (alpha.real, beta.real, alpha.imag, beta.imag)
    return simulator.run(f, m, n, k, factors[0], at[0], ld[0], at[1], ld[1], factors[1], at[2], ld[2], batch, *stride,
                         *(factors[2:] if pair == 2 else ()), grid=grid, memory=memory)


@pytest.mark.parametrize(("kind", "batch", "options"), [
    ("c64", 17, {"THREAD_M": 2, "THREAD_N": 3, "MATRICES": 9}),
    ("f32", 17, {"THREAD_M": 3, "THREAD_N": 2, "MATRICES": 8, "STAGED": True}),
    ("f32", 1, {"THREAD_M": 2, "THREAD_N": 3, "MATRICES": 9}),
    ("f32", 13, {"THREAD_M": 1, "THREAD_N": 1, "MATRICES": 4, "WARPS": 2, "SHARED": True}),
    ("c64", 5, {"THREAD_M": 1, "THREAD_N": 1, "MATRICES": 1, "STAGED": True, "ASYNC": False})], ids=str)
def test_strides(kind, batch, options):
    """Rows and matrices with gaps, one matrix for all, matrices in reverse, whatever a tile and a team are."""
    a, b, c = numbers(0, kind, 2*batch, 9, 6)[::2, :6, :5], numbers(1, kind, 1, 5, 8), numbers(2, kind, batch, 7, 9)
    b, c = np.broadcast_to(b, (batch, 5, 8)), c[::-1, :6, :8]
    for layout, x, y in (("nn", a, b), ("tt", lying(a, "t")[::-1], np.broadcast_to(lying(b[:1], "t"), b.shape))):
        out, factors = c.copy(), (2, 1 + 1j if kind == "c64" else 1)
        wide = np.zeros((batch, 7, 9), out.dtype)
        wide[:, :6, :8] = out
        launched(kind, layout, x, y, wide[:, :6, :8], *factors, VECTOR_A=1, VECTOR_B=1, VECTOR_C=1, **options)
        np.testing.assert_array_equal(wide[:, :6, :8], factors[0]*(x @ y) + factors[1]*out)
        assert not wide[:, 6:].any()
        assert not wide[:, :, 8:].any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "kind"), [(4, "f32"), (4, "c128"), (8, "f64"), (16, "f32"), (16, "c64"), (32, "f32"),
                                         (32, "c128")])
def test_memory_is_moved_once(n, kind):
    """In whole sectors, and from shared memory without conflicts. No spills; about as many registers as planned."""
    problem = tw.Gemm(n, n, n, kind, batch=100_000)
    plan = gpu.choose(shape_of(problem), SM_90A)
    assert plan.algorithm == "small"
    batch = 2 * small_rules.warps(plan) // plan.team * plan.matrices
    kernel = tw.compile(tw.Gemm(n, n, n, kind, batch=batch), SM_90A, plan)
    a, b = numbers(0, kind, batch, n, n), numbers(1, kind, batch, n, n)
    report = kernel.simulate(a, b)
    for name in "abc":
        traffic = report.of(name, space="global")
        assert traffic.bytes == a.nbytes
        assert traffic.moved*32 == a.nbytes, name
    lanes, rows = small_rules.lanes(plan, shape_of(problem)), (True, False)
    for x, down in zip(small_rules.operands(plan, shape_of(problem)), rows):
        assert passes(x, lanes, down, NVIDIA) == 0
    loads = small_rules.loads(shape_of(problem), plan) * batch // lanes.TOGETHER * lanes.PARTS * plan.team
    assert report.of("matrices", "load", space="shared").moved <= loads
    used = kernel.resources
    assert used.spills == 0
    assert used.registers <= plan.estimate(kernel.shape) + 24


def test_the_model_takes_it_for_many_small_products():
    def chosen(n, kind, batch):
        return gpu.choose(shape_of(tw.Gemm(n, n, n, kind, batch=batch)), SM_90A)
    for n, kind in (4, "f32"), (5, "f64"), (16, "f32"), (32, "f64"):
        assert chosen(n, kind, 100_000).algorithm == "small"
    assert chosen(32, "f64", 16).algorithm == "dmma"            # few
    assert chosen(64, "f64", 1000).algorithm == "dmma"          # large
    assert chosen(32, "c128", 100_000).team > 1 == chosen(4, "c128", 100_000).team
    assert chosen(5, "f32", 100_000).store == "smem" != chosen(16, "f32", 100_000).store


def test_text_and_reasons():
    plan = NvidiaPlan.parse("small 4x4x4 thread=1x4 stages=1 vector=4 matrices=16")
    assert str(plan) == "small 4x4x4 thread=1x4 stages=1 vector=4 matrices=16"
    shape = shape_of(tw.Gemm(4, 4, 4, batch=9))
    assert plan.violations(shape, SM_90A) == []
    for more, why in ((" stages=2", "stages must be 1"), (" team=3", "team must be 1, 2 or 4, not 3"),
                      (" matrices=9", "a team multiplies 8 matrices at once"), (" tail", "small has no tail"),
                      (" store=tma", "store must be lanes or smem"), (" vector=8", "8 elements of A are moved")):
        wrong = NvidiaPlan.parse(_with(str(plan), more)).violations(shape, SM_90A)
        assert any(why in x for x in wrong), more
    assert "for products of 4x4x4 alone, not 5x4x4" in plan.violations(shape._replace(m=5), SM_90A)[0]
    for other in (tw.Gemm(4, 4, 4), tw.Gemm(65, 4, 4, batch=9), tw.Gemm(4, 4, 4, "f16", batch=9)):
        assert plan.violations(other, SM_90A)


def _with(text, more):
    """The text with one word in place of another of its kind."""
    kind = more.strip().partition("=")[0]
    return " ".join([*(x for x in text.split() if x.partition("=")[0] != kind), more.strip()])
