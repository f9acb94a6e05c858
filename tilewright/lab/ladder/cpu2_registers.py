"""Step 2, registers: a tile of C stays in vector registers while all of k passes by. The article's section 5.

One rank-1 update of an MR x NR tile loads a row of B (NR elements, in vectors) and a column of A (MR elements, each
broadcast to a vector) and makes MR NR multiply-adds of them: 2 MR NR / (MR + NR) times fewer loads than step 1, and
MR NV chains of additions that do not wait for each other, enough to keep two FMA units with a latency of 4 busy (8).

A row of C is contiguous, so vectors run along n: a tile is MR rows of NV vectors of V lanes, NR = NV V columns. The
article stores matrices by columns, so its vectors run along m, and its 16x6 (m_R x n_R) is the 6x16 here.

The tiles cover whole multiples of MR and NR. The rim to the right and below is left to step 1, which shows in the
speed of every size that is not such a multiple: a reason for step 3.
"""
from typing import NamedTuple

from tilewright.ir import Kernel, Type, i64, ptr, vec
from tilewright.lab.ladder.cpu1_naive import TYPES, dot_products
from tilewright.targets import CpuTarget


class Tiling(NamedTuple):
    T: Type         # of an element
    V: int          # lanes of a vector register
    MR: int         # rows of the register tile
    NV: int         # vectors in one of its rows
    NR: int         # columns: NV * V


def tiling(target: CpuTarget, dtype: str, MR: int = 0, NV: int = 2) -> Tiling:
    """Two vectors wide, and as many rows as leave room for a row of B and one broadcast element of A, unless MR is
    given.

    The article's inequality MR NV + NV + 1 <= registers. AVX2 (16 registers) gets 6 rows: 12 + 2 + 1 = 15;
    AVX-512 (32 registers) gets 14 rows: 28 + 2 + 1 = 31.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    return Tiling(T, V, MR or (target.registers - NV - 1) // NV, NV, NV * V)


def emit_registers(target, dtype, MR=0, NV=2):
    """C[m, n] = A[m, depth] @ B[depth, n], tile by tile."""
    T, _, MR, _, NR = tiling(target, dtype, MR, NV)
    k = Kernel(f"ladder2_registers_{dtype}", m=i64, n=i64, depth=i64, a=ptr(T), b=ptr(T), c=ptr(T))
    m, n, depth, a, b, c = k.args
    a, b, c = a.view(depth, 1), b.view(n, 1), c.view(n, 1)

    tile = emit_tile(target, dtype, MR, NV)
    m_whole, n_whole = m // MR * MR, n // NR * NR
    with k.loop(m_whole, step=MR) as i:
        with k.loop(n_whole, step=NR) as j:
            k.call(tile, depth, a.at(i, 0), depth, b.at(0, j), n, c.at(i, j), n)
    dot_products(k, T, depth, a, b, c, rows=(0, m_whole), columns=(n_whole, n))
    dot_products(k, T, depth, a, b, c, rows=(m_whole, m), columns=(0, n))
    return k.function


def emit_tile(target, dtype, MR=0, NV=2):
    """C[MR, NR] = A[MR, kc] @ B[kc, NR], parts of row-major matrices with rows of lda, ldb and ldc elements."""
    T, V, MR, NV, _ = tiling(target, dtype, MR, NV)
    k = Kernel(f"tile_{dtype}", kc=i64, a=ptr(T), lda=i64, b=ptr(T), ldb=i64, c=ptr(T), ldc=i64)
    kc, a, lda, b, ldb, c, ldc = k.args
    a, b, c = a.view(lda, 1), b.view(ldb, 1), c.view(ldc, 1)

    acc = k.tile(MR, NV, vec(T, V))
    with k.loop(kc) as p:                                   # kc rank-1 updates
        rank1_update(k, acc, lambda i: a[i, p], lambda j: k.load(b.at(p, j * V), vec(T, V), align=T.bytes))

    for i in range(MR):
        for j in range(NV):
            k.store(c.at(i, j * V), acc[i, j], align=T.bytes)
    return k.function


def rank1_update(k, acc, a_element, b_vector):
    """acc += a column of A, whose elements are broadcast, times a row of B."""
    b_row = [b_vector(j) for j in range(acc.cols)]
    for i in range(acc.rows):
        element = k.broadcast(a_element(i), acc.type.length)
        for j in range(acc.cols):
            acc[i, j] = k.fma(element, b_row[j], acc[i, j])
