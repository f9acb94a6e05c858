"""What a product must be: integers exactly, floats between two bounds, by NumPy's long double and wrapping integers.

The bounds are those of docs/formats.md: k u times the sum of the products' sizes, u being 2^-24 or 2^-53, and a few u
for alpha, beta, the last addition and the conversion of integers that a float does not hold. Rounding to a narrower
format is monotonic, so that a right result lies between the rounded bounds; where the bounds are equal it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright import formats
from tilewright.formats import Bool, Integer

LD = np.longdouble
Array = np.ndarray


def is_whole(dtype: np.dtype) -> bool:
    """Integers and bool."""
    return isinstance(formats.get(dtype), (Integer, Bool))


@dataclass
class Product:
    """alpha * (a @ b) + beta * c, for real scalars; `c` has the shape of the result. `whole`: the data are small
    whole numbers."""

    a: Array
    b: Array
    c: Array | None
    alpha: float | int
    beta: float | int
    whole: bool = False
    flushed: bool = False  # numbers below 2^-126 may count as zero
    relative: float = 0.0  # a bound of its own beside k u, for `algorithm`

    def check(self, got: Array, *chain: np.dtype) -> None:
        """AssertionError unless `got` is this product, rounded to the first dtype, then to the next and so on."""
        result, k = chain[0], self.a.shape[-1]
        c = self.c if self.beta else None
        if is_whole(result) and all(x is None or is_whole(x.dtype) for x in (self.a, self.b, c)):
            want = self._modulo(result)
            for dtype in chain[1:]:
                want = _cast(want, dtype)
            _equal(got, want)
            return
        sums = formats.accumulator(*(x.dtype for x in (self.a, self.b, self.c) if x is not None), result).dtype
        with np.errstate(all="ignore"):  # scalars have the format of the sums
            alpha, beta = (LD(np.array(x, _real(sums))) for x in (self.alpha, self.beta))
        # As in BLAS: where alpha or k is 0, the other one is not looked at, nor c where beta is.
        a, b = (self.a, self.b) if alpha and k else (self.a[..., :0], self.b[..., :0, :])
        c = None if c is None or not beta else c.astype(sums) if sums.kind == "c" else c
        u, most = np.finfo(sums).eps / 2, LD(np.finfo(sums).max)
        parts, real = _parts(a, b), False
        if got.dtype.kind == "c" and len(parts) == 1:
            parts.append((np.zeros_like(parts[0][0]), np.zeros_like(parts[0][0])))
            real = True
        for part, (total, size) in enumerate(parts):
            with np.errstate(all="ignore"):
                tiny = LD(np.finfo(sums).smallest_subnormal) if not self.flushed else LD(2.0**-126)
                error = 1.01 * ((2 * k if sums.kind == "c" else k) + 8) * u * size + self.relative * size
                error = np.where(size > 0, error + 4 * (k + 3) * tiny, 0)
                if self.whole:
                    error = np.where(size < 0.5 / u, 0, error)
                # The imaginary part of a product of real numbers is 0, whatever alpha is.
                scaled = alpha and k and not (real and part)
                ends = [alpha * (total - error), alpha * (total + error)] if scaled else [total, total]
                # What says nothing: sums that may overflow on their way, block by block of k, and what may be 0 * inf.
                free = (1.01 * size * (max(1, abs(alpha)) if np.isfinite(alpha) else 1) >= most) & ~np.isnan(total)
                if scaled and not np.isfinite(alpha):
                    free |= (total - error <= 0) & (total + error >= 0) & (error > 0)
                added, room = LD(0), LD(0)
                if (add := _part(c, part)) is not None:
                    # Blocks of k are added to beta * c one after another, and each addition is rounded.
                    added = beta * _as_ld(add)
                    room = np.where(np.isfinite(added), (k + 8) * u * np.abs(added), 0)
                    free |= np.isfinite(added) & (np.abs(added) >= most / 2)
                if scaled and np.isfinite(alpha):
                    room = room + 4 * u * np.abs(alpha) * size
                exact = self.whole and all(float(x).is_integer() for x in (alpha, beta))
                limit = float(np.max(np.where(np.isfinite(added), np.abs(added), 0) + abs(alpha) * size, initial=0))
                room = LD(0) if exact and limit < 0.5 / u else room + np.where(room > 0, 4 * tiny, 0)
                _between(_part(got, part), np.fmin(*ends) + added - room, np.fmax(*ends) + added + room, free,
                         [_real(d) for d in (sums, *chain)])

    def _modulo(self, result: np.dtype) -> Array:
        def bits(x: Array) -> Array:
            return x.astype(np.uint64 if x.dtype == np.uint64 else np.int64).astype(np.uint64)
        if isinstance(formats.get(result), Bool):
            count = (self.a.astype(np.int64) @ self.b.astype(np.int64)).astype(object) * int(self.alpha)
            if self.beta:
                count = count + int(self.beta) * self.c.astype(np.int64).astype(object)
            return (count % 2**32 != 0).astype(bool)  # sums have 32 bits
        with np.errstate(all="ignore"):
            total = np.matmul(bits(self.a), bits(self.b)) * np.uint64(int(self.alpha) % 2**64)
            if self.beta:
                total = total + bits(self.c) * np.uint64(int(self.beta) % 2**64)
        return _cast(total, result)


def _cast(x: Array, dtype: np.dtype) -> Array:
    """The lowest bits of whole numbers; anything else as NumPy casts. Formats of less than a byte by int64."""
    if x.dtype.kind in "iu" and isinstance(formats.get(dtype), Integer) and formats.get(dtype).bits < 8:
        f = formats.get(dtype)
        low = x.astype(np.int64) & (2**f.bits - 1)
        return np.where(low > f.largest, low - 2**f.bits, low).astype(dtype)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _equal(got: Array, want: Array) -> None:
    bad = got != want
    if got.dtype.kind in "fcV":
        bad &= ~((got != got) & (want != want))
    if np.any(bad):
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(f"{np.count_nonzero(bad)} of {bad.size} elements differ; at {where} there is "
                             f"{got[where]}, and should be {want[where]}")


def _parts(a: Array, b: Array) -> list[tuple[Array, Array]]:
    """(the product, the sum of the products' sizes), of the real part and of the imaginary one if there is one."""
    ar, ai, br, bi = _part(a, 0), _part(a, 1), _part(b, 0), _part(b, 1)
    with np.errstate(all="ignore"):
        real, real_size = _times(ar, br)
        imaginary = imaginary_size = None
        if ai is not None and bi is not None:
            other, other_size = _times(ai, bi)
            real, real_size = real - other, real_size + other_size
        for x, y in (ar, bi), (ai, br):
            if x is not None and y is not None:
                more, more_size = _times(x, y)
                imaginary = more if imaginary is None else imaginary + more
                imaginary_size = more_size if imaginary_size is None else imaginary_size + more_size
    return [(real, real_size)] + ([(imaginary, imaginary_size)] if imaginary is not None else [])


def _times(x: Array, y: Array) -> tuple[Array, Array]:
    x, y = _as_ld(x), _as_ld(y)
    finite = [np.abs(np.where(np.isfinite(z), z, 0)) for z in (x, y)]
    return np.matmul(x, y), np.matmul(*finite)


def _part(x: Array | None, part: int) -> Array | None:
    if x is None or x.dtype.kind != "c":
        return x if part == 0 else None
    return x.imag if part else x.real


def _real(dtype: np.dtype) -> np.dtype:
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def _as_ld(x: Array) -> Array:
    return x.astype(np.float64 if x.dtype.kind not in "iufg" else x.dtype).astype(LD)


def _between(got: Array, low: Array, high: Array, free: Array, chain: list[np.dtype]) -> None:
    either = (low < 0) & (high > 0)
    for dtype in chain:
        low, high = _cast(low, dtype), _cast(high, dtype)
    free = free | either & np.isnan(_as_ld(low)) & np.isnan(_as_ld(high))  # too large a number of either sign is nan
    low, high, g = (_as_ld(x) for x in (low, high, got))
    above, below = ~np.isnan(low) & (g >= low), ~np.isnan(high) & (g <= high)
    overflown = np.isnan(low) | np.isnan(high)          # or nan altogether, and then nothing else is right
    bad = ~(np.where(overflown, np.isnan(g) | above | below, above & below) | free)
    if np.any(bad):
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(f"{np.count_nonzero(bad)} of {bad.size} elements are wrong; at {where} there is "
                             f"{g[where]}, and should be from {low[where]} to {high[where]}")
