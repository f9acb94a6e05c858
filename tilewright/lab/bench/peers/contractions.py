"""Peers of products with their own arithmetic alone (suites/contract.py): scipy on one thread, numba and KeOps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from tilewright.lab.bench.peer import Library
from tilewright.lab.measure.measure import Call


def by_scipy(case: Any, a: np.ndarray, b: np.ndarray, **_: Any) -> Mapping[str, list[Call]]:
    if not case.cdist:
        return {}
    from scipy.spatial.distance import cdist
    return {"scipy": [(partial(cdist, metric=case.cdist[0]), (a, b))]}


def by_numba(case: Any, a: np.ndarray, b: np.ndarray, out: np.ndarray, threads: int) -> Mapping[str, list[Call]]:
    import numba

    from tilewright.lab.bench.suites.contract import nearest
    if case.epilogue is nearest:
        return {}
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    loops = _loops(case, threads > 1)
    c = np.empty(out.shape, np.int8 if case.dtype == "i1" else out.dtype)

    def call(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        loops(a, b, c)
        return c
    return {"numba": [(call, (a, b))]}


def _loops(case: Any, parallel: bool) -> Callable[..., Any]:
    from tilewright.lab.bench.peers import _numba_contract as loops
    from tilewright.lab.bench.suites import contract as suite

    if case.epilogue is suite.kernel_sums:
        return loops.rows(lambda s: np.exp(-s), lambda x, y: x + y, 0.0, parallel)
    if case.reduce == "logsumexp":
        return loops.logsumexp(lambda x, y: x + y, parallel)
    if case.reduce == "argmin":
        return loops.argmin(lambda x, y: x + y, parallel)
    term = {suite.squares: lambda x, y: (x - y) * (x - y), suite.distances: lambda x, y: abs(x - y),
            suite.added: lambda x, y: x + y, suite.common: lambda x, y: x & y, suite.bits: loops.bits_that_differ,
            suite.bells: lambda x, y: np.exp(-(x - y) * (x - y))}[case.f]
    both, first = {"sum": (lambda x, y: x + y, 0), "max": (lambda x, y: max(x, y), -np.inf),
                   "min": (lambda x, y: min(x, y), np.inf), "any": (lambda x, y: x | y, 0),
                   suite.OR: (lambda x, y: x | y, 0)}[case.reduce]
    return loops.product(term, both, first, parallel)


def by_keops(case: Any, a: np.ndarray, b: np.ndarray, threads: int, **_: Any) -> Mapping[str, list[Call]]:
    """What it has: sums and nearest neighbours over all points, in f32."""
    from tilewright.lab.bench.suites.contract import nearest
    if case.epilogue is None:
        return {}
    with suppress(Exception):               # without a C++ compiler, say
        from pykeops.numpy import LazyTensor
        squares = ((LazyTensor(a[:, None, :]) - LazyTensor(b[None, :, :]))**2).sum(-1)
        kernel = (-squares).exp()
        call = (lambda: squares.argmin(dim=1)[:, 0]) if case.epilogue is nearest else (lambda: kernel.sum(dim=1)[:, 0])
        call()
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)        # of the OpenMP that it is compiled with
        return {"keops": [(call, ())]}
    return {}


SCIPY = Library("scipy", wheel="scipy", studies={"contract": by_scipy})
NUMBA = Library("numba", wheel="numba", studies={"contract": by_numba})
KEOPS = Library("keops", wheel="pykeops", studies={"contract": by_keops})
