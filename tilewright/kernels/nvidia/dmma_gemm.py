"""f64 on tensor cores (`mma.sync`, Hopper's m16n8k4): tiles in shared memory, multiplied by warps.

Operands lie in shared memory as they lie in global memory, copied 16 bytes at a time; PAD elements after each row keep
what the lanes of a fragment read in different banks. How rows and columns of C are dealt to those of the instruction is
free, and chosen by what is contiguous:

    i (rows of A, columns of B)     lane group g takes 2g and 2g + 1, as rows g and g + 8 of one instruction, or as
                                    column g of two: one 16-byte load brings both, in the registers they belong in
    k                               g and g + 8, by 8-byte loads: those of a 16-byte load would be two steps of k,
                                    which belong in registers that are not neighbours
"""
from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tilewright.atoms.nvidia import MMA_F64_16X8X4 as ATOM
from tilewright.ir import Function, Kernel, Value, f64, i32, i64, ptr, vec
from tilewright.kernels.gpu import raster
from tilewright.kernels.nvidia import epilogue
from tilewright.kernels.nvidia.cut import Cut, Piece
from tilewright.kernels.nvidia.operand import Operand

PAD = 4                 # elements


def emit_dmma_gemm(LAYOUT: str = "nn", CTA_M: int = 128, CTA_N: int = 128, CTA_K: int = 16, WARP_M: int = 64,
                   WARP_N: int = 32, STAGES: int = 4, VECTOR: int = 2, SPLIT_K: int = 1, TAIL: bool = False,
                   GROUP_M: int = 8, MIN_CTAS: int = 1) -> Function:
    """C[m, n] = alpha * A @ B + beta * C in f64, row-major; beta = 0 never reads C.

    VECTOR      elements per copy, 1 or 2: matrices are aligned to so many, and their leading dimensions, and their
                sizes along the contiguous dimension, are multiples of it
    SPLIT_K     slices of k that CTAs along z have; then `workspace` is f64[SPLIT_K, tiles of C, CTA_M * CTA_N] and
                `counters` is i32[tiles of C], 0
    TAIL        the last tiles of C are divided among CTAs, as in simt_gemm.py
    """
    WARPS_M, WARPS_N = CTA_M // WARP_M, CTA_N // WARP_N
    THREADS = 32 * WARPS_M * WARPS_N
    TILES_M, PAIRS_N, STEPS = WARP_M // ATOM.m, WARP_N // (2*ATOM.n), CTA_K // ATOM.k
    params: dict[str, Any] = {"m": i32, "n": i32, "k": i32, "alpha": f64, "a": ptr(f64), "lda": i64, "b": ptr(f64),
                              "ldb": i64, "beta": f64, "c": ptr(f64), "ldc": i64}
    if SPLIT_K > 1 or TAIL:
        params |= {"workspace": ptr(f64), "counters": ptr(i32)}
    if TAIL:
        params |= {"whole": i32, "parts": i32}
    k = Kernel(f"dmma_gemm_f64_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_w{WARP_M}x{WARP_N}_s{STAGES}_v{VECTOR}"
               f"_k{'tail' if TAIL else SPLIT_K}", threads=THREADS, min_ctas=MIN_CTAS,
               noalias=SPLIT_K == 1 and not TAIL, **params)
    m, n, kk, alpha, a, lda, b, ldb, beta, c, ldc = k.args[:11]
    t = k.thread[0]
    warp, group, quad = t // 32, t % 32 // 4, t % 4
    i1, j1 = warp % WARPS_M*WARP_M, warp // WARPS_M*WARP_N              # the warp's part of the CTA's tile

    tiles_m, tiles_n = k.ceil_div(m, CTA_M), k.ceil_div(n, CTA_N)
    mine, part, parts = k.block[0], k.constant(i32, 0), k.constant(i32, SPLIT_K)     # which tile of C, which part of it
    if SPLIT_K > 1:
        part = k.block_z
    elif TAIL:
        mine, part, parts = raster.tail(k, k.block[0], *k.args[13:])
    tile_m, tile_n = raster.grouped(k, mine, tiles_m, tiles_n, GROUP_M)
    i0, j0 = tile_m*CTA_M, tile_n*CTA_N
    k_first, steps = k.constant(i32, 0), kk
    if SPLIT_K > 1 or TAIL:
        share = k.ceil_div(k.ceil_div(kk, CTA_K), parts)*CTA_K
        k_first = part*share
        steps = k.max(k.min(kk - k_first, share), 0)
    tiles = k.ceil_div(steps, CTA_K)                                    # of k
    short = k.select(tiles > 0, steps - (tiles - 1)*CTA_K, 0)           # steps of k in the first of them

    common: dict[str, Any] = {"CTA_K": CTA_K, "VECTOR": VECTOR, "THREADS": THREADS, "ASYNC": True,
                              "transposed": False, "PAD": PAD}
    a_op = Operand(k, f64, a, lda, along_k=LAYOUT[0] == "n", EXTENT=CTA_M, **common)
    b_op = Operand(k, f64, b, ldb, along_k=LAYOUT[1] == "t", EXTENT=CTA_N, **common)
    smem = k.smem("tiles", (STAGES*(a_op.SIZE + b_op.SIZE),), f64, align=128)
    a_op.begin(t, i0, m, k_first)
    b_op.begin(t, j0, n, k_first)

    def first(x: Operand, start: Value) -> Value:
        """Where this lane's part of the first fragment is, from the start of the tile."""
        return (start + group)*x.ROW + quad if x.inner_k else quad*x.ROW + start + group*2
    a_lane, b_lane = smem + first(a_op, i1), smem + a_op.SIZE + first(b_op, j1)

    def request(stage: Value, valid: Value | None = None) -> None:
        at = smem + stage*(a_op.SIZE + b_op.SIZE)
        a_op.start(at, valid)
        b_op.start(at + a_op.SIZE, valid)

    def fragment(x: Operand, at: Value, step: int, COUNT: int) -> list[tuple[Value, Value]]:
        """COUNT times two of this lane's rows or columns, at one step of k."""
        found = []
        for part in range(COUNT):
            if x.inner_k:
                one, other = (k.load(at + ((part*16 + e*8)*x.ROW + step*ATOM.k)) for e in range(2))
                found.append((one, other))
            else:
                both = k.load(at + (step*ATOM.k*x.ROW + part*16), vec(f64, 2))
                found.append((both[0], both[1]))
        return found

    def fragments(stage: Value, step: int) -> list[tuple[Value, Value]]:
        """Of A for each row of tiles, then of B for each pair of tiles."""
        at = stage*(a_op.SIZE + b_op.SIZE)
        return [*fragment(a_op, a_lane + at, step, TILES_M), *fragment(b_op, b_lane + at, step, PAIRS_N)]

    acc = k.tile(2*TILES_M, 4*PAIRS_N, f64)                             # [rows, columns] of this lane

    def multiply(both: list[tuple[Value, Value]]) -> None:
        for i, a_reg in enumerate(both[:TILES_M]):
            for j, b_reg in enumerate(both[TILES_M:]):
                for e in range(2):
                    columns = [2*e + r if b_op.inner_k else 2*r + e for r in range(2)]     # of the two that e has
                    where = [(2*i + r // 2, 4*j + columns[r % 2]) for r in range(4)]
                    d = k.mma(ATOM, a_reg, [b_reg[e]], [acc[ij] for ij in where])
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
    carried = [[k.variable(f64, x) for x in pair] for pair in fragments(k.constant(i32, 0), 0)]
    stage = k.variable(i32, 0)
    with k.loop(tiles) as tile:
        now = stage.get()
        after = k.select(now == STAGES - 1, 0, now + 1)
        with k.when(tile + (STAGES - 1) < tiles):
            request(k.select(now == 0, STAGES - 1, now - 1))
        k.cp_async_commit()
        current = [(x.get(), y.get()) for x, y in carried]
        for step in range(STEPS):
            if step == STEPS - 1:
                k.cp_async_wait(STAGES - 2)
                k.barrier()                                             # the next tile is here, and this one read
                after = k.select(tile + 1 < tiles, after, now)          # there is no next one: read anything
            following = fragments(after, 0) if step == STEPS - 1 else fragments(now, step + 1)
            multiply(current)
            current = following
        for pair, values in zip(carried, current):
            for x, value in zip(pair, values):
                x.set(value)
        stage.set(after)
    k.cp_async_wait(0)

    if a_op.inner_k:
        rows = Cut(tuple(Piece(i1 + group, i*8, 1) for i in range(2*TILES_M)))
    else:
        rows = Cut(tuple(Piece(i1 + group*2, i*16, 2) for i in range(TILES_M)))
    if b_op.inner_k:
        columns = Cut(tuple(Piece(j1 + quad*2, j*8, 2) for j in range(2*PAIRS_N)))
    else:
        columns = Cut(tuple(Piece(j1 + quad*4, j*16, 4) for j in range(PAIRS_N)))

    def finish() -> None:
        epilogue.store(k, f64, acc, rows, columns, i0, j0, m, n, alpha, beta, c, ldc, VECTOR)
    if SPLIT_K > 1 or TAIL:
        workspace, counters = k.args[11:13]
        whole = k.args[13] if TAIL else k.constant(i32, 0)
        with k.when(parts > 1) if TAIL else nullcontext():
            epilogue.add_parts(k, acc, workspace, counters, mine - whole, tiles_m*tiles_n - whole, part, parts, t, t,
                               THREADS, t >= 0, finish)
    if TAIL:
        with k.when(parts == 1):
            finish()
    elif SPLIT_K == 1:
        finish()
    return k.function
