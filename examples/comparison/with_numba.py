"""The five inputs in Numba: the loops themselves, of which those that say prange run on all threads."""
from math import sqrt

import numba
from numba import njit, prange


def use(threads: int) -> None:
    numba.set_num_threads(threads)


# ---- matmul
@njit(parallel=True, fastmath=True)
def matmul(A, B, C):
    for i in prange(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
        for p in range(A.shape[1]):
            for j in range(B.shape[1]):
                C[i, j] += A[i, p] * B[p, j]


# ---- convolution_nhwc
@njit(parallel=True, fastmath=True)
def convolution_nhwc(X, W, Y):
    N, H, V, O = Y.shape
    R, S, K, _ = W.shape
    for n in prange(N):
        for h in range(H):
            for w in range(V):
                for o in range(O):
                    Y[n, h, w, o] = 0
                for r in range(R):
                    for t in range(S):
                        for c in range(K):
                            for o in range(O):
                                Y[n, h, w, o] += X[n, h + r, w + t, c] * W[r, t, c, o]


# ---- convolution_nchw
@njit(parallel=True, fastmath=True)
def convolution_nchw(X, W, Y):
    N, O, H, V = Y.shape
    _, K, R, S = W.shape
    for n in prange(N):
        for o in range(O):
            for h in range(H):
                for w in range(V):
                    Y[n, o, h, w] = 0
                for c in range(K):
                    for r in range(R):
                        for t in range(S):
                            for w in range(V):
                                Y[n, o, h, w] += X[n, c, h + r, w + t] * W[o, c, r, t]


# ---- distances
@njit(parallel=True, fastmath=True)
def distances(X, Y, D):
    for i in prange(X.shape[0]):
        for j in range(Y.shape[0]):
            s = X.dtype.type(0)
            for p in range(X.shape[1]):
                d = X[i, p] - Y[j, p]
                s += d * d
            D[i, j] = sqrt(s)


# ---- mttkrp
@njit(parallel=True, fastmath=True)
def mttkrp(X, B, C, M):
    I, J, K = X.shape
    for i in prange(I):
        for r in range(B.shape[1]):
            M[i, r] = 0
        for j in range(J):
            for k in range(K):
                for r in range(B.shape[1]):
                    M[i, r] += X[i, j, k] * B[j, r] * C[k, r]


# ---- stencil
@njit(parallel=True, fastmath=True)
def stencil(A, B):
    n, m = A.shape
    fifth = A.dtype.type(0.2)
    for _ in range(5):
        for i in prange(1, n - 1):
            for j in range(1, m - 1):
                B[i, j] = fifth * (A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1])
        for i in prange(1, n - 1):
            for j in range(1, m - 1):
                A[i, j] = fifth * (B[i, j] + B[i - 1, j] + B[i + 1, j] + B[i, j - 1] + B[i, j + 1])


# ----
CASES = {"matmul": matmul, "convolution_nhwc": convolution_nhwc, "convolution_nchw": convolution_nchw,
         "distances": distances, "mttkrp": mttkrp, "stencil": stencil}
