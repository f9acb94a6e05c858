"""Functions of plain loops, and small whole numbers for their arguments."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def ijk(A, B, C):
    m, k = A.shape
    n = B.shape[1]
    for i in range(m):
        for j in range(n):
            C[i, j] = 0
            for p in range(k):
                C[i, j] += A[i, p] * B[p, j]


def jpi(A, B, C, m, n, k):
    for i in range(m):
        for j in range(n):
            C[i, j] = 0
    for j in range(n):
        for p in range(k):
            for i in range(m):
                C[i, j] += A[i, p] * B[p, j]


def ipj(A, B, C):
    for i in range(C.shape[0]):
        for p in range(A.shape[1]):
            for j in range(C.shape[1]):
                C[i, j] -= A[i, p] * B[p, j]


def gemm(A, B, C, alpha, beta):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(A.shape[1]):
                s += A[i, p] * B[p, j]
            C[i, j] = alpha * s + beta * C[i, j]


def batched(A, B, C):
    for b in range(A.shape[0]):
        for i in range(A.shape[1]):
            for j in range(B.shape[2]):
                C[b, i, j] = 0
                for p in range(A.shape[2]):
                    C[b, i, j] += 2 * A[b, i, p] * B[b, p, j]


def bias_relu(A, B, C, bias, scale):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = max(C[i, j] * scale[i] + bias[j], 0)


def min_plus(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            best = 1e30
            for p in range(A.shape[1]):
                best = min(best, A[i, p] + B[p, j])
            C[i, j] = best


def min_plus_if(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 99
            for p in range(A.shape[1]):
                if A[i, p] + B[p, j] < C[i, j]:
                    C[i, j] = A[i, p] + B[p, j]


def max_times(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = -99
            for p in range(A.shape[1]):
                C[i, j] = max(C[i, j], A[i, p] * B[p, j])


def distances(X, Y, D):
    for i in range(X.shape[0]):
        for j in range(Y.shape[0]):
            s = 0.0
            for p in range(X.shape[1]):
                d = X[i, p] - Y[j, p]
                s += d * d
            D[i, j] = np.sqrt(s)


def city_block(X, Y, D):
    for i in range(X.shape[0]):
        for j in range(Y.shape[0]):
            D[i, j] = 0
            for p in range(X.shape[1]):
                D[i, j] += abs(X[i, p] - Y[j, p])


def conv_nhwc(X, W, Y, b):
    N, H, V, O = Y.shape
    R, S, K, _ = W.shape
    for n in range(N):
        for h in range(H):
            for w in range(V):
                for o in range(O):
                    s = 0.0
                    for r in range(R):
                        for t in range(S):
                            for c in range(K):
                                s += X[n, h + r, w + t, c] * W[r, t, c, o]
                    Y[n, h, w, o] = max(s + b[o], 0)


def conv_nchw_padded(X, W, Y):
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
                                if 0 <= 2*h + r - 1 < X.shape[2] and 0 <= 2*w + t - 1 < X.shape[3]:
                                    Y[n, o, h, w] += X[n, c, 2*h + r - 1, 2*w + t - 1] * W[o, c, r, t]


def mttkrp(X, B, C, M):
    for i in range(X.shape[0]):
        for r in range(B.shape[1]):
            M[i, r] = 0
            for j in range(X.shape[1]):
                for k in range(X.shape[2]):
                    M[i, r] += X[i, j, k] * B[j, r] * C[k, r]


def triangle_out(A, C):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * A[j, p]


def triangle_sum(L, B, C):
    for i in range(L.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(i + 1):
                s += L[i, p] * B[p, j]
            C[i, j] = s


def matvec(A, x, y):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            y[i] += A[i, j] * x[j]


def tiled_by_hand(A, B, C, n):
    for io in range(0, n, 8):
        for jo in range(0, n, 8):
            for po in range(0, n, 4):
                for i in range(8):
                    for j in range(8):
                        for p in range(4):
                            C[io + i, jo + j] += A[io + i, po + p] * B[po + p, jo + j]


def stencil(A, B):
    for i in range(1, A.shape[0] - 1):
        for j in range(1, A.shape[1] - 1):
            B[i, j] = A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1] - 4*A[i, j]


def in_place(A, B):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(A.shape[1]):
                s += A[i, p] * B[p, j]
            A[i, j] = s


def floyd(D):
    for k in range(D.shape[0]):
        for i in range(D.shape[0]):
            for j in range(D.shape[0]):
                D[i, j] = min(D[i, j], D[i, k] + D[k, j])


def prefix(A, B):
    s = 0.0
    for i in range(A.shape[0]):
        s += A[i]
        B[i] = s


def solve(L, x, b):
    for i in range(L.shape[0]):
        x[i] = b[i]
        for j in range(i):
            x[i] -= L[i, j] * x[j]


def collide(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i + j] = 0
            for p in range(A.shape[1]):
                C[i + j] += A[i, p] * B[p, j]


def backwards(A, B):
    """Every second from the end on, and the last element."""
    for i in range(len(A) - 1, -1, -1):
        B[i] = A[i] - B[-1]
    for i in range(1, len(A), 2):
        B[i] = B[i - 1] if A[i] > 0 else i


def everything(A, B, n):
    """A value that stays for the rounds after, where a condition has set it."""
    last = 0
    count = 0
    for i in range(n):
        if A[i] > 0:
            last = A[i]
        count += 1
        B[i] = last + 2 * count - n
    B[0] = last


Make = Callable[[np.random.Generator], Sequence[Any]]


def _shapes(*given: Any) -> Make:
    """Arrays of these shapes, and other arguments as they are."""
    def make(rng: np.random.Generator) -> Sequence[Any]:
        return [rng.integers(-3, 4, x).astype(np.float32) if isinstance(x, tuple) else x for x in given]
    return make


ARGUMENTS: dict[Any, Make] = {
    ijk: _shapes((7, 5), (5, 9), (7, 9)), jpi: _shapes((7, 5), (5, 9), (7, 9), 7, 9, 5),
    ipj: _shapes((2, 11), (11, 40), (2, 40)), gemm: _shapes((3, 4), (4, 5), (3, 5), 2.0, -1.0),
    batched: _shapes((3, 4, 5), (3, 5, 2), (3, 4, 2)), bias_relu: _shapes((4, 3), (3, 6), (4, 6), (6,), (4,)),
    min_plus: _shapes((4, 3), (3, 6), (4, 6)), min_plus_if: _shapes((4, 3), (3, 6), (4, 6)),
    max_times: _shapes((4, 3), (3, 6), (4, 6)), distances: _shapes((4, 3), (6, 3), (4, 6)),
    city_block: _shapes((4, 3), (6, 3), (4, 6)), conv_nhwc: _shapes((2, 5, 6, 2), (3, 3, 2, 4), (2, 3, 4, 4), (4,)),
    conv_nchw_padded: _shapes((1, 2, 6, 7), (3, 2, 3, 3), (1, 3, 3, 4)),
    mttkrp: _shapes((3, 4, 5), (4, 6), (5, 6), (3, 6)),
    triangle_out: _shapes((9, 3), (9, 9)), triangle_sum: _shapes((6, 6), (6, 4), (6, 4)),
    matvec: _shapes((17, 5), (5,), (17,)), tiled_by_hand: _shapes((16, 16), (16, 16), (16, 16), 16),
    stencil: _shapes((6, 7), (6, 7)), in_place: _shapes((4, 4), (4, 4)), floyd: _shapes((6, 6)),
    prefix: _shapes((13,), (13,)), solve: _shapes((5, 5), (5,), (5,)), collide: _shapes((4, 3), (3, 5), (8,)),
    backwards: _shapes((9,), (9,)), everything: _shapes((9,), (9,), 9),
}
