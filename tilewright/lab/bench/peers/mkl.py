"""MKL by the wheel mkl, which is in the environment's lib folder; loaded after torch (see PEER).

It has functions for narrow formats, each also with B packed beforehand, as are sgemm and dgemm.  Its bytes are u8 by
i8; i8 by i8 is given to it as A + 128 and the offset -128, A shifted before the clock runs, which spares it a pass.
It chooses its kernels by the CPU's maker, and no setting overrides that.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tilewright as tw
from tilewright.lab.bench.cases import Product
from tilewright.lab.bench.peer import Library, Peer, Setting, Way
from tilewright.lab.bench.peers import cblas
from tilewright.lab.bench.peers.cblas import NO_TRANS, ROW_MAJOR
from tilewright.lab.measure import operands
from tilewright.lab.measure.measure import Call
from tilewright.lab.measure.operands import Array, Operands
from tilewright.problem import Gemm

MAPS = Path("/proc/self/maps")
PACKED, B_MATRIX, FIXED_OFFSET = 151, 162, 173  # CBLAS enumerations of MKL's own
ALIGNMENT = 64  # of a packed B, in bytes


class Function(NamedTuple):
    """A function of MKL's own for one product of formats, and how it takes alpha and beta."""

    name: str
    number: str = "f"  # their type
    one: float = 1.0
    alpha_packed: bool = False  # alpha is applied when B is packed
    integer: bool = False  # it adds offsets to A, B and C


FUNCTIONS = {
    "f32-f32-f32": Function("cblas_sgemm", alpha_packed=True),
    "f64-f64-f64": Function("cblas_dgemm", "d", alpha_packed=True),
    "f16-f16-f16": Function("cblas_hgemm", "i", 0x3C00, alpha_packed=True),  # f16: its bits, in an integer register
    "bf16-bf16-f32": Function("cblas_gemm_bf16bf16f32"),
    "f16-f16-f32": Function("cblas_gemm_f16f16f32"),
    "e4m3fn-e4m3fn-f32": Function("cblas_gemm_e4m3e4m3f32"),
    "e5m2-e5m2-f32": Function("cblas_gemm_e5m2e5m2f32"),
    "u8-i8-i32": Function("cblas_gemm_s8u8s32", integer=True),
    "i8-i8-i32": Function("cblas_gemm_s8u8s32", integer=True),
    "i16-i16-i32": Function("cblas_gemm_s16s16s32", integer=True),
}


def opened(threads: int) -> ctypes.CDLL:
    """One thread takes the sequential layer, which has the cheapest call; several take Intel's OpenMP when it is there
    and TBB otherwise.  The layer must be chosen before the library is loaded."""
    places = _places()
    openmp = any(any(place.glob("libiomp5.so")) for place in [*places, *cblas.files_of("intel-openmp")])
    layer = "SEQUENTIAL" if threads == 1 else "INTEL" if openmp else "TBB"
    os.environ.setdefault("MKL_THREADING_LAYER", layer)
    library = cblas.shared_library(file for place in places for file in place.glob("libmkl_rt.so*"))
    library.MKL_Set_Num_Threads(threads)
    return library


def load(setting: Setting) -> Peer:
    library = opened(setting.threads)
    text = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(text, 200)
    number = re.search(r"Version ([\d.]+)", text.value.decode(errors="replace"))
    small = operands.make(Gemm(64, 64, 64))
    multiply, _ = cblas.real(library.cblas_sgemm, library.cblas_sgemv, "i", small)
    multiply()  # loads the kernels
    said = [os.environ["MKL_THREADING_LAYER"].lower(), kernels()]
    version = f"{number[1] if number else '?'} ({', '.join(filter(None, said))})"
    return Peer("mkl", version, cblas.CBLAS, partial(ways, library))


def _places() -> list[Path]:
    """Folders to find the wheel's libraries in; none if it is not installed."""
    places = [Path(sys.prefix) / "lib", *cblas.files_of("mkl")]
    return places if any(any(place.glob("libmkl_rt.so*")) for place in places) else []


def kernels(maps: Path = MAPS) -> str | None:
    """The library of kernels that MKL loaded at its first multiplication; None where /proc does not say.

    On CPUs by other makers that is always libmkl_def: it holds AVX2 kernels for Zen.
    """
    try:
        match = re.search(r"(libmkl_(?:def|mc3|avx\w*))\.so", maps.read_text())
    except OSError:
        return None
    return cblas.named(match[1]) if match else None


def ways(library: ctypes.CDLL, product: Product) -> Iterator[Way]:
    plain = list(cblas.ways("mkl", library, "i", "{}", product))
    yield from plain
    function = FUNCTIONS.get(product.formats)
    if function and hasattr(library, function.name) and not plain:
        shifted = " of A + 128 with the offset -128" if product.a == "i8" else ""
        yield Way("mkl", f"{function.name}{shifted}, compiled call", partial(_bind, library, function, False))
    if function and hasattr(library, f"{function.name}_compute"):
        how = f"{function.name}_compute, B by {function.name}_pack"
        yield Way("mkl packed", how, partial(_bind, library, function, True), prepared=True)


def _bind(library: ctypes.CDLL, function: Function, packed: bool, o: Operands) -> Call:
    """(order, transa, transb, m, n, k, [alpha], a, lda, b, ldb, beta, c, ldc); of integers (A + ao) (B + bo) + co by
    (order, transa, transb, offsetc, m, n, k, alpha, a, lda, ao, b, ldb, bo, beta, c, ldc, co)."""
    cblas.require_plain(o)
    m, n, k = o.sizes
    a, offset = (o.a.view(np.uint8) ^ np.uint8(128), -128) if o.problem.a == "i8" else (o.a, 0)
    b, trans_b = (_packed(library, function, o), PACKED) if packed else (o.b, NO_TRANS)
    zero = np.zeros(1, np.int32)
    at_a, at_b, at_c, at_zero = (x.ctypes.data for x in (a, b, o.c, zero))
    alpha = () if packed and function.alpha_packed else (function.one,)
    values: tuple[float, ...]
    if function.integer:
        values = (ROW_MAJOR, NO_TRANS, trans_b, FIXED_OFFSET, m, n, k, *alpha, at_a, k, offset, at_b, n, 0, 0, at_c, n,
                  at_zero)
        signature = "iiiiiiifpiipiifpip"
    else:
        values = (ROW_MAJOR, NO_TRANS, trans_b, m, n, k, *alpha, at_a, k, at_b, n, 0, at_c, n)
        signature = f"iiiiii{function.number * len(alpha)}pipi{function.number}pi"
    called = library[f"{function.name}_compute" if packed else function.name]
    return cblas.bind(called, signature, values, keep=(o, a, b, zero)), ()


def _packed(library: ctypes.CDLL, function: Function, o: Operands) -> Array:
    """B in MKL's own order: (order, identifier, trans, m, n, k, [alpha], b, ldb, packed)."""
    m, n, k = o.sizes
    size = library[f"{function.name}_pack_get_size"]
    size.restype = ctypes.c_size_t
    space = np.empty(size(B_MATRIX, m, n, k) + ALIGNMENT, np.uint8)
    packed = space[-space.ctypes.data % ALIGNMENT :]
    alpha = (function.one,) * function.alpha_packed
    values = (ROW_MAJOR, B_MATRIX, NO_TRANS, m, n, k, *alpha, o.b.ctypes.data, n, packed.ctypes.data)
    signature = f"iiiiii{function.number * len(alpha)}pip"
    cblas.bind(library[f"{function.name}_pack"], signature, values)()
    return packed


def small_batches(every: list[tuple[Array, Array]]) -> Mapping[str, list[Call]]:
    """cblas_?gemm_batch_strided(order, transa, transb, m, n, k, alpha, a, lda, stride, b, ldb, stride, beta, c, ldc,
    stride, batch), where alpha and beta of complex numbers are pointers."""
    library, calls = opened(tw.get_num_threads()), []
    for a, b in every:
        (batch, m, k), n = a.shape, b.shape[2]
        c, scalars = np.empty((batch, m, n), a.dtype), np.array([1, 0], a.dtype)
        letter, number = {"f4": ("s", "f"), "f8": ("d", "d"), "c8": ("c", "p"), "c16": ("z", "p")}[a.dtype.str[1:]]
        at = scalars.ctypes.data
        one, zero = (at, at + scalars.itemsize) if number == "p" else (1.0, 0.0)
        values = (ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, one, a.ctypes.data, k, m * k, b.ctypes.data, n, k * n, zero,
                  c.ctypes.data, n, m * n, batch)
        call = cblas.bind(library[f"cblas_{letter}gemm_batch_strided"], f"iiiiii{number}piipii{number}piii", values,
                          keep=(a, b, scalars))
        calls.append((lambda c, call=call: call() or c, (c,)))
    return {"mkl": calls}


# After torch, which would call this MKL instead of its own: MKL makes its functions global.
PEER = Library("mkl", load, "mkl", lambda: bool(_places()), compiled=True, order=40, threads="MKL",
               studies={"small_batches": small_batches},
               steered_by=("MKL_",), avx2={"MKL_ENABLE_INSTRUCTIONS": "AVX2"})
