"""Contractions whose subscripts are those of a product of matrices, or of stacks of them, by matmul; and of one array,
by NumPy.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np
from numpy import einsum as numpys_einsum  # not looked up at each call: users put tilewright's in its place

import tilewright
from tilewright.rules import arguments
from tilewright.rules.arguments import PLAIN

COPIED = 1 << 13         # numbers of a tensor up to which tensordot by a copy is faster than by einsum


class Matmul(NamedTuple):
    """Which operand of einsum is matmul's first one, which of both are transposed then, and how many axes they have."""

    axes: int
    exchanged: bool
    transposed_a: bool
    transposed_b: bool


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


@lru_cache(maxsize=1024)
def with_vector(subscripts: str) -> tuple[bool, bool] | None:
    """For a matrix by a vector: is the vector named first, and is the matrix transposed? None for other subscripts."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = sorted(inputs.split(","), key=len, reverse=True)
    if not arrow or [len(x) for x in (*terms, output)] != [2, 1, 1] or {*terms[0]} != {terms[1], output} or (
            terms[1] == output):
        return None
    return inputs.index(",") == 1, terms[0][0] == terms[1]


@lru_cache(maxsize=1024)
def sums_all(subscripts: str) -> int:
    """How many axes two arrays have whose elements are multiplied one by one and added up; 0 for other subscripts."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    x, _, y = inputs.partition(",")
    return len(x) if arrow and not output and x == y and x.isalpha() and len({*x}) == len(x) else 0


def _by_vectors(subscripts: str, a: Any, b: Any, out: Any) -> Any:
    """The sum of all products of two arrays, or a matrix by a vector, by matmul's builtin; None if this is neither."""
    if out is not None or type(a) is not np.ndarray or type(b) is not np.ndarray or a.dtype is not b.dtype or (
            a.dtype not in PLAIN or not a.size or not b.size):
        return None
    if axes := sums_all(subscripts):
        if a.ndim != axes or a.shape != b.shape or (axes > 1 and not a.flags.c_contiguous & b.flags.c_contiguous):
            return None
        return _matmul()(a, b) if axes == 1 else _matmul()(a.reshape(-1), b.reshape(-1))
    if (how := with_vector(subscripts)) is None:
        return None
    matrix, vector = (b, a) if how[0] else (a, b)
    if matrix.ndim != 2 or vector.ndim != 1:
        return None
    matrix = matrix.T if how[1] else matrix
    return _matmul()(matrix, vector) if matrix.shape[1] == len(vector) else None


@lru_cache(maxsize=1024)
def of_one(subscripts: str) -> tuple[str, tuple[int, ...], list[int]] | None:
    """How NumPy computes what these subscripts name of one array: subscripts of its view with each label once, "" if
    it is the array itself; the axes of that which are summed; the order of those that are left. None for others."""
    term, arrow, output = subscripts.replace(" ", "").partition("->")
    labels = "".join(dict.fromkeys(term))
    output = output if arrow else "".join(sorted(x for x in labels if term.count(x) == 1))
    if not term.isalpha() or not {*output} <= {*labels} or len({*output}) < len(output):
        return None
    left = [x for x in labels if x in output]
    return ("" if labels == term else f"{term}->{labels}", tuple(i for i, x in enumerate(labels) if x not in output),
            [left.index(x) for x in output])


def by_numpy(subscripts: str, x: Any) -> Any:
    """einsum(subscripts, x) of an array in f32 or f64; None for other arrays and subscripts."""
    if type(x) is not np.ndarray or x.dtype not in PLAIN or (how := of_one(subscripts)) is None or (
            x.ndim != len(subscripts.replace(" ", "").partition("->")[0])):
        return None
    view, axes, order = how
    if view:
        if len({*x.shape}) > 1:             # some of the axes with one label may have different sizes
            return None
        x = numpys_einsum(view, x)
    if axes:
        with np.errstate(all="ignore"):
            x = x.sum(axis=axes)
    return x.transpose(order)


def by_matmul(subscripts: str, a: Any, b: Any, out: Any) -> Any:
    """einsum(subscripts, a, b, out=out) by matmul; None if it is none of matrices in f32 or f64, or is no plain one."""
    how = as_matmul(subscripts)
    if how is None:
        return _by_vectors(subscripts, a, b, out)
    if type(a) is not np.ndarray or type(b) is not np.ndarray or a.dtype is not b.dtype or (
            a.dtype not in PLAIN or not a.ndim == b.ndim == how.axes or a.shape[:-2] != b.shape[:-2]):
        return None
    if how.exchanged:
        a, b = b, a
    batch = a.shape[:-2]
    if batch and how.transposed_b:          # whose copies of b it does not repeat
        return None
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
        product = _matmul()(a, b)
        return product if len(batch) < 2 else product.reshape(*batch, *product.shape[-2:])
    if type(out) is not np.ndarray or out.dtype is not a.dtype or out.shape != (*a.shape[:-1], b.shape[-1]):
        return None
    return _matmul()(a, b, out)


def by_matrices(a: Any, b: Any, axes: Any) -> Any:
    """tensordot(a, b, axes) of contiguous arrays in f32 or f64; None for others, and for large ones whose
    summed axes are not all at an end."""
    if (type(a) is not np.ndarray or type(b) is not np.ndarray or a.dtype is not b.dtype or a.dtype not in PLAIN
            or (summed := summed_axes(axes)) is None or (split := split_axes(summed, a.ndim, b.ndim)) is None
            or not (a.flags.c_contiguous & b.flags.c_contiguous) or not a.size or not b.size):
        return None
    (of_a, rows, first_a), (of_b, columns, first_b) = split
    shape_a, shape_b = a.shape, b.shape
    depths = [shape_a[i] for i in of_a]
    if depths != [shape_b[i] for i in of_b]:
        return None
    k = math.prod(depths)
    x, y = _matrix(a, of_a, rows, first_a, k), _matrix(b, of_b, columns, first_b, k)
    if x is None or y is None:
        return None
    return _matmul()(x, y.T).reshape([*[shape_a[i] for i in rows], *[shape_b[i] for i in columns]])


def _matrix(x: Any, summed: list[int], free: list[int], first: bool | None, k: int) -> Any:
    """[free axes, summed axes], of a small array as a copy if it has to be; None for a large one."""
    if first is None:
        return x.transpose(free + summed).reshape(-1, k) if x.size <= COPIED else None
    return x.reshape(k, -1).T if first else x.reshape(-1, k)


def summed_axes(axes: Any) -> Any:
    """The axes of tensordot as something that caches take: a number, or two of numbers or tuples of them. None for
    numbers of other types than int, of which equal ones are not alike."""
    if type(axes) is int:
        return axes
    if (type(axes) is not tuple and type(axes) is not list) or len(axes) != 2:
        return None
    a, b = axes
    a, b = tuple(a) if type(a) is list else a, tuple(b) if type(b) is list else b
    if type(a) is type(b) is int:
        return a, b
    for x in a, b:
        if type(x) is not tuple:
            return None
        for axis in x:
            if type(axis) is not int:
                return None
    return a, b


def axes_of(axes: Any, *dimensions: int) -> list[list[int]]:
    """The axes of a and those of b that are summed over together, from 0. TypeError and ValueError as tensordot."""
    try:
        pair = [*axes]
    except TypeError:
        count = arguments.count(axes, "axes") if axes else 0
        if count > min(dimensions):
            raise ValueError(f"axes is {count}, and a and b have {dimensions[0]} and {dimensions[1]} axes") from None
        return [[*range(dimensions[0] - count, dimensions[0])], [*range(count)]]
    if len(pair) != 2:
        raise ValueError(f"axes must be a number, or two lists of axes, one of a and one of b, not {axes!r}")
    summed: list[list[int]] = []
    for name, part, dimension in zip("ab", pair, dimensions):
        listed = [part] if hasattr(part, "__index__") else [*part]
        for axis in listed:
            if not hasattr(axis, "__index__") or not -dimension <= axis < dimension:
                raise ValueError(f"axes names axis {axis!r} of {name}, which has {dimension} axes")
        summed.append([int(axis) % dimension for axis in listed])
        if len(set(summed[-1])) < len(listed):
            raise ValueError(f"axes names an axis of {name} twice: {listed}")
    if len(summed[0]) != len(summed[1]):
        raise ValueError(f"axes names {len(summed[0])} axes of a and {len(summed[1])} of b; they must be as many")
    return summed


known_axes = lru_cache(maxsize=1024)(axes_of)       # of what summed_axes makes


@lru_cache(maxsize=1024)
def split_axes(axes: Any, *dimensions: int) -> list[tuple[list[int], list[int], bool | None]] | None:
    """The axes of tensordot's a and b that are summed over, in one order, the others, and whether the summed ones
    are the first; None: neither the first nor the last, in order. None for what is no product of matrices, or an error.
    `axes`: as `summed_axes` has them."""
    if type(axes) is int:
        axes = (*range(-axes, 0),), (*range(axes),)
    lists = [[axis + dimension*(axis < 0) for axis in (x if type(x) is tuple else (x,))]
            for x, dimension in zip(axes, dimensions)]
    count = len(lists[0])
    if len(lists[1]) != count or not 0 < count < sum(dimensions) - count:
        return None
    for part, dimension in zip(lists, dimensions):
        if len({*part} & {*range(dimension)}) < count:
            return None
    at = sorted(range(count), key=lists[0].__getitem__)         # b's may be in order then, too
    positions = []
    for part, dimension in zip(lists, dimensions):
        part = [part[i] for i in at]
        first = True if part == [*range(count)] else False if part == [*range(dimension - count, dimension)] else None
        positions.append((part, [i for i in range(dimension) if i not in part], first))
    return positions


@lru_cache(maxsize=1024)
def subscripts_of(of_a: tuple[int, ...], of_b: tuple[int, ...], *dimensions: int) -> str:
    """The subscripts, from 0, of a tensordot over these axes."""
    a = ascii_letters[:dimensions[0]]
    b = "".join(a[of_a[of_b.index(j)]] if j in of_b else ascii_letters[dimensions[0] + j] for j in range(dimensions[1]))
    return f"{a},{b}->" + "".join(x for x in a + b if (x in a) != (x in b))


@cache
def _matmul() -> Any:
    return tilewright.matmul        # which may be recorded (api/record.py)
