"""An answer is compared with a wider product before its speed means anything.

Up to 512^3 every element is compared, above that some rows, and all others pass Freivalds' test: C x = A (B x) with x
of random signs sees every element of C, costs O(n^2), and needs no second matrix multiplication to be trusted.

Integers must be exact modulo the result's 2^bits.  Of floats, the error is max |C - A B| / (u |A| |B|), where |A| |B|
is what the dot products would be without cancellation, A B is taken in float64 (in long double for results of f64 and
c128) and u is half the gap at 1 of the result's format: the unit of the bounds of docs/formats.md, k u |A| |B| for sums
in the result's own format.  In the worst case rounding errors all add up.  Of random data with mean zero the partial
sums stay small and so do their errors, 0.3 eps |A| |B| whatever k is; 8 is allowed, and a missing term stands out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.formats import Complex, Float, Integer
from tilewright.formats.quantized import Quantized, dequantize
from tilewright.lab.measure.operands import Array, Operands
from tilewright.problem import Gemm
from tilewright.text import plural

FULL_LIMIT = 1 << 27  # m n k up to which a float64 product is cheap enough (512^3)
RANDOM = 8.0  # eps |A| |B| allowed for random data
BLOCK = 256  # rows converted to float64 at a time: C may be most of the memory
COLUMNS = 1024  # likewise, of B in long double
ROWS, SLOW_ROWS = 64, 8  # compared element by element; the second where the reference has no BLAS
# u |A| |B| allowed for the sums of random data: that of 8-bit patterns is larger, whose exponents are all alike
ALL_EXPONENTS = 32.0
# What algorithms leave out, of |a| |b| at most: three products of bf16 terms the second terms times each other, and the
# third ones; xf32 the last 13 bits of either operand.
LEFT_OUT = {"bf16_bf16_f32_x3": 3 * 2.0**-16, "xf32": 2 * 2.0**-10}


def wrong(a: Array, b: Array, c: Array, *, random: bool = True) -> str | None:
    """None if the 2-D c, of floats, is a @ b, else a sentence that says where and by how much it is not.

    `random=False` allows the worst case of rounding, for data of which nothing is known.
    """
    (m, k), n = a.shape, b.shape[1]
    if c.shape != (m, n):
        return f"the result has shape {c.shape}, not {(m, n)}"
    if c.size == 0:
        return None
    return Reference(Operands(Gemm(m, n, k, a.dtype, b.dtype, c.dtype), a, b, c), random=random).wrong(c)


def _off(c: Array, exact: Array) -> Array:
    """|c - exact| in exact's dtype: 0 where both are nan or the same infinity, inf where only one is."""
    got, rounded = c.astype(exact.dtype), exact.astype(c.dtype).astype(exact.dtype)
    off = np.abs(got - exact).astype(np.float64)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(np.isfinite(off), off, np.where(same, 0.0, np.inf))


def _worst(off: Array, allowed: Array) -> tuple[int, ...] | None:
    """Where the largest multiple of what is allowed is, if that is more than 1."""
    bad = (off != 0) & ~((off <= allowed) & np.isfinite(off))
    if not bad.any():
        return None
    excess = np.where(bad, np.nan_to_num(off / allowed, nan=np.inf, posinf=np.inf), -1.0)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))


def _modulo(off: Array, bits: int) -> Array:
    """The difference nearest to zero, modulo 2^bits."""
    shift = 64 - bits
    return (off << shift) >> shift


class Probe:
    """Freivalds' test of any number of results of a @ b: what C x must be, for an x [n] of random signs.

    `wide` is the dtype that this is computed in: float64, complex128 for complex numbers, int64, which wraps and so
    keeps the lowest bits, for integers.
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

    def missed(self, c: Array, factor: float, bits: int = 0) -> str | None:
        """None if C x, of the first rows or all, is as it must be, but for factor * |A| (|B| 1); of integers modulo
        2^bits."""
        for i in range(0, c.shape[0], BLOCK):
            got = c[i : i + BLOCK].astype(self.wide) @ self.x
            exact, allowed = self.exact[i : i + len(got)], factor * self.size[i : i + len(got)]
            if bits:
                off = np.abs(_modulo(got - exact, bits))
            else:
                # An infinity in the data makes inf or nan of these sums, whichever way the signs fall.
                off = _off(*(np.where(np.isfinite(sums), sums, np.nan) for sums in (got, exact)))
            if (at := _worst(off, allowed)) is not None:
                by = "" if bits else f": off by {off[at]:.2g}, {allowed[at]:.2g} allowed"
                return f"row {i + at[0]} of C fails Freivalds' test{by}"
        return None


def difference(got: Array, expected: Array) -> str:
    """Where an exact result differs, as a sentence that names the first element; "" if it is right."""
    wrong = np.argwhere(~(got == expected))
    if not len(wrong):
        return ""
    at = tuple(map(int, wrong[0]))
    return (f"{len(wrong)} of {plural(got.size, 'element')} differ, the first is C[{', '.join(map(str, at))}]: it is "
            f"{got[at].item()!r}, and {expected[at].item()!r} is right")


class Reference:
    """What A B is, of operands without a batch; `error` and `wrong` judge any number of results, of all rows of A or of
    the first ones.

    Narrow results must be sums in f32 (or wider), rounded once, as docs/formats.md promises of tilewright; a peer may
    add up in that format itself, which its error shows.  `random=False`: as in `wrong`.
    """

    def __init__(self, given: Operands, algorithm: str | None = None, seed: int = 1, random: bool = True) -> None:
        given = replace(given, a=_numbers(given.a), b=_numbers(given.b))
        p, (m, n, k) = given.problem, given.sizes
        out = formats.get(p.out)
        real = out.part if isinstance(out, Complex) else out
        sums = formats.get(p.sums)
        sums = sums.part if isinstance(sums, Complex) else sums
        self.unit = real.eps / 2 if isinstance(real, Float) else 0.0
        own = sums.eps / 2 if isinstance(sums, Float) else 0.0
        worst, plain = 2.0 * (k + 3), p.a == p.b == p.out and p.out in ("f32", "f64") and algorithm is None
        self.sums = own * (worst if not random else min(2 * RANDOM, worst) if plain else ALL_EXPONENTS)  # of |A| |B|
        self.sums += LEFT_OUT.get(algorithm or "", 0.0)
        self.sums_of_row = self.sums if not random else self.sums / max(n, 1) ** 0.5  # of |A| |B| 1: errors add up so
        self.rounding = self.unit if self.unit > own else 0.0  # for rounding the sums
        self.least = real.smallest_subnormal if isinstance(real, Float) else 0.0
        self.bits = out.bits if isinstance(out, Integer) else 0
        narrow = bool(self.bits) and _in_float64(given)
        slow = real.bits == 64 or (bool(self.bits) and not narrow)
        few = min(m, SLOW_ROWS if slow else ROWS)
        every = m * n * k <= (FULL_LIMIT >> 5 if slow else FULL_LIMIT)
        # The first rows are always among them: a slow peer is given no others.
        others = np.random.default_rng(seed).permutation(np.arange(few // 2, m))[: few - few // 2]
        self.rows = np.arange(m) if every else np.sort(np.append(np.arange(few // 2), others))
        with np.errstate(all="ignore"):  # a user's inf and nan travel through as they should
            a = given.a[self.rows]
            if self.bits:
                held = np.dtype(np.float64 if narrow else np.int64)
                self.exact, self.size = (a.astype(held) @ given.b.astype(held)).astype(np.int64), np.empty(0)
                probed: Any = np.int64
            else:
                letter, probed = ("c", np.complex128) if isinstance(out, Complex) else ("f", np.float64)
                wide = np.dtype({"f": np.longdouble, "c": np.clongdouble}[letter] if real.bits == 64 else probed)
                self.exact, self.size = _product(a, given.b, wide, np.dtype(probed))
            self.probe = None if every else Probe(given.a, given.b, seed, probed)

    def error(self, c: Array) -> float:
        """The largest error of the rows compared, in units of u |A| |B|; of integers the largest difference."""
        off, among = self._off(c)
        if self.bits:
            return float(off.max(initial=0))
        with np.errstate(all="ignore"):
            errors = np.where(off == 0, 0.0, off / (self.unit * self.size[among]))
        return float(np.nan_to_num(errors, nan=np.inf).max(initial=0.0))

    def wrong(self, c: Array, rounded_once: bool = True) -> str | None:
        """None if every element is right, as far as the format can tell, else a sentence that says where it is not."""
        off, among = self._off(c)
        with np.errstate(all="ignore"):
            if self.bits:
                at = _worst(off, np.zeros(off.shape))
                missed = self._at(c, at) if at else self.probe.missed(c, 0.0, self.bits) if self.probe else None
                return missed and f"{missed} modulo 2^{self.bits}"
            exact, size = np.abs(self.exact[among]).astype(np.float64), self.size[among]
            rounding = 1.5 * exact if rounded_once else RANDOM * size
            allowed = self.sums * size + self.rounding * rounding + self.least
            if (at := _worst(off, allowed)) is not None:
                return f"{self._at(c, at)} (tolerance {allowed[at]:.2g})"
            own = (1 if rounded_once else RANDOM) * self.rounding / max(c.shape[1], 1) ** 0.5
            return self.probe.missed(c, self.sums_of_row + own) if self.probe else None

    def _off(self, c: Array) -> tuple[Array, Array]:
        """|C - A B| of the rows compared, and which of self.rows they are: those that c has."""
        among = self.rows < len(c)
        got, exact = c[self.rows[among]], self.exact[among]
        with np.errstate(all="ignore"):
            return np.abs(_modulo(got.astype(np.int64) - exact, self.bits)) if self.bits else _off(got, exact), among

    def _at(self, c: Array, at: tuple[int, ...]) -> str:
        """An element in words; `at` counts the rows compared."""
        i, j = at
        row = int(self.rows[i])
        got, exact = c[row, j].item(), self.exact[i, j].item()
        kind = "" if self.bits or isinstance(exact, complex) else ".9g"
        return f"C[{row}, {j}] is {got:{kind}}, the reference is {exact:{kind}}"


def _numbers(x: Any) -> Array:
    return dequantize(x, "f64") if isinstance(x, Quantized) else x


def _product(a: Array, b: Array, wide: np.dtype[Any], kind: np.dtype[Any]) -> tuple[Array, Array]:
    """a b in the dtype `wide`, and |a| |b| of values in `kind`."""
    parts = [b[:, j : j + COLUMNS] for j in range(0, b.shape[1], COLUMNS)] or [b]
    size = np.abs(a.astype(kind))
    exact = [a.astype(wide) @ part.astype(wide) for part in parts]
    return np.hstack(exact), np.hstack([size @ np.abs(part.astype(kind)) for part in parts])


def _in_float64(given: Operands) -> bool:
    """Whether float64 holds every sum of these integers."""
    largest = [max(-formats.get(x).smallest, formats.get(x).largest) for x in (given.problem.a, given.problem.b)]
    return given.sizes[2] * largest[0] * largest[1] < 2**53
