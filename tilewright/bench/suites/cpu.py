"""The suites of `tilewright bench` on a CPU, in the order they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.bench.cases import Case
from tilewright.problem import Gemm

SQUARE = (64, 128, 256, 512, 1024, 2048, 4096)
AWKWARD = ((97, 96), (251, 256), (509, 512), (1021, 1024), (2039, 2048))  # a prime, and the round size next to it
LADDER = tuple(range(200, 10001, 200))  # the article's sizes
LADDER_QUICK = (200, 400, 600, 1000, 1400, 2000)
THIN = (1, 2, 4, 8, 16, 32, 64)
DTYPES = ("f32", "f64")


def squares(suite: str, sizes: Iterable[int], dtype: str) -> list[Case]:
    return [Case(suite, Gemm(n, n, n, dtype)) for n in sizes]


def _awkward(dtype: str, tile: tuple[int, int]) -> list[Case]:
    """Primes beside their round neighbours, and one past a whole number of register tiles beside that number."""
    mr, nr = tile
    pairs = [((p, p, p), (r, r, r)) for p, r in AWKWARD]
    for target in (128, 512, 1024):
        m, n = max(1, target // mr) * mr, max(1, target // nr) * nr
        pairs.append(((m + 1, n + 1, target), (m, n, target)))
    return [Case("awkward", Gemm(*odd, dtype), beside=Gemm(*even, dtype)) for odd, even in pairs]


def _layouts(dtype: str) -> list[Case]:
    return [
        Case("layouts", Gemm(n, n, n, dtype, layout=layout), beside=Gemm(n, n, n, dtype))
        for n in (512, 1024, 2048)
        for layout in ("nt", "tn", "tt")
    ]


def _skinny(dtype: str, big: int = 4096) -> list[Case]:
    rows = [Gemm(m, big, big, dtype, layout=layout) for layout in ("nn", "nt") for m in THIN]
    columns = [Gemm(big, n, big, dtype) for n in THIN]
    depths = [Gemm(big // 2, big // 2, k, dtype) for k in THIN]
    return [Case("skinny", problem) for problem in rows + columns + depths]


def _cold(dtype: str) -> list[Case]:
    return [Case("cold", Gemm(n, n, n, dtype), cold=True) for n in (64, 128, 256, 512)]


def suites(tile: tuple[int, int] = (14, 32)) -> dict[str, Callable[[str], list[Case]]]:
    """Name -> (dtype -> its cases).  `tile` is the register tile (mr, nr) that "one past a tile" refers to."""
    return {
        "square": lambda dtype: squares("square", SQUARE, dtype),
        "awkward": lambda dtype: _awkward(dtype, tile),
        "layouts": _layouts,
        "skinny": _skinny,
        "overhead": lambda dtype: squares("overhead", (4, 8, 16, 32, 64), dtype),
        "cold": _cold,
        "article": lambda dtype: squares("article", LADDER, dtype),
    }


DEFAULT_SUITES = ("square", "awkward", "layouts", "skinny", "overhead")


def cases(names: Sequence[str], dtypes: Sequence[str], tile: tuple[int, int] = (14, 32)) -> list[Case]:
    """The cases of the named suites in every dtype, small before large within a suite."""
    known = suites(tile)
    for kind, given, allowed in (("suite", names, known), ("dtype", dtypes, DTYPES)):
        unknown = [name for name in given if name not in allowed]
        if unknown:
            raise ValueError(f"unknown {kind} {unknown[0]!r}; it may be {', '.join(allowed)}")
    return [case for name in names for dtype in dtypes for case in known[name](dtype)]
