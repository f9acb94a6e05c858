"""GPU step 16, a ring: three stages of shared memory, two of which are being filled while one is multiplied.

Steps 14 and 15 wait for global memory in each tile, about as long as the tensor cores need for it: 128 x 128 x 64 are
920 clocks, and an access to memory is as many. `cp.async` (step 12) takes no registers, so copies can begin as many
tiles ahead as shared memory has room for. Copies are in groups, one for each tile, and a thread waits until no more
than one of its own is in flight: the one before has come. At the barrier all threads' copies have.

Copies of 16 bytes pass L1 by, and fill lines of 128 bytes of shared memory. In padded rows such a line holds parts of
two rows, and L2 is read half as often again. So rows have 128 bytes, and instead of padding piece c of row i is at
place c ^ i % 8: eight rows of the same column of pieces lie in different banks.

Operands too are read one step ahead of the products, as in step 8: those of a tile's first step before the last
products of the tile before. At the barrier, then, all threads are done with the stage, but for products of registers:
the next copy may overwrite it, and one barrier for each tile is enough.
"""
from tilewright.ir import bf16, i32
from tilewright.lab.ladder.gpu14_mma import ATOM, THREADS, L, S, finish, fragments, multiply, sums
from tilewright.lab.ladder.gpu15_ldmatrix import blocks_a, blocks_b
from tilewright.lab.ladder.gpu_tensor import PIECE, begin, pieces

STAGES = 3


def emit_ring(SWIZZLE=8):
    """`SWIZZLE`: after so many rows places repeat, a power of two up to the 8 pieces of a row; with 1 nothing moves."""
    if SWIZZLE not in (1, 2, 4, S // PIECE):
        raise ValueError(f"SWIZZLE={SWIZZLE} is not legal: a row of {S} bf16 has {S // PIECE} pieces of 16 bytes, so "
                         f"places can repeat after 1, 2, 4 or {S // PIECE} rows")
    k, g = begin("gpu16_ring", THREADS, min_ctas=2)
    a_smem, b_smem = (k.smem(name, (STAGES, L, S), bf16, align=1024) for name in ("a_smem", "b_smem"))
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L
    held = k.tile(8, 4, i32, zero=False)                        # operands of the next step

    def request(tile):
        """Begin to copy a tile into its stage; zeros beyond k, which end the ring."""
        for smem, x, first, end in ((a_smem, g.a, i0, g.m), (b_smem, g.b, j0, g.n)):
            copy(k, tid, stage(smem, tile % STAGES, SWIZZLE), x, first, end, tile * S, g.depth)
        k.cp_async_commit()

    def read(tile, p):
        number = tile % STAGES
        a_stage, b_stage = (stage(x, number, SWIZZLE) for x in (a_smem, b_smem))
        a_reg, b_reg = fragments(k, tid, a_stage, b_stage, p, blocks_a, blocks_b)
        for x, block in enumerate(a_reg + b_reg):
            for e, register in enumerate(block):
                held[x, e] = register

    def arrive():
        """The copies of the next tile have come, those of all threads, and all are done with the tile before."""
        k.cp_async_wait(STAGES - 2)
        k.barrier()

    acc = sums(k)
    for ahead in range(STAGES - 1):
        request(k.constant(i32, ahead))
    arrive()
    read(k.constant(i32, 0), 0)
    with k.loop(k.ceil_div(g.depth, S)) as tile:
        request(tile + (STAGES - 1))
        for p in range(0, S, ATOM.k):
            now = [[held[x, e] for e in range(4)] for x in range(8)]
            if p + ATOM.k < S:
                read(tile, p + ATOM.k)
            else:
                arrive()
                read(tile + 1, 0)
            multiply(k, acc, now[:4], now[4:])
    k.cp_async_wait()
    finish(k, g, acc, tid, i0, j0)
    return k.function


def stage(smem, number, SWIZZLE=8):
    return smem.at(number, 0, 0).view(layout=lambda i, p: i * S + (p ^ i % SWIZZLE * PIECE))


def copy(k, tid, smem, x, first, end, p0, depth, threads=THREADS):
    """Start to copy this thread's pieces of the tile of x at row `first` and p0; zeros outside."""
    for row, p in pieces(tid, threads, L, S):
        inside = (first + row < end) & (p0 + p < depth)
        k.cp_async(smem.at(row, p), x.at(first + row, p0 + p), 2 * PIECE, valid=k.cast(inside, i32) * (2 * PIECE))
