"""Passes that plans declare: what they write, what the kernel multiplies then, when they are offered and refused."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.plans import gpu, gpu_shape, passes
from tilewright.plans.nvidia import NvidiaPlan

H200, A100 = tw.target("sm_90a"), tw.target("sm_80")
MMA = "mma 64x64x32 warp=32x32 stages=3 vector=8 vector_c=1"


def shape(a="f32", out="f32", m=500, n=300, k=201, layout="nn", at=None, **more):
    return gpu_shape.shape(a, a, out, m, n, k, layout, at)._replace(**more)


@pytest.mark.parametrize("declared", ["copied=a", "copied=ab", "terms=bf16_x6", "terms=tf32_x3"])
def test_text(declared):
    plan = NvidiaPlan.parse(f"{MMA} {declared}")
    assert str(plan) == f"{MMA} {declared}"


def test_what_is_written():
    """Rows at multiples of 128 bytes, k filled up to whole vectors where both operands are written."""
    s = shape("bf16", "bf16", batch=3)
    a, b = passes.passes(s, "ab", "")
    assert (a.operand, a.along_k, a.rows, a.depth, a.ld, a.size) == ("a", True, 500, 201, 256, 3 * 500 * 256 * 2)
    assert (b.operand, b.along_k, b.rows, b.ld) == ("b", False, 300, 256)
    found = passes.after(s, "ab", "")
    assert (found.layout, found.k, found.vector_a, found.vector_b) == ("nt", 208, 8, 8)
    assert (found.align_a, found.align_b) == (16, 16)
    assert passes.after(found, "ab", "") == found
    only = passes.after(s, "b", "")
    assert (only.layout, only.k, only.vector_b, only.align_b) == ("nt", 201, 1, 16)     # a tensor map has edges


def test_terms():
    s = shape()
    a, _ = passes.passes(s, "none", "bf16_x6")
    assert (a.count, a.written, a.plane, a.size) == (3, "bf16", 500 * 256, 3 * 500 * 256 * 2)
    found = passes.after(s, "none", "bf16_x6")
    assert (found.a, found.out, found.k, found.bits, found.sums) == ("bf16", "f32", 208, (48, 48), "f32")
    assert passes.after(found, "none", "bf16_x6") == found
    assert passes.after(s, "none", "tf32_x3").bits == (64, 64)


@pytest.mark.parametrize(("target", "plan", "given", "reason"), [
    (H200, f"{MMA} terms=bf16_x6", shape("f16"), "splits operands of f32, and this is f16 by f16"),
    (H200, f"{MMA} terms=bf16_x6", shape(m=1), "terms are for products of matrices, and C is 1x300"),
    (H200, f"{MMA} terms=bf16_x6 copied=a", shape(),
     "copied must be none for products of scaled operands, terms or semirings"),
    (H200, f"{MMA} copy=registers terms=bf16_x6", shape(), "copy=async"),
    (H200, "simt 64x64x32 warp=32x32 thread=8x4 stages=3 terms=bf16_x6", shape(),
     "needs one of the algorithms mma, wgmma"),
    (tw.target("sm_75"), f"{MMA} terms=bf16_x6", shape(), "sm_75 has no matrix instructions for bf16"),
    (H200, "mma 128x128x32 warp=64x64 stages=3 vector=8 terms=bf16_x6", shape(), "registers"),
    (H200, MMA, shape(terms="bf16_x6"), "terms must be bf16_x6 for a 500x300x201 product"),
    (H200, "gemv 1x32x8 stages=2 copy=registers copied=a", shape(m=1), "copied must be none for products by"),
    (H200, MMA, shape(terms="tf32"), "terms must be tf32 for a 500x300x201 product"),
    (H200, f"{MMA} terms=f16", shape("bf16"), "terms=f16 multiplies operands of f16, and this is bf16 by bf16"),
    (H200, "wgmma 128x128x32 stages=4 warpgroups=2 terms=tf32", shape(k=200),
     "wgmma multiplies tf32 with k contiguous in A and B, layout nt, nn with swap or tt, not nn"),
    (H200, "wgmma 128x256x64 stages=4 warpgroups=2 promote=64 terms=f16", shape("f16", k=200),
     "promote must be 0 or, for sums in f32, a multiple of cta_k = 64, not 64 for sums in f16"),
    (H200, f"{MMA} terms=bf16_x6", shape(m=4096, n=4096, k=4096, batch=200), "bytes, and may write 17,179,869,184"),
    (A100, f"{MMA} copied=a", shape("bf16", "bf16"), "8 elements of A are copied at once, and A allows 1"),
])
def test_violations(target, plan, given, reason):
    assert reason in " ".join(NvidiaPlan.parse(plan).violations(given, target))


def test_legal():
    assert not NvidiaPlan.parse(f"{MMA} copied=ab").violations(shape("bf16", "bf16"), A100)
    assert not NvidiaPlan.parse(f"{MMA} terms=bf16_x9").violations(shape(), A100)
    assert NvidiaPlan.parse(MMA).violations(shape("bf16", "bf16"), A100)


def test_operands_without_alignment_are_copied_where_that_pays():
    """Rows of odd length, or 8-bit operands for wgmma that are not contiguous along k; none that are small."""
    copied = {(n, a, layout): tw.plan(tw.Gemm(n, n, n, a, layout=layout), H200).copied
              for n, a, layout in ((3333, "bf16", "nn"), (4096, "bf16", "nn"), (333, "bf16", "nn"), (8192, "i8", "nn"),
                                   (8192, "i8", "nt"), (8192, "i8", "tt"))}
    assert [*copied.values()] == ["ab", "none", "none", "b", "none", "a"]
    view = gpu_shape.shape("bf16", "bf16", "bf16", 4096, 4096, 4096, "nn", [(0, 8194), (0, 8192), (0, 8192)])
    assert gpu.choose(view, H200).copied == "a"


def test_copies_cost_their_bytes():
    s = shape("bf16", "bf16", 4096, 4096, 4096, "nt")
    plain = NvidiaPlan.parse("mma 128x128x32 warp=64x32 stages=4 vector=8 vector_c=4")
    copied = NvidiaPlan.parse(f"{plain} copied=ab")
    of = {plan: gpu.cost(s, plan, A100) for plan in (plain, copied)}
    more = of[copied].seconds - of[plain].seconds
    assert more > 4 * 4096 * 4096 * 2 / A100.bandwidth
    assert dict(of[copied].parts)["passes"] == pytest.approx(more)
    assert of[copied].bytes_by_level["memory"] - of[plain].bytes_by_level["memory"] == 4 * 4096 * 4096 * 2


@pytest.mark.parametrize(("algorithm", "terms"), [
    ("bf16_bf16_f32_x3", "bf16_x3"), ("bf16_bf16_f32_x6", "bf16_x6"), ("bf16_bf16_f32_x9", "bf16_x9"),
    ("tf32_tf32_f32_x3", "tf32_x3"), ("fastest", "bf16_x6"), (None, "none")])
def test_algorithms(algorithm, terms):
    """The same plan in plan, compile and explain; native products where terms do not pay."""
    problem = tw.Gemm(4096, 4096, 4096)
    plan = tw.plan(problem, "sm_90a", algorithm=algorithm)
    assert plan.terms == terms
    assert tw.compile(problem, "sm_90a", algorithm=algorithm).plan == plan
    explained = tw.explain(problem, "sm_90a", algorithm=algorithm)
    assert explained.plan == plan
    if algorithm:
        assert "A is split into" in str(explained)
    assert tw.plan(tw.Gemm(64, 64, 64), "sm_90a", algorithm=algorithm).terms == "none"
    assert tw.plan(problem, "sm_86", algorithm=algorithm).terms == "none"      # f32 is as fast as bf16 there


@pytest.mark.parametrize(("algorithm", "format", "terms"), [
    ("tf32_tf32_f32", "f32", "tf32"), ("f16_f16_f16", "f16", "f16")])
def test_algorithms_that_round(algorithm, format, terms):
    """Chosen where they are asked for, never else; of tf32 wgmma has k contiguous in one operand, whose rows are
    columns of instructions."""
    for layout, copied in ("nt", "none"), ("nn", "none"), ("tn", "a"), ("tt", "none"):
        problem = tw.Gemm(4096, 4096, 4096, format, layout=layout)
        plan = tw.plan(problem, "sm_90a", algorithm=algorithm)
        assert (plan.algorithm, plan.terms) == ("wgmma", terms)
        assert plan.copied == (copied if terms == "tf32" else "none")
        assert plan.swap == (terms == "tf32" and layout in ("nn", "tn"))
        assert tw.plan(problem, "sm_90a").terms == tw.plan(problem, "sm_90a", algorithm="fastest").terms.replace(
            "bf16_x6", "none") == "none"
        assert tw.compile(problem, "sm_90a", algorithm=algorithm).plan == plan
        assert f"terms={terms}" in str(tw.explain(problem, "sm_90a", algorithm=algorithm))
    assert tw.plan(problem, "sm_80", algorithm=algorithm).algorithm == "mma"
    assert tw.plan(problem, "sm_75", algorithm=algorithm).terms == ("none" if terms == "tf32" else "f16")


def test_tf32_was_an_algorithm():
    plan = NvidiaPlan.parse("tf32 64x64x16 warp=32x32 stages=3 vector=4")
    assert str(plan) == "mma 64x64x16 warp=32x32 stages=3 vector=4 terms=tf32"


def test_measured_plans_of_terms_are_kept_apart():
    keys = {shape(terms=terms).key for terms in ("", "bf16_x6", "tf32_x3", "tf32")}
    assert len(keys) == 4


@pytest.mark.parametrize(("problem", "target", "algorithm", "message"), [
    (tw.Gemm(64, 64, 64, "f16"), "sm_90a", "bf16_bf16_f32_x6", "splits operands of f32"),
    (tw.Gemm(64, 64, 64), "sm_90a", "bf16_bf16_f32_x4",
     "tf32_tf32_f32_x3, f16_f16_f16, fastest on sm_90a, not 'bf16_bf16_f32_x4'"),
    (tw.Gemm(64, 64, 64), "sm_90a", "f16_f16_f16", "multiplies operands of f16, and gemm_f32_nn_64x64x64 multiplies"),
    (tw.Gemm(64, 64, 64), "x86-avx512", "tf32_tf32_f32_x3", "algorithm must be None or one of"),
    (tw.Gemm(64, 64, 64), "gfx942", "fastest", "algorithm= is not supported on gfx942")])
def test_wrong_algorithms(problem, target, algorithm, message):
    for asked in (tw.plan, tw.compile, tw.explain):
        with pytest.raises(ValueError, match=message):
            asked(problem, target, algorithm=algorithm)
