"""GPU step 10, stored: C goes through shared memory, and a warp stores 32 neighbours of a row. The article's 128x128x8.

With the vectors of step 7 a thread has 4 x 4 blocks of C, and no store of single elements by a warp fills its sectors.
So each warp writes 16 x 32 elements, one block of every thread, to its part of shared memory, which the product no
longer needs, and reads them by rows, a lane per column. With beta, C is read in the same order.

The rows of a block and those of the lane beside it, four rows away, would be in the same banks: every second block of
rows has its halves exchanged.
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu06_padded import L, Share, V
from tilewright.lab.ladder.gpu08_buffered import A_BUFFER, A_ROW, B_BUFFER, Buffers, multiply
from tilewright.lab.ladder.gpu09_warps import THREADS, WARP_M, WARP_N, blocks, lanes
from tilewright.lab.ladder.gpu_gemm import begin, store


def emit_stored(name="gpu10_stored", Share=Share, **types):
    """`Share`: how a thread moves its part of the tiles; `types`: of parameters that are no pointers (step 11)."""
    k, g = begin(name, THREADS, min_ctas=2, **types)
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L
    rows, columns = blocks(tid)
    a_tiles, b_tiles = Buffers(k, "a_smem", A_BUFFER, A_ROW), Buffers(k, "b_smem", B_BUFFER, L)

    acc = k.tile(V, V, f32)
    multiply(k, g, acc, Share(k, g, tid, i0, j0), a_tiles, b_tiles, rows, columns)
    tid = k.opaque(tid)             # what follows is computed now, and not kept in registers through the product
    warp = tid // 32
    write(k, g, acc, tid, i0 + warp % 4 * WARP_M, j0 + warp // 4 * WARP_N, a_tiles.smem)
    return k.function


def write(k, g, acc, tid, i0, j0, c_smem):
    """C = alpha acc + beta C, of which this warp's tile begins at (i0, j0), in parts of 16 x 32."""
    warp, i, j = lanes(tid)
    lane, c_smem = tid % 32, (c_smem + warp * (16 * 32)).view(32, 1)
    for x in range(0, acc.rows, 4):
        for y in range(0, acc.cols, 4):
            k.barrier()                                         # the part before has been taken up
            for e in range(4):
                row = k.pack(*(acc[x + e, y + f] for f in range(4)))
                k.store(c_smem.at(i * 4 + e, j * 4 ^ i % 2 * 16), row)
            k.barrier()
            for e in range(16):
                store(k, g, i0 + x * 4 + e, j0 + y * 8 + lane, c_smem[e, lane ^ e // 4 % 2 * 16])
