"""The matrices of a product of formats: random numbers of each format, finite, and never zeros alone.

Integers have every value alike.  Floats of 8 bits and fewer have every finite pattern alike, which are all exponents
and both signs.  Wider floats are random normal: with all exponents alike, most sums would be inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright import formats
from tilewright.bench.formats_products import Product
from tilewright.formats import Bool, Complex, Float, Format, Integer
from tilewright.measure.operands import Array


@dataclass(frozen=True)
class Matrices:
    """A [m, k], B [k, n], and a C [m, n] to write to, each by rows."""

    product: Product
    a: Array
    b: Array
    c: Array

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    def first(self, rows: int) -> Matrices:
        """The same product of the first rows of A alone: views."""
        return Matrices(self.product, self.a[:rows], self.b, self.c[:rows])

    def poison(self) -> None:
        """Bytes of ones in C: nan, -1 or the largest, so that an element nobody wrote cannot pass for right."""
        self.c.view(np.uint8).fill(0xFF)


def make(product: Product, m: int, n: int, k: int, seed: int = 0) -> Matrices:
    draw = np.random.default_rng(seed)
    found = Matrices(
        product,
        numbers(formats.get(product.a), (m, k), draw),
        numbers(formats.get(product.b), (k, n), draw),
        np.empty((m, n), formats.get(product.out).dtype),
    )
    found.poison()
    return found


def numbers(f: Format, shape: tuple[int, ...], draw: np.random.Generator) -> Array:
    """A random array of format f, by the rules above."""
    if isinstance(f, Complex):
        pairs = draw.standard_normal((*shape, 2), dtype=f.part.dtype)
        return np.asarray(pairs.view(f.dtype)[..., 0])
    if isinstance(f, Bool):
        return draw.random(shape) < 0.5
    if isinstance(f, Integer):
        held = np.dtype(f.dtype if f.bits >= 8 else np.int8)
        return draw.integers(int(f.smallest), int(f.largest), shape, held, endpoint=True).astype(f.dtype, copy=False)
    if f.bits <= 8:
        return patterns(f)[draw.integers(0, len(patterns(f)), shape)]
    return draw.standard_normal(shape, np.float64 if f.bits == 64 else np.float32).astype(f.dtype, copy=False)


def patterns(f: Format) -> Array:
    """Every finite number of a narrow float, once."""
    assert isinstance(f, Float)
    assert f.bits <= 8
    finite = [p for p in range(2**f.bits) if math.isfinite(f.decode(p))]
    return np.array(finite, np.uint8).view(f.dtype)
