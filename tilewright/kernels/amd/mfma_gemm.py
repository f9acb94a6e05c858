"""GEMM on AMD's Matrix Cores: tiles of A and B in LDS, a part of C in each wave's registers, one MFMA for a step of k.

    C = alpha * A @ B + beta * C

The parts are those of all GEMMs on Matrix Cores (gemm.py). Tile after tile of k, a workgroup's part of A and of B comes
into LDS while its waves multiply the tile before: through registers, which are loaded a tile ahead of that, or straight
into LDS on chips that can, where the reads transpose an operand with k strided (k_strided.py).

The partial tile of k, if there is one, is the first, so that the loop has no case for it.
"""
from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.atoms import amd
from tilewright.atoms.mfma import Mfma
from tilewright.ir import Function, Value, bf16, f16, f32, f64, i8, i32
from tilewright.ir.ops.amd import TRANSPOSED_BITS
from tilewright.kernels.amd import pipeline
from tilewright.kernels.amd.gemm import Tiling, WorkgroupGemm
from tilewright.kernels.amd.k_strided import KStridedOperand
from tilewright.kernels.amd.operand import LdsOperand
from tilewright.targets import target

TYPES = {"f64": f64, "f32": f32, "xf32": f32, "f16": f16, "bf16": bf16, "i32": i32}     # of memory; others are bytes


def instruction(ARCH: str, MFMA: int, A: str, B: str, CTA_K: int) -> Mfma:
    """The instruction that multiplies most elements of these formats at once, in tiles of MFMA x MFMA, of CTA_K steps
    at most; its A is B^T."""
    fitting = [atom for atom in amd.mfma_instructions(ARCH) if atom.blocks == 1 and atom.m == MFMA and not atom.scaled
             and (atom.a_format, atom.b_format) == (B, A) and min(atom.a.bits, atom.b.bits) >= 8 and atom.k <= CTA_K]
    if not fitting:
        raise ValueError(f"{ARCH} has no matrix instruction for {A} by {B} in tiles of {MFMA} x {MFMA}")
    return max(fitting, key=lambda atom: atom.k)


def emit_mfma_gemm(*, ARCH: str, A: str = "f16", B: str | None = None, OUT: str | None = None, LAYOUT: str = "nt",
                   STAGES: int = 2, DIRECT: bool = False, VECTOR: int = 16, VECTOR_C: int = 4, BATCH: bool = False,
                   SCALED: bool = False, EPILOGUE: str = "", GROUPED: str = "", **tiling: int) -> Function:
    """LAYOUT: "n" or "t" for A and for B, as BLAS says it: "t" of B has k along its rows. tiling: see gemm.Tiling.

    VECTOR, VECTOR_C: elements that are moved at once, of an operand that is contiguous along m or n, whose m or n is a
    multiple of it, and of C, whose n is. STAGES: tiles in LDS, if they come there straight (DIRECT). BATCH: of many
    matrices, see work.parameters. SCALED: scales multiply sums (gpu/scales.py); they, alpha and beta are f64 for f64,
    else f32. EPILOGUE: the text of an expressions.function.Epilogue (gpu/fused.py). GROUPED: what offsets divide, "m"
    (then k is contiguous in A) or "k": see gpu/groups.py; with BATCH and SPLIT_K 1.
    """
    B, t = B or A, Tiling(**tiling)
    ATOM = instruction(ARCH, t.MFMA, A, B, t.CTA_K)
    name = f"mfma_gemm_{A}" + (f"_{B}" if B != A else "") + (f"_{OUT}" if OUT else "") + f"_{LAYOUT}"
    gemm = WorkgroupGemm(name, f"_s{STAGES}" if DIRECT else "", ATOM, t, TYPES.get(A, i8), TYPES.get(B, i8),
                         OUT or ATOM.c.format, VECTOR_C, (f64 if A == "f64" else f32) if SCALED else None, BATCH,
                         EPILOGUE, GROUPED)
    g, TRANSPOSED = gemm.g, DIRECT and target(ARCH).has("lds.transposed")

    def operand(gmem: Value, ld: Value, BITS: int, along_k: bool, EXTENT: int) -> LdsOperand | KStridedOperand:
        common: dict[str, Any] = {"BITS": BITS, "EXTENT": EXTENT, "CTA_K": t.CTA_K, "THREADS": gemm.THREADS}
        if TRANSPOSED and not along_k and BITS in TRANSPOSED_BITS:
            return KStridedOperand(gemm.k, gmem, ld, **common)
        return LdsOperand(gemm.k, gmem, ld, along_k=along_k, VECTOR=VECTOR, **common)
    a = operand(g.a, g.lda, ATOM.b.bits, LAYOUT[0] == "n", t.CTA_M)
    b = operand(g.b, g.ldb, ATOM.a.bits, LAYOUT[1] == "t", t.CTA_N)
    if DIRECT and not (a.direct and b.direct):
        raise ValueError(f"DIRECT needs k contiguous (on gfx950 also m or n, for elements of 8 and 16 bits) and 16 "
                         f"bytes for each of {gemm.THREADS} threads to copy; not so for layout {LAYOUT} of {A} by {B} "
                         f"in tiles of {t.CTA_M}x{t.CTA_N}x{t.CTA_K}")
    gemm.begin(a, b)
    if DIRECT:
        return gemm.multiply(partial(pipeline.direct, STAGES=STAGES), a, b, STAGES=STAGES)
    return gemm.multiply(pipeline.through_registers, a, b)
