"""GPU step 2, tiled (the lecture's V1.5): a thread computes V x V elements of C, and reads A once for V of them.

    n³/V + n³ loads: each of (n/V)² threads reads V rows of A once, and for each of them V columns of B

The lecture copies the row into an array a[N] first. Registers do not hold a row, and need not: with the loop over k
outside that over the columns, one element of the row at a time is read and used for V columns. The loads
are the same, and the columns of B are still read again for each of the V rows.
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu_gemm import begin, store


def emit_tiled(V=8, BLOCK=16):
    """CTAs of BLOCK x BLOCK threads, each with V x V neighbouring elements."""
    k, g = begin("gpu2_tiled", (BLOCK, BLOCK))
    (tx, ty), (bx, by) = k.thread, k.block
    i0, j0 = (bx * BLOCK + tx) * V, (by * BLOCK + ty) * V

    with k.loop(k.min(i0 + V, g.m), start=i0) as i:             # one row of the tile after the other
        acc = k.tile(1, V, f32)
        with k.loop(g.depth) as p:
            a_element = g.a[i, p]
            for y in range(V):
                acc[0, y] = k.fma(a_element, k.load(g.b.at(p, j0 + y), mask=j0 + y < g.n), acc[0, y])
        for y in range(V):
            store(k, g, i, j0 + y, acc[0, y])
    return k.function
