"""Products with their own arithmetic (`tilewright.contract`) beside scipy, numba, torch and KeOps, where installed.

Points have k = K coordinates, f32 unless a case says otherwise. Peers get them as their functions want them, by rows,
which is not timed: scipy.spatial.distance.cdist (one thread, f64), loops for numba (peers/_numba_contract.py), compiled
before, torch.cdist without its way by a matrix product, whose error is larger, and KeOps, compiled before, for what it
has: sums and nearest neighbours over all points, in f32. numba and torch have as many threads as tilewright.
Some rows of every result are checked against float64, or Python's integers, before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.expressions.semiring import semiring
from tilewright.lab.bench import study
from tilewright.lab.bench.study import ALONE

CAPTION = "10^9 terms a second; rates as multiples, of the same rounds: median (quartiles)"
SIZES = (2048,)
PEERS = "scipy", "numba", "torch", "keops"
CHECKED = 8                     # rows


@dataclass(frozen=True)
class Case:
    """C[i, j] = reduce over p of f(a[i, p], b[p, j]), or with an epilogue what becomes of its rows.

    scale       of m and n, by the size that is asked for
    k           None: as m
    cdist       scipy's and torch's: (metric, p)
    """
    f: Any
    reduce: str | tw.Reduction = "sum"
    dtype: str = "f4"
    scale: float = 1.0
    k: int | None = 128
    cdist: tuple[str, float] | None = None
    epilogue: Callable[..., Any] | None = None


def squares(x: Any, y: Any) -> Any: return (x - y) * (x - y)
def distances(x: Any, y: Any) -> Any: return abs(x - y)
def added(x: Any, y: Any) -> Any: return x + y
def common(x: Any, y: Any) -> Any: return x & y
def bits(x: Any, y: Any) -> Any: return tw.popcount(x ^ y)
def bells(x: Any, y: Any) -> Any: return tw.exp(-(x - y) * (x - y))
def kernel_sums(acc: Any) -> Any: return tw.row_sum(tw.exp(-acc))
def nearest(acc: Any) -> Any: return tw.row_argmin(acc)


OR = tw.Reduction((0,), lambda s, t, p: (s[0] | t,), lambda x, y: (x[0] | y[0],))
CASES = {
    "squared distances": Case(squares, scale=2, cdist=("sqeuclidean", 2.0)),
    "city block distances": Case(distances, cdist=("cityblock", 1.0)),
    "Chebyshev distances": Case(distances, "max", cdist=("chebyshev", np.inf)),
    "shortest paths (min-plus)": Case(added, "min", scale=0.5, k=None),
    "logical or of and, i8": Case(common, "any", "i1"),
    "the same, 32 in an i32": Case(common, OR, "i4"),
    "differing bits, i32": Case(bits, dtype="i4"),
    "sums of exp(-(a - b)^2)": Case(bells, scale=0.5),
    "logsumexp": Case(added, "logsumexp", scale=0.5),
    "argmin": Case(added, "argmin"),
    "kernel sums, k = 16": Case(squares, k=16, epilogue=kernel_sums),
    "nearest neighbours, k = 16": Case(squares, k=16, epilogue=nearest),
}


def _shape(case: str, n: int) -> tuple[int, int, int]:
    """m, n = m, and k."""
    m = max(int(CASES[case].scale * n), 1)
    return m, m, CASES[case].k or m


COLUMNS = (*study.setting("m x n x k", lambda x: "x".join(map(str, _shape(x["case"], x["n"])))),
           ("terms/ns", lambda x: f"{prod(_shape(x['case'], x['n'])) / study.median(x) / 1e9:.3g}"),
           study.compared("x product", ALONE), *(study.compared(f"x {name}", name) for name in PEERS))


def _operands(case: Case, m: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """a and b, both by rows."""
    rng = np.random.default_rng(m)
    if case.dtype == "i4":
        return tuple(rng.integers(-2**31, 2**31, (m, k), np.int32) for _ in "ab")    # type: ignore[return-value]
    if case.dtype == "i1":
        return tuple((rng.random((m, k)) < 0.05).astype(np.int8) for _ in "ab")      # type: ignore[return-value]
    a, b = (rng.standard_normal((m, k), np.float32) for _ in "ab")
    return (a / 4, b / 4) if case.epilogue else (a, b)


def make(name: str, n: int, threads: int) -> study.Case:
    """Checked are some rows of the result."""
    case, (m, _, k) = CASES[name], _shape(name, n)
    a, b = _operands(case, m, k)
    bt = np.ascontiguousarray(b.T)
    made = semiring(case.f, case.reduce, "int" if a.dtype.kind == "i" else "float")
    exact = np.concatenate([made.evaluate(a[i:i + 1], b.T) for i in range(min(CHECKED, m))])
    if case.epilogue is not None:
        exact = exact.argmin(-1) if case.epilogue is nearest else np.exp(-exact).sum(-1)
    own = tw.contract(case.f, a[:1], bt, reduce=case.reduce, epilogue=case.epilogue)
    out = np.empty((m,) if case.epilogue else (m, m), own.dtype)
    x, y = (z.astype(np.float32) for z in (a, bt))
    ours = partial(tw.contract, case.f, reduce=case.reduce, epilogue=case.epilogue, out=out)
    return study.Case({}, {"tilewright": [(ours, (a, bt))],
                           ALONE: [(tw.matmul, (x, y, np.empty((m, m), np.float32)))]},
                      study.close_to(exact, 1e-4), {"case": case, "a": a, "b": b, "out": out, "threads": threads},
                      bytes=4 * (m * m + 2 * m * k))
