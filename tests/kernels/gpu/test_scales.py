"""Scales of rows and columns multiply sums in every GEMM for a GPU: by any strides, in batches, before alpha."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.gemms import simulated, whole_numbers
from tests.helpers.gpu_kernels import emit_gemv, emit_mfma_gemm, emit_mma_gemm, emit_simt_gemm, emit_wgmma_gemm
from tilewright.compiler import llvm, ptxas
from tilewright.targets import target

pytestmark = pytest.mark.sampled

SIMT = {"CTA_M": 64, "CTA_N": 64, "CTA_K": 8, "WARP_M": 32, "WARP_N": 32, "THREAD_M": 8, "THREAD_N": 4, "LAYOUT": "nt"}
MMA = {"CTA_M": 64, "CTA_N": 64, "CTA_K": 32, "WARP_M": 32, "WARP_N": 32, "LAYOUT": "nt"}
BYTES = MMA | {"ARCH": "sm_90a", "CTA_K": 64, "VECTOR_A": 16, "VECTOR_B": 16}
FP8 = BYTES | {"A": "e4m3fn", "B": "e5m2", "OUT": "f32"}
INTS = BYTES | {"A": "i8", "B": "u8", "SUMS": "i32", "OUT": "f32"}
F64 = MMA | dict.fromkeys(("A", "B", "OUT", "SUMS"), "f64") | {
    "ARCH": "sm_90a", "VECTOR_A": 2, "VECTOR_B": 2, "CTA_K": 8}
WGMMA = {"CTA_M": 64, "CTA_N": 64, "CTA_K": 128, "STAGES": 2, "WARPGROUPS": 1, "A": "e4m3fn", "B": "e4m3fn",
         "OUT": "f32"}
SWAPPED = WGMMA | {"CTA_M": 16, "COPIED": False, "SWAP": True}
WAVES = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32, "CTA_K": 64, "VECTOR_C": 4}


def powers(rng, *shape, dtype=np.float32):
    """Scales with which sums of small whole numbers stay exact."""
    return (2.0 ** rng.integers(-3, 4, shape)).astype(dtype)


def scaled(emit, options, m, n, k, batch=(), scales=None, **more):
    """alpha * ((a @ b.T) * scales) + beta * c is right; its numbers."""
    rng, wide = np.random.default_rng(m + n + k), np.float64 if "f64" in options.values() else np.float32
    scales = scales or (powers(rng, *batch, m, dtype=wide), powers(rng, *batch, n, dtype=wide))
    found = simulated(emit, m, n, k, batch=batch, scales=scales, SCALED=True, **options, **more)
    np.testing.assert_array_equal(found.c, found.wanted)
    return found.wanted


def scaled_by_blocks(emit, options, m, n, k, of_a, of_b, shared):
    """0.5 * (sum of the products of 128 steps of k, times the scales of A's and of B's blocks) + 2 * c."""
    rng = np.random.default_rng(k)
    a, b = (whole_numbers(rng, options.get(x, "f32"), *shape) for x, shape in (("A", (m, k)), ("B", (k, n))))
    product = sum(a[:, p:p + 128].astype(np.float64) * of_a[:, p // 128, None]
                  @ (b[p:p + 128].astype(np.float64) * of_b[p // 128].repeat(shared)[:n]) for p in range(0, k, 128))
    beside = {"scale_a": of_a, "ld_scale_a": of_a.shape[1], "k_scale_a": 1, "scale_b": of_b, "ld_scale_b": 1,
              "k_scale_b": of_b.shape[1]}
    plain = a.astype(np.float64) @ b.astype(np.float64)
    found = simulated(emit, m, n, k, given=(a, b), alpha=0.5, beta=2.0, more=beside, BLOCKS=shared,
                      finish=lambda x: x + 0.5*(product - plain), scales=(np.ones(m), np.ones(n)), **options)
    np.testing.assert_array_equal(found.c, found.wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("emit", "options", "m", "n"), [
    (emit_simt_gemm, SIMT | {"VECTOR": 4}, 65, 68),
    (emit_simt_gemm, SIMT | {"VECTOR": 1, "OUT": "bf16"}, 65, 67),                  # through shared memory
    (emit_simt_gemm, SIMT | {"VECTOR": 1, "SPLIT_K": 2, "DTYPE": "f64"}, 65, 67),
    (emit_mma_gemm, FP8 | {"OUT": "bf16", "VECTOR_C": 2}, 66, 70),
    (emit_mma_gemm, FP8, 65, 67),
    (emit_mma_gemm, INTS | {"SPLIT_K": 2, "VECTOR_C": 4}, 66, 68),
    (emit_mma_gemm, INTS | {"OUT": "f16"}, 65, 67),
    (emit_mma_gemm, F64, 34, 36),
    (emit_gemv, {"VECTOR": 4, "LAYOUT": "nt"}, 1, 33),
    (emit_gemv, {"DTYPE": "i8", "OUT": "f16", "VECTOR": 16, "LAYOUT": "nt", "COUNT": 8, "EXTENT": 16}, 5, 33),
    (emit_wgmma_gemm, WGMMA | {"COPIED": False}, 66, 68),
    (emit_wgmma_gemm, WGMMA | {"B": "e5m2"}, 66, 68),
    (emit_wgmma_gemm, SWAPPED, 13, 150),
    (emit_mfma_gemm, WAVES | {"ARCH": "gfx942", "A": "e4m3fnuz", "OUT": "f32"}, 33, 68),
    (emit_mfma_gemm, WAVES | {"ARCH": "gfx950", "A": "i8", "OUT": "bf16", "SPLIT_K": 2}, 65, 68),
], ids=lambda value: getattr(value, "__name__", str(value)))
def test_scales_of_rows_and_columns(emit, options, m, n):
    for alpha, beta in ((1.0, 0.0), (0.5, 3.0)):
        scaled(emit, options, m, n, 144, alpha=alpha, beta=beta)


BY_BLOCKS = [
    (emit_mma_gemm, FP8 | {"OUT": "bf16", "VECTOR_C": 2}, 66, 200, 400),             # four blocks, the last one short
    (emit_mma_gemm, FP8 | {"CTA_K": 128, "LAYOUT": "nt"}, 65, 131, 144),
    (emit_mma_gemm, INTS | {"SPLIT_K": 3, "VECTOR_C": 4, "CTA_K": 64}, 66, 136, 528),
    (emit_mma_gemm, BYTES | {"A": "f16", "B": "f16", "CTA_K": 32, "VECTOR_A": 8, "VECTOR_B": 8, "OUT": "f32"}, 34, 70,
     200),
    (emit_wgmma_gemm, WGMMA | {"PROMOTE": 128}, 66, 200, 400),
    (emit_wgmma_gemm, WGMMA | {"PROMOTE": 128, "CTA_N": 192, "CTA_M": 128, "WARPGROUPS": 2, "COPIED": False}, 200, 400,
     272),
    (emit_wgmma_gemm, SWAPPED | {"PROMOTE": 128}, 13, 200, 272),
    (emit_wgmma_gemm, WGMMA | {"PROMOTE": 128, "A": "i8", "B": "u8", "SUMS": "i32", "CTA_K": 64, "OUT": "bf16"}, 66,
     136, 144),
]


@pytest.mark.parametrize("shared", [1, 128])
@pytest.mark.parametrize(("emit", "options", "m", "n", "k"), BY_BLOCKS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_scales_of_blocks(emit, options, m, n, k, shared):
    """Of 128 of k: for each row of A, and for each column of B or 128 of them."""
    rng, blocks = np.random.default_rng(k), -(-k // 128)
    scaled_by_blocks(emit, options, m, n, k, powers(rng, m, blocks), powers(rng, blocks, -(-n // shared)), shared)


@pytest.mark.parametrize(("emit", "options"), [
    (emit_simt_gemm, SIMT | {"VECTOR": 4}), (emit_mma_gemm, FP8), (emit_wgmma_gemm, WGMMA),
    (emit_mfma_gemm, WAVES | {"ARCH": "gfx942", "A": "i8", "OUT": "f32"})])
def test_scales_of_a_batch(emit, options):
    scaled(emit, options, 20, 64, 64, batch=(3,))


def test_strides_and_one_scale_for_all():
    """Scales that lie apart, backwards, or are one for all rows: a stride of 0."""
    far = np.asarray(2.0 ** np.arange(-6, 6), np.float32)
    for of_a, of_b in ((far[::2], far[6:0:-1]), (np.broadcast_to(far[9], 6), far[::2]), (far[1::2], far[:1].repeat(6))):
        scaled(emit_mma_gemm, FP8, 6, 6, 48, scales=(of_a, of_b))


def test_the_order_of_the_factors():
    """((sum * scale_a) * scale_b) * alpha: other orders overflow, or are 0."""
    big, small = np.float32(2.0**100), np.float32(2.0**-100)
    for of_a, of_b, alpha in ((big, small, 1.0), (small, big, 1.0), (small, np.float32(1), 2.0**100)):
        scales = np.broadcast_to(of_a, 5), np.broadcast_to(of_b, 7)
        wanted = scaled(emit_mma_gemm, FP8, 5, 7, 16, alpha=alpha, scales=scales)
        assert np.isfinite(wanted).all()
        assert wanted.any()


def test_no_spills():
    """Of the largest tiles, whose scales are read once for each row and column."""
    big = {"CTA_M": 128, "CTA_N": 256, "WARP_M": 64, "WARP_N": 64, "STAGES": 3, "LAYOUT": "nt", "SCALED": True}
    for arch, options in (("sm_80", {"A": "i8", "B": "i8", "SUMS": "i32"}),
                          ("sm_89", {"A": "e4m3fn", "B": "e4m3fn", "VECTOR_C": 4, "TAIL": True, "OUT": "bf16"})):
        function = emit_mma_gemm(ARCH=arch, CTA_K=64, VECTOR_A=16, VECTOR_B=16, **options, **big)
        _, used = ptxas.assemble(llvm.assembly(function, target(arch)), arch)
        assert not used[function.name].spills, used


@pytest.mark.parametrize("shared", [1, 128])
def test_no_spills_with_scales_of_blocks(shared):
    """Of the largest tiles that plans have with them."""
    fp8, tile = {"A": "e4m3fn", "B": "e4m3fn", "BLOCKS": shared}, {"CTA_M": 128, "CTA_N": 128}
    wide = tile | {"CTA_N": 192 if shared > 1 else 128, "CTA_K": 128, "PROMOTE": 128}
    mma = tile | {"WARP_M": 64, "WARP_N": 32, "CTA_K": 64, "VECTOR_A": 16, "VECTOR_B": 16, "LAYOUT": "nt"}
    small = {} if shared > 1 else {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32}
    ints = {"A": "i8", "B": "i8", "SUMS": "i32", "BLOCKS": shared, "TAIL": True}
    for arch, function in (("sm_90a", emit_wgmma_gemm(**fp8, **wide)), ("sm_80", emit_mma_gemm("sm_80", **mma, **ints)),
                           ("sm_90a", emit_mma_gemm("sm_90a", **fp8, **mma | small))):
        _, used = ptxas.assemble(llvm.assembly(function, target(arch)), arch)
        assert not used[function.name].spills, used
