"""The suites of `tilewright bench gpu`, in the order they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.bench.cases import Case
from tilewright.bench.suites.cpu import squares
from tilewright.problem import Gemm

SWEEP = tuple(range(1024, 12801, 128))  # the article's sizes
SWEEP_QUICK = (1024, 2048, 4096, 8192, 12800)
SQUARE = tuple(range(1024, 8193, 1024))
SQUARE_QUICK = (1024, 2048, 4096, 8192)
ODD = (1000, 1536, 2039, 3000, 4100, 5000)
LAYOUTS = ("nn", "nt", "tn", "tt")
THIN = (16, 64, 128, 512)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336))  # (n, k) of a language model's layers
F64 = (2048, 3072, 4096, 6144, 8192)


def _odd(dtype: str) -> list[Case]:
    return [Case("odd", Gemm(n, n, n, dtype, layout=layout)) for n in ODD for layout in LAYOUTS]


def _skinny(dtype: str) -> list[Case]:
    return [Case("skinny", Gemm(m, n, k, dtype)) for n, k in WEIGHTS for m in THIN]


# Name -> (dtype -> its cases).
SUITES: dict[str, Callable[[str], list[Case]]] = {
    "sweep": lambda dtype: squares("sweep", SWEEP, dtype),
    "square": lambda dtype: squares("square", SQUARE, dtype),
    "odd": _odd,
    "skinny": _skinny,
    "f64": lambda dtype: squares("f64", F64, "f64"),
}
DTYPES = ("f32", "f64")


def named(texts: Sequence[str], dtype: str) -> list[Case]:
    """Cases that are written as MxNxK or MxNxK:LAYOUT."""
    found = []
    for text in texts:
        sizes, _, layout = text.partition(":")
        parts = sizes.split("x")
        if len(parts) != 3 or not all(p.isdecimal() and int(p) > 0 for p in parts) or layout not in ("", *LAYOUTS):
            raise ValueError(f"a case is written MxNxK or MxNxK:LAYOUT, such as 64x4096x4096:nt, not {text!r}")
        m, n, k = map(int, parts)
        found.append(Case("case", Gemm(m, n, k, dtype, layout=layout or "nn")))
    return found


def cases(
    names: Sequence[str], dtypes: Sequence[str] = ("f32",), sizes: Sequence[int] = (), quick: bool = False
) -> list[Case]:
    """The cases of the named suites; `sizes` instead of a suite's own, where it consists of squares."""
    for kind, given, allowed in (("suite", names, SUITES), ("dtype", dtypes, DTYPES)):
        unknown = [name for name in given if name not in allowed]
        if unknown:
            raise ValueError(f"unknown {kind} {unknown[0]!r} on a GPU; it may be {', '.join(allowed)}")
    found: list[Case] = []
    for name in names:
        for dtype in ("f64",) if name == "f64" else dtypes:
            square = name in ("sweep", "square", "f64")
            short = {"sweep": SWEEP_QUICK, "square": SQUARE_QUICK}.get(name) if quick else None
            own = sizes if square and sizes else short
            found += squares(name, own, dtype) if own else SUITES[name](dtype)
    return found
