"""How far exp, log, tanh, erf and gelus of kernels are from the exact ones, and where their coefficients come from.

    python bench/elementary.py                  the largest errors: of f32 over all numbers, of f64 over samples
    python bench/elementary.py --coefficients   minimax polynomials by Remez's algorithm, in 80 digits of mpmath, which
                                                torch brings along

erf and gelu of f32 are compared with those of f64, which tests/ir/test_elementary.py compares with 40 decimal digits.

An error is |y - exact| in ulp: units in the last place of the exact result, which for subnormal ones is that of the
smallest normal number; of gelu for x < 0 that of x/2. The exact ones are NumPy's in float64 and in long double, of
which this needs 64 bits of precision (x86).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from mpmath import mp

from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Function, Kernel, f32, f64, i64, ptr, vec
from tilewright.ir.elementary import F32, F64, SHORT, TANH_SMALL
from tilewright.runtime.run import run

NAMES = ("exp", "log", "tanh", "erf", "gelu", "gelu_tanh", "sigmoid")
WITHOUT = ("erf", "gelu")  # a function of NumPy
BLOCK = 1 << 18  # numbers at once: they stay in cache
SAMPLES = 1 << 24  # of f64, in each range
RANGES = {"exp": ((-750, 712), (-1, 1), (-746, -708)), "log": ((0.5, 2), (0, 1e6)), "tanh": ((-1, 1), (-20, 20))}


def emit(name: str, T: Any, V: int) -> Function:
    """y[i] = exp(x[i]) in vectors of V; n is a multiple of it."""
    k = Kernel(f"{name}_{T}", n=i64, x=ptr(T), y=ptr(T))
    n, x, y = k.args
    with k.loop(n, step=V) as i:
        k.store(y + i, getattr(k, name)(k.load(x + i, vec(T, V), T.bytes)), T.bytes)
    return k.function


def errors(y: Any, exact: Any, scale: Any) -> Any:
    """In ulp of `scale`; infinite where an infinity, a NaN or a sign is wrong."""
    info = np.finfo(y.dtype)
    rounded = scale.astype(y.dtype)
    ulp = np.spacing(np.maximum(np.abs(rounded), info.smallest_normal)).astype(exact.dtype)
    over = np.abs(rounded) > np.abs(scale)  # which may have made it a power of two, where ulps double
    ulp = np.where(over & (np.abs(rounded) > info.smallest_normal) & (np.frexp(rounded)[0] == 0.5), ulp / 2, ulp)
    rounded = exact.astype(y.dtype)
    finite = np.isfinite(rounded) & np.isfinite(y)
    found = np.where(finite, np.abs(y.astype(exact.dtype) - exact) / ulp, np.where(y == rounded, 0, np.inf))
    both_nan = np.isnan(y) & np.isnan(exact)
    return np.where(both_nan, 0, np.where((np.signbit(y) == np.signbit(exact)) | (y == 0), found, np.inf))


def worst(name: str, T: Any, wide: Any, blocks: Iterator[Any]) -> tuple[float, Any]:
    """The largest error, and of which x."""
    function, y, found = emit(name, T, 32 // T.bytes), np.empty(BLOCK, T.numpy), (-1.0, None)
    exactly, exact = emit(name, f64, 4), np.empty(BLOCK)
    for x in blocks:
        run(function, BLOCK, x, y)
        if name in WITHOUT:
            run(exactly, BLOCK, x.astype(wide), exact)
        else:
            exact = OPERATIONS[name].numpy(x.astype(wide)).astype(wide)
        error = errors(y, exact, np.where(x < 0, x.astype(wide) / 2, exact) if "gelu" in name else exact)
        at = int(error.argmax())
        if error[at] > found[0]:
            found = float(error[at]), x[at]
    return found


def every_f32() -> Iterator[Any]:
    for start in range(0, 1 << 32, BLOCK):
        yield np.arange(start, start + BLOCK, dtype=np.uint32).view(np.float32)


def some_f64(name: str) -> Iterator[Any]:
    """Errors in each range, and over all patterns of bits."""
    rng = np.random.default_rng(1)
    for _ in range(SAMPLES // BLOCK):
        for low, high in RANGES[name]:
            yield rng.uniform(low, high, BLOCK)
        yield rng.integers(0, 1 << 64, BLOCK, dtype=np.uint64).view(np.float64)


# ---- coefficients

Real = Any                      # of mpmath


def remez(f: Callable[[Real], Real], low: Real, high: Real, degree: int,
          weight: Callable[[Real], Real] = lambda x: 1) -> tuple[list[Real], Real]:
    """The polynomial whose largest error against f, times `weight`, is the smallest, and that error."""
    n, f = degree + 2, cache(f)
    points = _chebyshev(low, high, n - 1)
    for _ in range(12):
        rows = [[*(x**j for j in range(degree + 1)), (-1)**i / weight(x)] for i, x in enumerate(points)]
        *c, _ = mp.lu_solve(mp.matrix(rows), mp.matrix([f(x) for x in points]))
        runs: list[tuple[Real, Real]] = []  # (error, x): the largest error between two changes of its sign
        for x in _chebyshev(low, high, 40 * n):
            error = (mp.polyval(c[::-1], x) - f(x)) * weight(x)
            if not runs or (runs[-1][0] > 0) != (error > 0):
                runs.append((error, x))
            elif abs(error) > abs(runs[-1][0]):
                runs[-1] = error, x
        sizes = [abs(error) for error, _ in runs]
        if len(runs) < n or max(sizes) < min(sizes) * 1.0001:
            break
        first = max(range(len(runs) - n + 1), key=lambda i: min(sizes[i : i + n]))
        points = [x for _, x in runs[first : first + n]]
    return c, max(sizes)


def _chebyshev(low: Real, high: Real, intervals: int) -> list[Real]:
    """Points that are dense at the ends."""
    return [(low + high) / 2 - (high - low) / 2 * float(np.cos(np.pi * i / intervals)) for i in range(intervals + 1)]


def _exp(r: Real) -> Real:
    return (mp.exp(r) - 1 - r) / (r * r) if abs(r) > 1e-25 else mp.mpf(1) / 2


def _log(z: Real) -> Real:
    return (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z if z > 1e-25 else mp.mpf(2) / 3


def _tanh(y: Real) -> Real:
    return (mp.tanh(mp.sqrt(y)) / mp.sqrt(y) - 1) / y if y > 1e-25 else -mp.mpf(1) / 3


def _root(x: Real) -> Real:
    return mp.sqrt(mp.erfc(x))


def _erf_small(z: Real) -> Real:
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1 if z > 1e-40 else 2 / mp.sqrt(mp.pi) - 1


def coefficients() -> None:
    mp.dps = 80
    little = mp.mpf("1.0001")  # beyond the range, for how it is rounded
    r, s = mp.log(2) / 2 * little, (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * little

    # f32's polynomial of exp is short: what counts is its part r^2 of e^r
    for name, f, low, high, degrees, weight in (
        ("exp", _exp, -r, r, (4, 10), lambda x: x * x + mp.mpf("0.001")),
        ("log", _log, mp.mpf(0), s * s, (3, 6), lambda x: 1),
        ("tanh", _tanh, mp.mpf(0), mp.mpf(str(TANH_SMALL)) ** 2, (4, 10), lambda x: 1),
    ):
        for T, degree in zip((np.float32, np.float64), degrees):
            show_fit(f"{name} {T.__name__}", T, remez(f, low, high, degree, weight if T is np.float32 else lambda x: 1))
    # Of 1 - erf the error of erf counts, of gelu's polynomial that of gelu, of erf near 0 that of f32's.
    # The constant of f32's 1 - erf, near 1, is rounded before the other coefficients are fitted.
    first = mp.mpf(float.fromhex("0x1.017a48p0"))
    for T, F, near, far, f, weight in (
        (np.float32, F32, 6, 6, lambda x: (mp.sqrt(_root(x)) - first) / x,
         lambda x: 4 * x * _root(x) * mp.sqrt(_root(x)) / mp.erf(x)),
        (np.float64, F64, 10, 18, lambda x: -mp.log(mp.erfc(x)), lambda x: mp.erfc(x) / mp.erf(x)),
    ):
        small, end = mp.mpf(str(F.erf_small)), mp.mpf(str(F.erf_end))
        of_erf = (lambda z: 1 / (1 + _erf_small(z))) if F is F32 else (lambda z: 1)
        show_fit(f"erf {T.__name__}", T, remez(_erf_small, mp.mpf(0), small * small, near, of_erf))
        show_fit(f"erfc {T.__name__}", T, remez(f, small, end, far, weight))
    half = mp.sqrt(mp.mpf(1) / 2)
    show_fit("gelu float32", np.float32, remez(
        lambda t: (_root(t * half) - 1) / t, mp.mpf("0.01"), mp.mpf("5.6"), 11,
        lambda t: 2 * t * _root(t * half) / (1 + mp.erf(t * half))))
    for name, bits in SHORT:
        short_coefficients(name, bits)


def show_fit(name: str, T: Any, fitted: tuple[list[Real], Real]) -> None:
    c, error = fitted
    print(f"{name}, error {float(error):.2e}:", *(float(T(float(x))).hex() for x in c))


def short_coefficients(name: str, bits: int) -> None:
    """Errors of gelus that are rounded to so many bits (ir/elementary.py). What counts is the error of the gelu
    of x and of -x beside the larger of the latter times 2^-(bits + 5) and of 2^-(bits + 11): 1 is allowed. At the end
    the power has to be nothing beside 1."""
    short, half, slope = SHORT[name, bits], mp.sqrt(mp.mpf(1) / 2), mp.sqrt(8 / mp.pi)
    power, relative, least = 1 << short.squares, mp.mpf(2) ** -(bits + 5), mp.mpf(2) ** -(bits + 11)

    @cache
    def rest(t: Real) -> Real:
        if name == "gelu":
            return mp.erfc(t * half)
        return 2 / (mp.exp(slope * (t + mp.mpf("0.044715") * t**3)) + 1)

    def root(t: Real) -> Real:
        return mp.root(rest(t), power)

    def weight(t: Real) -> Real:
        allowed = max(relative * rest(t) / 2, min(least / t, relative / 2)) * 2 / power  # of x, and of the power
        return 1 / min(allowed * root(t) / rest(t), root(t) / (3 * power))

    show_fit(f"{name} for {bits} bits", np.float32, remez(root, mp.mpf("1e-9"), mp.mpf(short.end),
                                                      len(short.coefficients) - 1, weight))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coefficients", action="store_true")
    parser.add_argument("--only", choices=NAMES, nargs="*", default=NAMES)
    options = parser.parse_args()
    if options.coefficients:
        coefficients()
        return
    with np.errstate(all="ignore"):
        for name in options.only:
            of_f64 = f64, np.longdouble, some_f64(name)
            of_f32 = f32, np.float64, every_f32()
            for T, wide, blocks in (of_f32,) if name in WITHOUT else (of_f64, of_f32):
                error, x = worst(name, T, wide, blocks)
                print(f"{name} {T}: {error:.3f} ulp, of {float(x).hex()}", flush=True)


if __name__ == "__main__":
    main()
