"""GPU step 4, shared memory (the lecture's V3): a CTA fetches tiles of A and B together; its threads read these.

    2 n³/L global loads: each of (n/L)² CTAs reads L rows of A and L columns of B
    2 n³/V loads from shared memory: each of (n/V)² threads reads there what it read from global memory before

"Together" is the lecture's index walk: element j nthreads + tid of a tile is fetched by thread tid in round j, so that
neighbouring threads fetch neighbouring elements. After one barrier the tiles are complete, after another one
all threads have used them. From here on thread.x picks the column, as in the lecture.
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu_gemm import begin, outer_product, store


def emit_shared(L=128, S=8, V=8, warp=32):
    """A CTA computes L x L of C from tiles of A [L, S] and B [S, L], each of its (L/V)² threads V x V neighbours."""
    T = L // V
    k, g = begin("gpu4_shared", (T, T), warp=warp)
    a_smem, b_smem = k.smem("a_smem", (L, S), f32), k.smem("b_smem", (S, L), f32)
    (tx, ty), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L                                     # the CTA's tile of C
    i1, j1 = ty * V, tx * V                                     # the thread's tile in it

    acc = k.tile(V, V, f32)
    with k.loop(g.depth, step=S) as p0:
        k.barrier()                                             # all threads have used the tiles before these
        for row, column in walk(ty * T + tx, T * T, L, S):
            a_smem[row, column] = fetch_a(k, g, i0 + row, p0 + column)
        for row, column in walk(ty * T + tx, T * T, S, L):
            b_smem[row, column] = fetch_b(k, g, p0 + row, j0 + column)
        k.barrier()                                             # the tiles are complete
        for p in range(S):
            a_reg = [a_smem[i1 + x, p] for x in range(V)]
            b_reg = [b_smem[p, j1 + y] for y in range(V)]
            outer_product(k, acc, a_reg, b_reg)
    for x in range(V):
        for y in range(V):
            store(k, g, i0 + i1 + x, j0 + j1 + y, acc[x, y])
    return k.function


def walk(tid, nthreads, rows, columns):
    """(row, column) of the elements of a tile that this thread fetches."""
    if rows * columns % nthreads:
        raise ValueError(f"{nthreads} threads cannot share {rows} x {columns} elements evenly")
    for j in range(rows * columns // nthreads):
        x = tid + j * nthreads
        yield x // columns, x % columns


def fetch_a(k, g, i, p): return k.load(g.a.at(i, p), mask=(i < g.m) & (p < g.depth))
def fetch_b(k, g, p, j): return k.load(g.b.at(p, j), mask=(p < g.depth) & (j < g.n))
