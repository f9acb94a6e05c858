"""Where is a peer faster?  150 shapes by number formats and thread counts, on a CPU or a GPU: a *cell* is one of them.

What is shown are the cells in which tilewright takes longer than the fastest peer, each with what bounds its plan by
the cost model, and the geometric mean and the worst ten over all cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import Any

from tilewright.lab.bench import tables
from tilewright.lab.bench.cases import CPU, GPU, Case, Product
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.results import Result
from tilewright.lab.bench.suites.shapes import chosen

Shape = tuple[str, int, int, int, str, int, int]  # group, m, n, k, layout, batch, gap
SQUARES = (16, 32, 48, 64, 96, 128, 160, 192, 240, 256, 320, 384, 512, 640, 768, 1024, 1500, 2048, 3072, 4096, 6000)
ODD = (17, 31, 63, 65, 97, 127, 129, 251, 255, 257, 509, 1000, 1021, 1023, 1025, 2039, 2047, 2049, 3333, 4097)
RECTANGLES = ((1000, 2000, 500), (512, 1024, 2048), (4096, 1024, 512), (300, 700, 1100), (2048, 512, 4096),
              (128, 4096, 1024), (1024, 128, 4096), (4096, 4096, 128), (333, 3000, 777), (5000, 200, 200),
              (3072, 768, 768), (768, 3072, 768), (1500, 1500, 300), (100, 4000, 4000))
SKINNY = (*((m, 4096, 4096) for m in (1, 2, 3, 4, 8, 16, 24, 32, 64, 96, 128, 200)),
          *((m, n, k) for n, k in ((14336, 4096), (4096, 14336)) for m in (1, 16, 64, 128)),
          *((4096, n, 4096) for n in (1, 2, 4, 8, 16, 32, 64)), (5120, 1, 3072), (2048, 1, 2048),
          *((2048, 2048, k) for k in (1, 2, 4, 8, 16, 32, 64)), (64, 64, 20000), (20000, 64, 64), (64, 20000, 64))
BATCHES = ((512, 8, 8, 8), (12, 197, 197, 64), (16, 64, 64, 64), (64, 64, 64, 64), (256, 32, 32, 32),
           (1000, 16, 16, 16), (16, 128, 128, 128), (16, 256, 256, 256), (8, 512, 512, 512),
           (4, 1024, 1024, 1024), (96, 128, 64, 128), (32, 512, 64, 512), (64, 1, 256, 256))
ATTENTION = ((96, 128, 128, 64), (32, 512, 512, 64))  # Q K^T: batch, m, n, k with B stored transposed
TRANSPOSED = (100, 240, 512, 1000, 2048, 3333)  # squares in the other layouts
VIEWS = (64, 128, 256, 512, 1000, 1024, 2048, 3072, 4096)  # x[:, :n] of n + 1 columns
GROUPS = ("squares", "odd", "rectangles", "skinny", "layouts", "views", "batches")
# "again": cells of a GPU whose plans have changed since they were measured: all batches, vectors, and matrices that
# plans/nvidia.py has small tiles or another vector of C for
AGAIN = "again"
CHANGED = {(n, n, n) for n in (*SQUARES, *ODD, *TRANSPOSED) if n <= 320} | {(2048, 2048, k) for k in (1, 2, 4)}

# "vectors": products with one row or one column, and few of both by a long k; only where it is named, not of the 150
VECTORS = "vectors"
LENGTHS = tuple(10**i for i in range(1, 8))
OF_VECTORS = (*((1, 1, k, 1) for k in LENGTHS),
              *(shape for n in (10, 30, 100, 300, 1000, 3000) for shape in ((n, 1, n, 1), (1, n, n, 1))),
              (10, 1, 100_000, 1), (100_000, 1, 10, 1), (1, 10, 100_000, 1), (1, 100_000, 10, 1),
              *((m, n, k, 1) for m, n in ((2, 2), (1, 8), (8, 1), (4, 4), (3, 5), (8, 8)) for k in (1000, 100_000)),
              *((m, n, k, 100) for m, n, k in ((1, 1, 100), (64, 1, 64), (1, 64, 64), (1, 1, 10_000))))

PRODUCTS = (*(Product(x, x, x) for x in ("f32", "f64")), Product("bf16", "bf16", "f32"), Product("i8", "i8", "i32"),
            Product("f16", "f16", "f32"), Product("c64", "c64", "c64"))
WITH_I32 = (*PRODUCTS, Product("i32", "i32", "i32"))      # of vectors
PLAIN = PRODUCTS[:2]  # with --quick, and what GPUs are compared in
STRIDE = 41  # of the order in which shapes are timed: whenever time is over, every group has had its share


def shapes() -> list[Shape]:
    """All 150, group by group."""
    return list(_shapes())


def _shapes() -> Iterator[Shape]:
    for group, sizes in (("squares", SQUARES), ("odd", ODD)):
        yield from ((group, n, n, n, "nn", 1, 0) for n in sizes)
    yield from (("rectangles", *mnk, "nn", 1, 0) for mnk in RECTANGLES)
    yield from (("skinny", *mnk, "nn", 1, 0) for mnk in SKINNY)
    yield from (("layouts", n, n, n, layout, 1, 0) for n in TRANSPOSED for layout in ("nt", "tn", "tt"))
    yield from (("layouts", m, 4096, 4096, layout, 1, 0) for m in (1, 8, 64) for layout in ("nt", "tn"))
    yield from (("views", n, n, n, "nn", 1, 1) for n in VIEWS)
    yield from (("views", n, n, n, layout, 1, 1) for n in (512, 2048) for layout in ("nt", "tn"))
    yield from (("views", m, 4096, 4096, "nn", 1, 1) for m in (1, 16, 64, 128))
    yield from (("batches", m, n, k, "nn", batch, 0) for batch, m, n, k in BATCHES)
    yield from (("batches", m, n, k, "nt", batch, 0) for batch, m, n, k in ATTENTION)


def vectors() -> list[Shape]:
    """Products with vectors in every layout; two vectors, and a row by a matrix, have fewer that differ."""
    return [(VECTORS, m, n, k, layout, batch, 0) for m, n, k, batch in OF_VECTORS
            for layout in (("nn",) if m == n == 1 else ("nn", "tn") if n == 1 else ("nn", "nt") if m == 1 else
                           ("nn", "nt", "tn", "tt"))]


def changed(shape: Shape) -> bool:
    """Whether the cell is one of those that "again" names."""
    group, m, n, k, *_ = shape
    return group == "batches" or 1 in (m, n) or (m, n, k) in CHANGED


def cases(words: Sequence[str] = (), quick: bool = False, device: str = CPU) -> list[Case]:
    """Every shape in every format, or what the words name: groups of shapes, and products as shapes.chosen takes them.

    Neighbours in the list are of different groups.
    """
    groups = [word for word in words if word in (*GROUPS, AGAIN, VECTORS)]
    among = PLAIN if device == GPU else WITH_I32 if groups == [VECTORS] else PRODUCTS
    named = [word for word in words if word not in groups]
    also = f", or a group of shapes ({', '.join((*GROUPS, AGAIN, VECTORS))})"
    products = chosen(named, among, also) if named or not quick else list(PLAIN[:1])
    every = [shape for shape in shapes() if shape[0] in groups or not groups or (AGAIN in groups and changed(shape))]
    every += vectors() if VECTORS in groups else []
    step = next(step for step in range(STRIDE, 2 * STRIDE) if math.gcd(step, len(every)) == 1)
    mixed = [every[i * step % len(every)] for i in range(len(every))]
    return [Case(group, p.gemm(m, n, k, layout, batch), algorithm=p.algorithm, gap=gap)
            for group, m, n, k, layout, batch, gap in mixed for p in products]


# ---- what is shown

MEANS = ["format", "threads", "cells", "geometric mean", "5th percentile", "least", "below 1.00", "below 0.95"]
LOST = ["case", "threads", "ratio", "peer", "G/s", "bound by (model)", "share of the model"]


def _compared(results: Sequence[Result]) -> list[tuple[float, str, Result]]:
    """(the fastest peer's time over ours, that peer, its result) of every cell that has both, the worst first."""
    compared = [(best[1].median, best[0], r) for r in results if (best := tables.best_ratio(r))]
    return sorted(compared, key=lambda cell: cell[0])


def means(results: Sequence[Result]) -> list[list[str]]:
    """A line for each format and thread count: cells, geometric mean, 5th percentile, least, how many are below 1, and
    below 0.95; and of each peer alone, where there are several."""
    kinds: dict[tuple[str, str], list[float]] = {}
    for ratio, _, r in _compared(results):
        kinds.setdefault(("all", ""), []).append(ratio)
        kinds.setdefault((r.case.product.label, str(r.threads)), []).append(ratio)
    if len(names := sorted({name for r in results for name in r.peers()})) > 1:
        for name in names:
            for r in results:
                if of_one := r.ratio(name):
                    key = f"{r.case.product.label} of {name}", str(r.threads)
                    kinds.setdefault(key, []).append(of_one.median)
    kinds = {kind: sorted(ratios) for kind, ratios in kinds.items()}
    return [[*kind, str(len(ratios)), f"{geometric_mean(ratios):.3f}", f"{ratios[len(ratios) // 20]:.2f}",
             f"{ratios[0]:.2f}", *(str(sum(ratio < limit for ratio in ratios)) for limit in (1.0, 0.95))]
            for kind, ratios in kinds.items()]


def lost(results: Sequence[Result], limit: float = 1.0) -> list[list[str]]:
    """A line, as LOST heads it, for each cell whose ratio is below the limit, the worst first."""
    rows = []
    for ratio, peer, r in _compared(results):
        row, sample = r.row(OURS), r.sample(OURS)
        if ratio < limit and row and sample:
            bound = row.bound or {}
            share = f"{bound['model_s'] / sample.spread.median:.0%}" if bound else "-"
            rows.append([f"{r.case.suite}: {r.case.label}", str(r.threads), f"{ratio:.3f}", peer,
                         tables.short(r.gflops()), bound.get("what", "-"), share])
    return rows


# ---- what bounds a plan


def bound(case: Case, target: Any, threads: int = 1) -> dict[str, Any] | None:
    """{"what": the largest part of the model's cost of the plan that tilewright runs, "model_s": its seconds, "plan"};
    None where there is no model of this product."""
    import tilewright as tw
    from tilewright.lab.measure import operands
    from tilewright.lab.tuner.space import Space

    try:
        if case.subscripts:
            o = operands.contraction(case.problem, case.subscripts, case.sizes)
            (step,) = tw.einsum_path(case.subscripts, o.a, o.b, out=o.c, threads=threads)[1].steps
            return {"what": f"{step.how}; {step.plan}", "model_s": step.seconds,
                    "plan": step.plan}
        there = Space(case.problem, target, threads, case.algorithm)
        cost = there.basis().cost(there.shape, there.in_use, there.target)
    except (TypeError, ValueError, NotImplementedError, KeyError):
        return None
    what = max(cost.parts, key=lambda part: part[1])[0]
    return {"what": what, "model_s": cost.seconds, "plan": str(there.in_use)}
