"""Prologues inside kernels (kernels/gpu/transform.py): right in the simulator for awkward sizes, few instructions,
no spills."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.assembled import assembled
from tilewright import formats
from tilewright.expressions.factors import factored, subtracted, whole_in_floats
from tilewright.expressions.tracing import trace
from tilewright.kernels.gpu.copy import emit_prepare

RNG = np.random.default_rng(7)
BF16 = ml_dtypes.bfloat16


def dequantised(b, s, z):
    return (b - z) * s


def weights(format, k, n):
    dtype = formats.FORMATS[format].dtype
    if dtype.kind in "iu":
        return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (k, n)).astype(dtype)
    return RNG.standard_normal((k, n)).astype(dtype)


def dequantising(source, result, group, k):
    return tw.prologue(dequantised, source, result, s=f"f32 full/{group}" if group < k else "f32 row", z="i8 row")


@pytest.mark.parametrize(("m", "n", "k", "a", "source", "layout", "group", "target", "algorithm"), [
    (1, 40, 320, "bf16", "i8", "nt", 64, "sm_90a", "gemv"),
    (1, 21, 33, "f16", "i8", "nn", 3, "sm_75", "gemv"),             # groups of fewer steps than are in flight
    (1, 48, 304, "f32", "u8", "nn", 16, "sm_75", "gemv"),           # u8 less i8
    (3, 40, 320, "f32", "i8", "nt", 40, "sm_80", "gemv"),           # vectors of 16 in two groups
    (9, 33, 336, "bf16", "i8", "nt", 16, "sm_90a", "gemv"),         # a lane's steps in several groups
    (16, 48, 592, "bf16", "e4m3fn", "nt", 592, "sm_90a", "gemv"),   # runs that end within a piece
    (40, 71, 77, "bf16", "i8", "nt", 7, "sm_90a", "mma"),
    (33, 72, 144, "bf16", "i8", "nn", 16, "sm_80", "mma"),
    (33, 72, 80, "f16", "e5m2", "tt", 80, "sm_75", "mma"),
    (33, 44, 36, "f32", "i8", "tn", 4, "sm_75", "simt"),
], ids=str)
def test_weights_as_they_are_stored(m, n, k, a, source, layout, group, target, algorithm):
    problem = tw.Gemm(m, n, k, a, source, "f32", layout, prologue_b=dequantising(source, a, group, k))
    kernel = tw.compile(problem, target)
    x, w = RNG.standard_normal((m, k)).astype(formats.FORMATS[a].dtype), weights(source, k, n)
    s, z = RNG.random((-(-k // group), n), np.float32) + 0.5, RNG.integers(-9, 10, (1, n)).astype(np.int8)
    x, w = (y if letter == "n" else np.asfortranarray(y) for y, letter in zip((x, w), layout))
    found = kernel.simulate(x, w, operands={"s": s, "z": z})
    wide = (w.astype(float) - z) * np.repeat(s, group, axis=0)[:k]
    bound = {"f32": 2.0**-20, "f16": 2.0**-10, "bf16": 2.0**-8}[a] * (np.abs(x.astype(float)) @ np.abs(wide))
    assert kernel.plan.algorithm == algorithm
    assert (np.abs(found.result - x.astype(float) @ wide) <= bound).all()
    if m == 1 and k == 320:                         # whole rows for each warp
        assert (found.of("b").elements, found.of("b").bytes) == (k*n, k*n)      # each byte once


def test_activation_of_a_and_scales_of_b():
    silu = tw.prologue(lambda a, t: tw.silu(a) * t, "bf16", "bf16", t="f32 column")
    scaled = tw.prologue(lambda b, s: b * s, "i8", "bf16", s="f32 scalar")
    kernel = tw.compile(tw.Gemm(34, 48, 96, "bf16", "i8", "f32", "nn", prologue_a=silu, prologue_b=scaled), "sm_90a")
    a, b = RNG.standard_normal((34, 96)).astype(BF16), weights("i8", 96, 48)
    t, s = RNG.random((34, 1), np.float32), np.full((1, 1), 0.5, np.float32)
    x = a.astype(float)
    wanted = (x / (1 + np.exp(-x)) * t).astype(BF16).astype(float) @ (b * 0.5)
    np.testing.assert_allclose(kernel.simulate(a, b, operands={"t": t, "s": s}).result, wanted, rtol=1e-3, atol=2e-2)
    with pytest.raises(TypeError, match=r"operands\['t'\] must be f32, as prologue_a says, not float64"):
        kernel.simulate(a, b, operands={"t": t.astype(float), "s": s})


@pytest.mark.parametrize(("source", "plan", "reads"), [
    ("bf16", "64x32x64 stages=3 warpgroups=1 vector_c=2", {}),
    ("f16", "128x32x32 stages=3 warpgroups=2 vector_c=2", {}),
    ("i8", "128x64x64 stages=3 warpgroups=2 vector_c=2", {"s": "f32 column"}),
    ("i8", "64x64x64 stages=3 warpgroups=2 pingpong vector_c=1", {"s": "f32 full/64", "z": "i8 column"})], ids=str)
def test_rows_of_a_by_warpgroups(source, plan, reads):
    """Without swap, of elements of 8 and 16 bits; factors of all of k and of groups."""
    m, n, k, result = 130, 72, 192, source if source != "i8" else "bf16"
    function = dequantised if "z" in reads else (lambda b, s: b * s) if reads else tw.silu
    problem = tw.Gemm(m, n, k, source, result, "f32", "nt", prologue_a=tw.prologue(function, source, result, **reads))
    kernel = tw.compile(problem, "sm_90a", f"wgmma {plan}")
    a, b = weights(source, m, k), RNG.integers(-3, 4, (n, k)).astype(formats.FORMATS[result].dtype)
    s, z = RNG.random((m, 3 if "z" in reads else 1), np.float32) + 0.5, RNG.integers(-2, 3, (m, 1)).astype(np.int8)
    x = a.astype(float)
    wide = (x - z*("z" in reads)) * np.repeat(s, k // s.shape[1], axis=1) if reads else x / (1 + np.exp(-x))
    operands = {name: {"s": s, "z": z}[name] for name in reads} or None
    found = kernel.simulate(a, b.T, operands=operands).result
    assert (np.abs(found - wide @ b.astype(float).T) <= 2.0**-8 * (np.abs(wide) @ np.abs(b.astype(float).T))).all()


def test_plans_of_warpgroups_that_prologues_refuse():
    """Each with its reason."""
    of_b = tw.prologue(lambda b, s: b * s, "i8", "bf16", s="f32 full/48")
    for prologue, layout, k, plan, why in (
            (of_b, "nt", 192, "swap", "wgmma evaluates a prologue of A"), (of_b, "nn", 192, "", "k contiguous"),
            (of_b, "nt", 48, "", "a multiple of 32"), (of_b, "nt", 96, "", "cta_k must divide k"),
            (tw.prologue(lambda b, s: b * s, "i8", "bf16", s="f32 full/24"), "nt", 192, "", "a multiple of 16 steps"),
            (of_b, "nt", 192, "promote=64", "sums are promoted for factors of a prologue that cta_k steps share")):
        with_swap = "" if plan == "swap" else " swap"
        text = f"wgmma 64x64x64 stages=3 warpgroups=1 vector_c=1{with_swap} {plan.replace('swap', '')}".strip()
        problem = tw.Gemm(64, 64, k, "bf16", "i8", "f32", layout, prologue_b=prologue)
        with pytest.raises(ValueError, match=why):
            tw.compile(problem, "sm_90a", text)


def test_infinite_scales_beyond_k():
    """What is beyond k, in a vector or in a tile, does not meet the last group's scales."""
    for m, n, k, layout in (1, 8, 48, "nt"), (1, 16, 24, "nn"), (9, 16, 80, "nt"), (20, 16, 24, "nn"):
        p = tw.prologue(lambda b, s: b * s, "i8", "bf16", s=f"f32 full/{k // 2}")
        kernel = tw.compile(tw.Gemm(m, n, k, "bf16", "i8", "f32", layout, prologue_b=p), "sm_90a")
        w, s = np.ones((k, n), np.int8), np.ones((2, n), np.float32)
        s[1, 3] = np.inf
        w = w if layout[1] == "n" else np.asfortranarray(w)
        found = kernel.simulate(np.ones((m, k), BF16), w, operands={"s": s}).result
        assert (found[:, 3] == np.inf).all()
        assert (np.delete(found, 3, 1) == k).all()


PER_ELEMENT = [(1, "i8", 128, 4.5), (1, "e4m3fn", 128, 3.8), (8, "i8", 32, 5.2)]


@pytest.mark.parametrize(("m", "source", "group", "most"), PER_ELEMENT, ids=str)
def test_few_instructions_and_no_spills(m, source, group, most):
    """An H200 issues 6.5 instructions for each byte that its memory delivers: decoding has to stay below."""
    beside = {"s": f"f32 full/{group}"} | ({"z": "i8 row"} if source == "i8" else {})
    p = tw.prologue(dequantised if "z" in beside else lambda b, s: b * s, source, "bf16", **beside)
    kernel = tw.compile(tw.Gemm(m, 28672, 8192, "bf16", source, "bf16", "nt", prologue_b=p), "sm_90a")
    assert kernel.plan.algorithm == "gemv"
    assert sum(kernel.loop().counts.values()) <= most * 8*16        # eight loads of 16 elements are in flight
    assert kernel.resources.spills == 0


@pytest.mark.parametrize(("target", "m", "a", "plan"), [
    ("sm_75", 64, "f16", "mma 64x64x64 warp=32x32 stages=2 copy=registers vector=8"),
    ("sm_90a", 64, "bf16", "mma 64x128x32 warp=32x64 stages=2 copy=registers vector=8 tail"),
], ids=str)
def test_no_spills_of_tiles(target, m, a, plan):
    p = tw.prologue(dequantised, "i8", a, s="f32 full/128", z="i8 full/128")
    kernel = tw.compile(tw.Gemm(m, 4096, 4096, a, "i8", a, "nt", prologue_b=p), target, plan or None)
    assert kernel.resources.spills == 0


@pytest.mark.parametrize(("source", "reads", "plan", "most"), [
    ("i8", "f32 row", "64x128x128 stages=6 warpgroups=2", 5.0),
    ("i8", "f32 full/128", "128x128x128 stages=4 warpgroups=2", 6.1),
    ("e4m3fn", "f32 full/128", "64x128x128 stages=6 warpgroups=2 promote=128", 5.5),
    ("i8", "f32 row", "256x128x64 stages=4 warpgroups=2 cluster=1x2", 5.5)], ids=str)
def test_few_instructions_of_warpgroups(source, reads, plan, most):
    """The loop over stages, for an element that a lane decodes; what it needs between tiles may leave registers, but
    for the sums, which must not."""
    p = tw.prologue(lambda b, s: b * s, source, "bf16", s=reads)
    kernel = tw.compile(tw.Gemm(512, 14336, 4096, "bf16", source, "bf16", "nt", prologue_b=p), "sm_90a",
                        f"wgmma {plan} swap vector_c=1 store=tma")
    counts = kernel.loop().counts
    assert sum(counts.values()) <= most * counts["MMAs"] * 8       # pairs of two rows, for each product of 16 steps
    assert counts["local memory"] == 0
    assert kernel.resources.spills <= 32 * (kernel.plan.cta_m == 256)


def test_factors():
    f = trace(lambda b, s, t, z: (b - z) * s * t, {"b": "int", "s": "float", "t": "float", "z": "int"}, "f")
    inner, common = factored(f, frozenset("st"))
    assert inner.text.endswith("sub b z; float %0; -> %1")
    assert [x.operand for x in common.results] == ["t", "s"]
    assert factored(f, frozenset("s"))[1] is None                   # t comes last, and is no common factor
    assert whole_in_floats(inner, {"b": 128, "z": 128})
    assert not whole_in_floats(inner, {"b": 1 << 31, "z": 1})
    less, zero = subtracted(inner)
    assert zero == "z"
    assert less.text.endswith("float b; -> %0")
    assert subtracted(trace(lambda b, z: z - b, {"b": "int", "z": "int"}, "f")) is None


def test_bits_of_integers():
    """What f32 does not compute exactly is computed in integers of 32 bits; of a matrix with k across vectors, too."""
    for m, layout, group in (1, "nn", 16), (20, "nt", 48):
        p = tw.prologue(lambda b, s, t: ((b >> 3) & 7) * s * t, "i8", "bf16", s=f"f32 full/{group}", t="bf16 row")
        kernel = tw.compile(tw.Gemm(m, 16, 48, "bf16", "i8", "f32", layout, prologue_b=p), "sm_80")
        a, b = RNG.integers(-3, 4, (m, 48)).astype(BF16), weights("i8", 48, 16)
        s, t = np.full((48 // group, 16), 0.5, np.float32), RNG.integers(1, 3, (1, 16)).astype(BF16)
        held = b if layout[1] == "n" else np.asfortranarray(b)
        found = kernel.simulate(a, held, operands={"s": s, "t": t}).result
        np.testing.assert_array_equal(found, a.astype(float) @ ((b >> 3 & 7) * 0.5 * t.astype(float)))


@pytest.mark.parametrize(("arch", "pairs"), [("sm_75", 0), ("sm_90a", 4)])
def test_a_pass_rounds_two_numbers_at_once(arch, pairs):
    """silu in a pass before the product: 8 elements of bf16 a thread, reciprocals without the branch for subnormal
    ones, and roundings by one instruction for two numbers where the chip has it."""
    f = tw.prologue(tw.silu, "bf16", "bf16")
    ptx, _ = assembled(emit_prepare("bf16", f.expression.text, (), "bf16", "columns", 8, pairs > 0), arch)
    assert "rcp.rn" not in ptx
    assert ptx.count("rcp.approx.ftz.f32") == 8
    assert ptx.count("cvt.rn.bf16x2.f32") == pairs
