"""The five inputs in tilewright: the loops themselves, as one would write them without thinking of speed."""
from math import sqrt

import tilewright as tw
from tilewright.ir import Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each, each_row, scratch


def use(threads: int) -> None:
    tw.set_num_threads(threads)


def optimized(loops):
    """`tw.optimize(loops, *arrays)`, when it is first called with arrays of these shapes."""
    made = {}

    def call(*arrays):
        key = tuple(x.shape for x in arrays)
        if key not in made:
            made[key] = tw.optimize(loops, *arrays)
        made[key](*arrays)
    return call


# ---- matmul
@optimized
def matmul(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]


# ---- convolution_nhwc
@optimized
def convolution_nhwc(X, W, Y):
    N, H, V, O = Y.shape
    R, S, K, _ = W.shape
    for n in range(N):
        for h in range(H):
            for w in range(V):
                for o in range(O):
                    Y[n, h, w, o] = 0
                    for r in range(R):
                        for t in range(S):
                            for c in range(K):
                                Y[n, h, w, o] += X[n, h + r, w + t, c] * W[r, t, c, o]


# ---- convolution_nchw
@optimized
def convolution_nchw(X, W, Y):
    N, O, H, V = Y.shape
    _, K, R, S = W.shape
    for n in range(N):
        for o in range(O):
            for h in range(H):
                for w in range(V):
                    Y[n, o, h, w] = 0
                    for c in range(K):
                        for r in range(R):
                            for t in range(S):
                                Y[n, o, h, w] += X[n, c, h + r, w + t] * W[o, c, r, t]


# ---- distances
@optimized
def distances(X, Y, D):
    for i in range(X.shape[0]):
        for j in range(Y.shape[0]):
            s = 0.0
            for p in range(X.shape[1]):
                d = X[i, p] - Y[j, p]
                s += d * d
            D[i, j] = sqrt(s)


# ---- mttkrp
@optimized
def mttkrp(X, B, C, M):
    I, J, K = X.shape
    for i in range(I):
        for r in range(B.shape[1]):
            M[i, r] = 0
            for j in range(J):
                for k in range(K):
                    M[i, r] += X[i, j, k] * B[j, r] * C[k, r]


# ---- stencil
@optimized
def stencil(A, B):
    n, m = A.shape
    for _ in range(5):
        for i in range(1, n - 1):
            for j in range(1, m - 1):
                B[i, j] = 0.2 * (A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1])
        for i in range(1, n - 1):
            for j in range(1, m - 1):
                A[i, j] = 0.2 * (B[i, j] + B[i - 1, j] + B[i + 1, j] + B[i, j - 1] + B[i, j + 1])


# ---- stencil_in_blocks
STEPS, ROWS, COLUMNS, PAD = 10, 256, 512, 16


def emit_steps(threads=None):
    """B = A after STEPS steps, tile by tile. A tile goes through A row by row: of each step it keeps four rows in the
    caches, and as soon as a row has its neighbours below, the next step of the row above is computed."""
    k = Kernel("steps", threads=threads, n=i64, m=i64, A=ptr(f32), B=ptr(f32))
    n, m, A, B = k.args
    across, width = (m + (COLUMNS - 1)) // COLUMNS, COLUMNS + 4*PAD
    with each_row(k, (n + (ROWS - 1)) // ROWS * across) as tile:
        top, left = tile // across * ROWS, tile % across * COLUMNS
        kept = [scratch(k, 4 * width, f32) for _ in range(STEPS - 1)]
        for rows in kept:
            with each(k, 4 * width) as c:
                rows[c] = 0.0

        def row(t, i):
            """Row i after t steps, from the tile's first column on."""
            if 0 < t < STEPS:
                return kept[t - 1] + ((i & 3) * width + 2*PAD)
            return (B if t else A) + (i*m + left)

        with k.loop(k.min(top + (ROWS + STEPS), n) + (STEPS - 1), k.max(top - STEPS, 0)) as newest:
            for t in range(1, STEPS + 1):
                i, rim = newest - (t - 1), STEPS - t
                pad = PAD if rim else 0         # columns beyond the tile, of which each step spoils one more
                first, last = k.max(left - pad, 0) - left, k.min(left + (COLUMNS + pad), m) - left
                new, old = row(t, i), row(t - 1, i)
                with k.when((i >= k.max(top - rim, 0)) & (i < k.min(top + (ROWS + rim), n))):
                    with k.when((i == 0) | (i == n - 1)):
                        with each(k, last - first) as c:
                            new[first + c] = old[first + c]
                    with k.otherwise():
                        above, below = row(t - 1, i - 1), row(t - 1, i + 1)
                        with each(k, last - first) as c:
                            j = first + c
                            new[j] = (old[j] + above[j] + below[j] + old[j - 1] + old[j + 1]) * 0.2
                        with k.when(left == 0):
                            new[0] = old[0]
                        with k.when(last == m - left):
                            new[last - 1] = old[last - 1]
    return k.function


steps = tw.kernel(emit_steps)


def stencil_in_blocks(A, B):
    steps(*A.shape, A, B)
    return B


# ----
CASES = {"matmul": matmul, "convolution_nhwc": convolution_nhwc, "convolution_nchw": convolution_nchw,
         "distances": distances, "mttkrp": mttkrp, "stencil": stencil, "stencil_in_blocks": stencil_in_blocks}
