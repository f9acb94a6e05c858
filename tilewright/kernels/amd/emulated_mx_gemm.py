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

from typing import Any

from tilewright.ir import Kernel, f32, i8
from tilewright.kernels.amd import epilogue
from tilewright.kernels.amd.decoding import Decoded, Packed
from tilewright.kernels.amd.decoding_pipeline import through_decoding
from tilewright.kernels.amd.lds_tile import LANES, threads
from tilewright.kernels.amd.mfma_gemm import instruction
from tilewright.kernels.amd.products import WaveProducts
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.work import arguments, parameters, share
from tilewright.kernels.narrow import memory_type

CYCLES = 4                  # of a SIMD, for a vector instruction of 64 lanes
ROOMY = 128                 # accumulators of a lane that leave as many registers for the rest, with two waves on a SIMD


def emit_emulated_mx_gemm(*, ARCH: str = "gfx942", A: str = "e2m1", B: str | None = None, OUT: str = "f32",
                          CTA_M: int = 256, CTA_N: int = 256, CTA_K: int = 32, WARP_M: int = 128, WARP_N: int = 64,
                          MFMA: int = 32, STAGES: int = 2, DIRECT: bool = False, VECTOR_C: int = 4, SPLIT_K: int = 1,
                          GROUP_M: int = 8, XCDS: int = 8) -> Any:
    """Parameters and arguments are those of `scaled_mfma_gemm`: lda and ldb count bytes, a multiple of 8, ld_scale_a
    and ld_scale_b scales; k counts elements, a multiple of 32. CTA_K steps of k take 2 * CTA_K bytes of LDS a row.

    ValueError for DIRECT, or other than two STAGES: what is decoded goes through registers. CTA_K: 32, 64 or 128, so
    that blocks are whole and rows of LDS powers of two.
    """
    B = B or A
    if DIRECT or STAGES != 2:
        raise ValueError(f"operands that are decoded go to LDS through registers, in two stages: DIRECT must be False "
                         f"and STAGES 2, not {DIRECT} and {STAGES}")
    if CTA_K not in (32, 64, 128):
        raise ValueError(f"CTA_K must be 32, 64 or 128, not {CTA_K}")
    ATOM = instruction(ARCH, MFMA, "bf16", "bf16", CTA_K)
    THREADS = threads(CTA_M, CTA_N, WARP_M, WARP_N)
    TILES_M, TILES_N, STEPS = WARP_M // MFMA, WARP_N // MFMA, CTA_K // ATOM.k
    split = Split(SPLIT_K)
    k = Kernel(f"emulated_mx_gemm_{A}" + (f"_{B}" if B != A else "") + (f"_{OUT}" if OUT != "f32" else "")
               + f"_{CTA_M}x{CTA_N}x{CTA_K}_{WARP_M}x{WARP_N}" + (f"_k{SPLIT_K}" if SPLIT_K > 1 else ""),
               threads=THREADS, warp=LANES, **parameters(f32, i8, i8, memory_type(OUT), split, SCALED=True))
    g = arguments(k)
    work = share(k, g, split, CTA_M=CTA_M, CTA_N=CTA_N, CTA_K=CTA_K, WARP_M=WARP_M, WARP_N=WARP_N, GROUP_M=GROUP_M,
                 DIES=XCDS, AT_LEAST_ONE=True)

    a_op = Decoded(k, Packed(A, g.a, g.lda, g.scale_a, g.ld_scale_a), EXTENT=CTA_M, CTA_K=CTA_K, THREADS=THREADS)
    b_op = Decoded(k, Packed(B, g.b, g.ldb, g.scale_b, g.ld_scale_b), EXTENT=CTA_N, CTA_K=CTA_K, THREADS=THREADS)
    a_op.begin(work.t, work.i0, g.m, work.k_first)
    b_op.begin(work.t, work.j0, g.n, work.k_first)
    a_op.lane_addresses(work.i1, work.lane, MFMA, ATOM.k)
    b_op.lane_addresses(work.j1, work.lane, MFMA, ATOM.k)
    smem = k.smem("tiles", (STAGES * (a_op.SIZE + b_op.SIZE),), i8, align=128)
    acc = k.tile(TILES_M, TILES_N, ATOM.c.type)
    products = WaveProducts(k, ATOM, acc, a_op, b_op, TILES_M=TILES_M, TILES_N=TILES_N, STEPS=STEPS)
    room = ATOM.cycles[ARCH] // CYCLES - 1 if WARP_M*WARP_N // LANES <= ROOMY else 0
    through_decoding(k, [a_op, b_op], smem, work.tiles, work.short, products, room)
    epilogue.store(k, acc, work, ATOM, Out.of(k, g, OUT, VECTOR_C, ALIGNED=False), THREADS)
    return k.function
