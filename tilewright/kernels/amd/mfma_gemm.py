"""GEMM on AMD's Matrix Cores: tiles of A and B in LDS, a part of C in each wave's registers, one MFMA for a step of k.

    C = alpha * A @ B + beta * C

A workgroup of waves owns CTA_M x CTA_N elements of C. Tile after tile of k, its part of A and of B comes into LDS while
the waves multiply the tile before: through registers, which are loaded a tile ahead of that, or straight into LDS on
chips that can, where the reads transpose an operand with k strided (k_strided). A wave owns WARP_M x WARP_N of the
elements, in tiles of one instruction. Instructions multiply B^T by A^T: then a lane's accumulators follow each other
along the rows of C.

The k that is left over when tiles are full is done first, so that the loop has no case for it.
"""
from __future__ import annotations

from typing import Any

from tilewright.atoms import amd
from tilewright.atoms.mfma import Mfma
from tilewright.ir import Kernel, Value, bf16, f16, f32, f64, i8, i32
from tilewright.ir.ops.amd import TRANSPOSED_BITS
from tilewright.kernels.amd import epilogue, pipeline
from tilewright.kernels.amd.k_strided import KStridedOperand
from tilewright.kernels.amd.lds_tile import LANES, threads
from tilewright.kernels.amd.operand import Operand
from tilewright.kernels.amd.products import WaveProducts
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.work import arguments, parameters, share
from tilewright.kernels.narrow import memory_type
from tilewright.targets import target

TYPES = {"f64": f64, "f32": f32, "xf32": f32, "f16": f16, "bf16": bf16, "i32": i32}     # of memory; others are bytes


def instruction(ARCH: str, MFMA: int, A: str, B: str, CTA_K: int) -> Mfma:
    """That which multiplies most of these formats at once, in tiles of MFMA x MFMA, of CTA_K steps at most; its A is
    B^T."""
    found = [atom for atom in amd.of(ARCH) if atom.blocks == 1 and atom.m == MFMA and not atom.scaled
             and (atom.a_format, atom.b_format) == (B, A) and min(atom.a.bits, atom.b.bits) >= 8 and atom.k <= CTA_K]
    if not found:
        raise ValueError(f"{ARCH} has no matrix instruction for {A} by {B} in tiles of {MFMA} x {MFMA}")
    return max(found, key=lambda atom: atom.k)


def emit_mfma_gemm(*, ARCH: str, A: str = "f16", B: str | None = None, OUT: str | None = None, LAYOUT: str = "nt",
                   CTA_M: int = 256, CTA_N: int = 256, CTA_K: int = 32, WARP_M: int = 128, WARP_N: int = 64,
                   MFMA: int = 32, STAGES: int = 2, DIRECT: bool = False, VECTOR: int = 16, VECTOR_C: int = 4,
                   SPLIT_K: int = 1, GROUP_M: int = 8, XCDS: int = 8, BATCH: bool = False) -> Any:
    """LAYOUT: "n" or "t" for A and for B, as BLAS says it: "t" of B has k along its rows.

    VECTOR, VECTOR_C: elements that are moved at once, of an operand that is contiguous along m or n, whose m or n is a
    multiple of it, and of C, whose n is. STAGES: tiles in LDS, if they come there straight (DIRECT). BATCH: of many
    matrices, see work.parameters.
    """
    B = B or A
    ATOM = instruction(ARCH, MFMA, A, B, CTA_K)
    SUMS = ATOM.c.type.scalar
    THREADS = threads(CTA_M, CTA_N, WARP_M, WARP_N)
    TILES_M, TILES_N, STEPS = WARP_M // MFMA, WARP_N // MFMA, CTA_K // ATOM.k
    split, result = Split(SPLIT_K), OUT or ATOM.c.format
    k = Kernel(f"mfma_gemm_{A}" + (f"_{B}" if B != A else "") + (f"_{OUT}" if OUT else "")
               + f"_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_{WARP_M}x{WARP_N}" + (f"_s{STAGES}" if DIRECT else "")
               + (f"_k{SPLIT_K}" if SPLIT_K > 1 else "") + "_batch"*BATCH, threads=THREADS, warp=LANES,
               **parameters(SUMS, TYPES.get(A, i8), TYPES.get(B, i8), memory_type(result), split,
                            BATCH=BATCH))
    g = arguments(k)
    work = share(k, g, split, CTA_M=CTA_M, CTA_N=CTA_N, CTA_K=CTA_K, WARP_M=WARP_M, WARP_N=WARP_N, GROUP_M=GROUP_M,
                 DIES=XCDS, AT_LEAST_ONE=True)

    def operand(gmem: Value, ld: Value, BITS: int, along_k: bool, EXTENT: int) -> Operand | KStridedOperand:
        common: dict[str, Any] = {"BITS": BITS, "EXTENT": EXTENT, "CTA_K": CTA_K, "THREADS": THREADS}
        if DIRECT and not along_k and target(ARCH).has("lds.transposed") and BITS in TRANSPOSED_BITS:
            return KStridedOperand(k, gmem, ld, **common)
        return Operand(k, gmem, ld, along_k=along_k, VECTOR=VECTOR, **common)
    a_op = operand(g.a, g.lda, ATOM.b.bits, LAYOUT[0] == "n", CTA_M)
    b_op = operand(g.b, g.ldb, ATOM.a.bits, LAYOUT[1] == "t", CTA_N)
    if DIRECT and not (a_op.direct and b_op.direct):
        raise ValueError(f"DIRECT needs k contiguous (on gfx950 also m or n, for elements of 8 and 16 bits) and 16 "
                         f"bytes for each of {THREADS} threads to copy; not so for layout {LAYOUT} of {A} by {B} in "
                         f"tiles of {CTA_M}x{CTA_N}x{CTA_K}")
    streams: list[Any] = [a_op, b_op]
    smem = k.smem("tiles", ((STAGES if DIRECT else 2) * (a_op.SIZE + b_op.SIZE),), i8, align=128)
    a_op.begin(work.t, work.i0, g.m, work.k_first)
    b_op.begin(work.t, work.j0, g.n, work.k_first)
    a_op.lane_addresses(work.i1, work.lane, MFMA, ATOM.k)
    b_op.lane_addresses(work.j1, work.lane, MFMA, ATOM.k)
    acc = k.tile(TILES_M, TILES_N, ATOM.c.type)
    products = WaveProducts(k, ATOM, acc, a_op, b_op, TILES_M=TILES_M, TILES_N=TILES_N, STEPS=STEPS)
    if DIRECT:
        pipeline.direct(k, streams, smem, work.tiles, work.short, products, STAGES)
    else:
        pipeline.through_registers(k, streams, smem, work.tiles, work.short, products)
    epilogue.store(k, acc, work, ATOM, Out.of(k, g, result, VECTOR_C, ALIGNED=False), THREADS)
    return k.function
