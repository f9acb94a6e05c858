"""The ladder: every step, on every awkward size, in both formats, on every x86 vector width that this machine has."""
from __future__ import annotations

import numpy as np
import pytest

import tilewright.targets as targets
from bench import readme
from tests.helpers.fenced import fenced
from tests.oracles import reference
from tilewright.compiler.llvm import assembly
from tilewright.inspect.resources import hot_loop
from tilewright.lab.bench import commands, results
from tilewright.lab.bench.peer import Setting
from tilewright.lab.bench.suites import ladders, tiles
from tilewright.lab.ladder import cpu4_blocked
from tilewright.lab.ladder.cpu2_registers import tiling
from tilewright.lab.ladder.run_cpu import prepare
from tilewright.lab.ladder.steps import ARTICLE, CPU_STEPS

DTYPES = {"f32": np.float32, "f64": np.float64}
ISAS = ("x86-avx2", "x86-avx512")


@pytest.fixture(params=ISAS)
def target(request):
    found = targets.target(request.param)
    if not found.runnable:
        pytest.skip(f"this machine lacks {', '.join(found.missing)}")
    return found


def awkward_sizes(target, dtype):
    """Nothing, one, primes, and one less and more than tiles and blocks; m, n and k all different."""
    _, V, MR, _, NR = tiling(target, dtype)
    MC, KC, _ = cpu4_blocked.blocks(target, dtype)
    return [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (1, NR, 7), (MR, 1, 5), (MR, NR, 4), (MR - 1, NR - 1, 3),
            (MR + 1, NR + 1, 5), (2 * MR, V + 1, 9), (2, 5 * NR, 1), (13, 17, 19), (97, 101, 103),
            (31, 2 * NR + 3, 131), (MC + 1, 3, 2), (1537, 1029, 2), (3, 5, 2 * KC + 1), (MR + 2, NR - 2, KC)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [*CPU_STEPS, ARTICLE], ids=lambda step: getattr(step, "title", step))
def test_awkward_sizes(step, dtype, target):
    """Exact on integers, within the rounding errors of any order of summation on others; every element is written."""
    rng = np.random.default_rng(1)
    for m, n, k in awkward_sizes(target, dtype):
        multiply = prepare(step, m, n, k, dtype, target)
        a, b = (rng.integers(-8, 9, shape).astype(DTYPES[dtype]) for shape in ((m, k), (k, n)))
        c = np.full((m, n), np.nan, DTYPES[dtype])
        multiply(a, b, c)
        np.testing.assert_array_equal(c, reference.product(a, b), f"{m} x {n} x {k}")
        a, b = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((m, k), (k, n)))
        multiply(a, b, c)
        error = np.abs(c - reference.product(a, b))
        assert (error <= reference.error_bound(a, b, dtype=DTYPES[dtype])).all(), (m, n, k)


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("step", [*CPU_STEPS, ARTICLE], ids=lambda step: getattr(step, "title", step))
def test_nothing_is_touched_beside_the_matrices(step, end, target):
    """Each matrix lies against a page that may not be touched."""
    rng = np.random.default_rng(2)
    for m, n, k in ((29, 37, 41), (5, 70, 3), (1, 1, 1)):
        a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c = fenced(np.zeros((m, n), np.float32), end)
        prepare(step, m, n, k, "f32", target, threads=3)(fenced(a, end), fenced(b, end), c)
        np.testing.assert_array_equal(c, a @ b)


def test_inf_and_nan_stay_in_their_row_and_column(target):
    """What padding multiplies with zero is not stored."""
    a, b = np.ones((15, 5), np.float32), np.ones((5, 33), np.float32)
    a[14, 2], b[3, 32] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = a @ b
    for step in CPU_STEPS:
        c = np.empty((15, 33), np.float32)
        prepare(step, 15, 33, 5, "f32", target)(a, b, c)
        np.testing.assert_array_equal(c, expected, step)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_team_gives_the_same_bits(threads, target):
    m, n, k = 211, 307, 97
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    alone, together = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
    prepare("micro", m, n, k, "f32", target)(a, b, alone)
    multiply = prepare("parallel", m, n, k, "f32", target, threads=threads)
    for _ in range(20):
        together.fill(np.nan)
        multiply(a, b, together)
        np.testing.assert_array_equal(together, alone)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", CPU_STEPS)
def test_hot_loops_hold_the_tile_in_registers(step, dtype, name):
    """One FMA per vector of the tile and step of k, no vector of it in memory. Step 1 has no vectors."""
    target = targets.target(name)
    _, _, MR, NV, _ = tiling(target, dtype)
    loop = hot_loop(assembly(CPU_STEPS[step].emit(target, dtype, *CPU_STEPS[step].blocks(target, dtype, 2)), target))
    unrolled = 4 if step in ("micro", "parallel") else 1
    assert loop.fma == (0 if step == "naive" else unrolled * MR * NV), loop.text
    assert loop.spills == 0, loop.text


def test_the_tiles_are_the_articles():
    """16x6 by columns is 6x16 by rows on AVX2; AVX-512 has room for 14x32."""
    tiles = {(name, dtype): tiling(targets.target(name), dtype)[2::2] for name in ISAS for dtype in DTYPES}
    assert tiles == {("x86-avx2", "f32"): (6, 16), ("x86-avx2", "f64"): (6, 8), ("x86-avx512", "f32"): (14, 32),
                     ("x86-avx512", "f64"): (14, 16)}


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"no step 'fast' of the CPU ladder, .*; the steps are naive, registers"):
        prepare("fast", 1, 1, 1)
    multiply = prepare("naive", 2, 3, 4)
    a, b, c = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32), np.ones((2, 3), np.float32)
    for bad in ((a, b, c.T), (a.astype(np.float64), b, c), (np.asfortranarray(a), b, c)):
        with pytest.raises(ValueError, match="must be a C-contiguous float32 array"):
            multiply(*bad)
    c.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        multiply(a, b, c)


# ---- what measures them


def test_bench_ladder_times_the_steps_that_use_the_threads():
    one, out_of_one = ladders.peers(Setting(), ["numpy"])
    titles = [step.title for step in CPU_STEPS.values()]
    assert [c.name for c in one] == ["tilewright", *titles[:5], "article", "numpy"]
    assert out_of_one == {"6 parallel": "with one thread it is step 5",
                          "1 naive, 2 registers, 3 padded": "where one call would take more than 2 s"}
    assert [c.max_call_s for c in one[1:6]] == [2.0, 2.0, 2.0, np.inf, np.inf]
    two, out_of_two = ladders.peers(Setting(2), ["numpy"])
    assert [c.name for c in two] == ["tilewright", "6 parallel", "article", "numpy"]
    assert out_of_two == {", ".join(titles[:5]): "they run on one thread"}


def test_every_tile_of_the_article_is_legal_on_avx2():
    found = tiles.legal(targets.target("x86-avx2"), 4)
    assert {t.article for t in found} == {"", "16x6", "8x8", "8x12", "8x13", "8x14", "32x2"}
    assert len({t.name for t in found}) == len(found)
    assert max(t.registers for t in found) == 16
    by_name = {t.name: t for t in found}
    assert (by_name["6x16"].registers, by_name["6x16"].fma_per_load) == (15, 1.5)
    assert "7x16" not in by_name        # 14 + 2 + 1 registers


def test_bench_tiles(monkeypatch, tmp_path):
    """A whole run, with short turns: what it counts and writes, and what a document makes of it."""
    from rich.console import Console

    target = targets.target("x86-avx2")
    if not target.runnable:
        pytest.skip(f"this machine lacks {', '.join(target.missing)}")
    monkeypatch.setattr(tiles, "RULES", tiles.Rules(turn_s=0, warm_s=0, min_rounds=2, max_rounds=2))
    monkeypatch.setattr(tiles, "CALL_FLOPS", 1.0)
    file = tmp_path / "tiles.json"
    assert commands.tiles(target, "f64", commands.Options(quick=True, json=file), Console(quiet=True)) == 0
    extra = results.load(file).extra
    by_name = {f"{t['mr']}x{t['nr']}": t for t in extra["tiles"]}
    assert by_name["6x8"]["registers"] == {"formula": 15, "assembly": 15}
    assert by_name["6x8"]["fma_per_load"] == {"formula": 1.5, "assembly": 1.5}
    assert not any(t["spills"] for t in extra["tiles"])
    assert all(t["gflops"]["median"] > 0 for t in extra["tiles"])
    assert extra["fma_loop_gflops"]["median"] > 0
    filled = readme.fill("<!-- figure: tiles tiles.json others=1 -->\n<!-- /figure -->\n", tmp_path)
    best = extra["tiles"][0]        # in f64 none of the article's tiles fits 16 registers
    assert [line.split(" | ")[0] for line in filled.splitlines()[3:-1]] == [f"| {best['mr']}x{best['nr']}"]


def test_bench_tiles_refuses_what_it_cannot_do(tmp_path):
    from rich.console import Console

    target = targets.detect()
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        commands.tiles(target, "f32", commands.Options(json=tmp_path / "no" / "x.json"), Console(quiet=True))
    with pytest.raises(ValueError, match="dtype must be one of f32, f64, got 'f16'"):
        tiles.run(target, "f16", True, Console(quiet=True))
    with pytest.raises(RuntimeError, match="cannot run on this machine"):
        tiles.run(targets.target("neon"), "f32", True, Console(quiet=True))
