"""GPU step 1, naive (the lecture's V1): a thread computes one element of C.

    2 n³ loads: each of n² threads reads a row of A and a column of B

The indices are the lecture's: thread.x picks the row. The lanes of a warp, which differ in x, then read their elements
of A from different rows, each from a sector of 32 bytes of its own, and write a column of C in the same way. That is
what makes this step slow: not the number of loads, but that a warp's load is not one.
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu_gemm import begin, store


def emit_naive(BLOCK=16):
    """CTAs of BLOCK x BLOCK threads and elements of C."""
    k, g = begin("gpu1_naive", (BLOCK, BLOCK))
    (tx, ty), (bx, by) = k.thread, k.block
    i, j = bx * BLOCK + tx, by * BLOCK + ty

    with k.when((i < g.m) & (j < g.n)):
        acc = k.variable(f32, 0)
        with k.loop(g.depth) as p:
            acc.set(k.fma(g.a[i, p], g.b[p, j], acc.get()))
        store(k, g, i, j, acc.get())
    return k.function
