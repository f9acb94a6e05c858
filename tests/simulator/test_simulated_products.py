"""tilewright.simulate with kernels of GPUs: whole products, reports as people read them, occupancy, command line."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.command_line import call
from tests.simulator.test_simulated_gemm import CTA, sgemm
from tilewright import simulator
from tilewright.compiler import ptxas
from tilewright.compiler.ptxas import Usage
from tilewright.ir import Kernel, Texture, f32, i32, i64, ptr
from tilewright.lab.ladder.steps import GPU_STEPS
from tilewright.simulator import Fault
from tilewright.simulator.occupancy import occupancy

H200 = tw.target("sm_90a")
CTA_TILE = 16


# ---- what `compile` makes

def parts_of_k(splits, textures=False, forget=None):
    """C = alpha A @ B + beta C by CTAs of 16 x 16 threads, an element each; along z they share k, and the last to come
    adds up. `forget` plants a mistake."""
    params = {"m": i32, "n": i32, "k": i32, "alpha": f32, "a": Texture(f32) if textures else ptr(f32), "lda": i64,
              "b": ptr(f32), "ldb": i64, "beta": f32, "c": ptr(f32), "ldc": i64,
              "workspace": ptr(f32), "counters": ptr(i32)}
    k = Kernel("parts_of_k", threads=(CTA_TILE, CTA_TILE), **params)
    m, n, depth, alpha, a, lda, b, ldb, beta, c, ldc, workspace, counters = k.args
    (tx, ty), (bx, by), part = k.thread, k.block, k.block_z
    i, j = by * CTA_TILE + ty, bx * CTA_TILE + tx
    inside = (i < m) & (j < n)
    ticket = k.smem("ticket", (1,), i32)
    share = k.ceil_div(depth, splits)
    acc = k.variable(f32, 0.0)
    row, column = k.min(i, m - 1), k.min(j, n - 1)
    with k.loop(k.min(depth, (part + 1) * share), start=part * share) as p:
        if textures:
            at = row * k.cast(lda, i32) + p
            texel = k.fetch(a, at // 4)
            x = k.select(at % 4 == 0, texel[0], k.select(at % 4 == 1, texel[1],
                         k.select(at % 4 == 2, texel[2], texel[3])))
        else:
            x = a.view(lda, 1)[row, p]
        acc.set(k.fma(x, b.view(ldb, 1)[p, column], acc.get()))
    gx, gy = k.grid
    tile, me = by * gx + bx, ty * CTA_TILE + tx
    parts = workspace.view(gx * gy * CTA_TILE**2, CTA_TILE**2, 1)
    parts[part, tile, me] = acc.get()
    k.barrier()
    with k.when(me == 0):
        if forget != "fence":
            k.fence_device()
        ticket[0] = k.atomic_add(counters + tile, 1, "monotonic")
    k.barrier()
    with k.when(ticket[0] == splits - 1):
        k.fence_device()
        acc.set(0.0)
        with k.loop(splits) as s:
            acc.set(acc.get() + parts[s, tile, me])
        with k.when(inside if forget != "column" else inside & (j < n - 1)):
            result = k.variable(f32, alpha * acc.get())
            with k.when(beta != 0 if forget != "beta" else beta <= 1):
                result.set(k.fma(beta, c.view(ldc, 1)[i, j], result.get()))
            c.view(ldc, 1)[i, j] = result.get()
        if forget != "counters":
            with k.when(me == 0):
                counters[tile] = 0
    return k.function


def compiled(problem, splits=3, **options):
    """A kernel as `compile` makes it for a GPU."""
    x, y = -(-problem.n // CTA_TILE), -(-problem.m // CTA_TILE)
    function = parts_of_k(splits, **options)
    launch = SimpleNamespace(function=function, grid=(x, y, splits), shared_bytes=function.shared_bytes,
                             workspace=4 * splits * x * y * CTA_TILE**2, counters=4 * x * y, more=(), at=(),
                             zero=(0, 0))
    return kernel_of(problem=problem, target=H200, launches=(launch,), resources=Usage(40, 4, 0, 0, 0))


def kernel_of(**members):
    kernel = SimpleNamespace(**members)
    kernel.inner = kernel
    return kernel


def matrices(problem):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in (problem.shape_a, problem.shape_b))
    a, b = (x.T if letter == "t" else x for x, letter in zip((a, b), problem.layout))
    return a, b, rng.integers(-4, 5, (problem.m, problem.n)).astype(np.float32)


@pytest.mark.parametrize("textures", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-2.0, 0.5)])
def test_a_whole_product(alpha, beta, textures):
    problem = tw.Gemm(35, 40, 21)
    a, b, c = matrices(problem)
    expected = alpha * (a @ b) + beta * c
    report = tw.simulate(compiled(problem, textures=textures), a, b, c, alpha=alpha, beta=beta)
    assert report.result is c
    np.testing.assert_array_equal(c, expected)
    assert report.of("a").distinct >= a.nbytes
    assert report.of("c", "load").elements == (c.size if beta else 0)
    assert report.of("counters", "atomic").elements == 3 * 3 * 3
    assert report.occupancy == occupancy(compiled(problem).launches[0].function, H200, Usage(40, 4, 0, 0, 0))
    wide = np.zeros((35, 64), np.float32)
    tw.simulate(compiled(problem), a, b, wide[:, :40])          # rows further apart
    np.testing.assert_array_equal(wide[:, :40], a @ b)
    assert not wide[:, 40:].any()
    by_columns = np.zeros((35, 40), np.float32, order="F")
    tw.simulate(compiled(problem), a, b, out=by_columns)
    np.testing.assert_array_equal(by_columns, a @ b)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("forget", "kind", "message"), [
    ("fence", "race", r"load of workspace\[\d+\] by .*: written .* by block \(0, 0, \d\)"),
    ("column", "unwritten", r"element \(0, 39\) of c has not been written"),
    ("beta", "uninitialised", r"load of c\[0\]"),
    ("counters", "counters", "the counters are not 0 again"),
])
def test_mistakes_in_whole_products(forget, kind, message, together, monkeypatch):
    if not together:
        monkeypatch.setattr(simulator.machine, "TOGETHER", 1)
    problem = tw.Gemm(35, 40, 21)
    with pytest.raises(Fault, match=message) as caught:
        tw.simulate(compiled(problem, forget=forget), *matrices(problem)[:2])
    assert caught.value.kind == kind


def test_what_simulate_takes():
    problem = tw.Gemm(8, 8, 8)
    kernel, (a, b, c) = compiled(problem), matrices(problem)
    with pytest.raises(TypeError, match="on a, b and"):
        tw.simulate(kernel, a)
    with pytest.raises(TypeError, match="a compiled kernel has its own"):
        tw.simulate(kernel, a, b, grid=(1, 1))
    with pytest.raises(TypeError, match="in order"):
        tw.simulate(sgemm(), 1, beta=2.0)
    with pytest.raises(ValueError, match=r"b must have shape \(8, 8\)"):
        tw.simulate(kernel, a, b[:4])
    empty = kernel_of(problem=problem, target=H200, launches=())
    np.testing.assert_array_equal(tw.simulate(empty, a, b, c.copy(), beta=2.0).result, 2 * c)


# ---- a recorded kernel, and the report

def run_sgemm(**options):
    a, b = np.random.default_rng(0).integers(-4, 5, (2, CTA, CTA)).astype(np.float32)
    c = np.zeros((CTA, CTA), np.float32)
    report = tw.simulate(sgemm(), CTA, CTA, a, b, simulator.uninitialised(c), **options)
    np.testing.assert_array_equal(c, a @ b)
    return report


def test_the_report_as_text():
    report = run_sgemm()
    tables = [part.splitlines() for part in str(report).split("\n\n")]
    assert [table[0].split()[:2] for table in tables] == [["global", "memory"], ["shared", "memory"],
                                                          ["instructions:", f"{8 * 64 * CTA:,}"]]
    assert "efficiency" in tables[0][0]
    assert "conflicts" in tables[1][0]
    loads = report.of("a", "load")
    (row,) = (line for line in tables[0] if " a " in line and "load" in line)
    assert row.startswith("test_simulated_gemm.py:")
    counts = loads.requests, loads.elements, loads.bytes, loads.distinct, loads.moved
    assert row.split()[3:8] == [f"{n:,}" for n in counts]
    assert "100%" in row
    assert "k.load(a_gmem.at(" in row
    (total,) = (line for line in tables[1] if line.startswith("total") and "load" in line)
    shared = report.of(space="shared", verb="load")
    counts = shared.requests, shared.elements, shared.bytes, shared.distinct, shared.moved, shared.conflicts
    assert total.split()[1:] == ["load", *(f"{n:,}" for n in counts)]
    assert str(report) == str(run_sgemm())                      # the same every time


def test_occupancy():
    function = sgemm()
    full = occupancy(function, H200, Usage(32, 0, 0, 0, 0))
    assert (full.ctas, full.warps, full.fraction, full.limit) == (8, 64, 1.0, "threads")
    narrow = occupancy(function, H200, Usage(128, 0, 0, 4, 8))
    assert (narrow.ctas, narrow.warps, narrow.limit, narrow.spills) == (2, 16, "registers", 12)
    assert "2 CTAs of 256 threads on a multiprocessor, 16 of 64 warps (25%), limited by registers" in str(narrow)
    assert "12 bytes of spills" in str(narrow)
    k = Kernel("roomy", threads=64, x=ptr(f32))
    k.smem("space", (20 * 1024,), f32)
    roomy = occupancy(k.function, H200, Usage(32, 0, 0, 0, 0))
    assert (roomy.ctas, roomy.limit) == (2, "shared memory")


def test_occupancy_of_a_recorded_kernel():
    ptxas.find()
    report = run_sgemm(target=H200)
    assert report.occupancy is not None
    assert report.occupancy.ctas >= 1
    assert f"occupancy: {report.occupancy}" in str(report)


# ---- tilewright simulate

def cli(*words):
    return call("simulate", *words)


@pytest.mark.parametrize("step", ["naive", list(GPU_STEPS)[-1]])
def test_steps_of_the_ladder(step):
    """The command line runs the first and the last; tests/lab/ladder/test_gpu_ladder.py has all of them exact."""
    done = cli(36, 44, 20, "--target", "sm_90a", "--step", step, "--beta", 2)
    assert done.exit_code == 0, done.output
    assert "global memory" in done.output
    assert "the product is exact" in done.output


def test_a_cpu_kernel_on_the_command_line():
    done = cli(20, 40, 9, "--target", "x86-avx2", "--layout", "tn", "--dtype", "f64")
    assert done.exit_code == 0, done.output
    assert "gemm_f64_tn_20x40x9 on x86-avx2" in done.output
    assert "64-byte lines" in done.output


@pytest.mark.parametrize(("words", "message"), [
    (("--step", "warps"), "there is no step 'warps' of the CPU ladder, which is x86-avx2's; the steps are naive"),
    (("--step", "nonsense", "-t", "sm_80"), "there is no step 'nonsense' of the GPU ladder, which is sm_80's"),
    (("--step", "naive", "-t", "sm_80", "-l", "nt"), "--dtype f32 --layout nn"),
])
def test_bad_input(words, message):
    target = () if "-t" in words else ("-t", "x86-avx2")
    done = cli(8, 8, 8, *target, *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_problem_that_would_take_long():
    done = cli(4096, 4096, 4096, "-t", "sm_80", "--step", "naive")
    assert done.exit_code == 2
    assert "at most 2e+09, or more with --anyway" in done.stderr
