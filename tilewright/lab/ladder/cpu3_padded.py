"""Step 3, padded: the same tile everywhere, also at the edges. The article's section 6.

The last tile of a row or a column hangs over. Its operands are copied once into buffers that are padded with zeros to
a whole tile, so that the loop over k needs neither masks nor tests, and its stores are masked: rows by a test, columns
by a vector of lanes that are on. The zeros cost some useless multiply-adds (with a 14x32 tile at most 13 rows and 31
columns of C), where step 2 paid with scalar code.
"""
from tilewright.ir import Kernel, i64, ptr, vec
from tilewright.lab.ladder.cpu2_registers import rank1_update, tiling


def padded_work(target, dtype, m, n, depth):
    """Elements of scratch memory: one tile's rows of A and one tile's columns of B."""
    _, _, MR, _, NR = tiling(target, dtype)
    return (MR + NR) * depth


def emit_padded(target, dtype):
    """C[m, n] = A[m, depth] @ B[depth, n]. `work` holds `padded_work` elements."""
    T, _, MR, _, NR = tiling(target, dtype)
    k = Kernel(f"ladder3_padded_{dtype}", m=i64, n=i64, depth=i64, a=ptr(T), b=ptr(T), c=ptr(T), work=ptr(T))
    m, n, depth, a, b, c, work = k.args
    a, b, c = a.view(depth, 1), b.view(n, 1), c.view(n, 1)
    a_edge, b_edge = work.view(depth, 1), (work + depth * MR).view(NR, 1)

    m_over, n_over = m % MR, n % NR
    copy_padded(k, a.at(m - m_over, 0).view(depth, 1), a_edge, (m_over, depth), (MR, depth))
    copy_padded(k, b.at(0, n - n_over).view(n, 1), b_edge, (depth, n_over), (depth, NR))

    tile = emit_masked_tile(target, dtype)
    with k.loop(m, step=MR) as i:
        rows = k.min(m - i, MR)
        a_tile = k.select(rows < MR, a_edge, a.at(i, 0))
        with k.loop(n, step=NR) as j:
            columns = k.min(n - j, NR)
            over = columns < NR
            k.call(tile, depth, a_tile, depth, k.select(over, b_edge, b.at(0, j)), k.select(over, NR, n), c.at(i, j), n,
                   rows, columns)
    return k.function


def copy_padded(k, source, target, shape, padded):
    """target[padded] = source[shape], with zeros to the right and below."""
    with k.loop(padded[0]) as i:
        with k.loop(padded[1]) as j:
            target[i, j] = 0
    with k.loop(shape[0]) as i:
        with k.loop(shape[1]) as j:
            target[i, j] = source[i, j]


def emit_masked_tile(target, dtype):
    """Step 2's tile, of which only `rows` x `columns` elements are stored."""
    T, V, MR, NV, _ = tiling(target, dtype)
    k = Kernel(f"masked_tile_{dtype}", kc=i64, a=ptr(T), lda=i64, b=ptr(T), ldb=i64, c=ptr(T), ldc=i64,
               rows=i64, columns=i64)
    kc, a, lda, b, ldb, c, ldc, rows, columns = k.args
    a, b, c = a.view(lda, 1), b.view(ldb, 1), c.view(ldc, 1)

    acc = k.tile(MR, NV, vec(T, V))
    with k.loop(kc) as p:
        rank1_update(k, acc, lambda i: a[i, p], lambda j: k.load(b.at(p, j * V), vec(T, V), align=T.bytes))

    inside = [k.lanes_below(columns - j * V, V) for j in range(NV)]
    for i in range(MR):
        with k.when(rows > i):
            for j in range(NV):
                k.store(c.at(i, j * V), acc[i, j], align=T.bytes, mask=inside[j])
    return k.function
