"""MKL by the wheel mkl, which lies in the environment's lib folder; loaded after torch (see PEER).

It has functions for narrow formats, each also with B packed beforehand, as are sgemm and dgemm.  Its bytes are u8 by
i8; i8 by i8 is given to it as A + 128 and the offset -128, A shifted before the clock runs, which spares it a pass.
It chooses its kernels by the CPU's maker, and no setting overrides that.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from tilewright.bench.cases import REAL, Product
from tilewright.bench.peer import Library, Peer, Setting, Unavailable, Way
from tilewright.bench.peers import _blas
from tilewright.bench.peers._blas import NO_TRANS, ROW_MAJOR
from tilewright.measure import operands
from tilewright.measure.measure import Call
from tilewright.measure.operands import Array, Operands
from tilewright.problem import Gemm

MAPS = Path("/proc/self/maps")
PACKED, B_MATRIX, FIXED_OFFSET = 151, 162, 173  # CBLAS enumerations of MKL's own
ALIGNMENT = 64  # of a packed B, in bytes

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


def load(setting: Setting) -> Peer:
    """One thread takes the sequential layer, which has the cheapest call; several take Intel's OpenMP when it is there
    and TBB otherwise.  The layer must be chosen before the library is loaded."""
    places = _places()
    if not places:
        raise Unavailable("mkl is not installed")
    openmp = any(any(place.glob("libiomp5.so")) for place in [*places, *_blas.files_of("intel-openmp")])
    layer = "SEQUENTIAL" if setting.threads == 1 else "INTEL" if openmp else "TBB"
    os.environ.setdefault("MKL_THREADING_LAYER", layer)
    library = _blas.shared_library(file for place in places for file in place.glob("libmkl_rt.so*"))
    library.MKL_Set_Num_Threads(setting.threads)
    text = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(text, 200)
    number = re.search(r"Version ([\d.]+)", text.value.decode(errors="replace"))
    small = operands.make(Gemm(64, 64, 64))
    multiply, _ = _blas.real(library.cblas_sgemm, library.cblas_sgemv, "i", small)
    multiply()  # loads the kernels
    said = [os.environ["MKL_THREADING_LAYER"].lower(), kernels()]
    version = f"{number[1] if number else '?'} ({', '.join(filter(None, said))})"
    return Peer("mkl", version, _blas.CBLAS, partial(ways, library))


def _places() -> list[Path]:
    """Folders to find the wheel's libraries in; none if it is not installed."""
    places = [Path(sys.prefix) / "lib", *_blas.files_of("mkl")]
    return places if any(any(place.glob("libmkl_rt.so*")) for place in places) else []


def kernels(maps: Path = MAPS) -> str | None:
    """The library of kernels that MKL loaded at its first multiplication; None where /proc does not say.

    On CPUs by other makers that is libmkl_def, whatever they run: it holds AVX2 kernels for Zen.
    """
    try:
        found = re.search(r"(libmkl_(?:def|mc3|avx\w*))\.so", maps.read_text())
    except OSError:
        return None
    return _blas.named(found[1]) if found else None


def ways(library: ctypes.CDLL, product: Product) -> Iterator[Way]:
    kind = product.formats
    if product.formats in REAL:
        letter = "s" if product.a == "f32" else "d"
        bind = partial(_blas.real, library[f"cblas_{letter}gemm"], library[f"cblas_{letter}gemv"], "i")
        yield Way("mkl", _blas.CBLAS, bind)
    elif name := _blas.COMPLEX.get(product.formats):
        yield Way("mkl", f"{name}, compiled call", partial(_blas.complex_gemm, library[name], "i"))
    names = {**FLOATS, **INTEGERS, **{key: name for key, (name, *_) in ALIKE.items()}}
    call = _integer if kind in INTEGERS else _alike if kind in ALIKE else _float
    name = names.get(kind, "")
    if name and hasattr(library, name) and kind not in REAL:
        shifted = " of A + 128 with the offset -128" if kind == "i8-i8-i32" else ""
        yield Way("mkl", f"{name}{shifted}, compiled call", partial(call, library, name, False))
    if name and hasattr(library, f"{name}_compute"):
        how = f"{name}_compute, B by {name}_pack"
        yield Way("mkl packed", how, partial(call, library, name, True), prepared=True)


def _float(library: ctypes.CDLL, name: str, packed: bool, o: Operands) -> Call:
    """(order, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)."""
    _blas.require_plain(o)
    m, n, k = o.sizes
    b, trans_b = (_packed(library, name, o), PACKED) if packed else (o.b, NO_TRANS)
    at = [x.ctypes.data for x in (o.a, b, o.c)]
    values = (ROW_MAJOR, NO_TRANS, trans_b, m, n, k, 1.0, at[0], k, at[1], n, 0.0, at[2], n)
    function = library[f"{name}_compute" if packed else name]
    return _blas.bind(_blas.address(function), "iiiiiifpipifpi", values, keep=(o, b)), ()


def _alike(library: ctypes.CDLL, name: str, packed: bool, o: Operands) -> Call:
    """As _float, but with alpha and beta of the operands' format, and no alpha where B is packed."""
    _blas.require_plain(o)
    m, n, k = o.sizes
    _, real, one = ALIKE[f"{o.problem.a}-{o.problem.b}-{o.problem.out}"]
    b, trans_b = (_packed(library, name, o, real, one), PACKED) if packed else (o.b, NO_TRANS)
    at = [x.ctypes.data for x in (o.a, b, o.c)]
    scale = () if packed else (one,)
    values = (ROW_MAJOR, NO_TRANS, trans_b, m, n, k, *scale, at[0], k, at[1], n, 0, at[2], n)
    function = library[f"{name}_compute" if packed else name]
    signature = f"iiiiii{real * len(scale)}pipi{real}pi"
    return _blas.bind(_blas.address(function), signature, values, keep=(o, b)), ()


def _integer(library: ctypes.CDLL, name: str, packed: bool, o: Operands) -> Call:
    """(order, transa, transb, offsetc, m, n, k, alpha, a, lda, ao, b, ldb, bo, beta, c, ldc, co): (A + ao) (B + bo)."""
    _blas.require_plain(o)
    m, n, k = o.sizes
    a, offset = (o.a.view(np.uint8) ^ np.uint8(128), -128) if o.problem.a == "i8" else (o.a, 0)
    b, trans_b = (_packed(library, name, o), PACKED) if packed else (o.b, NO_TRANS)
    zero = np.zeros(1, np.int32)
    at = [x.ctypes.data for x in (a, b, o.c, zero)]
    sizes = (ROW_MAJOR, NO_TRANS, trans_b, FIXED_OFFSET, m, n, k)
    values = (*sizes, 1.0, at[0], k, offset, at[1], n, 0, 0.0, at[2], n, at[3])
    function = library[f"{name}_compute" if packed else name]
    return _blas.bind(_blas.address(function), "iiiiiiifpiipiifpip", values, keep=(o, a, b, zero)), ()


def _packed(library: ctypes.CDLL, name: str, o: Operands, real: str = "", one: float = 1.0) -> Array:
    """B in MKL's own order: (order, identifier, trans, m, n, k, [alpha], b, ldb, packed)."""
    m, n, k = o.sizes
    size = library[f"{name}_pack_get_size"]
    size.restype = ctypes.c_size_t
    space = np.empty(size(B_MATRIX, m, n, k) + ALIGNMENT, np.uint8)
    packed = space[-space.ctypes.data % ALIGNMENT :]
    scale = (one,) if real else ()
    values = (ROW_MAJOR, B_MATRIX, NO_TRANS, m, n, k, *scale, o.b.ctypes.data, n, packed.ctypes.data)
    _blas.bind(_blas.address(library[f"{name}_pack"]), f"iiiiii{real}pip", values)()
    return packed


# After torch, which would call this MKL instead of its own: MKL makes its functions global.
PEER = Library("mkl", load, "mkl", lambda: bool(_places()), compiled=True, order=40, threads="MKL",
               steered_by=("MKL_",), avx2={"MKL_ENABLE_INSTRUCTIONS": "AVX2"})
