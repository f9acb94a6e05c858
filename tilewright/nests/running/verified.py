"""Whether products compute what loops do, found out on small arrays before a result is used.

    smaller(nest, arrays, sizes)    other sizes with the same relations: candidates, the smallest first
    agree(nest, arrays, shapes, ...)  whether there are equal results of both on small whole numbers

Sizes of users are related (X.shape[1] = Y.shape[1] + 2 of a convolution) in ways that nobody states. Equal ones stay
equal here, near ones keep their differences, and whether the loops stay inside of their arrays is checked.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.nests.domain import check, rounds
from tilewright.nests.nest import LoopNest, Refused, Term, leaves

NEAR = 8                # differences between sizes that are kept
FIRST = (9, 19, 37, 71, 139)    # where sizes that are near each other go
CLOSE, LOW = 2, (5, 9, 14, 23, 37, 71, 139)     # the same, where these have too many rounds: a convolution's loops
MOST = 1 << 24          # statements that are run for a comparison
INEXACT = {"div", "exp", "log", "tanh", "erf", "gelu", "gelu_tanh", "sigmoid", "sqrt"}


def smaller(nest: LoopNest, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
            ) -> Iterator[tuple[dict[str, tuple[int, ...]], dict[str, int]]]:
    """Shapes and sizes of fewer rounds, the least first, for which the loops stay inside of their arrays."""
    values = sorted({*sizes.values(), *(n for shape in shapes.values() for n in shape)})
    maps = [_clustered(values, NEAR, FIRST), _clustered(values, CLOSE, LOW),
            *({v: v if v <= NEAR else ceil(v * s) for v in values} for s in (1/16, 1/8, 1/4, 1/2)),
            {v: v for v in values}]
    for to in maps:
        new = {name: tuple([to[n] for n in shape]) for name, shape in shapes.items()}
        numbers = {name: to[n] for name, n in sizes.items()}
        try:
            check(nest, numbers, new)
            count = sum(prod(r.extents.values()) for r in rounds(nest, numbers))
        except Refused:
            continue
        if 0 < count <= MOST:
            yield new, numbers


def _clustered(values: list[int], near: int, first: tuple[int, ...]) -> dict[int, int]:
    """Each value's place: small ones as they are, values with gaps of at most `near` together, in the same order."""
    to, before, starts = dict[int, int](), 0, iter(first)
    for v in values:
        if v <= NEAR:
            to[v] = v
        elif before > NEAR and v - before <= near:
            to[v] = to[before] + v - before
        else:
            to[v] = next((x for x in starts if x > to.get(before, 0)), v)
        before = v
    return to


def small(array: np.ndarray, shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Small whole numbers in the array's format, laid out in its order of axes and directions."""
    order = sorted(range(len(shape)), key=lambda axis: -abs(array.strides[axis]))
    numbers = random.integers(-3, 4, [shape[axis] for axis in order]).astype(array.dtype)
    back = [order.index(axis) for axis in range(len(shape))]
    return numbers.transpose(back)[tuple([slice(None, None, -1 if s < 0 else 1) for s in array.strides])]


def equal(nest: LoopNest, results: Mapping[str, np.ndarray], loops: Mapping[str, np.ndarray]) -> bool:
    """Whether products and loops agree: to the bit, unless a statement rounds numbers that are not whole."""
    exact = not any(_rounds(s.value) for s in nest.statements)
    for name, x in results.items():
        y = loops[name]
        if exact or x.dtype.kind in "iub":
            if not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
                return False
        else:
            a, b = (np.asarray(v, np.float64) for v in (x, y))
            narrow = x.dtype.itemsize < 4
            if not np.allclose(a, b, rtol=2**-6 if narrow else 2**-14, atol=2**-5 if narrow else 2**-12,
                               equal_nan=True):
                return False
    return True


def _rounds(term: Term) -> bool:
    """Whether a term of small whole numbers may be rounded."""
    numbers = [x for x in leaves(term, "number") if x * 16 != int(x * 16)] if _finite(term) else []
    inner = term[0] in INEXACT or any(_rounds(x) for x in term[1:] if isinstance(x, tuple) and x and
                                      isinstance(x[0], str) and term[0] not in ("load", "index"))
    return bool(numbers) or inner


def _finite(term: Term) -> bool:
    return all(np.isfinite(x) for x in leaves(term, "number"))


def arguments(nest: LoopNest, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]],
              sizes: Mapping[str, int]) -> list[Any]:
    """Small arguments: arrays of whole numbers, laid out like these, and one array where these are one."""
    random = np.random.default_rng(0)
    made: dict[tuple[Any, ...], np.ndarray] = {}
    values: dict[str, Any] = {p.name: float(n + 2) for n, p in enumerate(nest.parameters) if p.kind == "number"}
    for name, x in arrays.items():
        place = x.__array_interface__["data"][0], x.shape, x.strides
        values[name] = made[place] = made.get(place, small(x, shapes[name], random))
    return [{**values, **sizes}[p.name] for p in nest.parameters]


def agree(nest: LoopNest, args: Sequence[Any], products: Callable[..., None], loops: Callable[[Sequence[Any]], None],
          temporary: Sequence[str] = ()) -> bool:
    """Whether both leave the same in small arrays, but for those that are temporary."""
    outcomes = []
    for run in (products, lambda *given: loops(given)):
        copies = {id(x): _copy(x) for x in args if isinstance(x, np.ndarray)}
        given = [copies.get(id(x), x) for x in args]
        run(*given)
        outcomes.append({p.name: x for p, x in zip(nest.parameters, given)
                         if isinstance(x, np.ndarray) and p.name not in temporary})
    return equal(nest, *outcomes)


def _copy(x: np.ndarray) -> np.ndarray:
    """A copy with the same order and directions of axes."""
    turned = tuple([slice(None, None, -1 if s < 0 else 1) for s in x.strides])
    copied = x[turned].copy(order="K")[turned]
    return np.lib.stride_tricks.as_strided(copied, x.shape, x.strides)     # of axes of one element, too
