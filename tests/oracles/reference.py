"""The slow right answer for every problem, in float64 NumPy, and how far a fast one may be from it.

`gemm` has the signature of the engines that it stands in for, so that either can be put in the other's place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def product(
    a: ArrayLike, b: ArrayLike, c: ArrayLike | None = None, *, alpha: float = 1.0, beta: float = 0.0
) -> NDArray[np.float64]:
    """alpha * A @ B + beta * C in float64; beta == 0 never reads C and alpha == 0 never reads A or B, as in BLAS."""
    a64, b64 = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(all="ignore"):  # inf - inf is a result here, not an accident
        result = alpha * (a64 @ b64) if alpha else np.zeros_like(a64) @ np.zeros_like(b64)
        return result + beta * np.asarray(c, np.float64) if beta else result


def gemm(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], alpha: float = 1.0, beta: float = 0.0, **_options: object
) -> None:
    """C = alpha * A @ B + beta * C in place, rounded once to C's format. Works for batches too."""
    with np.errstate(over="ignore"):
        c[...] = product(a, b, c, alpha=alpha, beta=beta)


def error_bound(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: type[np.floating[Any]] | np.dtype[Any],
) -> NDArray[np.float64]:
    """How far, element by element, any sum in `dtype` may be from `product`, whatever its order.

    A sum of k products, each of them and each addition rounded with unit roundoff u = eps / 2, errs by at most
    k u / (1 - k u) times |A| |B| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.5). The
    scaling by alpha and beta and the last addition round three more times. Using eps in place of u leaves as much room
    again for the reference, which is itself rounded when dtype is float64. An underflow loses at most one subnormal
    per term.
    """
    a64, b64 = np.abs(np.asarray(a, np.float64)), np.abs(np.asarray(b, np.float64))
    k = a64.shape[-1]
    info = np.finfo(dtype)
    size = abs(alpha) * (a64 @ b64)
    if beta:
        size = size + abs(beta) * np.abs(np.asarray(c, np.float64))
    slack = 2 * (k + 3) * max(1.0, abs(alpha)) * float(info.smallest_subnormal)
    return np.asarray((k + 3) * float(info.eps) * size + slack)
