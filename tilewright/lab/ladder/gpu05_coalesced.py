"""GPU step 5, coalesced: neighbouring threads have neighbouring columns of C.

Step 4 gives a thread V neighbouring columns, so that the lanes of a warp are V columns apart. Whatever they then read
or write together is spread: b_smem over a few of its 32 banks, which answer one after another, and C over V times as
many sectors as it fills. Here a thread's columns are L/V apart, and likewise its rows: in each single access
the lanes are neighbours. The number of loads stays what it was.
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu04_shared import fetch_a, fetch_b, walk
from tilewright.lab.ladder.gpu_gemm import begin, outer_product, store


def emit_coalesced(L=128, S=8, V=8, warp=32):
    """Step 5: as step 4, but a thread computes every (L/V)-th row and column of the CTA's L x L."""
    T = L // V
    k, g = begin("gpu5_coalesced", (T, T), warp=warp)
    a_smem, b_smem = k.smem("a_smem", (L, S), f32), k.smem("b_smem", (S, L), f32)
    (tx, ty), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L
    rows, columns = [ty + x * T for x in range(V)], [tx + y * T for y in range(V)]

    acc = k.tile(V, V, f32)
    with k.loop(g.depth, step=S) as p0:
        k.barrier()
        for row, column in walk(ty * T + tx, T * T, L, S):
            a_smem[row, column] = fetch_a(k, g, i0 + row, p0 + column)
        for row, column in walk(ty * T + tx, T * T, S, L):
            b_smem[row, column] = fetch_b(k, g, p0 + row, j0 + column)
        k.barrier()
        for p in range(S):
            a_reg = [a_smem[i, p] for i in rows]
            b_reg = [b_smem[p, j] for j in columns]
            outer_product(k, acc, a_reg, b_reg)
    for x, i in enumerate(rows):
        for y, j in enumerate(columns):
            store(k, g, i0 + i, j0 + j, acc[x, y])
    return k.function
