"""GPU step 7, vectors: a thread reads the tiles in 16-byte loads, four of them for 64 multiply-adds instead of 16.

A thread's 8 rows are two groups of 4 neighbours, half a tile apart, and so are its columns: each is two vectors. Only
the elements that a thread has are different, and so its stores to C: four columns apart from its neighbour's, as before
step 5. Step 10 repairs that.
"""
from tilewright.ir import f32, vec
from tilewright.lab.ladder.gpu06_padded import PAD, L, S, Share, T, V
from tilewright.lab.ladder.gpu_gemm import begin, outer_product, store


def emit_vectors():
    k, g = begin("gpu7_vectors", (T, T))
    a_smem, b_smem = k.smem("a_smem", (S, L + PAD), f32), k.smem("b_smem", (S, L), f32)
    (tx, ty), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L
    rows, columns = [ty * 4, ty * 4 + L // 2], [tx * 4, tx * 4 + L // 2]     # where its blocks of four begin
    share = Share(k, g, ty * T + tx, i0, j0)

    acc = k.tile(V, V, f32)
    with k.loop(g.depth, step=S) as p0:
        k.barrier()
        share.put(a_smem, b_smem, *share.fetch(p0))
        k.barrier()
        for p in range(S):
            a_reg = vectors(k, [a_smem.at(p, i) for i in rows])
            b_reg = vectors(k, [b_smem.at(p, j) for j in columns])
            outer_product(k, acc, a_reg, b_reg)
    for x in range(V):
        for y in range(V):
            store(k, g, i0 + rows[x // 4] + x % 4, j0 + columns[y // 4] + y % 4, acc[x, y])
    return k.function


def vectors(k, pointers):
    """The four elements from each of these addresses on."""
    loaded = [k.load(pointer, vec(f32, 4)) for pointer in pointers]
    return [x[e] for x in loaded for e in range(4)]
