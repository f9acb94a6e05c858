"""einsum of arrays in a GPU's memory: each pair of operands is a product of stacks of matrices on the caller's stream.

The axes are grouped and merged as on CPUs (rules/contraction.py). Axes of m and n that do not merge become axes of the
stack, of which a launch takes those that fold; an operand whose axes of k have no one stride is copied. What would be
no product, a sum over an axis of one operand alone, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.rules import arguments, contraction, paths
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call, decide
from tilewright.rules.contraction import Groups, Term
from tilewright.runtime import repeats
from tilewright.runtime.gpu.arrays import Library
from tilewright.runtime.gpu.engine import multiplied
from tilewright.runtime.gpu.product import Run


def einsum(library: Library, given: Sequence[Any], labels: Any, output: Any, out: Any, out_dtype: Any, optimize: Any,
           invariant: str = "", asked: repeats.Asked | None = None) -> Any:
    """einsum, as tilewright.einsum, whose arguments are checked here. The result is in C order, of the operands'
    library. `asked`: what the call is known by."""
    out = arguments.single(out, "out")
    named = {f"operand {i}": x for i, x in enumerate(given)}
    run, looks = library.platform.engine.begin(named, {"out": out}, asked, invariant=invariant)
    with run:
        arrays = [arguments.operand(looks[name].shadow, name, least=0) for name in named]
        new, result = _einsum(run, arrays, labels, output, looks["out"].shadow if "out" in looks else None, out_dtype,
                              optimize)
        run.remember([result])
    return out if new is None else run.library.result(new, given[0])


def _einsum(run: Run, arrays: Sequence[Array], labels: Any, output: Any, out: Array | None, out_dtype: Any,
            optimize: Any) -> tuple[Any, Array]:
    """The new array, if there is no out; and the result's shadow."""
    terms, path = paths.resolved(labels, output, [x.shape for x in arrays], optimize)
    sums, result = contraction.dtypes(arrays, out_dtype)
    shape = tuple(terms.sizes[label] for label in terms.output)
    paths.check_given(optimize, len(arrays), run.invariant)
    new = None
    if out is None:
        new, out = run.result(shape, result)
    elif out.shape != shape:
        raise ValueError(f"out must have the result's shape {shape}, but its shape is {out.shape}")
    arguments.check_cast(result, out.dtype, "out")
    if 0 not in shape:
        product = out if out.dtype == result else run.temporary(shape, result)
        _products(run, arrays, terms, path, sums, Term(product, terms.output))
        if product is not out:
            run.copy(product, out)
    return new, out


def _products(run: Run, arrays: Sequence[Array], terms: Any, path: paths.Path, sums: np.dtype[Any],
              result: Term) -> None:
    sizes = terms.sizes
    left = [contraction.diagonal(x, of, sizes)._replace(first=at)
            for at, (x, of) in enumerate(zip(arrays, terms.inputs))]
    for step in path:
        chosen = Term.chosen(left, step, run.invariant)
        while len(chosen) > 1:
            a, b, *more = chosen
            needed = {*terms.output, *(x for term in (*left, *more) for x in term.labels)}
            kept = tuple(dict.fromkeys(x for x in (*a.labels, *b.labels) if x in needed))
            final = not left and not more
            c = result if final else Term(run.temporary(tuple(sizes[x] for x in kept), sums), kept)
            _pair(run, a, b, kept, c)
            chosen = [c._replace(first=a.first), *more]
        left.append(chosen[0])
    (last,) = left
    if last.array is not result.array:                      # one operand, of which there is no product
        _refuse_sums(run, last, {*terms.output})
        run.copy(contraction.arranged(last, terms.output), result.array)


def _refuse_sums(run: Run, x: Term, needed: set[Any]) -> None:
    for label in x.labels:
        if label not in needed:
            raise ValueError(f"label {label!r} is summed over in one operand alone, which is no product: on "
                             f"{run.engine.platform.name}s sum over it before einsum")


def _pair(run: Run, a: Term, b: Term, kept: tuple[Any, ...], c: Term) -> None:
    for x, other in ((a, b), (b, a)):
        _refuse_sums(run, x, {*kept, *other.labels})
    index = tuple(0 if size == 1 and label not in kept else slice(None) for label, size in zip(c.labels, c.array.shape))
    place = Term(c.array[(..., *index)], tuple(label for label in c.labels if label in kept))
    second = b if run.invariant == "rows" else None
    exchanged = contraction.exchanged(a, b, kept, place, kept)
    if exchanged:
        a, b = b, a
    groups = contraction.groups(a, b, kept, place, second)
    left, right = (_with_k(run, contraction.arranged(term, sum(of, ())), of, groups)
                   for term, of in ((a, groups.of_a), (b, groups.of_b)))
    found = contraction.merged(left, right, contraction.arranged(place, sum(groups.of_c, ())), groups)
    left, right, there = found.stacks
    dtype = there.dtype
    if exchanged and run.invariant:                 # the rows of C^T
        left, right, there = right.swapaxes(-1, -2), left.swapaxes(-1, -2), there.swapaxes(-1, -2)
    multiplied(run, decide(Call(left, right, there, out_dtype=dtype), left, right, None, there), "out")


def _with_k(run: Run, x: Array, of: tuple[Any, ...], groups: Groups) -> Array:
    """x, or a copy of it, whose axes of k have one stride."""
    first = sum(len(part) for part in of[: of.index(groups.k)])
    axes = [*zip(x.shape, x.strides)][first : first + len(groups.k)]
    if all(outer == extent * inner for (_, outer), (extent, inner) in pairwise(axes)):
        return x
    there = run.temporary(x.shape, x.dtype)
    run.copy(x, there)
    return there
