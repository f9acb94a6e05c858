"""The kernel that a product on this processor runs is the one that tw.plan names and tw.compile makes."""
from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import bundle
from tilewright.lab.tuner.candidates import promising
from tilewright.plans import choose, few_rows
from tilewright.plans.measured import choice
from tilewright.rules import weights
from tilewright.rules.call import Call
from tilewright.runtime.cpu import contraction, engine, host as hosts, ways
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.targets import detect

DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
N, K = 1056, 1024           # a large matrix


@pytest.fixture
def ran(monkeypatch):
    """The plans that products run by, and the emitters of their loops: nothing is compiled, nothing is multiplied."""
    found = []

    class Recording(Recipe):
        def __init__(self, *args, **more):
            before = len(asked)
            super().__init__(*args, **more)
            if len(asked) > before:             # here, and not by what `compile` asks
                found.append((args[2], asked[before]))

        def run(self, *args, **more):
            return False

        def run_job(self, *args, **more):
            pass

    asked = []
    monkeypatch.setattr(hosts, "load", lambda emitter, *args: asked.append(emitter.rpartition(".")[2])
                        or SimpleNamespace(entry=1))
    monkeypatch.setattr(hosts.host, "_tables", {})
    monkeypatch.setattr(hosts.Host, "callable", lambda self, function: lambda *args: None)
    for module in (engine, contraction):
        monkeypatch.setattr(module, "Recipe", Recording)
    monkeypatch.setattr(engine.ready, "__defaults__", ("", "", Recording, *engine.ready.__defaults__[3:]))
    monkeypatch.setattr(ways.way_of, "__defaults__", (ways.host, Recording))
    monkeypatch.setattr(contraction.recipe, "__defaults__", (None, Recording, *contraction.recipe.__defaults__[2:]))
    engine.forget()
    yield found
    engine.forget()


def checked(ran, problem, call):
    """The plan of the product is that of the problem, which is explained, and which the tuner compares with others; the
    compiled kernel has its loops."""
    plan = tw.plan(problem)
    planned = engine.plan_problem(problem, detect())
    assert plan == tw.explain(problem).plan == choose.choose(planned.shape, planned.target), problem
    assert plan in promising(planned.shape, planned.target, 12)
    kernel = tw.compile(problem)
    call()
    assert [str(p) for p, _ in ran] == [str(plan)], problem
    assert kernel.plan == plan or (problem.prologue_b and not kernel.plan.word)     # its scales lie by columns
    if kernel.plan == plan:
        assert kernel.parts[-1].emitter == ran[0][1]


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("formats", [("bf16", "bf16"), ("f16", "f16"), ("f32", "bf16")])
@pytest.mark.parametrize("m", [1, 4, 9, 33])
def test_few_rows_by_half_precision(ran, m, formats, layout):
    a, b = (DTYPES[f] for f in formats)
    x, w = np.zeros((m, K), a), np.zeros((N, K) if layout == "nt" else (K, N), b)
    checked(ran, tw.Gemm(m, N, K, *formats, layout=layout), lambda: tw.matmul(x, w, trans_b=layout == "nt"))


@pytest.mark.parametrize("m", [1, 4, 9])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("name", "how"), [
    ("i8", {}), ("i4", {"group": 128}), ("u4", {"group": 128, "zero_points": True}), ("mxfp4", {}), ("mxfp8", {}),
    ("nvfp4", {})])
def test_few_rows_by_weights(ran, name, how, dtype, m):
    x, q = np.zeros((m, K), DTYPES[dtype]), tw.quantize(np.ones((N, K), np.float32), name, axis=-1, **how)
    prologue = weights.without(Call(x, q, trans_b=True)).prologue_b
    problem = tw.Gemm(m, N, K, dtype, prologue.element, "f32", "nt", prologue_b=prologue)
    checked(ran, problem, lambda: tw.matmul(x, q, trans_b=True))


def test_a_bundle_has_the_plan_and_its_kernel(tmp_path):
    problem = tw.Gemm(4, N, K, "f16", layout="nt")
    planned = engine.plan_problem(problem, detect())
    built = tw.build([problem], tmp_path / "few.twk", workers=1)
    try:
        tw.load(built.path)
        assert choice.chosen(planned.shape, planned.target) == (planned.plan, choice.PACKED)
        assert tw.plan(problem).word == "f32"
    finally:
        bundle.used.clear()
        engine.forget()


def test_plans_that_were_measured_count(ran):
    """Of few rows of bf16 whatever the rules say, and of contractions whose axes do not merge."""
    x, w = np.zeros((4, K), DTYPES["bf16"]), np.zeros((N, K), DTYPES["bf16"])
    planned = engine.plan_problem(tw.Gemm(4, N, K, "bf16", layout="nt"), detect())
    other = next(p for p in of_one_thread(planned.shape, planned.target) if p != planned.plan)
    a, b = np.zeros((6, 5, 7, 40), np.float32)[:, :, ::2], np.zeros((4, 40, 130), np.float32)
    try:
        choice.put_in_use(planned.shape, planned.target, str(other))
        engine.forget()
        tw.matmul(x, w, trans_b=True)
        assert choice.was_asked(planned.shape, planned.target)
        assert str(ran[-1][0]) == str(other)
    finally:
        choice.put_in_use(planned.shape, planned.target, None)
    shapes = []
    usual = choice.chosen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "chosen", lambda shape, target: shapes.append(shape) or usual(shape, target))
        tw.einsum("abck,ckd->abd", a, b)
    (shape,) = [x for x in shapes if x.scattered]
    plan = next((p for p in of_one_thread(shape, detect()) if p != usual(shape, detect())[0]), None)
    if plan is None:
        pytest.skip("with AVX2 there is one plan for axes that do not merge")
    try:
        choice.put_in_use(shape, detect(), str(plan))
        engine.forget()
        tw.einsum("abck,ckd->abd", a, b)
        assert str(ran[-1][0]) == str(plan)
    finally:
        choice.put_in_use(shape, detect(), None)


def of_one_thread(shape, target):
    return [p for p in choose.ranked(shape, target) if p.threads == 1]


def test_words_are_refused_with_reasons():
    for plan, problem, words in [
            ("dots 1x4 swap word=amx_bf16", tw.Gemm(4, N, K, "f32", layout="nt"), "is for up to 64 rows of floats"),
            ("dots 1x4 swap word=bf16x2", tw.Gemm(4, N, K, "f32", "bf16", layout="nt"), "multiplies rows of bf16"),
            ("stream 4x8 word=f32", tw.Gemm(4, N, K, "f16", layout="nt"), "by contiguous columns with dots"),
            ("dots 1x3 swap word=f32", tw.Gemm(4, N, K, "f16", layout="nt"), "computes 3 rows, and C has 4")]:
        with pytest.raises(ValueError, match=words):
            tw.compile(problem, plan=plan)
    assert few_rows.instruction(engine.plan_problem(tw.Gemm(4, N, K), detect()).shape, detect()) == ("", False)
