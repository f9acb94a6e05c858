"""NumPy, with the BLAS it was built with; where that is a plain loop, also what its users do instead."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from tilewright import formats
from tilewright.formats import Integer
from tilewright.lab.bench.cases import Product
from tilewright.lab.bench.peer import Library, Peer, Setting, Way
from tilewright.lab.bench.peers import cblas
from tilewright.lab.measure.measure import Call
from tilewright.lab.measure.operands import Array, Operands


def load(setting: Setting) -> Peer:
    """Its thread count also comes from the environment that the process was started with."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    said = [f"{blas.get('name', 'no BLAS')} {blas.get('version', '')}".strip(), kernels()]
    version = f"{np.__version__} ({', '.join(filter(None, said))})"
    try:
        import threadpoolctl
    except ImportError:
        pass
    else:
        threadpoolctl.threadpool_limits(limits=setting.threads, user_api="blas")
    einsum = Way("numpy", "numpy.einsum(subscripts, a, b, order='C', optimize=True)",
                 lambda o: (partial(np.einsum, o.subscripts, order="C", optimize=True), (o.a, o.b)))
    return Peer("numpy", version, "numpy.matmul(a, b, out)", ways, einsum=einsum)


def kernels() -> str | None:
    """The kernels of the OpenBLAS that NumPy is linked with; None if it is another BLAS, or an OpenBLAS for one CPU."""
    module = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    # A symbol is also looked for in what the library depends on: NumPy's own copy is found, even if others are loaded.
    library = ctypes.CDLL(getattr(module, "__file__", None))
    for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
        if hasattr(library, name):
            corename = library[name]
            corename.restype = ctypes.c_char_p
            return cblas.named(corename().decode())
    return None


def ways(product: Product) -> Iterator[Way]:
    """numpy.matmul, and for integers and f16, which are plain loops there, by way of floats.

    The dtype of its result is NumPy's choice unless `dtype` is given, and sums of integers wrap in that.
    """
    a, b, out = (formats.get(x) for x in (product.a, product.b, product.out))
    try:
        own = np.matmul(np.zeros((1, 1), a.dtype), np.zeros((1, 1), b.dtype)).dtype
    except TypeError:
        return
    wider = own != out.dtype and (product.exact or np.can_cast(own, out.dtype, "safe"))
    call = partial(np.matmul, dtype=out.dtype) if wider else np.matmul
    said = f", dtype={out.dtype}" if wider else ""
    yield Way("numpy", f"numpy.matmul(a, b, out{said})", lambda o: (call, (o.a, o.b, o.c)))
    if isinstance(a, Integer) and isinstance(b, Integer) and max(a.bits, b.bits) <= 16:
        yield Way("numpy floats", "numpy.matmul of floats that hold every sum, cast", _through_floats)
    elif product.out == "f16":
        cast = partial(np.matmul, dtype=np.float32, casting="unsafe")
        yield Way("numpy floats", "numpy.matmul(a, b, out, dtype=f32)", lambda o: (cast, (o.a, o.b, o.c)))


def _through_floats(o: Operands) -> Call:
    """f32 or f64, whichever holds every sum, and by way of int64 where the result's integers do not."""
    limits = [max(-formats.get(x).smallest, formats.get(x).largest) for x in (o.problem.a, o.problem.b)]
    most = o.a.shape[1] * limits[0] * limits[1]
    kind = np.dtype(np.float32 if most < 2**24 else np.float64)
    direct = most <= formats.get(o.problem.out).largest

    def call() -> None:
        product = np.matmul(o.a, o.b, dtype=kind)
        np.copyto(o.c, product if direct else product.astype(np.int64), casting="unsafe")

    return call, ()


def elementwise(case: str, arrays: list[list[Array]]) -> Mapping[str, list[Call]]:
    if case == "z = x + y":
        return {"numpy": [(np.add, (x, y, z)) for x, y, z in arrays]}
    return {"numpy": [(np.sum, (x, 1, None, sums)) for x, sums in arrays]}


def weights(x: Array, w: Array, by_rows: bool) -> Mapping[str, list[Call]]:
    return {"numpy f32": [(np.matmul, (x.astype(np.float32), w.T if by_rows else w))]}


PEER = Library("numpy", load, order=0, studies={"elementwise": elementwise, "weights": weights},
               threads="NUMEXPR", steered_by=("NPY_",))
