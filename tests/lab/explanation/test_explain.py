"""tilewright.explain: every figure it prints can be checked by hand, and it never invents one."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest

import tilewright as tw
from tests.helpers.ceilings import FAST
from tilewright.lab.explanation.record import Tile
from tilewright.lab.measure import probes
from tilewright.plans import CpuPlan, model
from tilewright.plans.measured import choice

AVX2 = tw.target("x86-avx2")


def test_the_plan_and_why():
    problem = tw.Gemm(1000, 600, 800)
    found = tw.explain(problem, threads=2)
    assert found.plan == tw.plan(problem, threads=2)
    text = str(found)
    assert text.startswith(f"gemm_f32_nn_1000x600x800 on {tw.detect().name} (")
    assert f"\nplan        {found.plan}\n" in text
    assert "the model's choice" in text
    assert len(found.alternatives) == 4
    for other in found.alternatives:
        assert f"{other.plan!s}" in text
        assert f"{other.slower:+.1%}" in text
        assert not other.plan.violations(problem, tw.detect())


def test_the_arithmetic_adds_up():
    """Sizes times counts give the totals, totals over rates the times, and parts the prediction."""
    plan = "packed 6x16 mc=60 kc=100 nc=160"
    lines = str(tw.explain(tw.Gemm(100, 200, 300), AVX2, plan)).splitlines()
    terms, totals = [], []
    for line in lines:
        if found := re.search(r"([ABC])  +([\d,]+) x (\d+) ", line):
            terms.append(int(found[2].replace(",", "")) * int(found[3]))
        elif found := re.search(r"=  +([\d,]+) bytes at (\d+) GB/s = (.*)", line):
            totals.append(int(found[1].replace(",", "")))
            assert sum(terms) == totals[-1]
            number, unit = found[3].split()
            assert float(number) * {"ms": 1e-3, "us": 1e-6}[unit] == pytest.approx(
                totals[-1] / (int(found[2]) * 1e9), rel=1e-3
            )
            terms = []
    assert len(totals) == 4
    text = "\n".join(lines)
    assert "2 x 100 x 200 x 300 = 12,000,000 operations" in text
    assert "100 x 300 x ceil(200 / 8 lanes) = 750,000 vector multiply-adds, 100.0% of their lanes in use" in text
    assert "tile 6x16: 6 rows of 2 vectors; 6*2 + 2 + 1 = 15 of 16 registers; 12 multiply-adds for 2 + 6 loads" in text
    assert re.search(r"panel of B +60 x 16, k 100 .* L1: 6.25 KiB", text)
    assert re.search(r"block of A +60 x 160, k 100 .* L2: 23.44 KiB", text)
    assert re.search(r"block of B +100 x 160, k 100 .* L3: 62.5 KiB", text)
    assert "120 us  12,000,000 operations at 100.0 GFLOP/s, what one thread reached" in text


def test_the_prediction_is_the_models_with_this_machines_figures():
    problem = tw.Gemm(300, 300, 300, "f64")
    found = tw.explain(problem, AVX2, threads=1)
    ceilings = model.Ceilings(vectors=50e9 / 8, l2=100e9, l3=50e9, memory=20e9)
    assert found.cost == model.cost(found.shape, found.plan, AVX2, ceilings)
    rate = problem.flops / found.cost.seconds
    assert f"{rate / 1e9:.1f} GFLOP/s, {rate / 50e9:.1%} of the ceiling" in str(found)


def test_violations_of_a_given_plan():
    found = tw.explain(tw.Gemm(100, 100, 100), AVX2, "packed 14x32 mc=2 kc=4")
    assert found.origin == "given"
    assert found.violations == tuple(CpuPlan("packed", 14, 32, 2, 4).violations(tw.Gemm(100, 100, 100), AVX2))
    text = str(found)
    assert "cannot run  14x32 f32 needs 14*4 + 4 + 1 = 61 registers, x86-avx2 has 16." in text
    assert "            mc = 2 is less than one panel of mr = 14." in text
    assert found.cost is None
    assert "time" not in text
    with pytest.raises(ValueError, match="not a plan: 'fast'"):
        tw.explain(tw.Gemm(2, 3, 4), plan="fast")


@pytest.mark.parametrize(
    ("plan", "problem", "words"),
    [
        ("in_place 6x16 kc=64", tw.Gemm(50, 64, 128), ["50 x 16, k 64", f"A{25_600:>25,} x 4 "]),
        ("dots 2x1 copy", tw.Gemm(64, 1, 128), ["2 rows of A by 1 columns of B", "64 x 1 x ceil(128 / 8 lanes)"]),
        ("dots 2x1 swap copy", tw.Gemm(1, 64, 128, layout="nt"), ["swap: C^T = B^T @ A^T", "copy: B is copied first"]),
        ("stream 2x4 ways=2x1x1", tw.Gemm(2, 640, 128), ["2 rows of C stay in L1", "2 runs of columns (jc)"]),
        ("in_place 6x16 ways=1x1x1", tw.Gemm(9, 9, 9), ["tile 6x16"]),
    ],
)
def test_every_algorithm(plan, problem, words):
    text = str(tw.explain(problem, AVX2, plan))
    for each in words:
        assert each in text, text


def test_a_target_that_cannot_run_here():
    neon = tw.target("neon")
    if neon.runnable:
        pytest.skip("this is an AArch64 machine")
    found = tw.explain(tw.Gemm(100, 100, 100), neon)
    assert found.ceilings is None
    assert "as this machine cannot run neon" in str(found)
    with pytest.raises(RuntimeError, match="cannot run on this machine"):
        tw.explain(tw.Gemm(100, 100, 100), neon, measure=True)


def test_measuring():
    found = tw.explain(tw.Gemm(40, 50, 60, layout="tn"), measure=True, threads=1)
    assert found.time.measured.q1 <= found.time.measured.median <= found.time.measured.q3
    assert re.search(r"measured +[\d.]+ us  [\d.]+ GFLOP/s, [\d.]+% of the ceiling \(quartiles", str(found))


def test_empty_and_batched_products():
    assert "the product is empty" in str(tw.explain(tw.Gemm(0, 5, 5)))
    assert "each of 7 products" in str(tw.explain(tw.Gemm(20, 30, 40, batch=7)))
    assert "measured" in str(tw.explain(tw.Gemm(20, 30, 40, batch=2), measure=True, threads=1))


def test_a_tuned_plan_says_so(monkeypatch):
    plan = CpuPlan("in_place", 4, 16)
    monkeypatch.setattr(choice, "best", lambda shape, target: plan)
    found = tw.explain(tw.Gemm(30, 40, 50), AVX2)
    assert found.plan == plan
    assert "measured to be the fastest" in found.origin


def test_rich_shows_the_same_lines():
    from rich.console import Console

    found = tw.explain(tw.Gemm(64, 64, 64))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(found)
    printed = [line.rstrip() for line in console.export_text().splitlines()]
    assert printed == str(found).splitlines()


def test_plans_that_were_not_chosen_are_compared_by_this_machines_ceilings(monkeypatch):
    """As the prediction of the chosen one is."""
    slow = dataclasses.replace(FAST, bandwidth={level: {"read": (1e8, 2e8)} for level in ("L1", "L2", "L3", "memory")})
    found = []
    for measured in (FAST, slow):
        monkeypatch.setattr(probes, "remembered", lambda measured=measured: measured)
        explained = tw.explain(tw.Gemm(300, 300, 300), threads=1)
        ours = explained.basis.cost(explained.shape, explained.plan, explained.target).seconds
        for other in explained.alternatives:
            theirs = explained.basis.cost(explained.shape, other.plan, explained.target).seconds
            assert other.slower == pytest.approx(theirs / ours - 1)
        found.append([other.slower for other in explained.alternatives])
    assert found[0] != found[1]


def test_a_tile_that_its_memory_does_not_hold():
    """Not "L1: 144 KiB of 48 KiB, 300%"."""
    tile = Tile("rows", {"m": 3, "n": 9000, "k": 4}, 1, "L1", 147_456, 49_152)
    assert tile.held == "beyond L1: 144 KiB, and it holds 48 KiB"
    assert dataclasses.replace(tile, bytes=12_288).held == "L1: 12 KiB of 48 KiB, 25%"


def test_a_faster_alternative_has_a_reason():
    """Of a given plan, and of one that was chosen among fewer tiles."""
    given = tw.explain(tw.Gemm(300, 300, 300), "x86-avx2", CpuPlan.parse("packed 2x8 mc=8 kc=300 nc=8"))
    assert min(other.slower for other in given.alternatives) < 0
    assert "a minus sign: predicted to be faster than the plan, which was given" in str(given)
    alone = dataclasses.replace(given, alternatives=tuple(x for x in given.alternatives if x.slower >= 0))
    assert "a minus sign" not in str(alone)
    assert "`tilewright tune` measures these" in str(dataclasses.replace(given, origin="the model's choice"))
