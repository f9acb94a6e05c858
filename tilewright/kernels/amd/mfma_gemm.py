"""GEMM on AMD's Matrix Cores: tiles of A and B in LDS, a part of C in each wave's registers, one MFMA for a step of k.

    D = alpha * A @ B + beta * C

A workgroup of waves owns CTA_M x CTA_N elements of C. Tile after tile of k, its part of A and of B comes into LDS while
the waves multiply the tile before: through registers, which are loaded a tile ahead of that, or straight into LDS on
chips that can. A wave owns WARP_M x WARP_N of the elements, in tiles of one instruction. Instructions multiply B^T by
A^T: then a lane's accumulators follow each other along the rows of C.

The k that is left over when tiles are full is done first, so that the loop has no case for it.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Kernel, Value, bf16, f16, f32, f64, i8, i32, i64, ptr
from tilewright.kernels import raster
from tilewright.kernels.amd import epilogue
from tilewright.kernels.amd.operand import LANES, Operand
from tilewright.kernels.atoms import amd
from tilewright.kernels.atoms.mfma import Mfma

TYPES = {"f64": f64, "f32": f32, "xf32": f32, "f16": f16, "bf16": bf16, "i32": i32}     # others are bytes


def instruction(ARCH: str, MFMA: int, A: str, B: str) -> Mfma:
    """That which multiplies most of these formats at once, of tiles of MFMA x MFMA; B^T is its A."""
    found = [atom for atom in amd.of(ARCH) if atom.blocks == 1 and atom.m == MFMA and not atom.scaled
             and atom.numbers is None and (atom.a_format, atom.b_format) == (B, A)]
    if not found:
        raise ValueError(f"{ARCH} has no matrix instruction for {A} by {B} in tiles of {MFMA} x {MFMA}")
    return max(found, key=lambda atom: atom.k)


def emit_mfma_gemm(*, ARCH: str, A: str = "f16", B: str | None = None, OUT: str | None = None, LAYOUT: str = "nt",
                   CTA_M: int = 256, CTA_N: int = 256, CTA_K: int = 32, WARP_M: int = 128, WARP_N: int = 64,
                   MFMA: int = 32, DIRECT: bool = False, VECTOR: int = 16, VECTOR_C: int = 4, SPLIT_K: int = 1,
                   GROUP_M: int = 8, XCDS: int = 8) -> Any:
    """LAYOUT: "n" or "t" for A and for B, as BLAS says it: "t" of B has k along its rows.

    VECTOR, VECTOR_C: elements that are moved at once, of an operand that is contiguous along m or n, whose m or n is a
    multiple of it, and of C, whose n is.
    """
    B = B or A
    ATOM = instruction(ARCH, MFMA, A, B)
    SUMS = ATOM.c.type.scalar
    OUT_TYPE = TYPES[OUT] if OUT else SUMS
    THREADS = CTA_M // WARP_M * (CTA_N // WARP_N) * LANES
    TILES_M, TILES_N, STEPS = WARP_M // MFMA, WARP_N // MFMA, CTA_K // ATOM.k
    name = f"mfma_gemm_{ARCH}_{A}" + (f"_{B}" if B != A else "") + \
        f"_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_{WARP_M}x{WARP_N}"
    k = Kernel(name, threads=THREADS, warp=LANES, m=i32, n=i32, k=i32, alpha=SUMS, a=ptr(TYPES.get(A, i8)), lda=i64,
               b=ptr(TYPES.get(B, i8)), ldb=i64, beta=SUMS, c=ptr(OUT_TYPE), ldc=i64,
               **({"workspace": ptr(SUMS), "counters": ptr(i32)} if SPLIT_K > 1 else {}))
    m, n, kk, alpha, a, lda, b, ldb, beta, c, ldc = k.args[:11]
    t = k.thread[0]
    wave, lane = t // LANES, t % LANES

    tiles_m, tiles_n = k.ceil_div(m, CTA_M), k.ceil_div(n, CTA_N)
    mine = raster.by_die(k, k.block[0], tiles_m*tiles_n, XCDS)
    tile_m, tile_n = raster.grouped(k, mine, tiles_m, tiles_n, GROUP_M)
    i0, j0 = tile_m*CTA_M, tile_n*CTA_N
    i1, j1 = wave % (CTA_M // WARP_M)*WARP_M, wave // (CTA_M // WARP_M)*WARP_N          # the wave's part of it
    k_first, steps = k.constant(i32, 0), kk
    if SPLIT_K > 1:
        share = k.ceil_div(k.ceil_div(kk, CTA_K), SPLIT_K)*CTA_K
        k_first = k.min(k.block_z*share, kk - 1)
        steps = k.max(k.min(kk - k.block_z*share, share), 0)
    tiles = k.ceil_div(steps, CTA_K)                                                    # of k
    short = steps - k.max(tiles - 1, 0)*CTA_K                                           # steps of k in the first of them

    common: dict[str, Any] = {"CTA_K": CTA_K, "THREADS": THREADS, "DIRECT": DIRECT, "VECTOR": VECTOR}
    a_op = Operand(k, a, lda, BITS=ATOM.b.bits, along_k=LAYOUT[0] == "n", EXTENT=CTA_M, **common)
    b_op = Operand(k, b, ldb, BITS=ATOM.a.bits, along_k=LAYOUT[1] == "t", EXTENT=CTA_N, **common)
    STAGE = a_op.SIZE + b_op.SIZE
    smem = k.smem("tiles", (2*STAGE,), i8, align=128)
    a_op.begin(t, i0, m, k_first)
    b_op.begin(t, j0, n, k_first)
    a_op.part(i1, lane, MFMA, ATOM.k)
    b_op.part(j1, lane, MFMA, ATOM.k)
    acc = k.tile(TILES_M, TILES_N, ATOM.c.type)

    def multiply(at: Value) -> None:
        for step in range(0, STEPS, a_op.READS):
            a_parts = [a_op.read(at, i, step) for i in range(TILES_M)]
            b_parts = [b_op.read(at + a_op.SIZE, j, step) for j in range(TILES_N)]
            for e in range(a_op.READS):
                for i in range(TILES_M):
                    for j in range(TILES_N):
                        acc[i, j], = k.mma(ATOM, [k.reinterpret(b_parts[j][e], ATOM.a.type)],
                                           [k.reinterpret(a_parts[i][e], ATOM.b.type)], [acc[i, j]])

    def stash(at: Value) -> None:
        a_op.stash(at)
        b_op.stash(at + a_op.SIZE)

    def fetch(more: Value) -> None:
        a_op.fetch(more)
        b_op.fetch(more)

    a_op.fetch_some(short)
    b_op.fetch_some(short)
    stash(smem)
    with k.when(tiles > 1):
        fetch(tiles > 2)
    k.barrier()
    stage = k.variable(i32, 0)
    with k.loop(tiles - 1) as tile:
        now = stage.get()
        stash(smem + (STAGE - now))
        fetch(tile + 3 < tiles)                 # the last one again, if there is none after it
        multiply(smem + now)
        k.barrier()
        stage.set(STAGE - now)
    multiply(smem + stage.get())

    place = epilogue.Place([i0 + i1 + lane % MFMA + i*MFMA for i in range(TILES_M)],
                           [j0 + j1 + j*MFMA for j in range(TILES_N)], lane, ATOM)

    def finish() -> None:
        epilogue.store(k, acc, place, m, n, alpha, beta, c, ldc, VECTOR_C)
    if SPLIT_K > 1:
        epilogue.add_parts(k, acc, *k.args[11:13], mine, tiles_m*tiles_n, k.block_z, SPLIT_K, t, THREADS, finish)
    else:
        finish()
    return k.function

