"""OpenBLAS by the wheel scipy-openblas64, and what it shares with the other C libraries: CBLAS's arguments, a call
without Python's overhead, and how their kernels are named.

A BLAS reached through ctypes pays some 700 ns for converting fourteen arguments, which at 64 x 64 is a tenth of the
work.  So that this is not held against the peers, each signature gets a small compiled wrapper that costs 20 ns: a
CPython builtin without arguments whose `self` is a bytes object holding the address of the function and its arguments,
read straight from there.  The GIL stays held, as nothing else runs in a measuring process.

A library knows CPUs by name, and one that is younger than itself may get narrow kernels; being compared with those
would flatter tilewright.  What a library chose is named, and called narrow where it is.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler import installed
from tilewright.compiler.artefact import load as load_code
from tilewright.ir import Function, Kernel, f32, f64, i8, i32, i64, ptr
from tilewright.lab.bench.cases import REAL, Product
from tilewright.lab.bench.peer import Library, Peer, Setting, Unavailable, Unfit, Way
from tilewright.lab.measure.machine import cpu_flags
from tilewright.lab.measure.measure import Call
from tilewright.lab.measure.operands import Operands
from tilewright.runtime.cpu.layout import Method
from tilewright.targets import CpuTarget, detect

CBLAS = "cblas_?gemm and ?gemv, compiled call"
ROW_MAJOR, NO_TRANS, TRANS = 101, 111, 112  # the CBLAS enumerations
COMPLEX = {"c64-c64-c64": "cblas_cgemm", "c128-c128-c128": "cblas_zgemm"}
AVX2_KERNELS = ("Haswell", "Zen", "libmkl_def", "libmkl_avx2")  # OpenBLAS's names and MKL's: 256 bits at most

# ---- OpenBLAS, whose wheel has 64-bit integers and names of its own


def load(setting: Setting) -> Peer:
    """It is not imported: that would make its functions global, under names that NumPy's own OpenBLAS has as well."""
    library = shared_library((folder_of("scipy_openblas64") / "lib").glob("libscipy_openblas64_*"))
    library.scipy_openblas_set_num_threads64_(setting.threads)
    library.scipy_openblas_get_config64_.restype = library.scipy_openblas_get_corename64_.restype = ctypes.c_char_p
    number = library.scipy_openblas_get_config64_().decode().split()[1]
    version = f"{number} ({named(library.scipy_openblas_get_corename64_().decode())})"
    return Peer("openblas", version, CBLAS, partial(ways, "openblas", library, "l", "scipy_{}64_"))


PEER = Library("openblas", load, "scipy-openblas64", compiled=True, order=10, threads="OPENBLAS",
               steered_by=("OPENBLAS_",), avx2={"OPENBLAS_CORETYPE": "Haswell"})


def ways(name: str, library: ctypes.CDLL, integer: str, symbol: str, product: Product) -> Iterator[Way]:
    """The products that every CBLAS has; `symbol` makes a function's name, `integer` is the width of its sizes."""
    if product.formats in REAL:
        letter = "s" if product.a == "f32" else "d"
        gemm, gemv = (library[symbol.format(f"cblas_{letter}{kind}")] for kind in ("gemm", "gemv"))
        yield Way(name, CBLAS, partial(real, gemm, gemv, integer))
    elif function := COMPLEX.get(product.formats):
        yield Way(name, f"{function}, compiled call", partial(complex_gemm, library[symbol.format(function)], integer))


# ---- CBLAS's arguments


def require_one(o: Operands) -> None:
    """Unfit for a batch, which these functions have no argument for."""
    if o.problem.batch != 1:
        raise Unfit("it multiplies one matrix at a time")


def real(gemm: Any, gemv: Any, integer: str, o: Operands) -> Call:
    """cblas_?gemm(order, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); `integer` is its width."""
    require_one(o)
    p, (lda, ldb, ldc) = o.problem, o.leading
    i, number = integer, "f" if p.a == "f32" else "d"
    a, b, c = (x.ctypes.data for x in (o.a, o.b, o.c))
    values: tuple[float, ...]
    if 1 in (p.m, p.n):
        # cblas_?gemv(order, trans, rows, columns, alpha, matrix, ld, x, incx, beta, y, incy), as NumPy would call it
        matrix, ld, x, trans = (a, lda, b, p.layout[0] == "t") if p.n == 1 else (b, ldb, a, p.layout[1] == "n")
        rows, columns = p.shape_a if p.n == 1 else p.shape_b
        step = (o.b.strides[0] if p.n == 1 else o.a.strides[1]) // o.a.itemsize
        values = (ROW_MAJOR, TRANS if trans else NO_TRANS, rows, columns, 1.0, matrix, ld, x, step, 0.0, c, 1)
        return bind(gemv, f"ii{i}{i}{number}p{i}p{i}{number}p{i}", values, keep=o), ()
    trans_a, trans_b = (NO_TRANS if letter == "n" else TRANS for letter in p.layout)
    values = (ROW_MAJOR, trans_a, trans_b, p.m, p.n, p.k, 1.0, a, lda, b, ldb, 0.0, c, ldc)
    return bind(gemm, f"iii{i}{i}{i}{number}p{i}p{i}{number}p{i}", values, keep=o), ()


def complex_gemm(function: Any, integer: str, o: Operands) -> Call:
    """A complex GEMM, as `real`, but alpha and beta are pointers."""
    require_plain(o)
    i = integer
    (m, n, k), scalars = o.sizes, np.array([1, 0], o.c.dtype)
    one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    a, b, c = (x.ctypes.data for x in (o.a, o.b, o.c))
    values = (ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, one, a, k, b, n, zero, c, n)
    return bind(function, f"iii{i}{i}{i}pp{i}p{i}pp{i}", values, keep=(o, scalars)), ()


def require_plain(o: Operands) -> None:
    """Unfit but for one product of matrices that are stored by rows without gaps."""
    require_one(o)
    if o.problem.layout != "nn" or o.leading != (o.sizes[2], o.sizes[1], o.sizes[1]):
        raise Unfit("only row-major matrices without gaps are timed with it")


# ---- libraries and their kernels


def folder_of(module: str) -> Path:
    """Where an installed package is, without importing it."""
    for folder in installed.folders():
        if (folder / module).is_dir():
            return folder / module
    raise Unavailable(f"{module} is not installed")


def files_of(distribution: str) -> list[Path]:
    """The folders a wheel has put its shared libraries in."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted({Path(str(file.locate())).resolve().parent for file in files if ".so" in file.name})


def shared_library(candidates: Iterable[Path]) -> ctypes.CDLL:
    """The first candidate that the loader accepts; PyDLL would hold the GIL, which set-up calls need not."""
    reason = "its shared library was not found"
    for path in candidates:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            reason = str(error)
    raise Unavailable(reason)


def has_avx512() -> bool:
    """The part of AVX-512 that kernels for Skylake-X use, and every later CPU with AVX-512 has."""
    return cpu_flags() >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def named(kernels: str) -> str:
    """The name of a library's kernels, with a remark if this CPU runs wider ones."""
    return kernels + ": narrower than this CPU" * (kernels in AVX2_KERNELS and has_avx512())


# ---- a C function with fixed arguments as a Python callable

METH_NOARGS = 0x0004
DATA = bytes.__basicsize__ - 1  # where the contents of a bytes object start
# Signature letter -> (type, struct code).  Every field takes 8 bytes.
FIELDS = {"i": (i32, "i4x"), "l": (i64, "q"), "p": (i64, "Q"), "f": (f32, "f4x"), "d": (f64, "d")}


def emit_call(target: CpuTarget, SIGNATURE: str) -> Function:
    """`PyObject *call(PyObject *self, PyObject *unused)`: self is a bytes object with the addresses of the function, of
    Py_IncRef and of None, and the arguments; SIGNATURE: such as "iiillldplpldpl"."""
    k = Kernel("call", block=ptr(i8), unused=i64, result=i64)
    kinds = ptr(i8), ptr(i8), i64, *(FIELDS[letter][0] for letter in SIGNATURE)
    function, incref, none, *arguments = (k.field(k.args[0], DATA + 8 * at, T) for at, T in enumerate(kinds))
    k.call(function, *arguments)
    k.call(incref, none)
    k.ret(none)
    return k.function


@cache
def _method(signature: str) -> Method:
    """The compiled wrapper of a signature, for the life of the process."""
    return Method(b"call", load_code(emit_call, detect(), signature).address("call"), METH_NOARGS, None)


def bind(function: Any, signature: str, values: tuple[float, ...], keep: object = None) -> Callable[[], None]:
    """A callable without arguments that calls the void C function (of ctypes) with `values`.

    What the pointers among the values point to must outlive the callable; `keep` is kept alive with it.
    """
    if len(values) != len(signature):
        raise ValueError(f"signature {signature!r} takes {len(signature)} values, got {len(values)}")
    called, incref = (ctypes.cast(f, ctypes.c_void_p).value for f in (function, ctypes.pythonapi.Py_IncRef))
    codes = "=3Q" + "".join(FIELDS[letter][1] for letter in signature)
    block = struct.pack(codes, called, incref, id(None), *values)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    # The last argument is what the builtin reports as its module: any object, and it holds a reference.
    bound: Callable[[], None] = new(ctypes.addressof(_method(signature)), block, keep)
    return bound
