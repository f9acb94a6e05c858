"""Plans by matrix instructions of 8- and 16-bit formats: there always is one, it is legal, and the kernel is as it
says."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

import tilewright as tw
from tests.helpers.demanding import demanding
from tilewright.plans import gpu_lowering, gpu_shape
from tilewright.plans.nvidia import candidates, choose, cost, peak
from tilewright.plans.nvidia_plan import NvidiaPlan

TARGETS = [tw.target(name) for name in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a")]
H200, A100, T4 = (tw.target(name) for name in ("sm_90a", "sm_80", "sm_75"))
KINDS = [("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("i8", "i8", "i32"), ("u8", "i8", "i8"),
         ("e4m3fn", "e5m2", "bf16"), ("bf16", "f16", "f32"), ("i4", "u8", "i32"), ("e2m1", "f32", "f32")]
SIZES = [1, 2, 3, 7, 8, 16, 17, 31, 64, 65, 100, 128, 257, 1000, 2039, 4096, 14336]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_there_always_is_a_plan(target, kinds):
    """Of any size, layout, batch, alignment and distance of rows; it prints, and reads itself back."""
    draw = random.Random(str((target.name, kinds)))
    for _ in range(6):
        m, n, k = (draw.choice(SIZES) for _ in range(3))
        layout, batch = draw.choice(("nn", "nt", "tn", "tt")), draw.choice((1, 1, 3))
        problem = gpu_lowering.lower(tw.Gemm(m, n, k, *kinds, layout, batch), target)
        at = [(draw.choice((0, 1, 2, 4, 8)) * bits // 8, draw.randrange(20000) * bits // 8)
              for bits in map(gpu_shape.bits_of, (problem.a, problem.b, problem.out))]
        for shape in (gpu_shape.shape_of(problem), gpu_shape.shape_of(problem, at)):
            plan = choose(shape, target)
            assert plan.violations(shape, target) == []
            assert NvidiaPlan.parse(str(plan)) == plan
            by_matrices = plan.algorithm in ("mma", "wgmma")
            assert by_matrices == (shape.a in target.matrix_rates) or plan.algorithm == "gemv"
            assert cost(shape, plan, target).seconds > 2*m*n*k*shape.batch / peak(shape, plan, target)


def test_no_operand_is_rounded_unless_it_is_asked_for():
    for target in TARGETS:
        for kinds in (("f32", "f32", "f32"), ("f32", "bf16", "f32"), ("bf16", "f16", "bf16")):
            shape = gpu_lowering.multiplied_shape(tw.Gemm(1000, 1000, 1000, *kinds), target)
            assert (shape.a, shape.b) == ("f32", "f32")
            assert "mma" not in {plan.algorithm for plan in candidates(shape, target)}


def test_large_problems_get_large_tiles_and_small_ones_parts_of_k():
    large = choose(gpu_shape.shape_of(tw.Gemm(8192, 8192, 8192, "bf16")), H200)
    assert large.cta_m * large.cta_n >= 128 * 128
    few = choose(gpu_shape.shape_of(tw.Gemm(128, 128, 8192, "bf16")), H200)
    assert few.split_k > 1 or few.tail
    thin = choose(gpu_shape.shape_of(tw.Gemm(16, 4096, 4096, "bf16")), H200)
    assert thin.cta_m <= 32
    many = choose(gpu_shape.shape_of(tw.Gemm(16, 16, 16, "f16", batch=4096)), A100)
    assert many.split_k == 1
    assert many.cta_m * many.cta_n <= 32 * 32


PLAN = NvidiaPlan.parse("mma 128x128x32 warp=64x64 stages=3 vector=8 vector_c=4")
BROKEN = {
    r"mma needs warp tiles of multiples of 16, .* not 8x64 and 64": {"warp_m": 8},
    r"cta_k a multiple of 32 bytes, not 64x64 and 48": {"cta_k": 24},
    "slices must be 1 for mma": {"slices": 2},
    "8 elements of A are copied at once, and A allows 4": {},
    "16 elements of B are copied at once, and it must be a power of two with at most 16 bytes": {"vector_b": 16},
    r"copies 4 bytes at once or more, and 1 elements of B \(bf16\) are 2": {"vector_b": 1},
    "vector_c = 4 elements of C are stored at once, and C allows 2": {"vector": 4},
    "through registers have 2 stages": {"copy": "registers"},
    "the tiles take 262144 bytes of shared memory": {"stages": 16},
    "a thread would need about \\d+ registers": {"warp_m": 128},
    "a CTA would have 2048 threads, and may have 1024": {"warp_m": 16, "warp_n": 16},
    "is not a multiple of warp tiles of 48x64": {"warp_m": 48},
    "cannot be combined": {"split_k": 2, "tail": True},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_reasons(reason):
    shape = gpu_shape.shape_of(tw.Gemm(512, 510, 508, "bf16", layout="nn"))
    assert (shape.vector_a, shape.vector_b, shape.vector_c) == (4, 2, 2)
    assert replace(PLAN, vector=4, vector_b=2, vector_c=2).violations(shape, H200) == []
    found = replace(PLAN, **BROKEN[reason]).violations(shape, H200)
    assert any(re.search(reason, sentence) for sentence in found), found


def test_what_a_chip_lacks():
    def refused(problem, target, plan=PLAN):
        (reason,) = plan.violations(problem, target)
        return reason
    assert "sm_75 has no asynchronous copies" in str(PLAN.violations(tw.Gemm(512, 512, 512, "f16"), T4))
    assert refused(tw.Gemm(512, 512, 512, "bf16"), T4) == (
        "sm_75 has kernels for f32, f64, f16, i8, u8, not for bf16 by bf16 into f32.")
    assert "not for e4m3fn by e5m2 into f32" in refused(tw.Gemm(512, 512, 512, "e4m3fn", "e5m2"), A100)
    assert "not for i8 by f16 into f32" in refused(tw.Gemm(512, 512, 512, "i8", "f16", "f32"), H200)
    assert refused(tw.Gemm(512, 512, 512), T4, replace(PLAN, terms="tf32")) == (
        "sm_75 has no matrix instructions for tf32.")
    assert refused(tw.Gemm(512, 512, 512, "f16"), H200, replace(PLAN, terms="tf32")) == (
        "terms=tf32 multiplies operands of f32, and this is f16 by f16.")
    assert refused(tw.Gemm(512, 512, 512, "f16"), H200, replace(PLAN, algorithm="simt")) == (
        "simt multiplies f32 and f64, and this is f16 by f16.")
    assert choose(gpu_shape.shape_of(tw.Gemm(512, 512, 512, "i8")), T4).copy == "registers"


# ---- the kernel is as the plan says


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "kinds", "size", "layout"), [
    ("sm_90a", ("bf16", "bf16", "bf16"), 4096, "nn"), ("sm_80", ("i8", "i8", "i32"), 4096, "tn"),
    ("sm_90a", ("bf16", "bf16", "f32"), 4095, "nt"), ("sm_75", ("f16", "f16", "f16"), 4096, "tt")])
def test_plans_that_are_chosen_do_not_spill(name, kinds, size, layout):
    target = tw.target(name)
    kernel = tw.compile(tw.Gemm(size, size, size, *kinds, layout), target)
    used = kernel.resources
    assert used.spill_stores == used.stack == 0, kernel.plan
    held = target.occupancy(kernel.plan.threads, used.registers, kernel.function.shared_bytes)
    assert held >= min(kernel.plan.resident(kernel.shape, target), 2)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "kinds", "size", "layout"), [
    ("sm_90a", ("bf16", "bf16", "f32"), 4096, "nn"), ("sm_90a", ("bf16", "bf16", "f32"), 4095, "nt"),
    ("sm_90a", ("i8", "i8", "i32"), 4095, "nn"), ("sm_75", ("f16", "f16", "f16"), 4096, "nn")])
def test_no_candidate_spills(name, kinds, size, layout):
    problem, target = tw.Gemm(size, size, size, *kinds, layout), tw.target(name)
    plans = demanding([p for p in candidates(gpu_shape.shape_of(problem), target)
                       if p.algorithm == "mma" and p.split_k == 1], problem, target, most=4)
    assert len(plans) == 4                                  # those of wgmma are in test_wgmma_plans.py
    for plan in plans:
        used = tw.compile(problem, target, plan).resources
        assert used.spill_stores == used.stack == 0, plan
