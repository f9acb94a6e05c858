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
from tilewright.kernels.amd.gemm import WorkgroupGemm
from tilewright.kernels.amd.operand import LdsOperand
from tilewright.kernels.amd.scales import Scales, ScaleTile
from tilewright.plans.amd import AmdPlan
from tilewright.plans.gpu_shape import GpuShape

K = {32: 64, 16: 128}           # of an instruction whose tile is 32 x 32, 16 x 16
UNIT = 8                        # bytes: rows are multiples of it, since blocks are


def emit_scaled_mfma_gemm(shape: GpuShape, plan: AmdPlan, ARCH: str = "gfx950", XCDS: int = 8) -> Function:
    """lda and ldb count bytes, ld_scale_a and ld_scale_b scales; k counts elements, a multiple of 32. Where scales come
    straight into LDS, too, k is a multiple of 128, ld_scale_a and ld_scale_b of 4."""
    s, p, direct = shape, plan, plan.copy == "lds"
    ATOM = amd.scaled(ARCH, p.mfma, K[p.mfma], s.b, s.a)
    mode = f"_s{p.stages}" + "d"*p.direct_scales(s) if direct else ""
    gemm = WorkgroupGemm(mx_name("scaled_mfma_gemm", s), mode, ATOM, s, p, (i8, i8), XCDS)
    k, g, work = gemm.k, gemm.g, gemm.work

    common: dict[str, Any] = {"along_k": True, "CTA_K": p.cta_k, "THREADS": p.threads, "UNIT": UNIT}
    a = LdsOperand(k, g.a, k.cast(g.lda, i64) // UNIT, BITS=ATOM.b.bits, EXTENT=p.cta_m, **common)
    b = LdsOperand(k, g.b, k.cast(g.ldb, i64) // UNIT, BITS=ATOM.a.bits, EXTENT=p.cta_n, **common)
    gemm.begin(a, b)
    block = work.k_first // SCALED
    scales: list[Scales | ScaleTile] = []
    for x, ld, first, inner, limit, CTA, WARP in (
            (g.scale_a, g.ld_scale_a, work.i0, work.i1, g.m, p.cta_m, p.warp_m),
            (g.scale_b, g.ld_scale_b, work.j0, work.j1, g.n, p.cta_n, p.warp_n)):
        if p.direct_scales(s):
            tile = ScaleTile(k, x, ld, EXTENT=CTA, WARP=WARP, MFMA=p.mfma, CTA_K=p.cta_k, THREADS=p.threads)
            tile.begin(work.t, first, limit, block)
            tile.lane_addresses(inner, work.lane)
            scales.append(tile)
        else:
            scales.append(Scales(k, x, ld, work.lane, first + inner, limit, block, MFMA=p.mfma, TILES=WARP // p.mfma,
                                 CTA_K=p.cta_k, AHEAD=1 if direct else 2))
    if direct:
        return gemm.multiply(partial(pipeline.direct, STAGES=p.stages), a, b, *scales, STAGES=p.stages)
    return gemm.multiply(pipeline.through_registers, a, b, *scales)


def mx_name(name: str, s: GpuShape) -> str:
    """The beginning of the name of a kernel of block-scaled operands."""
    return f"{name}_{s.a}" + f"_{s.b}"*(s.b != s.a) + f"_{s.out}"*(s.out != "f32")
