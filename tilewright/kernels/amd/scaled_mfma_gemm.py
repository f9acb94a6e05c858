"""GEMM of block-scaled operands on AMD's CDNA4: as `mfma_gemm`, with a scale for every 32 elements along k.

    C = alpha * A @ B + beta * C,  A[i, p] = a[i, p] * 2^(scale_a[i, p / 32] - 127), and B^T the same

Elements are packed: e4m3fn, e5m2, e2m3, e3m2 and e2m1, in all 25 pairs. k lies along the rows of A and of B^T, in whole
blocks of 32. The Matrix Core applies the scales, an e8m0 of each operand for each row and block: they come from global
memory to the lanes that hand them over, a tile ahead, four blocks to a register.
"""
from __future__ import annotations

from typing import Any

from tilewright.atoms import amd
from tilewright.atoms.mfma import SCALED
from tilewright.ir import Kernel, f32, i8, i64
from tilewright.kernels.amd import epilogue, pipeline
from tilewright.kernels.amd.lds_tile import LANES, threads
from tilewright.kernels.amd.operand import Operand
from tilewright.kernels.amd.products import WaveProducts
from tilewright.kernels.amd.scales import Scales, ScaleTile
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.work import arguments, parameters, share
from tilewright.kernels.narrow import memory_type

K = {32: 64, 16: 128}           # of an instruction whose tile is 32 x 32, 16 x 16
UNIT = 8                        # bytes: rows are multiples of it, since blocks are


def emit_scaled_mfma_gemm(*, ARCH: str = "gfx950", A: str = "e2m1", B: str | None = None, OUT: str = "f32",
                          CTA_M: int = 256, CTA_N: int = 256, CTA_K: int = 128, WARP_M: int = 128, WARP_N: int = 64,
                          MFMA: int = 32, STAGES: int = 2, DIRECT: bool = False, DIRECT_SCALES: bool = False,
                          VECTOR_C: int = 4, SPLIT_K: int = 1, GROUP_M: int = 8, XCDS: int = 8) -> Any:
    """lda and ldb count bytes, ld_scale_a and ld_scale_b scales; k counts elements, a multiple of 32.

    DIRECT_SCALES: they come straight into LDS, too; k is a multiple of 128, ld_scale_a and ld_scale_b of 4.
    VECTOR_C: elements of C that are stored at once: n is a multiple of it.
    """
    B = B or A
    if DIRECT_SCALES and not DIRECT:
        raise ValueError("DIRECT_SCALES needs DIRECT: scales are copied straight into LDS only if elements are, too")
    ATOM = amd.scaled(ARCH, MFMA, K[MFMA], B, A)
    THREADS = threads(CTA_M, CTA_N, WARP_M, WARP_N)
    TILES_M, TILES_N, STEPS = WARP_M // MFMA, WARP_N // MFMA, CTA_K // ATOM.k
    split = Split(SPLIT_K)
    k = Kernel(f"scaled_mfma_gemm_{A}" + (f"_{B}" if B != A else "") + (f"_{OUT}" if OUT != "f32" else "")
               + f"_{CTA_M}x{CTA_N}x{CTA_K}_{WARP_M}x{WARP_N}"
               + (f"_s{STAGES}" + "d"*DIRECT_SCALES if DIRECT else "") + (f"_k{SPLIT_K}" if SPLIT_K > 1 else ""),
               threads=THREADS, warp=LANES, **parameters(f32, i8, i8, memory_type(OUT), split, SCALED=True))
    g = arguments(k)
    work = share(k, g, split, CTA_M=CTA_M, CTA_N=CTA_N, CTA_K=CTA_K, WARP_M=WARP_M, WARP_N=WARP_N, GROUP_M=GROUP_M,
                 DIES=XCDS, AT_LEAST_ONE=True)

    common: dict[str, Any] = {"along_k": True, "CTA_K": CTA_K, "THREADS": THREADS, "UNIT": UNIT}
    a_op = Operand(k, g.a, k.cast(g.lda, i64) // UNIT, BITS=ATOM.b.bits, EXTENT=CTA_M, **common)
    b_op = Operand(k, g.b, k.cast(g.ldb, i64) // UNIT, BITS=ATOM.a.bits, EXTENT=CTA_N, **common)
    if DIRECT and not (a_op.direct and b_op.direct):
        raise ValueError(f"DIRECT needs every thread to copy 16 bytes; a tile of {CTA_M}x{CTA_N}x{CTA_K} has fewer "
                         f"pieces than {THREADS} threads, or no multiple of them")
    a_op.begin(work.t, work.i0, g.m, work.k_first)
    b_op.begin(work.t, work.j0, g.n, work.k_first)
    a_op.lane_addresses(work.i1, work.lane, MFMA, ATOM.k)
    b_op.lane_addresses(work.j1, work.lane, MFMA, ATOM.k)
    block = work.k_first // SCALED
    of_both: list[Scales | ScaleTile] = []
    for x, ld, first, inner, limit, CTA, WARP in ((g.scale_a, g.ld_scale_a, work.i0, work.i1, g.m, CTA_M, WARP_M),
                                                  (g.scale_b, g.ld_scale_b, work.j0, work.j1, g.n, CTA_N, WARP_N)):
        if DIRECT_SCALES:
            tile = ScaleTile(k, x, ld, EXTENT=CTA, WARP=WARP, MFMA=MFMA, CTA_K=CTA_K, THREADS=THREADS)
            tile.begin(work.t, first, limit, block)
            tile.lane_addresses(inner, work.lane)
            of_both.append(tile)
        else:
            of_both.append(Scales(k, x, ld, work.lane, first + inner, limit, block, MFMA=MFMA, TILES=WARP // MFMA,
                                  CTA_K=CTA_K, AHEAD=1 if DIRECT else 2))
    streams: list[Any] = [a_op, b_op, *of_both]
    smem = k.smem("tiles", ((STAGES if DIRECT else 2) * sum(x.SIZE for x in streams),), i8, align=128)
    acc = k.tile(TILES_M, TILES_N, ATOM.c.type)
    products = WaveProducts(k, ATOM, acc, a_op, b_op, TILES_M=TILES_M, TILES_N=TILES_N, STEPS=STEPS,
                            scales=of_both)
    if DIRECT:
        pipeline.direct(k, streams, smem, work.tiles, work.short, products, STAGES)
    else:
        pipeline.through_registers(k, streams, smem, work.tiles, work.short, products)
    epilogue.store(k, acc, work, ATOM, Out.of(k, g, OUT, VECTOR_C, ALIGNED=False), THREADS)
    return k.function
