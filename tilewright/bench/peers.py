"""Whom tilewright is compared with: every BLAS that is installed, each called as cheaply as it can be.

NumPy and torch are called as their users call them.  OpenBLAS, MKL and BLIS are C libraries: they are called through
a compiled wrapper with all arguments ready (thunk.py), gemv where m or n is 1, so that neither ctypes nor any argument
checking is held against them.  tilewright is called as `tilewright.matmul(a, b, out)`, argument checking included.
The C libraries run the widest kernels that they have and this CPU can run (widest.py); versions say which.

A `Contender` binds operands to a ready call.  `find(threads)` returns those that are here, and for the others a reason.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.bench import thunk, widest
from tilewright.measure import operands
from tilewright.measure.measure import Call
from tilewright.measure.operands import Operands
from tilewright.problem import Gemm

OURS = "tilewright"
PEERS = ("numpy", "openblas", "blis", "torch", "mkl")
NONE = "none"  # of --peers: tilewright alone
WHEELS = {"openblas": "scipy-openblas64", "blis": "blis", "torch": "torch", "mkl": "mkl"}
NATIVE, AVX2 = "native", "avx2"
CBLAS = "cblas_?gemm and ?gemv, compiled call"
Functions = dict[str, tuple[Any, Any]]  # number format -> its gemm and its gemv
ROW_MAJOR, NO_TRANS, TRANS = 101, 111, 112  # the CBLAS enumerations


class Unavailable(Exception):
    """Why a peer is left out, in words for the report."""


@dataclass(frozen=True)
class Contender:
    """One library, ready for a thread count."""

    name: str
    version: str
    how: str  # what one timed call is
    bind: Callable[[Operands], Call]
    max_call_s: float = math.inf  # it sits a case out where one call would take longer than this


def find(
    threads: int, wanted: Iterable[str] | None = None, isa: str = NATIVE
) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that are installed (tilewright first), and the reason for each peer that is not among them.

    `isa` narrows BLIS here; the others are told by the environment that session.py starts the process with.
    """
    finders: dict[str, Callable[[int], Contender]] = {
        OURS: tilewright,
        "numpy": numpy,
        "openblas": openblas,
        "blis": partial(blis, isa=isa),
        "torch": torch,
        "mkl": mkl,  # after torch, which would call this MKL instead of its own: MKL makes its functions global
    }
    asked = set(finders if wanted is None else wanted)
    check_names(asked)
    found, left_out = [], {}
    for name in (name for name in finders if name == OURS or name in asked):
        try:
            found.append(finders[name](threads))
        except Unavailable as reason:
            left_out[name] = str(reason)
    return found, left_out


def required(wanted: list[str] | None) -> list[str] | None:
    """`--peers` as `find` takes it: None for all that are here, [] for "none", which measures tilewright alone.

    ValueError at once for what is no peer, or is not installed, with what to do.
    """
    if not wanted:
        return None
    if wanted == [NONE]:
        return []
    check_names(wanted)
    missing = [name for name in wanted if name in WHEELS and not _is_there(name)]
    if missing:
        install = " ".join(WHEELS[name] for name in missing)
        raise ValueError(f"{' and '.join(missing)}: not installed; pip install {install}, or leave it out of --peers "
                         f"(--peers {NONE} measures tilewright alone)")
    return wanted


def _is_there(name: str) -> bool:
    if name == "mkl":
        return bool(_mkl_places())
    return importlib.util.find_spec(WHEELS[name].replace("-", "_")) is not None


def check_names(wanted: Iterable[str]) -> None:
    """ValueError if one of these is no peer."""
    unknown = sorted(set(wanted) - {OURS, *PEERS})
    if unknown:
        raise ValueError(f"unknown peer {unknown[0]!r}; the peers are {', '.join(PEERS)}")


def tilewright(threads: int) -> Contender:
    import tilewright as tw

    tw.set_num_threads(threads)
    matmul = tw.matmul
    return Contender(OURS, tw.__version__, "tilewright.matmul(a, b, out)", lambda o: (matmul, (o.a, o.b, o.c)))


def numpy(threads: int) -> Contender:
    """NumPy with the BLAS it was built with; its thread count comes from the environment child.py was started with."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    said = [f"{blas.get('name', 'no BLAS')} {blas.get('version', '')}".strip(), widest.numpy_kernels()]
    version = f"{np.__version__} ({', '.join(filter(None, said))})"
    try:
        import threadpoolctl
    except ImportError:
        pass
    else:
        threadpoolctl.threadpool_limits(limits=threads, user_api="blas")
    return Contender("numpy", version, "numpy.matmul(a, b, out)", lambda o: (np.matmul, (o.a, o.b, o.c)))


def torch(threads: int) -> Contender:
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    import torch as t

    t.set_num_threads(threads)

    def bind(o: Operands) -> Call:
        a, b, c = map(t.from_numpy, (o.a, o.b, o.c))
        return partial(t.mm, out=c), (a, b)

    mkl = re.search(r"Math Kernel Library Version ([\d.]+)", t.__config__.show())  # its own copy, linked in
    version = f"{t.__version__} (MKL {mkl[1]})" if mkl else str(t.__version__)
    return Contender("torch", version, "torch.mm(a, b, out=)", bind)


def openblas(threads: int) -> Contender:
    """The wheel scipy-openblas64: 64-bit integers and names of its own.

    It is not imported: that would make its functions global, under names that NumPy's own OpenBLAS has as well.
    """
    library = openblas_library()
    library.scipy_openblas_set_num_threads64_(threads)
    library.scipy_openblas_get_config64_.restype = library.scipy_openblas_get_corename64_.restype = ctypes.c_char_p
    number = library.scipy_openblas_get_config64_().decode().split()[1]
    version = f"{number} ({widest.named(library.scipy_openblas_get_corename64_().decode())})"
    functions = {
        "f32": (library.scipy_cblas_sgemm64_, library.scipy_cblas_sgemv64_),
        "f64": (library.scipy_cblas_dgemm64_, library.scipy_cblas_dgemv64_),
    }
    return Contender("openblas", version, CBLAS, partial(_cblas, functions, "l"))


def openblas_library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("scipy_openblas64")
    if spec is None or spec.origin is None:
        raise Unavailable("scipy-openblas64 is not installed")
    return _load((Path(spec.origin).parent / "lib").glob("libscipy_openblas64_*"))


def mkl_library(threads: int) -> ctypes.CDLL:
    """The library of the wheel mkl, which lies in the environment's lib folder.

    One thread takes the sequential layer, which has the cheapest call; several take Intel's OpenMP when it is there
    and TBB otherwise.  The layer must be chosen before the library is loaded.
    """
    places = _mkl_places()
    if not places:
        raise Unavailable("mkl is not installed")
    openmp = any(any(place.glob("libiomp5.so")) for place in [*places, *_files_of("intel-openmp")])
    layer = "SEQUENTIAL" if threads == 1 else "INTEL" if openmp else "TBB"
    os.environ.setdefault("MKL_THREADING_LAYER", layer)
    library = _load(file for place in places for file in place.glob("libmkl_rt.so*"))
    library.MKL_Set_Num_Threads(threads)
    return library


def _mkl_places() -> list[Path]:
    """Folders to find the wheel's libraries in; none if it is not installed."""
    places = [Path(sys.prefix) / "lib", *_files_of("mkl")]
    return places if any(any(place.glob("libmkl_rt.so*")) for place in places) else []


def mkl(threads: int) -> Contender:
    library = mkl_library(threads)
    text = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(text, 200)
    number = re.search(r"Version ([\d.]+)", text.value.decode(errors="replace"))
    functions = {
        "f32": (library.cblas_sgemm, library.cblas_sgemv),
        "f64": (library.cblas_dgemm, library.cblas_dgemv),
    }
    bind = partial(_cblas, functions, "i")
    small = operands.make(Gemm(64, 64, 64))
    multiply, _ = bind(small)
    multiply()  # loads the kernels
    said = [os.environ["MKL_THREADING_LAYER"].lower(), widest.mkl_kernels()]
    version = f"{number[1] if number else '?'} ({', '.join(filter(None, said))})"
    return Contender("mkl", version, CBLAS, bind)


def blis(threads: int, isa: str = NATIVE) -> Contender:
    """The wheel blis: one thread only, its C interface inside a Python extension module.

    It is an old BLIS that takes CPUs it has not heard of for generic ones, and cannot be told otherwise through the
    environment; but every call may name the kernels (the "context") it wants, and a trial says which are fastest.
    """
    spec = importlib.util.find_spec("blis")
    if spec is None or spec.origin is None:
        raise Unavailable("blis is not installed")
    if threads != 1:
        raise Unavailable("the blis wheel is built without threads")
    library = _load(Path(spec.origin).parent.glob("cy.*.so"))
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
        names = widest.blis_names(own, isa == AVX2)
        contexts = {name: library.bli_gks_lookup_nat_cntx(numbers[name]) for name in names if name in numbers}
    except AttributeError as missing:
        raise Unavailable(f"this blis has no typed C interface ({missing})") from None
    trial = operands.make(Gemm(384, 384, 384))
    core = widest.fastest({name: _bli(functions, context, trial) for name, context in contexts.items()})
    version = f"{library.bli_info_get_version_str().decode()} ({core}, the fastest here of {', '.join(contexts)})"
    bind = partial(_bli, functions, contexts[core])
    return Contender("blis", version, "bli_?gemm_ex and ?gemv_ex, compiled call", bind)


def _cblas(functions: Functions, integer: str, o: Operands) -> Call:
    """cblas_?gemm(order, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); `integer` is its width."""
    p, (lda, ldb, ldc) = o.problem, o.leading
    i, real = integer, "f" if p.a == "f32" else "d"
    a, b, c = (x.ctypes.data for x in (o.a, o.b, o.c))
    gemm, gemv = functions[p.a]
    values: tuple[float, ...]
    if 1 in (p.m, p.n):
        # cblas_?gemv(order, trans, rows, columns, alpha, matrix, ld, x, incx, beta, y, incy), as NumPy would call it
        matrix, ld, x, trans = (a, lda, b, p.layout[0] == "t") if p.n == 1 else (b, ldb, a, p.layout[1] == "n")
        rows, columns = p.shape_a if p.n == 1 else p.shape_b
        values = (ROW_MAJOR, TRANS if trans else NO_TRANS, rows, columns, 1.0, matrix, ld, x, 1, 0.0, c, 1)
        return thunk.bind(address(gemv), f"ii{i}{i}{real}p{i}p{i}{real}p{i}", values), ()
    trans_a, trans_b = (NO_TRANS if letter == "n" else TRANS for letter in p.layout)
    values = (ROW_MAJOR, trans_a, trans_b, p.m, p.n, p.k, 1.0, a, lda, b, ldb, 0.0, c, ldc)
    return thunk.bind(address(gemm), f"iii{i}{i}{i}{real}p{i}p{i}{real}p{i}", values), ()


def _bli(functions: Functions, context: int, o: Operands) -> Call:
    """bli_?gemm_ex(transa, transb, m, n, k, &alpha, a, rsa, csa, b, rsb, csb, &beta, c, rsc, csc, context, NULL)."""
    p, size = o.problem, o.c.itemsize
    scalars = np.array([1.0, 0.0], o.c.dtype)
    one, zero = scalars.ctypes.data, scalars.ctypes.data + size
    # Row and column strides say how a matrix is stored, so nothing is ever "transposed" (0, 0).
    a, b, c = ((x.ctypes.data, *(stride // size for stride in x.strides)) for x in (o.a, o.b, o.c))
    gemm, gemv = functions[p.a]
    values: tuple[float, ...]
    if 1 in (p.m, p.n):
        # bli_?gemv_ex(transa, conjx, rows, columns, &alpha, matrix, rs, cs, x, incx, &beta, y, incy, context, NULL)
        rows, (at, rs, cs), x = (p.m, a, b) if p.n == 1 else (p.n, (b[0], b[2], b[1]), a)
        values = (0, 0, rows, p.k, one, at, rs, cs, x[0], 1, zero, c[0], 1, context, 0)
        return thunk.bind(address(gemv), "iillppllplpplpp", values, keep=scalars), ()
    values = (0, 0, p.m, p.n, p.k, one, *a, *b, zero, *c, context, 0)
    return thunk.bind(address(gemm), "iilllppllpllppllpp", values, keep=scalars), ()


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _files_of(distribution: str) -> list[Path]:
    """The folders a wheel has put its shared libraries in."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted({Path(str(file.locate())).resolve().parent for file in files if ".so" in file.name})


def _load(candidates: Iterable[Path]) -> ctypes.CDLL:
    """The first candidate that the loader accepts; PyDLL would hold the GIL, which set-up calls need not."""
    reason = "its shared library was not found"
    for path in candidates:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            reason = str(error)
    raise Unavailable(reason)
