"""einsum of arrays in a GPU's memory: each pair of operands is a product of stacks of matrices on the caller's stream.

The axes are grouped and merged as on CPUs (rules/contraction.py). Axes of m and n that do not merge become axes of the
stack, of which a launch takes those that fold; an operand whose axes of k have no one stride is copied. What would be
no product, a sum over an axis of one operand alone, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright.rules import arguments, contraction, paths, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.beside import Beside, Matrices
from tilewright.rules.call import Call, decide
from tilewright.rules.contraction import Groups, Term
from tilewright.rules.signature import operand, signature
from tilewright.rules.subscripts import Terms
from tilewright.runtime import repeats
from tilewright.runtime.gpu import fused, gathered
from tilewright.runtime.gpu.arrays import Library, Look
from tilewright.runtime.gpu.engine import multiplied
from tilewright.runtime.gpu.product import Run

MOST_LAUNCHES = 16      # of a product of stacks


def einsum(library: Library, given: Sequence[Any], labels: Any, output: Any, call: Call, optimize: Any,
           asked: repeats.Asked | None = None) -> Any:
    """einsum, as tilewright.einsum, whose arguments are checked here. Results are in C order, of the operands' library.
    `asked`: what the call is known by."""
    named = {f"operand {i}": x for i, x in enumerate(given)}
    c = None if isinstance(call.c, np.number) else call.c
    operands, _ = signature(None, None, call.operands if isinstance(call.operands, Mapping) else None, c=c)
    operands = {name: x for name, x in operands.items() if x is not None}
    run, looks = library.platform.engine.begin(named | operands, fused.outs_of(call), asked, invariant=call.invariant)
    with run:
        arrays = [arguments.operand(looks[name].shadow, name, least=0) for name in named]
        if call.scaled:
            return _scaled(run, arrays, labels, output, call, looks, optimize, given[0])
        out = looks["out"].shadow if "out" in looks else None
        new, result = _einsum(run, arrays, labels, output, out, call.out_dtype, optimize)
        run.remember([result])
    return call.out if new is None else run.library.result(new, given[0])


def _scaled(run: Run, arrays: Sequence[Array], labels: Any, output: Any, call: Call, looks: Mapping[str, Look],
            optimize: Any, like: Any) -> Any:
    """einsum with alpha, beta, c or an epilogue, which the kernel of the last product computes."""
    terms, path = paths.resolved(labels, output, [x.shape for x in arrays], optimize)
    paths.check_given(optimize, len(arrays), run.invariant)
    given, host = fused.given_of(call, looks)
    by = Beside(call._replace(c=looks["c"].shadow if "c" in looks else call.c, operands=given), arrays, terms)
    where = f"einsum on {run.engine.platform.name}s"
    if len(arrays) < 2:
        raise ValueError(f"alpha, beta, c and epilogue must be left out of {where} where there is one operand")
    if by.paired or any(by.reduced):
        raise ValueError(f"epilogue must neither reduce rows or columns nor take pairs in {where}")
    names, outs = [*fused.outs_of(call)], list[Any]()
    targets = list[Array]()
    for out, name, dtype in zip(by.outs(call.out), [*names, *[""] * len(by.reduced)], by.dtypes):
        new, there = (None, looks[name].shadow) if out is not None else run.result(by.shape, dtype)
        if there.shape != by.shape:
            raise ValueError(f"{name} must have the result's shape {by.shape}, but its shape is {there.shape}")
        arguments.check_cast(dtype, there.dtype, name)
        outs.append(out if new is None else new)
        targets.append(there)
    if 0 not in by.shape:
        _products(run, arrays, terms, path, by.sums, Term(targets[0], terms.output), Last(by, targets, looks, host))
    run.remember(targets, (call.epilogue,))
    results = tuple(x if y is not None else run.library.result(x, like) for x, y in zip(outs, by.outs(call.out)))
    return results if results[1:] else results[0]


class Last(NamedTuple):
    """What the last product takes beside its operands, and where its results go."""

    beside: Beside
    targets: Sequence[Array]
    looks: Mapping[str, Look]
    host: frozenset[str]            # operands in the host's memory


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
        product = out if out.dtype == result or _rounds(arrays, sums, out) else run.temporary(shape, result)
        _products(run, arrays, terms, path, sums, Term(product, terms.output))
        if product is not out:
            run.copy(product, out)
    return new, out


def _rounds(arrays: Sequence[Array], sums: np.dtype[Any], out: Array) -> bool:
    """Whether the kernel of the only product rounds sums as a copy of them does: f32 to the operands' 16 bits."""
    return len(arrays) == 2 and sums == np.float32 and out.itemsize == 2 and {x.dtype for x in arrays} == {out.dtype}


def _products(run: Run, arrays: Sequence[Array], terms: Any, path: paths.Path, sums: np.dtype[Any],
              result: Term, last: Last | None = None) -> None:
    sizes = terms.sizes

    def product(a: Term, b: Term, needed: dict[Any, None], final: bool) -> Term:
        kept = tuple(dict.fromkeys(x for x in (*a.labels, *b.labels) if x in needed))
        c = result if final else Term(run.temporary(tuple(sizes[x] for x in kept), sums), kept)
        _pair(run, a, b, kept, c, sizes, last if final else None)
        return c
    made = contraction.pairwise(arrays, terms, path, run.invariant, product)
    if made.array is not result.array:                      # one operand, of which there is no product
        _refuse_sums(run, made, {*terms.output})
        run.copy(contraction.arranged(made, terms.output), result.array)


def _refuse_sums(run: Run, x: Term, needed: set[Any]) -> None:
    for label in x.labels:
        if label not in needed:
            raise ValueError(f"label {label!r} is summed over in one operand alone, which is no product: on "
                             f"{run.engine.platform.name}s sum over it before einsum")


def _pair(run: Run, a: Term, b: Term, kept: tuple[Any, ...], c: Term, sizes: dict[Any, int],
          last: Last | None = None) -> None:
    for x, other in ((a, b), (b, a)):
        _refuse_sums(run, x, {*kept, *other.labels})
    index = tuple(0 if size == 1 and label not in kept else slice(None) for label, size in zip(c.labels, c.array.shape))
    place = Term(c.array[(..., *index)], tuple(label for label in c.labels if label in kept))
    second = b if run.invariant == "rows" else None
    exchanged = contraction.exchanged(a, b, kept, place, kept)
    if exchanged:
        a, b = b, a
    groups = contraction.groups(a, b, kept, place, second)
    targets = [place.array] if last is None else last.targets
    apart = not any(shapes.overlap(x.array, target) for x in (a, b) for target in targets)
    if apart and (parts := gathered.stacks(run, a, b, groups, place)) is not None:
        _gathered(run, parts, c, sizes, place, last)
        return
    left, right = (_with_k(run, contraction.arranged(term, sum(of, ())), of, groups)
                   for term, of in ((a, groups.of_a), (b, groups.of_b)))
    there = contraction.arranged(place, sum(groups.of_c, ()))
    merged = contraction.merged(left, right, there, groups)
    if _launches(merged) > MOST_LAUNCHES:           # each for a few rows: operands whose axes merge with those of C
        left, right = run.copied(left, left.dtype), run.copied(right, right.dtype)
        merged = contraction.merged(left, right, there, groups)
    left, right, there = merged.stacks
    dtype = there.dtype
    if last is not None:
        if exchanged and run.invariant:
            merged, groups = merged.exchanged, groups._replace(m=groups.n, n=groups.m)
            left, right, _ = merged.stacks
        nb, nm, nn, nk = merged.counts
        seen = Matrices(Terms((), c.labels, sizes), groups, merged, False)
        seen.moved((nb + nm + nn - 2, 1, 1, nk))
        _last(run, last, seen, left, right)
        return
    if exchanged and run.invariant:                 # the rows of C^T
        left, right, there = right.swapaxes(-1, -2), left.swapaxes(-1, -2), there.swapaxes(-1, -2)
    multiplied(run, decide(Call(left, right, there, out_dtype=dtype), left, right, None, there), "out")


def _launches(x: contraction.Operands) -> int:
    """At most so many: of all leading axes but the longest."""
    lead = x.stacks[2].shape[:-2]
    return prod(lead) // max(lead) if lead else 1


def _gathered(run: Run, parts: gathered.Stacks, c: Term, sizes: dict[Any, int], place: Term, last: Last | None) -> None:
    """A product with an operand that is read by tables."""
    groups, left, right = parts.labels, parts.a, parts.b
    batch = len(groups.batch)
    there = gathered.matrix(contraction.arranged(place, sum(groups.of_c, ())), batch, len(groups.m))
    assert there is not None                        # groups are chosen so
    with run.reading(parts.gather):
        if last is None:
            multiplied(run, decide(Call(left, right, there, out_dtype=there.dtype), left, right, None, there), "out")
        else:
            operands = contraction.Operands(left, right, there, (batch, 1, 1, 1))
            _last(run, last, Matrices(Terms((), c.labels, sizes), groups, operands, False), left, right)


def _last(run: Run, last: Last, seen: Matrices, a: Array, b: Array) -> None:
    """The last product, into the targets."""
    by = last.beside

    def reshaped(x: Array, shape: Sequence[int]) -> Array:
        """A view, or a copy in the GPU's memory."""
        view = shapes.merged_into(x, shape)
        if view is None:
            there = run.temporary(x.shape, x.dtype)
            run.copy(x, there)
            view = there.reshape(shape)
        return view
    targets = [seen.stacked(x, reshaped=reshaped) for x in last.targets]
    c = by.call.c
    c = seen.stacked(c, reshaped=reshaped) if isinstance(c, np.ndarray) else c
    now = by.call._replace(a=a, b=b, c=c)
    if by.expression is None:
        multiplied(run, decide(now._replace(out=targets[0], out_dtype=targets[0].dtype), a, b, c, targets[0]), "out")
    else:
        given = {name: seen.stacked(x, reshaped=np.reshape if name in last.host else reshaped)
                 for name, x in (by.call.operands or {}).items()}
        looks = {operand(name): Look(x, None) for name, x in given.items() if name not in last.host}
        looks |= {f"out[{i}]": Look(x, None) for i, x in enumerate(targets)}
        fused.computed(run, now._replace(out=tuple(targets), operands=given), looks, a, b)


def _with_k(run: Run, x: Array, of: tuple[Any, ...], groups: Groups) -> Array:
    """x, or a copy of it, whose axes of k have one stride."""
    first = sum(len(part) for part in of[: of.index(groups.k)])
    axes = [*zip(x.shape, x.strides)][first : first + len(groups.k)]
    if all(outer == extent * inner for (_, outer), (extent, inner) in pairwise(axes)):
        return x
    there = run.temporary(x.shape, x.dtype)
    run.copy(x, there)
    return there
