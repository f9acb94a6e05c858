"""How far f32 products are from the exact ones: native, by three, six and nine bf16 products, and MKL's.

    python bench/accuracy.py [--sizes 1024 4096] [--mkl FOLDER] [--json FILE]     measure, where there is AMX
    python bench/accuracy.py --json FILE --plot PNG                               draw what was measured

An error is |c - ab| / (|a| |b|) of one element, in units of 2^-24; exact products in float64, of 64 rows.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("MKL_THREADING_LAYER", "SEQUENTIAL")

import numpy as np

import tilewright as tw
from tilewright.lab.bench import results

ROWS = 64  # of C that are compared
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
ALGORITHMS = {"native": None, "x3": "bf16_bf16_f32_x3", "x6": "bf16_bf16_f32_x6", "x9": "bf16_bf16_f32_x9"}
UNIT = 2.0**-24


def uniform(rng: Any, n: int) -> tuple[Any, Any]:
    return rng.random((n, n), np.float32), rng.random((n, n), np.float32)


def normal(rng: Any, n: int) -> tuple[Any, Any]:
    return rng.standard_normal((n, n), np.float32), rng.standard_normal((n, n), np.float32)


def wide(rng: Any, n: int) -> tuple[Any, Any]:
    """Exponents over a range of 2^40."""
    a, b = normal(rng, n)
    return tuple(np.ldexp(x, rng.integers(-20, 21, x.shape)).astype(np.float32) for x in (a, b))  # type: ignore[return-value]


def cancelling(rng: Any, n: int) -> tuple[Any, Any]:
    """The second half of k takes away what the first half has added up, but for a part in 2^12."""
    a, b = rng.random((n, n), np.float32), rng.random((n, n), np.float32)
    half = n // 2
    a[:, half : 2 * half] = -a[:, :half] * (1 + np.float32(2.0**-12) * rng.standard_normal((n, half), np.float32))
    b[half : 2 * half] = b[:half]
    return a, b


DATA = {"uniform": uniform, "normal": normal, "wide exponents": wide, "cancelling": cancelling}


def mkl(folder: str) -> Any:
    """cblas_sgemm of the MKL in this folder."""
    sgemm = ctypes.CDLL(f"{folder}/libmkl_rt.so.3", ctypes.RTLD_GLOBAL).cblas_sgemm

    def product(a: Any, b: Any) -> Any:
        n, p = len(a), ctypes.c_void_p
        c = np.empty_like(a)
        sgemm(101, 111, 111, n, n, n, ctypes.c_float(1), p(a.ctypes.data), n, p(b.ctypes.data), n, ctypes.c_float(0),
              p(c.ctypes.data), n)
        return c

    return product


def measure(sizes: list[int], folder: str | None) -> list[dict[str, Any]]:
    methods = {name: lambda a, b, how=how: tw.matmul(a, b, algorithm=how) for name, how in ALGORITHMS.items()}
    if folder:
        methods["MKL"] = mkl(folder)
    found = []
    for n in sizes:
        for data, make in DATA.items():
            a, b = make(np.random.default_rng(7), n)
            rows = np.linspace(0, n - 1, ROWS).astype(int)
            some, whole = a[rows].astype(np.float64), b.astype(np.float64)
            exact, size = some @ whole, np.abs(some) @ np.abs(whole)
            for name, product in methods.items():
                error = np.abs(product(a, b)[rows] - exact) / size / UNIT
                found.append({"n": n, "data": data, "method": name, "rms": float(np.sqrt(np.mean(error**2))),
                              "percentiles": [float(x) for x in np.percentile(error, PERCENTILES)]})
                print(f"{n:5} {data:15} {name:7} rms {found[-1]['rms']:8.3f}  most {error.max():8.3f}", flush=True)
    return found


def plot(found: list[dict[str, Any]], to: str) -> None:
    import matplotlib.pyplot as plt

    sizes = sorted({row["n"] for row in found})
    shape, shared = (len(sizes), len(DATA)), {"sharex": True, "sharey": True, "squeeze": False}
    fig, axes = plt.subplots(*shape, figsize=(12, 3 * len(sizes)), **shared)
    styles = {"native": "C0-", "x3": "C3--", "x6": "C2-", "x9": "C1:", "MKL": "k-."}
    for row in found:
        ax = axes[sizes.index(row["n"])][[*DATA].index(row["data"])]
        ax.plot(row["percentiles"], PERCENTILES, styles[row["method"]], label=row["method"], linewidth=1.5)
    for n, line in zip(sizes, axes):
        line[0].set_ylabel(f"n = {n}\nelements with less, %")
        for data, ax in zip(DATA, line):
            ax.set_xscale("log")
            ax.grid(alpha=0.3)
            if n == sizes[0]:
                ax.set_title(data)
            if n == sizes[-1]:
                ax.set_xlabel("error / 2^-24 |A| |B|")
    axes[0][-1].legend(fontsize=8)
    fig.tight_layout()
    fig.savefig(to, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--mkl")
    parser.add_argument("--json", required=True)
    parser.add_argument("--plot")
    args = results.options(parser, "json")
    if args.plot:
        plot(json.loads(Path(args.json).read_text())["found"], args.plot)
        return
    target = tw.detect()
    if "amx-bf16" not in target.extensions:
        print(f"{target.model} has no AMX: all algorithms are the native product there")
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    found = measure(args.sizes, args.mkl)
    results.write({"machine": target.model, "date": date, "percentiles": PERCENTILES, "found": found}, Path(args.json))


if __name__ == "__main__":
    main()
