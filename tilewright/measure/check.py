"""An answer is compared with float64 before its speed means anything.

Small products are compared element by element.  Large ones by Freivalds' test, C x = A (B x) in float64 with x of
random signs: it sees every element of C, costs O(n^2), and needs no second matrix multiplication to be trusted.

How far c may be off is measured in |A| |B|, what the dot products would be without cancellation.  In the worst case
rounding errors all add up (kernels.reference.error_bound: eps k |A| |B|).  Of random data with mean zero the partial
sums stay small and so do their errors, 0.3 eps |A| |B| whatever k is; 8 is allowed, and a missing term stands out.

`wrong` judges one f32 or f64 result.  `Reference` judges any number of results of one product of any formats: integers
must be exact modulo the result's 2^bits.  Of floats, its error is max |C - A B| / (u |A| |B|), where A B is taken in
float64 (in long double for results of f64 and c128) and u is half the gap at 1 of the result's format: the unit of the
bounds of docs/formats.md, k u |A| |B| for sums in the result's own format.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import formats
from tilewright.formats import Complex, Float, Integer
from tilewright.kernels import reference
from tilewright.measure.operands import Array, Operands

FULL_LIMIT = 1 << 27  # m n k up to which a float64 product is cheap enough (512^3)
RANDOM = 8.0  # eps |A| |B| allowed for random data
BLOCK = 256  # rows converted to float64 at a time: C may be most of the memory
COLUMNS = 1024  # likewise, of B in long double
ROWS, SLOW_ROWS = 64, 8  # compared element by element; the second where the reference has no BLAS
# u |A| |B| allowed for the sums of random data: that of 8-bit patterns is larger, whose exponents are all alike
ALL_EXPONENTS = 32.0
# Three products of bf16 terms leave out the second terms times each other, and the third ones: of |a| |b| at most this.
LEFT_OUT = {"bf16_bf16_f32_x3": 3 * 2.0**-16}


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
    return f"C[{at[0]}, {at[1]}] is {c[at]:.9g}, the float64 product is {exact[at]:.9g} (tolerance {allowed[at]:.2g})"


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


class Reference:
    """What A B is, of operands without a batch; `error` and `wrong` judge any number of results, of all rows of A or of
    the first ones.

    Up to 512^3 every element is compared, above that some rows, and all others pass Freivalds' test (Probe), which for
    integers is done modulo 2^bits too.  Narrow results must be sums in f32 (or wider), rounded once, as docs/formats.md
    promises of tilewright; a peer may add up in that format itself, which its error shows.
    """

    def __init__(self, given: Operands, algorithm: str | None = None, seed: int = 1) -> None:
        p, (m, n, k) = given.problem, given.sizes
        out = formats.get(p.out)
        real = out.part if isinstance(out, Complex) else out
        sums = formats.accumulator(p.a, p.b, p.out)
        sums = sums.part if isinstance(sums, Complex) else sums
        self.unit = real.eps / 2 if isinstance(real, Float) else 0.0
        own = sums.eps / 2 if isinstance(sums, Float) else 0.0
        plain = p.a == p.b == p.out and p.out in ("f32", "f64") and algorithm is None
        self.sums = min(2 * RANDOM, 2 * (k + 3)) * own if plain else ALL_EXPONENTS * own  # of |A| |B|
        self.sums += LEFT_OUT.get(algorithm or "", 0.0)
        self.rounding = self.unit if self.unit > own else 0.0  # for rounding the sums
        self.least = real.smallest_subnormal if isinstance(real, Float) else 0.0
        self.bits = out.bits if isinstance(out, Integer) else 0
        self.narrow = bool(self.bits) and _in_float64(given)
        slow = real.bits == 64 or (bool(self.bits) and not self.narrow)
        few = min(m, SLOW_ROWS if slow else ROWS)
        every = m * n * k <= (FULL_LIMIT >> 5 if slow else FULL_LIMIT)
        # The first rows are always among them: a slow peer is given no others.
        others = np.random.default_rng(seed).permutation(np.arange(few // 2, m))[: few - few // 2]
        self.rows = np.arange(m) if every else np.sort(np.append(np.arange(few // 2), others))
        self.wide = self._wide(real.bits, isinstance(out, Complex))
        with np.errstate(all="ignore"):
            self.exact, self.size = self._product(given.a[self.rows], given.b)
            probed = "i8" if self.bits else "c16" if isinstance(out, Complex) else "f8"
            self.probe = Probe(given.a, given.b, seed, np.dtype(probed))

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
        wide, size = a.astype(self.wide), np.abs(a.astype(kind))
        parts = [b[:, j : j + COLUMNS] for j in range(0, b.shape[1], COLUMNS)] or [b]
        exact = [wide @ part.astype(self.wide) for part in parts]
        return np.hstack(exact), np.hstack([size @ np.abs(part.astype(kind)) for part in parts])

    def error(self, c: Array) -> float:
        """The largest error of the rows compared, in units of u |A| |B|; of integers the largest difference."""
        off, among = self._off(c)
        if self.bits:
            return float(off.max(initial=0))
        with np.errstate(all="ignore"):
            found = np.where(off == 0, 0.0, off / (self.unit * self.size[among]))
        return float(np.nan_to_num(found, nan=np.inf).max(initial=0.0))

    def wrong(self, c: Array, rounded_once: bool = True) -> str | None:
        """None if every element is right, as far as the format can tell, else a sentence that says where it is not."""
        off, among = self._off(c)
        if self.bits:
            missed = self._at(c, off) if off.any() else self._missed(c)
            return missed and f"{missed} modulo 2^{self.bits}"
        exact, size = np.abs(self.exact[among]).astype(np.float64), self.size[among]
        rounding = 1.5 * exact if rounded_once else RANDOM * size
        allowed = self.sums * size + self.rounding * rounding + self.least
        if not (off <= allowed).all():
            excess = np.nan_to_num(off / allowed, nan=np.inf)
            worst = np.unravel_index(int(np.argmax(excess)), off.shape)
            return f"{self._at(c, excess)} (tolerance {allowed[worst]:.2g})"
        with np.errstate(all="ignore"):
            share = self.sums + (1 if rounded_once else RANDOM) * self.rounding
            return self.probe.missed(c, share / self.probe.x.size**0.5)

    def _at(self, c: Array, off: Array) -> str:
        """The element that is furthest off."""
        i, j = np.unravel_index(int(np.argmax(off)), off.shape)
        row = int(self.rows[self.rows < len(c)][i])
        got, exact = c[row, j].item(), self.exact[self.rows < len(c)][i, j].item()
        kind = "" if self.bits or isinstance(exact, complex) else ".9g"
        return f"C[{row}, {j}] is {got:{kind}}, the reference is {exact:{kind}}"

    def _off(self, c: Array) -> tuple[Array, Array]:
        """|C - A B| of the rows compared, and which of self.rows they are: those that c has."""
        among = self.rows < len(c)
        with np.errstate(all="ignore"):
            off = c[self.rows[among]].astype(self.wide) - self.exact[among]
            return np.abs(self._modulo(off)) if self.bits else np.abs(off).astype(np.float64), among

    def _missed(self, c: Array) -> str | None:
        """Freivalds' test of integers: int64 wraps, which keeps the lowest bits."""
        for i in range(0, len(c), BLOCK):
            got = c[i : i + BLOCK].astype(np.int64) @ self.probe.x
            bad = self._modulo(got - self.probe.exact[i : i + len(got)])
            if bad.any():
                return f"row {i + int(np.argmax(bad != 0))} of C fails Freivalds' test"
        return None

    def _modulo(self, off: Array) -> Array:
        """The difference nearest to zero, modulo 2^bits."""
        shift = 64 - self.bits
        return (off << shift) >> shift


def _in_float64(given: Operands) -> bool:
    """Whether float64 holds every sum of these integers."""
    largest = [max(-formats.get(x).smallest, formats.get(x).largest) for x in (given.problem.a, given.problem.b)]
    return given.sizes[2] * largest[0] * largest[1] < 2**53
