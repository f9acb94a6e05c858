"""Random numbers of every format, of four kinds."""

from __future__ import annotations

import numpy as np

from tilewright.formats import FORMATS, Bool, Complex, Float, Integer

# whole: small ones, of which sums are exact. normal: of all sizes about 1. wide: of integers every pattern, of floats
# exponents from a wide range. special: with inf, nan, zeros of both signs, the largest and subnormal numbers.
KINDS = ("whole", "normal", "wide", "special")


def numbers(name: str, shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    f, rng = FORMATS[name], np.random.default_rng(seed)
    if isinstance(f, Complex):
        parts = np.empty((*shape, 2), f.part.dtype)
        parts[...] = numbers(f.part.name, (*shape, 2), kind, seed)
        return parts.view(f.dtype)[..., 0]
    if isinstance(f, Bool):
        return rng.random(shape) < (0.5 if kind == "whole" else 0.1)
    if isinstance(f, Integer):
        if kind == "whole":
            return rng.integers(max(f.smallest, -4), min(f.largest, 4), shape, endpoint=True).astype(f.dtype)
        return rng.integers(f.smallest, f.largest, shape, np.uint64 if f.largest >= 2**63 else np.int64, True).astype(
            f.dtype)
    assert isinstance(f, Float)
    if kind == "whole":
        if not f.zeros:  # e8m0: powers of two
            return (2.0 ** rng.integers(0, 3, shape)).astype(f.dtype)
        return rng.integers(-2, 3, shape).astype(f.dtype)
    x = rng.standard_normal(shape)
    if kind == "wide":
        x = x * 2.0 ** rng.integers(-min(f.bias, 60) // 2, min(f.bias, 60) // 2 + 1, shape)
    if not f.zeros:
        x = np.abs(x)
    with np.errstate(all="ignore"):
        held = x.astype(f.dtype)
    if kind == "special":
        held = np.where(rng.random(shape) < 0.06, rng.choice(_specials(f), shape), held)
    return held


def _specials(f: Float) -> np.ndarray:
    """Patterns of the format's ends, as numbers."""
    last = f.largest_pattern
    some = [*f.zeros, *f.infs, last, last - 1, 1, 2**f.mantissa - 1, 2**f.mantissa, *(run[-1] for run in f.nans)]
    return np.array(some, f"u{f.itemsize}").view(f.dtype)
