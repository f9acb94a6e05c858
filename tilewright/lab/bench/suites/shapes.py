"""The suites of `tilewright bench` on a CPU and on a GPU, in the order they are shown, and the products of number
formats that `tilewright bench formats` times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright import formats
from tilewright.lab.bench.cases import Case, Product
from tilewright.lab.bench.suites import contractions
from tilewright.problem import Gemm

DTYPES = ("f32", "f64")
LAYOUTS = ("nn", "nt", "tn", "tt")
Suites = dict[str, Callable[[str], list[Case]]]  # name → (dtype → its cases)


def gemm(dtype: str, m: int, n: int, k: int, layout: str = "nn") -> Gemm:
    """`dtype`: a format of A and B, or the formats of A, B and the result, as in bf16-bf16-f32."""
    a, b, out = (*dtype.split("-"), None, None)[:3]
    return Gemm(m, n, k, a, b, out, layout)


def squares(suite: str, sizes: Iterable[int], dtype: str, layout: str = "nn") -> list[Case]:
    return [Case(suite, gemm(dtype, n, n, n, layout)) for n in sizes]


def _checked(names: Sequence[str], known: Suites, dtypes: Sequence[str], where: str = "",
             formats: Sequence[str] = DTYPES) -> None:
    for kind, given, allowed in (("suite", names, known), ("dtype", dtypes, formats)):
        unknown = [name for name in given if name not in allowed]
        if unknown:
            raise ValueError(f"unknown {kind} {unknown[0]!r}{where}; it may be {', '.join(allowed)}")


# ---- on a CPU

SQUARE = (64, 128, 256, 512, 1024, 2048, 4096)
AWKWARD = ((97, 96), (251, 256), (509, 512), (1021, 1024), (2039, 2048))  # a prime, and the round size next to it
LADDER = tuple(range(200, 10001, 200))  # the article's sizes
LADDER_QUICK = (200, 400, 600, 1000, 1400, 2000)
THIN = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_SUITES = ("square", "awkward", "layouts", "skinny", "overhead")


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


def suites(tile: tuple[int, int] = (14, 32)) -> Suites:
    """`tile` is the register tile (mr, nr) that "one past a tile" refers to."""
    return {
        "square": lambda dtype: squares("square", SQUARE, dtype),
        "awkward": lambda dtype: _awkward(dtype, tile),
        "layouts": _layouts,
        "skinny": _skinny,
        "overhead": lambda dtype: squares("overhead", (4, 8, 16, 32, 64), dtype),
        "cold": lambda dtype: [Case("cold", Gemm(n, n, n, dtype), cold=True) for n in (64, 128, 256, 512)],
        "contractions": contractions.cases,
        "article": lambda dtype: squares("article", LADDER, dtype),
    }


def within(sizes: Sequence[int], seconds: float, cost: Callable[[int], float]) -> list[int]:
    """Sizes that take so long together: up to the largest that takes no more than a third of it, evenly spaced and as
    close to each other as fits, and the smallest of the others that fit besides."""
    top = max((at for at, n in enumerate(sizes) if cost(n) <= seconds / 3), default=0)
    for step in range(1, top + 2):
        chosen_sizes = [*sizes[:top + 1][::-step]][::-1]
        if sum(map(cost, chosen_sizes)) <= seconds:
            break
    left = seconds - sum(map(cost, chosen_sizes))
    for n in sizes[:top]:
        if n not in chosen_sizes and (left := left - cost(n)) > 0:
            chosen_sizes.append(n)
    return sorted(chosen_sizes)


def cases(names: Sequence[str], dtypes: Sequence[str], tile: tuple[int, int] = (14, 32)) -> list[Case]:
    """The cases of the named suites in every dtype, small before large within a suite."""
    known = suites(tile)
    _checked(names, known, dtypes)
    return [case for name in names for dtype in dtypes for case in known[name](dtype)]


# ---- on a GPU

# What torch multiplies on a GPU, too: the formats of A, B and the result.
GPU_PRODUCTS = ("f16-f16-f16", "f16-f16-f32", "bf16-bf16-bf16", "bf16-bf16-f32", "i8-i8-i32", "e4m3fn-e4m3fn-bf16",
                "e4m3fn-e4m3fn-f32", "e5m2-e4m3fn-bf16")
GPU_ODD = (1000, 1536, 2039, 3000, 4100, 5000)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336))  # (n, k) of a language model's layers
# On tensor cores: the squares and products by weights of their suite, sizes and views whose rows no tensor map can
# describe, and few rows of A.
TENSOR_DTYPES = ("bf16-bf16-bf16", "f16-f16-f16", "e4m3fn-e4m3fn-bf16", "i8-i8-i32")
TENSOR_SQUARES = (512, 1024, 2048, 4096, 8192, 16384)
TENSOR_WEIGHTS = (*WEIGHTS, (28672, 8192))
TENSOR_SIZES = [*((n, n, n) for n in TENSOR_SQUARES),
                *((m, *nk) for nk in TENSOR_WEIGHTS for m in (128, 512, 4096))]
TENSOR_ODD = (1000, 2039, 3000, 5000)
TERMS = ("bf16_bf16_f32_x6", "tf32_tf32_f32_x3")  # f32 by products of such terms
TF32 = "tf32_tf32_f32"
GPU_SQUARES = {"sweep": range(1024, 12801, 128), "square": range(1024, 8193, 1024),
               "f64": (2048, 3072, 4096, 6144, 8192)}
GPU_QUICK = {"sweep": (1024, 2048, 4096, 8192, 12800), "square": (1024, 2048, 4096, 8192)}
GPU_SUITES: Suites = {
    "sweep": lambda dtype: squares("sweep", GPU_SQUARES["sweep"], dtype),  # the article's sizes
    "square": lambda dtype: squares("square", GPU_SQUARES["square"], dtype),
    "odd": lambda dtype: [Case("odd", gemm(dtype, n, n, n, layout)) for n in GPU_ODD for layout in LAYOUTS],
    "skinny": lambda dtype: [Case("skinny", gemm(dtype, m, *nk)) for nk in WEIGHTS for m in (16, 64, 128, 512)],
    "f64": lambda dtype: squares("f64", GPU_SQUARES["f64"], "f64"),
    "tensor": lambda dtype: _tensor("tensor", dtype, TENSOR_SIZES),
    "tensor_odd": lambda dtype: _tensor("tensor_odd", dtype, [(n, n, n) for n in TENSOR_ODD]) + _tensor(
        "tensor_odd", dtype, [(n, n, n) for n in (2048, 4096)], gap=1),
    "tensor_skinny": lambda dtype: _tensor("tensor_skinny", dtype, [
        (m, *nk) for nk in (TENSOR_WEIGHTS[0], TENSOR_WEIGHTS[-1]) for m in (1, 8, 16, 32, 64)]),
    "terms": lambda dtype: [Case("terms", gemm(dtype, n, n, n), algorithm=algorithm)
                            for algorithm in TERMS for n in (2048, 4096, 8192)],
    "tf32": lambda dtype: [Case("tf32", gemm(dtype, *size, layout), algorithm=TF32)
                           for size in (*((n, n, n) for n in TENSOR_SQUARES[:-1]), (128, 4096, 4096), (512, 4096, 4096))
                           for layout in ("nn", "nt")],
    "scaled": lambda dtype: [Case("scaled", Gemm(*size, "e4m3fn", "e4m3fn", "bf16", "nt", scales="rows"))
                             for size in TENSOR_SIZES],
    "mx": lambda dtype: [Case("mx", Gemm(*size, name, name, "bf16")) for name in ("mxfp8", "mxfp4", "nvfp4")
                         for size in (*((n, n, n) for n in TENSOR_SQUARES[1:-1]), (16, 4096, 4096), (128, 4096, 4096))],
}
# The formats of suites that are for these alone, and of those that are for these unless others are asked for
GPU_ONLY: dict[str, Sequence[str]] = {"f64": ("f64",), "terms": ("f32",), "tf32": ("f32",), "scaled": ("e4m3fn",),
                                    "mx": ("mxfp8",)}
GPU_DTYPES: dict[str, Sequence[str]] = dict.fromkeys(("tensor", "tensor_odd", "tensor_skinny"), TENSOR_DTYPES)


def _tensor(suite: str, dtype: str, sizes: Iterable[tuple[int, int, int]], gap: int = 0) -> list[Case]:
    """A product of matrix instructions: of 8 bits in the layout that torch's products have, of others in "nn"."""
    layout = "nt" if formats.FORMATS[dtype.split("-")[0]].bits == 8 else "nn"
    return [Case(suite, gemm(dtype, *size, layout), gap=gap) for size in sizes]


def gpu_cases(
    names: Sequence[str], dtypes: Sequence[str] = (), sizes: Sequence[int] = (), quick: bool = False
) -> list[Case]:
    """The cases of the named suites in these formats, or in the suite's own; `sizes` instead of a suite's own, where it
    consists of squares."""
    _checked(names, GPU_SUITES, dtypes, " on a GPU", (*DTYPES, *GPU_PRODUCTS))
    listed: list[Case] = []
    for name in names:
        own = (sizes or (GPU_QUICK.get(name, ()) if quick else ())) if name in GPU_SQUARES else ()
        for dtype in GPU_ONLY.get(name, ()) or dtypes or GPU_DTYPES.get(name, ("f32",)):
            listed += squares(name, own, dtype) if own else GPU_SUITES[name](dtype)
    return listed


def named(texts: Sequence[str], dtype: str) -> list[Case]:
    """Cases that are written as MxNxK or MxNxK:LAYOUT, with formats of their own MxNxK:LAYOUT:FORMATS."""
    products = []
    for text in texts:
        sizes, layout, kinds = (*text.split(":", 2), "", "")[:3]
        parts = sizes.split("x")
        if len(parts) != 3 or not all(p.isdecimal() and int(p) > 0 for p in parts) or layout not in ("", *LAYOUTS):
            raise ValueError(f"a case is written MxNxK or MxNxK:LAYOUT, such as 64x4096x4096:nt, not {text!r}")
        m, n, k = map(int, parts)
        products.append(Case("case", gemm(kinds or dtype, m, n, k, layout or "nn")))
    return products


# ---- number formats

FORMAT_SIZES = (512, 1024, 2048, 4096)
FORMAT_QUICK = (1024,)
PRODUCTS: tuple[Product, ...] = (
    *(Product(x, x, x) for x in ("f64", "f32")),
    *(Product("f32", "f32", "f32", f"bf16_bf16_f32_x{terms}") for terms in (3, 6, 9)),
    Product("f16", "f16", "f16"),
    Product("f16", "f16", "f32"),
    Product("bf16", "bf16", "bf16"),
    *(Product(x, x, "f32") for x in ("bf16", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e2m3", "e3m2", "e2m1")),
    Product("bf16", "e4m3fn", "f32"),
    Product("i8", "i8", "i8"),
    *(Product(x, x, "i32") for x in ("i8", "u8")),
    Product("u8", "i8", "i32"),
    Product("i4", "i4", "i32"),
    Product("i8", "i4", "i32"),
    Product("i16", "i16", "i16"),
    Product("i16", "i16", "i32"),
    *(Product(x, x, x) for x in ("i32", "i64", "c64", "c128")),
)


def chosen(words: Sequence[str], among: Sequence[Product] = PRODUCTS, also: str = "") -> list[Product]:
    """The products that the words name, in their order; all without any.

    A word is a format (every product with such an operand), an algorithm, or a product's key.  ValueError for any
    other; `also` says what else it might have been.
    """
    selection: set[Product] = set()
    for word in words:
        named = [p for p in among if word in (p.key, p.algorithm)]
        named = named or [p for p in among if word in (p.a, p.b)]
        if not named:
            known = dict.fromkeys(name for p in among for name in (p.a, p.b))
            algorithms = ", ".join(p.algorithm for p in among if p.algorithm)
            raise ValueError(
                f"no product of {word!r} is timed; name a format ({', '.join(known)}), "
                f"{f'an algorithm ({algorithms}) ' if algorithms else ''}or a product such as {among[-1].key}{also}"
            )
        selection.update(named)
    return [p for p in among if p in selection or not words]


def format_cases(products: Iterable[Product], sizes: Iterable[int]) -> list[Case]:
    """Squares of every product; beside all but f32 runs tilewright's own f32, which shows what a format gains."""
    products = list(products)
    return [
        Case("formats", p.gemm(n, n, n), beside=Gemm(n, n, n) if p.key != "f32-f32-f32" else None,
             algorithm=p.algorithm)
        for n in sizes for p in products
    ]
