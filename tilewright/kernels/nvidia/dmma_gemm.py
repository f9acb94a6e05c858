"""f64 on tensor cores (`mma.sync`, Hopper's m16n8k4): tiles in shared memory, multiplied by warps.

Rows and columns of C can be dealt to those of the instruction in any order. Here lane group g of a warp takes rows 2g
and 2g + 1 as the instruction's rows g and g + 8, and columns 2g and 2g + 1 as column g of two instructions: then one
16-byte load brings a fragment of A, another those of B for two instructions, in the registers where the instruction
wants them, and a lane's elements of C lie four by four side by side.

Both operands lie in shared memory with rows or columns of C contiguous, each step of k four vectors of two elements
further than a multiple of all banks, so that the four steps of a fragment lie in different banks.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, Value, f64, i32, i64, ptr, vec
from tilewright.kernels.atoms.nvidia import MMA_F64_16X8X4 as ATOM
from tilewright.kernels.nvidia import epilogue, raster
from tilewright.kernels.nvidia.cut import Cut, Piece
from tilewright.kernels.nvidia.operand import Operand

PAD = 4                                                                 # elements
BOTH = 2*ATOM.n                                                         # columns of two instructions beside each other


def emit_dmma_gemm(LAYOUT: str = "nn", CTA_M: int = 128, CTA_N: int = 128, CTA_K: int = 16, WARP_M: int = 64,
                   WARP_N: int = 32, STAGES: int = 4, VECTOR: int = 2, SPLIT_K: int = 1, GROUP_M: int = 8,
                   MIN_CTAS: int = 1) -> Function:
    """C[m, n] = alpha * A @ B + beta * C in f64, row-major; beta = 0 never reads C.

    VECTOR      elements per copy, 1 or 2: matrices are aligned to so many, and their leading dimensions, and their
                sizes along the contiguous dimension, are multiples of it
    SPLIT_K     slices of k that CTAs along z have; then `workspace` is f64[SPLIT_K, tiles of C, CTA_M * CTA_N] and
                `counters` is i32[tiles of C], 0
    """
    WARPS_M, WARPS_N = CTA_M // WARP_M, CTA_N // WARP_N
    THREADS = 32 * WARPS_M * WARPS_N
    TILES_M, PAIRS_N, STEPS = WARP_M // ATOM.m, WARP_N // BOTH, CTA_K // ATOM.k
    split = {"workspace": ptr(f64), "counters": ptr(i32)} if SPLIT_K > 1 else {}
    k = Kernel(f"dmma_gemm_f64_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_w{WARP_M}x{WARP_N}_s{STAGES}_v{VECTOR}_k{SPLIT_K}",
               threads=THREADS, min_ctas=MIN_CTAS, m=i32, n=i32, k=i32, alpha=f64, a=ptr(f64), lda=i64, b=ptr(f64),
               ldb=i64, beta=f64, c=ptr(f64), ldc=i64, **split)
    m, n, kk, alpha, a, lda, b, ldb, beta, c, ldc = k.args[:11]
    t = k.thread[0]
    warp, group, quad = t // 32, t % 32 // 4, t % 4
    i1, j1 = warp % WARPS_M*WARP_M, warp // WARPS_M*WARP_N              # the warp's part of the CTA's tile

    tiles_m, tiles_n = k.ceil_div(m, CTA_M), k.ceil_div(n, CTA_N)
    tile_m, tile_n = raster.grouped(k, k.block[0], tiles_m, tiles_n, GROUP_M)
    i0, j0 = tile_m*CTA_M, tile_n*CTA_N
    k_first, steps = k.constant(i32, 0), kk
    if SPLIT_K > 1:
        share = k.ceil_div(k.ceil_div(kk, CTA_K), SPLIT_K)*CTA_K
        k_first = k.block_z*share
        steps = k.max(k.min(kk - k_first, share), 0)
    tiles = k.ceil_div(steps, CTA_K)                                    # of k
    short = k.select(tiles > 0, steps - (tiles - 1)*CTA_K, 0)           # steps of k in the first of them

    common = {"CTA_K": CTA_K, "VECTOR": VECTOR, "THREADS": THREADS, "ASYNC": True, "transposed": True, "PAD": PAD}
    a_op = Operand(k, f64, a, lda, along_k=LAYOUT[0] == "n", EXTENT=CTA_M, **common)
    b_op = Operand(k, f64, b, ldb, along_k=LAYOUT[1] == "t", EXTENT=CTA_N, **common)
    smem = k.smem("tiles", (STAGES*(a_op.SIZE + b_op.SIZE),), f64, align=128)
    a_lane = smem + quad*a_op.ROW + i1 + group*2
    b_lane = smem + a_op.SIZE + quad*b_op.ROW + j1 + group*2
    a_op.begin(t, i0, m, k_first)
    b_op.begin(t, j0, n, k_first)

    def request(stage: Value, valid: Value | None = None) -> None:
        at = smem + stage*(a_op.SIZE + b_op.SIZE)
        a_op.start(at, valid)
        b_op.start(at + a_op.SIZE, valid)

    def fragments(stage: Value, step: int) -> list[Value]:
        """Of A for each row of tiles, then of B for each pair of tiles."""
        at = stage*(a_op.SIZE + b_op.SIZE)
        return [*(k.load(a_lane + at + (step*ATOM.k*a_op.ROW + i*ATOM.m), vec(f64, 2)) for i in range(TILES_M)),
                *(k.load(b_lane + at + (step*ATOM.k*b_op.ROW + j*BOTH), vec(f64, 2)) for j in range(PAIRS_N))]

    acc = k.tile(2*TILES_M, 4*PAIRS_N, f64)                             # [rows, columns] of this lane

    def multiply(both: list[Value]) -> None:
        for i, a_reg in enumerate(both[:TILES_M]):
            for j, b_reg in enumerate(both[TILES_M:]):
                for e in range(2):
                    where = [(2*i + r // 2, 4*j + r % 2*2 + e) for r in range(4)]
                    d = k.mma(ATOM, [a_reg[0], a_reg[1]], [b_reg[e]], [acc[ij] for ij in where])
                    for ij, x in zip(where, d):
                        acc[ij] = x

    request(k.constant(i32, 0), short)                                  # without k, zeros
    k.cp_async_commit()
    for s in range(1, STAGES - 1):
        with k.when(tiles > s):
            request(k.constant(i32, s))
        k.cp_async_commit()
    k.cp_async_wait(STAGES - 2)
    k.barrier()
    carried = [k.variable(x.type, x) for x in fragments(k.constant(i32, 0), 0)]
    stage = k.variable(i32, 0)
    with k.loop(tiles) as tile:
        now = stage.get()
        after = k.select(now.equals(STAGES - 1), 0, now + 1)
        with k.when(tile + (STAGES - 1) < tiles):
            request(k.select(now.equals(0), STAGES - 1, now - 1))
        k.cp_async_commit()
        current = [x.get() for x in carried]
        for step in range(STEPS):
            if step == STEPS - 1:
                k.cp_async_wait(STAGES - 2)
                k.barrier()                                             # the next tile is here, and this one read
                after = k.select(tile + 1 < tiles, after, now)          # there is no next one: read anything
            following = fragments(after, 0) if step == STEPS - 1 else fragments(now, step + 1)
            multiply(current)
            current = following
        for x, value in zip(carried, current):
            x.set(value)
        stage.set(after)
    k.cp_async_wait(0)

    rows = Cut(tuple(Piece(i1 + group*2, i*ATOM.m, 2) for i in range(TILES_M)))
    columns = Cut(tuple(Piece(j1 + quad*4, j*BOTH, 4) for j in range(PAIRS_N)))

    def finish() -> None:
        epilogue.store(k, f64, acc, rows, columns, i0, j0, m, n, alpha, beta, c, ldc, VECTOR)
    if SPLIT_K > 1:
        workspace, counters = k.args[11:]
        epilogue.add_parts(k, acc, workspace, counters, k.block[0], tiles_m*tiles_n, k.block_z, SPLIT_K, t, THREADS,
                           t >= 0, finish)
    else:
        finish()
    return k.function
