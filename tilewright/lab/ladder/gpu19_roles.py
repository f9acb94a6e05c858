"""GPU step 19, roles: warps that load and warps that multiply, which meet only at mbarriers.

Until now all warps wait together: for the copies, and at a barrier for each other's products before the next copy may
begin. Here one warp asks for copies, as far ahead as there are stages, and two warpgroups multiply.

    full[stage]     the bytes of the tiles have come: one arrival, of the loading role, which announces them
    empty[stage]    no warp reads the stage any more: one arrival of each warp that multiplies

    loads   0  1  2  3  wait empty[0]            0  wait empty[1]           1 ...
    math    wait full[0]  0  1  release 0  2  release 1 ...

Registers follow the work: the loading warpgroup gives up most of its own (`setmaxnreg`), and a thread that multiplies
has up to 232, enough for a tile of 128 x 256, whose tiles of A and B are 3/4 of the bytes for each product.
"""
from tilewright.atoms.wgmma import Wgmma
from tilewright.ir import bf16, f32, i32
from tilewright.lab.ladder.gpu17_wgmma import ROWS, S, finish, multiply
from tilewright.lab.ladder.gpu_tensor import begin

M, N, STAGES = 128, 256, 4
ATOM, BYTES = Wgmma(N), (M + N) * S * bf16.bytes
MORE, FEWER = 232, 40           # registers of a thread that multiplies, and of one that loads


def emit_roles(name="gpu19_roles", CTAS=1, load=None):
    """`CTAS` of a cluster, one below the other, and how one of them loads (step 20)."""
    k, g = begin(name, 384, cluster=(1, CTAS, 1), boxes=(M, N // CTAS))
    a_smem, b_smem = (k.smem(f"{x}_smem", (STAGES, rows, S), bf16, align=1024) for x, rows in (("a", M), ("b", N)))
    full, empty = k.mbarriers("full", STAGES), k.mbarriers("empty", STAGES)
    k.init_mbarriers()
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0, tiles = by * M, bx * N, k.ceil_div(g.depth, S)

    with k.role("math", warps=8):
        k.registers(MORE, more=True)
        i1, acc = k.uniform(tid // 128) * ROWS, k.tile(1, ATOM.registers, f32)

        def start(tile, new=False):
            """The products of a tile, once it has come."""
            full.wait(tile % STAGES, tile // STAGES % 2, sleep=True)
            multiply(k, ATOM, acc, a_smem.at(tile % STAGES, i1, 0), b_smem.at(tile % STAGES, 0, 0), new)
        start(k.constant(i32, 0), new=True)
        with k.loop(tiles, start=1, unroll=False) as tile:
            start(tile)
            k.wgmma_wait(1, acc)                                # the products of the tile before are over
            empty.arrive((tile - 1) % STAGES, by="warp", everywhere=CTAS > 1)
        k.wgmma_wait(0, acc)
        finish(k, g, ATOM, acc, tid, i0 + i1, j0)

    with k.role("loads", warps=4):
        k.registers(FEWER, more=False)
        with k.loop(k.select(tid < 256 + k.warp, tiles, 0), unroll=False) as tile:      # the first warp alone
            stage = tile % STAGES
            empty.wait(stage, tile // STAGES % 2 ^ 1, sleep=True)
            full.arrive(stage, by="role", expect=BYTES)
            with k.when(k.elect()):
                (load or load_both)(k, g, full, a_smem, b_smem, stage, (tile * S, i0), (tile * S, j0))
    if CTAS > 1:
        k.cluster_barrier()                                     # others may still arrive here
    return k.function


def load_both(k, g, full, a_smem, b_smem, stage, at_a, at_b):
    full.load(a_smem.at(stage, 0, 0), g.a, at_a, stage)
    full.load(b_smem.at(stage, 0, 0), g.b, at_b, stage)
