"""Products with their own arithmetic as they are written for numba: compiled loops over points that lie by rows, two
rows by four, so that eight results are in registers and LLVM turns the loop over k into vectors. FAST allows that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

FAST = {"reassoc", "nsz", "contract", "arcp", "afn", "nnan"}    # there are infinities: minima begin with one


def bits_that_differ(x, y):
    """In a form that LLVM knows for a count of bits."""
    v = np.uint32(x ^ y)
    v = v - ((v >> np.uint32(1)) & np.uint32(0x55555555))
    v = (v & np.uint32(0x33333333)) + ((v >> np.uint32(2)) & np.uint32(0x33333333))
    v = (v + (v >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
    return np.int32(np.uint32(v * np.uint32(0x01010101)) >> np.uint32(24))


def product(term: Callable[..., Any], both: Callable[..., Any], first: float, parallel: bool) -> Callable[..., Any]:
    """run(a [m, k], b [n, k], c [m, n]): both(state, term(x, y)) over k, from `first` on."""
    from numba import njit, prange

    term, both = njit(term, fastmath=FAST), njit(both, fastmath=FAST)

    @njit(fastmath=FAST, parallel=parallel, error_model="numpy")
    def run(a, b, c):
        m, k = a.shape
        n = b.shape[0]
        for i2 in prange((m + 1) // 2):
            i = 2 * i2
            u = min(i + 1, m - 1)
            for j in range(0, n - n % 4, 4):
                s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = c.dtype.type(first)
                for p in range(k):
                    x, y = a[i, p], a[u, p]
                    w0, w1, w2, w3 = b[j, p], b[j + 1, p], b[j + 2, p], b[j + 3, p]
                    s0, s1, s2, s3 = both(s0, term(x, w0)), both(s1, term(x, w1)), both(s2, term(x, w2)), both(
                        s3, term(x, w3))
                    t0, t1, t2, t3 = both(t0, term(y, w0)), both(t1, term(y, w1)), both(t2, term(y, w2)), both(
                        t3, term(y, w3))
                c[i, j], c[i, j + 1], c[i, j + 2], c[i, j + 3] = s0, s1, s2, s3
                c[u, j], c[u, j + 1], c[u, j + 2], c[u, j + 3] = t0, t1, t2, t3
            for j in range(n - n % 4, n):
                for r in (i, u):
                    s0 = c.dtype.type(first)
                    for p in range(k):
                        s0 = both(s0, term(a[r, p], b[j, p]))
                    c[r, j] = s0
    return run


def argmin(term: Callable[..., Any], parallel: bool) -> Callable[..., Any]:
    """run(a, b, c): the index of the first smallest term."""
    from numba import njit, prange

    term = njit(term, fastmath=FAST)

    @njit(fastmath=FAST, parallel=parallel)
    def run(a, b, c):
        for i in prange(a.shape[0]):
            for j in range(b.shape[0]):
                best, at = term(a[i, 0], b[j, 0]), 0
                for p in range(1, a.shape[1]):
                    t = term(a[i, p], b[j, p])
                    if t < best:
                        best, at = t, p
                c[i, j] = at
    return run


def logsumexp(term: Callable[..., Any], parallel: bool) -> Callable[..., Any]:
    """run(a, b, c): in two passes over k, for the largest term and for the sum."""
    from numba import njit, prange

    term = njit(term, fastmath=FAST)

    @njit(fastmath=FAST, parallel=parallel)
    def run(a, b, c):
        for i in prange(a.shape[0]):
            for j in range(b.shape[0]):
                most, total = term(a[i, 0], b[j, 0]), c.dtype.type(0)
                for p in range(1, a.shape[1]):
                    most = max(most, term(a[i, p], b[j, p]))
                for p in range(a.shape[1]):
                    total += np.exp(term(a[i, p], b[j, p]) - most)
                c[i, j] = most + np.log(total)
    return run


def rows(of_distance: Callable[..., Any], both: Callable[..., Any], first: float, parallel: bool
         ) -> Callable[..., Any]:
    """run(a, b, c [m]): both over all rows of b, of a function of the squared distance; distances are not stored."""
    from numba import njit, prange

    of_distance, both = njit(of_distance, fastmath=FAST), njit(both, fastmath=FAST)

    @njit(fastmath=FAST, parallel=parallel)
    def run(a, b, c):
        for i in prange(a.shape[0]):
            total = c.dtype.type(first)
            for j in range(b.shape[0]):
                s = a.dtype.type(0)
                for p in range(a.shape[1]):
                    d = a[i, p] - b[j, p]
                    s += d * d
                total = both(total, of_distance(s))
            c[i] = total
    return run
