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
FIRST = (5, 11, 23, 47, 97)     # where sizes that are near each other go
MOST = 1 << 24          # statements that are run for a comparison
INEXACT = {"div", "exp", "log", "tanh", "erf", "gelu", "gelu_tanh", "sigmoid", "sqrt"}


def smaller(nest: LoopNest, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
            ) -> Iterator[tuple[dict[str, tuple[int, ...]], dict[str, int]]]:
    """Shapes and sizes of fewer rounds, the least first, for which the loops stay inside of their arrays."""
    values = sorted({*sizes.values(), *(n for shape in shapes.values() for n in shape)})
    maps = [_clustered(values), *({v: v if v <= NEAR else ceil(v * s) for v in values} for s in (1/16, 1/8, 1/4, 1/2)),
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


def _clustered(values: list[int]) -> dict[int, int]:
    """Each value's place: values with gaps of at most NEAR stay together, small ones as they are."""
    to, first = dict[int, int](), list(FIRST)
    base = group = 0
    for v in values:
        if v <= NEAR:
            to[v] = v
            group, base = v, v
            continue
        if not base or v - group > NEAR or base <= NEAR < v - group + base:
            start = first.pop(0) if len(first) > 1 else first[0]
            base, group = max(start, base + 1), v
        to[v] = base + v - group
    return to


def small(array: Any, shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Small whole numbers in the array's format, laid out in its order of axes and directions."""
    dtype = array.dtype if isinstance(array, np.ndarray) else _numpy(array)
    steps = array.strides if isinstance(array, np.ndarray) else array.stride()
    order = sorted(range(len(shape)), key=lambda axis: -abs(steps[axis]))
    numbers = random.integers(-3, 4, [shape[axis] for axis in order]).astype(dtype)
    back = [order.index(axis) for axis in range(len(shape))]
    turned = tuple([slice(None, None, -1 if steps[axis] < 0 else 1) for axis in range(len(shape))])
    return numbers.transpose(back)[turned]


def _numpy(tensor: Any) -> Any:
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":
        import ml_dtypes
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


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


Run = Callable[[Sequence[Any]], None]


def agree(nest: LoopNest, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]],
          sizes: Mapping[str, int], product: Callable[[Mapping[str, Any]], Run], loops: Run) -> bool:
    """Whether both leave the same in small arrays. `product`: makes the calls for arrays of these shapes."""
    random = np.random.default_rng(0)
    made: dict[int, np.ndarray] = {}
    for name, x in arrays.items():              # one array twice is one array here
        if id(x) not in made:
            made[id(x)] = small(x, shapes[name], random)
    numbers = {p.name: float(n + 2) for n, p in enumerate(nest.parameters) if p.kind == "number"}

    def given(copies: Mapping[int, np.ndarray]) -> dict[str, Any]:
        return {name: copies[id(x)] for name, x in arrays.items()} | dict(sizes) | numbers
    outcomes = []
    for run in (product, None):
        copies = {key: x.copy(order="K") for key, x in made.items()}
        values = given(copies)
        args = [values[p.name] for p in nest.parameters]
        (loops if run is None else run(values))(args)
        outcomes.append({name: copies[id(x)] for name, x in arrays.items()})
    return equal(nest, *outcomes)
