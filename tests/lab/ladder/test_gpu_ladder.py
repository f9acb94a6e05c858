"""The GPU ladder: the lecture's counts to the element, exact products of every shape, banks, sectors and registers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from bench import readme
from tests.helpers.command_line import said
from tilewright import simulator, targets
from tilewright.compiler import ptxas
from tilewright.compiler.llvm import assembly
from tilewright.ir import Kernel
from tilewright.ir.program import Load
from tilewright.lab.bench import gpu_device, results
from tilewright.lab.bench.cases import Case
from tilewright.lab.bench.suites import ladders
from tilewright.lab.ladder import gpu11_texture
from tilewright.lab.ladder.gpu13_dispatch import choose
from tilewright.lab.ladder.steps import DISPATCH, GPU_STEPS, GPU_VARIANTS, TENSOR_STEPS
from tilewright.lab.measure import measure
from tilewright.problem import Gemm

pytestmark = pytest.mark.sampled

ONE_CTA = (128, 256, 16)  # sizes that are multiples of every step's tile


def integers(rows, columns, ld=None, seed=0):
    """[rows, columns] small whole numbers, in rows of `ld`; what lies between them is no number."""
    whole = np.full((rows, ld or columns), np.nan, np.float32)
    whole[:, :columns] = np.random.default_rng(seed).integers(-4, 5, (rows, columns))
    return whole[:, :columns]


def stride(x):
    return max(x.strides[0] // x.itemsize, x.shape[1])


def run(name, m, n, k, alpha=1.0, beta=0.0, lds=(None, None, None), function=None, **sizes):
    """Simulate a step; C must come out exact, and untouched between its rows. The report."""
    step = GPU_STEPS[name]
    a, b, c = integers(m, k, lds[0]), integers(k, n, lds[1], 1), integers(m, n, lds[2], 2)
    wanted = alpha * (a.astype(np.float64) @ b) + (beta * c.astype(np.float64) if beta else 0)
    if not beta:
        c[:] = np.nan
    a_given, b_given = (texels(a), texels(b)) if step.textures else (a, b)
    arguments = m, n, k, alpha, a_given, stride(a), b_given, stride(b), beta, c, stride(c)
    report = simulator.run(function or step.emit(**sizes), *arguments, grid=step.grid(m, n, **sizes))
    np.testing.assert_array_equal(c, wanted, f"{name} {m} x {n} x {k}")
    if c.base is not None and c.base.shape[1] > n:
        assert np.isnan(c.base[:, n:]).all()
    return report


def texels(x):
    """The memory of a matrix up to its last element, as a texture is bound to it."""
    ld = stride(x)
    whole = np.lib.stride_tricks.as_strided(x, ((x.shape[0] - 1) * ld + x.shape[1],), (x.itemsize,))
    assert whole.size == 4 * gpu11_texture.texels(*x.shape, ld)
    return whole


@cache
def of_one_cta(name):
    """The counts of a step, which several tests read."""
    return run(name, *ONE_CTA)


# ---- what the lecture counts


@pytest.mark.parametrize(("name", "n", "sizes", "a", "b"), [
    *(("naive", n, {"BLOCK": BLOCK}, 1, 1) for n, BLOCK in [(16, 16), (48, 16), (32, 8), (64, 32)]),
    *((name, n, {"V": V, "BLOCK": BLOCK}, V, V if name == "registers" else 1) for name in ("tiled", "registers")
      for n, V, BLOCK in [(32, 2, 16), (64, 4, 16), (64, 4, 8), (128, 8, 16)]),
    *((name, n, {"L": L, "S": S, "V": V}, L, L) for name in ("shared", "coalesced")
      for n, L, S, V in [(32, 32, 8, 2), (64, 32, 8, 4), (64, 64, 16, 8), (128, 128, 8, 8)]),
])
def test_what_a_step_loads(name, n, sizes, a, b):
    """Each element of A once for `a` columns and of B for `b` rows; of shared memory once for V."""
    report = run(name, n, n, n, **sizes)
    assert [report.of(x, "load", "global").elements for x in "ab"] == [n**3 // a, n**3 // b]
    assert report.of(space="global", verb="load").elements == n**3 // a + n**3 // b
    if "L" in sizes:
        assert report.of(space="shared", verb="store").elements == 2 * n**3 // sizes["L"]
        assert report.of(space="shared", verb="load").elements == 2 * n**3 // sizes["V"]
        assert report.of("c", "store").elements == n**2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GPU_STEPS)
def test_every_step_moves_what_it_says(name):
    m, n, k = ONE_CTA
    report, (from_global, from_shared) = of_one_cta(name), GPU_STEPS[name].moves(m, n, k)
    assert report.of(space="global", verb="load").elements == from_global
    assert report.of(space="shared", verb="load").elements == from_shared
    assert report.of("c", "store").elements == m * n
    assert report.instructions["fma"] * 32 == m * n * k
    with_beta = run(name, m, n, k, alpha=2.0, beta=-1.0)
    assert with_beta.of("c", "load").elements == m * n


# ---- every shape


AWKWARD = [(129, 131, 9), (1, 1, 1), (3, 5, 2), (17, 130, 0), (127, 2, 17), (2, 257, 8)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name, step in GPU_STEPS.items() if not step.textures])
def test_awkward_shapes_are_exact(name):
    """With rows apart, alpha and beta; the simulator faults for whatever is touched outside."""
    function = GPU_STEPS[name].emit()
    run(name, *AWKWARD[0], function=function)
    for number, (m, n, k) in enumerate(AWKWARD):
        lds = (k + 3, n + number % 2, n + 1)
        run(name, m, n, k, alpha=-2.0, beta=3.0, lds=lds, function=function)


def test_copies_in_place_of_loads_change_nothing_else():
    """The variant with the tile of step 10: the same loads and passes, exact at the edges."""
    step = GPU_VARIANTS["async128"]
    function, ways = step.emit(), {}
    for m, n, k, beta in ((128, 256, 16, 0.0), (129, 131, 9, 3.0), (1, 1, 1, 0.0)):
        a, b, c = integers(m, k, k + 3), integers(k, n, n + 1, 1), integers(m, n, n + 2, 2)
        wanted = -2.0 * (a.astype(np.float64) @ b) + beta * c
        ways[m] = simulator.run(function, m, n, k, -2.0, a, k + 3, b, n + 1, beta, c, n + 2, grid=step.grid(m, n))
        np.testing.assert_array_equal(c, wanted)
    copied, stored = ways[128], of_one_cta("stored")
    assert conflicts(copied) == {}
    assert copied.instructions["fma"] == stored.instructions["fma"]
    assert copied.of(space="global", verb="load").elements == stored.of(space="global", verb="load").elements


def test_aligned_shapes_through_textures():
    """Edges in every direction, and what is no number behind the rows of A and B."""
    function = GPU_STEPS["texture"].emit()
    for m, n, k in [(1, 4, 4), (3, 8, 12), (129, 132, 20), (128, 260, 4)]:
        run("texture", m, n, k, function=function)
        run("texture", m, n, k, alpha=-2.0, beta=3.0, lds=(k + 4, n + 8, n + 1), function=function)


def test_matrices_stored_by_columns():
    m, n, k = 130, 33, 10
    a, b, c = integers(k, m, 134).T, integers(n, k, 12, 1).T, integers(n, m, 131, 2).T
    wanted = 2 * (a @ b) - c
    simulator.run(GPU_STEPS["stored"].emit(), n, m, k, 2.0, b, 12, a, 134, -1.0, c, 131,
                  grid=GPU_STEPS["stored"].grid(n, m))
    np.testing.assert_array_equal(c, wanted)


def test_tiles_that_threads_cannot_share():
    with pytest.raises(ValueError, match="256 threads cannot share 32 x 4 elements evenly"):
        GPU_STEPS["shared"].emit(L=32, S=4, V=2)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_barrier_left_out_is_a_race(missing, monkeypatch):
    """V3 has two in its loop: one until the tiles are used, one until they are complete."""
    barriers = iter(range(2))
    kept = Kernel.barrier
    monkeypatch.setattr(Kernel, "barrier", lambda k: None if next(barriers) == missing else kept(k))
    function = GPU_STEPS["shared"].emit(L=32, V=4)
    with pytest.raises(simulator.Fault, match=r"(race|uninitialised) at .*[ab]_smem.* by block .* thread"):
        run("shared", 32, 32, 32, function=function, L=32, V=4)


def test_an_edge_without_a_guard_is_out_of_bounds():
    unguarded = GPU_STEPS["shared"].emit()
    for node in unguarded.walk():
        if isinstance(node, Load):
            node.mask = None
    with pytest.raises(simulator.Fault, match=r"out of bounds at gpu04_shared\.py"):
        run("shared", 129, 128, 8, function=unguarded)


# ---- banks and sectors


def conflicts(report):
    """{(array, verb, line of the kernel): passes over the banks beyond the fewest}"""
    return {(site.array, site.verb, site.line.text): t.moved - t.ideal
            for site, t in report.traffic.items() if site.space == "shared" and t.moved > t.ideal}


def test_the_transposed_store_conflicts_without_padding():
    """The article's case: 8 lanes of each pass store to the same 4 banks, until rows are shifted by 4."""
    m, n, k = 128, 128, 16
    naive = run("padded", m, n, k, PAD=0)
    ((array, verb, line),) = conflicts(naive)
    assert (array, verb) == ("a_smem", "store")
    assert "k.store(a_tile.at(" in line
    stores = naive.of("a_smem", "store")
    assert (stores.requests, stores.moved, stores.ideal) == (8 * k // 8, 8 * k // 8 * 32, 8 * k // 8 * 4)
    assert conflicts(run("padded", m, n, k)) == {}


def test_only_v3_has_bank_conflicts():
    """Its lanes are V columns apart: 16 of them read from 4 banks."""
    for name in GPU_STEPS:
        found = conflicts(of_one_cta(name))
        assert {array for array, _, _ in found} == ({"a_smem", "b_smem"} if name == "shared" else set()), name
    loads = of_one_cta("shared").of("b_smem", "load")
    assert loads.moved == 4 * loads.requests


def test_sectors_of_c():
    """What share of the sectors that a store moves it fills."""
    share = {name: of_one_cta(name).of("c", "store").efficiency for name in GPU_STEPS}
    assert share == {"naive": 0.25, "tiled": 0.125, "registers": 0.125, "shared": 0.125, "coalesced": 1.0,
                     "padded": 1.0, "vectors": 0.25, "buffered": 0.25, "warps": 0.25, "stored": 1.0, "texture": 1.0,
                     "async": 1.0}


def test_fewer_instructions_load_from_shared_memory():
    found = {name: of_one_cta(name).instructions["load shared"] for name in ("padded", "vectors")}
    assert found["padded"] == 4 * found["vectors"]


# ---- code


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", GPU_STEPS)
def test_no_step_spills(name, architecture):
    target, function = targets.target(architecture), GPU_STEPS[name].emit()
    used = ptxas.assemble(assembly(function, target), architecture)[1][function.name]
    assert (used.stack, used.spill_stores, used.spill_loads) == (0, 0, 0)
    assert used.shared == function.shared_bytes
    threads = function.threads[0] * function.threads[1]
    wanted = 2 if name in ("buffered", "warps", "stored", "texture") else 1
    assert target.occupancy(threads, used.registers, used.shared) >= wanted


def test_asynchronous_copies_need_ampere():
    with pytest.raises(NotImplementedError, match="sm_75 has no cp_async"):
        assembly(GPU_STEPS["async"].emit(), targets.target("sm_75"))


# ---- the story


def test_the_story_is_told_and_written(tmp_path, monkeypatch):
    """The command itself, with few steps to be quick; from its JSON come the tables of docs/gpu-ladder.md."""
    monkeypatch.setattr(ladders, "GPU_STEPS", {name: GPU_STEPS[name] for name in ("shared", "texture")})
    monkeypatch.setattr(ladders, "TENSOR_STEPS", {"roles": TENSOR_STEPS["roles"]})
    monkeypatch.setenv("COLUMNS", "160")
    json, plot = tmp_path / "ladder.json", tmp_path / "ladder.png"
    output = said("bench", "ladder", "--device", "simulate", "--sizes", 256, "--json", json, "--plot", plot)
    for word in ("V3 shared", "262,144", "2n³/L global, 2n³/V shared", "shared memory", "32.7%"):
        assert word in output
    assert plot.stat().st_size > 10_000
    try:
        assembler = f"ptxas {ptxas.version()}"
    except ptxas.Missing:
        assembler = "none, since ptxas is not installed"
    assert f"Registers and CTAs per SM: {assembler}." in output
    assert results.load(json).extra["ptxas"] == assembler
    shared, _, roles = ladders.counted(results.load(json))
    assert shared.conflicts > 0
    assert (roles.loads, roles.formula) == (roles.expected, "n³/256 + n³/128")
    assert roles.bound == ("multiply-adds", 1.0)
    sentence = readme.step(results.load(json), {"step": "shared"})
    assert "262,144 loads from global memory (2n³/L global, 2n³/V shared: exactly)" in " ".join(sentence.split())
    sentence = readme.step(results.load(json), {"step": "roles"})
    assert "196,608 loads from global memory (n³/256 + n³/128: exactly)" in " ".join(sentence.split())
    with pytest.raises(readme.FigureError, match="there is no step padded"):
        readme.step(results.load(json), {"step": "padded"})
    assert readme.counts(results.load(json), {"of": "memory"}).count("\n") == 5


def timed(*found):
    """A report of products of m = n = k = 1000: (title, seconds, error) of each step."""
    rows = tuple(results.Row(title, error=error) if error else results.Row(title, measure.Sample(seconds, 1))
                 for title, seconds, error in found)
    report = results.Report.start("ladder cuda")
    report.extra["device"] = {"name": "a device"}
    report.results.append(results.Result(Case("ladder", Gemm(1000, 1000, 1000)), 1, "sm_90a", rows))
    return report


def test_times_beside_cublas():
    """Of made-up seconds: rates, shares of cuBLAS's, and what has none."""
    again = timed(
        ("cuBLAS", (1e-4, 1e-4), ""), ("V1 naive", (4e-3, 2e-3, 9e-3), ""),
        ("11 texture", (), "... these matrices are not aligned"), ("V3 shared", (), "1 x 1 x 1 is wrong"))
    assert ladders.table(again.results) == [
        ["TFLOP/s at m = n = k =", "1000"], ["cuBLAS", "20.0"], ["V1 naive", "0.50 (0.025)"], ["V3 shared", "wrong"],
        ["11 texture", "-"]]
    assert results.Report.from_json(again.to_json()) == again
    assert "| V1 naive | 0.50 (0.025) |" in readme.tflops(again, {})


@pytest.mark.parametrize("name", [*GPU_STEPS, DISPATCH, *TENSOR_STEPS])
def test_every_step_on_a_device(name):
    """Whole numbers come out exact in every shape, with rows apart, alpha and beta, and nothing is written beside C."""
    if reason := gpu_device.why_not():
        pytest.skip(reason)
    import torch

    from tilewright.lab.ladder import run_nvidia

    tensor = name in TENSOR_STEPS
    dtype = torch.bfloat16 if tensor else torch.float32
    shapes = [(1, 1, 1), (127, 130, 9), (129, 131, 65), (300, 5, 17), (256, 512, 64), (255, 260, 0)]
    for m, n, k in [(1, 2, 8), (257, 514, 1032), (256, 512, 64), (1000, 1234, 712)] if tensor else shapes:
        for alpha, beta, gap in ((1.0, 0.0, 0), (-2.0, 3.0, 8)):
            a, b = (torch.randint(-4, 5, size, device="cuda").to(dtype)
                    for size in ((m, k + gap), (n, k + gap) if tensor else (k, n + gap)))
            whole = torch.randint(-4, 5, (m, n + 2), device="cuda").to(dtype)
            a, b, c = a[:, :k], b[:, :k if tensor else n], whole[:, :n]
            beside, before = whole[:, n:].clone(), c.double()
            if beta == 0:
                c.fill_(float("nan"))
            where = [at for x in (a, b, c) for at in (x.data_ptr(), x.stride(0))]
            try:
                launch = run_nvidia.prepare(name, m, n, k, *where, alpha=alpha, beta=beta)
            except ValueError:
                continue  # textures cannot look at these
            launch(torch.cuda.current_stream().cuda_stream)
            torch.cuda.synchronize()
            product = a.double() @ (b.T if tensor else b).double()
            wanted = alpha * product + (beta * before if beta else 0)
            assert torch.equal(c, wanted.to(dtype)), (m, n, k, alpha, beta)
            assert torch.equal(whole[:, n:], beside), (m, n, k, alpha, beta)


# ---- the choice by size


def test_choice_by_size_and_alignment():
    hopper, turing = targets.target("sm_90a"), targets.target("sm_75")
    assert choose(hopper, 4096, 4096, 4096, 0, 4096, 512, 4096) == "async"
    assert choose(hopper, 2500, 2500, 1, 0, 1, 0, 2500) == "async"
    assert choose(turing, 4096, 4096, 4096, 0, 4096, 512, 4096) == "texture"
    assert choose(hopper, 2496, 2500, 8, 0, 8, 512, 2500) == "texture"
    assert choose(hopper, 2496, 2500, 7, 0, 8, 512, 2500) == "stored"
    assert choose(hopper, 1000, 1000, 1000, 0, 1000, 16, 1000) == "stored"


def test_alignment():
    fits = {"m": 5, "n": 8, "k": 12, "a": 1024, "lda": 12, "b": 512, "ldb": 16}
    assert gpu11_texture.aligned(**fits)
    for change in ({"n": 7}, {"k": 11}, {"lda": 13}, {"ldb": 18}, {"a": 1040}, {"b": 4}, {"m": 1 << 29}):
        assert not gpu11_texture.aligned(**{**fits, **change}), change
