"""GPU step 21, persistent and ping-pong: CTAs that stay, and warpgroups that take turns with tiles of C.

Until now the tensor cores of a multiprocessor stand still at the beginning of a tile of C, until its first copies have
come, and at its end, while C is stored. Here as many CTAs are launched as run at once, and take tile after tile. Each
warpgroup has tiles of its own, 64 x 256, every second one of the CTA's; while one stores, the other multiplies.

    turn[w]         warpgroup w may multiply: the other one has started the last products of its tile

    loads   tiles of C 0, 1, 2, 3 ... without a gap
    math 0  products 0      store 0 ...  wait turn[0]   products 2      store 2
    math 1  wait turn[1]    products 1                  store 1 ...     products 3

Clusters take tiles in groups of 8 rows, so that those in work at the same time share rows of A and of B in L2.
"""
from tilewright.atoms.wgmma import Wgmma
from tilewright.ir import bf16, f32, i32
from tilewright.lab.ladder.gpu17_wgmma import S, finish, multiply
from tilewright.lab.ladder.gpu19_roles import FEWER, MORE
from tilewright.lab.ladder.gpu20_multicast import CTAS
from tilewright.lab.ladder.gpu_tensor import begin

M, N, STAGES, GROUP = 64, 256, 5, 8
ATOM, BYTES = Wgmma(N), (M + N) * S * bf16.bytes


def emit_pingpong():
    k, g = begin("gpu21_pingpong", 384, cluster=(CTAS, 1, 1), boxes=(M, N // CTAS))
    a_smem, b_smem = (k.smem(f"{x}_smem", (STAGES, rows, S), bf16, align=1024) for x, rows in (("a", M), ("b", N)))
    full, empty, turn = k.mbarriers("full", STAGES), k.mbarriers("empty", STAGES), k.mbarriers("turn", 2)
    k.init_mbarriers()
    (tid, _), rank = k.thread, k.cluster_rank
    cluster, clusters = k.block[0] // CTAS, k.grid[0] // CTAS
    count, steps = k.ceil_div(g.m, M * CTAS) * k.ceil_div(g.n, N), k.ceil_div(g.depth, S)

    with k.role("math", warps=8):
        k.registers(MORE, more=True)
        mine, acc = k.uniform(tid // 128), k.tile(1, ATOM.registers, f32)
        begun = k.variable(i32, mine)                           # tiles of C of this CTA before the next one of mine
        with k.loop(count, start=cluster + mine * clusters, step=clusters * 2, unroll=False) as tile:
            first = begun.get() * steps

            def start(step, new=False, first=first):
                stage, phase = (first + step) % STAGES, (first + step) // STAGES % 2
                full.wait(stage, phase, sleep=True)
                multiply(k, ATOM, acc, a_smem.at(stage, 0, 0), b_smem.at(stage, 0, 0), new)

            def release(step, first=first):
                empty.arrive((first + step) % STAGES, by="warp", everywhere=True, turns=2)
            turn.wait(mine, (begun.get() // 2 + 1 - mine) % 2, sleep=True)
            start(0, new=True)
            with k.loop(steps, start=1, unroll=False) as step:
                start(step)
                k.wgmma_wait(1, acc)
                release(step - 1)
            turn.arrive(1 - mine, by="warp", turns=2)
            k.wgmma_wait(0, acc)
            release(steps - 1)
            i0, j0 = place(k, g, tile, rank)
            finish(k, g, ATOM, acc, tid, i0, j0)
            begun.set(begun.get() + 2)

    with k.role("loads", warps=4):
        k.registers(FEWER, more=False)
        begun = k.variable(i32, 0)                              # steps of k, of all tiles
        with k.loop(k.select(tid < 256 + k.warp, count, 0), start=cluster, step=clusters, unroll=False) as tile:
            i0, j0 = place(k, g, tile, rank)
            first, share = begun.get(), rank * (N // CTAS)
            with k.loop(steps, unroll=False) as step:
                stage = (first + step) % STAGES
                empty.wait(stage, (first + step) // STAGES % 2 ^ 1, sleep=True)
                full.arrive(stage, by="role", expect=BYTES)
                with k.when(k.elect()):
                    full.load(a_smem.at(stage, 0, 0), g.a, (step * S, i0), stage)
                    full.load(b_smem.at(stage, share, 0), g.b, (step * S, j0 + share), stage, ctas=(1 << CTAS) - 1)
            begun.set(first + steps)
    k.cluster_barrier()
    return k.function


def place(k, g, tile, rank):
    """Where this CTA's part of a cluster's tile of C begins: down GROUP rows of tiles, then to the next column."""
    down, across = k.ceil_div(g.m, M * CTAS), k.ceil_div(g.n, N)
    first = tile // (across * GROUP) * GROUP
    rows, inside = k.min(down - first, GROUP), tile % (across * GROUP)
    return ((first + inside % rows) * CTAS + rank) * M, inside // rows * N
