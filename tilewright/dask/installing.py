"""A switch that sends products of Dask arrays to tilewright: a @ b, da.matmul, da.dot, da.tensordot and da.einsum."""
from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any

import dask.array as da
import numpy as np

from tilewright import formats
from tilewright.api import as_matmul
from tilewright.dask import products
from tilewright.rules import subscripts
from tilewright.rules.subscripts import DOTS

# Where Dask keeps each function, by which names its own code looks it up.
PLACES = {"matmul": ("dask.array", "dask.array.routines"), "tensordot": ("dask.array", "dask.array.routines"),
          "einsum": ("dask.array", "dask.array.einsumfuncs")}
CALLABLES: dict[str, Callable[..., Any]] = {
    "matmul": products.matmul, "tensordot": products.tensordot, "einsum": products.einsum}


def wins(dtype: Any) -> bool:
    """Whether products of blocks of this dtype are faster here: of integers and of narrow floats, for which NumPy has
    loops of its own, and of f32 and f64."""
    number_format = formats.find(np.dtype(dtype))
    return number_format is not None and np.dtype(dtype).kind in "iufV" and np.dtype(dtype) != np.dtype(bool)


class Installed:
    """What `install` returns: leaving it as a context, or `disable`, restores Dask's functions."""

    def __init__(self, rule: Callable[[Any], bool]) -> None:
        self._kept: dict[tuple[str, str], Any] = {}
        for name, modules in PLACES.items():
            original = getattr(importlib.import_module(modules[0]), name)
            ours = _switched(name, original, rule)
            for module in modules:
                self._kept[module, name] = original, ours
                setattr(importlib.import_module(module), name, ours)

    def disable(self) -> None:
        """Restore Dask's functions. RuntimeError if something else has replaced them since."""
        for (module, name), (_, ours) in self._kept.items():
            if getattr(importlib.import_module(module), name) is not ours:
                raise RuntimeError(f"{module}.{name} has been replaced since: undo that first")
        for (module, name), (original, _) in self._kept.items():
            setattr(importlib.import_module(module), name, original)
        self._kept = {}

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.disable()


def install(rule: Callable[[Any], bool] = wins) -> Installed:
    """Let `a @ b`, da.matmul, da.dot, da.tensordot, da.einsum, and NumPy's functions of Dask arrays, multiply with
    tilewright, in this process: until the end of a `with` block, or until `.disable()` of what this returns.

    rule    a function of a dtype: whether tilewright takes products of two arrays of it. By default all integers and
            floats that it multiplies

    Taken are two Dask arrays of one dtype and of NumPy's blocks, without further arguments. Results have the dtypes
    that Dask's functions give them: int64 for small integers, whose sums are exact here, while Dask's blocks are
    products modulo 2^8 or 2^16. Everything else is Dask's: other dtypes, complex numbers, bool, blocks of other
    libraries, more operands. Arrays that were made before keep the graph that they have.
    """
    return Installed(rule)


def _switched(name: str, original: Any, rule: Callable[[Any], bool]) -> Any:
    ours = CALLABLES[name]

    @wraps(original)
    def switched(*args: Any, **kwargs: Any) -> Any:
        arrays = [x for x in args if not isinstance(x, (str, int, list, tuple))]
        given = (isinstance(args[0], str) if name == "einsum" else True) if args else False
        if given and len(arrays) == 2 and not kwargs.keys() - {"axes"} and _ready(arrays, rule):
            try:
                wanted = _dtype(name, original, args, kwargs)
                narrow = "i32" if wanted == np.int64 and _fits(name, arrays, args, kwargs) else wanted
                return ours(*args, **kwargs, out_dtype=narrow).astype(wanted)
            except (TypeError, ValueError):     # Dask says what is wrong with it, or knows more
                pass
        return original(*args, **kwargs)
    return switched


def _dtype(name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The dtype of Dask's result: that of a call with an element for each block, up to two along an axis. Dask gives
    int64 where it adds blocks of smaller integers up, and their own dtype where there is nothing to add."""
    for least in (1, 2):
        small = [da.zeros([max(least, min(n, 2)) for n in x.numblocks], chunks=1, dtype=x.dtype)
                 if isinstance(x, da.Array) else x for x in args]
        try:
            return original(*small, **kwargs).dtype
        except ValueError:      # operands are cut differently
            if least == 2:
                raise
    raise AssertionError


def _fits(name: str, arrays: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether sums of products of bytes are below 2^31. Unknown sizes are nan, and not below."""
    if arrays[0].dtype.itemsize > 1 or arrays[0].dtype.kind not in "iu":
        return False
    largest = 128 if arrays[0].dtype.kind == "i" else 255
    return bool(_terms(name, arrays, args, kwargs) * largest**2 < 1 << 31)


def _terms(name: str, arrays: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """How many products are added up for an element of the result, at most."""
    a, b = arrays
    if name == "matmul":
        return float(a.shape[-1])
    if name == "tensordot":
        axes = kwargs.get("axes", args[2] if len(args) > 2 else 2)
        return float(prod(a.shape[i] for i in as_matmul.axes_of(axes, a.ndim, b.ndim)[0]))
    _, labels, output = subscripts.read(args)
    if any(DOTS in term for term in labels):
        return float(min(a.size, b.size))
    sizes = dict(zip((*labels[0], *labels[1]), (*a.shape, *b.shape)))
    kept = {*labels[0]} ^ {*labels[1]} if output is None else {*output}
    return float(prod(n for label, n in sizes.items() if label not in kept))


def _ready(arrays: list[Any], rule: Callable[[Any], bool]) -> bool:
    a, b = arrays
    return all(isinstance(x, da.Array) and type(x._meta) is np.ndarray and x.ndim for x in arrays) and (
        a.dtype == b.dtype and rule(a.dtype))
