"""The functions of MKL and OpenBLAS for formats other than f32 and f64, as ready calls (thunk.py).

Narrow formats are MKL's alone: cblas_gemm_bf16bf16f32 and its like, and hgemm, each also with B packed beforehand, as
are sgemm and dgemm.  Its bytes are u8 by i8; i8 by i8 is given to it as A + 128 and the offset -128, A shifted before
the clock runs, which is a pass over A in its favour.  Complex numbers are both libraries'.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np

from tilewright.bench import peers, thunk
from tilewright.bench.formats_data import Matrices
from tilewright.bench.formats_products import Product
from tilewright.bench.peers import NO_TRANS, ROW_MAJOR
from tilewright.measure.measure import Call
from tilewright.measure.operands import Array

PACKED, B_MATRIX, FIXED_OFFSET = 151, 162, 173  # CBLAS enumerations of MKL's own
ALIGNMENT = 64  # of a packed B, in bytes

Found = tuple[str, str, Callable[[Matrices], Call], bool]  # the fields of an Entrant

FLOATS = {
    "bf16-bf16-f32": "cblas_gemm_bf16bf16f32",
    "f16-f16-f32": "cblas_gemm_f16f16f32",
    "e4m3fn-e4m3fn-f32": "cblas_gemm_e4m3e4m3f32",
    "e5m2-e5m2-f32": "cblas_gemm_e5m2e5m2f32",
}
INTEGERS = {
    "u8-i8-i32": "cblas_gemm_s8u8s32",
    "i8-i8-i32": "cblas_gemm_s8u8s32",
    "i16-i16-i32": "cblas_gemm_s16s16s32",
}
# Of these alpha is applied when B is packed.  An f16 number is passed as its bits, in an integer register.
ALIKE = {
    "f16-f16-f16": ("cblas_hgemm", "i", 0x3C00),
    "f32-f32-f32": ("cblas_sgemm", "f", 1.0),
    "f64-f64-f64": ("cblas_dgemm", "d", 1.0),
}
COMPLEX = {"c64-c64-c64": "cblas_cgemm", "c128-c128-c128": "cblas_zgemm"}


@cache
def _mkl(threads: int) -> ctypes.CDLL:
    return peers.mkl_library(threads)


def functions(library: str, product: Product, threads: int) -> Iterator[Found]:
    """What this library has for the product beside peers.find's sgemm and dgemm: also the function for a packed B."""
    kind = product.formats
    if kind in COMPLEX:
        yield library, f"{COMPLEX[kind]}, compiled call", partial(_complex, library, COMPLEX[kind], threads), False
    if library != "mkl":
        return
    names = {**FLOATS, **INTEGERS, **{key: name for key, (name, *_) in ALIKE.items()}}
    call = _integer if kind in INTEGERS else _alike if kind in ALIKE else _float
    name = names.get(kind, "")
    if name and hasattr(_mkl(threads), name) and kind not in ("f32-f32-f32", "f64-f64-f64"):
        shifted = " of A + 128 with the offset -128" if kind == "i8-i8-i32" else ""
        yield "mkl", f"{name}{shifted}, compiled call", partial(call, name, threads, False), False
    if name and hasattr(_mkl(threads), f"{name}_compute"):
        yield "mkl packed", f"{name}_compute, B by {name}_pack", partial(call, name, threads, True), True


def _float(name: str, threads: int, packed: bool, s: Matrices) -> Call:
    """(order, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)."""
    library, (m, n, k) = _mkl(threads), s.sizes
    b, trans_b = (_packed(library, name, s), PACKED) if packed else (s.b, NO_TRANS)
    at = [x.ctypes.data for x in (s.a, b, s.c)]
    values = (ROW_MAJOR, NO_TRANS, trans_b, m, n, k, 1.0, at[0], k, at[1], n, 0.0, at[2], n)
    function = library[f"{name}_compute" if packed else name]
    return thunk.bind(peers.address(function), "iiiiiifpipifpi", values, keep=(s, b)), ()


def _alike(name: str, threads: int, packed: bool, s: Matrices) -> Call:
    """As _float, but with alpha and beta of the operands' format, and no alpha where B is packed."""
    library, (m, n, k) = _mkl(threads), s.sizes
    _, real, one = ALIKE[s.product.formats]
    b, trans_b = (_packed(library, name, s, real, one), PACKED) if packed else (s.b, NO_TRANS)
    at = [x.ctypes.data for x in (s.a, b, s.c)]
    scale = () if packed else (one,)
    values = (ROW_MAJOR, NO_TRANS, trans_b, m, n, k, *scale, at[0], k, at[1], n, 0, at[2], n)
    function = library[f"{name}_compute" if packed else name]
    signature = f"iiiiii{real * len(scale)}pipi{real}pi"
    return thunk.bind(peers.address(function), signature, values, keep=(s, b)), ()


def _integer(name: str, threads: int, packed: bool, s: Matrices) -> Call:
    """(order, transa, transb, offsetc, m, n, k, alpha, a, lda, ao, b, ldb, bo, beta, c, ldc, co): (A + ao) (B + bo)."""
    library, (m, n, k) = _mkl(threads), s.sizes
    a, offset = (s.a.view(np.uint8) ^ np.uint8(128), -128) if s.product.a == "i8" else (s.a, 0)
    b, trans_b = (_packed(library, name, s), PACKED) if packed else (s.b, NO_TRANS)
    zero = np.zeros(1, np.int32)
    at = [x.ctypes.data for x in (a, b, s.c, zero)]
    sizes = (ROW_MAJOR, NO_TRANS, trans_b, FIXED_OFFSET, m, n, k)
    values = (*sizes, 1.0, at[0], k, offset, at[1], n, 0, 0.0, at[2], n, at[3])
    function = library[f"{name}_compute" if packed else name]
    return thunk.bind(peers.address(function), "iiiiiiifpiipiifpip", values, keep=(s, a, b, zero)), ()


def _packed(library: ctypes.CDLL, name: str, s: Matrices, real: str = "", one: float = 1.0) -> Array:
    """B in MKL's own order: (order, identifier, trans, m, n, k, [alpha], b, ldb, packed)."""
    m, n, k = s.sizes
    size = library[f"{name}_pack_get_size"]
    size.restype = ctypes.c_size_t
    space = np.empty(size(B_MATRIX, m, n, k) + ALIGNMENT, np.uint8)
    packed = space[-space.ctypes.data % ALIGNMENT :]
    scale = (one,) if real else ()
    values = (ROW_MAJOR, B_MATRIX, NO_TRANS, m, n, k, *scale, s.b.ctypes.data, n, packed.ctypes.data)
    thunk.bind(peers.address(library[f"{name}_pack"]), f"iiiiii{real}pip", values)()
    return packed


def _complex(library: str, name: str, threads: int, s: Matrices) -> Call:
    """As _float, but alpha and beta are pointers."""
    if library == "mkl":
        function, i = _mkl(threads)[name], "i"
    else:
        function, i = peers.openblas_library()[f"scipy_{name}64_"], "l"
    (m, n, k), scalars = s.sizes, np.array([1, 0], s.c.dtype)
    one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    a, b, c = (x.ctypes.data for x in (s.a, s.b, s.c))
    values = (ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, one, a, k, b, n, zero, c, n)
    return thunk.bind(peers.address(function), f"iii{i}{i}{i}pp{i}p{i}pp{i}", values, keep=(s, scalars)), ()
