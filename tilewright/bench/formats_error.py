"""How far a product is from the right one, and whether it is right at all, before its speed counts.

Integers must be exact modulo the result's 2^bits.  Of floats, the error is max |C - A B| / (u |A| |B|), where A B is
taken in float64 (in long double for results of f64 and c128) and u is half the gap at 1 of the result's format: the
unit in which the bounds of docs/formats.md are written, k u |A| |B| for sums in the result's own format.

Up to 512^3 every element is compared, above some rows, and all others pass Freivalds' test (check.Probe), which for
integers is done modulo 2^bits too.  Narrow results must be sums in f32 (or wider), rounded once, as docs/formats.md
promises of ours; a peer may add up in that format itself, which shows in its error.
"""

from __future__ import annotations

import numpy as np

from tilewright import formats
from tilewright.bench.formats_data import Matrices
from tilewright.formats import Complex, Float, Integer
from tilewright.measure import check
from tilewright.measure.operands import Array

ROWS, SLOW_ROWS = 64, 8  # compared element by element; the second where the reference has no BLAS
# Sums of random data stay far below their bound (check.py); those of all exponents alike less far than of normal data.
ALLOWED = 32.0  # u of the sums, times |A| |B|
# Three products of bf16 terms leave out the second terms times each other, and the third ones: of |a| |b| at most this.
LEFT_OUT = {"bf16_bf16_f32_x3": 3 * 2.0**-16}


class Reference:
    """What A B is; `error` and `wrong` judge any number of results, of all rows of A or of the first ones."""

    def __init__(self, given: Matrices, seed: int = 1) -> None:
        product, (m, n, k) = given.product, given.sizes
        out = formats.get(product.out)
        real = out.part if isinstance(out, Complex) else out
        sums = formats.accumulator(product.a, product.b, product.out)
        sums = sums.part if isinstance(sums, Complex) else sums
        self.unit = real.eps / 2 if isinstance(real, Float) else 0.0
        own = sums.eps / 2 if isinstance(sums, Float) else 0.0
        self.sums = ALLOWED * own + LEFT_OUT.get(product.algorithm or "", 0.0)  # of |A| |B|, for the sums
        self.rounding = self.unit if self.unit > own else 0.0  # for rounding them
        self.least = real.smallest_subnormal if isinstance(real, Float) else 0.0
        self.bits = out.bits if isinstance(out, Integer) else 0
        self.narrow = bool(self.bits) and _in_float64(given)
        slow = real.bits == 64 or (bool(self.bits) and not self.narrow)
        few = min(m, SLOW_ROWS if slow else ROWS)
        every = m * n * k <= check.FULL_LIMIT and not slow
        # The first rows are always among them: a slow contender is given no others.
        others = np.random.default_rng(seed).permutation(np.arange(few // 2, m))[: few - few // 2]
        self.rows = np.arange(m) if every else np.sort(np.append(np.arange(few // 2), others))
        self.wide = self._wide(real.bits, isinstance(out, Complex))
        with np.errstate(all="ignore"):
            self.exact, self.size = self._product(given.a[self.rows], given.b)
            probed = "i8" if self.bits else "c16" if isinstance(out, Complex) else "f8"
            self.probe = check.Probe(given.a, given.b, seed, np.dtype(probed))

    def _wide(self, bits: int, is_complex: bool) -> np.dtype[np.generic]:
        if self.bits:
            return np.dtype(np.int64)
        if is_complex:
            return np.dtype(np.clongdouble if bits == 64 else np.complex128)
        return np.dtype(np.longdouble if bits == 64 else np.float64)

    def _product(self, a: Array, b: Array) -> tuple[Array, Array]:
        """A B and |A| |B| of some rows."""
        if self.bits:
            held = np.dtype(np.float64 if self.narrow else np.int64)
            return (a.astype(held) @ b.astype(held)).astype(np.int64), np.empty(0)
        kind = np.dtype(np.complex128 if self.wide.kind == "c" else np.float64)
        return a.astype(self.wide) @ b.astype(self.wide), np.abs(a.astype(kind)) @ np.abs(b.astype(kind))

    def error(self, c: Array) -> float:
        """The largest error of the rows compared, in units of u |A| |B|; of integers the largest difference."""
        off, among = self._off(c)
        if self.bits:
            return float(off.max(initial=0))
        with np.errstate(all="ignore"):
            found = np.where(off == 0, 0.0, off / (self.unit * self.size[among]))
        return float(np.nan_to_num(found, nan=np.inf).max(initial=0.0))

    def wrong(self, c: Array, rounded_once: bool = True) -> str | None:
        """None if every element is right, as far as the format can tell, else a sentence."""
        off, among = self._off(c)
        if self.bits:
            missed = f"an element is off by {off.max()}" if off.any() else self._missed(c)
            return missed and f"{missed} modulo 2^{self.bits}"
        exact, size = np.abs(self.exact[among]).astype(np.float64), self.size[among]
        rounding = 1.5 * exact if rounded_once else check.RANDOM * size
        allowed = self.sums * size + self.rounding * rounding + self.least
        if not (off <= allowed).all():
            worst = np.unravel_index(int(np.argmax(np.nan_to_num(off / allowed, nan=np.inf))), off.shape)
            return f"an element is off by {off[worst]:.3g}, {allowed[worst]:.3g} would be allowed"
        with np.errstate(all="ignore"):
            share = self.sums + (1 if rounded_once else check.RANDOM) * self.rounding
            return self.probe.missed(c, share / self.probe.x.size**0.5)

    def _off(self, c: Array) -> tuple[Array, Array]:
        """|C - A B| of the rows compared, and which of self.rows they are: those that c has."""
        among = self.rows < len(c)
        with np.errstate(all="ignore"):
            off = c[self.rows[among]].astype(self.wide) - self.exact[among]
            return np.abs(self._modulo(off)) if self.bits else np.abs(off).astype(np.float64), among

    def _missed(self, c: Array) -> str | None:
        """Freivalds' test of integers: int64 wraps, which keeps the lowest bits."""
        for i in range(0, len(c), check.BLOCK):
            got = c[i : i + check.BLOCK].astype(np.int64) @ self.probe.x
            bad = self._modulo(got - self.probe.exact[i : i + len(got)])
            if bad.any():
                return f"row {i + int(np.argmax(bad != 0))} of C fails Freivalds' test"
        return None

    def _modulo(self, off: Array) -> Array:
        """The difference nearest to zero, modulo 2^bits."""
        shift = 64 - self.bits
        return (off << shift) >> shift


def _in_float64(given: Matrices) -> bool:
    """Whether float64 holds every sum of these integers."""
    largest = [max(-formats.get(x).smallest, formats.get(x).largest) for x in (given.product.a, given.product.b)]
    return given.sizes[2] * largest[0] * largest[1] < 2**53
