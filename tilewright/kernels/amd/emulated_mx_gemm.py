"""GEMM of block-scaled operands on AMD chips whose Matrix Cores take no scales, in bf16: what CDNA4 does in one
instruction (`scaled_mfma_gemm`) is emulated. Chosen only by its name, since it is slower and not the same everywhere.

    C = alpha * A @ B + beta * C,  A[i, p] = a[i, p] * 2^(scale_a[i, p / 32] - 127), and B^T the same

Elements are decoded and multiplied by their scales on the way to LDS, each once for a workgroup, and multiplied in
bf16: on CDNA3 at half the rate of its fp8, whose encodings are not those of MX formats.

Elements times scales are exact in bf16, and so are products in f32, as they are for instructions with scales. The
difference is at the ends of the range: a single element times its scale must be of bf16's. `decoding` says what becomes
of those that are not: inf from 2^128 on, nothing of what is below 2^-133. Instructions with scales would still get a
finite product if the other factor makes up for it.
"""
from __future__ import annotations

from functools import partial

from tilewright.ir import Function, i8
from tilewright.kernels.amd.decoding import Decoded, Packed, through_decoding
from tilewright.kernels.amd.gemm import WorkgroupGemm
from tilewright.kernels.amd.lds_tile import LANES
from tilewright.kernels.amd.mfma_gemm import instruction
from tilewright.kernels.amd.scaled_mfma_gemm import mx_name
from tilewright.plans.amd import AmdPlan
from tilewright.plans.gpu_shape import GpuShape

CYCLES = 4                  # of a SIMD, for a vector instruction of 64 lanes
ROOMY = 128                 # accumulators of a lane that leave as many registers for the rest, with two waves on a SIMD


def emit_emulated_mx_gemm(shape: GpuShape, plan: AmdPlan, ARCH: str = "gfx942", XCDS: int = 8) -> Function:
    """Parameters are those of `scaled_mfma_gemm`: lda and ldb count bytes, a multiple of 8, ld_scale_a and ld_scale_b
    scales; k counts elements, a multiple of 32. What is decoded goes to LDS through registers, in two stages; cta_k
    steps of k take 2 * cta_k bytes of LDS a row."""
    s, p = shape, plan
    ATOM = instruction(ARCH, p.mfma, "bf16", "bf16", p.cta_k)
    gemm = WorkgroupGemm(mx_name("emulated_mx_gemm", s), "", ATOM, s, p, (i8, i8), XCDS)
    g = gemm.g
    a, b = (Decoded(gemm.k, packed, EXTENT=EXTENT, CTA_K=p.cta_k, THREADS=p.threads) for packed, EXTENT in (
        (Packed(s.a, g.a, g.lda, g.scale_a, g.ld_scale_a), p.cta_m),
        (Packed(s.b, g.b, g.ldb, g.scale_b, g.ld_scale_b), p.cta_n)))
    gemm.begin(a, b)
    room = ATOM.cycles[ARCH] // CYCLES - 1 if p.warp_m*p.warp_n // LANES <= ROOMY else 0
    return gemm.multiply(partial(through_decoding, ROOM=room), a, b)
