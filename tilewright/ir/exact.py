"""Correctly rounded arithmetic that NumPy lacks, for the second reading to give the same bits as the machine."""
from __future__ import annotations

from typing import Any

import numpy as np

_SPLIT = 2.0 ** 27 + 1


def fused_multiply_add(t: Any, a: Any, b: Any, c: Any) -> Any:
    """a*b + c with one rounding. Through f64 for f32: the product is exact there, and so narrow a result is not rounded
    twice to a different value except at ties of the f64 sum, which are then broken by `_add_to_odd`."""
    if t.bits == 64:
        return _fma64(*np.broadcast_arrays(np.atleast_1d(a), b, c)) if np.ndim(a) or np.ndim(b) or np.ndim(c) else \
            _fma64(*(np.atleast_1d(x) for x in (a, b, c)))[0]
    with np.errstate(all="ignore"):
        return _add_to_odd(np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)).astype(t.numpy)[()]


def _two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """(s, e): s = x + y rounded, s + e = x + y exactly (Knuth)."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


def _add_to_odd(x: Any, y: Any) -> Any:
    """x + y rounded to odd: an inexact sum gets its last bit set, so that a later, coarser rounding is the only one."""
    s, e = _two_sum(x, y)
    s = np.array(s, np.float64)
    bits = s.view(np.int64)
    inexact = np.isfinite(s) & (np.nan_to_num(e) != 0) & (bits & 1 == 0)
    towards = np.where((e > 0) == (s > 0), 1, -1)           # one unit up or down in magnitude
    return np.where(inexact, bits + towards, bits).view(np.float64)


def _fma64(a: Any, b: Any, c: Any) -> Any:
    """Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 57 (2008), algorithm Fma.

    Exact while no intermediate result overflows or becomes subnormal; outside that range it is a*b + c."""
    with np.errstate(all="ignore"):
        p = a * b
        ah, bh = _SPLIT * a, _SPLIT * b
        ah, bh = ah - (ah - a), bh - (bh - b)
        al, bl = a - ah, b - bh
        low = ((ah * bh - p) + ah * bl + al * bh) + al * bl
        th, tl = _two_sum(c, low)
        vh, vl = _two_sum(p, th)
        fused = vh + _add_to_odd(tl, vl)
        plain = p + c
    return np.where(np.isfinite(fused) & np.isfinite(low), fused, plain)
