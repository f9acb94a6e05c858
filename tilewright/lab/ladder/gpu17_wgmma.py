"""GPU step 17, wgmma: a warpgroup of four warps multiplies straight from shared memory.

Hopper's `wgmma` takes 64 x 16 of A and 128 x 16 of B where they are in shared memory: no loads, no registers for
operands, and half again as many products in a second as `mma.sync`. It is asynchronous, a second kind of work in flight
beside the copies: products of a tile are closed as a group, and a thread waits for the group before, never for the one
that it has just started. So a stage can be overwritten two tiles later, not one.

The instruction takes a tile as step 16 has it, in rows of 128 bytes with their pieces permuted, its 128-byte swizzle:
a descriptor says so, and where the tile begins. The tensor cores see memory by the async proxy; a fence shows them
what copies of threads wrote.
"""
from tilewright.atoms.wgmma import Wgmma
from tilewright.ir import bf16, f32, i32
from tilewright.lab.ladder.gpu14_mma import L, S
from tilewright.lab.ladder.gpu16_ring import STAGES, copy, stage
from tilewright.lab.ladder.gpu_tensor import begin, store

ATOM, ROWS = Wgmma(L), 64       # of C, of one instruction; two warpgroups have the CTA's 128
THREADS = 256


def emit_wgmma(STAGES=STAGES, min_ctas=2):
    k, g = begin("gpu17_wgmma", THREADS, min_ctas)
    a_smem, b_smem = (k.smem(name, (STAGES, L, S), bf16, align=1024) for name in ("a_smem", "b_smem"))
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0, i1 = by * L, bx * L, k.uniform(tid // 128) * ROWS

    def request(tile):
        for smem, x, first, end in ((a_smem, g.a, i0, g.m), (b_smem, g.b, j0, g.n)):
            copy(k, tid, stage(smem, tile % STAGES), x, first, end, tile * S, g.depth, THREADS)
        k.cp_async_commit()

    acc = k.tile(1, ATOM.registers, f32)
    for ahead in range(STAGES - 2):
        request(k.constant(i32, ahead))
    with k.loop(k.ceil_div(g.depth, S), unroll=False) as tile:
        k.cp_async_wait(STAGES - 3)                             # this tile has come,
        k.fence_async()                                         # for tensor cores to see,
        k.barrier()                                             # by the copies of all threads
        multiply(k, ATOM, acc, a_smem.at(tile % STAGES, i1, 0), b_smem.at(tile % STAGES, 0, 0))
        request(tile + (STAGES - 2))
        k.wgmma_wait(1, acc)                                    # the products of the tile before are over
    k.wgmma_wait(0, acc)
    k.cp_async_wait()
    finish(k, g, ATOM, acc, tid, i0 + i1, j0)
    return k.function


def multiply(k, atom, acc, a, b, new=False):
    """Start acc += A B^T for tiles that begin there, S of k, as a group; if `new`, acc = A B^T."""
    k.wgmma_fence(acc)
    for p in range(0, S, atom.k):
        k.wgmma(atom, acc, a + p, b + p, add=p > 0 or not new)
    k.wgmma_commit()


def finish(k, g, atom, acc, tid, i0, j0):
    """Store a warpgroup's rows of C: 16 for each warp, in which a lane has pairs of neighbours."""
    warp = tid // 32 % 4
    for e in range(0, atom.registers, 2):
        row, column = atom.sums(tid % 32, e)
        store(k, g, i0 + warp * 16 + row, j0 + column, acc[0, e], acc[0, e + 1])
