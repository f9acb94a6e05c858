"""Functions of plain loops, beside those of contractions.py, and small whole numbers for their arguments."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.nests import contractions as loops


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


def batched(A, B, C):
    for b in range(A.shape[0]):
        for i in range(A.shape[1]):
            for j in range(B.shape[2]):
                C[b, i, j] = 0
                for p in range(A.shape[2]):
                    C[b, i, j] += 2 * A[b, i, p] * B[b, p, j]


def triangle_sum(L, B, C):
    for i in range(L.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for p in range(i + 1):
                s += L[i, p] * B[p, j]
            C[i, j] = s


def biased(A, B, C, bias):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0.0
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]
            C[i, j] = C[i, j] + bias[j]


def dots(A, x, y):
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] * x[j]
        y[i] = s


def wave(A):
    for i in range(7):
        for j in range(7):
            A[i + 1, j] = A[i, j + 1] * 2


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
    loops.three_loops: _shapes((7, 5), (5, 9), (7, 9)), jpi: _shapes((7, 5), (5, 9), (7, 9), 7, 9, 5),
    ipj: _shapes((2, 11), (11, 40), (2, 40)), loops.general: _shapes((3, 4), (4, 5), (3, 5), 2.0, -1.0),
    batched: _shapes((3, 4, 5), (3, 5, 2), (3, 4, 2)), loops.bias_relu: _shapes((4, 3), (3, 6), (4, 6), (6,), (4,)),
    loops.min_plus: _shapes((4, 3), (3, 6), (4, 6)), loops.min_plus_if: _shapes((4, 3), (3, 6), (4, 6)),
    loops.max_times: _shapes((4, 3), (3, 6), (4, 6)), loops.distances: _shapes((4, 3), (6, 3), (4, 6)),
    loops.city_block: _shapes((4, 3), (6, 3), (4, 6)),
    loops.convolution_nhwc: _shapes((2, 5, 6, 2), (3, 3, 2, 4), (2, 3, 4, 4), (4,)),
    loops.convolution_nchw: _shapes((1, 2, 6, 7), (3, 2, 3, 3), (1, 3, 3, 4)),
    loops.mttkrp: _shapes((3, 4, 5), (4, 6), (5, 6), (3, 6)), loops.lower_triangle: _shapes((9, 3), (9, 9)),
    triangle_sum: _shapes((6, 6), (6, 4), (6, 4)), loops.vector: _shapes((17, 5), (5,), (17,)),
    loops.tiled_by_hand: _shapes((16, 16), (16, 16), (16, 16), 16), loops.stencil: _shapes((6, 7), (6, 7)),
    loops.in_place: _shapes((4, 4), (4, 4)), loops.shortest_paths: _shapes((6, 6)),
    loops.prefix_sum: _shapes((13,), (13,)), loops.triangular_solve: _shapes((5, 5), (5,), (5,)),
    loops.colliding: _shapes((4, 3), (3, 5), (8,)), backwards: _shapes((9,), (9,)), everything: _shapes((9,), (9,), 9),
}
