"""GPU step 18, TMA: one thread asks for a whole tile, and hardware copies it.

A tensor map, made by the driver and passed as a parameter, says where a matrix is, how long its rows are, and how large
the tiles are that are wanted of it. For a copy one thread names the tile's coordinates; the tensor memory accelerator
computes addresses, permutes the pieces as `wgmma` wants them, and writes zeros for what is outside: what was eight
`cp.async` of each of 256 threads, with their addresses and predicates, is two instructions of one thread.

Nor does a thread wait for its own copies any more. An mbarrier in shared memory counts the bytes as they come; the
thread that asks announces how many there will be, and all wait for the phase in which they have come. The copies are
the async proxy's own, so the fence is gone.
"""
from tilewright.ir import bf16, f32, i32
from tilewright.lab.ladder.gpu17_wgmma import ATOM, ROWS, THREADS, L, S, finish, multiply
from tilewright.lab.ladder.gpu_tensor import begin

STAGES, BYTES = 3, 2 * L * S * bf16.bytes       # of the tiles of a stage


def emit_tma(STAGES=STAGES, min_ctas=2):
    k, g = begin("gpu18_tma", THREADS, min_ctas, boxes=(L, L))
    a_smem, b_smem = (k.smem(name, (STAGES, L, S), bf16, align=1024) for name in ("a_smem", "b_smem"))
    full = k.mbarriers("full", STAGES)
    k.init_mbarriers()
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0, i1 = by * L, bx * L, k.uniform(tid // 128) * ROWS
    tiles = k.ceil_div(g.depth, S)

    def request(tile):
        """Thread 0 has the tiles copied, if there are such."""
        stage, there = tile % STAGES, tile < tiles
        full.arrive(stage, by="role", expect=k.select(there, k.constant(i32, BYTES), 0))
        with k.when((tid == 0) & there):
            full.load(a_smem.at(stage, 0, 0), g.a, (tile * S, i0), stage)
            full.load(b_smem.at(stage, 0, 0), g.b, (tile * S, j0), stage)

    acc = k.tile(1, ATOM.registers, f32)
    for ahead in range(STAGES - 1):
        request(k.constant(i32, ahead))
    with k.loop(tiles, unroll=False) as tile:
        stage = tile % STAGES
        full.wait(stage, tile // STAGES % 2, sleep=True)        # its bytes have come
        multiply(k, ATOM, acc, a_smem.at(stage, i1, 0), b_smem.at(stage, 0, 0))
        k.wgmma_wait(1, acc)                                    # the products of the tile before are over,
        k.barrier()                                             # of both warpgroups
        request(tile + (STAGES - 1))
    k.wgmma_wait(0, acc)
    finish(k, g, ATOM, acc, tid, i0 + i1, j0)
    return k.function
