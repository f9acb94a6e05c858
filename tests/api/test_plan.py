"""tilewright.plan is what tilewright.matmul runs, for every kind of formats: the recipe that matmul makes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tilewright as tw
from tilewright import formats
from tilewright.plans.measured import choice
from tilewright.runtime.cpu import engine

pytestmark = pytest.mark.sampled

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
    return [recipe for recipe, _ in engine.prepared.values()]


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
        (given,) = run(problem, plan=chosen.plan, **how)
        assert (given.plan, given.shape, given.function) == (wanted.plan, wanted.shape, wanted.function)


@pytest.mark.parametrize("kinds", [("f32", "f32", "f32"), ("i8", "i8", "i32")], ids="-".join)
def test_matmul_and_plan_take_what_the_tuner_measured(kinds, monkeypatch):
    problem = tw.Gemm(130, 96, 200, *kinds)
    model = tw.plan(problem, threads=1)
    shape = engine.plan_problem(problem, tw.detect(), 1).shape
    other = tw.plans.CpuPlan("packed", model.mr, model.nr, 2 * model.mr, 64, 2 * model.nr)
    monkeypatch.setattr(choice, "best", lambda s, target: other if s == shape else None)
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
    problem = tw.Gemm(20, 35, 26, *kinds, "nt")
    a, b = operand(kinds[0], (20, 26), -1), operand(kinds[1], (35, 26), -1).T
    c = np.ones((20, 35), formats.FORMATS[kinds[2]].dtype)
    wanted = tw.matmul(a, b, c=c, alpha=2, beta=3, out_dtype=kinds[2])
    for target in ("x86-avx2", "x86-avx512"):
        kernel = tw.compile(problem, target)
        found = tw.simulate(kernel, a, b, c.copy(), alpha=2, beta=3)
        np.testing.assert_array_equal(found.result, wanted)


def test_algorithms_are_planned():
    target = tw.target("zen4")
    amx = dataclasses.replace(target, extensions=("amx-tile", "amx-bf16"), missing=("amx",))
    problem = tw.Gemm(2048, 2048, 2048)
    assert tw.plan(problem, amx, 1, "bf16_bf16_f32_x3").mr == 32
    assert tw.plan(problem, target, 1, "bf16_bf16_f32_x3") == tw.plan(problem, target, 1)
    with pytest.raises(ValueError, match=r"algorithm must be None or one of bf16_bf16_f32_x3, .*, not 'x3'"):
        tw.plan(problem, target, 1, "x3")
    with pytest.raises(ValueError, match="splits operands of f16 whose products are added up in f32; gemm_f32"):
        tw.plan(problem, target, 1, "bf16_bf16_f32_x4")


def test_algorithms_are_compiled_and_explained():
    target = tw.target("x86-avx512")
    amx = dataclasses.replace(target, extensions=("amx-tile", "amx-bf16"), missing=("amx",))
    problem = tw.Gemm(320, 256, 96)
    kernel = tw.compile(problem, amx, algorithm="bf16_bf16_f32_x3")
    assert kernel.plan == tw.explain(problem, amx, algorithm="bf16_bf16_f32_x3").plan
    assert "each element as 2 terms" in str(tw.explain(problem, amx, algorithm="bf16_bf16_f32_x3"))
    assert kernel.shape.dtype == "amx_bf16_x3"
    for call in (tw.compile, tw.explain):
        with pytest.raises(ValueError, match=r"algorithm must be None or one of bf16_bf16_f32_x3, .*, not 'x3'"):
            call(problem, target, algorithm="x3")
        with pytest.raises(ValueError, match="algorithm='fastest' has plans of its own: plan must be None with it"):
            call(problem, target, kernel.plan, algorithm="fastest")
        with pytest.raises(ValueError, match="splits operands of f16 whose products are added up in f32; gemm_f32"):
            call(problem, target, algorithm="bf16_bf16_f32_x4")
    for call in (tw.plan, tw.compile, tw.explain):
        with pytest.raises(ValueError, match="algorithm= is not supported on gfx942: it must be None, not 'fastest'"):
            call(problem, "gfx942", algorithm="fastest")


def test_elements_without_terms_are_multiplied_by_the_native_kernel():
    """As matmul does it: an infinite element has no second term."""
    chip = dataclasses.replace(tw.target("x86-avx512"), extensions=("amx-tile", "amx-bf16"), missing=("amx",))
    problem = tw.Gemm(320, 256, 96, batch=2)
    kernel = tw.compile(problem, chip, algorithm="bf16_bf16_f32_x3")
    assert (kernel.shape.dtype, kernel.native.shape.dtype) == ("amx_bf16_x3", "f32")
    asked = []

    def gemm(kernel, a, b, c, alpha, beta, conj):
        asked.append(kernel)
        c[...] = -7 if kernel.splits else 2
        return kernel.splits
    out = np.ones((2, 320, 256), np.float32)
    kernel.multiply(np.ones((2, 320, 96), "f4"), np.ones((2, 96, 256), "f4"), out, 1.0, 1.0, gemm)
    assert asked == [kernel, kernel.native]
    assert (out == 2).all()


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp6", "mxfp4", "nvfp4"])
@pytest.mark.parametrize(("sizes", "layout", "batch"), [((64, 70, 65), "nt", 1), ((10, 7, 40), "nn", 1),
                                                        ((64, 70, 90), "nt", 3)], ids=str)
def test_block_scaled_operands(kind, sizes, layout, batch):
    """A compiled kernel, the simulator and matmul with the plan give the bits that matmul gives, also where a number is
    smaller than bf16 holds without being flushed."""
    m, n, k = sizes
    many = (batch,) if batch > 1 else ()
    problem = tw.Gemm(*sizes, kind, layout=layout, batch=batch)
    kernel, c = tw.compile(problem), np.ones((*many, m, n), np.float32)
    for scale in (1, 2.0**-70):
        a, b = (tw.quantize((RNG.standard_normal((*many, *shape)) * scale).astype("f4"), kind, axis=axis)
                for shape, axis in (((m, k), -1), ((k, n), -2)))
        wanted = tw.matmul(a, b)
        np.testing.assert_array_equal(kernel(a, b), wanted)
        np.testing.assert_array_equal(tw.matmul(a, b, plan=kernel.plan), wanted)
        if m == 10:
            np.testing.assert_array_equal(tw.simulate(kernel, a, b).result, wanted)
        np.testing.assert_array_equal(kernel(a, b, c.copy(), alpha=2, beta=3), tw.matmul(a, b, alpha=2, beta=3, c=c))
    with pytest.raises(TypeError, match=rf"b must be Quantized \({kind}\), not ndarray"):
        kernel(a, np.asarray(b))
