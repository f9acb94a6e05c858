"""How far f32 products are from the exact ones: native, by three, six and nine bf16 products, and MKL's.

    python bench/accuracy.py [--sizes 1024 4096] [--mkl FOLDER] [--out FILE]      measure, where there is AMX
    python bench/accuracy.py --out FILE --plot PNG                                draw what was measured

An error is |c - ab| / (|a| |b|) of one element, in units of 2^-24; exact products in float64, of 64 rows.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("MKL_THREADING_LAYER", "SEQUENTIAL")

import numpy as np

import tilewright as tw
from tilewright.lab.bench import results, study

ROWS = 64  # of C that are compared
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
STYLES = {"native": "C0-", "x3": "C3--", "x6": "C2-", "x9": "C1:", "MKL": "k-."}
DATA = ("uniform", "normal", "wide exponents", "cancelling")


def operands(data: str, n: int) -> list[Any]:
    rng, half = np.random.default_rng(7), n // 2
    draw = rng.random if data in ("uniform", "cancelling") else rng.standard_normal
    a, b = (draw((n, n), np.float32) for _ in "ab")
    if data == "wide exponents":        # over a range of 2^40
        a, b = (np.ldexp(x, rng.integers(-20, 21, x.shape)).astype(np.float32) for x in (a, b))
    elif data == "cancelling":          # the second half of k takes away the sum of the first, but for a part in 2^12
        a[:, half:2*half] = -a[:, :half] * (1 + np.float32(2.0**-12) * rng.standard_normal((n, half), np.float32))
        b[half:2*half] = b[:half]
    return [a, b]


def mkl(folder: str, a: Any, b: Any) -> Any:
    """cblas_sgemm of the MKL in this folder."""
    n, p, c = len(a), ctypes.c_void_p, np.empty_like(a)
    ctypes.CDLL(f"{folder}/libmkl_rt.so.3", ctypes.RTLD_GLOBAL).cblas_sgemm(
        101, 111, 111, n, n, n, ctypes.c_float(1), p(a.ctypes.data), n, p(b.ctypes.data), n, ctypes.c_float(0),
        p(c.ctypes.data), n)
    return c


def measure(sizes: list[int], folder: str | None) -> list[dict[str, Any]]:
    methods: dict[str, Any] = {"native": tw.matmul} | {
        f"x{terms}": partial(tw.matmul, algorithm=f"bf16_bf16_f32_x{terms}") for terms in (3, 6, 9)}
    if folder:
        methods["MKL"] = partial(mkl, folder)
    found = []
    for n in sizes:
        for data in DATA:
            a, b = operands(data, n)
            rows = np.linspace(0, n - 1, ROWS).astype(int)
            some, whole = a[rows].astype(np.float64), b.astype(np.float64)
            exact, size = some @ whole, np.abs(some) @ np.abs(whole)
            for name, product in methods.items():
                error = np.abs(product(a, b)[rows] - exact) / size * 2.0**24
                found.append({"n": n, "data": data, "method": name, "rms": float(np.sqrt(np.mean(error**2))),
                              "percentiles": [float(x) for x in np.percentile(error, PERCENTILES)]})
                print(f"{n:5} {data:15} {name:7} rms {found[-1]['rms']:8.3f}  most {error.max():8.3f}", flush=True)
    return found


def plot(found: list[dict[str, Any]], to: str) -> None:
    import matplotlib.pyplot as plt

    sizes = sorted({row["n"] for row in found})
    fig, axes = plt.subplots(len(sizes), len(DATA), figsize=(12, 3 * len(sizes)), sharex=True, sharey=True,
                             squeeze=False)
    for row in found:
        ax = axes[sizes.index(row["n"])][DATA.index(row["data"])]
        ax.plot(row["percentiles"], PERCENTILES, STYLES[row["method"]], label=row["method"], linewidth=1.5)
    for n, line in zip(sizes, axes):
        line[0].set_ylabel(f"n = {n}\nelements with less, %")
        for data, ax in zip(DATA, line):
            ax.set_xscale("log")
            ax.grid(alpha=0.3)
            ax.set_title(data if n == sizes[0] else "")
            ax.set_xlabel("error / 2^-24 |A| |B|" if n == sizes[-1] else "")
    axes[0][-1].legend(fontsize=8)
    fig.tight_layout()
    fig.savefig(to, dpi=110)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--mkl")
    parser.add_argument("--plot")


if __name__ == "__main__":
    options = study.parsed(__doc__ or "", "accuracy.json", arguments)
    if options.plot:
        plot(json.loads(options.out.read_text())["found"], options.plot)
    else:
        results.write({"machine": tw.detect().model, "percentiles": PERCENTILES,
                       "found": measure(options.sizes, options.mkl)}, options.out)
