"""How far exp, log, tanh, erf and gelus of kernels are from the exact ones, and where their coefficients come from.

    python bench/elementary.py                  the largest errors: of f32 over all numbers, of f64 over samples
    python bench/elementary.py --coefficients   minimax polynomials by Remez's algorithm, in 80 decimal digits

erf and gelu of f32 are compared with those of f64, which tests/ir/test_elementary.py compares with 40 decimal digits.

An error is |y - exact| in ulp: units in the last place of the exact result, which for subnormal ones is that of the
smallest normal number; of gelu for x < 0 that of x/2. The exact ones are NumPy's in float64 and in long double, of
which this needs 64 bits of precision (x86).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal, getcontext
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Function, Kernel, f32, f64, i64, ptr, vec
from tilewright.ir.elementary import F32, F64, TANH_SMALL
from tilewright.ir.elementary_rounded import SHORT
from tilewright.runtime.run import run

NAMES = ("exp", "log", "tanh", "erf", "gelu", "gelu_tanh", "sigmoid")
WITHOUT = ("erf", "gelu")  # a function of NumPy
TWO_PER_ROOT_OF_PI = Decimal("1.12837916709551257389615890312154517168810125865799771368817144342128493688")
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
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
    """Of each range, and of all patterns of bits."""
    rng = np.random.default_rng(1)
    for _ in range(SAMPLES // BLOCK):
        for low, high in RANGES[name]:
            yield rng.uniform(low, high, BLOCK)
        yield rng.integers(0, 1 << 64, BLOCK, dtype=np.uint64).view(np.float64)


# ---- coefficients


def remez(f: Callable[[Decimal], Decimal], low: Decimal, high: Decimal, degree: int,
          weight: Callable[[Decimal], Decimal] = lambda x: Decimal(1)) -> tuple[list[Decimal], Decimal]:
    """The polynomial whose largest error against f, times `weight`, is the smallest, and that error."""
    n = degree + 2
    points = _chebyshev(low, high, n - 1)
    for _ in range(12):
        rows = [[Decimal(1), *(x**j for j in range(1, degree + 1)), Decimal((-1) ** i) / weight(x)]
                for i, x in enumerate(points)]
        *c, _ = _solve(rows, [f(x) for x in points])
        runs: list[tuple[Decimal, Decimal]] = []  # (error, x): the largest error between two changes of its sign
        for x in _chebyshev(low, high, 40 * n):
            error = (_horner(c, x) - f(x)) * weight(x)
            if not runs or (runs[-1][0] > 0) != (error > 0):
                runs.append((error, x))
            elif abs(error) > abs(runs[-1][0]):
                runs[-1] = error, x
        sizes = [abs(error) for error, _ in runs]
        if len(runs) < n or max(sizes) < min(sizes) * Decimal("1.0001"):
            break
        first = max(range(len(runs) - n + 1), key=lambda i: min(sizes[i : i + n]))
        points = [x for _, x in runs[first : first + n]]
    return c, max(sizes)


def _horner(c: list[Decimal], x: Decimal) -> Decimal:
    total = Decimal(0)
    for each in reversed(c):
        total = total * x + each
    return total


def _chebyshev(low: Decimal, high: Decimal, intervals: int) -> list[Decimal]:
    """Points that are dense at the ends."""
    places = (Decimal(float(np.cos(np.pi * i / intervals))) for i in range(intervals + 1))
    return [(low + high) / 2 - (high - low) / 2 * place for place in places]


def _solve(rows: list[list[Decimal]], right: list[Decimal]) -> list[Decimal]:
    rows = [[*row, y] for row, y in zip(rows, right)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(len(rows)):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i])]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def _exp(r: Decimal) -> Decimal:
    return (r.exp() - 1 - r) / (r * r) if abs(r) > Decimal("1e-25") else Decimal("0.5")


def _log(z: Decimal) -> Decimal:
    if z < Decimal("1e-25"):
        return Decimal(2) / 3
    s = z.sqrt()
    return (((1 + s) / (1 - s)).ln() / s - 2) / z


def _tanh(y: Decimal) -> Decimal:
    if y < Decimal("1e-25"):
        return -Decimal(1) / 3
    x = y.sqrt()
    e = (2 * x).exp()
    return ((e - 1) / (e + 1) / x - 1) / y


@cache
def _erf(x: Decimal) -> Decimal:
    term, total, n = x, x, 0
    while abs(term) > abs(total).scaleb(-78):
        n += 1
        term *= 2 * x * x / (2 * n + 1)
        total += term
    return total * (-x * x).exp() * TWO_PER_ROOT_OF_PI


def _root(x: Decimal) -> Decimal:
    return (1 - _erf(x)).sqrt()


def _erf_small(z: Decimal) -> Decimal:
    return _erf(z.sqrt()) / z.sqrt() - 1 if z > Decimal("1e-40") else TWO_PER_ROOT_OF_PI - 1


def coefficients() -> None:
    getcontext().prec = 80
    little = Decimal("1.0001")  # beyond the range, for how it is rounded
    r, s = Decimal(2).ln() / 2 * little, (Decimal(2).sqrt() - 1) / (Decimal(2).sqrt() + 1) * little

    def one(x: Decimal) -> Decimal:
        return Decimal(1)

    # f32's polynomial of exp is short: what counts is its part r^2 of e^r
    for name, f, low, high, degrees, weight in (
        ("exp", _exp, -r, r, (4, 10), lambda x: x * x + Decimal("0.001")),
        ("log", _log, Decimal(0), s * s, (3, 6), one),
        ("tanh", _tanh, Decimal(0), Decimal(str(TANH_SMALL)) ** 2, (4, 10), one),
    ):
        for T, degree in zip((np.float32, np.float64), degrees):
            c, error = remez(f, low, high, degree, weight if T is np.float32 else one)
            print(f"{name} {T.__name__}, error {error:.2e}:", *(float(T(x)).hex() for x in c))
    # Of 1 - erf the error of erf counts, of gelu's polynomial that of gelu, of erf near 0 that of f32's.
    # The constant of f32's 1 - erf, near 1, is rounded before the other coefficients are fitted.
    first = Decimal(float.fromhex("0x1.017a48p0"))
    for T, F, near, far, f, weight in (
        (np.float32, F32, 6, 6, lambda x: (_root(x).sqrt() - first) / x,
         lambda x: 4 * x * _root(x) * _root(x).sqrt() / _erf(x)),
        (np.float64, F64, 10, 18, lambda x: -(1 - _erf(x)).ln(), lambda x: (1 - _erf(x)) / _erf(x)),
    ):
        small, end = Decimal(str(F.erf_small)), Decimal(str(F.erf_end))
        of_erf = (lambda z: 1 / (1 + _erf_small(z))) if F is F32 else (lambda z: Decimal(1))
        for name, (c, error) in (("erf", remez(_erf_small, Decimal(0), small * small, near, of_erf)),
                                 ("erfc", remez(f, small, end, far, weight))):
            print(f"{name} {T.__name__}, error {error:.2e}:", *(float(T(x)).hex() for x in c))
    half = Decimal("0.5").sqrt()
    c, error = remez(lambda t: (_root(t * half) - 1) / t, Decimal("0.01"), Decimal("5.6"), 11,
                     lambda t: 2 * t * _root(t * half) / (1 + _erf(t * half)))
    print(f"gelu float32, error {error:.2e}:", *(float(np.float32(x)).hex() for x in c))
    for name, bits in SHORT:
        short_coefficients(name, bits)


def short_coefficients(name: str, bits: int) -> None:
    """Of gelus that are rounded to so many bits (ir/elementary_rounded.py). What counts is the error of the gelu of x
    and of -x beside the larger of the latter times 2^-(bits + 5) and of 2^-(bits + 11): 1 is allowed. At the end the
    power has to be nothing beside 1."""
    short, half, slope = SHORT[name, bits], Decimal("0.5").sqrt(), (Decimal(8) / PI).sqrt()
    power, relative, least = 1 << short.squares, Decimal(2) ** -(bits + 5), Decimal(2) ** -(bits + 11)

    @cache
    def rest(t: Decimal) -> Decimal:
        if name == "gelu":
            return 1 - _erf(t * half)
        return 2 / ((slope * (t + Decimal("0.044715") * t**3)).exp() + 1)

    def root(t: Decimal) -> Decimal:
        return (rest(t).ln() / power).exp()

    def weight(t: Decimal) -> Decimal:
        allowed = max(relative * rest(t) / 2, min(least / t, relative / 2)) * 2 / power  # of x, and of the power
        return 1 / min(allowed * root(t) / rest(t), root(t) / (3 * power))

    c, error = remez(root, Decimal("1e-9"), Decimal(short.end), len(short.coefficients) - 1, weight)
    print(f"{name} for {bits} bits, error {error:.2f}:", *(float(np.float32(x)).hex() for x in c))


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
