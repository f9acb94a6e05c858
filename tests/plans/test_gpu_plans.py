"""GPU plans: read back from their text, legal with reasons, and true about the kernels that are made of them."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby, product

import pytest

import tilewright as tw
from tests.helpers.demanding import demanding
from tests.helpers.gemms import right
from tilewright.inspect.resources import ptx_loop
from tilewright.plans import gpu_shape
from tilewright.plans.amd import AmdPlan
from tilewright.plans.nvidia import F32, SMALL, NvidiaPlan, candidates, choose, cost, ranked, shape_of

pytestmark = pytest.mark.sampled

H200, A100, T4, RTX3090 = (tw.target(name) for name in ("sm_90a", "sm_80", "sm_75", "sm_86"))
TARGETS = [H200, A100, RTX3090, T4]
SHAPES = [
    tw.Gemm(4096, 4096, 4096),
    tw.Gemm(2039, 2039, 2039, layout="nt"),
    tw.Gemm(16, 14336, 4096, layout="tn"),
    tw.Gemm(1000, 3, 70),
    tw.Gemm(1, 4096, 4096, layout="nt"),
    tw.Gemm(4100, 1, 33),
    tw.Gemm(1024, 1024, 1024, "f64", layout="tt"),
    tw.Gemm(5, 6, 7, "f64"),
]


def named(x):
    return getattr(x, "name", None) or str(x)


@pytest.mark.parametrize("target", TARGETS, ids=named)
def test_read_back(target):
    for problem in SHAPES:
        for plan in candidates(shape_of(problem), target):
            assert NvidiaPlan.parse(str(plan)) == plan


def test_words_of_earlier_versions_are_read():
    plan = NvidiaPlan.parse("simt 64x64x8 warp=32x32 thread=8x4 stages=2 copy=registers early")
    assert plan.prefetch_first
    assert NvidiaPlan.parse(str(plan)) == plan
    assert AmdPlan.parse("mfma 64x64x64 wave=32x32 copy=direct").copy == "lds"


def test_a_plan_that_cannot_run_is_printed_as_it_is():
    text = "simt 64x64x8 warp=32x32 thread=0x4 stages=2 copy=registers"
    assert str(NvidiaPlan.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "simt", "packed 14x32", "simt 128x128 warp=32x64", "simt 1x2x3 warp=1", "simt 8x8x8 warp=8x8 speed=9",
             "simt 64x64x8 warp=32x32 copy", "simt 64x64x8 warp=32x32 stages", "simt 64x64x8 warp=32x32 tail=0"]
)
def test_no_plan(text):
    with pytest.raises(ValueError, match="not a plan for an NVIDIA GPU"):
        NvidiaPlan.parse(text)


@pytest.mark.parametrize(("problem", "target"), list(product(SHAPES, TARGETS)), ids=named)
def test_the_choice_is_legal_and_the_kernel_is_as_it_says(problem, target):
    plan = tw.plan(problem, target)
    assert plan.violations(problem, target) == []
    kernel = tw.compile(problem, target, plan)
    (launch,) = kernel.launches
    function = launch.function
    assert function.threads == (plan.threads, 1)
    assert function.shared_bytes <= min(plan.shared(shape_of(problem)) + 4, target.smem_cta)
    assert kernel.manifest["shared"] == function.shared_bytes
    ctas = launch.grid[0] * launch.grid[1] * launch.grid[2]
    assert ctas == plan.tiles(problem.m, problem.n) * plan.split_k or plan.tail


def test_what_cannot_be_aligned_is_not_moved_in_vectors():
    for sizes, layout, expected in (
        ((64, 64, 64), "nn", 4),
        ((63, 64, 64), "nn", 4),
        ((63, 64, 64), "tn", 1),
        ((64, 66, 64), "nt", 2),
        ((64, 64, 62), "nt", 2),
        ((64, 64, 61), "tn", 4),
        ((64, 61, 64), "tt", 1),
    ):
        assert shape_of(tw.Gemm(*sizes, layout=layout)).vector == expected, (sizes, layout)
    assert shape_of(tw.Gemm(64, 64, 64), [(8, 256), (0, 256), (0, 256)]).vector == 2
    assert shape_of(tw.Gemm(64, 64, 64, "f64")).vector == 2


PLAN = F32[0]
BROKEN = {
    "do not make 64x64": {"thread_n": 4},
    "is not a multiple of warp tiles": {"warp_m": 48},
    "through registers have 2 stages": {"stages": 3},
    "and the operands allow 1": {"vector": 4},
    "have 1024": {"cta_m": 1024, "cta_n": 512},
    "of shared memory": {"cta_k": 256},
    "more than the 65536": {"registers": 250, "cta_m": 256},
    "cannot be combined": {"split_k": 2, "tail": True},
    "must not be less than 1": {"slices": 0},
    "do not divide cta_k": {"slices": 3},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_reasons(reason):
    odd = tw.Gemm(511, 511, 511)
    assert PLAN.violations(odd, H200) == []
    found = replace(PLAN, **BROKEN[reason]).violations(odd, H200)
    assert any(reason in sentence for sentence in found), found
    with pytest.raises(ValueError, match=reason):
        tw.compile(odd, H200, replace(PLAN, **BROKEN[reason]))


def test_what_a_chip_lacks():
    asynchronous = replace(PLAN, copy="async", stages=3)
    assert any("no asynchronous copies" in x for x in asynchronous.violations(tw.Gemm(64, 64, 64), T4))
    assert all(plan.copy == "registers" for plan in ranked(shape_of(tw.Gemm(512, 512, 512)), T4))
    assert choose(shape_of(tw.Gemm(2048, 2048, 2048, "f64")), H200).algorithm == "dmma"
    assert choose(shape_of(tw.Gemm(2048, 2048, 2048, "f64")), RTX3090).algorithm == "simt"


@pytest.mark.parametrize("n", [1024, 3072, 5120, 8192])
def test_tails_are_divided_completely(n):
    plan = replace(PLAN, tail=True)
    tiles, shape = plan.tiles(n, n), shape_of(tw.Gemm(n, n, n))
    whole, parts = plan.tail_split(shape, H200)
    assert 0 <= whole <= tiles
    assert whole % (H200.sms * plan.resident(shape, H200)) == 0 or whole == tiles
    assert plan.grid(shape, H200)[0] == whole + (tiles - whole) * parts


def test_costs_know_rounds():
    """288 tiles of 128x256 need three rounds of 132 multiprocessors; divided, the last one is short."""
    shape = shape_of(tw.Gemm(3072, 3072, 3072))
    assert cost(shape, replace(PLAN, tail=True), H200).seconds < 0.85 * cost(shape, PLAN, H200).seconds
    few = shape_of(tw.Gemm(64, 4096, 4096))
    assert choose(few, H200).split_k > 1 or choose(few, H200).tail


def test_adding_up_parts_costs_what_was_measured():
    """µs on an H200, by bench/h200.py: of what one CTA reads alone it takes 20 to 27."""
    for plan, shape, measured in (
        (replace(PLAN, split_k=8), (128, 4096, 4096), 104),
        (replace(PLAN, cta_m=64, registers=240, split_k=16), (64, 4096, 4096), 69),
    ):
        predicted = cost(shape_of(tw.Gemm(*shape)), replace(plan, vector=4), H200).seconds * 1e6
        assert 0.8 < predicted / measured < 1.2


def test_one_row_or_column_is_gemv():
    for problem in (tw.Gemm(1, 100, 50), tw.Gemm(100, 1, 50, "f64", layout="tt")):
        assert tw.plan(problem, A100).algorithm == "gemv"


@pytest.mark.parametrize(("target", "size", "kinds", "layout", "begins"), [
    (H200, (1, 4096, 4096), "bf16", "nt", "gemv 1x8x8"), (H200, (8, 4096, 4096), "bf16", "nt", "wgmma 8x64x"),
    (H200, (16, 28672, 8192), "bf16", "nn", "wgmma 16x128x64"), (H200, (32, 4096, 4096), "i8", "nt", "wgmma 32x64x"),
    (H200, (24, 4096, 4096), "f16", "tn", "wgmma 32x64x"), (H200, (64, 4096, 4096), "bf16", "nn", "wgmma 64x"),
    (H200, (4, 4096, 4096), "f32", "nn", "gemv 4x"), (H200, (4096, 4, 4096), "f32", "nt", "gemv 32x4x8"),
    (H200, (3, 4096, 4096), "f32", "tt", "gemv 4x32x8"), (A100, (5, 4096, 4096), "i8", "nt", "gemv 8x16x8"),
    (A100, (16, 4096, 4096), "bf16", "nn", "mma 16x"), (T4, (8, 4096, 4096), "f16", "nt", "mma 16x"),
])
def test_few_rows_or_columns(target, size, kinds, layout, begins):
    """What was measured to be the best, or nearly; `swap` up to 32 rows."""
    plan = tw.plan(tw.Gemm(*size, kinds, kinds, "i32" if kinds == "i8" else kinds, layout), target)
    assert str(plan).startswith(begins), plan
    assert plan.swap == (plan.algorithm == "wgmma" and size[0] <= 32)


@pytest.mark.parametrize(("problem", "chosen"), [
    (tw.Gemm(5120, 1, 3072), "gemv 8x1x8 stages=2 copy=registers vector=4"),
    (tw.Gemm(1, 4096, 4096), "gemv 1x32x32 stages=2 copy=registers vector=4"),
    (tw.Gemm(1, 5000, 3000), "gemv 1x40x30 stages=2 copy=registers vector=4"),      # 125 CTAs on 132 multiprocessors
    (tw.Gemm(512, 512, 512), "simt 16x128x32 warp=16x32 thread=4x4 stages=4 vector=4"),
    (tw.Gemm(512, 512, 512, layout="nt"),
     "simt 32x64x32 warp=32x64 thread=8x8 stages=3 vector=4 order=columns as_stored slices=4"),
    (tw.Gemm(128, 4096, 1024), "simt 64x128x16 warp=32x64 thread=8x8 stages=2 copy=registers vector=4 order=columns "
     "prefetch_first split_k=4"),
], ids=str)
def test_chosen_where_an_h200_has_been_asked(problem, chosen):
    """All multiprocessors have a share, and none is divided along k."""
    assert str(tw.plan(problem, H200)) == chosen


@pytest.mark.parametrize(("text", "reason"), [
    ("gemv 2x256x8 stages=2 copy=registers vector=8", "C is 3x4096, the plan's tile 2x256"),
    ("gemv 3x256x8 stages=2 copy=registers vector=8", "gemv computes 1, 2, 4, 8, 16, 32 rows or columns of C at mo"),
    ("gemv 8x16x8 stages=2 copy=registers vector=8", "needs a chip from sm_80 on, layout nt and vector=8, not sm_90a"),
    ("gemv 4x32x33 stages=2 copy=registers vector=8", "cta_k, the warps of gemv, must be at most 32, not 33"),
    ("gemv 8x16x7 stages=2 copy=registers vector=8", "must be at most 32, and a power of two, not 7"),
    ("gemv 4x24x8 stages=2 copy=registers vector=8", "8 times at most 32, a divisor of 256 threads, elements of"),
    ("gemv 4x256x8 stages=2 vector=8", "copy=async is for gemv of 8 vectors and more, by matrix instruction"),
    ("gemv 4x256x8 stages=2 copy=registers vector=16", "vector = 16 elements of a matrix are loaded at once, and the"),
])
def test_reasons_of_gemv(text, reason):
    assert any(reason in each for each in NvidiaPlan.parse(text).violations(tw.Gemm(3, 4096, 512, "bf16"), H200))


@pytest.mark.parametrize(("layout", "m", "n"), [("tn", 4, 132), ("nn", 132, 4), ("tn", 132, 2)])
@pytest.mark.parametrize(("gap", "before", "most"), [(0, 0, 4), (4, 4, 4), (2, 2, 2), (0, 1, 1), (1, 0, 1)])
def test_vectors_side_by_side_are_loaded_as_far_as_they_are_aligned(layout, m, n, gap, before, most):
    """The plan says how many, and one for operands that are aligned is refused for others: the kernel depends on the
    plan and on the problem alone."""
    k, count = 152, min(m, n)
    vectors, matrix = (4*before, 4*(count + gap)), (0, 4*k if layout == "nn" else 4*132)
    shape = gpu_shape.shape("f32", "f32", "f32", m, n, k, layout,
                      [vectors, matrix, (0, 4*n)] if m < n else [matrix, vectors, (0, 4*n)])
    chosen = [plan for plan in candidates(shape, H200) if plan.algorithm == "gemv"]
    wide = min(count, most)
    assert {plan.vector_b for plan in chosen if count == min(plan.cta_m, plan.cta_n)} == {wide if wide > 1 else 0}
    for wider in {2, 4} - {x for x in (2, 4) if x <= wide}:
        assert any(f"vector_b = {wider} elements" in why for why in replace(chosen[0], vector_b=wider).violations(
            shape, H200))
    assert not chosen[0].violations(shape, H200)


@pytest.mark.parametrize("tile", [F32[0], SMALL["n"][0]], ids=str)
@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("early", [True, False])
def test_early_copies_are_held_by_a_warp_barrier(tile, vector, early):
    """Between the loads of the next tile and the multiply-adds of this one; without it ptxas moves the loads down."""
    kernel = tw.compile(tw.Gemm(4096, 4096, 4096), H200, replace(tile, vector=vector, prefetch_first=early))
    loop = ptx_loop(kernel.asm).text
    found = re.findall(r"ld\.global|bar\.warp\.sync|fma\.", loop)
    turns = [kind for kind, _ in groupby(found)]                        # a loop, so the last comes before the first
    if turns[0] == turns[-1]:
        turns.pop()
    first = turns.index("ld.global")
    assert turns[first:] + turns[:first] == (["ld.global", "bar.warp.sync", "fma."] if early else ["ld.global", "fma."])
    assert found.count("bar.warp.sync") == early
    assert found.count("ld.global") == (tile.cta_m + tile.cta_n) * tile.cta_k // tile.threads // vector


AWKWARD = [(70, 66, 40), (1, 130, 37), (33, 1, 64), (128, 64, 16), (3, 2, 1)]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("target", [H200, T4], ids=named)
def test_products_by_the_plan_that_is_chosen(layout, dtype, target):
    for m, n, k in AWKWARD:
        right(tw.compile(tw.Gemm(m, n, k, dtype, layout=layout), target))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("index", range(len(F32)))
def test_every_tile_of_the_planner_multiplies(index):
    """Not only those that small problems choose; whole, with parts of k, or with a tail, in turn."""
    m, n, k = 130, 98, 18
    options = ({}, {"split_k": 2}, {"tail": True})[index % 3]
    if F32[index].cta_k * options.get("split_k", 1) > k:
        options = {}
    right(tw.compile(tw.Gemm(m, n, k), H200, replace(F32[index], vector=2, **options)), alpha=2.0, beta=-1.0)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("size", "target"), [(4096, H200), (4096, A100), (4095, H200)], ids=named)
def test_no_candidate_of_the_planner_spills(size, target, dtype):
    """4096 for the widest vectors, 4095 for copies of single elements."""
    problem = tw.Gemm(size, size, size, dtype)
    parts = (1, 4) if (size, target) == (4096, H200) else (1,)
    plans = demanding([p for p in candidates(shape_of(problem), target) if p.split_k in parts], problem, target)
    assert len(plans) >= 2
    for plan in plans:
        usage = tw.compile(problem, target, plan).resources
        assert usage.spill_stores == usage.stack == 0, plan


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_plans_of_batches(name):
    """All matrices count: no parts of k where there are enough of them, and tiles that are not mostly empty."""
    for batch, n in ((1000, 16), (256, 32), (64, 64), (1000, 128)):
        plan = choose(shape_of(tw.Gemm(n, n, n, name, batch=batch)), H200)
        assert plan.split_k == 1
        assert plan.tiles(n, n, batch) >= min(batch, H200.sms)
        assert plan.cta_m * plan.cta_n <= n * n


def test_c_is_stored_in_vectors_of_its_own():
    """With k = 2, copies of A are narrow; stores of half a sector took twice as long."""
    plan = choose(shape_of(tw.Gemm(2048, 2048, 2)), H200)
    assert (plan.vector, plan.vector_c) == (2, 4)
    (reason,) = plan.violations(tw.Gemm(2048, 2046, 2), H200)
    assert reason == "vector_c = 4 elements of C are stored at once, and C allows 2."
    assert choose(shape_of(tw.Gemm(2048, 2048, 2048)), H200).vector_c == 0


def test_parts_of_k_cost_their_own_first_tile_and_are_added_up_by_the_warps_that_hold_sums():
    """An H200: 640^3 with 16 parts took 2.1 times as long as undivided where one warp in four holds sums."""
    problem = tw.Gemm(640, 640, 640)
    shape = shape_of(problem)
    words = "warp=32x64 thread=8x8 stages=3 vector=4 order=columns as_stored slices=4"

    def seconds(split, words=words, tile="32x64x32"):
        plan = NvidiaPlan.parse(f"simt {tile} {words}" + f" split_k={split}" * (split > 1))
        assert not plan.violations(shape, H200)
        return cost(shape, plan, H200).seconds
    assert seconds(16) > 1.7 * seconds(1)
    assert [seconds(split) for split in (4, 8, 16)] == sorted(seconds(split) for split in (4, 8, 16))
    one, four = (seconds(split, "warp=16x32 thread=4x4 stages=4 vector=4", "16x128x32") for split in (2, 16))
    assert four - one < seconds(16) - seconds(2)            # four warps hold sums of as many elements there
