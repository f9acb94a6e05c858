"""Products of distributed matrices on threads: any grid, layouts, formats and panels, exact on integers.

Twice in reproducible order, on two grids with other layouts, the bits of random floats must be the same.
"""

from __future__ import annotations

from random import Random

import numpy as np

from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.values import numbers
from tilewright import formats, mpi
from tilewright.mpi import Grid, Layout, Matrix
from tilewright.mpi.placement import segments

FORMATS = ("f32", "f32", "f64", "bf16", "f16", "e4m3fn", "c64", "i8", "u8", "i16", "i4")
SIZES = (0, 1, 2, 3, 7, 16, 31, 64, 65, 100, 130, 257)
STEPS = (0, 1, 2, 15, 64, 65, 127, 300, 513, 1100, 4200)
GRIDS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (3, 1), (1, 3), (2, 3), (1, 1, 2), (2, 1, 2), (1, 1, 4), (1, 3, 2))


def layout(rng: Random, ranks: int) -> list[int]:
    """Rows of a process grid, blocks, the first process and a seed of the order of ranks."""
    rows = rng.choice([x for x in range(1, ranks + 1) if ranks % x == 0])
    blocks = rng.choice([1, 3, 8, 32, 64, 500]), rng.choice([1, 5, 16, 64, 300])
    return [rows, *blocks, rng.randrange(rows), rng.randrange(99)]


def draw(rng: Random) -> Case:
    format, grid, other = rng.choice(FORMATS), rng.choice(GRIDS), rng.choice(GRIDS)
    ranks = [int(np.prod(g)) for g in (grid, other)]
    return {"format": format, "m": rng.choice(SIZES), "n": rng.choice(SIZES), "k": rng.choice(STEPS),
            "grids": [list(grid), list(other)], "layouts": [[layout(rng, r) for _ in range(3)] for r in ranks],
            "panel": rng.choice([None, None, 1, 50, 64, 200]), "ahead": rng.choice([0, 1, 2, 5]),
            "turned": rng.random() < 0.3, "progress": rng.choice(["thread", "blocks"]), "beta": rng.choice([0, 0, 2]),
            "free": rng.random() < 0.3, "data": rng.randrange(2**31)}


def lies(case: Case, which: int, matrix: int, shape: tuple[int, int], ranks: int) -> Layout:
    rows, mb, nb, first, seed = case["layouts"][which][matrix]
    order = tuple(range(ranks))
    if seed % 3 == 0:
        order = tuple(np.random.default_rng(seed).permutation(ranks).tolist())
    return Layout.cyclic(shape, (mb, nb), (rows, ranks // rows), (first, 0), order)


def check(case: Case) -> None:
    m, n, k = case["m"], case["n"], case["k"]
    rng = np.random.default_rng(case["data"])
    dtype = formats.get(case["format"]).dtype
    low = 0 if case["format"][0] == "u" else -3
    a, b, c = (rng.integers(low, 4, shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
    out = "i32" if case["format"][0] in "iu" else None
    wide = np.complex128 if dtype.kind == "c" else np.float64
    right = a.astype(wide) @ b.astype(wide) + case["beta"] * c.astype(wide)
    for found in run(case, 0, a, b, c, out_dtype=out, panel=case["panel"]):
        np.testing.assert_array_equal(found.astype(wide), right.astype(found.dtype).astype(wide))
    if dtype.kind in "iu" or case["format"] == "i4":
        return
    a, b = (numbers(case["format"], shape, "normal", case["data"] + i) for i, shape in enumerate(((m, k), (k, n))))
    bits = []
    for which, grid in enumerate(case["grids"]):
        if segments(k) % Grid(*grid).layers == 0:
            bits.append(run(case, which, a, b, c, reproducible=True)[0])
    assert all(np.array_equal(bits[0].view(np.uint8), x.view(np.uint8)) for x in bits), "other bits on another grid"


def run(case: Case, which: int, a, b, c, **options) -> list[np.ndarray]:
    """The result on every rank."""
    grid = Grid(*case["grids"][which])
    la, lb, lc = (lies(case, which, i, x.shape, grid.size) for i, x in enumerate((a.T if case["turned"] else a, b, c)))

    def one(team):
        left = a.T if case["turned"] else a
        x, y, z = (Matrix.scatter(team, v, lies) for v, lies in ((left, la), (b, lb), (c, lc)))
        where = None if case["free"] and not options.get("reproducible") else grid
        return mpi.matmul(x.T if case["turned"] else x, y, grid=where, ahead=case["ahead"], beta=case["beta"],
                          c=z if case["beta"] else None, **options).gather(None)
    return mpi.run_threads(grid.size, one, timeout=60, progress=case["progress"])


PLAIN: Case = {"beta": 0, "turned": False, "progress": "blocks", "free": False, "ahead": 0, "panel": None,
               "format": "f32"}
FUZZER = Fuzzer("mpi", draw, check, PLAIN)
