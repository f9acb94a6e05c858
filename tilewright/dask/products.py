"""matmul, einsum, tensordot and contract of Dask arrays."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import dask.array as da
import numpy as np

from tilewright.api import as_matmul
from tilewright.dask import chunks
from tilewright.dask.operands import cut_alike, operand
from tilewright.dask.single import ALONE, Asked, product
from tilewright.rules import arguments, paths, subscripts
from tilewright.rules.subscripts import LETTERS, Labels


def matmul(a: Any, b: Any, *, out_dtype: Any = None, alpha: complex = 1, beta: complex = 0, c: Any = None,
           epilogue: Any = None, operands: dict[str, Any] | None = None, deterministic: bool = True,
           batch_invariant: bool = False, plan: Any = None, schedule: str = "auto") -> Any:
    """The matrix product of Dask arrays, block by block with tilewright.matmul, whose arguments these are.

    a, b        Dask arrays [..., m, k] and [..., k, n], or 1-D, of any format that tilewright multiplies. One may be
                a NumPy array, which is cut as the other one is. b may also be a tw.Quantized, a tw.Scaled or a
                result of tw.pack, which every task reads as a whole; a must have one block along k then
    epilogue, operands  as in tilewright.matmul; evaluated once, in the task of the last block of k. Operands are
                numbers and arrays of NumPy or Dask that broadcast to the result. Several results are a tuple of arrays.
                A reduction of rows needs n in one block, a reduction of columns m
    c           an array of NumPy or Dask, or a number; it is added with the first block of k
    deterministic   False: bits may depend on how many threads a worker has
    plan        a plan's text for all blocks, instead of the one that tilewright.plan chooses for the largest block.
                This text is part of the names of the result's blocks
    schedule    how long blocks of a and b stay in memory: "reload", "panels", "blocks", or "auto", which chooses one.
                docs/dask.md has the formulas

    Blocks of k are added up one after another, in their order. dask's PerformanceWarning says where chunks do not match
    and one of the arrays is cut anew. TypeError and ValueError as from tilewright.matmul, before anything is computed.
    """
    pair = operand(a, "a"), operand(b, "b", whole=True)
    if not all(x.ndim for x in pair):
        raise ValueError("a and b must have at least 1 axis; to scale an array use *")
    labels = _labels(pair[0].ndim, 0), _labels(pair[1].ndim, 1)
    output = _dots(max(map(len, labels)) - 2) + ("m",) * (len(labels[0]) > 1) + ("n",) * (len(labels[1]) > 1)
    how = {"deterministic": deterministic, "batch_invariant": batch_invariant}
    return product(Asked("matmul", (), labels, output, how | ({} if plan is None else {"plan": plan}), out_dtype, alpha,
                         beta, c, epilogue, operands, schedule), *pair)


def contract(f: Callable[..., Any], a: Any, b: Any, *, reduce: Any = "sum", out_dtype: Any = None, epilogue: Any = None,
             operands: dict[str, Any] | None = None, deterministic: bool = True, batch_invariant: bool = False,
             schedule: str = "auto") -> Any:
    """f(a[i, p], b[p, j]) reduced over p, of Dask arrays, block by block with tilewright.contract, whose arguments
    these are; `schedule` is that of matmul. An epilogue, and a tw.Reduction of your own, need k in one block, to which
    arrays are rechunked with a warning.
    """
    pair = operand(a, "a"), operand(b, "b")
    if any(x.ndim < 2 for x in pair):
        raise ValueError("a and b of contract must have two axes or more")
    labels = _labels(pair[0].ndim, 0), _labels(pair[1].ndim, 1)
    x, y = cut_alike(*pair, labels)
    if not isinstance(reduce, str) or epilogue is not None:
        why = "since an epilogue of contract, and a reduction of your own, need all of k at once"
        x, y = chunks.whole(x, "a", x.ndim - 1, why), chunks.whole(y, "b", y.ndim - 2, why)
    elif reduce in ALONE and not chunks.known((*x.chunks[-1], *y.chunks[-2])):
        raise ValueError(f"reduce={reduce!r} needs known sizes of blocks along k: compute_chunk_sizes()")
    how = {"reduce": reduce, "deterministic": deterministic, "batch_invariant": batch_invariant}
    output = *_dots(max(map(len, labels)) - 2), "m", "n"
    return product(Asked("contract", (f,), labels, output, how, out_dtype, after=epilogue, operands=operands,
                         schedule=schedule), x, y)


def tensordot(a: Any, b: Any, axes: Any = 2, **how: Any) -> Any:
    """The sum of products over axes of Dask arrays, as numpy.tensordot computes it. Keywords are those of `einsum`."""
    x, y = operand(a, "a"), operand(b, "b")
    of_a, of_b = as_matmul.axes_of(axes, x.ndim, y.ndim)
    labels_a = list(range(x.ndim))
    labels_b = [of_a[of_b.index(j)] if j in of_b else x.ndim + j for j in range(y.ndim)]
    return einsum(x, labels_a, y, labels_b, [i for i in (*labels_a, *labels_b) if i not in of_a], **how)


def einsum(*given: Any, out_dtype: Any = None, alpha: complex = 1, beta: complex = 0, c: Any = None,
           epilogue: Any = None, operands: dict[str, Any] | None = None, optimize: Any = True,
           deterministic: bool = True, batch_invariant: bool = False, schedule: str = "auto") -> Any:
    """The sum of products that subscripts name, of Dask arrays, as numpy.einsum computes it: a product of blocks for
    each pair of operands. Arguments as in tilewright.einsum and in `matmul`. The epilogue must have one result with the
    result's axes. Products in between have the format of sums.
    """
    arrays, labels, output = subscripts.read(given)
    made = [cut_alike(operand(x, f"operand {i}"), None, ((), ()))[0] for i, x in enumerate(arrays)]
    sizes = [tuple(1024 if np.isnan(n) else int(n) for n in x.shape) for x in made]
    terms, path = paths.resolved(labels, output, sizes, optimize)
    items = [_alone(x, number, terms) for number, x in enumerate(made)]
    how = {"deterministic": deterministic, "batch_invariant": batch_invariant}
    if len(items) == 1:
        items.append((da.ones((), chunks=(), dtype=made[0].dtype), ()))
        path = [(0, 1)]
    summed = any(x.dtype != y.dtype for x, (y, _) in zip(made, items))      # by Dask, in the format of sums
    out_dtype = _common(made) if out_dtype is None and (len(made) > 2 or summed) else out_dtype
    while len(items) > 1:
        at, path = path[0], path[1:]
        if len(at) != 2:
            raise ValueError("the path of optimize= must take operands in pairs")
        (x, of_x), (y, of_y) = (items[i] for i in at)
        items = [item for i, item in enumerate(items) if i not in at]
        needed = {*terms.output, *(label for _, term in items for label in term)}
        kept = tuple(dict.fromkeys(label for label in (*of_x, *of_y) if label in needed)) if items else terms.output
        letters = dict(zip(dict.fromkeys((*of_x, *of_y)), LETTERS[26:] + LETTERS[:26]))
        written = ["".join(letters[label] for label in term) for term in (of_x, of_y, kept)]
        asked = Asked("einsum", (f"{written[0]},{written[1]}->{written[2]}",), (of_x, of_y), kept, how,
                      schedule=schedule)
        if items:
            asked.out_dtype = _sums_of(x.dtype, y.dtype)
        else:
            asked.out_dtype, asked.alpha, asked.beta, asked.c = out_dtype, alpha, beta, c
            asked.after, asked.operands = epilogue, operands
        items.append((product(asked, x, y), kept))
    return items[0][0]


def _dots(count: int) -> Labels:
    return tuple(f"...{-i}" for i in range(count, 0, -1))


def _labels(ndim: int, side: int) -> Labels:
    return ("k",) if ndim == 1 else (*_dots(ndim - 2), *(("m", "k"), ("k", "n"))[side])


def _sums_of(a: Any, b: Any) -> Any:
    return arguments.dtypes(np.empty((0, 0), a), np.empty((0, 0), b), None, None)[0]


def _common(arrays: Sequence[Any]) -> Any:
    """The dtype that NumPy gives the product of all, one after the other."""
    return reduce(lambda a, b: arguments.dtypes(np.empty((0, 0), a), np.empty((0, 0), b), None, None)[1],
                  (x.dtype for x in arrays))


def _alone(x: Any, number: int, terms: Any) -> tuple[Any, Labels]:
    """The operand with each label once, and without those that it alone has, over which Dask's einsum sums."""
    term = terms.inputs[number]
    others = {*terms.output, *(label for i, other in enumerate(terms.inputs) if i != number for label in other)}
    kept = tuple(dict.fromkeys(label for label in term if label in others))
    if kept == term:
        return x, term
    letters = dict(zip(dict.fromkeys(term), LETTERS))
    text = "".join(letters[label] for label in term) + "->" + "".join(letters[label] for label in kept)
    return da.einsum(text, x.astype(_sums_of(x.dtype, x.dtype))), kept
