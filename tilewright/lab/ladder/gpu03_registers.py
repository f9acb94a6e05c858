"""GPU step 3, registers (the lecture's V2): partial sums. The V x V tile grows by one outer product for each k.

    2 n³/V loads: each of (n/V)² threads reads V elements of A and V of B for each k, and makes V² multiply-adds of them

A product of matrices is the sum over k of (column k of A) (row k of B). A thread that goes through k once, with its
whole tile of C in registers, reads everything once and uses it V times.
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu_gemm import begin, outer_product, store


def emit_registers(V=8, BLOCK=16, warp=32):
    """CTAs of BLOCK x BLOCK threads, each with V x V neighbouring elements."""
    k, g = begin("gpu3_registers", (BLOCK, BLOCK), warp=warp)
    (tx, ty), (bx, by) = k.thread, k.block
    i0, j0 = (bx * BLOCK + tx) * V, (by * BLOCK + ty) * V

    acc = k.tile(V, V, f32)
    with k.loop(g.depth) as p:
        a_reg = [k.load(g.a.at(i0 + x, p), mask=i0 + x < g.m) for x in range(V)]
        b_reg = [k.load(g.b.at(p, j0 + y), mask=j0 + y < g.n) for y in range(V)]
        outer_product(k, acc, a_reg, b_reg)
    for x in range(V):
        for y in range(V):
            store(k, g, i0 + x, j0 + y, acc[x, y])
    return k.function
