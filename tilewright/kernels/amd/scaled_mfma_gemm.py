"""GEMM of block-scaled operands on AMD's CDNA4: as `mfma_gemm`, with a scale for every 32 elements along k.

    C = alpha * A @ B + beta * C,  A[i, p] = a[i, p] * 2^(scale_a[i, p / 32] - 127), and B^T the same

Elements are packed: e4m3fn, e5m2, e2m3, e3m2 and e2m1, in all 25 pairs. k lies along the rows of A and of B^T, in whole
blocks of 32. The Matrix Core applies the scales, an e8m0 of each operand for each row and block: they come from global
memory to the lanes that hand them over, a tile ahead, four blocks to a register.
"""
from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.atoms import amd
from tilewright.atoms.mfma import SCALED
from tilewright.ir import Function, i8, i64
from tilewright.kernels.amd import pipeline
from tilewright.kernels.amd.gemm import Tiling, WorkgroupGemm
from tilewright.kernels.amd.operand import LdsOperand
from tilewright.kernels.amd.scales import Scales, ScaleTile

K = {32: 64, 16: 128}           # of an instruction whose tile is 32 x 32, 16 x 16
UNIT = 8                        # bytes: rows are multiples of it, since blocks are


def emit_scaled_mfma_gemm(*, ARCH: str = "gfx950", A: str = "e2m1", B: str | None = None, OUT: str = "f32",
                          CTA_K: int = 128, STAGES: int = 2, DIRECT: bool = False, DIRECT_SCALES: bool = False,
                          VECTOR_C: int = 4, EPILOGUE: str = "", **tiling: int) -> Function:
    """lda and ldb count bytes, ld_scale_a and ld_scale_b scales; k counts elements, a multiple of 32.

    DIRECT_SCALES: they come straight into LDS, too; k is a multiple of 128, ld_scale_a and ld_scale_b of 4.
    VECTOR_C: elements of C that are stored at once: n is a multiple of it. EPILOGUE: as of mfma_gemm. tiling: see
    gemm.Tiling.
    """
    B, t = B or A, Tiling(CTA_K=CTA_K, **tiling)
    if DIRECT_SCALES and not DIRECT:
        raise ValueError("DIRECT_SCALES needs DIRECT: scales are copied straight into LDS only if elements are, too")
    ATOM = amd.scaled(ARCH, t.MFMA, K[t.MFMA], B, A)
    name = f"scaled_mfma_gemm_{A}" + (f"_{B}" if B != A else "") + (f"_{OUT}" if OUT != "f32" else "")
    mode = f"_s{STAGES}" + "d"*DIRECT_SCALES if DIRECT else ""
    gemm = WorkgroupGemm(name, mode, ATOM, t, i8, i8, OUT, VECTOR_C, SCALES=i8, EPILOGUE=EPILOGUE)
    k, g, work, THREADS = gemm.k, gemm.g, gemm.work, gemm.THREADS

    common: dict[str, Any] = {"along_k": True, "CTA_K": CTA_K, "THREADS": THREADS, "UNIT": UNIT}
    a = LdsOperand(k, g.a, k.cast(g.lda, i64) // UNIT, BITS=ATOM.b.bits, EXTENT=t.CTA_M, **common)
    b = LdsOperand(k, g.b, k.cast(g.ldb, i64) // UNIT, BITS=ATOM.a.bits, EXTENT=t.CTA_N, **common)
    if DIRECT and not (a.direct and b.direct):
        raise ValueError(f"DIRECT needs every thread to copy 16 bytes; a tile of {t.CTA_M}x{t.CTA_N}x{CTA_K} has fewer "
                         f"pieces than {THREADS} threads, or no multiple of them")
    gemm.begin(a, b)
    block = work.k_first // SCALED
    scales: list[Scales | ScaleTile] = []
    for x, ld, first, inner, limit, CTA, WARP in (
            (g.scale_a, g.ld_scale_a, work.i0, work.i1, g.m, t.CTA_M, t.WARP_M),
            (g.scale_b, g.ld_scale_b, work.j0, work.j1, g.n, t.CTA_N, t.WARP_N)):
        if DIRECT_SCALES:
            tile = ScaleTile(k, x, ld, EXTENT=CTA, WARP=WARP, MFMA=t.MFMA, CTA_K=CTA_K, THREADS=THREADS)
            tile.begin(work.t, first, limit, block)
            tile.lane_addresses(inner, work.lane)
            scales.append(tile)
        else:
            scales.append(Scales(k, x, ld, work.lane, first + inner, limit, block, MFMA=t.MFMA, TILES=WARP // t.MFMA,
                                 CTA_K=CTA_K, AHEAD=1 if DIRECT else 2))
    if DIRECT:
        return gemm.multiply(partial(pipeline.direct, STAGES=STAGES), a, b, *scales, STAGES=STAGES)
    return gemm.multiply(pipeline.through_registers, a, b, *scales)
