"""An answer is compared with float64 before its speed means anything.

Small products are compared element by element.  Large ones by Freivalds' test, C x = A (B x) in float64 with x of
random signs: it sees every element of C, costs O(n^2), and needs no second matrix multiplication to be trusted.

How far c may be off is measured in |A| |B|, what the dot products would be without cancellation.  In the worst case
rounding errors all add up (kernels.reference.error_bound: eps k |A| |B|).  Of random data with mean zero the partial
sums stay small and so do their errors, 0.3 eps |A| |B| whatever k is; 8 is allowed, and a missing term stands out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import reference
from tilewright.measure.operands import Array

FULL_LIMIT = 1 << 27  # m n k up to which a float64 product is cheap enough (512^3)
RANDOM = 8.0  # eps |A| |B| allowed for random data
BLOCK = 256  # rows converted to float64 at a time: C may be most of the memory


def wrong(a: Array, b: Array, c: Array, *, random: bool = True, seed: int = 1) -> str | None:
    """None if the 2-D c is a @ b as float64 sees it, else a sentence that says where and by how much it is not.

    `random=False` allows the worst case of rounding, for data of which nothing is known.
    """
    (m, k), n = a.shape, b.shape[1]
    if c.shape != (m, n):
        return f"the result has shape {c.shape}, not {(m, n)}"
    if c.size == 0:
        return None
    with np.errstate(all="ignore"):  # a user's inf and nan travel through as they should
        if m * n * k <= FULL_LIMIT:
            share = min(1.0, RANDOM / (k + 3)) if random else 1.0
            return _compare(a, b, c, share)
        # Of random data the errors of a row's n elements add up like sqrt(n), not like the n that |B| 1 sums.
        factor = RANDOM / n**0.5 if random else k + 3
        return _freivalds(a, b, c, float(np.finfo(c.dtype).eps) * factor, seed)


def _worst(got: Array, exact: Array, allowed: Array) -> tuple[int, ...] | None:
    """Where got is furthest from exact, if anywhere beyond what is allowed.  nan matches nan, inf matches inf."""
    error = np.abs(got - exact)
    close = np.isfinite(exact) & (error <= allowed)
    bad = ~(close | (got == exact.astype(got.dtype)) | (np.isnan(got) & np.isnan(exact)))
    if not bad.any():
        return None
    excess = np.where(bad, np.nan_to_num(error, nan=np.inf, posinf=np.inf), -1.0)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))


def _compare(a: Array, b: Array, c: Array, share: float) -> str | None:
    exact, allowed = reference.product(a, b), share * reference.error_bound(a, b, dtype=c.dtype)
    at = _worst(c, exact, allowed)
    if at is None:
        return None
    return f"C[{at[0]}, {at[1]}] is {c[at]:.9g}, float64 says {exact[at]:.9g} ({allowed[at]:.2g} off would be allowed)"


def _freivalds(a: Array, b: Array, c: Array, factor: float, seed: int) -> str | None:
    return Probe(a, b, seed).missed(c, factor)


class Probe:
    """Freivalds' test of any number of results of a @ b: what C x must be, for an x [n] of random signs.

    `wide` is the dtype that this is computed in: float64, or complex128 for complex numbers.
    """

    def __init__(self, a: Array, b: Array, seed: int = 1, wide: Any = np.float64) -> None:
        self.wide = np.dtype(wide)
        self.x = (np.random.default_rng(seed).integers(0, 2, size=b.shape[1]) * 2 - 1).astype(self.wide)
        bx, size = np.empty(b.shape[0], self.wide), np.empty(b.shape[0])
        for p in range(0, b.shape[0], BLOCK):
            rows = b[p : p + BLOCK].astype(self.wide)
            bx[p : p + BLOCK], size[p : p + BLOCK] = rows @ self.x, np.abs(rows).sum(axis=1)
        self.exact, self.size = np.empty(a.shape[0], self.wide), np.empty(a.shape[0])  # A (B x), |A| (|B| 1)
        for i in range(0, a.shape[0], BLOCK):
            rows = a[i : i + BLOCK].astype(self.wide)
            self.exact[i : i + BLOCK], self.size[i : i + BLOCK] = rows @ bx, np.abs(rows) @ size

    def missed(self, c: Array, factor: float) -> str | None:
        """None if C x, of the first rows or all, is as it must be, but for factor * |A| (|B| 1)."""
        for i in range(0, c.shape[0], BLOCK):
            got = c[i : i + BLOCK].astype(self.wide) @ self.x
            part = slice(i, i + len(got))
            # An infinity in the data makes inf or nan of these sums, whichever way the signs fall.
            exact = np.where(np.isfinite(self.exact[part]), self.exact[part], np.nan)
            got[~np.isfinite(got)] = np.nan
            allowed = factor * self.size[part]
            at = _worst(got, exact, allowed)
            if at is not None:
                off = abs(got[at] - exact[at])
                return f"row {i + at[0]} of C fails Freivalds' test: off by {off:.2g}, {allowed[at]:.2g} allowed"
        return None
