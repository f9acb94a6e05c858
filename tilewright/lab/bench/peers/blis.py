"""BLIS by the wheel blis: one thread only, its C interface inside a Python extension module.

It is an old BLIS that takes CPUs it has not heard of for generic ones, and no environment variable
overrides that; but every call may name the kernels (the "context") it wants, and a trial says which are fastest.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from tilewright.lab.bench.cases import AVX2, REAL, Product
from tilewright.lab.bench.peer import Library, Peer, Setting, Unavailable, Way
from tilewright.lab.bench.peers import cblas
from tilewright.lab.measure import check, measure, operands
from tilewright.lab.measure.machine import cpu_flags
from tilewright.lab.measure.measure import Call, Clock, Rules
from tilewright.lab.measure.operands import Operands
from tilewright.problem import Gemm

HOW = "bli_?gemm_ex and ?gemv_ex, compiled call"


def load(setting: Setting) -> Peer:
    if setting.threads != 1:
        raise Unavailable("the blis wheel is built without threads")
    library = cblas.shared_library(cblas.folder_of("blis").glob("cy.*.so"))
    try:
        library.bli_init()
        library.bli_arch_string.restype = library.bli_info_get_version_str.restype = ctypes.c_char_p
        library.bli_gks_lookup_nat_cntx.restype = ctypes.c_void_p
        if library.bli_info_get_int_type_size() != 64:
            raise Unavailable("this blis was built with 32-bit integers")
        functions = {
            "f32": (library.bli_sgemm_ex, library.bli_sgemv_ex),
            "f64": (library.bli_dgemm_ex, library.bli_dgemv_ex),
        }
        own = library.bli_arch_string(library.bli_arch_query_id()).decode()
        numbers: dict[str, int] = {}
        while "generic" not in numbers:  # the last of BLIS's list
            numbers[library.bli_arch_string(len(numbers)).decode()] = len(numbers)
        names = kernels(own, setting.isa == AVX2)
        contexts = {name: library.bli_gks_lookup_nat_cntx(numbers[name]) for name in names if name in numbers}
        contexts = {name: at for name, at in contexts.items() if _overwrites(*functions["f64"], at)} or contexts
    except AttributeError as missing:
        raise Unavailable(f"this blis has no typed C interface ({missing})") from None
    trial = operands.make(Gemm(384, 384, 384))
    core = fastest({name: _bli(*functions["f32"], context, trial) for name, context in contexts.items()})
    version = f"{library.bli_info_get_version_str().decode()} ({core}, the fastest here of {', '.join(contexts)})"

    def ways(product: Product) -> Iterator[Way]:
        if product.formats in REAL:
            yield Way("blis", HOW, partial(_bli, *functions[product.a], contexts[core]))

    return Peer("blis", version, HOW, ways)


def _overwrites(gemm: Any, gemv: Any, context: int) -> bool:
    """Whether C is written and not added to where beta is 0: the kernels "haswell" of 0.7 do that wrong for k = 1."""
    o = operands.make(Gemm(37, 29, 1, "f64", layout="nt"))
    multiply, _ = _bli(gemm, gemv, context, o)
    multiply()
    return check.wrong(o.a, o.b, o.c) is None


def kernels(own: str, avx2_only: bool) -> list[str]:
    """BLIS's names of the kernels worth trying here: its own choice, and those for CPUs with the same instructions.

    Its portable kernels ("generic") are tried only where there is nothing else: they would say nothing of BLIS.
    """
    mine = [] if avx2_only or own == "generic" else [own]
    avx2 = ["haswell", "zen2"] if cpu_flags() >= {"avx2", "fma"} else []
    avx512 = ["skx"] if cblas.has_avx512() and not avx2_only else []
    return list(dict.fromkeys([*mine, *avx2, *avx512])) or [own]


def fastest(calls: Mapping[str, Call], clock: Clock = time.perf_counter) -> str:
    """The name of the fastest of a few calls that do the same work, taken in turns for some hundredths of a second."""
    rules = Rules(turn_s=0.002, warm_s=0.0, min_rounds=5, max_rounds=5)
    samples = measure.interleave({name: [call] for name, call in calls.items()}, rules, clock=clock)
    return min(samples, key=lambda name: samples[name].spread.median)


def _bli(gemm: Any, gemv: Any, context: int, o: Operands) -> Call:
    """bli_?gemm_ex(transa, transb, m, n, k, &alpha, a, rsa, csa, b, rsb, csb, &beta, c, rsc, csc, context, NULL)."""
    p, size = o.problem, o.c.itemsize
    cblas.require_one(o)
    scalars = np.array([1.0, 0.0], o.c.dtype)
    one, zero = scalars.ctypes.data, scalars.ctypes.data + size
    # Row and column strides say how a matrix is stored, so nothing is ever "transposed" (0, 0).
    a, b, c = ((x.ctypes.data, *(stride // size for stride in x.strides)) for x in (o.a, o.b, o.c))
    values: tuple[float, ...]
    if 1 in (p.m, p.n):
        # bli_?gemv_ex(transa, conjx, rows, columns, &alpha, matrix, rs, cs, x, incx, &beta, y, incy, context, NULL)
        rows, (at, rs, cs), x, step = (p.m, a, b, b[1]) if p.n == 1 else (p.n, (b[0], b[2], b[1]), a, a[2])
        values = (0, 0, rows, p.k, one, at, rs, cs, x[0], step, zero, c[0], 1, context, 0)
        return cblas.bind(gemv, "iillppllplpplpp", values, keep=(o, scalars)), ()
    values = (0, 0, p.m, p.n, p.k, one, *a, *b, zero, *c, context, 0)
    return cblas.bind(gemm, "iilllppllpllppllpp", values, keep=(o, scalars)), ()


PEER = Library("blis", load, "blis", compiled=True, order=20, threads="BLIS", steered_by=("BLIS_",))
