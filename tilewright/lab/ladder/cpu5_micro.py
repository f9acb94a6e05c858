"""Step 5, micro-optimised: the loops of step 4 around a better tile and a better packing of A. The article's section 8.

- Whole tiles, nearly all of them, are written by plain stores: masks cost AVX2 dearly, which has no mask registers.
- The lines of C are asked for before the loop over k, and have its whole duration to arrive.
- A is packed in the order in which it is stored, MR rows at a time, and not row by row with stride MR.
- Larger blocks of k: a panel of B that takes twice L1 comes from L2 in time, and C is read and written half as often.
- Four rank-1 updates per round of the loop, and aligned loads: packed panels start on cache lines.

What the article does here by hand, a variable for each register of the accumulator and each mask, step 2 did already:
a `k.tile` is registers.
"""
from tilewright.ir import Kernel, i64, ptr, vec
from tilewright.lab.ladder import cpu4_blocked
from tilewright.lab.ladder.cpu2_registers import rank1_update, tiling

UNROLL = 4
LINE = 64       # bytes of a cache line


def blocks(target, dtype):
    """(MC, KC, NC) of step 4 with KC doubled and MC halved, so that the block of A keeps its half of L2."""
    MR = tiling(target, dtype).MR
    MC, KC, NC = cpu4_blocked.blocks(target, dtype)
    return MC // 2 // MR * MR, 2 * KC, NC


def emit_micro(target, dtype, MC, KC, NC):
    """C[m, n] = A[m, depth] @ B[depth, n]. `work` and the blocks are those of step 4."""
    return cpu4_blocked.five_loops("ladder5_micro", target, dtype, MC, KC, NC, emit_pack_a(target, dtype),
                                   cpu4_blocked.emit_pack_b(target, dtype), emit_micro_tile(target, dtype))


def emit_pack_a(target, dtype):
    """a1[ir * kc + p * MR + i] = A[ir + i, p]. Rows below the last repeat it: what comes of them is not stored."""
    T, _, MR, _, _ = tiling(target, dtype)
    k = Kernel(f"pack_a_{dtype}", mc=i64, kc=i64, a=ptr(T), lda=i64, packed=ptr(T))
    mc, kc, a, lda, packed = k.args
    a = a.view(lda, 1)
    with k.loop(mc, step=MR) as ir:
        panel = (packed + ir * kc).view(MR, 1)
        rows = [a.at(k.min(ir + i, mc - 1), 0) for i in range(MR)]
        with k.loop(kc) as p:
            for i in range(MR):
                panel[p, i] = rows[i][p]
    return k.function


def emit_micro_tile(target, dtype):
    """C[MR, NR] = a1 @ b1, added to what C holds unless `pc` is 0; of C only `rows` x `columns` elements exist."""
    T, V, MR, NV, NR = tiling(target, dtype)
    k = Kernel(f"micro_tile_{dtype}", kc=i64, a1=ptr(T), b1=ptr(T), c=ptr(T), ldc=i64, rows=i64, columns=i64, pc=i64)
    kc, a1, b1, c, ldc, rows, columns, pc = k.args
    a1, b1, c = a1.view(MR, 1), b1.view(NR, 1), c.view(ldc, 1)

    acc = k.tile(MR, NV, vec(T, V))

    def update(p):
        rank1_update(k, acc, lambda i: a1[p, i], lambda j: k.load(b1.at(p, j * V), vec(T, V)))

    for i in range(MR):
        for j in range(0, NR, LINE // T.bytes):
            k.prefetch(c.at(i, j), write=True)
    unrolled = kc // UNROLL * UNROLL
    with k.loop(unrolled, step=UNROLL) as p:
        for u in range(UNROLL):
            update(p + u)
    with k.loop(kc, start=unrolled) as p:
        update(p)

    def add_and_store(i, mask):
        for j in range(NV):
            with k.when(pc > 0):
                acc[i, j] = acc[i, j] + k.load(c.at(i, j * V), vec(T, V), align=T.bytes, mask=mask[j])
            k.store(c.at(i, j * V), acc[i, j], align=T.bytes, mask=mask[j])

    with k.when((rows == MR) & (columns == NR)):
        for i in range(MR):
            add_and_store(i, mask=[None] * NV)
    with k.otherwise():
        inside = [k.lanes_below(columns - j * V, V) for j in range(NV)]
        for i in range(MR):
            with k.when(rows > i):
                add_and_store(i, mask=inside)
    return k.function
