"""tilewright.plan is what tilewright.matmul runs, for every kind of formats: the recipe that matmul makes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tilewright as tw
from tilewright import formats
from tilewright.plans.measured import store
from tilewright.runtime.cpu import engine

RNG = np.random.default_rng(3)
FORMATS = [("f32", "f32", "f32"), ("f64", "f64", "f64"), ("i8", "i8", "i32"), ("u8", "i8", "i8"), ("i16", "i16", "i32"),
           ("i32", "i32", "i32"), ("i64", "u64", "i64"), ("bf16", "bf16", "f32"), ("bf16", "f16", "bf16"),
           ("f16", "f16", "f16"), ("e4m3fn", "e5m2", "f32"), ("e2m1", "bf16", "f32"), ("bool", "i8", "i32"),
           ("c64", "c64", "c64"), ("c128", "c128", "c128"), ("f32", "c64", "c64"), ("c64", "f64", "c128"),
           ("mxfp8", "mxfp8", "f32"), ("mxfp4", "mxfp4", "bf16")]
SIZES = [((130, 96, 200), "nn"), ((130, 96, 200), "tt"), ((3, 500, 300), "nn"), ((40, 20, 10), "nt")]


def operand(name: str, shape: tuple[int, int], axis: int):
    x = RNG.integers(0, 3, shape)
    if name in formats.BLOCK_FORMATS:
        return tw.quantize(x.astype(np.float32), name, axis=axis)
    return x.astype(formats.FORMATS[name].dtype)


def run(problem: tw.Gemm, **how):
    """The recipes that matmul makes."""
    engine.forget()
    a, b = operand(problem.a, problem.shape_a, -1), operand(problem.b, problem.shape_b, -1)
    trans = {f"trans_{name}": letter == "t" for name, letter in zip("ab", problem.layout)}
    tw.matmul(a, b, out_dtype=problem.out, **trans, **how)
    return [recipe for recipe, _ in engine._recipes.values()]


@pytest.mark.parametrize("kinds", FORMATS, ids="-".join)
@pytest.mark.parametrize(("sizes", "layout"), SIZES, ids=str)
def test_matmul_runs_the_plan(kinds, sizes, layout):
    if kinds[0] in formats.BLOCK_FORMATS:
        layout, sizes = "nt", (sizes[0], sizes[1], 320)
    problem = tw.Gemm(*sizes, *kinds, layout)
    for how in ({}, {"threads": 1}):
        (recipe,) = run(problem, **how)
        chosen = engine.plan_problem(problem, tw.detect(), **how)
        assert tw.plan(problem, **how) == chosen.plan
        wanted = engine.ready(chosen)
        assert (recipe.plan, recipe.shape, recipe.function) == (wanted.plan, wanted.shape, wanted.function)


@pytest.mark.parametrize("kinds", [("f32", "f32", "f32"), ("i8", "i8", "i32")], ids="-".join)
def test_matmul_and_plan_take_what_the_tuner_measured(kinds, monkeypatch):
    problem = tw.Gemm(130, 96, 200, *kinds)
    model = tw.plan(problem, threads=1)
    shape = engine.plan_problem(problem, tw.detect(), 1).shape
    other = tw.plans.CpuPlan("packed", model.mr, model.nr, 2 * model.mr, 64, 2 * model.nr)
    monkeypatch.setattr(store, "best", lambda s, target: other if s == shape else None)
    (recipe,) = run(problem, threads=1)
    assert tw.plan(problem, threads=1) == recipe.plan == tw.explain(problem, threads=1).plan == other
    assert tw.compile(problem, plan=other).shape == shape


@pytest.mark.parametrize("kinds", FORMATS, ids="-".join)
@pytest.mark.parametrize("target", ["x86-avx512", "x86-avx2"])
def test_every_format_is_planned_compiled_and_explained(kinds, target):
    problem = tw.Gemm(100, 90, 96, *kinds)
    kernel = tw.compile(problem, target)
    assert kernel.plan == tw.plan(problem, target)
    assert kernel.functions[-1].name in kernel.llvm
    text = str(tw.explain(problem, target))
    assert str(kernel.plan) in text
    assert f"sums in {kernel.shape.sums}" in text or not kernel.shape.depth


@pytest.mark.parametrize("kinds", [("i8", "u8", "i32"), ("bf16", "e5m2", "bf16"), ("c64", "c64", "c64"),
                                   ("f32", "c64", "c64"), ("i4", "i32", "i16")], ids="-".join)
def test_every_format_is_simulated(kinds):
    """To the last bit, also for a chip that is not here, with alpha and beta."""
    problem = tw.Gemm(66, 65, 70, *kinds, "nt")
    a, b = operand(kinds[0], (66, 70), -1), operand(kinds[1], (65, 70), -1).T
    c = np.ones((66, 65), formats.FORMATS[kinds[2]].dtype)
    wanted = tw.matmul(a, b, c=c, alpha=2, beta=3, out_dtype=kinds[2])
    for target in ("x86-avx2", "x86-avx512"):
        kernel = tw.compile(problem, target)
        found = tw.simulate(kernel, a, b, c.copy(), alpha=2, beta=3)
        np.testing.assert_array_equal(found.result, wanted)


def test_algorithms_are_planned():
    target = tw.target("x86-avx512")
    amx = dataclasses.replace(target, extensions=("amx-tile", "amx-bf16"), missing=("amx",))
    problem = tw.Gemm(2048, 2048, 2048)
    assert tw.plan(problem, amx, 1, "bf16_bf16_f32_x3").mr == 32
    assert tw.plan(problem, target, 1, "bf16_bf16_f32_x3") == tw.plan(problem, target, 1)
    with pytest.raises(ValueError, match=r"algorithm must be None or one of bf16_bf16_f32_x3, .*, not 'x3'"):
        tw.plan(problem, target, 1, "x3")
    with pytest.raises(ValueError, match="splits operands of f16 whose products are added up in f32; gemm_f32"):
        tw.plan(problem, target, 1, "bf16_bf16_f32_x4")


def test_block_scaled_operands_are_decoded_by_matmul_alone():
    problem = tw.Gemm(64, 64, 64, "mxfp8")
    a = tw.quantize(np.ones((64, 64), np.float32), "mxfp8", axis=-1)
    kernel = tw.compile(problem)
    for call in (kernel, lambda a, b: tw.simulate(kernel, a, b)):
        with pytest.raises(ValueError, match="block-scaled operands, which matmul decodes to bf16 first"):
            call(a, tw.quantize(np.ones((64, 64), np.float32), "mxfp8", axis=-2))
