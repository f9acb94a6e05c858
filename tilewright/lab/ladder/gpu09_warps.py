"""GPU step 9, warp tiles: the threads of a warp compute 32 x 64 of C, close together, not 16 rows across all of it.

For each k a warp reads the rows and columns of its tile from shared memory: until now 2 x 8 rows of A and all 128
columns of B, from now on 32 rows and 64 columns. 96 different numbers instead of 144 for the same multiply-adds.

Inside the warp the lanes are 4 x 8, numbered so that at most two neighbouring lanes read the same vector: lanes 0 and 1
share columns, and lanes 0, 2, 4 ... 14 share rows. A 16-byte load of a warp takes four passes over the banks, or two if
each lane shares its vector with the next lane or the next but one (targets/banks.py).
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu06_padded import L, Share, V
from tilewright.lab.ladder.gpu08_buffered import A_BUFFER, A_ROW, B_BUFFER, Buffers, multiply
from tilewright.lab.ladder.gpu_gemm import begin, store

WARP_M, WARP_N = 32, 64         # of C, computed by a warp; 4 x 2 warps make up the CTA's 128 x 128
THREADS = 256


def emit_warps():
    k, g = begin("gpu9_warps", THREADS, min_ctas=2)
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L
    rows, columns = blocks(tid)
    a_tiles, b_tiles = Buffers(k, "a_smem", A_BUFFER, A_ROW), Buffers(k, "b_smem", B_BUFFER, L)

    acc = k.tile(V, V, f32)
    multiply(k, g, acc, Share(k, g, tid, i0, j0), a_tiles, b_tiles, rows, columns)
    for x in range(V):
        for y in range(V):
            store(k, g, i0 + rows[x // 4] + x % 4, j0 + columns[y // 4] + y % 4, acc[x, y])
    return k.function


def lanes(tid):
    """(warp, row and column of this thread's lane among the warp's 4 x 8)."""
    warp, lane = tid // 32, tid % 32
    return warp, lane // 16 * 2 + lane % 2, lane // 2 % 8


def blocks(tid):
    """Where this thread's 2 x 2 blocks of 4 x 4 begin: rows, columns of the CTA's tile."""
    warp, i, j = lanes(tid)
    row, column = warp % 4 * WARP_M + i * 4, warp // 4 * WARP_N + j * 4
    return [row, row + WARP_M // 2], [column, column + WARP_N // 2]
