"""Plans: legality in sentences, candidates that are legal, text and back, and a model that counts what is there."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

import tilewright as tw
from tilewright import targets as chips
from tilewright.compiled.compile import plan
from tilewright.expressions.numerics import PLAIN
from tilewright.plans import CpuPlan, Shape, asked, choose, lowering, shape_of
from tilewright.plans.amd import AmdPlan
from tilewright.plans.choose import candidates, ranked, splits
from tilewright.plans.common import total
from tilewright.plans.cpu_tiles import DOT_ROWS, FEW_COLUMNS, FEW_ROWS, PACKED, STREAM_DEPTH, TILES
from tilewright.plans.model import SHARED_LINE, Ceilings, cost
from tilewright.plans.nvidia import NvidiaPlan

AVX2, AVX512, NEON = TARGETS = [tw.target(name) for name in ("x86-avx2", "x86-avx512", "neon")]
# A machine that is the same whoever runs the tests: the figures below can be checked by hand.
SMALL = dataclasses.replace(AVX2, l1d=32 << 10, l2=256 << 10, l3=8 << 20)

targets = st.sampled_from(TARGETS)
sizes = st.one_of(st.integers(1, 40), st.integers(1, 5000), st.sampled_from([64, 512, 1024, 4096, 20000]))
orders = st.sampled_from(["rows", "columns", "any"])
shapes = st.builds(Shape, st.sampled_from(["f32", "f64"]), sizes, sizes, sizes, orders, orders,
                   st.sampled_from([1, 1, 2, 3, 4, 6, 8, 16]), numerics=st.just(PLAIN))


# ---- a plan as text


counts = st.integers(0, 10000)
plans = st.builds(
    CpuPlan, st.sampled_from(["packed", "in_place", "stream", "dots"]), st.integers(1, 99), st.integers(1, 99), counts,
    counts, counts, *[st.integers(1, 64)] * 3, st.booleans(), st.booleans(),
)


@given(plans)
def test_text_and_back(p):
    assert CpuPlan.parse(str(p)) == p


@pytest.mark.parametrize(("plan", "problem", "target", "sentence"), [
    (CpuPlan("future", 6, 16), tw.Gemm(8, 8, 8), "x86-avx2",
     "algorithm must be packed, in_place, stream or dots, not 'future'."),
    (NvidiaPlan.parse("simt 64x64x8 warp=32x32 thread=8x4 stages=2 copy=registers"), tw.Gemm(8, 8, 8), "sm_80",
     "copy must be async or registers, not True."),
    (AmdPlan.parse("mfma 64x64x32 wave=32x32"), tw.Gemm(8, 8, 8, "f16", layout="nt", out="f32"), "gfx942",
     "copy must be registers or lds, not True."),
], ids=["cpu", "nvidia", "amd"])
def test_words_of_other_plans_are_refused(plan, problem, target, sentence):
    """They were taken for legal: products raised KeyError, or the plan's kernel computed something else."""
    plan = plan if "algorithm" in sentence else dataclasses.replace(plan, copy=True)
    assert plan.violations(problem, tw.target(target)) == [sentence]
    with pytest.raises(ValueError, match="not a plan"):
        type(plan).parse(str(plan))


@pytest.mark.parametrize("ways", ["2x1x-1", "0x1x1", "1x1x2"])
def test_ways_are_printed_whether_or_not_a_plan_can_run(ways):
    assert str(CpuPlan.parse(f"packed 4x8 mc=8 kc=5 nc=8 ways={ways}")) == f"packed 4x8 mc=8 kc=5 nc=8 ways={ways}"


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (CpuPlan("packed", 14, 32, 168, 1024, 4096), "packed 14x32 mc=168 kc=1024 nc=4096"),
        (CpuPlan("packed", 6, 16, 96, 256, 4080, 2, 3, 4), "packed 6x16 mc=96 kc=256 nc=4080 ways=2x3x4"),
        (CpuPlan("in_place", 6, 16, swap=True), "in_place 6x16 swap"),
        (CpuPlan("dots", 6, 1, ic_ways=2, swap=True, copy=True), "dots 6x1 ways=1x2x1 swap copy"),
        (CpuPlan("packed", 6, 16, 96, 256, 80, 2, 3, own_b=True), "packed 6x16 mc=96 kc=256 nc=80 ways=2x3x1 own_b"),
    ],
)
def test_text(p, text):
    assert str(p) == text
    assert CpuPlan.parse(f"  {text} ") == p


@pytest.mark.parametrize(
    "text", ["", "packed", "packed 14", "packed axb", "packed 1x2x3", "packed 6x16 size=3", "packed 6x16 mc=", "packed "
             "6x16 ways=1x2", "packed 6x16 mc=1=2", "packed 6x16 algorithm=7", "packed 6x16 swop"]
)
def test_text_that_is_no_plan(text):
    with pytest.raises(ValueError, match=r"not a plan for a CPU: .*; one looks like 'packed 14x32"):
        CpuPlan.parse(text)


# ---- legality


SHAPE = Shape("f32", 100, 200, 300, "rows", "rows", 4)


@pytest.mark.parametrize(
    ("text", "shape", "target", "sentence"),
    [
        ("packed 16x32 mc=16 kc=8 nc=32", SHAPE, AVX512,
         "16x32 f32 needs 16*2 + 2 + 1 = 35 registers, x86-avx512 has 32."),
        ("packed 6x16 mc=6 kc=8 nc=16", SHAPE._replace(dtype="f64"), AVX2,
         "6x16 f64 needs 6*4 + 4 + 1 = 29 registers, x86-avx2 has 16."),
        ("packed 14x8 mc=14 kc=8 nc=8", SHAPE, NEON, "14x8 f32 needs 14*2 + 2 + 1 = 31 registers, neon has 29."),
        ("packed 6x12 mc=6 kc=8 nc=12", SHAPE, AVX2,
         "nr = 12 is not a multiple of the 8 f32 lanes of a x86-avx2 vector."),
        ("packed 0x16 mc=6 kc=8 nc=16", SHAPE, AVX2, "a register tile of 0x16 is empty."),
        ("packed 6x16 mc=5 kc=8 nc=16", SHAPE, AVX2, "mc = 5 is less than one panel of mr = 6."),
        ("packed 6x16 mc=6 kc=8 nc=15", SHAPE, AVX2, "nc = 15 is less than one panel of nr = 16."),
        ("packed 6x16 kc=8", SHAPE, AVX2, "a packed plan needs block sizes, got mc = 0, kc = 8, nc = 0."),
        ("packed 6x16 mc=6 kc=-8 nc=16", SHAPE, AVX2, "kc is -8, and must not be less than 0."),
        ("in_place 6x16 ways=0x1x2", SHAPE, AVX2, "in_place splits rows (ic) and columns (jc), not jr: jr_ways is 2."),
        ("in_place 6x16", SHAPE._replace(b="columns"), AVX2,
         "in_place reads rows of B in place, and B's columns are contiguous, not its rows."),
        ("in_place 6x16", SHAPE._replace(b="any"), AVX2, "in_place reads rows of B, and nothing in B is contiguous."),
        ("in_place 6x16", SHAPE._replace(a="any"), AVX2,
         "in_place reads A by rows or by columns, and neither is contiguous."),
        ("in_place 6x16 swap", SHAPE._replace(a="columns", b="any"), AVX2,
         "in_place reads A by rows or by columns, and neither is contiguous."),
        ("dots 9x2 copy", SHAPE._replace(n=2), AVX2,
         "9x2 dot products need 9*2 + 2 + 1 = 21 registers, x86-avx2 has 16."),
        ("dots 2x2 copy", SHAPE._replace(n=3), AVX2, "dots computes 2 columns, and C has 3."),
        ("packed 6x16 mc=96 kc=256 nc=64 ways=1x2x2 own_b", SHAPE, AVX2, "own_b is for packed plans whose threads have "
         "rows (ic) and columns (jc) of their own: this one is packed and has jr_ways = 2."),
        ("in_place 6x16 ways=1x2x1 own_b", SHAPE, AVX2, "own_b is for packed plans whose threads have rows (ic) "
         "and columns (jc) of their own: this one is in_place and has jr_ways = 1."),
        ("dots 2x2 ways=2x1x1 copy", SHAPE._replace(n=2), AVX2, "dots splits rows (ic) alone."),
        ("dots 2x2", SHAPE._replace(n=2), AVX2, "dots multiplies columns of B that are contiguous, and B's are not."),
        ("dots 2x2", SHAPE._replace(n=2, a="columns", b="columns"), AVX2,
         "dots multiplies rows of A that are contiguous, and A's are not."),
        ("stream 2x4", SHAPE, AVX2, "stream has registers for 2 rows, and C has 100."),
        ("stream 2x4", SHAPE._replace(m=2, b="columns"), AVX2,
         "stream reads rows of B that are contiguous, and B's are not."),
        ("stream 2x4 ways=1x2x1", SHAPE._replace(m=2), AVX2, "stream splits columns (jc) alone."),
        ("stream 4x4", SHAPE._replace(m=4), AVX2,
         "4 rows of C and 4 of B need 4*4 + 4 + 1 = 21 registers, x86-avx2 has 16."),
    ],
)
def test_violations_are_sentences_with_the_arithmetic(text, shape, target, sentence):
    assert sentence in CpuPlan.parse(text).violations(shape, target)


def test_every_violation_is_told():
    found = CpuPlan("packed", 20, 32, 3, 0, 5).violations(SHAPE, AVX2)
    assert len(found) == 4
    assert all(sentence.endswith(".") for sentence in found)


def test_a_problem_may_be_judged_itself():
    assert CpuPlan.parse("in_place 6x16").violations(tw.Gemm(9, 9, 9), AVX2) == []
    assert len(CpuPlan.parse("in_place 6x16").violations(tw.Gemm(9, 9, 9, layout="nt"), AVX2)) == 1


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_every_tile_in_the_tables_fits(target):
    lanes, have = target.lanes(4), target.tile_registers
    tables = [TILES[have], FEW_ROWS[have], FEW_COLUMNS[have], *(v for (_, n), v in PACKED.items() if n == have)]
    for mr, vectors, *_ in (tile for table in tables for tile in table):
        p = CpuPlan("packed", mr, vectors * lanes, mr, 4, vectors * lanes)
        assert p.violations(SHAPE, target) == []
    for rows, depth in STREAM_DEPTH[have]:
        assert CpuPlan("stream", rows, depth).violations(SHAPE._replace(m=rows), target) == []
    for columns, rows in DOT_ROWS[have]:
        assert CpuPlan("dots", rows, columns, copy=True).violations(SHAPE._replace(n=columns), target) == []


# ---- the choice


@given(shapes, targets)
def test_there_is_a_legal_plan_for_everything(shape, target):
    found = choose.choose(shape, target)
    assert found.violations(shape, target) == []
    assert found.threads <= shape.threads
    assert found == choose.choose(shape, target)


@given(shapes, targets, st.integers(1, 4))
def test_candidates(shape, target, tiles):
    """In the order of predicted time, legal, none twice; and the engine makes no more threads than it may."""
    found = ranked(shape, target, tiles=tiles)
    assert len(set(found)) == len(found)
    times = [cost(shape, p, target).seconds for p in found]
    assert times == sorted(times)
    assert all(p.violations(shape, target) == [] and p.threads <= shape.threads for p in found)
    assert set(found) <= set(candidates(shape, target, tiles))


@given(st.integers(1, 64))
def test_splits(threads):
    found = list(splits(threads))
    assert found[0] == (1, 1, 1)
    assert len(set(found)) == len(found)
    assert all(jc * ic * jr == threads for jc, ic, jr in found[1:])
    assert threads == 1 or (threads, 1, 1) in found


def test_several_threads_are_not_woken_for_little():
    assert plan(tw.Gemm(4, 4, 4), AVX2, threads=8).threads == 1
    assert plan(tw.Gemm(3000, 3000, 3000), AVX2, threads=8).threads == 8


def test_skinny_problems_are_not_packed():
    for sizes in (1, 4096, 4096), (4096, 1, 4096), (4, 4096, 4096):
        assert plan(tw.Gemm(*sizes), AVX2).algorithm != "packed"
    assert plan(tw.Gemm(2000, 2000, 2000), AVX2).algorithm == "packed"


@pytest.mark.parametrize(("dtype", "layout", "m", "n", "k", "wanted"), [
    ("i32", "nn", 2, 2, 1000, "dots 2x2"),              # the builtin takes no integers: nothing else is in cache for it
    ("i32", "tn", 2, 2, 1000, "dots 2x2"),
    ("f64", "tt", 8, 8, 1000, "dots 8x8 swap"),         # C^T by another plan needs a temporary
    ("f64", "tn", 300, 1, 300, "stream 1x4 swap"),      # 720 KB of a 2 MB L2 are there from one call to the next
])
def test_few_rows_and_columns_are_read_in_place(dtype, layout, m, n, k, wanted):
    problem = tw.Gemm(m, n, k, a=dtype, b=dtype, out=dtype, layout=layout)
    assert str(plan(problem, "sapphirerapids", threads=1)) == wanted


def test_a_large_c_of_a_short_product_is_written_along_its_rows():
    """Rows a power of two apart share a set of L1, which has room for 12 of them."""
    machine = dataclasses.replace(AVX512, l1d=48 << 10, l1d_ways=12, l2=1 << 20, l3=32 << 20)
    for k in (1, 2, 4, 8):
        assert str(plan(tw.Gemm(2000, 2000, k), machine, 1)) == "in_place 14x32"
        assert str(plan(tw.Gemm(2048, 2048, k), machine, 1)) == "in_place 9x48"
    assert plan(tw.Gemm(2048, 2048, 64), machine).algorithm == "packed"


def test_blocks_of_large_problems_fit_their_caches():
    for target in TARGETS:
        for threads in (1, 4):
            p = plan(tw.Gemm(8000, 8000, 8000), target, threads)
            assert p.mc * p.kc * 4 <= 0.7 * target.l2
            assert p.kc * p.nc * 4 * p.jc_ways <= (target.l3 or 4 * target.l2)
            assert p.mc % p.mr == p.nc % p.nr == 0


def test_an_empty_problem_has_a_plan():
    for sizes in (0, 5, 3), (5, 0, 3), (5, 3, 0):
        assert plan(tw.Gemm(*sizes), AVX2).algorithm == "in_place"


def test_without_a_target_it_is_this_machine():
    assert plan(tw.Gemm(300, 300, 300)) == plan(tw.Gemm(300, 300, 300), tw.detect())


# ---- shapes


@given(shapes)
def test_swapping_twice(shape):
    assert shape.swapped.swapped == shape
    assert (shape.swapped.m, shape.swapped.n, shape.swapped.k) == (shape.n, shape.m, shape.k)


@pytest.mark.parametrize(
    ("problem", "a", "b"),
    [
        (tw.Gemm(2, 3, 4), "rows", "rows"),
        (tw.Gemm(2, 3, 4, layout="tn"), "columns", "rows"),
        (tw.Gemm(2, 3, 4, layout="nt"), "rows", "columns"),
        (tw.Gemm(1, 3, 4, layout="tt"), "rows", "columns"),
        (tw.Gemm(2, 1, 4, layout="tt"), "columns", "rows"),
        (tw.Gemm(2, 3, 1, layout="tt"), "rows", "rows"),
    ],
)
def test_the_planner_sees_what_the_engine_meets(problem, a, b):
    """Also of vectors, which are contiguous either way."""
    from tilewright.runtime.cpu import engine

    shape = shape_of(problem, 5)
    assert shape == Shape("f32", problem.m, problem.n, problem.k, a, b, 5)
    x, y = (np.empty(s, np.float32) for s in (problem.shape_a, problem.shape_b))
    x, y = (z if letter == "n" else z.T for z, letter in zip((x, y), problem.layout))
    met = engine.product(x, y, np.empty((problem.m, problem.n), np.float32), 5)
    assert lowering.lower(met, AVX2).shape == shape


# ---- the model


def terms(shape, text):
    found = cost(shape, CpuPlan.parse(text), SMALL)
    return {level: {t.what: t.times for t in level_terms} for level, level_terms in found.traffic.items()}, found


def test_bytes_of_a_packed_plan_by_hand():
    """60 x 80 x 100 in f32: 10 panels of 6 rows, 5 of 16 columns, 2 blocks of k, 5 of 12 rows, 2 of 48 columns.

    A is 24,000 bytes, B 32,000, C 19,200. A panel of B is 50 x 16 x 4 = 3200 bytes and stays in L1.
    """
    times, found = terms(Shape("f32", 60, 80, 100, "rows", "rows"), "packed 6x16 mc=12 kc=50 nc=48")
    assert found.vectors == 60 * 10 * 100
    assert times["L1"] == {"A": 5, "B": 10, "C": 3}
    assert found.bytes_by_level["L1"] == 5 * 24_000 + 10 * 32_000 + 3 * 19_200 == 497_600
    assert found.bytes_by_level["L2"] == 5 * 24_000 + 5 * 32_000 + 4 * 19_200 == 356_800
    packing = 2 * 2 * 24_000 + 2 * 32_000
    assert found.bytes_by_level["L3"] == 2 * 24_000 + 4 * 32_000 + 4 * 19_200 + packing == 412_800
    assert found.bytes_by_level["memory"] == 24_000 + 32_000 + 19_200


def test_bytes_of_a_plan_in_place_by_hand():
    """As above, without blocks of rows and columns: fewer panels of columns than of rows, so rows are outside."""
    times, found = terms(Shape("f32", 60, 80, 100, "rows", "rows"), "in_place 6x16 kc=50")
    assert times["L1"] == {"A": 5, "B": 10, "C": 3}
    assert times["L2"] == {"A": 1, "B": 10, "C": 4}
    assert times["L3"] == times["memory"] == {"A": 1, "B": 1, "C": 1}
    assert found.bytes_by_level["L2"] == 24_000 + 10 * 32_000 + 4 * 19_200


def test_bytes_of_dot_products_and_streams_by_hand():
    times, found = terms(Shape("f32", 60, 2, 100, "rows", "columns"), "dots 3x2")
    assert times["L1"] == {"A": 1, "B": 20, "C": 1}
    assert found.vectors == 60 * 2 * 13
    assert found.bytes_by_level["memory"] == 24_000 + 800 + 480
    times, found = terms(Shape("f32", 2, 60, 100, "rows", "rows"), "stream 2x4")
    assert found.vectors == 2 * 8 * 100
    assert times["memory"] == {"A": 1, "B": 1, "C": 1}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text", ["packed 4x16 mc=8 kc=12 nc=32", "packed 4x16 mc=20 kc=32 nc=48 ways=1x2x1", "in_place 4x16 kc=12",
             "in_place 5x16 ways=3x1x1", "packed 4x16 mc=8 kc=12 nc=16 swap"]
)
def test_predicted_bytes_are_those_that_the_simulator_counts(text):
    """Between registers and L1, in the micro-kernel; and as many multiply-adds."""
    problem = tw.Gemm(48, 48, 30, layout="tt" if "swap" in text else "nn")
    kernel = tw.compile(problem, AVX2, text)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((48, 30)).astype("f4"), rng.standard_normal((30, 48)).astype("f4"))
    if "swap" in text:
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    report = tw.simulate(kernel, a, b)
    seen = {}
    for site, traffic in report.traffic.items():
        if site.line.file.endswith(("microkernel.py", "cpu/out.py")):
            name = {"out": "C"}.get(site.array, site.array.removeprefix("packed ").upper())
            seen[name] = seen.get(name, 0) + traffic.bytes
    predicted = cost(kernel.shape, kernel.plan, AVX2)
    assert {t.what: t.bytes for t in predicted.traffic["L1"]} == seen
    updates = (predicted.traffic["L1"][2].times - 1) // 2 * 48 * 6  # of C, by a multiply-add with beta
    assert report.instructions["fma"] == predicted.vectors + updates


def test_a_tile_whose_rows_of_c_come_too_late_waits_for_them():
    """SMALL has 256 KiB of L2. A row of 16 columns is 2 vectors, so many steps of k at 3.5e9 vectors a second."""
    def late(n, k):
        parts = dict(cost(Shape("f32", 600, n, k, "rows", "rows"), CpuPlan.parse("packed 6x16 mc=60 kc=99 nc=1600"),
                          SMALL).parts)
        return parts["loads of C that arrive too late"]

    assert late(100, 4) == 0                            # in L2
    assert late(1600, 4) == pytest.approx(600 * 100 * (16e-9 - 2 * 4 / 3.5e9))
    assert late(1600, 64) == 0                          # asked for while the tile before is multiplied


def test_lines_that_push_each_other_out_of_l1():
    """32 KiB of 8 ways are 4 KiB to a way: lines a multiple of that apart share a set, which holds 8 of them."""
    machine = dataclasses.replace(SMALL, l1d_ways=8)

    def crowded(n, text):
        return dict(cost(Shape("f32", 1000, n, 4, "rows", "rows"), CpuPlan.parse(text), machine).parts)[
            "rows that share a set of L1"]

    assert crowded(1024, "in_place 8x16") == 0
    assert crowded(1024, "in_place 9x16") == pytest.approx(2 * 1000 * 1024 * 4 / Ceilings().l2)
    assert crowded(1040, "in_place 9x16") == 0


def test_edges_cost_whole_vectors():
    def vectors(n):
        p = CpuPlan.parse("packed 6x16 mc=12 kc=50 nc=48")
        return cost(Shape("f32", 60, n, 100, "rows", "rows"), p, AVX2).vectors

    assert vectors(17) == vectors(24) == 3 * vectors(8)


@given(shapes, targets)
def test_the_seconds_are_the_sum_of_their_parts(shape, target):
    for p in ranked(shape, target)[:3]:
        found = cost(shape, p, target)
        assert found.seconds == sum(seconds for _, seconds in found.parts) > 0
        assert all(seconds >= 0 for _, seconds in found.parts)
        assert all(total(t) > 0 for t in found.traffic.values())
        # nothing is faster than its multiply-adds alone, shared evenly, nor than bringing its operands from memory
        assert found.seconds >= found.vectors / p.threads / Ceilings().vectors * 0.999


@given(shapes, targets)
def test_a_faster_machine_is_faster(shape, target):
    assume(shape.m * shape.n * shape.k > 1000)
    assume("x2" not in (shape.source_a, shape.source_b) or shape.c != "scattered")  # which no plan takes
    p = choose.choose(shape, target)
    slow, fast = (cost(shape, p, target, Ceilings(f * 1e9, f * 30e9, f * 10e9, f * 5e9)).seconds for f in (1, 2))
    assert fast < slow <= 2 * fast * 1.001


def test_more_threads_shorten_large_problems():
    times = [cost(s, choose.choose(s, AVX512), AVX512).seconds
             for s in (Shape("f32", 4000, 4000, 4000, "rows", "rows", n) for n in (1, 2, 4, 8))]
    assert all(after < 0.65 * before for before, after in pairwise(times))     # threads slow each other: CROWDED


# ---- bounds


def test_splits_are_all_ways_to_share_threads():
    for threads in (1, 2, 6, 12, 97, 360):
        found = list(splits(threads))
        every = [(jc, ic, threads // jc // ic) for jc in range(1, threads + 1) if threads % jc == 0
                 for ic in range(1, threads // jc + 1) if threads // jc % ic == 0]
        assert found == [(1, 1, 1), *(every if threads > 1 else [])]
    assert len(list(splits(10**9))) < 10**5  # and not one step for each of 10**9


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**9, 10**30])
def test_a_number_of_threads_is_1_to_1024(threads, monkeypatch):
    a = np.ones((8, 8), "f4")
    calls = [lambda: tw.plan(tw.Gemm(64, 64, 64), threads=threads), lambda: tw.matmul(a, a, threads=threads),
             lambda: tw.gemm(1, a, a, 0, a.copy(), threads=threads), lambda: tw.set_num_threads(threads),
             lambda: shape_of(tw.Gemm(8, 8, 8), threads)]
    for call in calls:
        with pytest.raises(ValueError, match=r"(number of threads must be 1 to 1024|threads must be 1 or more).* not "):
            call()


@pytest.mark.parametrize("target", chips.names())
@pytest.mark.parametrize("sizes", [(2, 0, 128), (0, 2, 128), (2, 2, 0), (0, 0, 0)])
def test_an_empty_problem_has_the_plan_that_compile_takes(target, sizes):
    problem = tw.Gemm(*sizes, "f32")
    plan = tw.plan(problem, target)
    if target not in chips.names("cpu"):  # which takes what the tuner says
        assert plan == tw.compile(problem, target).plan
    assert plan.violations(problem, tw.target(target)) == [] or target in chips.names("cpu")


@pytest.mark.parametrize("format", ["f16", "i8", "mxfp4", "f64"])
def test_an_empty_problem_of_amd(format):
    for sizes in ((4, 0, 64), (0, 4, 64), (4, 4, 0)):
        problem = tw.Gemm(*sizes, format)
        assert tw.plan(problem, "gfx950") == tw.compile(problem, "gfx950").plan


@pytest.mark.parametrize(
    ("target", "plan", "words"),
    [
        ("sm_90a", "SIMT stages=3 split_k=1000000", "split_k is 1000000, and must not be"),
        ("sm_90a", "SIMT stages=3 group_m=10000000000", "group_m is 10000000000, and must"),
        ("sm_90a", "SIMT stages=3 registers=-9", ", or 0 for the emitter's choice, not -9"),
        ("sm_90a", "SIMT stages=3 registers=1", ", or 0 for the emitter's choice, not 1"),
        ("sm_90a", "SIMT stages=3 registers=256", ", or 0 for the emitter's choice, not 256"),
        ("sm_90a", "SIMT stages=999999999", "bytes of shared memory"),
        ("sm_90a", "simt 64x64x999999999 warp=32x32 thread=8x4 stages=3", "bytes of shared memory"),
        ("gfx950", "MFMA stages=3 split_k=100000", "split_k is 100000, and must"),
        ("gfx950", "MFMA stages=3 group_m=99999999999", "group_m is 99999999999"),
        ("gfx950", "MFMA stages=99999999", "bytes of LDS"),
        ("x86-avx2", "in_place 6x16 ways=1000000x1000000x1", "jc_ways is 1000000, and must not be more than 1024"),
        ("x86-avx2", "in_place 6x16 ways=64x64x1", "ways of 64 x 64 x 1 are 4096 threads"),
        ("x86-avx2", "packed 6x16 mc=100000000 kc=1024 nc=64", "mc x kc = 100000000 x 1024 elements of 4 bytes are"),
    ],
)
def test_absurd_plans_are_refused_with_the_arithmetic(target, plan, words):
    problem = tw.Gemm(4096, 4096, 1 << 23)
    plan = plan.replace("SIMT", "simt 64x64x8 warp=32x32 thread=8x4")
    plan = plan.replace("MFMA", "mfma 64x64x32 wave=32x32 mfma=32 copy=lds")
    found = asked.plan(plan, tw.target(target)).violations(problem, tw.target(target))
    assert any(words in sentence for sentence in found), found
    with pytest.raises(ValueError, match=words):
        tw.compile(problem, target, plan)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"cpu": "nonsense"}, "the cpu of x86-avx2 must be one of .*haswell.*, not 'nonsense'"),
     ({"triple": "nonsense"}, "the triple of x86-avx2 must begin with x86_64 or aarch64, not 'nonsense'"),
     ({"features": "-64bit"}, "features of x86-avx2 are .*, not '-64bit'"),
     ({"features": "fma"}, "features of x86-avx2 are .*, not 'fma'")],
)
def test_a_target_that_llvm_would_end_the_process_at(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(AVX2, **change)


@pytest.mark.parametrize("fmt", ["f32", "f16", "i8", "c64"])
@pytest.mark.parametrize("size", [8, 100, 1000])
def test_the_seconds_of_a_cpu_plan_are_the_sum_of_their_causes(fmt, size):
    """Also where a plan converts operands, whose time is added to that of the product."""
    found = tw.explain(tw.Gemm(size, size, size, fmt), tw.target("x86-avx512")).cost
    assert found.seconds == pytest.approx(sum(seconds for _, seconds in found.parts))
    assert found.seconds > 0


# ---- many threads, on a machine that has been measured

XEON = dataclasses.replace(AVX512, model="Intel(R) Xeon(R) Processor", l1d=48 << 10, l1d_ways=12, l2=2 << 20,
                           l2_ways=16, l3=300 << 20, cores=32)


@pytest.mark.parametrize("threads", [16, 32])
@pytest.mark.parametrize("n", [4096, 6000])
def test_many_threads_read_and_write_c_seldom(n, threads):
    deep, shallow = (choose.choose(Shape("f64", n, n, n, "rows", "rows", x), XEON) for x in (threads, 2))
    assert (deep.mr, deep.nr, deep.kc, deep.claims) == (9, 24, 1376, True)
    assert shallow.kc <= 1024


def test_threads_that_have_rows_share_no_lines_of_c():
    """Columns split over threads end within lines of C, which two threads then write; with `swap` rows do."""
    wide = Shape("f32", 640, 256, 27, "rows", "rows", 8)
    assert (choose.choose(wide, XEON).jc_ways, choose.choose(wide, XEON).ic_ways) == (1, 8)

    def shared(shape, *ways, **more):
        found = cost(shape, CpuPlan("in_place", 14, 32, 0, jc_ways=ways[0], ic_ways=ways[1], **more), XEON)
        return dict(found.parts)["lines of C that threads share"]
    lines = [round(shared(wide, *ways) / SHARED_LINE) for ways in ((1, 8), (2, 4), (4, 2), (8, 1))]
    assert lines == [0, 160, 640, 1280]
    tall = Shape("f32", 256, 640, 27, "columns", "columns", 8)
    assert [round(shared(tall, *ways, swap=True) / SHARED_LINE) for ways in ((8, 1), (1, 8))] == [0, 512]


def test_a_block_of_one_panel_of_columns_is_not_divided():
    """Of a column, threads claim whole blocks: smaller ones are shared better."""
    shape = Shape("f32", 3600, 1, 1000, "rows", "rows", 8)

    def work(mc):
        parts = dict(cost(shape, CpuPlan("packed", 14, 32, mc, 368, 32, 1, 8), XEON).parts)
        return parts["multiply-adds and calls of micro-kernels"]
    assert work(1400) / work(56) == pytest.approx((450 + 1400) / (450 + 56))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("m", [8, 16, 32, 64, 128])
def test_few_rows_on_many_threads_keep_panels_in_l1(m, dtype):
    shape = Shape(dtype, m, 14336, 4096, "rows", "rows", 16)
    p = choose.choose(shape, XEON)
    assert (p.algorithm, p.jc_ways, p.threads, p.meets) == ("packed", 16, 16, False)
    assert p.mc >= m
    assert p.kc * p.nr * shape.itemsize <= XEON.l1d * 2 // 3
    assert p.nc * shape.itemsize == 4096


@pytest.mark.parametrize(
    ("ways", "meets"),
    [((1, 1, 1), False), ((4, 1, 1), False), ((2, 3, 1), False), ((1, 2, 1), True), ((8, 2, 1), True),
     ((1, 1, 2), True), ((1, 3, 2), True)],
)
def test_which_threads_meet(ways, meets):
    plan = CpuPlan("packed", 6, 16, 60, 64, 64, *ways)
    assert plan.meets == meets


def test_panels_of_a_b_that_stays_in_l2_are_read_again_the_longer_they_are():
    """Their rows lie in any sets of L1: of 48 KB two panels of 8 KB lose nothing, two of 24 KB most."""
    target = tw.target("sapphirerapids")
    shape = shape_of(tw.Gemm(5, 1446, 284), target=target)

    def lost(text):
        return dict(cost(shape, CpuPlan.parse(text), target).parts)["panels of B that leave L1"]
    from_l2 = 284 * 1446 * 4 / Ceilings().l2
    short, middle, long = (lost(f"in_place 6x64 kc={kc}") for kc in (32, 64, 128))
    assert short < 0.1 * from_l2 < middle < from_l2 < long < 2.01 * from_l2
    assert str(choose.choose(shape, target)) == "in_place 6x64 kc=32"      # the best of those measured there


@pytest.mark.parametrize("chip", ["zen4", "x86-avx2", "sapphirerapids"])
@pytest.mark.parametrize("size", [(3000, 3000, 20), (1954, 2505, 25), (40, 3000, 1)])
def test_narrow_formats_are_converted_as_they_are_packed_and_stored(chip, size):
    """With little to add up in a large C, too: arrays in f32 beside it took 2 to 20 times as long."""
    for format in "bf16", "f16", "i8":
        problem = tw.Gemm(*size, format, out="i32" if format == "i8" else format)
        shape = lowering.lower_problem(problem, tw.target(chip)).shape
        assert (shape.source_a, shape.source_b) == (format, format)
        assert shape.out == ("" if format == "i8" else format)
