"""Products by given plans of NVIDIA's GPUs, past a tile on each side; threads and shared memory are the plan's."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.helpers.gemms import right
from tilewright.plans.nvidia_plan import NvidiaPlan

# target, plan, formats, layout
ROWS = [
    ("sm_75", "mma 32x32x16 warp=16x16 stages=2 copy=registers vector=2", "f16 f16 f16", "tn"),
    ("sm_80", "mma 64x64x64 warp=32x32 stages=3 vector=2 vector_b=4 split_k=2", "bf16 bf16 f32", "nt"),
    ("sm_80", "tf32 64x32x16 warp=32x16 stages=4 vector=2 tail", "f32 f32 f32", "nn"),
    ("sm_89", "mma 64x64x64 warp=64x32 stages=2 vector=4", "e5m2 e4m3fn f16", "tt"),
    ("sm_90a", "mma 128x64x32 warp=64x32 stages=2 copy=registers vector=4 vector_c=2", "u8 i8 i32", "nn"),
    ("sm_90a", "wgmma 128x64x64 stages=3 warpgroups=2 cluster=2x1 vector_c=2 store=tma", "bf16 bf16 f32", "nn"),
    ("sm_90a", "wgmma 64x96x64 stages=2 warpgroups=1 cluster=1x2", "f16 f16 f16", "nt"),
    ("sm_90a", "wgmma 64x64x64 stages=3 warpgroups=1 cluster_k=2 vector_c=2 store=tma", "bf16 bf16 bf16", "nn"),
    ("sm_90a", "wgmma 64x64x128 stages=3 warpgroups=1 store=tma promote=128 split_k=2", "e5m2 e4m3fn bf16", "nt"),
    ("sm_90a", "wgmma 64x128x128 stages=3 warpgroups=2 pingpong vector_c=2", "u8 i8 i8", "nt"),
    ("sm_90a", "wgmma 8x128x128 stages=3 warpgroups=2 swap vector_c=1", "bf16 bf16 bf16", "nn"),
]
# plan, formats, layout, m, n, k
GEMV = [
    ("1x16x8 stages=2 copy=registers vector=8", "bf16 bf16 f32", "nt", 1, 45, 264),
    ("4x32x8 stages=2 copy=registers vector=8 split_k=3", "bf16 bf16 bf16", "nn", 3, 40, 300),
    ("32x2x8 stages=2 copy=registers vector=8 split_k=2", "f16 f16 f16", "tt", 40, 2, 300),
    ("2x8x8 stages=2 copy=registers vector=2", "bf16 bf16 bf16", "tt", 2, 11, 70),
    ("32x4x8 stages=2 copy=registers", "f16 f16 f32", "nn", 37, 3, 61),
    ("4x128x8 stages=2 copy=registers vector=4", "f32 f32 f32", "nn", 4, 132, 150),
    ("4x128x8 stages=2 copy=registers vector=4 vector_b=4", "f32 f32 f32", "tn", 4, 132, 150),
    ("32x2x8 stages=2 copy=registers vector=4 vector_b=2", "f32 f32 f32", "nn", 40, 2, 100),
    ("8x16x8 stages=2 copy=registers vector=8", "bf16 bf16 bf16", "nt", 5, 50, 264),
    ("16x32x4 stages=2 copy=registers vector=16", "e4m3fn e5m2 bf16", "nt", 16, 33, 1040),
    ("64x32x4 stages=2 copy=registers vector=8 split_k=2", "f16 f16 f32", "nt", 70, 30, 520),
    ("16x8x8 stages=2 copy=registers vector=8 split_k=6", "bf16 bf16 bf16", "nt", 20, 4, 448),  # 5 parts
    ("8x16x16 stages=2 copy=registers vector=16 split_k=2", "u8 i8 i32", "nt", 2, 50, 1040),
    ("8x16x8 stages=2 vector=8", "bf16 bf16 bf16", "nt", 5, 50, 264),               # a piece that is not whole
    ("16x48x4 stages=1 vector=16", "e4m3fn e5m2 bf16", "nt", 16, 101, 1040),        # CTAs that overlap
    ("48x16x2 stages=3 vector=8 split_k=2", "f16 f16 f32", "nt", 70, 11, 520),
    ("16x32x8 stages=4 vector=8 split_k=6", "bf16 bf16 bf16", "nt", 9, 40, 448),    # warps without pieces
    ("8x16x4 stages=2 vector=16", "u8 i8 i32", "nt", 2, 16, 144),
]


def check(target, text, kinds, layout, m=0, n=0, k=0):
    plan = NvidiaPlan.parse(text)
    more = (16, 16, 16) if plan.algorithm == "wgmma" else (4, 12, 12 + plan.cta_k)
    tile = (x + y for x, y in zip((plan.cta_m, plan.cta_n, plan.cta_k), more))
    kernel = tw.compile(tw.Gemm(*((m, n, k) if m else tile), *kinds.split(), layout), target, plan)
    assert kernel.function.threads == (plan.threads, 1)
    assert 0 <= kernel.function.shared_bytes - plan.shared(kernel.shape) <= 4 * (plan.algorithm != "wgmma")
    right(kernel, alpha=2, beta=-1)


@pytest.mark.parametrize(("target", "text", "kinds", "layout"), ROWS)
def test_products_of_matrices(target, text, kinds, layout):
    check(target, text, kinds, layout)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", GEMV, ids=lambda row: row[0])
def test_products_of_a_few_vectors(row):
    check("sm_90a", f"gemv {row[0]}", *row[1:])
