"""Plans by Hopper's warpgroups: what they are offered for, why they cannot run, and that the kernel is as they say."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright import formats
from tilewright.plans import asked, gpu_shape, wgmma_model, wgmma_residuals
from tilewright.plans.nvidia import candidates, choose, cost, peak
from tilewright.plans.nvidia_plan import NvidiaPlan

H200 = tw.target("sm_90a")
PLAN = NvidiaPlan.parse("wgmma 128x256x64 stages=4 warpgroups=2 cluster=2x1 vector_c=2 store=tma")


def shape_of(*args, at=None, **options):
    return gpu_shape.shape_of(tw.Gemm(*args, **options), at)


def test_the_text():
    assert str(PLAN) == "wgmma 128x256x64 stages=4 warpgroups=2 cluster=2x1 vector_c=2 store=tma"
    other = replace(PLAN, pingpong=True, cluster_m=1, promote=128, group_m=4)
    assert str(other) == "wgmma 128x256x64 stages=4 warpgroups=2 pingpong vector_c=2 store=tma promote=128 group_m=4"
    assert NvidiaPlan.parse(str(other)) == other


@pytest.mark.parametrize(("kinds", "layout", "offered"), [
    (("bf16", "bf16", "f32"), "nn", True), (("f16", "f16", "f16"), "tt", True), (("i8", "u8", "i32"), "nt", True),
    (("i8", "i8", "i32"), "nn", False), (("e4m3fn", "e5m2", "bf16"), "nt", True), (("f32", "f32", "f32"), "nt", False),
])
def test_what_it_is_offered_for(kinds, layout, offered):
    """A large product takes it, and where no map describes an operand, a copy of the operand; on another chip not."""
    shape = shape_of(4096, 4096, 4096, *kinds, layout)
    plan = choose(shape, H200)
    assert (plan.algorithm == "wgmma" and plan.copied == "none") == offered
    legal = [p for p in candidates(shape, H200)
             if p.algorithm == "wgmma" and p.copied == "none" and not p.violations(shape, H200)]
    assert bool(legal) == offered
    if offered:
        assert {p.promote for p in legal} == {128 if kinds[0].startswith("e") else 0}
        assert cost(shape, plan, H200).seconds > 2 * 4096**3 / peak(shape, plan, H200)
        at = [(0, 4099 * gpu_shape.bits_of(x) // 8) for x in kinds]
        assert choose(shape_of(4096, 4096, 4096, *kinds, layout, at=at), H200).copied == "ab"
    for chip in ("sm_80", "sm_89"):
        (reason,) = PLAN.violations(shape_of(4096, 4096, 4096, "f16"), tw.target(chip))
        assert reason == f"{chip} lacks the matrix instructions of Hopper's warpgroups."


@pytest.mark.parametrize(("rows", "aligned"), [
    (4099, 2), (4104, 16), (4100, 8), (64, 1), (0, 1), (-4104, 1), (1 << 41, 1)])
def test_what_a_map_describes(rows, aligned):
    """Rows so many elements of 2 bytes apart, of which a row has 4095: its length does not matter."""
    shape = shape_of(512, 512, 4095, "bf16", at=[(0, 2 * rows), (0, 1024), (0, 1024)])
    assert (shape.align_a, shape.align_b, shape.vector_a) == (aligned, 16, 1)


def test_what_a_map_describes_in_batches():
    for stride, aligned in ((0, 16), (1 << 14, 16), ((1 << 14) + 8, 8), (16, 1), (-(1 << 14), 1)):
        place = [(0, 128, stride)] * 3
        found = gpu_shape.shape("bf16", "bf16", "bf16", 64, 64, 64, "nn", place, 3)
        assert (found.align_a, found.align_b, found.align_c) == (aligned,) * 3
    assert shape_of(1, 8, 8, "bf16").align_a == 16
    assert shape_of(1, 8, 4, "bf16", batch=2).align_a == 8
    assert shape_of(1, 8, 4, "bf16").align_a == 16                  # no row follows
    kinds, rest = ("bf16", "bf16", "bf16"), [(0, 16), (0, 16)]
    wide, other = (shape_of(8, 8, 4, *kinds, at=[(0, apart), *rest]).key[0] for apart in (16, 24))
    assert (wide, other) == ("bf16 vector=4x8x8 near=1024x1024 align=16x16x16 pitch=16x16", "bf16")


@pytest.mark.parametrize(("apart", "pitch"), [(4096, 128), (4128, 64), (4112, 32), (4104, 16), (4097, 2)])
def test_rows_that_begin_within_a_cache_line_take_longer(apart, pitch):
    """Rows of A and B so many elements of 2 bytes apart."""
    near, far = (shape_of(4096, 4096, 4096, *["bf16"] * 3, at=[(0, 2*x), (0, 2*x), (0, 8192)]) for x in (apart, 4096))
    assert (near.pitch_a, near.pitch_b) == (pitch, pitch)
    assert (far.pitch_a, far.pitch_b) == (128, 128)
    plan = asked.plan("wgmma 64x64x64 stages=8 warpgroups=1 vector_c=2 store=tma", H200)
    longer = cost(near, plan, H200).seconds / cost(far, plan, H200).seconds
    assert longer == 1.0 if pitch == 128 else longer > 1.02
    assert shape_of(1, 4096, 4097, "bf16").pitch_a == 128                       # no row follows


REASONS = {
    "A must begin at a multiple of 16 bytes": {"k": 508},
    "store=tma needs C and its rows at multiples of 16": {"n": 510, "layout": "nt"},
    "wgmma multiplies i8 with k contiguous in A and B, layout nt, not nn": {"a": "i8", "out": "i32"},
    "wgmma multiplies f16, bf16, i8, u8, e4m3fn, e5m2 and tf32, and this is f32 by f32": {"a": "f32"},
    "copy must be async for wgmma": {"copy": "registers"},
    "slices must be 1 for wgmma": {"slices": 2},
    "split_k = 9 exceeds the number of tiles along k": {"split_k": 9},
    "split_k and tail cannot be combined": {"split_k": 2, "tail": True},
    "with cluster_k, cluster must be 1x1, parts 1, and there can be no split_k or tail": {"cluster_k": 2},
    "cta_n must be a multiple of 16 with cluster_k = 2, not 200": {"cluster_k": 2, "cta_n": 200, "layout": "nt"},
    "cluster_k = 4 exceeds the number of tiles along k": {"cluster_k": 4, "k": 192},
    "needs cta_n to be a multiple of 64 bytes of C, and 48": {"cluster_k": 2, "cta_n": 48, "a": "f16", "layout": "nt"},
    "warpgroups is 0, and must not be less than 1": {"warpgroups": 0},
    "cta_m is 512, and must not be more than 256": {"cta_m": 512},
    "cta_m must be a multiple of 128 where warpgroups is 2, not 64": {"cta_m": 64},
    "cta_n must be a multiple of 8 for products of bf16, not 252": {"cta_n": 252},
    "a cluster would have 16 CTAs, and may have 8": {"cluster_m": 16},
    "must have a multiple of 32 elements along its contiguous dimension, and of 8": {"cta_k": 48},
    "promote must be 0 or, for sums in f32, a multiple of cta_k = 64, not 96": {"promote": 96},
    "vector_c must be 1 or 2 for wgmma, not 4": {"vector_c": 4},
    "a thread would need about 240 registers, and has 232 where warpgroups is 2": {"promote": 64},
    "the tiles take 327,?776 bytes of shared memory": {"stages": 6},
    "pingpong takes 2 warpgroups or more, not 1": {"pingpong": True, "warpgroups": 1},
    "store=tma needs cta_n to be a multiple of 32 bytes of C": {"cta_n": 8, "out": "bf16", "layout": "nt"},
    "cta_n must be a multiple of 128 where warpgroups is 2 with swap, not 64": {"swap": True, "cta_n": 64},
    "cta_m must be a multiple of 8 for products of bf16 with swap, not 12": {"swap": True, "cta_m": 12},
    "swap needs vector_c=1, not 2": {"swap": True},
    "tf32 in layout tt needs store=lanes, .* promote=0 and cta_k a multiple of 16, not lanes, 2, 64 and 64": {
        "a": "f32", "layout": "tt", "terms": "tf32", "store": "lanes", "promote": 64},
    "swap is for wgmma, not for mma": {"swap": True, "algorithm": "mma", "warp_m": 16, "warp_n": 16},
}


@pytest.mark.parametrize("reason", REASONS)
def test_reasons(reason):
    of_problem = {"m": 512, "n": 512, "k": 512, "a": "bf16", "layout": "nn"}
    problem = of_problem | {x: y for x, y in REASONS[reason].items() if x in (*of_problem, "out")}
    plan = replace(PLAN, **{x: y for x, y in REASONS[reason].items() if x not in (*of_problem, "out")})
    assert PLAN.violations(tw.Gemm(**of_problem), H200) == []
    found = plan.violations(tw.Gemm(**problem), H200)
    assert any(re.search(reason, sentence) for sentence in found), found


def test_the_grid():
    """CTAs that stay: no more than multiprocessors, whole clusters, and none without a tile."""
    assert PLAN.grid(shape_of(4096, 4096, 4096, "bf16"), H200) == (132, 1, 1)
    assert PLAN.grid(shape_of(300, 300, 4096, "bf16"), H200) == (8, 1, 1)
    assert replace(PLAN, cluster_m=4, cluster_n=2).grid(shape_of(8192, 8192, 64, "bf16"), H200) == (120, 1, 1)
    assert PLAN.grid(shape_of(100, 100, 64, "bf16", batch=3), H200) == (6, 1, 1)
    along = replace(PLAN, cluster_m=1, cluster_k=4)
    assert along.grid(shape_of(128, 1024, 4096, "bf16"), H200) == (16, 1, 1)
    assert along.grid(shape_of(8192, 8192, 4096, "bf16"), H200) == (120, 1, 1)      # clusters that an H200 holds
    assert replace(along, cluster_k=2).grid(shape_of(8192, 8192, 4096, "bf16"), H200) == (132, 1, 1)


@pytest.mark.parametrize(("words", "size", "expected"), [
    ("split_k=4", (128, 8192), ((32, 0, 32), 16, 64, [4] * 32, 128)),           # whole of a round: 132 clusters
    ("split_k=5", (128, 8192), ((32, 0, 32), 16, 64, [4] * 32, 128)),           # no more parts than clusters
    ("tail", (128, 8192), ((32, 0, 32), 16, 64, [4] * 32, 128)),
    ("split_k=3", (128, 1024), ((4, 0, 4), 22, 66, [3] * 4, 12)),               # of which the last one has fewer steps
    ("tail", (1024, 5632), ((176, 132, 44), 22, 66, [3] * 44, 132)),
    ("tail", (128, 12800), ((50, 0, 50), 25, 64, [3] * 24 + [4] * 26, 128)),    # shares of two tiles
    ("tail", (512, 8448), ((132, 132, 0), 64, 64, [], 132)),                   # nothing is left over
    ("tail cluster=2x1", (256, 4096), ((16, 0, 16), 16, 64, [4] * 16, 64)),
    ("", (1024, 5120), ((160, 160, 0), 64, 64, [], 132)),
])
def test_how_clusters_share_tiles(words, size, expected):
    """64 steps of k, 132 multiprocessors: tiles, those that stay whole and those that are divided, steps of a share
    and from tile to tile, parts of each, clusters that are launched."""
    (tiles, whole, over), share, apart, parts, clusters = expected
    plan = NvidiaPlan.parse(f"wgmma 128x256x64 stages=4 warpgroups=2 {words}")
    found = plan.division(shape_of(size[0], size[1], 4096, "bf16"), H200)
    assert (found.tiles, found.whole, found.over, found.share, found.apart) == (tiles, whole, over, share, apart)
    assert sorted(found.parts()) == parts
    assert found.clusters == clusters


def test_shares_are_of_whole_blocks_of_scales():
    """Two steps of 64 have a scale in common."""
    shape = gpu_shape.shape("bf16", "bf16", "bf16", 128, 4224, 4160, "nt", scales="128x128")
    for words in ("tail", "split_k=2", "split_k=3"):
        plan = NvidiaPlan.parse(f"wgmma 128x64x64 stages=4 warpgroups=2 promote=128 {words}")
        found = plan.division(shape, H200)
        assert (found.steps, found.share % 2, found.apart % 2) == (65, 0, 0)


# ---- the kernel is as the plan says


def test_the_bytes_are_those_of_the_simulator():
    """Of whole tiles: each CTA of a cluster brings half of B for both."""
    problem = tw.Gemm(256, 128, 256, "bf16", layout="nt")
    text = "wgmma 128x64x64 stages=3 warpgroups=2 cluster=2x1 store=tma"
    found = tw.explain(problem, H200, text)
    assert "2 warpgroups of 64x64, and one that starts copies, clusters of 2x1; 4 CTAs take" in str(found)
    x, y = (np.ones(shape, formats.FORMATS["bf16"].dtype) for shape in (problem.shape_a, problem.shape_b))
    report = tw.simulate(tw.compile(problem, H200, text), x, y.T)
    shared, l2, memory = ({what: size * times for what, size, times, _ in terms}
                          for terms in found.cost.traffic.values())
    for name in "ab":
        assert report.of(f"{name}_smem", "store").bytes == shared[f"{name.upper()} written"]
        assert report.of(f"{name}_smem", "load").bytes == shared[f"{name.upper()} read"]
        assert report.of(name, "load").bytes == l2[name.upper()]
        assert report.of(name).distinct == memory[name.upper()]
    assert report.of("c", "store").bytes == memory["C"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kinds", "layout", "pingpong"), [
    (("bf16", "bf16", "f32"), "nn", False), (("e4m3fn", "e4m3fn", "f32"), "nt", False), (("bf16",) * 3, "nt", True)])
def test_no_large_candidate_spills(kinds, layout, pingpong):
    """Of the tiles with the most sums in a thread."""
    problem = tw.Gemm(8192, 8192, 8192, *kinds, layout)
    shape = gpu_shape.shape_of(problem)
    legal = [p for p in candidates(shape, H200) if p.algorithm == "wgmma" and p.pingpong == pingpong
             and p.cluster_m == 2 and not p.violations(shape, H200)]
    for plan in sorted(legal, key=lambda p: -p.estimate(shape))[:2]:
        used = tw.compile(problem, H200, plan).resources
        assert used.spill_stores == used.stack == 0, plan


def test_sums_that_the_assembler_has_no_registers_for_are_refused():
    shape = shape_of(4096, 4096, 4096, "bf16", layout="nt")
    for columns, fits in ((200, True), (208, False)):
        plan = NvidiaPlan.parse(f"wgmma 192x{columns}x64 stages=3 warpgroups=3")
        assert fits != any("assembler" in x for x in plan.violations(shape, H200))


@pytest.mark.parametrize("plan", [
    str(PLAN), "wgmma 64x128x64 stages=4 warpgroups=1 tail", "simt 64x64x8 warp=32x32 thread=8x4 stages=3 vector=4",
    "mma 64x64x32 warp=32x32 stages=3 vector=8 vector_c=4", "gemv 1x8x8 stages=2 copy=registers vector=8"])
def test_code_is_for_any_sizes(plan):
    """What emitters are asked for, and the cache is asked by, does not depend on sizes."""
    format, rows = ("f32" if plan.startswith("simt") else "bf16"), ((1, 1) if plan.startswith("gemv") else (256, 512))
    first, second = (tw.compile(tw.Gemm(m, n, k, format, layout="nt"), H200, plan).asked
                     for m, n, k in zip(rows, (256, 1024), (512, 2048)))
    assert [x.key for x in first] == [x.key for x in second]


def test_what_measured_plans_say_of_a_time():
    """A factor that trees find, in words; of products like those that were measured alone."""
    shape = gpu_shape.shape("bf16", "bf16", "bf16", 1000, 3000, 6216, "nt")
    found = wgmma_model.cost(shape, PLAN, H200)
    with_words = wgmma_residuals.words(found.values)
    assert len(found.values) == len(wgmma_residuals.WORDS)
    assert math.prod(factor for _, factor in with_words) == pytest.approx(wgmma_residuals.factor(found.values))
    assert 0.7 < wgmma_residuals.factor(found.values) < 1.4
    for other in (shape._replace(batch=2), shape._replace(m=32), shape._replace(a="i8", b="i8")):
        assert wgmma_model.cost(other, PLAN, H200).values == ()
