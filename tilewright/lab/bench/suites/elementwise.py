"""Sums and rows of arrays beside NumPy: code of `kernels.elementwise`, called as users call it, on one thread and more.

Each case has so many sets of arrays that they do not stay in the last cache where one set would not; bytes count once
for each array, as they are in memory. Results are checked before anything is timed.
"""
from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir import Function, Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each, each_row, fold, once
from tilewright.lab.bench.study import Case, compared, median, microseconds, setting
from tilewright.lab.measure import machine, probes

CAPTION = "time of a call; median ratio (quartiles)"
SIZES = (10**4, 10**5, 10**6, 10**7)
COLS = 1000                     # of the matrix whose rows are added up
COLD = 1 << 28                  # bytes of all sets of arrays together, where one set is beyond this share of it
SHARE = 16


def emit_add(threads: int | None = None, warp: int = 32) -> Function:
    """z = x + y"""
    k = Kernel("add", threads=threads, warp=warp, n=i64, x=ptr(f32), y=ptr(f32), z=ptr(f32))
    n, x, y, z = k.args
    with each(k, n) as i:
        z[i] = x[i] + y[i]
    return k.function


def emit_sums(threads: int | None = None, warp: int = 32) -> Function:
    """The sum of each row of x."""
    k = Kernel("sums", threads=threads, warp=warp, rows=i64, cols=i64, x=ptr(f32), sums=ptr(f32))
    rows, cols, x, sums = k.args
    x = x.view(cols, 1)
    with each_row(k, rows) as row:
        total = fold(k, cols, lambda a, b: a + b, 0.0, lambda j: x[row, j])
        with once(k):
            sums[row] = total
    return k.function


COLUMNS = (*setting("elements", lambda x: f"{x['n']:,}"), microseconds("us"), microseconds("numpy us", "numpy"),
           compared("x numpy", "numpy"), ("GB/s", lambda x: f"{x['bytes'] / median(x) / 1e9:.1f}"),
           ("of memory's", lambda x: f"{x['bytes'] / median(x) / x['memory']:.2f}" if x["memory"] else ""))


def _arrays(*sizes: int) -> list[list[np.ndarray]]:
    """Sets of random arrays: several, where one alone would not stay in a cache."""
    once_bytes = 4 * sum(sizes)
    sets = 1 if once_bytes * SHARE < COLD else max(2, COLD // once_bytes)
    rng = np.random.default_rng(1)
    return [[rng.random(n, np.float32) for n in sizes] for _ in range(sets)]


def _add(n: int) -> tuple[int, list[tuple[Any, ...]]]:
    return 12 * n, [(n, x, y, z) for x, y, z in _arrays(n, n, n)]


def _sums(n: int) -> tuple[int, list[tuple[Any, ...]]]:
    rows = n // COLS
    return 4 * rows * COLS, [(rows, COLS, x.reshape(rows, COLS), sums) for x, sums in _arrays(rows * COLS, rows)]


CASES = {"z = x + y": (emit_add, _add, 2e-7), "sums of rows": (emit_sums, _sums, 1e-5)}


def make(case: str, n: int, threads: int) -> Case:
    emit, operands, tolerance = CASES[case]
    moved, every = operands(n)
    arrays = [[x for x in args if isinstance(x, np.ndarray)] for args in every]
    exact = arrays[0][0] + arrays[0][1] if case == "z = x + y" else arrays[0][0].sum(1)
    call = tw.kernel(emit)

    def result(side: str, returned: Any) -> str:
        """The last array, which a call writes: first the peer's, then, without what that wrote, ours."""
        values = arrays[0][-1].copy()
        arrays[0][-1].fill(np.nan)
        return "" if np.allclose(values, exact, rtol=tolerance) else "its result is wrong"
    cold = moved >= machine.last_level_bytes()
    memory = probes.ceilings().peak_bandwidth("memory", threads, "read") if cold else None
    return Case({"memory": memory}, {"tilewright": [(call, args) for args in every]}, result,
                {"case": case, "arrays": arrays}, bytes=moved)
