"""Dot products for any number of rows and columns, where both operands have k contiguous: a tile of them at a time.

    for pc: k, kc at a time
      for q: rows of A, mr at a time; they stay in L1 while
        for jr: B's columns pass, nr at a time
          micro-kernel: mr x nr sums of a vector each, by steps of a vector of k

Each tile asks for some of the rows of A that come next. Nothing is packed, and nothing transposed but the sums: V of
them, of V lanes each, become one vector by V - 1 pairs of shuffles and additions.
"""
from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.kernels.cpu.jobs import DOT_TILES
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.targets.cpu import CpuTarget


def emit_dot_tile(target: CpuTarget, dtype: str, MR: int, NR: int) -> Function:
    """C[MR, NR] = alpha * A[MR, kc] @ B[kc, NR] + beta * C; beta = 0 never reads C. A's and C's rows and B's columns
    are contiguous; ldb: from one column to the next.

    Of the operand with fewer lines all vectors of a step are in registers, of the other one at a time. Meanwhile two
    lines of kc elements, `ahead` and ahead_step elements further on, are brought to L2. On a Zen 4 that took 35 x 2192
    x 1874 from 85 to 109 GFLOP/s, and 102 x 46 x 3233, which stays in L2, from 108 to 112.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    VT = vec(T, V)
    k = Kernel(f"dot_tile_{dtype}_{MR}x{NR}", kc=i64, a=ptr(T, strided=True), lda=i64, b=ptr(T, strided=True), ldb=i64,
               c=ptr(T, strided=True), ldc=i64, alpha=T, beta=T, ahead=ptr(T), ahead_step=i64)
    kc, a, lda, b, ldb, c, ldc, alpha, beta, ahead, ahead_step = k.args
    rows, columns = [a + i*lda for i in range(MR)], [b + j*ldb for j in range(NR)]
    acc = k.tile(MR, NR, VT)

    few, many = (rows, columns) if MR < NR else (columns, rows)

    def multiply(p: Value, mask: Value | None) -> None:
        kept = [k.load(line + p, VT, T.bytes, mask) for line in few]
        for y, line in enumerate(many):
            vector = k.load(line + p, VT, T.bytes, mask)
            for x, other in enumerate(kept):
                i, j = (x, y) if MR < NR else (y, x)
                acc[i, j] = k.fma(other, vector, acc[i, j])

    whole_vectors = kc // V * V                 # steps of k in them
    with k.loop(whole_vectors, step=V) as p:
        for line in ahead, ahead + ahead_step:
            k.prefetch(line + p, locality=2)
        multiply(p, None)
    with k.when(whole_vectors < kc):
        multiply(whole_vectors, k.lanes_below(kc - whole_vectors, V))

    out = Out(k, c.view(ldc, 1), alpha, beta)
    sums = [out.scaled(x) for x in in_order(k, [acc[i, j] for i in range(MR) for j in range(NR)], 16 // T.bytes)]
    places = [(i, j, min(V, NR - j)) for i in range(MR) for j in range(0, NR, V)]
    pieces = [_piece(k, sums, i*NR + j, width) for i, j, width in places]

    def store(read_c: bool) -> None:
        for (i, j, width), x in zip(places, pieces):
            lanes = x.type.length
            out.place(i, j).put(x, read_c, k.lanes_below(k.constant(i64, width), lanes) if width < lanes else None)
    out.cases_of_beta(store)
    return k.function


def in_order(k: Kernel, vectors: list[Value], CHUNK: int) -> list[Value]:
    """Record: the sum of the lanes of each vector, as lane after lane of vectors. CHUNK lanes are 16 bytes, which
    shuffles of one instruction do not leave, or move whole."""
    V, levels = vectors[0].type.length, []
    for first in range(0, len(vectors), V):
        level = vectors[first:first + V]
        for low, high in _merges(V, CHUNK):
            pairs = [(x, level[e + 1] if e + 1 < len(level) else x) for e, x in enumerate(level) if e % 2 == 0]
            level = [k.shuffle(x, y, low) + k.shuffle(x, y, high) for x, y in pairs]
        levels += level
    return levels


def _merges(V: int, CHUNK: int) -> Iterator[tuple[list[int], list[int]]]:
    """For each step of the tree the lanes of two vectors, counted on from the first to the second, that are added to
    each other. Within chunks runs of 1, 2 ... lanes of both take turns: the lower halves of chunks, and the upper ones;
    then chunks: of four the first halves of both vectors, and in the end every second one."""
    run = 1
    while run < CHUNK:
        low = [side + base + run*turn + e for base in range(0, V, CHUNK) for turn in range(CHUNK // run // 2)
               for side in (0, V) for e in range(run)]
        yield low, [x + CHUNK // 2 for x in low]
        run *= 2
    chunks = list(range(0, V, CHUNK))
    halves = [(chunks[:2], chunks[2:])] * (len(chunks) == 4) + [(chunks[::2], chunks[1::2])] * (len(chunks) > 1)
    for low, high in halves:
        first, second = ([side + chunk + e for side in (0, V) for chunk in part for e in range(CHUNK)]
                         for part in (low, high))
        yield first, second


def _piece(k: Kernel, sums: list[Value], first: int, width: int) -> Value:
    """`width` sums from `first` on, in a vector whose length is a power of two."""
    V, lanes = sums[0].type.length, 1 << (width - 1).bit_length()
    x = sums[first // V]
    if width == 1:
        return x[first % V]
    y = sums[min(first // V + 1, len(sums) - 1)]
    return k.shuffle(x, y, [min(first % V + e, 2*V - 1) for e in range(lanes)])


def emit_dot_tiles(target: CpuTarget, dtype: str) -> Function:
    """dot_tiles(job, part): C = alpha * A @ B + beta * C for one block of C, whose rows or columns are contiguous. If
    its columns are, micro-kernels compute tiles of C^T, for which the operands change places."""
    T = TYPES[dtype]
    k, g, part = job_kernel(f"dot_tiles_{dtype}", DOT_TILES, T, **dict.fromkeys(DOT_TILES[-4:], i8))
    a, b, c = g.a.view(g.lda, 1), g.b.view(g.ldb, 1), g.c.view(g.rsc, g.csc)
    one, across = k.constant(i64, 1), g.csc != 1
    ldc = k.select(across, g.csc, g.rsc)
    height, taller = g.m // g.row_panels, g.m % g.row_panels        # panels of equal size, the first ones one more
    width, wider = g.n // g.col_panels, g.n % g.col_panels
    tall_wide, tall, wide, small = (getattr(g, name) for name in DOT_TILES[-4:])
    q_lo, q_hi = split(g.row_panels, g.row_parts, part // g.col_parts)
    j_lo, j_hi = split(g.col_panels, g.col_parts, part % g.col_parts)
    apart = k.select(g.col_panels < height, g.lda, 0)               # few tiles ask for two of the next rows each
    with k.loop(g.k, step=g.kc) as pc:
        kc, beta = k.min(g.kc, g.k - pc), k.select(pc == 0, g.beta, 1.0)
        with k.loop(q_hi, q_lo) as q, k.loop(j_hi, j_lo) as jr:
            i, below = q*height + k.min(q, taller), (q + 1)*height + k.min(q + 1, taller)
            j = jr*width + k.min(jr, wider)
            kernel = k.select(q < taller, k.select(jr < wider, tall_wide, tall), k.select(jr < wider, wide, small))
            next_row = k.min(below + (jr - j_lo)*k.select(apart != 0, one + 1, one), g.m - 1)
            x, y = a.at(i, pc), b.at(j, pc)
            k.call(kernel, kc, k.select(across, y, x), k.select(across, g.ldb, g.lda), k.select(across, x, y),
                   k.select(across, g.lda, g.ldb), c.at(i, j), ldc, g.alpha, beta, a.at(next_row, pc), apart)
    return k.function
