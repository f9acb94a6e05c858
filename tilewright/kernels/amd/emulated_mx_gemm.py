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
from tilewright.kernels.amd.gemm import Tiling, WorkgroupGemm
from tilewright.kernels.amd.lds_tile import LANES
from tilewright.kernels.amd.mfma_gemm import instruction

CYCLES = 4                  # of a SIMD, for a vector instruction of 64 lanes
ROOMY = 128                 # accumulators of a lane that leave as many registers for the rest, with two waves on a SIMD


def emit_emulated_mx_gemm(*, ARCH: str = "gfx942", A: str = "e2m1", B: str | None = None, OUT: str = "f32",
                          STAGES: int = 2, DIRECT: bool = False, VECTOR_C: int = 4, EPILOGUE: str = "",
                          **tiling: int) -> Function:
    """Parameters and arguments are those of `scaled_mfma_gemm`: lda and ldb count bytes, a multiple of 8, ld_scale_a
    and ld_scale_b scales; k counts elements, a multiple of 32. CTA_K steps of k take 2 * CTA_K bytes of LDS a row.

    ValueError for DIRECT, or other than two STAGES: what is decoded goes through registers. CTA_K: 32, 64 or 128, so
    that blocks are whole and rows of LDS powers of two.
    """
    B, t = B or A, Tiling(**tiling)
    if DIRECT or STAGES != 2:
        raise ValueError(f"operands that are decoded go to LDS through registers, in two stages: DIRECT must be False "
                         f"and STAGES 2, not {DIRECT} and {STAGES}")
    if t.CTA_K not in (32, 64, 128):
        raise ValueError(f"CTA_K must be 32, 64 or 128, not {t.CTA_K}")
    ATOM = instruction(ARCH, t.MFMA, "bf16", "bf16", t.CTA_K)
    name = f"emulated_mx_gemm_{A}" + (f"_{B}" if B != A else "") + (f"_{OUT}" if OUT != "f32" else "")
    gemm = WorkgroupGemm(name, "", ATOM, t, i8, i8, OUT, VECTOR_C, SCALES=i8, EPILOGUE=EPILOGUE)
    g = gemm.g
    a, b = (Decoded(gemm.k, packed, EXTENT=EXTENT, CTA_K=t.CTA_K, THREADS=gemm.THREADS) for packed, EXTENT in (
        (Packed(A, g.a, g.lda, g.scale_a, g.ld_scale_a), t.CTA_M),
        (Packed(B, g.b, g.ldb, g.scale_b, g.ld_scale_b), t.CTA_N)))
    gemm.begin(a, b)
    room = ATOM.cycles[ARCH] // CYCLES - 1 if t.WARP_M*t.WARP_N // LANES <= ROOMY else 0
    return gemm.multiply(partial(through_decoding, ROOM=room), a, b)
