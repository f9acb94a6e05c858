"""Contractions like earlier ones, without rules or planning: by matmul, or by the recipe that such a call has run.

Subscripts that are those of a product of matrices, or of a stack of them, are given to matmul, with axes swapped. Of
other calls of einsum a record is kept where all came down to one run of a recipe, from the caller's own two arrays to
the array that was returned: the next call whose subscripts, formats, shapes, strides, options and threads are the same
takes addresses alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.api import builtin, dispatch
from tilewright.rules.arguments import PLAIN
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.layout import address

if TYPE_CHECKING:
    from tilewright.runtime.cpu.engine import Run
    from tilewright.runtime.cpu.recipe import Recipe

Array = NDArray[Any]
Key = tuple[Any, ...]

MOST_RECORDS = 1024


class View(NamedTuple):
    """An array but for its address."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    memory: Any                 # ctypes' type of its bytes, from the first element on

    @classmethod
    def of(cls, x: Array) -> View:
        reach = sum((n - 1) * stride for n, stride in zip(x.shape, x.strides)) + x.itemsize if x.size else 0
        return cls(x.shape, x.dtype, x.strides, ctypes.c_char * reach)

    def at(self, address: int) -> Array:
        """The array there, which keeps nothing. Strides are not negative."""
        return np.ndarray(self.shape, self.dtype, self.memory.from_address(address), 0, self.strides)


class Record(NamedTuple):
    recipe: Recipe
    a: int                      # which operand is the recipe's A
    batch: int                  # 0: one product
    steps: tuple[int, ...]      # from one product to the next, in bytes
    shape: tuple[int, ...]      # of the result
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    copied: View | None = None  # the recipe's B, if its plan copies it

    def run(self, at_x: int, at_y: int, at_c: int) -> bool:
        """Again, for operands at these addresses; whether C means nothing, as Recipe.run says."""
        if self.a:
            at_x, at_y = at_y, at_x
        if self.copied is not None:
            copy = dispatch.cpu().copied(self.copied.at(at_y), self.recipe.plan)
            at_y = address(copy)
        if self.batch:
            self.recipe.run_batch(self.batch, self.steps, at_x, at_y, at_c, 1.0, 0.0)   # type: ignore[arg-type]
            return False
        return self.recipe.run(at_x, at_y, at_c, 1.0, 0.0)


_records: dict[Key, Record] = {}


class Matmul(NamedTuple):
    """Which operand of einsum is matmul's first one, which of both are transposed then, and how many axes they have."""

    axes: int
    exchanged: bool
    transposed_a: bool
    transposed_b: bool


def key_of(operands: Sequence[Any], out: Any, options: tuple[Any, ...]) -> tuple[Key, Sequence[Any]] | None:
    """What calls alike have in common, and the arrays; None for calls of which there is no record: those of other than
    two arrays of NumPy's own."""
    subscripts: Any
    if type(operands[0]) is str:
        subscripts, arrays = operands[0], operands[1:]
    else:
        lists = *operands[1:4:2], *operands[4:]
        if not all(type(labels) in (list, tuple) and bool not in map(type, labels) for labels in lists):
            return None                     # True is as good a key as 1, and no label
        subscripts, arrays = tuple(map(tuple, lists)), operands[:4:2]
    if len(arrays) != 2 or len(operands) > 5:
        return None
    x, y = arrays
    if type(x) is not np.ndarray or type(y) is not np.ndarray or not (out is None or type(out) is np.ndarray):
        return None
    of_out = () if out is None else (out.dtype, out.shape, out.strides)
    key = (subscripts, options, pool.get_num_threads(), x.dtype, x.shape, x.strides, y.dtype, y.shape,
           y.strides, *of_out)
    try:
        hash(key)
    except TypeError:                       # labels or options that are refused below
        return None
    return key, arrays


def product(key: Key, arrays: Sequence[Array], out: Array | None) -> Any:
    """The result of a call like an earlier one; None if there is no record of one, or if its arrays are unaligned, may
    overlap or cannot be written to."""
    found = _records.get(key)
    if found is None:
        return None
    x, y = arrays
    if out is None:
        c: Array = np.ndarray(found.shape, found.dtype, None, 0, found.strides)
    elif out.flags.writeable and out.flags.aligned and not (
            np.may_share_memory(out, x) or np.may_share_memory(out, y)):
        c = out
    else:
        return None
    if not (x.flags.aligned and y.flags.aligned):
        return None
    found.run(address(x), address(y), address(c))
    return c if c.ndim or out is not None else c[()]


def remember(key: Key, arrays: Sequence[Array], out: Array | None, result: Any, runs: Sequence[Run]) -> None:
    """Keep what a call has run, if that was all of it."""
    found = record(arrays, out, result, runs)
    if found is None or found.recipe.shape.tiles:
        return
    tables = dispatch.cpu().chosen
    if not any(table is _records for table in tables):      # so that it is emptied when plans are chosen anew
        tables.append(_records)
    if len(_records) >= MOST_RECORDS:
        _records.clear()
    _records[key] = found


def record(arrays: Sequence[Array], out: Array | None, result: Any, runs: Sequence[Run]) -> Record | None:
    """Of a call that came down to one run, from these two arrays to the result; None of another."""
    if len(runs) != 1:
        return None
    run, x, y = runs[0], *arrays
    ran_b = run.b if run.given is None else run.given
    if run.alpha != 1 or run.beta != 0 or address(x) == address(y):
        return None
    first = int(address(run.a) == address(y))
    a, b = (y, x) if first else (x, y)
    if (address(run.a), address(ran_b)) != (address(a), address(b)) or (run.a.itemsize, ran_b.itemsize) != (
            a.itemsize, b.itemsize) or (run.given is not None and min((0, *ran_b.strides)) < 0):
        return None
    if isinstance(result, np.generic):
        if run.c.size != 1 or run.c.dtype != result.dtype:
            return None
    elif (result is not out if out is not None else not _dense(result)) or address(result) != address(run.c) or (
            result.dtype != run.c.dtype):
        return None
    steps = (run.a.strides[0], run.b.strides[0], run.c.strides[0]) if run.batched else ()
    return Record(run.recipe, first, run.c.shape[0] if run.batched else 0, steps, result.shape, result.dtype,
                  result.strides, None if run.given is None else View.of(run.given))


def _dense(x: Array) -> bool:
    """Whether a new array of this shape and these strides has room for its elements, and no more."""
    return not x.size or sorted(x.strides[at] for at in range(x.ndim) if x.shape[at] > 1) == sorted(
        stride for stride, extent in zip(_packed(x), x.shape) if extent > 1)


def _packed(x: Array) -> list[int]:
    strides, step = [0] * x.ndim, x.itemsize
    for at in sorted(range(x.ndim), key=lambda at: (x.strides[at], x.shape[at])):
        strides[at], step = step, step * x.shape[at]
    return strides


# ---- products of matrices


@lru_cache(maxsize=1024)
def as_matmul(subscripts: str) -> Matmul | None:
    """How matmul computes what these subscripts name, if they are those of matrices or of stacks of them."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or not (inputs.replace(",", "") + output).isalpha():
        return None
    x, y = terms
    output = output if arrow else "".join(sorted({*x} ^ {*y}))
    batch = len(output) - 2
    if len(x) != len(output) or len(y) != len(output) or batch < 0 or not x[:batch] == y[:batch] == output[
            :batch] or any(len({*term}) < len(term) for term in (x, y, output)):
        return None
    exchanged = output[batch] in y
    a, b = ((y, x) if exchanged else (x, y))
    m, n = output[batch], output[batch + 1]
    (k, *others) = {*a[batch:]} - {m}
    if others or {*b[batch:]} != {k, n} or {*a[batch:]} != {m, k}:
        return None
    return Matmul(len(output), exchanged, a[-1] == m, b[-1] == k)


def by_matmul(subscripts: str, a: Any, b: Any, out: Any) -> Any:
    """einsum(subscripts, a, b, out=out) by matmul; None if it is none of matrices in f32 or f64, or is no plain one."""
    how = as_matmul(subscripts)
    if how is None or type(a) is not np.ndarray or type(b) is not np.ndarray or a.dtype is not b.dtype or (
            a.dtype not in PLAIN or not a.ndim == b.ndim == how.axes or a.shape[:-2] != b.shape[:-2]):
        return None
    if how.exchanged:
        a, b = b, a
    batch = a.shape[:-2]
    if len(batch) > 1:                      # matmul repeats calls of up to three axes
        if out is not None or not (a.flags.c_contiguous and b.flags.c_contiguous):
            return None
        a, b = (x.reshape(-1, *x.shape[-2:]) if x.size else x for x in (a, b))
    if how.transposed_a:
        a = a.swapaxes(-1, -2)
    if how.transposed_b:
        b = b.swapaxes(-1, -2)
    if a.shape[-1] != b.shape[-2]:
        return None
    if out is None:
        found = _matmul()(a, b)
        return found if len(batch) < 2 else found.reshape(*batch, *found.shape[-2:])
    if type(out) is not np.ndarray or out.dtype is not a.dtype or out.shape != (*a.shape[:-1], b.shape[-1]):
        return None
    return _matmul()(a, b, out)


@cache
def _matmul() -> Any:
    return builtin.matmul
