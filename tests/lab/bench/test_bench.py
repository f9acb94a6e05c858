"""The rules of measurement on a clock that the test winds, the peers' answers, and what is written and read back."""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import math
import os
import re
import subprocess
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import readme
from tests.helpers.command_line import call, refused
from tests.helpers.reports import QUIET, shown
from tilewright import outputs
from tilewright.lab.bench import commands, contest, peer, plot, report, results, session, study, tables
from tilewright.lab.bench.cases import Case, Job, Product
from tilewright.lab.bench.contest import Bench
from tilewright.lab.bench.peer import Setting
from tilewright.lab.bench.peers import blis, cblas, mkl as mkl_peer, numpy as numpy_peer
from tilewright.lab.bench.results import BESIDE, Report, Result, Row, Session
from tilewright.lab.bench.suites import ladders, shapes as suites
from tilewright.lab.cli import common
from tilewright.lab.drawing import raster
from tilewright.lab.measure import check, machine, measure, operands, probes, quiet
from tilewright.lab.measure.measure import Rules, Sample
from tilewright.lab.measure.quiet import BLOCK_S, Load
from tilewright.problem import Gemm

ROOT = Path(__file__).resolve().parents[3]


class Clock:
    """Time passes only when a fake peer says so, and 1 ns per look, since no clock stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        self.now += 1e-9
        return self.now

    def peer(self, name: str, seconds: float) -> measure.Call:
        def call() -> None:
            self.calls.append(name)
            self.now += seconds

        return call, ()

    def order(self) -> list[str]:
        """Who was called, repetitions in one go counted once."""
        return [name for i, name in enumerate(self.calls) if i == 0 or self.calls[i - 1] != name]


# ---- measure


def test_every_peer_has_one_turn_a_round_and_the_order_rotates() -> None:
    clock = Clock()
    calls = {name: [clock.peer(name, 0.006)] for name in "abc"}
    rules = Rules(min_rounds=4, max_rounds=4, warm_s=0.0)
    samples = measure.interleave(calls, rules, clock=clock)
    assert all(len(s.seconds) == 4 and s.reps == 1 for s in samples.values())
    # calibration, then four rounds; where one round ends as the next begins, the two turns are seen as one
    assert clock.order() == ["a", "b", "c", *"abc", *"bca", *"cab", *"abc"]


@pytest.mark.parametrize(("seconds", "rules", "calls", "rounds", "reps"), [
    (1e-6, Rules(max_rounds=5), None, 5, 5000),                 # a turn lasts as long as the rules ask
    # to calibrate 1 call, then 6 to reach 10 ms; each of three rounds: 2 calls to warm up, 5 timed
    (0.002, Rules(min_rounds=3, max_rounds=3, turn_s=0.01, warm_s=0.004), 1 + 6 + 3 * (2 + 5), 3, 5),
    (1.0, Rules(min_rounds=3, max_rounds=9, budget_s=0.0), 3, 3, 1),        # the calibration is the first round
    # 0.05 to calibrate; a round is one call to warm up and one that is timed
    (0.05, Rules(min_rounds=2, max_rounds=100, budget_s=1.0, turn_s=0.05, warm_s=0.0), 1 + 2 * 9, 9, 1),
], ids=["turn", "warm-up", "long", "budget"])
def test_how_many_calls_are_made(seconds: float, rules: Rules, calls: int | None, rounds: int, reps: int) -> None:
    clock = Clock()
    sample = measure.interleave({"x": [clock.peer("x", seconds)]}, rules, clock=clock)["x"]
    assert (len(sample.seconds), sample.spread.median) == (rounds, pytest.approx(seconds, rel=0.01))
    assert sample.reps == pytest.approx(reps, rel=0.01)
    assert calls in (None, len(clock.calls))


def test_a_slow_first_call_does_not_fool_the_calibration() -> None:
    clock = Clock()
    first = True

    def call() -> None:
        nonlocal first
        clock.now += 4e-3 if first else 1e-6
        first = False

    samples = measure.interleave({"x": [(call, ())]}, Rules(max_rounds=5), clock=clock)
    assert samples["x"].reps == pytest.approx(5000, rel=0.01)


def test_rounds_that_others_disturbed_are_repeated_and_left_out() -> None:
    clock = Clock()
    slow = {"seconds": 0.01}

    def call() -> None:
        clock.now += slow["seconds"]

    asked: list[float] = []

    def disturbed() -> bool:
        """At the start, after the calibration, and then of every block: others have the CPU in the first one."""
        asked.append(clock.now)
        slow["seconds"] = 1.0 if len(asked) == 2 else 0.01
        return len(asked) == 3

    heard: list[float] = []
    rules = Rules(min_rounds=2, max_rounds=3, budget_s=9.0, warm_s=0.0, turn_s=0.01)
    samples = measure.interleave(
        {"x": [(call, ())]}, rules, clock=clock, disturbed=disturbed, heard=lambda _, s: heard.append(s)
    )
    assert samples["x"].seconds == pytest.approx((0.01, 0.01, 0.01))
    assert (samples["x"].left_out, samples["x"].disturbed) == (1, False)
    assert tuple(heard) == samples["x"].seconds


def test_where_others_never_rest_all_rounds_are_given_and_marked() -> None:
    clock = Clock()
    heard: list[str] = []
    samples = measure.interleave(
        {name: [clock.peer(name, 0.05)] for name in "ab"}, Rules(min_rounds=3, max_rounds=5, budget_s=1.0),
        clock=clock, disturbed=lambda: True, heard=lambda name, _: heard.append(name),
    )
    assert all(s.disturbed and not s.left_out and len(s.seconds) >= 3 for s in samples.values())
    assert clock.now < 2.0  # no longer than the budget
    assert heard.count("a") == heard.count("b") == len(samples["a"].seconds)


def test_a_block_is_long_enough_to_be_judged() -> None:
    clock = Clock()
    asked: list[float] = []
    rules = Rules(min_rounds=2, max_rounds=100, budget_s=2.0, turn_s=0.01, warm_s=0.0)
    measure.interleave(
        {"x": [clock.peer("x", 0.01)]}, rules, clock=clock, disturbed=lambda: bool(asked.append(clock.now))
    )
    gaps = np.diff(asked[2:-1])  # without the start, the calibration, and what is left at the end
    assert len(gaps) > 3
    assert gaps[:-1].min() >= BLOCK_S


def test_settle_comes_before_every_turn() -> None:
    clock = Clock()
    calls = {name: [clock.peer(name, 0.01)] for name in "ab"}
    rules = Rules(min_rounds=3, max_rounds=3)
    measure.interleave(calls, rules, clock=clock, settle=lambda: clock.calls.append("settle"))
    assert clock.calls.count("settle") == 2 * (1 + 3)
    assert clock.order()[:4] == ["settle", "a", "settle", "b"]


def test_cold_operands_are_taken_in_turn() -> None:
    clock = Clock()
    calls = [clock.peer(str(i), 0.002) for i in range(3)]
    measure.interleave({"x": calls}, Rules(min_rounds=2, max_rounds=2), clock=clock)
    assert clock.calls == [str(i % 3) for i in range(len(clock.calls))]


def test_a_drifting_machine_moves_the_rates_but_not_the_ratio() -> None:
    clock = Clock()

    def drifting(seconds: float) -> measure.Call:
        def call() -> None:
            clock.now += seconds * (1 + clock.now)

        return call, ()

    calls = {"ours": [drifting(0.001)], "theirs": [drifting(0.002)]}
    samples = measure.interleave(calls, Rules(min_rounds=9, max_rounds=9), clock=clock)
    slowed = samples["ours"].seconds[-1] / samples["ours"].seconds[0]
    ratio = measure.spread(measure.ratios(samples["theirs"].seconds, samples["ours"].seconds))
    assert slowed > 1.1
    assert ratio.median == pytest.approx(2.0, rel=0.02)


def test_the_collector_is_back_on_after_a_turn_that_raises() -> None:
    import gc

    def fails() -> None:
        assert not gc.isenabled()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure.interleave({"x": [(fails, ())]})
    assert gc.isenabled()


def test_spread_and_ratios() -> None:
    assert measure.spread([3.0]) == (3.0, 3.0, 3.0)
    assert measure.spread([1, 2, 3, 4, 5]) == (3, 2, 4)
    assert measure.ratios([2.0, 6.0], [1.0, 2.0]) == (2.0, 3.0)
    with pytest.raises(ValueError, match="same rounds"):
        measure.ratios([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="no values"):
        measure.spread([])


def test_quick_rules_only_look_for_less_long() -> None:
    for threads in (1, 2, 64):
        usual, quick = Rules.choose(threads), Rules.choose(threads, quick=True)
        assert (usual.turn_s, usual.warm_s) == (quick.turn_s, quick.warm_s)
        assert quick.budget_s < usual.budget_s


# ---- quiet


@pytest.mark.parametrize(("limit", "running", "waited"), [
    (0.5, [2, 1, 0, 1, 0, 0], 3 * 0.002 + 2 * 0.0002),         # until the last thread sleeps, and no longer
    (0.1, [1] * 99, 0.1),                                       # one never sleeps
    (0.5, [None], 0.25),                                        # without /proc longer than any peer spins
])
def test_settle(limit: float, running: list[int | None], waited: float) -> None:
    time, seen = [0.0], iter([*running, 99])

    def sleep(seconds: float) -> None:
        time[0] += seconds

    assert quiet.settle(limit, running=lambda: next(seen), clock=lambda: time[0], sleep=sleep) == pytest.approx(
        waited, abs=0.003 if limit == 0.1 else 1e-9)
    assert limit == 0.1 or next(seen) == 99


def test_running_threads_reads_states_from_the_right(tmp_path: Path) -> None:
    states = {"1": "1 (a (R) b) S 0", "2": "2 (spinner) R 0", "3": "3 (x) R) D 0"}
    for task, text in states.items():
        (tmp_path / task).mkdir()
        (tmp_path / task / "stat").write_text(text)
    (tmp_path / "4").mkdir()  # it has just ended
    assert quiet.running_threads(tmp_path) == 1
    assert quiet.running_threads(tmp_path / "nowhere") is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_pinned_gives_the_affinity_back_after_an_error() -> None:
    before = os.sched_getaffinity(0)

    def fails() -> None:
        with quiet.pinned() as cpu:
            assert os.sched_getaffinity(0) == {cpu}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert os.sched_getaffinity(0) == before


def test_time_taken_by_others_between_two_looks() -> None:
    before = Load(0.0, total=100, busy=50, stolen=2, own=10, at=0)
    after = Load(0.0, total=120, busy=65, stolen=3, own=20, at=10)
    assert after.stolen_since(before) == pytest.approx(0.05)
    assert after.others_since(before) == pytest.approx(0.5)
    assert before.stolen_since(before) == before.others_since(before) == 0.0
    assert Load.now().others_since(Load.now()) >= 0


# ---- shapes and operands


def test_every_suite_survives_json() -> None:
    names = list(suites.suites())
    cases = suites.cases(names, suites.DTYPES, (6, 16))
    assert [Case.from_json(json.loads(json.dumps(case.to_json()))) for case in cases] == cases
    assert {case.suite for case in cases} == set(names)
    assert {case.problem.a for case in cases} == {"f32", "f64"}


def test_one_thread_is_timed_despite_load_by_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process's CPU time, which stands still while others have the CPU; never said to be disturbed."""
    clocks = []

    def interleave(calls: object, rules: object, *, clock: object, **more: object) -> dict[str, Sample]:
        clocks.append((clock, "disturbed" in more))
        return {}

    monkeypatch.setattr(measure, "interleave", interleave)
    case = Case("square", Gemm(8, 8, 8))
    for threads in 1, 2:
        job = Job(threads, "native", [case], Rules(), despite_load=True)
        contest.Cpu(job, time.perf_counter).time(case, {}, {}, [])
    assert clocks == [(time.process_time, False), (time.perf_counter, True)]


@pytest.mark.parametrize("seconds", [1, 30, 300, 1e6])
def test_sizes_that_fit_a_time(seconds: float) -> None:
    sizes, rate = suites.LADDER, 1e11
    found = suites.within(sizes, seconds, lambda n: max(0.1, n**3 / rate))
    assert found
    assert set(found) <= set(sizes)
    assert found == sorted(found)
    assert len(found) == 1 or sum(max(0.1, n**3 / rate) for n in found) <= seconds
    assert (seconds < 1e6) or found == [*sizes]


def test_suites_hold_what_their_names_say() -> None:
    found = {name: cases("f32") for name, cases in suites.suites((6, 16)).items()}
    assert [c.problem.n for c in found["square"]] == [64, 128, 256, 512, 1024, 2048, 4096]
    assert all(c.cold for c in found["cold"])
    assert {c.problem.layout for c in found["layouts"]} == {"nt", "tn", "tt"}
    assert all(c.beside and c.beside.layout == "nn" for c in found["layouts"])
    past = [c for c in found["awkward"] if c.problem.m != c.problem.n]
    assert all(c.beside and c.beside.m % 6 == 0 and c.beside.n % 16 == 0 for c in past)
    assert all((c.problem.m, c.problem.n) == (c.beside.m + 1, c.beside.n + 1) for c in past if c.beside)
    assert all(min(c.problem.m, c.problem.n, c.problem.k) in suites.THIN for c in found["skinny"])
    assert suites.LADDER[0] == 200
    assert suites.LADDER[-1] == 10000


def test_unknown_suites_and_formats_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown suite 'round'; it may be square, "):
        suites.cases(["round"], ["f32"])
    with pytest.raises(ValueError, match=r"unknown dtype 'f16'; it may be f32, f64"):
        suites.cases(["square"], ["f16"])


def test_contractions_are_checked_as_products_of_matrices() -> None:
    problem, subscripts = Gemm(6, 4, 5, "f32"), "dabe,ec->dcba"
    o = operands.contraction(problem, subscripts, (2, 3, 4, 1, 5))
    assert (o.a.shape, o.b.shape, o.c.shape) == ((1, 2, 3, 5), (5, 4), (1, 4, 3, 2))
    case = Case("contractions", problem, subscripts=subscripts, sizes=(2, 3, 4, 1, 5))
    device = contest.Cpu(job([case]), lambda: 0.0)
    reference = device.reference(case, o)
    for each in peer.find(Setting(), ["numpy"])[0]:
        assert each.einsum is not None
        _, _, deviation = device.checked(each.einsum, case, [o], reference)
        assert deviation is not None
        assert deviation < 8
        np.testing.assert_allclose(o.c, np.einsum(subscripts, o.a, o.b), rtol=1e-4, atol=1e-4)
    o.c[0, 1, 2, 0] += 1
    assert reference[...].wrong(o.matrices.c)


def test_tensors_of_contractions_are_about_as_large_as_said() -> None:
    from tilewright.lab.bench.suites import contractions

    found = contractions.cases("f32")
    assert len(found) == 48
    for case in found:
        p = case.problem
        assert 0.4 < 4 * max(p.m * p.n, p.m * p.k, p.n * p.k) / contractions.MOST_BYTES < 1.6, case.subscripts


def test_contractions_drawn_by_a_seed() -> None:
    from tilewright.lab.bench.suites import contractions

    found = contractions.einsums(3, 40, ["f32"], quick=True)
    assert [x.label for x in found] == [x.label for x in contractions.drawn(3, 40, "f32")]
    assert any(x.problem.batch > 1 for x in found)
    for case in (next(x for x in found if x.problem.batch > 1), found[0]):
        p, o = case.problem, operands.contraction(case.problem, case.subscripts, case.sizes)
        assert o.c.size == p.batch * p.m * p.n
        device, way = contest.Cpu(job([case]), lambda: 0.0), peer.find(Setting(), ["numpy"])[0][0].einsum
        assert way is not None
        assert device.checked(way, case, [o], device.reference(case, o))[2] is not None


def test_a_short_run_of_contractions_shows_each_peer() -> None:
    found = call("bench", "einsum", "--seed", "2", "--count", "2", "--threads", "1", "--quick", "--peers",
                 "numpy,torch")
    assert found.exit_code == 0, found.output
    assert "einsum: the fastest peer's time over ours" in found.output


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_operands_are_stored_as_the_layout_says(layout: str) -> None:
    o = operands.make(Gemm(3, 5, 7, "f64", layout=layout))
    assert (o.a.shape, o.b.shape, o.c.shape) == ((3, 7), (7, 5), (3, 5))
    assert o.a.flags.c_contiguous == (layout[0] == "n")
    assert o.b.flags.c_contiguous == (layout[1] == "n")
    assert o.leading == (7 if layout[0] == "n" else 3, 5 if layout[1] == "n" else 7, 5)
    assert np.isnan(o.c).all()
    assert o.a.std() > 0.1


def test_cold_operands_fill_the_cache_twice() -> None:
    sets = operands.make_sets(Gemm(64, 64, 64, "f32", layout="tn"), True, 1 << 20)
    assert sum(o.bytes for o in sets[1:]) >= 2 << 20
    assert len({o.a.ctypes.data for o in sets}) == len(sets)
    assert all(not o.a.flags.c_contiguous and np.array_equal(o.b, sets[0].b) for o in sets)
    assert len(operands.make_sets(Gemm(64, 64, 64), False, 1 << 20)) == 1


# ---- check


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 7, 3), (300, 200, 100), (900, 700, 300), (1, 1500, 3000)])
def test_check_passes_numpy_and_finds_one_missing_term(dtype: str, size: tuple[int, int, int]) -> None:
    o = operands.make(Gemm(*size, dtype))
    np.matmul(o.a, o.b, o.c)
    assert check.wrong(o.a, o.b, o.c) is None
    assert check.wrong(o.a, o.b, o.c, random=False) is None
    i, j = size[0] // 2, size[1] // 3
    p = int(np.argmax(np.abs(o.a[i] * o.b[:, j])))
    o.c[i, j] -= o.a[i, p] * o.b[p, j]
    assert check.wrong(o.a, o.b, o.c) is not None


@pytest.mark.parametrize("size", [(9, 8, 7), (800, 700, 600)])
def test_check_finds_what_was_never_written(size: tuple[int, int, int]) -> None:
    o = operands.make(Gemm(*size))
    np.matmul(o.a, o.b, o.c)
    o.c[-1, -1] = np.nan
    assert check.wrong(o.a, o.b, o.c) is not None
    assert "shape" in str(check.wrong(o.a, o.b, o.c[:-1]))


def test_check_lets_infinities_and_nans_of_the_data_through() -> None:
    a = np.array([[np.inf, 1], [np.nan, 1], [3e38, 3e38]], np.float32)
    b = np.ones((2, 2), np.float32)
    with np.errstate(all="ignore"):
        c = a @ b
    assert check.wrong(a, b, c, random=False) is None
    c[0, 0] = 7
    assert check.wrong(a, b, c, random=False) is not None


# ---- thunk and peers


def test_a_thunk_hands_every_kind_of_argument_over() -> None:
    got: list[tuple[object, ...]] = []
    kinds = (ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float, ctypes.c_double, *[ctypes.c_int64] * 12)
    callback = ctypes.CFUNCTYPE(None, *kinds)(lambda *args: got.append(args))
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address
    values = (-5, -(1 << 40), 1 << 50, 1.5, -2.25, *range(100, 112))
    call = cblas.bind(address, "ilpfd" + "l" * 12, values)
    assert call() is None
    call()
    assert got == [values, values]
    with pytest.raises(ValueError, match="takes 2 values, got 1"):
        cblas.bind(address, "ii", (1,))


def test_a_thunk_keeps_what_it_is_told_to_and_lets_go_of_it() -> None:
    import gc
    import weakref

    class Kept:
        pass

    callback = ctypes.CFUNCTYPE(None)(lambda: None)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    kept = Kept()
    alive = weakref.ref(kept)
    call = cblas.bind(address or 0, "", (), keep=kept)
    del kept
    gc.collect()
    assert alive() is not None
    del call
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("name", ["numpy", "openblas", "mkl", "blis", pytest.param("torch", marks=pytest.mark.slow)])
def test_every_peer_found_here_multiplies_every_layout(name: str) -> None:
    found, left_out = peer.find(Setting(), [name])
    assert [c.name for c in found] + list(left_out) == ["tilewright", name]
    if left_out:
        pytest.skip(left_out[name])
    for dtype in ("f32", "f64"):
        for layout in ("nn", "nt", "tn", "tt"):
            for size in ((37, 29, 41), (1, 29, 41), (37, 1, 41), (37, 29, 1)):
                o = operands.make(Gemm(*size, dtype, layout=layout))
                way = next(iter(found[1].ways(Product(dtype, dtype, dtype))))
                fn, args = way.bind(o)
                fn(*args)
                assert check.wrong(o.a, o.b, o.c) is None, (dtype, layout, size)


def test_an_unknown_peer_is_named_and_blis_has_no_threads() -> None:
    with pytest.raises(ValueError, match="unknown peer 'atlas'; the peers are numpy, "):
        peer.find(Setting(), ["atlas", "numpy"])
    assert "blis" in peer.find(Setting(2), ["blis"])[1]


def test_torch_is_loaded_before_mkl_however_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(name: str) -> peer.Peer:
        loaded.append(name)
        return fake(name, Clock(), 1e9)

    known = tuple(replace(x, load=lambda setting, name=x.name: load(name), is_here=lambda: True)
                  for x in peer.libraries())
    monkeypatch.setattr(peer, "libraries", lambda: known)
    found, _ = peer.find(Setting(), ["mkl", "torch"])
    assert loaded == ["torch", "mkl"]
    assert [c.name for c in found] == ["tilewright", "torch", "mkl"]


AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def test_narrow_kernels_are_called_narrow_where_the_cpu_has_wider_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00 /lib/libmkl_rt.so.3\n7f01 /lib/libmkl_vml_def.so.3\n7f02 /lib/libmkl_def.so.3\n")
    monkeypatch.setattr(cblas, "cpu_flags", lambda: frozenset({"avx2", "fma"}))
    assert (cblas.named("Haswell"), mkl_peer.kernels(maps)) == ("Haswell", "libmkl_def")
    monkeypatch.setattr(cblas, "cpu_flags", lambda: frozenset({"avx2", "fma", *AVX512}))
    assert cblas.named("SkylakeX") == "SkylakeX"
    assert cblas.named("Haswell") == "Haswell: narrower than this CPU"
    assert mkl_peer.kernels(maps) == "libmkl_def: narrower than this CPU"
    maps.write_text("7f02 /lib/libmkl_avx512.so.3")
    assert mkl_peer.kernels(maps) == "libmkl_avx512"
    maps.write_text("7f00 /lib/libmkl_rt.so.3")
    assert mkl_peer.kernels(maps) is None
    assert mkl_peer.kernels(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("flags", "own", "avx2_only", "names"),
    [
        ({"avx2", "fma", *AVX512}, "generic", False, ["haswell", "zen2", "skx"]),
        ({"avx2", "fma", *AVX512}, "skx", False, ["skx", "haswell", "zen2"]),
        ({"avx2", "fma", *AVX512}, "skx", True, ["haswell", "zen2"]),
        ({"avx2", "fma", "avx512f"}, "zen2", False, ["zen2", "haswell"]),
        ({"avx"}, "sandybridge", False, ["sandybridge"]),
        ({"asimd"}, "generic", False, ["generic"]),
    ],
)
def test_blis_is_tried_with_all_kernels_that_the_cpu_runs(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], own: str, avx2_only: bool, names: list[str]
) -> None:
    for module in (cblas, blis):
        monkeypatch.setattr(module, "cpu_flags", lambda: frozenset(flags))
    assert blis.kernels(own, avx2_only) == names


def test_a_trial_finds_the_fastest() -> None:
    clock = Clock()
    calls = {name: clock.peer(name, seconds) for name, seconds in {"a": 3e-3, "b": 1e-3, "c": 2e-3}.items()}
    assert blis.fastest(calls, clock) == "b"


def test_numpy_says_which_kernels_its_openblas_runs() -> None:
    core = numpy_peer.kernels()
    linked = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    assert (core is not None) == ("openblas" in linked)


# ---- child


def job(cases: list[Case], **options: object) -> Job:
    rules = Rules(min_rounds=3, max_rounds=3, turn_s=1e-4, warm_s=0.0)
    return replace(Job(1, "native", cases, rules), **options)


def fake(name: str, clock: Clock, rate: float, spoil: bool = False) -> peer.Peer:
    """Multiplies at `rate` flop/s of the fake clock, and wrongly if asked to."""

    def bind(o: operands.Operands) -> measure.Call:
        def call() -> None:
            np.matmul(o.a, o.b, o.c)
            o.c[0, 0] += spoil
            clock.now += o.problem.flops / rate

        return call, ()

    return peer.single(name, "1", "fake", bind)


def square(*sizes: int) -> list[Case]:
    return suites.squares("square", sizes, "f32")


def test_a_case_gives_a_row_per_peer_and_ratios() -> None:
    clock = Clock()
    bench = Bench(job(square(32)), [fake("tilewright", clock, 4e9), fake("slow", clock, 2e9)], clock=clock)
    result = bench.run(square(32)[0])
    assert result.gflops("tilewright") == pytest.approx(4, rel=0.01)
    assert result.gflops("slow") == pytest.approx(2, rel=0.01)
    ratio = result.ratio("slow")
    assert ratio.median == pytest.approx(2, rel=0.01)
    assert result.fastest_peer() == "slow"


def test_whoever_would_be_too_slow_sits_the_next_size_out() -> None:
    clock = Clock()
    cases = square(16, 64)
    bench = Bench(
        job(cases, max_call_s=0.1), [fake("tilewright", clock, 1e9), fake("naive", clock, 1e5)], clock=clock
    )  # naive: 0.08 s at 16, which makes 5 s at 64
    assert bench.run(cases[0]).sample("naive") is not None
    row = bench.run(cases[1]).row("naive")
    assert row.error == "left out: one call would take about 5 s"


def test_short_of_time_the_slowest_leave_first_but_never_numpy() -> None:
    clock = Clock()
    rates = {"tilewright": 1e9, "numpy": 1e8, "a": 9e8, "b": 5e8, "c": 7e8}
    cases = square(16, 64)
    bench = Bench(job(cases, max_case_s=0.026), [fake(n, clock, r) for n, r in rates.items()], clock=clock)
    bench.run(cases[0])
    seated, out = bench.seated(cases[1])
    assert [c.name for c in seated] == ["tilewright", "numpy", "a"]
    assert list(out) == ["b", "c"]


def test_no_case_is_begun_that_would_end_after_the_deadline() -> None:
    clock = Clock()
    cases = square(16, 64)
    bench = Bench(job(cases, deadline_s=1.0), [fake("tilewright", clock, 1e6)], clock=clock)
    assert bench.too_late(cases[0]) is None
    bench.run(cases[0])
    assert "about 2 s more" in str(bench.too_late(cases[1]))


def test_tilewright_is_timed_beside_itself() -> None:
    clock = Clock()
    case = Case("awkward", Gemm(17, 17, 17), beside=Gemm(16, 16, 16))
    bench = Bench(job([case]), [fake("tilewright", clock, 1e9), fake("numpy", clock, 1e9)], clock=clock)
    result = bench.run(case)
    ratio = result.ratio(BESIDE)
    assert ratio.median == pytest.approx(1.0, rel=0.01)  # the same rate, though not the same time
    assert [row.name for row in result.rows] == ["tilewright", "numpy", BESIDE]
    assert result.fastest_peer() == "numpy"


# ---- commands


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """The jobs of a command, which measures nothing; it runs in a folder of its own."""
    found: list[Job] = []

    def run(kind: str, jobs: object, listen: object, **options: object) -> Report:
        found.extend(jobs)  # type: ignore[call-overload]
        return Report.start(kind)

    monkeypatch.setattr(session, "run", run)
    monkeypatch.setattr(commands, "measured_peaks", lambda *_: {})
    monkeypatch.chdir(tmp_path)
    return found


def test_no_command_writes_a_file_that_was_not_asked_for(asked: list[Job], tmp_path: Path) -> None:
    for quick in (True, False):
        commands.bench(commands.Options(quick=quick), QUIET)
    commands.ladder(commands.Options(quick=True), QUIET)
    assert list(tmp_path.iterdir()) == []
    assert len(asked) == 3


def test_the_ladder_can_be_held_to_avx2(asked: list[Job]) -> None:
    options = commands.Options(isa="avx2", sizes=[200], threads=[1, 2])
    commands.ladder(options, QUIET)
    assert [(job.ladder, job.threads, job.isa) for job in asked] == [(True, 1, "avx2"), (True, 2, "avx2")]


def test_a_peer_that_is_not_installed_is_refused_at_once(
    asked: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tuple(replace(x, is_here=lambda name=x.name: name == "torch") for x in peer.libraries())
    monkeypatch.setattr(peer, "libraries", lambda: known)
    for command in (commands.bench, commands.ladder):
        options = commands.Options(peers=["numpy", "mkl", "openblas"])
        with pytest.raises(ValueError, match="mkl and openblas: not installed; pip install mkl scipy-openblas64"):
            command(options, QUIET)
    assert asked == []
    assert peer.required(["torch", "numpy"]) == ["torch", "numpy"]
    assert peer.required(None) is peer.required([]) is None


def test_tilewright_is_measured_alone_only_when_that_is_asked_for() -> None:
    assert peer.required(["none"]) == []
    assert [c.name for c in peer.find(Setting(), [])[0]] == ["tilewright"]
    assert not {"numpy", "openblas"} & {c.name for c in ladders.peers(Setting(), [])[0]}


def test_documents_and_help_say_when_a_step_sits_out() -> None:
    from tilewright.lab.cli import benches

    assert ladders.MAX_CALL_S == 2.0  # "two", in words
    for text in (benches.ladder.__doc__ or "", (ROOT / "docs" / "benchmarking.md").read_text()):
        assert "would take more than two seconds" in " ".join(text.split())


def test_progress_without_a_terminal_is_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    with outputs.Progress(Console(), "starting", 2) as bar:
        for label in ("f32 64", "f32 64", "f32 128"):
            bar.update(label)
        bar.advance()
        bar.update("f32 256")
        bar.say("f32 64: 3 GFLOP/s")
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line.split("s ", 1)[-1] for line in err.splitlines()]
    assert lines == ["1 of 2  f32 64", "1 of 2  f32 128", "2 of 2  f32 256", "f32 64: 3 GFLOP/s"]


def test_a_result_is_told_as_it_comes(measured: Report, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    with outputs.Progress(Console(), "", 1) as bar:
        listen = commands.listener(bar)
        listen(job([]), {"event": "result", "result": measured.results[0].to_json()})
    assert capsys.readouterr().err == (
        "1 thread: f32 nn 64: tilewright 524.3, numpy 262.1, mkl 476.6 GFLOP/s; 1.10 (0.83 to 1.10) mkl\n"
    )


# ---- session


def test_the_environment_counts_threads_and_narrows_the_isa(monkeypatch: pytest.MonkeyPatch) -> None:
    steering = ("MKL_THREADING_LAYER", "MKL_CBWR", "OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY", "TILEWRIGHT_TARGET")
    for name in (*steering, "OPENBLAS_NUM_THREADS", "TILEWRIGHT_CACHE_DIR"):
        monkeypatch.setenv(name, "inherited")
    native, avx2 = session.environment(3, "native"), session.environment(3, "avx2")
    assert native["OPENBLAS_NUM_THREADS"] == native["TILEWRIGHT_NUM_THREADS"] == "3"
    assert not set(steering) & set(native)
    assert native["TILEWRIGHT_CACHE_DIR"] == "inherited"
    assert (avx2["OPENBLAS_CORETYPE"], avx2["MKL_ENABLE_INSTRUCTIONS"]) == ("Haswell", "AVX2")
    assert avx2["TILEWRIGHT_TARGET"] == "x86-avx2"
    with pytest.raises(ValueError, match="target must be native or avx2, got 'sse'"):
        session.environment(1, "sse")


@pytest.mark.slow
def test_a_child_measures_and_reports() -> None:
    events: list[str] = []
    asked = job(suites.cases(["square"], ["f32"])[:2], peers=["numpy"])
    found = session.run("bench", [asked], lambda _, event: events.append(event["event"]), note="test")
    assert events == ["peers", "case", "result", "case", "result", "done"]
    assert [r.case for r in found.results] == asked.cases
    assert all(row.sample for r in found.results for row in r.rows), [
        row.error for r in found.results for row in r.rows
    ]
    assert found.sessions[0].notes == []
    assert [c["name"] for c in found.sessions[0].peers] == ["tilewright", "numpy"]
    assert found.sessions[0].load_after is not None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", "SIGABRT (it said nothing)"),
        ("raise SystemExit('no luck')", "no luck"),
        ("import sys; sys.stdin.buffer.read(); raise ValueError('bad job')", "ValueError: bad job"),
    ],
)
def test_a_child_that_dies_leaves_a_note(monkeypatch: pytest.MonkeyPatch, program: str, reason: str) -> None:
    monkeypatch.setattr("tilewright.lab.measure.process.START", program)
    found = Report.start("bench")
    assert [*session.measure(job(square(16)), found)] == []
    assert found.sessions[0].notes == [f"the measuring process ended early while starting: {reason}"]


def interrupted(asked: Job, found: Report) -> None:
    found.sessions.append(Session(asked.threads, asked.isa))
    raise KeyboardInterrupt


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "measure", interrupted)
    found = session.run("bench", [job([]), job([])], lambda *_: None)
    assert len(found.sessions) == 1
    assert "interrupted" in found.sessions[0].notes[0]


def test_ctrl_c_ends_with_130_at_once_and_says_what_is_kept(monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(session, "measure", interrupted)
    monkeypatch.setattr(commands, "measured_peaks", lambda *_: pytest.fail("it goes on measuring"))
    options = commands.Options(json=tmp_path / "r.json", quick=True)
    assert commands.bench(options, common.console(stderr=True)) == 130
    assert capsys.readouterr().err.endswith(f"tilewright: interrupted; 0 results until then in {tmp_path / 'r.json'}\n")
    assert results.load(tmp_path / "r.json").interrupted


# ---- results, report, plot, readme


def test_no_result_file_is_written_in_a_checkout_with_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab-dirty")
    monkeypatch.setattr(commands, "startup",
                        lambda rounds, options, console: results.save(Report.start("startup"), options.json))
    path = tmp_path / "r.json"
    assert "from a checkout with changes (0123456789ab-dirty)" in refused("bench", "startup", "--json", path)
    assert not path.exists()
    assert call("bench", "--allow-dirty", "startup", "--json", path).exit_code == 0
    with pytest.raises(readme.FigureError, match=r"r\.json: these results are of a checkout with changes"):
        readme.fill("<!-- figure: machine r.json -->\n<!-- /figure -->", tmp_path)


def test_a_script_that_measures_refuses_a_checkout_with_changes(monkeypatch: pytest.MonkeyPatch,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab-dirty")
    for words, fails in ((["--out", "r"], True), ([], False), (["--out", "r", "--allow-dirty"], False)):
        monkeypatch.setattr("sys.argv", ["script", *words])
        parser = argparse.ArgumentParser()
        parser.add_argument("--out")
        if fails:
            with pytest.raises(SystemExit):
                results.options(parser, "out")
            assert "from a checkout with changes" in capsys.readouterr().err
        else:
            assert results.options(parser, "out").allow_dirty == (len(words) == 3)


def test_every_script_that_writes_results_asks_for_a_clean_checkout() -> None:
    """Whatever writes a file in bench/, but for pictures, pages and the planner's table made of results."""
    writing = re.compile(r"write_text|results\.(save|write)\(|\.write\(")
    for path in (ROOT / "bench").glob("*.py"):
        text = path.read_text()
        if writing.search(text) and path.name not in ("readme.py", "fit_residuals.py"):
            assert re.search(r"results\.(options|check_tree)\(|study\.parsed\(", text), path.name


def git(root: Path, *words: str) -> str:
    named = ["-c", "user.name=x", "-c", "user.email=x@x"]
    return subprocess.run(["git", "-C", str(root), *named, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, from which tilewright seems to run."""
    monkeypatch.undo()
    root = tmp_path / "checkout"
    here = root / "tilewright" / "lab" / "measure" / "machine.py"
    (root / "bench" / "results").mkdir(parents=True)
    here.parent.mkdir(parents=True)
    here.write_text("")
    (root / "bench" / "results" / "old.json").write_text("{}")
    monkeypatch.setattr(machine, "__file__", str(here))
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        git(root, *words)
    return root


def test_the_commit_is_dirty_where_what_is_measured_changed(checkout: Path) -> None:
    assert re.fullmatch("[0-9a-f]{12}", machine.commit() or "")
    (checkout / "bench" / "results" / "r.json").write_text("{}")
    (checkout / "notes.md").write_text("")
    assert re.fullmatch("[0-9a-f]{12}", machine.commit() or "")
    (checkout / "tilewright" / "new.py").write_text("")
    assert re.fullmatch("[0-9a-f]{12}-dirty", machine.commit() or "")


def test_results_of_a_copy_at_another_commit_are_of_the_commit_with_their_sources(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, home = tmp_path / "copy", checkout / "bench" / "results" / "r.json"
    git(tmp_path, "clone", "-q", str(checkout), str(copy))
    old = machine.sources()
    assert old == machine.sources("HEAD")
    for root in (checkout, copy):  # the copy gets the files of a later commit, not the commit
        (root / "tilewright" / "new.py").write_text("x = 1\n")
        (root / "tilewright" / "lab" / "measure" / "machine.py").write_text("y = 2\n")
        (root / "notes.md").write_text(str(root))
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "y")
    commit = machine.commit()
    (checkout / "notes.md").write_text("later")
    git(checkout, "commit", "-q", "-a", "-m", "z")
    with monkeypatch.context() as patched:
        patched.setattr(machine, "__file__", str(copy / "tilewright" / "lab" / "measure" / "machine.py"))
        found = Report.start("startup")
        results.save(found, home)
    assert (found.commit or "").endswith("-dirty")
    assert found.sources == machine.sources() == machine.sources("HEAD") != old
    with pytest.raises(readme.FigureError, match=r"let `python bench/readme.py commit FILE` find the one"):
        readme.shown(home)
    assert readme.main(["commit", str(home)]) == 0
    assert readme.shown(home).commit == commit
    results.save(replace(found, sources="1" * 64), home)
    with pytest.raises(ValueError, match="no commit up to HEAD has the sources 111111111111"):
        results.name_commit(home)
    home.write_text("{}")
    with pytest.raises(ValueError, match="does not say with which sources"):
        results.name_commit(home)


def test_committed_results_have_the_sources_of_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if machine.commit() is None or git(ROOT, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("no checkout with its history")
    for path in (ROOT / "bench" / "results").glob("*.json"):
        record = json.loads(path.read_text())
        if isinstance(record, dict) and record.get("sources"):
            assert machine.sources(record["commit"]) == record["sources"], path.name


@pytest.fixture
def measured() -> Report:
    """Two sizes, three peers, one of them wrong once; a neighbour; a suite of calls."""
    found = Report.start("bench", quick=True)
    people = [{"name": n, "version": "1.0", "how": f"{n}()"} for n in ("tilewright", "numpy", "mkl")]
    found.sessions.append(Session(1, "native", people, {"blis": "blis is not installed"}, 0.1, 0.2, 0.0))

    def row(name: str, *seconds: float) -> Row:
        return Row(name, Sample(seconds, 10))

    for n, (ours, numpy, mkl) in {64: (1e-6, 2e-6, 1.1e-6), 512: (1e-3, 1.2e-3, 0.9e-3)}.items():
        rows = [
            row("tilewright", ours, ours, 2 * ours),
            row("numpy", numpy, numpy, 2 * numpy),
            row("mkl", mkl, mkl, mkl),
        ]
        found.results.append(Result(square(n)[0], 1, "native", tuple(rows)))
    wrong = (row("tilewright", 1.0), Row("mkl", error="wrong result: C[0, 0] is 1, the float64 product is 2"))
    found.results.append(Result(square(1024)[0], 1, "native", wrong))
    near = Case("awkward", Gemm(509, 509, 509), beside=Gemm(512, 512, 512))
    found.results.append(Result(near, 1, "native", (row("tilewright", 1.0), row("numpy", 2.0), row(BESIDE, 1.0))))
    calls = Case("overhead", Gemm(8, 8, 8))
    tiny = (row("tilewright", 40e-9), row("numpy", 640e-9), row("mkl", 30e-9))
    found.results.append(Result(calls, 1, "native", tiny))
    return found


def test_a_report_survives_json(measured: Report, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    results.save(measured, path)
    assert results.load(path) == measured
    assert list(tmp_path.iterdir()) == [path]
    first = json.loads(path.read_text())["results"][0]
    assert first["size"] == "64"
    assert first["rows"][0]["median_s"] == 1e-6
    assert first["rows"][0]["gflops"] == pytest.approx(524.288)


def test_another_schema_and_another_file_are_refused(measured: Report, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**measured.to_json(), "schema": 99}))
    with pytest.raises(ValueError, match="schema 99"):
        results.load(path)
    for text in ("{}", "[]", "nonsense"):
        path.write_text(text)
        with pytest.raises(ValueError):
            results.load(path)


def test_a_failed_save_leaves_the_old_file(measured: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        results.save(measured, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_ratios_are_medians_of_rounds_not_ratios_of_medians(measured: Report) -> None:
    ratio = measured.results[0].ratio("mkl")
    assert ratio.median == pytest.approx(1.1)
    assert ratio.q1 == pytest.approx(0.825)  # halfway between the slow round's 0.55 and 1.1
    assert measured.results[0].fastest_peer() == "mkl"
    assert measured.results[-1].fastest_peer() == "numpy"  # calls are compared with what Python can call


def test_tables_show_rates_ratios_and_what_is_wrong(measured: Report) -> None:
    text = shown(measured)
    for expected in ("524.3", "1.10 (0.83 to 1.10) mkl", "0.90 (0.67 to 0.90) mkl", "geometric mean", "blis is not",
                     "wrong result: C[0, 0]", "0.98 of 512", "16.00", "ns per call", "mkl 1.0: mkl()"):
        assert expected in text, expected


def test_the_caption_says_how_we_compare_with_ourselves() -> None:
    cases = {509: 0.98, 1021: 0.95}
    found = [
        Result(
            Case("awkward", Gemm(n, n, n), beside=Gemm(n, n, n, layout="tt")), 1, "native",
            (Row("tilewright", Sample((1.0,), 1)), Row(BESIDE, Sample((ratio,), 1))),
        )
        for n, ratio in cases.items()
    ]
    ((group, results_),) = tables.groups(found)
    assert "against itself 0.965, least 0.950" in str(tables.table(group, results_).caption)


def test_a_busy_machine_is_mentioned(measured: Report) -> None:
    assert not any("busy" in line for line in report.remarks(measured))
    measured.sessions[0].others = 0.2
    measured.sessions[0].stolen = 0.1
    said = report.remarks(measured)
    assert any("0.2 CPUs busy" in line for line in said)
    assert any("10%" in line for line in said)
    assert report.warnings(measured) == []


def test_a_peer_that_is_never_there_is_named_once(measured: Report) -> None:
    measured.sessions.append(Session(2, "native", [], {"blis": "blis is not installed", "mkl": "mkl has one thread"}))
    assert report.remarks(measured)[:2] == ["blis left out: blis is not installed",
                                            "2 threads: mkl left out: mkl has one thread"]


def test_a_busy_machine_is_the_first_thing_a_report_says_and_it_states_no_mean(measured: Report) -> None:
    assert "geometric mean" in shown(measured)
    measured.sessions[0].others = 0.7
    measured.machine["cpus"] = 2
    said = shown(measured)
    assert said.startswith("1 thread: other processes used 0.7 of 2 CPUs while this was measured: repeat on an idle")
    assert "geometric mean" not in said
    assert "1.10 (0.83 to 1.10) mkl" in said  # rounds that nobody disturbed still compare


def test_disturbed_rounds_claim_no_ratio(measured: Report, tmp_path: Path) -> None:
    rows = tuple(
        replace(row, sample=replace(row.sample, disturbed=True)) if row.sample else row
        for row in measured.results[0].rows
    )
    measured.results[0] = replace(measured.results[0], rows=rows)
    results.save(measured, tmp_path / "r.json")
    assert results.load(tmp_path / "r.json") == measured
    assert tables.best_ratio(measured.results[0]) is None
    said = shown(measured)
    assert "disturbed" in said
    assert "geometric mean" not in said
    assert "1.10 (0.83" not in said


def test_a_rate_beyond_the_ceiling_says_that_the_ceiling_is_out_of_date(measured: Report) -> None:
    group = ("square", "f32", 1, "native")
    measured.extra["peak_gflops"] = {"f32 1 native": 510.0}  # the best rate is 524.3
    assert tables.peak_of(measured, group) == 510.0
    measured.extra["peak_gflops"] = {"f32 1 native": 300.0}
    assert tables.peak_of(measured, group) is None
    said = shown(measured)
    assert "524.3 GFLOP/s, beyond the 300.0 that multiply-adds alone reached: that ceiling is out of date" in said
    assert "alone reach 300" not in said


def test_a_narrow_terminal_loses_spreads_but_no_figure(measured: Report) -> None:
    for width in (80, 200):
        text = shown(measured, width)
        assert "…" not in text
        assert "524.3" in text
        assert "1.10" in text
        assert ("1.10 (0.83 to 1.10) mkl" in text) or width == 80


def test_without_matplotlib_the_message_says_what_to_install(
    measured: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raster, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[plot\]' in the clone"):
        plot.draw(measured, tmp_path / "p.png")


def test_figures_are_written_between_their_markers(measured: Report, tmp_path: Path) -> None:
    results.save(measured, tmp_path / "r.json")
    document = "".join(
        f"<!-- figure: {kind} r.json{options} -->\nold\n<!-- /figure -->\nprose\n"
        for kind, options in {
            "rates": " suite=square dtype=f32 threads=1", "summary": "", "machine": "",
        }.items()
    )
    filled = readme.fill(document, tmp_path)
    assert "old" not in filled
    assert filled.count("prose") == 3
    assert "| 64 | 524.3 | 262.1 | 476.6 | 1.10 (0.83 to 1.10) mkl |" in filled
    assert "against numpy 1.0; mkl 1.0." in filled
    assert readme.fill(filled, tmp_path) == filled


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("pie r.json", "unknown figure 'pie'"),
        ("rates r.json colour=red", "unknown option"),
        ("rates r.json dtype=f16", "no"),
        ("rates r.json", "chooses 3 tables"),
    ],
)
def test_markers_that_ask_for_nothing_are_errors(measured: Report, tmp_path: Path, marker: str, message: str) -> None:
    results.save(measured, tmp_path / "r.json")
    with pytest.raises(readme.FigureError, match=message):
        readme.fill(f"<!-- figure: {marker} -->\n<!-- /figure -->", tmp_path)


def test_the_documents_say_what_the_committed_results_say() -> None:
    stale = [path.name for path in readme.outdated(ROOT)]
    assert not stale, f"run python bench/readme.py: {stale} differ from bench/results"


# ---- machine, startup


def test_the_machine_is_described_in_json() -> None:
    said = json.loads(json.dumps(machine.describe()))
    assert said["cpus_allowed"] >= 1
    assert said["caches"]["l1d"] >= 1 << 12
    assert machine.last_level_bytes() == max(said["caches"].values())
    assert "numpy" in said["packages"]


def test_startup_times_whole_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.lab.bench.suites import startup

    monkeypatch.setattr(
        startup, "PROGRAMS", {"a": "pass", "b cold": "import os; assert os.environ['TILEWRIGHT_CACHE_DIR']"}
    )
    steps: list[None] = []
    samples = startup.run(2, lambda: steps.append(None))
    assert len(steps) == 4
    assert all(len(s.seconds) == 2 and math.isfinite(s.spread.median) for s in samples.values())
    monkeypatch.setattr(startup, "PROGRAMS", {"a": "raise SystemExit('no such thing')"})
    with pytest.raises(RuntimeError, match="no such thing"):
        startup.run(1)


def test_options_are_recorded_without_the_files_they_name() -> None:
    said = commands.Options(json=Path("x"), plot=Path("y")).recorded()
    assert "json" not in said
    assert json.dumps(said)


@pytest.mark.parametrize(("kind", "names", "n", "threads", "other", "said"), [
    ("elementwise", ("z = x + y", "sums of rows"), 3000, 2, "numpy", ("sums of rows", "3,000")),
    ("contract", ("squared distances", "the same, 32 in an i32", "nearest neighbours, k = 16"), 12, 1, study.ALONE,
     ("24x24x128", "12x12x16")),
    ("epilogues", ("relu", "bias + gelu"), 40, 1, study.ALONE, ("bias + gelu",)),
])
def test_a_study_is_timed_shown_and_written_and_wrong_results_are_refused(
    kind: str, names: tuple[str, ...], n: int, threads: int, other: str, said: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rich.console import Console

    suite = import_module(f"tilewright.lab.bench.suites.{kind}")
    monkeypatch.setattr(Rules, "choose", lambda *_: Rules(1e-4, 0, 0.1, 2, 2, 0))
    monkeypatch.setattr(probes, "ceilings", lambda: SimpleNamespace(peak_bandwidth=lambda *_: 1e10))
    monkeypatch.setattr(suite, "CASES", {name: suite.CASES[name] for name in names})
    numpy_alone = [library for library in peer.libraries() if library.name == "numpy"] if other == "numpy" else []
    monkeypatch.setattr(peer, "libraries", lambda: numpy_alone)
    options, text = commands.Options(threads=[threads], sizes=[n], json=tmp_path / "r.json"), io.StringIO()
    assert commands.records(kind, options, Console(file=text, width=120)) == 0
    assert all(words in text.getvalue() for words in said)
    found = results.load(tmp_path / "r.json").extra[kind]
    assert [(x["case"], x["n"], x["threads"]) for x in found] == [(name, n, threads) for name in names]
    assert all(set(x["seconds"]) == {"tilewright", other} for x in found)
    if kind == "elementwise":
        assert [x["bytes"] for x in found] == [36000, 12000]
        monkeypatch.setattr(suite.tw, "kernel", lambda emit: lambda *args: args[-1].fill(7))
    elif kind == "contract":
        monkeypatch.setattr(suite.tw, "contract", lambda *_, out=None, **__: np.zeros(24) if out is None else out)
    else:
        monkeypatch.setitem(suite.CASES, "relu", lambda acc: suite.tw.relu(acc) + 0.1 * isinstance(acc, np.ndarray))
    with pytest.raises(RuntimeError, match=re.escape(f"{names[0]} of {n} by tilewright: its result is wrong")):
        list(study.records(suite, [(name, n) for name in suite.CASES]))
