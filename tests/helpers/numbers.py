"""Random numbers of a format, of which products are known exactly; integers modulo 2^bits."""

from __future__ import annotations

import numpy as np

from tilewright.formats import Bool, Complex, Format, Integer

RNG = np.random.default_rng(4)


def numbers(f: Format, *shape: int) -> np.ndarray:
    """Of integers all bit patterns, of floats small whole numbers, which sums hold exactly."""
    if isinstance(f, Integer):
        raw = RNG.integers(0, 256, (*shape, 8), np.uint8).view(np.uint64)[..., 0]
        return raw.astype(f.dtype)
    if isinstance(f, Bool):
        return RNG.random(shape) < 0.2
    if isinstance(f, Complex):
        return (RNG.integers(-9, 10, shape) + 1j * RNG.integers(-9, 10, shape)).astype(f.dtype)
    return (2.0 ** RNG.integers(-2, 3, shape) if f.name == "e8m0" else RNG.integers(-2, 3, shape)).astype(f.dtype)


def modulo(x: np.ndarray, bits: int) -> np.ndarray:
    """Python's integers, as they are in so many bits."""
    return np.frompyfunc(lambda v: int(v) % (1 << bits), 1, 1)(x)
