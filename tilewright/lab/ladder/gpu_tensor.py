"""What every step on tensor cores begins and ends with: its parameters, its tile of C, alpha, beta and rounding.

    C = alpha A B^T + beta C        A [m, k], B [n, k], C [m, n], row-major, of bf16; sums are f32

k is contiguous in both operands (layout nt), as matrix instructions take them. They move in pieces of 16 bytes, so k
and rows of lda and ldb elements are multiples of 8, and addresses of 16 bytes; C is stored in pairs: n and ldc are even
(`refused`). Any sizes that agree with that: a piece outside a matrix is not read, and zeros stand for it.
"""
from tilewright.ir import Kernel, TensorMap, bf16, f32, i32, ptr
from tilewright.lab.ladder.gpu_gemm import PARAMETERS, Gemm

PIECE = 8                       # elements of 16 bytes, the most that a thread moves at once
_MATRIX = ptr(bf16, strided=True)


def refused(m, n, k, a, lda, b, ldb, c, ldc):
    """Why these matrices cannot be multiplied, in a sentence, or "". `a`, `b` and `c` are addresses."""
    if min(m, n, k) > 0 and all(x % PIECE == 0 for x in (k, lda, ldb)) and a % 16 == b % 16 == 0 and \
            n % 2 == ldc % 2 == c % 4 == 0:
        return ""
    return (f"A and B move in pieces of 16 bytes, and C in pairs: k, lda and ldb are multiples of {PIECE}, n and ldc "
            f"of 2, none of m, n, k is 0, and addresses of A and B are multiples of 16, of C of 4. m = {m}, n = {n}, "
            f"k = {k}, lda = {lda}, ldb = {ldb}, ldc = {ldc}, at {a:#x}, {b:#x}, {c:#x}")


def box(rows):
    """The type of a parameter that brings tiles of so many rows by 128 bytes of k (step 18)."""
    return TensorMap(bf16, (64, rows), swizzle=128)


def begin(name, threads, min_ctas=1, cluster=(1, 1, 1), boxes=None):
    """(k, its arguments); a[i, p], b[j, p] and c[i, j] are elements. With `boxes` a and b are maps of tiles of so many
    rows of A and of B."""
    types = PARAMETERS | {"a": _MATRIX, "b": _MATRIX, "c": _MATRIX}
    if boxes:
        types |= {name: box(rows) for name, rows in zip("ab", boxes)}
    k = Kernel(name, threads=threads, min_ctas=min_ctas, cluster=cluster, **types)
    m, n, depth, alpha, a, lda, b, ldb, beta, c, ldc = k.args
    if not boxes:
        a, b = a.view(lda, 1), b.view(ldb, 1)
    return k, Gemm(m, n, depth, alpha, lda, ldb, a, b, beta, c.view(ldc, 1))


def pieces(tid, threads, rows, columns):
    """(row, column) where the pieces of a tile begin that this thread moves: neighbours move neighbours of a row."""
    across = columns // PIECE
    for first in range(0, rows, threads // across):
        yield first + tid // across, tid % across * PIECE


def store(k, g, i, j, x, y):
    """C[i, j] and C[i, j + 1] = alpha (x, y) + beta C, if there are such elements. With beta 0, C is not read."""
    with k.when((i < g.m) & (j < g.n)):
        at, result = g.c.at(i, j).as_(i32), k.tile(1, 2, f32, zero=False)
        result[0, 0], result[0, 1] = g.alpha * x, g.alpha * y
        with k.when(g.beta != 0):
            word = k.load(at)                                   # a bf16 is the upper half of an f32
            for e, before in enumerate((word << 16, word & -1 << 16)):
                result[0, e] = k.fma(g.beta, k.bits_as(before, f32), result[0, e])
        k.store(at, k.round_pair(k.pack(result[0, 0], result[0, 1]), bf16))
