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
from tilewright.kernels.amd.gemm import WorkgroupGemm
from tilewright.kernels.amd.k_strided import KStridedOperand
from tilewright.kernels.amd.operand import LdsOperand
from tilewright.plans.amd import AmdPlan
from tilewright.plans.gpu_shape import GpuShape
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


def emit_mfma_gemm(shape: GpuShape, plan: AmdPlan, ARCH: str, XCDS: int = 8, GROUPED: str = "",
                   WHEN: str = "") -> Function:
    """The kernel for a shape, by a plan of mfma or xf32. The plan's `vector` is of operands that are contiguous along m
    or n: those sizes are multiples of it. GROUPED: what offsets divide, "m" (then k is contiguous in A) or "k": see
    gpu/groups.py; of a batch, with split_k = 1. WHEN: see work.arguments."""
    s, p, (A, B) = shape, plan, ("xf32", "xf32") if plan.algorithm == "xf32" else (shape.a, shape.b)
    ATOM = instruction(ARCH, p.mfma, A, B, p.cta_k)
    direct = p.copy == "lds"
    name = f"mfma_gemm_{A}" + f"_{B}"*(B != A) + f"_{s.out}"*(s.out != s.sums) + f"_{s.layout}"
    gemm = WorkgroupGemm(name, f"_s{p.stages}" if direct else "", ATOM, s, p, (TYPES.get(A, i8), TYPES.get(B, i8)),
                         XCDS, GROUPED, WHEN)
    g, transposed = gemm.g, direct and target(ARCH).has("lds.transposed")

    def operand(gmem: Value, ld: Value, BITS: int, along_k: bool, EXTENT: int) -> LdsOperand | KStridedOperand:
        common: dict[str, Any] = {"BITS": BITS, "EXTENT": EXTENT, "CTA_K": p.cta_k, "THREADS": p.threads}
        if transposed and not along_k and BITS in TRANSPOSED_BITS:
            return KStridedOperand(gemm.k, gmem, ld, **common)
        return LdsOperand(gemm.k, gmem, ld, along_k=along_k, VECTOR=p.vector, **common)
    a = operand(g.a, g.lda, ATOM.b.bits, s.layout[0] == "n", p.cta_m)
    b = operand(g.b, g.ldb, ATOM.a.bits, s.layout[1] == "t", p.cta_n)
    gemm.begin(a, b)
    if direct:
        return gemm.multiply(partial(pipeline.direct, STAGES=p.stages), a, b, STAGES=p.stages)
    return gemm.multiply(pipeline.through_registers, a, b)
