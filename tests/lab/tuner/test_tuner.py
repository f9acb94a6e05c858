"""The tuner: who wins, children that hang or crash, the store shared by processes, and that matmul heeds it."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tests.doubles.impatient import Impatient
from tests.helpers.command_line import call, said
from tests.helpers.processes import start as python
from tilewright import shape_list
from tilewright.lab.measure import measure
from tilewright.lab.tuner import candidates, child, many, on_cpu, running, search, space
from tilewright.lab.tuner.child import REFERENCE, Phase
from tilewright.lab.tuner.space import Space
from tilewright.plans import CpuPlan, Shape, shape_of
from tilewright.plans.choose import choose
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.row import KEY, Row
from tilewright.plans.model import cost
from tilewright.runtime.cpu import engine, small

HERE = tw.detect()
PROBLEM = tw.Gemm(70, 80, 90)
SHAPE = shape_of(PROBLEM, 1)
OTHER = CpuPlan("packed", 6, 2 * HERE.lanes(4), 24, 32, 4 * HERE.lanes(4))
ELSE = dataclasses.replace(OTHER, mc=48)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """A file per test; no tables; and recipes that know nothing of them afterwards."""
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "tuning.jsonl"))
    monkeypatch.setattr(choice, "TABLES", tmp_path / "tables")
    monkeypatch.setattr(choice, "_tried", {})
    choice._shipped.cache_clear()
    store.warn_once.cache_clear()
    engine.forget()
    yield tmp_path / "tuning.jsonl"
    monkeypatch.undo()
    choice._shipped.cache_clear()
    engine.forget()


def row(plan=OTHER, shape=SHAPE, role="best", date="2026-01-02T00:00:00+00:00", **fields):
    values = {
        "target": HERE.name, "model": HERE.model, "l1d": HERE.l1d, "l2": HERE.l2, "l3": HERE.l3,
        **dict(zip(KEY, shape.key)),
        "plan": str(plan), "role": role, "seconds": 1e-3, "q1": 0.9e-3, "q3": 1.1e-3, "ratio": 1.5, "ratio_q1": 1.4,
        "ratio_q3": 1.6, "rounds": 9, "date": date, "machine": "a test", "tilewright": "0", "llvmlite": "0",
    }
    return Row(**{**values, **fields})


# ---- who wins


def rounds(**ratios):
    """Seconds of three rounds, from matmul's time over each contender's."""
    noise = (1.0, 1.3, 0.9)
    return {REFERENCE: list(noise), **{name: [t / r for t, r in zip(noise, rs)] for name, rs in ratios.items()}}


def test_a_clear_winner():
    seconds = rounds(model=(1, 1, 1), fast=(1.1, 1.2, 1.1), faster=(1.3, 1.2, 1.3), slow=(0.5, 0.5, 0.5))
    assert child.winner(seconds, "model") == "faster"
    assert child.against(REFERENCE, seconds)["faster"].median == pytest.approx(1.3)


@pytest.mark.parametrize(
    "seconds",
    [
        rounds(model=(1, 1, 1), less=(1.009, 1.009, 1.009)),
        rounds(model=(1, 1, 1), unsure=(1.1, 0.8, 1.1)),
        rounds(model=(1.1, 1.1, 1.1), disturbed=(1.1, 1.1, 1.1)),
        rounds(model=(1, 1, 1)),
        rounds(sure=(0.9, 0.9, 0.9)),
    ],
    ids=["less than 1 %", "not in three rounds of four", "no better than the model's", "alone", "slower than matmul"],
)
def test_no_winner(seconds):
    assert child.winner(seconds, "model") is None


def test_finalists():
    many = {f"plan{n}": (1 + n / 100,) * 3 for n in range(6)}
    seconds = rounds(model=(0.8, 0.8, 0.8), hopeless=(0.9, 0.9, 0.9), **many)
    assert child.finalists(seconds, "model") == [REFERENCE, "model", "plan5", "plan4", "plan3"]
    assert child.finalists(rounds(model=(1, 1, 1), hopeless=(0.9, 0.9, 0.9)), "model") == [REFERENCE, "model"]


def test_an_incomplete_round_does_not_count():
    phase = Phase(("a", "b"))
    assert phase.rounds == 0
    phase.seconds["a"], phase.seconds["b"] = [1.0, 2.0], [3.0]
    assert phase.rounds == 1
    assert phase.complete() == {"a": [1.0], "b": [3.0]}


# ---- which plans are tried


@pytest.mark.parametrize("name", ["x86-avx512", "x86-avx2", "neon"])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("sizes", [(512, 512, 512), (8, 4096, 4096), (4096, 1, 4096), (3, 3, 3), (1000, 999, 5)])
def test_candidates_are_legal_and_differ(name, threads, sizes):
    target, shape = tw.target(name), Shape("f32", *sizes, "rows", "columns", threads)
    for count in (1, 5, 12):
        found = candidates.promising(shape, target, count)
        assert found[0] == choose(shape, target)
        assert 1 <= len(found) <= count
        assert len(set(found)) == len(found)
        assert [plan.violations(shape, target) for plan in found] == [[]] * len(found)


def test_candidates_are_no_repetitions_of_the_same_idea():
    found = candidates.promising(Shape("f32", 2000, 2000, 2000, "rows", "rows", 2), tw.target("zen4"), 12)
    for trait in (lambda p: (p.mr, p.nr), lambda p: p.kc, lambda p: p.mc // p.mr, lambda p: (p.jc_ways, p.ic_ways)):
        assert len(set(map(trait, found))) >= 2


# ---- the process that measures


def events(job):
    told = []
    child.run(job, lambda event, **details: told.append({"event": event, **details}))
    return told


def test_what_the_child_tells(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    plans = tuple(map(str, candidates.promising(SHAPE, HERE, 3)))
    told = events(child.Job(PROBLEM, HERE, 1, plans, 20.0))
    kinds = [event["event"] for event in told]
    assert kinds[: len(plans) + 1] == ["trying"] * (len(plans) + 1)
    assert kinds.count("phase") == 2
    assert kinds[-1] == "done"
    phases = [event["names"] for event in told if event["event"] == "phase"]
    assert phases[0] == [REFERENCE, *plans]
    assert phases[1][:2] == [REFERENCE, plans[0]]
    assert all(event["seconds"] > 0 for event in told if event["event"] == "turn")


def test_the_reference_is_matmul_in_a_process_bound_to_one_cpu(monkeypatch):
    """Which then believes that there are fewer cores than the process that asked."""
    monkeypatch.setattr(on_cpu, "detect", lambda: dataclasses.replace(HERE, cores=1))
    job = child.Job(PROBLEM, dataclasses.replace(HERE, cores=4), 1, (), 1.0)
    assert on_cpu.OnCpu(job).tried(REFERENCE)[0][0] is tw.matmul
    other = dataclasses.replace(job, target=dataclasses.replace(HERE, l2=1))
    assert on_cpu.OnCpu(other).tried(REFERENCE)[0][0] is not tw.matmul


def test_plans_are_timed_by_the_call_that_users_would_make(monkeypatch):
    """Each is matmul's while it has its turn; of products that take long the engine's."""
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    monkeypatch.setattr(on_cpu, "SHORT_S", 10.0)
    model = choose(SHAPE, HERE)
    by = on_cpu.OnCpu(child.Job(PROBLEM, HERE, 1, (str(model), str(OTHER)), 1.0))
    try:
        calls = {name: by.tried(name) for name in (REFERENCE, str(model), str(OTHER))}
        assert {call for each in calls.values() for call, _ in each} == {tw.matmul}
        for name, plan in ((REFERENCE, model), (str(OTHER), OTHER), (str(model), model)):
            by.o.poison()
            track = by.track(calls[name])
            track.calibrate(measure.Rules(turn_s=1e-4))
            assert choice.chosen(SHAPE, HERE)[0] == plan
            track.turn()
            assert by.wrong() is None
        monkeypatch.setattr(on_cpu, "SHORT_S", 0.0)
        assert by.tried(REFERENCE)[0][0] is tw.matmul       # which this learns from
        assert by.tried(str(OTHER))[0][0] is not tw.matmul
    finally:
        by.restore()
    assert choice.chosen(SHAPE, HERE)[0] == model


@pytest.mark.parametrize("fault", [None, KeyboardInterrupt])
def test_no_plan_stays_in_use_when_the_child_is_done(monkeypatch, fault):
    """However it ends: the last turn was that of any contender."""
    monkeypatch.setattr(on_cpu, "SHORT_S", 10.0)

    def compare(by, job, calls, emit):
        choice.put_in_use(by.planned.shape, HERE, str(OTHER))
        if fault:
            raise fault

    monkeypatch.setattr(on_cpu.OnCpu, "compare", compare)
    with pytest.raises(fault) if fault else nullcontext():
        events(child.Job(PROBLEM, HERE, 1, (str(choose(SHAPE, HERE)), str(OTHER)), 0.1))
    assert choice.plans(HERE) == {}
    assert choice.chosen(SHAPE, HERE)[0] == choose(SHAPE, HERE)


def test_wrong_and_raising_plans_are_out(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    monkeypatch.setattr(on_cpu, "SHORT_S", 0.0)             # then what is called is the engine
    wrong, illegal = "packed 5x16 mc=25 kc=64 nc=64", "packed 99x16 mc=99 kc=64 nc=64"
    real = engine.gemm

    def gemm(a, b, c, *args, plan=None, **options):
        real(a, b, c, *args, plan=plan, **options)
        if str(plan) == wrong:
            c[3, 5] += 1

    monkeypatch.setattr(engine, "gemm", gemm)
    told = events(child.Job(PROBLEM, HERE, 1, (str(choose(SHAPE, HERE)), wrong, illegal), 0.3))
    out = {event["name"]: event["reason"] for event in told if event["event"] == "out"}
    assert set(out) == {wrong, illegal}
    assert out[wrong].startswith("wrong result: C[3, 5] is")
    assert "registers" in out[illegal]


def test_no_time_for_all(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    plans = tuple(map(str, candidates.promising(SHAPE, HERE, 6)))
    told = events(child.Job(PROBLEM, HERE, 1, plans, 1e-9))
    assert [event["event"] for event in told][:3] == ["trying"] * 3
    assert [event["name"] for event in told if event["event"] == "out"] == list(plans[2:])
    assert told[-1]["event"] == "done"


# A child that says what it is told to: plans named after what happens when they are tried.
PRETENDER = """
import json, os, pickle, sys, time
sys.path.append(sys.argv[2])
job = pickle.load(sys.stdin.buffer)
def tell(event, **details):
    print(json.dumps(dict(event=event, **details)), flush=True)
def hang():
    print("hangs", flush=True)
    time.sleep(600)
for name in ("in use", *job.plans):
    tell("trying", name=name)
    if "mc=777" in name:
        hang()
    if "mc=888" in name:
        os.abort()
tell("phase", names=["in use", *job.plans])
if any("mc=1234" in name for name in job.plans):
    tell("disturbed")
for turn in range(9):
    for name in ("in use", *job.plans):
        if turn == 3 and "mc=999" in name:
            hang()
        if turn == 3 and "mc=1111" in name:
            os.abort()
        tell("turn", name=name, seconds=0.5 if "mc=24 " in name else 1.0)
tell("done")
"""
HANGS, CRASHES, HANGS_LATER, CRASHES_LATER = (dataclasses.replace(OTHER, mc=mc) for mc in (777, 888, 999, 1111))


@pytest.fixture
def pretend(monkeypatch):
    """tune(), with these candidates and the pretender for a child."""
    monkeypatch.setattr("tilewright.lab.measure.process.START", PRETENDER)
    monkeypatch.setattr(running, "Child", Impatient)

    def tune(*candidates, time_limit=20.0, listen=None, **options):
        monkeypatch.setattr(space, "promising", lambda shape, target, count: list(candidates))
        return tw.tune(PROBLEM, threads=1, time_limit=time_limit, listen=listen, **options)

    return tune


def test_the_winner_is_used_from_then_on(pretend):
    assert choice.best(SHAPE, HERE) is None
    result = pretend(OTHER)
    assert result.improved
    assert result.best.plan == str(OTHER)
    assert result.best.ratio == 2
    assert result.best.rounds == 9
    assert result.best.model == HERE.model
    assert result.best.tilewright == tw.__version__
    assert result.best.date
    assert f"matmul uses {OTHER} from now on: 2.00 (2.00 to 2.00) times as fast." in str(result)
    assert choice.best(SHAPE, HERE) == OTHER
    assert store.rows() == list(result.rows)


def test_what_others_disturbed_is_not_stored(pretend):
    result = pretend(OTHER, dataclasses.replace(OTHER, mc=1234))
    assert result.disturbed
    assert not result.improved
    assert {r.ratio for r in result.rows} == {1.0, 2.0}                 # they are shown all the same
    assert "Other processes disturbed this: nothing is stored, and matmul stays as it was" in str(result)
    assert store.rows() == []
    assert choice.best(SHAPE, HERE) is None


def test_the_table_begins_with_what_the_verdict_names(pretend):
    """The model's plan, where a faster one was disturbed or faster by noise alone; else the fastest."""
    assert pretend(OTHER).rows[0].plan == str(OTHER)
    result = pretend(OTHER, dataclasses.replace(OTHER, mc=1234))
    assert (result.rows[0].role, result.rows[1].ratio) == ("model", 2.0)
    assert str(result).splitlines()[1].endswith("(model)  *")


def test_despite_load_the_process_is_timed_and_the_answer_says_so(pretend, monkeypatch):
    said = str(pretend(OTHER, despite_load=True))
    assert "CPU time of this process, not time on the wall" in said
    assert "With several threads" not in said
    assert search.default_seconds(True, True) == 2 * search.default_seconds(True)
    job = child.Job(PROBLEM, HERE, 1, (str(OTHER),), 1.0, despite_load=True)
    busy = on_cpu.OnCpu(job)
    assert busy.rounds > on_cpu.OnCpu(dataclasses.replace(job, despite_load=False)).rounds
    monkeypatch.setattr("tilewright.lab.measure.quiet.Watch.disturbed", lambda self: True)
    assert not busy.watch()()
    assert busy.track(busy.tried(REFERENCE)).clock is time.process_time
    busy.restore()
    with pytest.raises(ValueError, match="despite_load is for products on CPUs, not for gemm_f32_nn_70x80x90"):
        tw.tune(PROBLEM, "sm_90a", despite_load=True)


def test_what_was_left_out_fits_the_terminal(pretend):
    result = pretend(CRASHES, OTHER)
    assert f"left out: {CRASHES}:" in result.text(80)
    assert max(map(len, result.text(80).splitlines())) <= 80


@pytest.mark.parametrize(("first", "then", "rounds", "why"), [
    (HANGS, OTHER, 9, "it sent no result for 15 s"), (CRASHES, OTHER, 9, "SIGABRT"),
    (OTHER, HANGS_LATER, 3, "it sent no result for 15 s"), (OTHER, CRASHES_LATER, 3, "SIGABRT")])
def test_a_candidate_that_hangs_or_crashes(pretend, first, then, rounds, why):
    """When it is tried, or later: then the rounds that were complete count."""
    result = pretend(first, then)
    assert (result.best.plan, {r.rounds for r in result.rows}) == (str(OTHER), {rounds})
    if first is OTHER:
        assert why in result.notes[0]
    else:
        assert list(result.failed) == [str(first)]
        assert f"left out: {first}: {result.failed[str(first)]}" in str(result)
        assert why in result.failed[str(first)]


@pytest.mark.parametrize(("plan", "limit", "start", "why"), [
    (HANGS, 20.0, PRETENDER, r"nothing could be measured for gemm_f32_nn_70x80x90: .*SIGABRT"),
    (OTHER, 20.0, "raise SystemExit('no luck today')", "no luck today"),
    (HANGS, 0.1, PRETENDER, "nothing could be measured"),
], ids=["all fail", "no child", "no time"])
def test_nothing_is_measured(pretend, monkeypatch, plan, limit, start, why):
    monkeypatch.setattr("tilewright.lab.measure.process.START", start)
    if "SIGABRT" in why:
        monkeypatch.setattr(Space, "model", CRASHES)
    with pytest.raises(RuntimeError, match=why):
        pretend(plan, time_limit=limit)


def test_events_are_passed_on(pretend):
    heard = []
    pretend(OTHER, listen=heard.append)
    tried = [x for x in heard if x["event"] != "compiled"]         # as many as are not in the cache yet
    assert tried[0] == {"event": "trying", "name": REFERENCE}
    assert heard[-1] == {"event": "done"}


@pytest.mark.parametrize("kind", ["f64", "mxfp8"])
def test_a_real_run(own_store, kind):
    result = tw.tune(tw.Gemm(40, 50, 320, kind, layout="nt"), threads=1, time_limit=2, candidates=4)
    assert len(result.rows) >= 2
    assert not result.notes
    assert result.disturbed == ("Other processes disturbed this" in str(result))    # a child sees the real machine
    assert {r.dtype for r in result.rows} == {shape_of(result.problem, 1).key[0]}
    assert [r.role for r in result.rows].count("model") == 1
    assert all(0 < r.ratio_q1 <= r.ratio <= r.ratio_q3 for r in result.rows)
    used = CpuPlan.parse(result.best.plan) if result.improved else None
    assert all(1e8 < r.clock < 1e10 for r in result.rows)
    assert result.best.vendor == (f"numpy {np.__version__}" if kind == "f64" else None)
    assert (result.best.vendor_ratio is None) == (result.best.vendor is None)
    assert choice.best(shape_of(result.problem, 1), HERE) == used


@pytest.mark.parametrize(
    ("problem", "options", "error", "words"),
    [
        (tw.Gemm(0, 3, 3), {}, ValueError, "empty product"),
        (tw.Gemm(3, 3, 3, batch=2), {}, ValueError, "a batch of 2, whose products run by the plan of one on CPUs"),
        (tw.Gemm(3, 3, 3, "f32", out="i32"), {}, ValueError, "out = i32, to which products of f32"),
        (PROBLEM, {"time_limit": 0}, ValueError, "time_limit must be a positive number"),
        (PROBLEM, {"target": next(t for t in map(tw.target, ("neon", "x86-avx2")) if not t.runnable)}, RuntimeError,
         "cannot run on this machine"),
    ],
)
def test_what_cannot_be_tuned(problem, options, error, words):
    with pytest.raises(error, match=words):
        tw.tune(problem, **options)


@pytest.mark.parametrize("kinds", [("i8", "u8", "i32"), ("bf16", "bf16", "bf16"), ("f32", "f64"), ("c64",)], ids=str)
def test_other_formats_are_measured(kinds):
    """The model's plan and another one, which are right; the row that is kept says which formats, and is read back."""
    problem = tw.Gemm(70, 80, 90, *kinds)
    found = engine.plan_problem(problem, HERE, 1)
    plans = tuple(map(str, candidates.promising(found.shape, found.target, 2)))
    told = events(child.Job(problem, HERE, 1, plans, 0.3))
    assert not [event for event in told if event["event"] == "out"]
    assert {event["name"] for event in told if event["event"] == "turn"} >= {REFERENCE, *plans}
    assert Row.from_json(row(plans[-1], found.shape).to_json()).shape == found.shape


FUNCTIONS = {
    "epilogue": tw.Gemm(40, 48, 24, epilogue=tw.epilogue(lambda acc, bias: tw.relu(acc + bias), bias="row")),
    "prologue": tw.Gemm(40, 48, 24, "f32", "i8", prologue_b=tw.prologue(lambda w, s: w * s, "i8", s="row")),
    "semiring": tw.Gemm(40, 48, 24, semiring=tw.semiring(lambda x, y: x + y, "argmin")),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_products_with_functions_are_measured_by_the_calls_that_users_make(own_store, kind):
    """The model's plan and another one, which are right; and what is stored is what such calls take from then on."""
    problem = FUNCTIONS[kind]
    with tw.threads(1):
        found = engine.plan_problem(problem, HERE, 1)
        other = candidates.promising(found.shape, found.target, 2)[1]
        told = events(child.Job(problem, HERE, 1, (str(found.plan), str(other)), 0.2))
        assert not [event for event in told if event["event"] == "out"]
        assert {event["name"] for event in told if event["event"] == "turn"} >= {REFERENCE, str(other)}
        stored = row(other, found.shape)
        store.save([stored])
        assert (" " in stored.dtype) == (kind != "epilogue")    # named by the functions; an epilogue does not count
        assert Row.from_json(stored.to_json()) == stored
        assert engine.plan_problem(problem, HERE, 1)[3:] == (other, choice.MEASURED)
        again = tw.Gemm(40, 48, 24, "f32", "i8", prologue_b=tw.prologue(lambda b, s: b * s, "i8", s="row"))
        assert (engine.plan_problem(again, HERE, 1).plan == other) == (kind == "prologue")      # by another name
        by = on_cpu.OnCpu(child.Job(problem, HERE, 1, (), 1.0))
        by.tried(REFERENCE)
        assert by.wrong() is None
        by.o.c[3:, 5] += 1
        assert by.wrong().startswith("C[3, 5] is")
        # under a key that the call does not ask for, nothing would be measured
        by.planned = found._replace(shape=found.shape._replace(threads=2))
        with pytest.raises(RuntimeError, match="the call did not ask for a plan of a 40x48x24 product"):
            by.tried(str(other))
        by.restore()
    assert tw.plan(tw.Gemm(40, 48, 24, semiring=tw.semiring(lambda x, y: x - y, "argmin")), threads=1) != other \
        or kind == "epilogue"


def test_a_measured_plan_of_other_formats_is_used(own_store):
    problem = tw.Gemm(70, 80, 90, "i8", "u8", "i32")
    found = engine.plan_problem(problem, HERE, 1)
    other = candidates.promising(found.shape, found.target, 2)[1]
    store.save([row(other, found.shape)])
    assert tw.plan(problem, threads=1) == other
    assert tw.plan(tw.Gemm(70, 80, 90, "u8", "i8", "i32"), threads=1) != other or found.shape.dtype == "f32"


def test_nowhere_to_keep_results(monkeypatch, tmp_path, pretend):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "file" / "db"))
    with pytest.raises(OSError, match=r"the directory .*file for tuning results cannot be made \(File exists\)"):
        pretend(OTHER)
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    with pytest.raises(ValueError, match="switched off by TILEWRIGHT_TUNE_DB=off"):
        pretend(OTHER)


# ---- the store


def test_save_and_best(own_store):
    assert not own_store.exists()
    assert store.rows() == []
    rows = [row(), row(choose(SHAPE, HERE), role="model", ratio=1.0), row(ELSE, role="", ratio=0.5)]
    assert store.save(rows) == 3
    assert store.rows() == rows
    assert choice.best(SHAPE, HERE) == OTHER
    for field, value in (("m", 71), ("dtype", "f64"), ("a", "columns"), ("threads", 2)):
        assert choice.best(SHAPE._replace(**{field: value}), HERE) is None
    assert choice.best(SHAPE, dataclasses.replace(HERE, model="another one")) is None
    assert choice.best(SHAPE, dataclasses.replace(HERE, name="another-isa")) is None


def test_saving_again_replaces(own_store):
    """The second run finds nothing better than the model, which may since have changed its mind."""
    model = choose(SHAPE, HERE)
    store.save([row(date="2026-01-01"), row(model, role="model", date="2026-01-01")])
    assert store.save([row(role="", date="2026-01-03"), row(model, role="model", date="2026-01-03")]) == 2
    assert len(store.rows()) == 2
    assert choice.best(SHAPE, HERE) is None
    assert choice.plans(HERE) == {}


def test_an_older_run_does_not_win(own_store):
    """Of a run that comes later by import the rows are kept, but its winner is not used."""
    store.save([row(date="2026-01-05")])
    assert store.save([row(ELSE, date="2026-01-01", ratio=1.1), row(role="", date="2026-01-01")]) == 1
    assert choice.best(SHAPE, HERE) == OTHER
    assert [(r.plan, r.role) for r in store.rows()] == [(str(OTHER), "best"), (str(ELSE), "")]


@pytest.mark.parametrize("plan", ["packed 99x16 mc=99 kc=64 nc=64", "wonderful 3x3"], ids=["illegal", "unknown"])
def test_a_plan_that_cannot_run_is_not_used(plan):
    store.save([row(plan)])
    assert choice.best(SHAPE, HERE) is None


def test_another_process_is_noticed(own_store):
    assert choice.best(SHAPE, HERE) is None
    store.save([row()])
    script = """
        import dataclasses, sys
        from tilewright.plans.measured import choice, store
        from tilewright.plans.measured.row import Row
        store.save([Row.from_json(sys.argv[1])])
        """
    assert choice.best(SHAPE, HERE) == OTHER
    newer = ELSE
    process = python(script, row(newer, date="2027-01-01").to_json())
    assert process.wait() == 0, process.stderr.read()
    assert choice.best(SHAPE, HERE) == newer


def test_many_processes_write(own_store):
    script = """
        import dataclasses, sys, warnings
        from tilewright.plans.measured import choice, store
        from tilewright.plans.measured.row import Row
        warnings.simplefilter("error")
        first, number = Row.from_json(sys.argv[1]), int(sys.argv[2])
        for turn in range(25):
            store.save([dataclasses.replace(first, m=100*number + turn + 1)])
            assert choice._plans(store.path())
        """
    children = [python(script, row().to_json(), str(n)) for n in range(4)]
    for process in children:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len(store.rows()) == 100


def test_a_file_that_another_process_has_just_made(own_store):
    """The first process that locks the file writes its first line, and rows stay."""
    with open(own_store, "xb"):                         # made, and not locked yet
        os.chmod(own_store, 0o600)
        assert store.save([row()]) == 1
    assert own_store.read_bytes().startswith(b'{"schema": 1}\n')
    assert len(store.rows()) == 1
    assert store.clear() == 1
    assert store.save([row()]) == 1
    assert own_store.read_bytes().startswith(b'{"schema": 1}\n')


def test_a_killed_writer(own_store):
    """What it had not committed is not there, and nobody has to wait for it."""
    store.save([row()])
    script = """
        import os, signal, sys
        from tilewright.plans.measured import choice, store
        with store._locked(store.path()) as file:
            file.seek(0, 2)
            file.write(b'{"target": "x86')
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        """
    assert python(script).wait() == -9
    assert choice.best(SHAPE, HERE) == OTHER
    assert store.save([row(date="2027-01-01")]) == 1


@pytest.mark.parametrize("content", [b"", b"this is no line of JSON at all\n" * 100])
def test_a_damaged_file(own_store, content, pretend):
    own_store.write_bytes(content)
    if content:
        with pytest.warns(RuntimeWarning, match=r"cannot read its tuning results in .* and goes on without") as seen:
            assert [choice.best(SHAPE, HERE), choice.best(SHAPE, HERE)] == [None, None]
        assert len(seen) == 1
        with pytest.raises(ValueError, match="is not a store of tuning results"):
            pretend(OTHER)
    assert store.clear() == 0
    assert pretend(OTHER).improved


@pytest.mark.parametrize(("old", "new", "words"), [
    ('{"schema": 1}', '{"schema": 7}', "has schema 7"), ('"m": 70', '"m": "many"', "it has an invalid row"),
    ('"dtype": "f32"', '"dtype": 32', "it has an invalid row"), ('"a": "rows"', '"a": null', "it has an invalid row"),
    ('"threads": 1', '"threads": 0.5', "it has an invalid row"), ("", "", "it has more than 0 MiB")])
def test_a_file_that_is_not_read(own_store, monkeypatch, old, new, words):
    store.save([row()])
    assert old in own_store.read_text()
    own_store.write_text(own_store.read_text().replace(old, new))
    if not old:
        monkeypatch.setattr(store, "MOST_BYTES", 100)
    with pytest.warns(RuntimeWarning, match=words):
        assert choice.best(SHAPE, HERE) is None
    assert choice.plans(HERE) == {}
    if "schema" in words:
        with pytest.raises(ValueError, match="has schema 7, and this tilewright supports schema 1"):
            store.save([row()])


def test_a_file_that_export_wrote_is_a_store(own_store):
    own_store.write_text(row().to_json() + "\n")
    own_store.chmod(0o600)
    assert store.rows() == [row()]
    assert choice.best(SHAPE, HERE) == OTHER


def test_off_and_elsewhere(monkeypatch, tmp_path):
    store.save([row()])
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    assert store.path() is None
    assert choice.best(SHAPE, HERE) is None
    assert choice.plans(HERE) == {}
    assert store.rows() == []
    assert store.clear() == 0
    monkeypatch.delenv("TILEWRIGHT_TUNE_DB")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert store.path() == tmp_path / "tuning.jsonl"


def test_export_and_merge(own_store):
    rows = [row(shape=SHAPE._replace(m=m), commit="abc", vendor="mkl", vendor_ratio=1.1) for m in (5, 6)]
    lines = [r.to_json() for r in rows]
    assert store.merge([*lines, "", "\n"]) == 2
    assert store.rows() == rows
    assert store.merge(lines) == 0
    assert store.clear() == 2
    assert choice.best(SHAPE._replace(m=5), HERE) is None


@pytest.mark.parametrize(("change", "words"), [
    ("{", "this is not JSON"), ("[" * 100_000, "this is not JSON"), ('{"m": ' + "9" * 5000 + "}", "this is not JSON"),
    ("[]", "a row is an object"),
    ({"speed": 1}, r"a row has no field 'speed'; was it written by a newer tilewright\?"),
    ({"plan": "fast"}, "not a plan: 'fast'"), ({"plan": None}, "the row lacks 'plan'"),
    ({"m": 0}, "the row's problem is invalid"), ({"a": "diagonals"}, "the row's problem is invalid"),
    ({"m": True}, "m must be int, not True"), ({"m": 10**30}, "m must be 0 to 9223372036854775807, not 1000"),
    ({"role": "hero"}, "role must be one of 'best', 'model', '', not 'hero'"),
    ({"seconds": -1.0}, "seconds must be a positive number"), ({"ratio": "good"}, "ratio must be float, not 'good'"),
    ({"rounds": -1}, "rounds must be 0 to"), ({"ratio": 10**400}, "ratio must be 0 to"),
    ({"q1": float("nan")}, "q1 must be a finite number, not nan"),
    ({"ratio": float("inf")}, "ratio must be a finite number"),
    ({"machine": "\ud800"}, "machine must be a line of text"),
    ({"threads": 2000}, "threads must be 1 to 1024, not 2000"),
], ids=lambda x: str(x)[:20])
def test_bad_lines_are_refused_whole(own_store, change, words):
    bad = change if isinstance(change, str) else json.dumps({**json.loads(row().to_json()), **change})
    with pytest.raises(ValueError, match=f"line 2: {words}"):
        store.merge([row().to_json(), bad])
    assert store.rows() == []


# ---- matmul heeds it


def plan_in_use(m, n, k, dtype="f4"):
    engine.forget()
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    c = np.empty((m, n), dtype)
    engine.gemm(a, b, c, threads=1)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    ((recipe, _),) = engine.prepared.values()
    return recipe.plan


def test_the_engine_uses_the_best_plan():
    assert plan_in_use(70, 80, 90) != OTHER
    store.save([row()])
    assert plan_in_use(70, 80, 90) == OTHER
    assert plan_in_use(70, 80, 91) != OTHER
    assert tw.compile(PROBLEM, plan=None).plan != OTHER or tw.get_num_threads() == 1
    with tw.threads(1):
        assert tw.compile(PROBLEM).plan == OTHER
        assert tw.explain(PROBLEM).plan == OTHER


def test_small_products_ask_python_from_the_first_tuned_one_on():
    every = small._largest(HERE)
    model = choose(SHAPE, HERE)
    if model.algorithm != "in_place":
        pytest.skip("the builtin does not take this problem here")
    store.save([row(model, role="model")])
    assert small._largest(HERE) == every
    store.save([row(date="2027-01-01")])
    assert small._largest(HERE) == 70 * 80 * 90 - 1


def test_the_builtin_gives_way(monkeypatch):
    """Through the public function, which by then has seen the problem."""
    a, b, c = np.ones((70, 90), "f4"), np.ones((90, 80), "f4"), np.empty((70, 80), "f4")
    with tw.threads(1):
        for _ in range(3):
            tw.matmul(a, b, c)
        store.save([row()])
        engine.forget()
        for _ in range(3):
            tw.matmul(a, b, c)
        assert [recipe.plan for recipe, _ in engine.prepared.values()] == [OTHER]
    assert (c == 90).all()


# ---- the tables that come with tilewright


def test_tables_are_found_by_processor_and_by_caches(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    third = ELSE
    rows = [
        row(third, model="its twin"),
        row(third, shape=SHAPE._replace(m=9), model="its twin"),
        row(third, shape=SHAPE._replace(m=10), model="another", l2=HERE.l2 * 2),
        row(),
    ]
    (folder / f"{HERE.name}.jsonl").write_text("".join(each.to_json() + "\n" for each in rows))
    choice._shipped.cache_clear()
    assert choice.best(SHAPE, HERE) == OTHER  # the same processor counts more than the same caches
    assert choice.best(SHAPE._replace(m=9), HERE) == third
    assert choice.best(SHAPE._replace(m=10), HERE) is None
    fourth = dataclasses.replace(OTHER, mc=72)
    store.save([row(fourth)])
    assert choice.best(SHAPE, HERE) == fourth  # what was measured here counts most
    assert choice.plans(HERE)[SHAPE] == fourth
    store.save([row(fourth, role="model", date="2027-01-01")])
    assert choice.best(SHAPE, HERE) is None  # also that the model's choice is as good
    assert SHAPE not in choice.plans(HERE)


SHIPPED = sorted(choice.TABLES.glob("*.jsonl"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_tables(file):
    """Every row can run on its target, has its provenance, and is the only one of its problem and processor."""
    rows = [Row.from_json(line) for line in file.read_text().splitlines()]
    assert len({(r.model, choice.machine_class(r), r.shape) for r in rows}) == len(rows)
    for r in rows:
        target = dataclasses.replace(tw.target(file.stem), l1d=r.l1d, l2=r.l2, l3=r.l3)
        assert r.target == file.stem
        assert CpuPlan.parse(r.plan).violations(r.shape, target) == []
        assert all((r.date, r.machine, r.tilewright, r.llvmlite, r.commit))


# ---- the command


def command(*words):
    return call("tune", *words, COLUMNS="250")


def test_the_commands(pretend, monkeypatch, tmp_path):
    monkeypatch.setattr(space, "promising", lambda shape, target, count: [OTHER])
    assert "nothing has been tuned yet" in command("show").output
    done = command("70", "80", "90", "--threads", "1", "--time-limit", "9")
    assert done.exit_code == 0, done.output
    assert "times matmul" in done.output
    assert f"matmul uses {OTHER} from now on" in done.output
    assert "70x80x90" in command("show").output
    assert command("show").output.count("f32 nn 70x80x90") == 1
    assert command("show", "--all").output.count("f32 nn 70x80x90") == 2
    file = tmp_path / "rows.jsonl"
    assert command("export", str(file)).exit_code == 0
    assert command("export").output == file.read_text()
    assert command("clear").output == "2 rows removed\n"
    assert command("import", str(file)).output == "2 rows added\n"
    assert choice.best(SHAPE, HERE) == OTHER


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0", "3", "4"), "empty product"),
        (("3", "4"), "Missing argument"),
        (("--dtype", "f8", "3", "4", "5"), "f8"),
        (("3", "4", "5", "--threads", "none"), "--threads takes a positive whole number"),
        (("sing",), "No such command 'sing'"),
        (("import", "/no/such/file"), "no such file"),
        (("import", "rows.jsonl"), "rows.jsonl: line 1: the row lacks 'target'"),
        (("/no/such/file.jsonl",), "no such file"),
        (("shapes", "/no/file", "--threads", "2", "--target", "sm_75"), "--threads is for CPUs, and sm_75 is a GPU"),
    ],
)
def test_mistakes_on_the_command_line(words, said, tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}\n")
    found = command(*(str(tmp_path / word) if word == "rows.jsonl" else word for word in words))
    assert found.exit_code == 2
    assert said in found.output


# ---- files that somebody else, or another version, has written

HARMFUL = [
    "future 14x32 kc=3 zc=9",
    7,
    "in_place 6x16 ways=1000000x1000000x1",
    "packed 6x16 mc=100000000 kc=1024 nc=64",
    "packed 6x16 mc=99999999999999999999999 kc=8 nc=64",
    "in_place 6x16 kc=99999999999999999999999999",
    "packed 6x16 mc=6 kc=2000000000 nc=2000000000",
]


def written(own_store, **fields):
    """A row that `save` would not write."""
    store.save([row()])
    head, line = own_store.read_text().splitlines()
    own_store.write_text(f"{head}\n{json.dumps(json.loads(line) | fields)}\n")


@pytest.mark.parametrize("plan", HARMFUL, ids=str)
@pytest.mark.filterwarnings("ignore:tilewright cannot read its tuning results")
def test_a_harmful_plan_is_not_used(own_store, plan):
    """Neither for its own problem nor by the builtin, which asks for the smallest problem with another plan."""
    small_shape = SHAPE._replace(m=7, n=16, k=9)
    every = small._largest(HERE)
    written(own_store, plan=plan, m=7, n=16, k=9)
    assert choice.best(small_shape, HERE) is None
    assert small._largest(HERE) == every
    plan_in_use(7, 16, 9)


@pytest.mark.parametrize("plan", [p for p in HARMFUL[2:] if isinstance(p, str)], ids=str)
def test_a_harmful_plan_is_refused_by_its_arithmetic(plan):
    a = np.ones((40, 40), "f4")
    with pytest.raises(ValueError, match=r"must not be more than|are \d+ threads, and|are \d+ bytes, and a block"):
        tw.matmul(a, a, plan=CpuPlan.parse(plan.replace("6x16", f"6x{2 * HERE.lanes(4)}")))
    with pytest.raises(ValueError, match=r"line 1: the plan .* is invalid: .*(more than|threads|bytes)"):
        store.merge([row(plan).to_json()])


def test_blocks_are_no_larger_than_the_problem():
    """So that a plan for large problems takes no more memory than a small one needs."""
    lanes = HERE.lanes(4)
    large = CpuPlan("packed", 6, 2 * lanes, 600, 1024, 400 * lanes)
    a = np.random.default_rng(0).standard_normal((20, 30)).astype("f4")
    engine.forget()
    np.testing.assert_allclose(tw.matmul(a, a.T, plan=large, threads=1), a @ a.T, rtol=1e-4, atol=1e-4)
    ((recipe, _),) = engine.prepared.values()
    assert recipe.space <= 1 << 16


def test_a_format_of_a_newer_version(own_store):
    written(own_store, dtype="f2")
    assert choice.best(SHAPE._replace(dtype="f2"), HERE) is None
    small._largest(HERE)


def test_a_writer_does_not_delay_a_product(own_store):
    store.save([row()])
    with store._locked(own_store):
        assert choice.best(SHAPE, HERE) == OTHER


@pytest.mark.parametrize("kind", ["fifo", "writable", "somebody's", "directory"])
def test_a_file_that_is_not_this_users_own(own_store, kind):
    if kind == "somebody's" and os.geteuid() != 0:
        pytest.skip("only root can give files to somebody else")
    if kind in ("fifo", "directory"):
        os.mkfifo(own_store) if kind == "fifo" else own_store.mkdir()
    else:
        store.save([row()])
        assert own_store.stat().st_mode & 0o777 == 0o600
        own_store.chmod(0o666) if kind == "writable" else os.chown(own_store, 65534, 65534)
    words = {"writable": "can be written by other users .mode 0666", "somebody's": "belongs to user 65534"}
    with pytest.warns(RuntimeWarning, match=words.get(kind, "is not a regular file")):
        assert choice.best(SHAPE, HERE) is None
    with pytest.raises(OSError, match=words.get(kind, "is not a regular file")):
        store.save([row()])


def test_a_relative_path_does_not_count(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", "here.sqlite")
    with pytest.warns(RuntimeWarning, match="TILEWRIGHT_TUNE_DB=here.sqlite is ignored"):
        assert choice.best(SHAPE, HERE) is None
    with pytest.raises(ValueError, match="not an absolute path, so there is nowhere to keep them"):
        store.check_writable()


# ---- until it is certain


def turns(count, **ratios):
    """Seconds of so many rounds of matmul, and of plans that are so many times as fast, up to this noise."""
    noise = np.random.default_rng(0)
    seconds = {REFERENCE: [1.0] * count}
    return seconds | {name: list(1 / (ratio + spread * noise.standard_normal(count)))
                      for name, (ratio, spread) in ratios.items()}


@pytest.mark.parametrize(("seconds", "is_certain"), [
    (turns(4, model=(1, 0), fast=(1.5, 0)), False),  # too few rounds
    (turns(5, model=(1, 0), fast=(1.5, 0.01)), True),
    (turns(5, model=(1, 0), slow=(0.9, 0.01)), True),  # nothing wins
    (turns(5, model=(1, 0), near=(1.01, 0.05)), False),  # a win or none
    (turns(25, model=(1, 0), near=(1.01, 0.001)), True),  # it does not matter which
    (turns(5, model=(1, 0), fast=(1.5, 0.05), faster=(1.52, 0.05)), False),  # which of the two
    (turns(25, model=(1, 0), fast=(1.5, 0.005), faster=(1.502, 0.005)), True),
    (turns(5, model=(1.48, 0.1), fast=(1.5, 0)), False),  # no win over the model's plan, or one
    (turns(5, model=(1, 0)), True),
])
def test_when_it_is_certain_which_plan_wins(seconds, is_certain):
    assert child.certain(seconds, "model") == is_certain


def test_slower_halves_drop_out(monkeypatch):
    """And the last phase ends when the winner is certain."""
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    plans = tuple(f"plan{n}" for n in range(13))

    class Pretended(child.Contenders):
        shares = 0.3, 0.65
        rules = on_cpu.Rules(turn_s=0.001, warm_s=0)

        def __init__(self, job):
            pass

        def tried(self, name):
            seconds = 0.02 if name == REFERENCE else 0.02 + 0.01 * plans.index(name) if name != "plan7" else 0.01
            return [(lambda: setattr(clock, "now", clock.now + seconds), ())]

        def wrong(self):
            return None

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(child, "_contenders", Pretended)
    told = []
    child.run(child.Job(PROBLEM, HERE, 1, plans, 1000.0), lambda event, **more: told.append((event, more)),
              lambda: clock.now)
    phases = [more["names"] for event, more in told if event == "phase"]
    assert [len(names) for names in phases] == [14, 3]  # the others are hopeless
    assert told[-1] == ("done", {"certain": True})
    rounds = len([1 for event, more in told if event == "turn" and more["name"] == "plan7"])
    assert rounds == Pretended.rounds[0] + child.SURE


# ---- shapes nearby


def test_a_shape_nearby_takes_the_plan_if_the_model_agrees(own_store, monkeypatch):
    model, near = choose(SHAPE, HERE), SHAPE._replace(m=SHAPE.m + 10)
    assert choice.chosen(near, HERE) == (choose(near, HERE), "")
    worse = cost(near, OTHER, HERE).seconds / cost(near, choose(near, HERE), HERE).seconds
    store.save([row(ratio=0.99 * worse), row(model, role="model", ratio=1.0)])
    assert choice.chosen(SHAPE, HERE) == (OTHER, choice.MEASURED)
    assert choice.nearby(near, HERE) == (OTHER, pytest.approx(0.99 * worse))
    assert choice.chosen(near, HERE) == (choose(near, HERE), "")  # by more than was gained
    store.save([row(ratio=1.01 * worse, date="2027-01-01"), row(model, role="model", ratio=1.0, date="2027-01-01")])
    assert choice.chosen(near, HERE) == (OTHER, choice.NEARBY)
    for other in (near._replace(n=2 * SHAPE.n), near._replace(dtype="f64"), near._replace(a="columns"),
                  near._replace(threads=2), near._replace(k=0)):
        assert choice.nearby(other, HERE) is None
    assert choice.nearby(near, dataclasses.replace(HERE, model="another chip")) is None
    # the nearest counts, even if nothing was gained there
    nearest = row(choose(near, HERE), role="model", ratio=1.0, m=near.m + 1)
    store.save([nearest])
    assert choice.nearby(near, HERE) is None
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    assert choice.nearby(near, HERE) is None


def test_a_file_without_the_fields_that_came_later(own_store):
    store.save([row()])
    assert "clock" not in own_store.read_text()
    assert store.rows() == [row()]
    assert store.save([row(date="2027-01-01", clock=3e9)]) == 1
    assert [each.clock for each in store.rows()] == [3e9]
    assert Row.from_json(store.rows()[0].to_json()).clock == 3e9
    assert "clock" not in row().to_json()


# ---- many of them


def test_a_file_of_shapes_is_tuned_and_a_second_run_goes_on(pretend, monkeypatch, tmp_path):
    file = tmp_path / "shapes.jsonl"
    lines = ['{"m": 70, "n": 80, "k": 90, "threads": 1}', '{"m": 7, "n": 8, "k": 9, "count": 4, "threads": 1}',
             '{"m": 70, "n": 80, "k": 90, "threads": 1, "algorithm": "fastest"}',
             '{"m": 5, "n": 5, "k": 5, "target": "sm_75"}', '{"m": 7, "n": 8, "k": 9, "threads": 1, "batch": 2}']
    file.write_text("\n".join(lines))
    monkeypatch.setattr("tilewright.lab.measure.process.START", PRETENDER)
    monkeypatch.setattr(space, "promising", lambda shape, target, count: [])
    monkeypatch.setattr(search, "compile_all", lambda *_, **__: None)
    chip = tw.detect()
    wanted = many.tasks(shape_list.read(file), chip)
    assert [(str(task.problem), task.threads, task.reason) for task in wanted] == [
        ("gemm_f32_nn_70x80x90", 1, ""), ("gemm_f32_nn_70x80x90", 1, "it was called with algorithm='fastest'"),
        ("gemm_f32_nn_7x8x9", 1, ""), ("gemm_f32_nn_5x5x5", wanted[-1].threads, "it was called on sm_75")]
    steps = many.run(wanted, chip, 20.0)
    before, after = next(steps), next(steps)
    assert (before.number, before.of, before.result, before.seconds_left) == (1, 2, None, 40.0)
    assert after.result.problem == PROBLEM
    steps.close()  # interrupted
    for again, count in (False, 1), (True, 0):
        reasons = [task.reason for task in many.tasks(shape_list.read(file), chip, again=again)]
        assert reasons.count("it was measured before") == count
    options = "--time-limit", "20", "--json", str(tmp_path / "found.json")
    printed = said("tune", file, *options)
    assert "gemm_f32_nn_70x80x90: left out, since it was measured before" in printed
    assert "gemm_f32_nn_7x8x9, 1 thread: Nothing beats the model's choice" in printed
    assert "gemm_f32_nn_5x5x5: left out, since it was called on sm_75" in printed
    assert {(r.m, r.n, r.k) for r in store.rows()} == {(70, 80, 90), (7, 8, 9)}
    record = json.loads((tmp_path / "found.json").read_text())
    assert [("best" in each, "left_out" in each) for each in record] == [(True, False)] + 3 * [(False, True)]


def test_an_interrupted_run_says_how_to_go_on(pretend, monkeypatch, tmp_path):
    """The first problem is kept, and the second run measures the other one alone."""
    file, measured, result = tmp_path / "shapes.jsonl", [], pretend(ELSE)
    file.write_text("".join(f'{{"m": {n}, "n": {n}, "k": {n}, "threads": 1}}\n' for n in (9, 8)))

    def tune(problem, *_, **__):
        if len(measured) == 1:
            raise KeyboardInterrupt
        measured.append(str(problem))
        store.save([row(role="model", m=problem.m, n=problem.n, k=problem.k)])
        return result

    monkeypatch.setattr(many, "tune", tune)
    interrupted = call("tune", file)
    assert interrupted.exit_code == 130
    assert "interrupted; saved 1 of 2 results. Run the same command again for the other 1" in interrupted.stderr
    monkeypatch.setattr(many, "tune", lambda problem, *_, **__: measured.append(str(problem)) or result)
    assert call("tune", file).exit_code == 0
    assert measured == ["gemm_f32_nn_9x9x9", "gemm_f32_nn_8x8x8"]


def test_one_that_fails_stops_no_other(monkeypatch):
    def tune(problem, *_, **__):
        raise RuntimeError(f"{problem} cannot be measured")

    monkeypatch.setattr(many, "tune", tune)
    wanted = [many.Task(tw.Gemm(n, n, n), 1) for n in (5, 6)]
    said = [(step.number, step.reason.partition(" ")[0]) for step in many.run(wanted, tw.detect())]
    assert said == [(1, ""), (1, "gemm_f32_nn_5x5x5"), (2, ""), (2, "gemm_f32_nn_6x6x6")]
