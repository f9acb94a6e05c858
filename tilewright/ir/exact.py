"""Correctly rounded arithmetic that NumPy lacks, for the second reading to give the same bits as the machine.

Every NaN counts as the same: which of them comes out differs between chips.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

_SPLIT = 2.0 ** 27 + 1
_NORMAL = 2.0 ** -126            # the smallest of f32
_CUT, _MIDDLE = (1 << 29) - 1, 1 << 28      # the bits of an f64 that an f32 has not; of the middle between two f32


def some(x: Any) -> bool:
    """Is any of these true? As x.any(), which takes four times as long."""
    return bool(x if x.ndim == 0 else np.count_nonzero(x))


def silent_multiply_add(t: Any, a: Any, b: Any, c: Any) -> Any:
    """a*b + c with one rounding, in the type of `t`, on scalars or arrays that broadcast; callers turn NumPy's warnings
    off, once for many. For f32 and narrower types the product is exact in f64, and a sum rounded to odd survives the
    second rounding: Boldo and Melquiond, "When double rounding is odd", 2005: two bits more than twice the format."""
    if t.bits == 64:
        return _fma64(a, b, c)
    product = np.multiply(a, b, dtype=np.float64)
    if t.bits == 32 and t.is_float:
        total = product + c
        rounded = total.astype(np.float32)
        off = rounded != total
        # A second rounding errs only where the first one gave the middle between two numbers, which the last bits tell
        # of a sum that is not subnormal.
        if not some(off) or not some(off & ((np.asarray(total).view(np.int64) & _CUT == _MIDDLE)
                                            | (np.abs(total) < _NORMAL))):
            return rounded
    return _add_to_odd(product, c).astype(t.numpy)


def flushing_multiply_add(a: Any, b: Any, c: Any) -> Any:
    """a*b + c of f32 with one rounding, where subnormal operands and results are zeros of their sign.

    As on x86, a result is subnormal if it is so once rounded to 24 bits, with an exponent as low as it needs.
    """
    with np.errstate(all="ignore"):
        a, b, c = (np.where(np.abs(x) < _NORMAL, np.copysign(np.float32(0), x), x) for x in (a, b, c))
        wide = _add_to_odd(np.multiply(a, b, dtype=np.float64), c)
        rounded = wide.astype(np.float32)
        subnormal = np.abs((wide * 2.0 ** 60).astype(np.float32)) < _NORMAL * 2.0 ** 60
        return np.where(subnormal, np.copysign(np.float32(0), rounded), rounded)[()]


def _two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """(s, e): s = x + y rounded, s + e = x + y exactly (Knuth)."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


def _add_to_odd(x: Any, y: Any) -> Any:
    """x + y rounded to odd: an inexact sum gets its last bit set, so that a later, coarser rounding is the only one."""
    s, e = _two_sum(x, y)
    if not some(e):                             # exact, which sums of small integers always are
        return s
    bits, inexact = np.asarray(s).view(np.int64), np.abs(e) > 0         # e is a NaN where s is not finite: leave it
    beyond = inexact & ((e < 0) != (s < 0))     # s was rounded away from zero: go back first
    return (bits - beyond | inexact).view(np.float64)[()]


def _fma64(a: Any, b: Any, c: Any) -> Any:
    """Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 57 (2008), algorithm Fma.

    It holds while the error of the product is no subnormal number; where anything overflows, no finite number comes
    out. Such elements are done again in integers.
    """
    p = a * b
    if not some(a.astype(np.float32) != a) and not some(b.astype(np.float32) != b):
        return p + c                            # the product is exact
    ah, bh = _SPLIT * a, _SPLIT * b
    ah, bh = ah - (ah - a), bh - (bh - b)       # Dekker: the upper and the lower half of the bits
    al, bl = a - ah, b - bh
    error = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    th, tl = _two_sum(c, error)
    vh, vl = _two_sum(p, th)
    fused = vh + _add_to_odd(tl, vl)
    safe = (np.abs(p) > 2.0 ** -900) & np.isfinite(fused)
    if not some(~safe):
        return fused
    a, b, c, fused, safe, plain = np.broadcast_arrays(a, b, c, fused, safe, p + c)
    fused = np.where(safe, fused, plain)        # right for factors that are 0, infinite or NaN
    for at in np.argwhere(~safe & np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)):
        i = tuple(at)
        fused[i] = _fma_in_integers(float(a[i]), float(b[i]), float(c[i]))
    return fused[()]


def _fma_in_integers(a: float, b: float, c: float) -> float:
    """a*b + c for finite factors that are not 0: exact, then rounded once by Python's division of integers."""
    if not math.isfinite(c):
        return c
    (an, ad), (bn, bd), (cn, cd) = (x.as_integer_ratio() for x in (a, b, c))
    numerator, denominator = an * bn * cd + cn * ad * bd, ad * bd * cd
    if numerator == 0:
        return 0.0
    try:
        rounded = abs(numerator) / denominator
    except OverflowError:
        rounded = math.inf
    return rounded if numerator > 0 else -rounded
