"""GPU step 12, asynchronous: 128 x 256 of C by a CTA, whose tiles are copied to shared memory past the registers.

A thread has 16 x 8 elements: it reads six vectors, 24 elements, from shared memory for 128 multiply-adds, instead of 16
for 64, and the CTA reads 3/4 as much global memory per element of C. No registers are left to hold the next tiles, but
`cp.async` (from Ampere on) copies from global to shared memory without registers. The copies of the next tiles begin
before the multiply-adds of these; a thread waits for its own copies, and then at the barrier for those of all.

A copy moves one element, since A is transposed; so any alignment is allowed. Outside the matrices it reads nothing and
writes a zero. A warp copies 4 rows and 8 columns of A, which the padding keeps free of bank conflicts.

`emit_async(128)` is step 10 with copies in place of its loads and nothing else changed: the article's experiment, which
was slower.
"""
from tilewright.ir import f32, i32
from tilewright.lab.ladder.gpu06_padded import S
from tilewright.lab.ladder.gpu08_buffered import A_BUFFER, A_ROW, Buffers, Fragments
from tilewright.lab.ladder.gpu09_warps import THREADS, lanes
from tilewright.lab.ladder.gpu10_stored import write
from tilewright.lab.ladder.gpu_gemm import begin, outer_product

CTA_M, CTA_N, WARP_N = 128, 256, 64         # 2 x 4 warps, each with 64 x 64 of C


def emit_async(CTA_N=CTA_N):
    WARP_M = CTA_N // 4                     # 64; 32 for a CTA of 128 x 128, whose warps are then those of step 9
    DOWN = CTA_M // WARP_M                  # warps
    k, g = begin("gpu12_async" + f"_{CTA_N}" * (CTA_N < 256), THREADS, min_ctas=256 // CTA_N)
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0 = by * CTA_M, bx * CTA_N
    rows, columns = blocks(tid, WARP_M)
    a_tiles = Buffers(k, "a_smem", A_BUFFER, A_ROW)
    b_tiles = Buffers(k, "b_smem", S * CTA_N * f32.bytes, CTA_N)
    fragments = Fragments(k, a_tiles, b_tiles, rows, columns)

    acc = k.tile(WARP_M // 4, 8, f32)
    copy(k, g, tid, i0, j0, k.constant(i32, 0), a_tiles.used, b_tiles.used, CTA_N)
    arrive(k)
    with k.loop(g.depth, step=S) as p0:
        copy(k, g, tid, i0, j0, p0 + S, a_tiles.other, b_tiles.other, CTA_N)
        fragments.load(0)
        for p in range(S):
            if p + 1 < S:
                fragments.load(p + 1)
            outer_product(k, acc, *fragments[p])
        arrive(k)
        a_tiles.switch()
        b_tiles.switch()

    warp = tid // 32
    write(k, g, acc, tid, i0 + warp % DOWN * WARP_M, j0 + warp // DOWN * WARP_N, a_tiles.smem)
    return k.function


def blocks(tid, WARP_M=64):
    """Where this thread's 4 x 2 (or 2 x 2) blocks of 4 x 4 begin."""
    warp, i, j = lanes(tid)
    down = CTA_M // WARP_M
    row, column = warp % down * WARP_M + i * 4, warp // down * WARP_N + j * 4
    return [row + x for x in range(0, WARP_M, 16)], [column, column + 32]


def copy(k, g, tid, i0, j0, p0, a_tile, b_tile, CTA_N):
    """Start to copy this thread's elements of the tiles of A at (i0, p0) and of B at (p0, j0)."""
    i, p, q, j = tid // S, tid % S, tid // 32, tid % 32
    a_at = g.a.at(i0 + i, p0 + p)
    for e in range(0, CTA_M, 32):
        inside = (i0 + i + e < g.m) & (p0 + p < g.depth)
        k.cp_async(a_tile.at(p, i + e), a_at, 4, valid=k.cast(inside, i32) * 4)
        a_at = a_at + g.lda * 32
    for e in range(0, CTA_N, 32):
        inside = (p0 + q < g.depth) & (j0 + j + e < g.n)
        k.cp_async(b_tile.at(q, j + e), g.b.at(p0 + q, j0 + j + e), 4, valid=k.cast(inside, i32) * 4)
    k.cp_async_commit()


def arrive(k):
    """The copies of all threads have ended, and all threads have used the tiles before."""
    k.cp_async_wait()
    k.barrier()
