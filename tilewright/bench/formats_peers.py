"""Against whom each product of formats is timed: tilewright's own call, NumPy's ways, torch's, and the BLAS libraries.

An `Entrant` is one way of one library to this very product: same operands, same dtype of the result, the same numbers
(formats_error.py sees to that).  Which libraries there are, their versions and threads are peers.find's; the functions
of C libraries are in formats_blas.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.bench import formats_blas
from tilewright.bench.formats_data import Matrices
from tilewright.bench.formats_products import Product
from tilewright.bench.formats_results import F32, NUMPY
from tilewright.bench.peers import OURS, Contender
from tilewright.formats import Integer
from tilewright.measure.measure import Call
from tilewright.measure.operands import Array, Operands
from tilewright.problem import Gemm


@dataclass(frozen=True)
class Entrant:
    """One way to a product.  `bind` makes it a ready call that writes to C, or returns the result if `returns`."""

    name: str
    how: str
    bind: Callable[[Matrices], Call]
    prepared: bool = False  # B is packed by `bind`, which is not timed
    returns: Callable[[Any], Array] | None = None  # what a call returned, as an array


def entrants(product: Product, found: Mapping[str, Contender], threads: int) -> list[Entrant]:
    """Everybody who knows this product, tilewright first; `found` are the libraries, from peers.find."""
    others: list[Entrant] = []
    if product.a == product.b == product.out and product.out in ("f32", "f64"):
        others += [_real(c) for name, c in found.items() if name != OURS]
    else:
        others += numpy(product) if NUMPY in found else []
        others += torch(product) if "torch" in found else []
    for library in ("openblas", "mkl"):
        if library in found:
            others += [Entrant(*each) for each in formats_blas.functions(library, product, threads)]
    others += torch_packed(product) if "torch" in found else []
    return [ours(product), *others]


def ours(product: Product, name: str = OURS) -> Entrant:
    """tilewright.matmul(a, b, out), with out_dtype and algorithm where the product asks for them.

    An API that packs B beforehand would be another Entrant of tilewright's, with prepared=True.
    """
    import tilewright as tw

    options: dict[str, Any] = {}
    if formats.promote(product.a, product.b).name != product.out:
        options["out_dtype"] = formats.get(product.out).dtype
    if product.algorithm:
        options["algorithm"] = product.algorithm
    call = partial(tw.matmul, **options) if options else tw.matmul
    said = "".join(f", {key}={value!s}" for key, value in options.items())
    return Entrant(name, f"tilewright.matmul(a, b, out{said})", lambda s: (call, (s.a, s.b, s.c)))


def our_f32() -> Entrant:
    return ours(Product("f32", "f32", "f32"), F32)


def _real(contender: Contender) -> Entrant:
    """f32 and f64 are what every BLAS has: the contenders of `tilewright bench`, as they are."""

    def bind(s: Matrices) -> Call:
        return contender.bind(Operands(Gemm(*s.sizes, s.product.out), s.a, s.b, s.c))

    return Entrant(contender.name, contender.how, bind)


def numpy(product: Product) -> list[Entrant]:
    """numpy.matmul, and where that is a plain loop, what its users do instead: by way of floats.

    Its result has a dtype of its own choice unless it is told one, and sums of integers wrap in that.
    """
    a, b, out = (formats.get(x) for x in (product.a, product.b, product.out))
    try:
        own = np.matmul(np.zeros((1, 1), a.dtype), np.zeros((1, 1), b.dtype)).dtype
    except TypeError:
        return []
    wider = own != out.dtype and (product.exact or np.can_cast(own, out.dtype, "safe"))
    options = {"dtype": out.dtype} if wider else {}
    said = f", dtype={out.dtype}" if options else ""
    call = partial(np.matmul, **options)
    found = [Entrant(NUMPY, f"numpy.matmul(a, b, out{said})", lambda s: (call, (s.a, s.b, s.c)))]
    if isinstance(a, Integer) and isinstance(b, Integer) and max(a.bits, b.bits) <= 16:
        found.append(Entrant("numpy floats", "numpy.matmul of floats that hold every sum, cast", _through_floats))
    elif product.out == "f16":
        cast = partial(np.matmul, dtype=np.float32, casting="unsafe")
        found.append(Entrant("numpy floats", "numpy.matmul(a, b, out, dtype=f32)", lambda s: (cast, (s.a, s.b, s.c))))
    return found


def _through_floats(s: Matrices) -> Call:
    """f32 or f64, whichever holds every sum, and by way of int64 where the result's integers do not."""
    limits = [max(-formats.get(x).smallest, formats.get(x).largest) for x in (s.product.a, s.product.b)]
    most = s.a.shape[1] * limits[0] * limits[1]
    kind = np.dtype(np.float32 if most < 2**24 else np.float64)
    direct = most <= formats.get(s.product.out).largest

    def call() -> None:
        product = np.matmul(s.a, s.b, dtype=kind)
        np.copyto(s.c, product if direct else product.astype(np.int64), casting="unsafe")

    return call, ()


_TORCH = {"bf16": "bfloat16", "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # what from_numpy does not take


def _tensor(x: Array) -> Any:
    import torch as t

    name = _TORCH.get(formats.get(x.dtype).name)
    return t.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(t, name)) if name else t.from_numpy(x)


def torch(product: Product) -> list[Entrant]:
    """torch.mm where the result has the operands' dtype, the products into wider results where it has them."""
    import torch as t

    one = t.ones(())

    def bind(call: Callable[..., Any], s: Matrices) -> Call:
        a, b, c = (_tensor(x) for x in (s.a, s.b, s.c))
        return partial(call, out=c), (a, b)

    fp8 = partial(t._scaled_mm, scale_a=one, scale_b=one, out_dtype=t.float32)
    mm = ("torch.mm(a, b, out=)", t.mm)
    alike = dict.fromkeys(("f16", "bf16", "i8", "i16", "i32", "i64", "c64", "c128"), mm)
    wider = {
        "i8-i8-i32": ("torch._int_mm(a, b, out=)", t._int_mm),
        **dict.fromkeys(("e4m3fn-e4m3fn-f32", "e5m2-e5m2-f32"), ("torch._scaled_mm(a, b, out=), scales of 1", fp8)),
    }
    way = alike.get(product.out) if product.a == product.b == product.out else wider.get(product.key)
    return [Entrant("torch", way[0], partial(bind, way[1]))] if way else []


def torch_packed(product: Product) -> list[Entrant]:
    """oneDNN with B packed beforehand, as torch's compiler uses it for the weights of a layer."""
    import torch as t

    if product.formats not in ("f32-f32-f32", "f16-f16-f16", "bf16-bf16-bf16") or not t.backends.mkldnn.is_available():
        return []

    def bind(s: Matrices) -> Call:
        a, b = _tensor(s.a), _tensor(s.b)
        packed = t.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), s.a.shape[0])
        return t.ops.mkldnn._linear_pointwise, (a, packed, None, "none", [], "")

    dtype = formats.get(product.out).dtype

    def returned(tensor: Any) -> Array:
        return np.asarray(tensor.view(t.int16 if dtype.itemsize == 2 else t.int32).numpy().view(dtype))

    how = "oneDNN in torch: mkldnn._linear_pointwise, B by mkldnn._reorder_linear_weight"
    return [Entrant("torch packed", how, bind, prepared=True, returns=returned)]
