"""tilewright.pack: products with panels that were packed before have the bits of those that pack, for every format,
layout, number of rows and of threads; and what is refused, in sentences."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.drivers import packed_before
from tilewright.formats import FORMATS, Complex, Float
from tilewright.plans import CpuPlan, Shape, lowering
from tilewright.plans.cpu_shape import Strides
from tilewright.plans.words import BY_NAME
from tilewright.runtime.cpu import engine
from tilewright.runtime.cpu.packed import Prepacking
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.product import SimulatedHost, SimulatedRecipe

RNG = np.random.default_rng(9)
HERE = [chip for chip in (tw.target("x86-avx512"), tw.target("x86-avx2")) if not chip.missing]
# with all that the processor has but AMX (simulated in tests/kernels/cpu/test_amx.py), with nothing, and as it is
CHIPS = [
    replace(chip, extensions=extensions, model="")
    for chip in HERE
    for extensions in dict.fromkeys([(), tuple(x for x in chip.extensions if not x.startswith("amx"))])
] + [tw.detect()] * ("amx-tile" in tw.detect().extensions)
FORMAT_PAIRS = [("f32", "f32"), ("f64", "f64"), ("i32", "i32"), ("i64", "u64"), ("c64", "c64"), ("c128", "c128"),
                ("f16", "f16"), ("bf16", "bf16"), ("e4m3fn", "bf16"), ("e2m1", "e2m1"), ("f32", "bf16"), ("i8", "i8"),
                ("u8", "i8"), ("i8", "u8"), ("i16", "i8"), ("u16", "i16"), ("bool", "i8"), ("i4", "i4"),
                ("f32", "f64"), ("f32", "c64"), ("c64", "f32")]


def named(x):
    return " ".join([x.name, *x.extensions]) if hasattr(x, "extensions") else None


def numbers(f: str, *shape: int) -> np.ndarray:
    """Some that every operation on them rounds, but for integers and small formats."""
    kind = FORMATS[f]
    if isinstance(kind, Complex):
        return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(kind.dtype)
    if isinstance(kind, Float):
        return RNG.standard_normal(shape).astype(kind.dtype)
    return RNG.integers(0 if f[0] in "ub" else -2, 2, shape).astype(kind.dtype)


def result_of(f: str, g: str):
    return "i32" if np.matmul(*(np.zeros((1, 1), FORMATS[x].dtype) for x in (f, g))).dtype.kind in "iu" else None


def unpacked(a, b, packed, dtype) -> np.ndarray:
    """The same product by the same plan through the engine that packs, on one thread."""
    c = np.zeros((a.shape[0], b.shape[1]), packed.sums)
    kept_a, kept_b = (x if x.dtype == took else x.astype(took) for x, took in zip((a, b), packed._takes))
    lowered = lowering.lower(engine.product(kept_a, kept_b, c, 1), packed.target,
                             packed.word if packed.word in BY_NAME else "")
    plan = replace(packed.plan, jc_ways=1, ic_ways=1, jr_ways=1)
    engine.run(engine.ready(engine.Planned(*lowered, plan)), plan.swap, kept_a, kept_b, c, 1.0, 0.0)
    return c.astype(dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("f", "g"), FORMAT_PAIRS)
@pytest.mark.parametrize("chip", CHIPS, ids=named)
def test_the_bits_are_those_of_products_that_pack(chip, f, g):
    """Several blocks of k, edges everywhere; a few rows and many, more than one thread."""
    b, out = numbers(g, 1301, 75), result_of(f, g)
    packed = tw.pack(b, a=f, out_dtype=out, target=chip, rows=200)
    assert packed.word in ("f32", "f64", "i32", "i64", *BY_NAME)
    kept = b.copy()
    b[...] = 0  # nobody reads it again
    for m in (1, 9, 130):
        a = numbers(f, m, 1301)
        wanted = unpacked(a, kept, packed, packed.sums)
        for threads in (1, 2, 4):
            found = tw.matmul(a, packed, out_dtype=out, threads=threads)
            np.testing.assert_array_equal(found, wanted.astype(found.dtype))


def test_layouts_of_a_and_c():
    for f in ("f32", "c64", "bf16"):
        a, b = numbers(f, 60, 200), numbers(f, 200, 90)
        packed = tw.pack(b)
        wanted = tw.matmul(a, packed)
        for x, flag in ((np.asfortranarray(a), "n"), (a.T.copy(), "t"), (a.conj().T.copy(), "c")):
            out = np.full((60, 90), 7, wanted.dtype, order="F")
            np.testing.assert_array_equal(tw.matmul(x, packed, trans_a=flag), wanted)
            assert tw.matmul(x, packed, out, trans_a=flag) is out
            np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(tw.matmul(a[0], packed), tw.matmul(a[:1], packed)[0])
        c = np.ones((60, 90), wanted.dtype)
        tw.gemm(2, a, packed, -1, c)
        np.testing.assert_allclose(c, 2 * wanted - 1, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(tw.matmul(a, packed, alpha=0, beta=2, c=np.ones(90, c.dtype)), 2 + 0 * wanted)


def test_narrow_results_are_rounded_as_they_are_stored():
    a, b = numbers("f16", 100, 700), numbers("f16", 700, 100)
    packed = tw.pack(b)
    wide = tw.matmul(a, packed, out_dtype="f32")
    np.testing.assert_array_equal(tw.matmul(a, packed), wide.astype(np.float16))


def test_a_plan_of_ones_own():
    a, b = numbers("f32", 50, 900), numbers("f32", 900, 70)
    for chip in HERE:
        nr = 2 * chip.lanes(4)
        plans = CpuPlan("packed", 5, nr, 20, 100, 2 * nr), CpuPlan("packed", 4, nr, 8, 300, nr, 1, 2, 1, swap=True)
        for plan in plans:
            packed = tw.pack(b, plan=plan, target=chip)
            assert packed.plan == plan
            wanted = np.empty((50, 70), np.float32)
            engine.gemm(a, b, wanted, plan=plan, target=chip)
            np.testing.assert_array_equal(tw.matmul(a, packed, threads=2), wanted)
    half = tw.pack(b.astype(np.float16), plan=plan, target=chip)
    assert half.word == "f32"
    assert tw.matmul(a.astype(np.float16), half).dtype == np.float16


def test_it_is_frozen_and_tells_what_it_is():
    b = numbers("bf16", 500, 300)
    packed = tw.pack(b, rows=3000)
    assert (packed.shape, packed.dtype, packed.a, packed.sums) == ((500, 300), b.dtype, b.dtype, np.float32)
    assert packed.nbytes >= b.nbytes
    assert "bfloat16 (500, 300), to be multiplied with bfloat16 in float32" in repr(packed)
    with pytest.raises(AttributeError):
        packed.shape = (1, 1)
    with pytest.raises(TypeError, match="stays in this process"):
        pickle.dumps(packed)
    before = tw.matmul(b.T[:4, :].copy()[:, :300].repeat(2, 1)[:, :500], packed)
    del b
    gc.collect()
    assert before.shape == (4, 300)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda b: tw.pack(b[0]), ValueError, "b must have two axes or more to be packed"),
        (lambda b: tw.pack(b, a="f17"), ValueError, "a must be one of"),
        (lambda b: tw.pack(b, rows=0), ValueError, "rows must be 1 or more, not 0"),
        (lambda b: tw.pack(b, plan="packed"), ValueError, "not a plan for a CPU: .packed.; one looks like"),
        (lambda b: tw.pack(b, target="neon"), RuntimeError, "neon code cannot run on this machine"),
        (lambda b: tw.pack(b, plan=CpuPlan("in_place", 6, 16)), ValueError, "only packed plans read B as it is packed"),
        (lambda b: tw.pack(b, plan=CpuPlan("packed", 90, 16, 90, 8, 16)), ValueError, "registers, x86"),
        (lambda b: tw.pack(b, target=tw.target("neon")), RuntimeError, "neon"),
        (lambda b: tw.matmul(b, tw.pack(b)), ValueError, "a has 30 columns and b has 20 rows"),
        (lambda b: tw.matmul(b.T.astype("f8"), tw.pack(b)), TypeError,
         "a is float64, but b was packed to be multiplied with float32: pack"),
        (lambda b: tw.matmul(b.T, tw.pack(b), out_dtype="f64"), TypeError, "packed for sums in float32"),
        (lambda b: tw.matmul(b.T, tw.pack(b), trans_b=True), ValueError,
         "packed operands cannot be transposed: pass trans_b=.t. to pack"),
        (lambda b: tw.matmul(b.T, tw.pack(b), algorithm="fastest"), ValueError, "algorithm must be None with it"),
        (lambda b: tw.matmul(b.T, tw.pack(b), plan=tw.plan(tw.Gemm(8, 8, 8))), ValueError, "plan must be None with it"),
        (lambda b: tw.matmul(tw.pack(b), b.T), TypeError, "it can only be b, the right operand"),
        (lambda b: tw.matmul(tw.pack(b), tw.pack(b)), TypeError, "it can only be b, the right operand"),
        (lambda b: tw.gemm(1, b.T, tw.pack(b), 0, tw.pack(b)), TypeError, "c must be a NumPy array"),
        (lambda b: tw.pack(tw.pack(b)), TypeError, "it can only be b, the right operand"),
        (lambda b: tw.pack(tw.quantize(b, "mxfp8")), ValueError, "blocks of b must be along k, its axis -2"),
        (lambda b: tw.pack(tw.quantize(b, "i8")), ValueError, "of b that share a scale must be those along k, .* -2"),
        (lambda b: tw.pack(b.astype(np.longdouble)), TypeError, "longdouble|float128"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(np.ones((20, 30), np.float32))


# ---- threads, in the simulator, which finds races


@pytest.mark.sampled(2)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("ways", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 3, 1), (1, 1, 2), (2, 2, 2)])
def test_teams_without_races(ways, swap):
    chip, memory = tw.target("x86-avx2"), AddressSpace()
    host = SimulatedHost(memory)
    m, n, k = (40, 26, 21) if swap else (26, 40, 21)
    a, b, c = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    wanted = a @ b
    if swap:
        c = np.asfortranarray(c)  # by rows for the loops
    strides = Strides(*(s // 4 for x in (a, b, c) for s in x.strides))
    plan = CpuPlan("packed", 3, 16, 6, 8, 16, *ways, swap=swap)
    shape = Shape("f32", m, n, k, "rows", "rows", plan.threads)
    b_at = memory.address(b, "b")
    panels = packed_before(Prepacking(shape, strides, plan, chip, host), host, b_at, 2)
    b[...] = 0
    recipe = SimulatedRecipe(shape, strides, plan, chip, host, prepacked="b")
    operands = [panels, memory.address(a, "a")] if swap else [memory.address(a, "a"), panels]
    recipe.run(*operands, memory.address(c, "c"), 1, 0)
    np.testing.assert_array_equal(c, wanted)
