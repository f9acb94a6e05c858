"""Products with their own arithmetic (`tilewright.contract`) beside scipy, numba, torch and KeOps, where installed.

Points have k = K coordinates, f32 unless a case says otherwise. Peers get them as their functions want them, by rows,
which is not timed: scipy.spatial.distance.cdist (one thread, f64), loops for numba (peers/_numba_contract.py), compiled
before, torch.cdist without its way by a matrix product, whose error is larger, and KeOps, compiled before, for what it
has: sums and nearest neighbours over all points, in f32. numba and torch have as many threads as tilewright.
Some rows of every result are checked against float64, or Python's integers, before anything is timed.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.expressions.semiring import semiring
from tilewright.lab.bench import study
from tilewright.lab.bench.study import ALONE, checked, compared
from tilewright.lab.measure.measure import Call, spread

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


def _squares(x: Any, y: Any) -> Any: return (x - y) * (x - y)
def _sizes(x: Any, y: Any) -> Any: return abs(x - y)
def _sums(x: Any, y: Any) -> Any: return x + y
def _common(x: Any, y: Any) -> Any: return x & y
def _bits(x: Any, y: Any) -> Any: return tw.popcount(x ^ y)
def _bells(x: Any, y: Any) -> Any: return tw.exp(-(x - y) * (x - y))
def _kernel_sums(acc: Any) -> Any: return tw.row_sum(tw.exp(-acc))
def _nearest(acc: Any) -> Any: return tw.row_argmin(acc)


OR = tw.Reduction((0,), lambda s, t, p: (s[0] | t,), lambda x, y: (x[0] | y[0],))
CASES = {
    "squared distances": Case(_squares, scale=2, cdist=("sqeuclidean", 2.0)),
    "city block distances": Case(_sizes, cdist=("cityblock", 1.0)),
    "Chebyshev distances": Case(_sizes, "max", cdist=("chebyshev", np.inf)),
    "shortest paths (min-plus)": Case(_sums, "min", scale=0.5, k=None),
    "logical or of and, i8": Case(_common, "any", "i1"),
    "the same, 32 in an i32": Case(_common, OR, "i4"),
    "differing bits, i32": Case(_bits, dtype="i4"),
    "sums of exp(-(a - b)^2)": Case(_bells, scale=0.5),
    "logsumexp": Case(_sums, "logsumexp", scale=0.5),
    "argmin": Case(_sums, "argmin"),
    "kernel sums, k = 16": Case(_squares, k=16, epilogue=_kernel_sums),
    "nearest neighbours, k = 16": Case(_squares, k=16, epilogue=_nearest),
}


def table(found: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, of records."""
    rows = []
    for x in found:
        m, k = _shape(x["case"], x["n"])
        rate = m * m * k / spread(x["seconds"]["tilewright"]).median / 1e9
        rows.append((x["case"], f"{m}x{m}x{k}", str(x["threads"]), f"{rate:.3g}", compared(x, "tilewright", ALONE),
                     *(compared(x, "tilewright", name) for name in PEERS)))
    return ("case", "m x n x k", "threads", "terms/ns", "x product", *(f"x {name}" for name in PEERS)), rows


def _shape(case: str, n: int) -> tuple[int, int]:
    """m = n, and k."""
    m = max(int(CASES[case].scale * n), 1)
    return m, CASES[case].k or m


def _operands(case: Case, m: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """a and b, both by rows."""
    rng = np.random.default_rng(m)
    if case.dtype == "i4":
        return tuple(rng.integers(-2**31, 2**31, (m, k), np.int32) for _ in "ab")    # type: ignore[return-value]
    if case.dtype == "i1":
        return tuple((rng.random((m, k)) < 0.05).astype(np.int8) for _ in "ab")      # type: ignore[return-value]
    a, b = (rng.standard_normal((m, k), np.float32) for _ in "ab")
    return (a / 4, b / 4) if case.epilogue else (a, b)


def _numba(name: str, case: Case, parallel: bool) -> Callable[..., Any]:
    from tilewright.lab.bench.peers import _numba_contract as loops

    if case.epilogue is _kernel_sums:
        return loops.rows(lambda s: np.exp(-s), lambda x, y: x + y, 0.0, parallel)
    if case.reduce == "logsumexp":
        return loops.logsumexp(lambda x, y: x + y, parallel)
    if case.reduce == "argmin":
        return loops.argmin(lambda x, y: x + y, parallel)
    term = {_squares: lambda x, y: (x - y) * (x - y), _sizes: lambda x, y: abs(x - y), _sums: lambda x, y: x + y,
            _common: lambda x, y: x & y, _bits: loops.bits_that_differ,
            _bells: lambda x, y: np.exp(-(x - y) * (x - y))}[case.f]
    both, first = {"sum": (lambda x, y: x + y, 0), "max": (lambda x, y: max(x, y), -np.inf),
                   "min": (lambda x, y: min(x, y), np.inf), "any": (lambda x, y: x | y, 0),
                   OR: (lambda x, y: x | y, 0)}[case.reduce]
    return loops.product(term, both, first, parallel)


def _keops(case: Case, a: np.ndarray, b: np.ndarray) -> Callable[[], Any]:
    from pykeops.numpy import LazyTensor

    squares = ((LazyTensor(a[:, None, :]) - LazyTensor(b[None, :, :]))**2).sum(-1)
    if case.epilogue is _nearest:
        return lambda: squares.argmin(dim=1)[:, 0]
    kernel = (-squares).exp()
    return lambda: kernel.sum(dim=1)[:, 0]


def _calls(name: str, n: int, threads: int) -> tuple[dict[str, Call], np.ndarray]:
    """By name, ready to be timed, and CHECKED rows of the exact result."""
    case, (m, k) = CASES[name], _shape(name, n)
    a, b = _operands(case, m, k)
    bt = np.ascontiguousarray(b.T)
    made = semiring(case.f, case.reduce, "int" if a.dtype.kind == "i" else "float")
    exact = np.concatenate([made.evaluate(a[i:i + 1], b.T) for i in range(min(CHECKED, m))])
    if case.epilogue is not None:
        exact = exact.argmin(-1) if case.epilogue is _nearest else np.exp(-exact).sum(-1)
    own = tw.contract(case.f, a[:1], bt, reduce=case.reduce, epilogue=case.epilogue)
    out = np.empty((m,) if case.epilogue else (m, m), own.dtype)
    x, y = (z.astype(np.float32) for z in (a, bt))
    found: dict[str, Call] = {
        "tilewright": (partial(tw.contract, case.f, reduce=case.reduce, epilogue=case.epilogue, out=out), (a, bt)),
        ALONE: (tw.matmul, (x, y, np.empty((m, m), np.float32)))}
    have = {peer for peer in PEERS if importlib.util.find_spec("pykeops" if peer == "keops" else peer) is not None}
    if "scipy" in have and case.cdist:
        from scipy.spatial.distance import cdist
        found["scipy"] = partial(cdist, metric=case.cdist[0]), (a, b)
    if "numba" in have and case.epilogue is not _nearest:
        import numba
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        loops = _numba(name, case, threads > 1)
        c = np.empty(out.shape, np.int8 if case.dtype == "i1" else out.dtype)
        found["numba"] = partial(_returning, loops, c), (a, b)
    if "torch" in have and case.cdist:
        import torch
        torch.set_num_threads(threads)
        power = 2 if case.reduce == "sum" and case.cdist[1] == 2 else 1
        found["torch"] = partial(_by_torch, case.cdist[1], power), (torch.from_numpy(a), torch.from_numpy(b))
    if "keops" in have and case.epilogue is not None:
        with suppress(Exception):               # without a C++ compiler, say
            call = _keops(case, a, b)
            call()
            ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)        # of the OpenMP that it is compiled with
            found["keops"] = call, ()
    return found, exact


def _returning(loops: Callable[..., Any], c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    loops(a, b, c)
    return c


def _by_torch(p: float, power: int, a: Any, b: Any) -> Any:
    import torch
    found = torch.cdist(a, b, p=p, compute_mode="donot_use_mm_for_euclid_dist")
    return found**power if power > 1 else found


def make(name: str, n: int, threads: int) -> study.Case:
    m, k = _shape(name, n)
    return study.Case({}, checked(f"{name} of {n}", *_calls(name, n, threads), 1e-4), bytes=4 * (m * m + 2 * m * k))
