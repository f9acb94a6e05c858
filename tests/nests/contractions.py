"""Loops that are contractions, and loops that are not: (function, shapes and numbers, words of the sentence)."""

from __future__ import annotations

from typing import Any

import numpy as np


def three_loops(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]


def other_order(A, B, C, m, n, k):
    for i in range(m):
        for j in range(n):
            C[i, j] = 0
    for p in range(k):
        for j in range(n):
            for i in range(m):
                C[i, j] += A[i, p] * B[p, j]


def accumulated(A, B, C):
    for i in range(len(A)):
        for j in range(B.shape[1]):
            for p in range(len(B)):
                C[i, j] += 2 * A[i, p] * B[p, j]


def general(A, B, C, alpha, beta):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(A.shape[1]):
                s += A[i, p] * B[p, j]
            C[i, j] = alpha * s + beta * C[i, j]


def transposed(A, B, C):
    for i in range(A.shape[1]):
        for j in range(B.shape[0]):
            s = 0
            for p in range(A.shape[0]):
                s = s + A[p, i] * B[j, p]
            C[j, i] = s


def gram(A, C):
    for i in range(A.shape[0]):
        for j in range(A.shape[0]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * A[j, p]


def reversed_rows(A, B, C):
    m = A.shape[0]
    for i in range(m - 1, -1, -1):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[m - 1 - i, p] * B[p, j]


def batched(A, B, C):
    for b in range(A.shape[0]):
        for i in range(A.shape[1]):
            for j in range(B.shape[2]):
                C[b, i, j] = 0
                for p in range(A.shape[2]):
                    C[b, i, j] += A[b, i, p] * B[b, p, j]


def shared_weights(A, B, C):
    for b in range(A.shape[0]):
        for i in range(A.shape[1]):
            for j in range(B.shape[1]):
                C[b, i, j] = 0
                for p in range(A.shape[2]):
                    C[b, i, j] += A[b, i, p] * B[p, j]


def bias_relu(A, B, C, bias, scale):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = max(C[i, j] * scale[i] + bias[j], 0)


def two_results(A, B, C, D):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(A.shape[1]):
                s += A[i, p] * B[p, j]
            C[i, j] = s
            D[i, j] = max(s, 0) + C[i, j]


def relu_first(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(A.shape[1]):
                s += max(A[i, p], 0) * B[p, j]
            C[i, j] = s


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
            C[i, j] = 1000
            for p in range(A.shape[1]):
                if A[i, p] + B[p, j] < C[i, j]:
                    C[i, j] = A[i, p] + B[p, j]


def max_times(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = -1000
            for p in range(A.shape[1]):
                C[i, j] = max(C[i, j], A[i, p] * B[p, j])


def times(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 1
            for p in range(A.shape[1]):
                C[i, j] *= A[i, p] + B[p, j]


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


def positive_alone(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                if A[i, p] > 0:
                    C[i, j] += A[i, p] * B[p, j]


def convolution_nhwc(X, W, Y, b):
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


def convolution_nchw(X, W, Y):
    """Stride 2, and zeros around the image by a condition."""
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


def dilated_groups(X, W, Y):
    """Y[n, g, o, h] from the channels X[n, g, c] of its group, every second element."""
    N, G, O, H = Y.shape
    for n in range(N):
        for g in range(G):
            for o in range(O):
                for h in range(H):
                    Y[n, g, o, h] = 0
                    for c in range(W.shape[2]):
                        for r in range(W.shape[3]):
                            Y[n, g, o, h] += X[n, g, c, h + 2*r] * W[g, o, c, r]


def depthwise(X, W, Y):
    N, C, H = Y.shape
    for n in range(N):
        for c in range(C):
            for h in range(H):
                Y[n, c, h] = 0
                for r in range(W.shape[1]):
                    Y[n, c, h] += X[n, c, h + r] * W[c, r]


def mttkrp(X, B, C, M):
    I, J, K = X.shape
    for i in range(I):
        for r in range(B.shape[1]):
            M[i, r] = 0
            for j in range(J):
                for k in range(K):
                    M[i, r] += X[i, j, k] * B[j, r] * C[k, r]


def chained(A, B, T, C, D):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            T[i, j] = 0
            for p in range(A.shape[1]):
                T[i, j] += A[i, p] * B[p, j]
    for i in range(T.shape[0]):
        for j in range(C.shape[1]):
            D[i, j] = 0
            for p in range(T.shape[1]):
                D[i, j] += T[i, p] * C[p, j]


def in_one_nest(A, B, C, D, E):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            E[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]
            for q in range(A.shape[1]):
                E[i, j] += A[i, q] * D[q, j]


def lower_triangle(A, C):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * A[j, p]


def triangular_sum(L, B, C):
    for i in range(L.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(i):
                s += L[i, p] * B[p, j]
            C[i, j] = s


def banded(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(A.shape[1]):
                if i - 2 <= p <= i + 1:
                    s += A[i, p] * B[p, j]
            C[i, j] = s


def vector(A, x, y):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            y[i] += A[i, j] * x[j]


def tiled_by_hand(A, B, C, n):
    for i in range(n):
        for j in range(n):
            C[i, j] = 0
    for io in range(0, n, 8):
        for jo in range(0, n, 8):
            for po in range(0, n, 4):
                for i in range(8):
                    for j in range(8):
                        for p in range(4):
                            C[io + i, jo + j] += A[io + i, po + p] * B[po + p, jo + j]


def normalised_afterwards(A, B, C, D):
    """The loops after the product divide by a sum over a row: they remain loops."""
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            D[i, j] = C[i, 0] - C[i, j]


TAKEN: list[tuple[Any, tuple[Any, ...], str]] = [
    (three_loops, ((5, 7), (7, 6), (5, 6)), "C[i, j] = sum over p of A[i, p] B[p, j]: matmul of 5 x 6 x 7"),
    (other_order, ((5, 7), (7, 6), (5, 6), 5, 6, 7), "matmul of 5 x 6 x 7"),
    (accumulated, ((5, 7), (7, 6), (5, 6)), "C[i, j] = 2 sum over p of A[i, p] B[p, j] + C[i, j]"),
    (general, ((5, 7), (7, 6), (5, 6), 2.0, 3.0), "alpha sum over p of A[i, p] B[p, j] + beta C[i, j]"),
    (transposed, ((7, 5), (6, 7), (6, 5)), "C[j, i] = sum over p of A[p, i] B[j, p]"),
    (gram, ((5, 7), (5, 5)), "sum over p of A[i, p] A[j, p]"),
    (reversed_rows, ((5, 7), (7, 6), (5, 6)), "matmul of 5 x 6 x 7"),
    (batched, ((3, 5, 7), (3, 7, 6), (3, 5, 6)), "matmul of 3 times 5 x 6 x 7"),
    (shared_weights, ((3, 5, 7), (7, 6), (3, 5, 6)), "matmul of 15 x 6 x 7"),
    (bias_relu, ((5, 7), (7, 6), (5, 6), (6,), (5,)), "then max((acc * scale[i]) + bias[j], 0)"),
    (two_results, ((5, 7), (7, 6), (5, 6), (5, 6)), "an epilogue"),
    (relu_first, ((5, 7), (7, 6), (5, 6)), "a function of operands"),
    (min_plus, ((5, 7), (7, 6), (5, 6)), "min over p of A[i, p] + B[p, j]"),
    (min_plus_if, ((5, 7), (7, 6), (5, 6)), "min over p of A[i, p] + B[p, j], then min(1000, acc)"),
    (max_times, ((5, 7), (7, 6), (5, 6)), "max over p of A[i, p] * B[p, j]"),
    (times, ((5, 7), (7, 6), (5, 6)), "product over p of A[i, p] + B[p, j]: contract of 5 x 6 x 7"),
    (distances, ((5, 7), (6, 7), (5, 6)), "then sqrt(acc): contract of 5 x 6 x 7"),
    (city_block, ((5, 7), (6, 7), (5, 6)), "sum over p of abs(X[i, p] - Y[j, p])"),
    (positive_alone, ((5, 7), (7, 6), (5, 6)), "contract of 5 x 6 x 7"),
    (convolution_nhwc, ((2, 8, 9, 3), (3, 3, 3, 4), (2, 6, 7, 4), (4,)),
     "sum over r, t, c of X[n, h + r, t + w, c] W[r, t, c, o], then max(acc + b[o], 0): einsum"),
    (convolution_nchw, ((2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 5, 5)), "copies of operands"),
    (dilated_groups, ((2, 2, 3, 9), (2, 4, 3, 3), (2, 2, 4, 5)), "X[n, g, c, h + 2*r]"),
    (depthwise, ((2, 3, 9), (3, 3), (2, 3, 7)), "X[n, c, h + r] W[c, r]"),
    (mttkrp, ((5, 6, 7), (6, 4), (7, 4), (5, 4)), "sum over j, k of X[i, j, k] B[j, r] C[k, r]: einsum"),
    (chained, ((5, 7), (7, 6), (5, 6), (6, 4), (5, 4)), "D[i, j] = sum over p of T[i, p] C[p, j]: matmul of 5 x 4 x 6"),
    (in_one_nest, ((5, 7), (7, 6), (5, 6), (7, 6), (5, 6)), "E[i, j] = sum over q of A[i, q] D[q, j]"),
    (lower_triangle, ((5, 7), (5, 5)), "a mask"),
    (lower_triangle, ((260, 2), (260, 260)), "in 3 blocks"),
    (triangular_sum, ((5, 5), (5, 3), (5, 3)), "copies of operands"),
    (triangular_sum, ((260, 260), (260, 2), (260, 2)), "in 3 blocks"),
    (banded, ((9, 9), (9, 3), (9, 3)), "copies of operands"),
    (vector, ((5, 7), (7,), (5,)), "y[i] = sum over j of A[i, j] x[j] + y[i]"),
    (tiled_by_hand, ((16, 16), (16, 16), (16, 16), 16), "matmul of 16 x 16 x 16"),
    (normalised_afterwards, ((5, 7), (7, 6), (5, 6), (5, 6)), "matmul of 5 x 6 x 7"),
]


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


def shortest_paths(D):
    for k in range(D.shape[0]):
        for i in range(D.shape[0]):
            for j in range(D.shape[0]):
                D[i, j] = min(D[i, j], D[i, k] + D[k, j])


def prefix_sum(A, B):
    s = 0.0
    for i in range(A.shape[0]):
        s += A[i]
        B[i] = s


def triangular_solve(L, x, b):
    for i in range(L.shape[0]):
        x[i] = b[i]
        for j in range(i):
            x[i] -= L[i, j] * x[j]


def partial_sums(A, B, C, P):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]
                P[i, j] = C[i, j]


def colliding(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i + j] = 0
            for p in range(A.shape[1]):
                C[i + j] += A[i, p] * B[p, j]


def restarted(A, B, C):
    for i in range(A.shape[0]):
        for p in range(A.shape[1]):
            for j in range(B.shape[1]):
                C[i, j] = 0
                C[i, j] += A[i, p] * B[p, j]


def index_as_number(A, C):
    for i in range(A.shape[0]):
        C[i] = 0
        for p in range(A.shape[1]):
            C[i] += A[i, p] * p


LOOPS: list[tuple[Any, tuple[Any, ...], str]] = [
    (stencil, ((6, 6), (6, 6)), "nothing is reduced"),
    (in_place, ((5, 7), (7, 7)), "overwrites A, which the loops at"),
    (shortest_paths, ((5, 5),), "D is read while D, which shares its memory, is written"),
    (prefix_sum, ((5,), (5,)), "reads a partial sum"),
    (triangular_solve, ((5, 5), (5,), (5,)), "x is read while x"),
    (partial_sums, ((5, 7), (7, 6), (5, 6), (5, 6)), "shares the loop p with another contraction, and C"),
    (colliding, ((5, 7), (7, 6), (12,)), "several rounds write the same element of C"),
    (restarted, ((5, 7), (7, 6), (5, 6)), "starts C anew in each round of a loop that adds to it"),
    (index_as_number, ((5, 7), (5,)), "an index is used as a number"),
]
