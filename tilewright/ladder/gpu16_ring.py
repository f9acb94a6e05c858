"""GPU step 16, a ring: three stages of shared memory, two of which are being filled while one is multiplied.

Steps 14 and 15 wait for global memory in each tile, about as long as the tensor cores need for it: 128 x 128 x 64 are
920 clocks, and an access to memory is as many. `cp.async` (step 12) takes no registers, so copies can begin as many
tiles ahead as shared memory has room for. Copies are in groups, one for each tile, and a thread waits until no more
than one of its own is in flight: the one before has come. At the barrier all threads' copies have, and all threads are
done with the stage before, which the next copy overwrites: one barrier for each tile is enough.
"""
from tilewright.ir import bf16, i32
from tilewright.ladder.gpu14_mma import PAD, THREADS, L, S, finish, multiply, sums
from tilewright.ladder.gpu15_ldmatrix import blocks_a, blocks_b
from tilewright.ladder.gpu_tensor import PIECE, begin, pieces

STAGES = 3


def emit_ring():
    k, g = begin("gpu16_ring", THREADS, min_ctas=2)
    a_smem, b_smem = (k.smem(name, (STAGES, L, S + PAD), bf16) for name in ("a_smem", "b_smem"))
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L

    def request(tile):
        """Begin to copy a tile into its stage; zeros beyond k, which end the ring."""
        for smem, x, first, end in ((a_smem, g.a, i0, g.m), (b_smem, g.b, j0, g.n)):
            copy(k, tid, stage(smem, tile % STAGES), x, first, end, tile * S, g.depth)
        k.cp_async_commit()

    acc = sums(k)
    for ahead in range(STAGES - 1):
        request(k.constant(i32, ahead))
    with k.loop(k.ceil_div(g.depth, S)) as tile:
        k.cp_async_wait(STAGES - 2)                             # the copies of this tile have come,
        k.barrier()                                             # those of all threads, which have used the one before
        request(tile + (STAGES - 1))
        multiply(k, acc, tid, stage(a_smem, tile % STAGES), stage(b_smem, tile % STAGES), blocks_a, blocks_b)
    k.cp_async_wait()
    finish(k, g, acc, tid, i0, j0)
    return k.function


def stage(smem, number): return smem.at(number, 0, 0).view(S + PAD, 1)


def copy(k, tid, smem, x, first, end, p0, depth):
    """Start to copy this thread's pieces of the tile of x at row `first` and p0."""
    for row, p in pieces(tid, THREADS, L, S):
        inside = (first + row < end) & (p0 + p < depth)
        k.cp_async(smem.at(row, p), x.at(first + row, p0 + p), 2 * PIECE, valid=k.cast(inside, i32) * (2 * PIECE))
