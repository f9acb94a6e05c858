"""tilewright.compile: the code of a plan, for any target; what is read is what runs."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.oracles import reference
from tilewright.kernels.cpu.microkernel import PACE, unrolled
from tilewright.plans import CpuPlan
from tilewright.runtime.cpu import engine, host

AVX2, NEON = tw.target("x86-avx2"), tw.target("neon")
PROBLEMS = [
    tw.Gemm(100, 90, 70),
    tw.Gemm(61, 130, 45, "f64", layout="tn"),
    tw.Gemm(130, 61, 200, layout="nt"),
    tw.Gemm(33, 47, 90, layout="tt"),
    tw.Gemm(1, 300, 50),
    tw.Gemm(300, 1, 50, layout="tt"),
    tw.Gemm(20, 30, 1, layout="nt"),
    tw.Gemm(1, 1, 1, layout="tt"),
]
IDS = [p.key() for p in PROBLEMS]


def plans(problem, target):
    """One plan of each kind that can run the problem: every algorithm, as it is and swapped, on one thread and two."""
    found = {}
    mr, lanes = {32: 14, 29: 13, 16: 6}[target.tile_registers], target.lanes(8 if problem.a == "f64" else 4)
    nr = 2 * lanes
    for swap in (False, True):
        rows, columns = (problem.n, problem.m) if swap else (problem.m, problem.n)
        for ways in ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2)):
            for plan in (
                CpuPlan("packed", mr, nr, 4 * mr, 32, 2 * nr, *ways, swap=swap),
                CpuPlan("in_place", mr, nr, 0, 16, 0, *ways, swap=swap),
                CpuPlan("in_place", mr, nr, 0, 16, 0, *ways, swap=swap, copy=True),
                CpuPlan("stream", rows, 4, 0, 0, 0, *ways, swap=swap),
                CpuPlan("dots", 2, columns, 0, 0, 0, *ways, swap=swap),
                CpuPlan("dots", 2, columns, 0, 0, 0, *ways, swap=swap, copy=True),
            ):
                if not plan.violations(problem, target):
                    found[str(plan)] = plan
    return list(found.values())


def operands(problem, seed=0):
    """A and B as they are multiplied, in the problem's layout."""
    rng = np.random.default_rng(seed)
    dtype = np.float32 if problem.a == "f32" else np.float64
    batch = (problem.batch,) if problem.batch != 1 else ()
    a, b = (rng.standard_normal(batch + s).astype(dtype) for s in (problem.shape_a, problem.shape_b))
    return [x if letter == "n" else x.swapaxes(-1, -2) for x, letter in zip((a, b), problem.layout)]


def assert_product(c, a, b):
    assert np.all(np.abs(c - reference.product(a, b)) <= reference.error_bound(a, b, dtype=c.dtype))


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_every_kind_of_plan_runs(problem):
    a, b = operands(problem)
    tried = plans(problem, tw.detect())
    assert {p.algorithm for p in tried} >= {"packed"}
    for plan in tried:
        kernel = tw.compile(problem, plan=plan)
        out = np.full((problem.m, problem.n), np.nan, a.dtype)
        assert kernel(a, b, out=out) is out
        assert_product(out, a, b)
        assert np.array_equal(kernel(a, b), out)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_what_is_read_is_what_runs(problem, monkeypatch):
    """The parts of a kernel are what the engine loads for the same operands and plan, no more and no less."""
    for plan in plans(problem, tw.detect()):
        loaded = []

        def load(emit, target, *args, real=host.load, loaded=loaded):
            loaded.append((emit.removeprefix("tilewright.kernels.cpu."), args))
            return real(emit, target, *args)

        with monkeypatch.context() as patch:
            patch.setattr(host, "load", load)
            patch.setattr(engine, "prepared", {})
            patch.setattr(host.host, "_tables", {})
            kernel = tw.compile(problem, plan=plan)
            kernel(*operands(problem))
        assert set(loaded) == set(map(tuple, kernel.parts)), str(plan)


@pytest.mark.parametrize("target", [AVX2, tw.target("x86-avx512"), NEON], ids=lambda t: t.name)
def test_code_for_any_target(target):
    problem = tw.Gemm(100, 90, 70, layout="nt")
    for plan in (tw.plan(problem, target), plans(problem, target)[0]):
        kernel = tw.compile(problem, target, plan)
        names = [f.name for f in kernel.functions]
        assert all(f'@"{name}"' in kernel.llvm for name in names)
        assert all(f"\n{name}:" in kernel.asm for name in names)
        assert target.triple in kernel.llvm
        loop, rows = kernel.resources, kernel.shape.n if plan.swap else kernel.shape.m
        height, vectors = -(-rows // -(-rows // plan.mr)), plan.nr // target.lanes(4)  # panels of equal height
        steps = PACE if plan.algorithm == "packed" and unrolled(height, vectors) else 1  # of k, in the loop
        assert loop.fma == steps * height * vectors
        assert loop.spills == 0
        assert loop.registers <= target.registers


def test_a_foreign_kernel_does_not_run():
    problem = tw.Gemm(20, 30, 40)
    kernel = tw.compile(problem, next(t for t in map(tw.target, ("neon", "x86-avx2")) if not t.runnable))
    with pytest.raises(RuntimeError, match="cannot run on this machine"):
        kernel(*operands(problem))


@pytest.mark.skipif(not AVX2.runnable, reason="no AVX2")
def test_a_forced_target_runs():
    problem = tw.Gemm(50, 70, 60)
    kernel = tw.compile(problem, AVX2)
    assert "zmm" not in kernel.asm
    a, b = operands(problem)
    assert_product(kernel(a, b), a, b)


def test_without_a_plan_it_is_matmuls():
    problem = tw.Gemm(200, 300, 250)
    kernel = tw.compile(problem)
    assert kernel.plan == tw.plan(problem, threads=tw.get_num_threads())
    a, b = operands(problem)
    assert np.array_equal(kernel(a, b), tw.matmul(a, b))
    assert str(kernel.plan) in repr(kernel)


def test_a_plan_may_be_its_text():
    plan = tw.compile(tw.Gemm(64, 64, 64), NEON, "packed 6x8 mc=12 kc=32 nc=16").plan
    assert plan == CpuPlan("packed", 6, 8, 12, 32, 16)


def test_alpha_and_beta():
    problem = tw.Gemm(30, 40, 50, "f64")
    a, b = operands(problem)
    c = np.ones((30, 40))
    tw.compile(problem)(a, b, c, alpha=2, beta=-3)
    np.testing.assert_allclose(c, 2 * (a @ b) - 3)
    with pytest.raises(ValueError, match="out must be given if beta is not 0, and beta is 1"):
        tw.compile(problem)(a, b, beta=1)


def test_a_batch():
    problem = tw.Gemm(20, 30, 40, layout="tn", batch=3)
    a, b = operands(problem)
    np.testing.assert_allclose(tw.compile(problem)(a, b), a @ b, rtol=1e-4, atol=1e-4)
    empty = tw.Gemm(20, 30, 40, batch=0)
    assert tw.compile(empty)(*(np.empty((0, *s), np.float32) for s in ((20, 40), (40, 30)))).shape == (0, 20, 30)


@pytest.mark.parametrize("sizes", [(0, 5, 3), (5, 0, 3), (5, 3, 0)])
def test_empty_products(sizes):
    problem = tw.Gemm(*sizes, layout="tt")
    kernel = tw.compile(problem)
    assert kernel.functions == ()
    assert "no code" in kernel.llvm
    assert "no code" in kernel.asm
    assert np.array_equal(kernel(*operands(problem)), np.zeros(sizes[:2]))
    for attribute in ("resources", "binary", "manifest", "function"):
        with pytest.raises(ValueError, match="empty product"):
            getattr(kernel, attribute)


def mistakes():
    a, b, c = np.ones((20, 40), np.float32), np.ones((30, 40), np.float32).T, np.empty((20, 30), np.float32)
    whole, read_only = np.ones(2000, np.float32), c.copy()
    read_only.flags.writeable = False
    yield "a list", ([[1.0]], b, c), TypeError, "a must be a NumPy array, not list"
    yield "f64", (a.astype("f8"), b, c), TypeError, "a must have dtype float32, as the problem requires, not float64"
    yield "bytes swapped", (a, b.astype(">f4"), c), TypeError, "b must have dtype float32"
    yield "shape", (a[:, :-1], b, c), ValueError, r"a must have shape \(20, 40\), not \(20, 39\)"
    yield "as stored", (a, b.T, c), ValueError, r"b must have shape \(40, 30\), not \(30, 40\); operands .*: pass b.T"
    yield "layout", (a, np.ascontiguousarray(b), c), ValueError, "contiguous columns, as layout 'nt' requires"
    yield "no order", (np.ones((20, 80), np.float32)[:, ::2], b, c), ValueError, "a must have contiguous rows"
    yield "unaligned", (np.empty(3201, "u1")[1:].view("f4").reshape(20, 40), b, c), ValueError, "a must be aligned"
    yield "out's shape", (a, b, c.T), ValueError, r"out must have shape \(20, 30\), not \(30, 20\)"
    yield "out's order", (a, b, np.empty((30, 20), "f4").T), ValueError, "out must have contiguous rows"
    yield "out's dtype", (a, b, np.empty((20, 30), int)), TypeError, "out must have dtype float32"
    yield "read-only", (a, b, read_only), ValueError, "out is read-only"
    yield "overlap", (whole[:800].reshape(20, 40), b, whole[700:1300].reshape(20, 30)), ValueError, "must not overlap"


@pytest.mark.parametrize(("arrays", "error", "words"), [m[1:] for m in mistakes()], ids=[m[0] for m in mistakes()])
def test_operands_that_do_not_fit(arrays, error, words):
    with pytest.raises(error, match=words):
        tw.compile(tw.Gemm(20, 30, 40, layout="nt"))(*arrays)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (CpuPlan("packed", 14, 32, 14, 64, 32), r"14x32 f32 needs 14\*4 \+ 4 \+ 1 = 61 registers, x86-avx2 has 16"),
        (CpuPlan("in_place", 6, 16), "B's columns are contiguous, not its rows"),
        ("packed 6x16", "a packed plan needs block sizes"),
        ("quick", "not a plan: 'quick'"),
    ],
)
def test_plans_that_cannot_run(plan, words):
    with pytest.raises(ValueError, match=words):
        tw.compile(tw.Gemm(20, 30, 40, layout="nt"), AVX2, plan)


FORMATS = [("f16", "f16", "f32"), ("bf16", "e4m3fn", "bf16"), ("i8", "u8", "i32"), ("i16", "i16", "i16"),
           ("u32", "i64", "i64"), ("f32", "f64", "f64"), ("e2m1", "f16", "f32"), ("c64", "c64", "c64"),
           ("f32", "c64", "c64"), ("c128", "c64", "c128"), ("f32", "f32", "c64")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_a_kernel_multiplies_what_matmul_multiplies(formats):
    """To the last bit, where packing converts operands and where they are converted before, with alpha and beta."""
    rng = np.random.default_rng(0)
    for sizes, layout in (((70, 90, 65), "nt"), ((3, 40, 20), "tn"), ((8, 600, 512), "nn")):
        problem = tw.Gemm(*sizes, *formats, layout)
        a, b = (rng.integers(0, 3, shape).astype(tw.formats.FORMATS[f].dtype)
                for shape, f in zip((problem.shape_a, problem.shape_b), formats))
        a, b = (x if letter == "n" else x.T for x, letter in zip((a, b), layout))
        kernel = tw.compile(problem)
        wanted = tw.matmul(a, b, out_dtype=formats[2])
        assert np.array_equal(kernel(a, b), wanted)
        c = np.ones_like(wanted)
        assert np.array_equal(kernel(a, b, c, alpha=2, beta=-1), tw.matmul(a, b, out_dtype=formats[2], alpha=2, beta=-1,
                                                                           c=np.ones_like(wanted)))


def test_what_cannot_be_cast_is_refused():
    with pytest.raises(ValueError, match="out = i32, to which products of f32 and f32 cannot be cast"):
        tw.compile(tw.Gemm(2, 3, 4, "f32", out="i32"))


def test_views_with_a_leading_dimension():
    """Only the order of a matrix is the kernel's business; how far apart its rows lie is not."""
    problem = tw.Gemm(20, 30, 40, layout="tn")
    kernel = tw.compile(problem)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((50, 60)).astype("f4")[5:45, 7:27].T, rng.standard_normal((90, 33)).astype("f4")[::-2]
    b, out = b[:40, :30], np.zeros((25, 64), "f4")[:20, 3:33]
    assert_product(kernel(a, b, out), a, b)
