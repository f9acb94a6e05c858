"""OpenBLAS by the wheel scipy-openblas64: 64-bit integers and names of its own.

It is not imported: that would make its functions global, under names that NumPy's own OpenBLAS has as well.
Its kernels go by the CPU's features where it does not know the model.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tilewright.bench.cases import REAL, Product
from tilewright.bench.peer import Library, Peer, Setting, Unavailable, Way
from tilewright.bench.peers import _blas


def load(setting: Setting) -> Peer:
    spec = importlib.util.find_spec("scipy_openblas64")
    if spec is None or spec.origin is None:
        raise Unavailable("scipy-openblas64 is not installed")
    library = _blas.shared_library((Path(spec.origin).parent / "lib").glob("libscipy_openblas64_*"))
    library.scipy_openblas_set_num_threads64_(setting.threads)
    library.scipy_openblas_get_config64_.restype = library.scipy_openblas_get_corename64_.restype = ctypes.c_char_p
    number = library.scipy_openblas_get_config64_().decode().split()[1]
    version = f"{number} ({_blas.named(library.scipy_openblas_get_corename64_().decode())})"
    return Peer("openblas", version, _blas.CBLAS, partial(ways, library))


def ways(library: ctypes.CDLL, product: Product) -> Iterator[Way]:
    if product.formats in REAL:
        letter = "s" if product.a == "f32" else "d"
        gemm, gemv = (library[f"scipy_cblas_{letter}{name}64_"] for name in ("gemm", "gemv"))
        yield Way("openblas", _blas.CBLAS, partial(_blas.real, gemm, gemv, "l"))
    elif name := _blas.COMPLEX.get(product.formats):
        bind = partial(_blas.complex_gemm, library[f"scipy_{name}64_"], "l")
        yield Way("openblas", f"{name}, compiled call", bind)


PEER = Library("openblas", load, "scipy-openblas64", compiled=True, order=10, threads="OPENBLAS",
               steered_by=("OPENBLAS_",), avx2={"OPENBLAS_CORETYPE": "Haswell"})
