"""Step 4, blocked: five loops around the tile, so that what it reads is in a cache. The article's section 7.

Step 3 reads all of B for each row of tiles: from memory, once B has outgrown the caches. Here k, n and m are cut into
blocks, each block is copied ("packed") once into the order in which the tile reads it, and is then used many times:

    jc over n, blocks of NC     C, B by columns                                              B_packed [KC, NC] in L3
      pc over k, blocks of KC     pack B[pc, jc]
        ic over m, blocks of MC     pack A[ic, pc]                                           A_packed [MC, KC] in L2
          jr over NC, panels of NR    one panel of B, used by all rows of A_packed           b1 [KC, NR] in L1
            ir over MC, panels of MR    the tile: C[MR, NR] += a1 @ b1, a1 from L2           c in registers

A panel of B is stored by rows, a panel of A by columns: the tile then walks both one element after another, on few
memory pages. Packing pads the last panel with zeros, which is all that remains of step 3's copies.

In the article's column-major picture A and B change places (its panel of A has the 16 elements of a vector); which of
the two matrices lives in L2 and which in L3 is kept from BLIS, as here.
"""
from tilewright.ir import Kernel, i64, ptr, vec
from tilewright.lab.ladder.cpu2_registers import rank1_update, tiling


def blocks(target, dtype):
    """(MC, KC, NC): the panel of B fills L1, the block of A half of L2, the block of B half of L3."""
    T, _, MR, _, NR = tiling(target, dtype)
    KC = target.l1d // (NR * T.bytes)
    MC = target.l2 // 2 // (KC * T.bytes) // MR * MR
    NC = (target.l3 or 4 * target.l2) // 2 // (KC * T.bytes) // NR * NR
    return MC, KC, NC


def blocked_work(target, dtype, m, n, depth, MC, KC, NC):
    """Elements of scratch memory: one packed block of A, and as much of one of B as n can need."""
    _, _, _, _, NR = tiling(target, dtype)
    return MC * KC + KC * min(NC, -(-n // NR) * NR)


def emit_blocked(target, dtype, MC, KC, NC):
    """C[m, n] = A[m, depth] @ B[depth, n]. `work` holds `blocked_work` elements; MC is a multiple of MR, NC of NR."""
    return five_loops("ladder4_blocked", target, dtype, MC, KC, NC, emit_pack_a(target, dtype),
                      emit_pack_b(target, dtype), emit_packed_tile(target, dtype))


def five_loops(name, target, dtype, MC, KC, NC, pack_a, pack_b, tile):
    T, _, MR, _, NR = tiling(target, dtype)
    k = Kernel(f"{name}_{dtype}", m=i64, n=i64, depth=i64, a=ptr(T), b=ptr(T), c=ptr(T), work=ptr(T))
    m, n, depth, a, b, c, work = k.args
    a, b, c = a.view(depth, 1), b.view(n, 1), c.view(n, 1)
    a_packed, b_packed = work, work + MC * KC

    with k.loop(n, step=NC) as jc:
        nc = k.min(n - jc, NC)
        with k.loop(k.max(depth, 1), step=KC) as pc:        # once even if depth is 0: C must still be written
            kc = k.min(depth - pc, KC)
            k.call(pack_b, kc, nc, b.at(pc, jc), n, b_packed)
            with k.loop(m, step=MC) as ic:
                mc = k.min(m - ic, MC)
                k.call(pack_a, mc, kc, a.at(ic, pc), depth, a_packed)
                with k.loop(nc, step=NR) as jr:
                    with k.loop(mc, step=MR) as ir:
                        k.call(tile, kc, a_packed + ir * kc, b_packed + jr * kc, c.at(ic + ir, jc + jr), n,
                               k.min(mc - ir, MR), k.min(nc - jr, NR), pc)
    return k.function


def emit_pack_a(target, dtype):
    """a1[ir * kc + p * MR + i] = A[ir + i, p]: panels of MR rows, each stored by columns; zeros below the last row."""
    T, _, MR, _, _ = tiling(target, dtype)
    k = Kernel(f"pack_a_{dtype}", mc=i64, kc=i64, a=ptr(T), lda=i64, packed=ptr(T))
    mc, kc, a, lda, packed = k.args
    a = a.view(lda, 1)
    with k.loop(mc, step=MR) as ir:
        panel = (packed + ir * kc).view(MR, 1)
        for i in range(MR):
            with k.loop(kc) as p:
                with k.when(ir + i < mc):
                    panel[p, i] = a[ir + i, p]
                with k.otherwise():
                    panel[p, i] = 0
    return k.function


def emit_pack_b(target, dtype):
    """b1[jr * kc + p * NR + j] = B[p, jr + j]: panels of NR columns, stored by rows; zeros past the last column."""
    T, V, _, NV, NR = tiling(target, dtype)
    k = Kernel(f"pack_b_{dtype}", kc=i64, nc=i64, b=ptr(T), ldb=i64, packed=ptr(T))
    kc, nc, b, ldb, packed = k.args
    b = b.view(ldb, 1)
    with k.loop(nc, step=NR) as jr:
        panel = (packed + jr * kc).view(NR, 1)
        inside = [k.lanes_below(nc - jr - j * V, V) for j in range(NV)]
        with k.loop(kc) as p:
            for j in range(NV):
                row = k.load(b.at(p, jr + j * V), vec(T, V), align=T.bytes, mask=inside[j])
                k.store(panel.at(p, j * V), row, align=T.bytes)
    return k.function


def emit_packed_tile(target, dtype):
    """C[MR, NR] = a1 @ b1, added to what C holds unless `pc` is 0; of C only `rows` x `columns` elements exist.

    a1 is a packed panel a1[p * MR + i], b1 a packed panel b1[p * NR + j], C row-major with rows of ldc elements.
    """
    T, V, MR, NV, NR = tiling(target, dtype)
    k = Kernel(f"packed_tile_{dtype}", kc=i64, a1=ptr(T), b1=ptr(T), c=ptr(T), ldc=i64, rows=i64, columns=i64, pc=i64)
    kc, a1, b1, c, ldc, rows, columns, pc = k.args
    a1, b1, c = a1.view(MR, 1), b1.view(NR, 1), c.view(ldc, 1)

    acc = k.tile(MR, NV, vec(T, V))
    with k.loop(kc) as p:
        rank1_update(k, acc, lambda i: a1[p, i], lambda j: k.load(b1.at(p, j * V), vec(T, V), align=T.bytes))

    inside = [k.lanes_below(columns - j * V, V) for j in range(NV)]
    for i in range(MR):
        with k.when(rows > i):
            for j in range(NV):
                with k.when(pc > 0):
                    acc[i, j] = acc[i, j] + k.load(c.at(i, j * V), vec(T, V), align=T.bytes, mask=inside[j])
                k.store(c.at(i, j * V), acc[i, j], align=T.bytes, mask=inside[j])
    return k.function
