"""einsum and tensordot: NumPy's semantics, one product of matrices for each pair of operands.

`rules/subscripts.py` reads the call, `rules/paths.py` chooses the order of pairs, `rules/contraction.py` makes matrices
of labelled axes; what remains for arrays in the host's memory is here. Labels that one operand alone has, and not the
result, are summed before the product; without a common label that is summed, operands are multiplied by elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy import einsum as numpys_einsum  # not looked up at each call: users put tilewright's in its place
from numpy.typing import NDArray

from tilewright import forks
from tilewright.api import as_matmul, host, tensor_repeats, tensors
from tilewright.formats.scaled import Decodable
from tilewright.plans import invariant as invariants
from tilewright.rules import arguments, contraction, numpy_products, paths, shapes, subscripts
from tilewright.rules.arguments import Array
from tilewright.rules.contraction import Term
from tilewright.rules.subscripts import Labels
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool, program
from tilewright.runtime.gpu.arrays import library_of
from tilewright.runtime.repeats import HOST

MOST_LETTERS = 52        # labels of einsum's texts
ORDERS = ("K", "C", "F", "A")
CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


def einsum(
    *operands: Any,
    out: NDArray[Any] | None = None,
    out_dtype: Any = None,
    optimize: Any = True,
    order: str | None = "K",
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int | None = None,
    dtype: Any = None,
    casting: Any = None,
) -> Any:
    """The sum of products that subscripts name, as numpy.einsum computes it: each pair of operands is one product.

    operands    `einsum("ij,jk->ik", a, b)`, or `einsum(a, [0, 1], b, [1, 2], [0, 2])`: a label for each axis, letters
                or integers from 0. Without "->", or the last list, the result has the labels that occur once, in
                order. `...`, or Ellipsis, stands for the axes without a label, which are broadcast. A label that an
                operand has twice takes its diagonal; one that is not in the result is summed over; axes of size 1 are
                broadcast. Any number of operands, of any shapes, strides and formats that matmul takes.
    out         where to write the result: an array of its shape, any strides, any dtype to which it can be cast by
                NumPy's rule same_kind. It may overlap operands. It is returned.
    out_dtype   a format or dtype instead of NumPy's choice, as in matmul. Products in between are kept in the format of
                the sums, so that a result is rounded once.
    optimize    the order of products of three or more operands: True chooses that of the fewest operations (an element
                of a product in between counts as 16) for up to 8 operands, for more by a greedy search, or by
                opt_einsum where it is installed; "greedy" and "optimal" name a search, False multiplies from the left;
                or a path, as numpy.einsum_path returns it. (name, N) allows products in between of at most N elements.
    order       the layout of a new result: "K", or None, whichever is fastest to write, so that its axes may be
                permuted in memory; "C" and "F" as in NumPy; "A" "F" if all operands are Fortran-contiguous, else "C"
    deterministic  True: the same bits for any number of threads, and after tilewright.tune; see
                docs/reproducibility.md.
    batch_invariant  True: all of that, and an element of the product of two operands does not depend on the sizes
                of free or batch axes of the first operand, nor on its strides. Of more operands optimize= must say the
                order, and this holds for the first of all; labels of one operand alone must not be summed over.
    threads     the most threads that this call may use; by default tilewright.get_num_threads()
    dtype, casting  as in numpy.einsum: operands are converted to dtype, which the result has, by the rule casting
                ("safe" by default), as the result is to the dtype of `out`. Of NumPy's arrays

    Axes that merge into one with one stride are multiplied where they are. With a single operand of which nothing is
    summed, and without `out`, the result is a view of it, as in NumPy. Arrays on a GPU, of one library and on one
    device, are multiplied there into a new array in C order; sums over labels of one operand alone are not made there.

    Raises TypeError and ValueError where numpy.einsum does.
    """
    plain = optimize is True and dtype is casting is out_dtype is None and order == "K" and threads is None and (
        deterministic is batch_invariant is False and len(operands) > 1 and type(operands[0]) is str)
    how = None
    if plain and len(operands) > 2 and {*map(type, operands[1:])} <= tensors.known and (
            out is None or type(out) in tensors.known) and not operands[1].is_cuda:
        how = einsum, operands[0]
        if (result := tensor_repeats.run_recorded(how, operands[1:], out)) is not None:
            return result
    elif plain and len(operands) < 4:
        result = as_matmul.by_matmul(*operands, out) if len(operands) == 3 else (
            as_matmul.by_numpy(*operands) if out is None else None)
        if result is not None:
            return result
    alike = None
    invariant = "" if plain else checked(deterministic, batch_invariant)
    if operands and dtype is casting is None:
        alike = asked(operands, out, out_dtype, order, threads, invariant, *(() if plain else _known_by(optimize)))
    if alike is not None:
        again = partial(repeats.again, *alike, (out,))
        result = again() if how is None else tensor_repeats.watched(again, how, alike[2], out)
        if result is not None:
            return result if alike[0] is not HOST or result.ndim or out is not None else result[()]
    given, labels, output = subscripts.read(operands)
    order = _checked_order(order)
    library = library_of(*given, out)
    if dtype is not None or casting is not None:
        if library is not None or tensors.present(*given, out):
            raise TypeError("dtype and casting must be None for arrays of other libraries than NumPy: out_dtype= names "
                            "the format of the result")
        return _converted(given, out, dtype, casting, lambda arrays: _einsum(
            arrays, labels, output, None, out_dtype, optimize, order, threads, invariant))
    if library is not None:
        engine = forks.imported("tilewright.runtime.gpu.contraction")
        return engine.einsum(library, given, labels, output, out, out_dtype, optimize, invariant, alike and alike[1])

    def compute(arrays: Mapping[str, Any], outs: Sequence[Any]) -> Any:
        return _einsum([*arrays.values()], labels, output, outs[0], out_dtype, optimize, order, threads, invariant)

    def prepared(*arrays: Any, out: Any) -> Any:
        shown = {f"operand {i}": x for i, x in enumerate(arrays)}
        return program.recorded(alike and alike[1], shown, (out,), compute)
    return tensors.through(prepared, given, out) if tensors.present(*given, out) else prepared(*given, out=out)


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    out: NDArray[Any] | None = None,
    out_dtype: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int | None = None,
) -> Any:
    """The sum of products over axes of a and b, as numpy.tensordot computes it, without a copy of a large one.

    a, b        arrays of any shapes, strides and formats that matmul takes
    axes        a number N: the last N axes of a with the first N of b; or (axes of a, axes of b), each an integer or a
                list of as many, in the order in which they correspond. Negative axes count from the end.
    out, out_dtype, deterministic, batch_invariant, threads  as in einsum

    The result has the other axes of a, then those of b. Raises TypeError and ValueError where numpy.tensordot does.
    """
    if out is out_dtype is threads is None and deterministic is batch_invariant is False:
        if (found := as_matmul.by_matrices(a, b, axes)) is not None:
            return found
    a, b = (np.asarray(v) if isinstance(v, np.generic) else v for v in (a, b))     # calls of arrays are repeated
    x, y = a, b
    if not type(a) is type(b) is np.ndarray:
        x, y = (v if library_of(v) or tensors.present(v) else _array(v, name)
                for v, name in zip((a, b), "ab"))
    summed = as_matmul.summed_axes(axes)
    find = as_matmul.axes_of if summed is None else as_matmul.known_axes
    of_a, of_b = find(axes if summed is None else summed, len(x.shape), len(y.shape))
    for i, j in zip(of_a, of_b):
        if x.shape[i] != y.shape[j]:
            raise ValueError(f"axes pairs axis {i} of a, of size {x.shape[i]}, with axis {j} of b, of size "
                             f"{y.shape[j]}; they must be equal")
    how: dict[str, Any] = {"out": out, "out_dtype": out_dtype, "deterministic": deterministic,
                           "batch_invariant": batch_invariant, "threads": threads}
    if len(x.shape) + len(y.shape) <= MOST_LETTERS:
        return einsum(as_matmul.subscripts_of(tuple(of_a), tuple(of_b), len(x.shape), len(y.shape)), a, b, **how)
    labels_a = list(range(len(x.shape)))
    labels_b = [of_a[of_b.index(j)] if j in of_b else len(labels_a) + j for j in range(len(y.shape))]
    output = [x for x in labels_a if x not in of_a] + [x for x in labels_b if x >= len(labels_a)]
    return einsum(a, labels_a, b, labels_b, output, **how)


def _known_by(optimize: Any) -> tuple[Any, ...]:
    """The part of a record's key that depends on `optimize`: nothing for True."""
    if optimize is True:
        return ()
    if type(optimize) is list or type(optimize) is tuple:
        return (tuple(tuple(x) if type(x) is tuple or type(x) is list else x for x in optimize),)
    return type(optimize), optimize


def _checked_order(order: Any) -> str:
    found = "K" if order is None else order.upper() if isinstance(order, str) else order
    if found not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    return str(found)


def checked(deterministic: Any, batch_invariant: Any) -> str:
    """What must not change an element's bits: see plans/invariant.py."""
    arguments.check_flag(deterministic, "deterministic")
    arguments.check_flag(batch_invariant, "batch_invariant")
    return invariants.asked(deterministic, batch_invariant)


# ---- calls like earlier ones

def asked(operands: Sequence[Any], out: Any, *options: Any) -> tuple[Any, repeats.Asked, Sequence[Any]] | None:
    """The library of the call's arrays, what the call may be remembered as, and its arrays; None for calls that are not
    remembered, among them those of one array, and of arrays and tensors together."""
    subscripts: Any
    if type(operands[0]) is str:
        subscripts, arrays = operands[0], operands[1:]
    else:
        pairs = len(operands) // 2 * 2
        lists = *operands[1:pairs:2], *operands[pairs:]
        if not all(type(labels) in (list, tuple) and bool not in map(type, labels) for labels in lists):
            return None                     # True is as good a key as 1, and no label
        subscripts, arrays = tuple(map(tuple, lists)), operands[:pairs:2]
    if len(arrays) < 2 or tensor_repeats.recording:
        return None
    where: Any = HOST
    how = subscripts, options, pool.get_num_threads()
    known_as = where.asked((*arrays, out), *how)
    if known_as is None:
        where = library_of(*arrays, out) or (tensors.HOST if type(arrays[0]) in tensors.known else None)
        known_as = where and where.asked((*arrays, out), *how)
    return None if known_as is None else (where, known_as, arrays)


# ---- arrays in the host's memory


def _einsum(given: Sequence[Any], labels: Any, output: Any, out: Any, out_dtype: Any, optimize: Any, order: Any,
            threads: Any, invariant: str) -> Any:
    target = arguments.output(arguments.single(out, "out"))
    arrays = [_array(x, f"operand {i}") for i, x in enumerate(given)]
    terms, path = paths.resolved(labels, output, [x.shape for x in arrays], optimize)
    threads = arguments.thread_count(threads)
    shape = tuple(terms.sizes[label] for label in terms.output)
    if target is not None and target.shape != shape:
        raise ValueError(f"out must have the result's shape {shape}, but its shape is {target.shape}")
    if numpy_products.takes(*arrays):
        program.not_repeated()
        return _by_numpy(given, labels, output, out, order)
    sums, result = contraction.dtypes(arrays, out_dtype)
    if target is not None:
        arguments.check_cast(result, target.dtype, "out")

    left = [contraction.diagonal(x, of, terms.sizes) for x, of in zip(arrays, terms.inputs)]
    if len(left) == 1 and set(left[0].labels) <= set(terms.output) and target is None and result == left[0].array.dtype:
        view = contraction.arranged(left[0], terms.output)      # which NumPy gives, too, whatever the order
        return view if view.ndim else view[()]
    between = result if all(x.dtype.kind == "b" for x in arrays) else sums
    if order == "A":
        order = "F" if all(x.flags.f_contiguous for x in arrays) else "C"
    into = target
    if target is None and order in ("C", "F") and len(arrays) > 1:  # written there, and not laid out afterwards
        into = program.empty(shape, result, order)
    place = _place(into, terms.output) if into is not None and into.dtype == result else None
    paths.check_given(optimize, len(arrays), invariant)
    last = pairwise(Work(between, threads, invariant), left, path, terms.output, result, place)
    found = contraction.arranged(last, terms.output)
    if into is not None:
        if not shapes.same(found, into):
            program.do(host.store, into, program.rounded(found, result))
        return (out[0] if isinstance(out, tuple) else out) if into is target else program.scalar(into)[()]
    found = program.rounded(found, result)
    found = program.copied(np.asarray(found, order=order), found)
    if len(arrays) == 1 and np.may_share_memory(found, arrays[0]):
        found = found.copy()
    return program.scalar(found)[()]


def _converted(given: Sequence[Any], out: Any, dtype: Any, casting: Any, call: Callable[[list[Array]], Any]) -> Any:
    """The result of a call with operands in a dtype, converted by a rule of NumPy's, as the result is to out's."""
    rule: Any = "safe" if casting is None else casting
    if rule not in CASTINGS:
        raise ValueError(f"casting must be one of {', '.join(CASTINGS)}, not {casting!r}")
    arrays = [_array(x, f"operand {i}") for i, x in enumerate(given)]
    target = arguments.output(arguments.single(out, "out"))
    for i, x in enumerate(arrays):
        if dtype is not None and not np.can_cast(x.dtype, dtype, rule):
            raise TypeError(f"operand {i} is {x.dtype}, which the rule {rule!r} does not cast to dtype={dtype!r}")
    with np.errstate(all="ignore"):
        found = call(arrays if dtype is None else [x.astype(dtype, copy=False) for x in arrays])
    if target is None:
        return found
    if target.shape != np.shape(found):
        raise ValueError(f"out must have the result's shape {np.shape(found)}, but its shape is {target.shape}")
    if not np.can_cast(found.dtype, target.dtype, rule):
        raise TypeError(f"out is {target.dtype}, to which the rule {rule!r} does not cast a result in {found.dtype}")
    np.copyto(target, found, casting=rule)
    return out[0] if isinstance(out, tuple) else out


def _array(x: Any, name: str) -> Array:
    if isinstance(x, Decodable):
        raise TypeError(f"{name} is quantized, and its scales belong to axes of a matrix: tilewright.matmul multiplies "
                        "it, and tilewright.dequantize makes an array of it")
    return arguments.operand(x, name, least=0)


def _place(target: Array, output: Labels) -> Term:
    """Where the result goes, without axes of size 1."""
    extents = [(label, axis) for axis, label in enumerate(output) if target.shape[axis] != 1]
    index = tuple(0 if n == 1 else slice(None) for n in target.shape)
    return Term(target[(..., *index)], tuple(label for label, _ in extents))


def _by_numpy(given: Sequence[Any], labels: Any, output: Any, out: Any, order: str) -> Any:
    """Long doubles and objects."""
    def term(listed: Any) -> list[Any]:
        return [Ellipsis if x == subscripts.DOTS else subscripts.LETTERS.index(x) if isinstance(x, str) else x
                for x in listed]
    pairs = [part for x, of in zip(given, labels) for part in (x, term(of))]
    numpys: Any = numpys_einsum
    return numpys(*pairs, *([] if output is None else [term(output)]), out=out, order=order)


def pairwise(work: Work, left: list[Term], path: paths.Path, output: Labels, result: np.dtype[Any], place: Term | None
             ) -> Term:
    """All operands, which are taken out of `left`, multiplied along the path; the last product in the dtype `result`,
    at this place if it can be written there."""
    left[:] = (x._replace(first=at) for at, x in enumerate(left))
    for number, step in enumerate(path):
        chosen = Term.chosen(left, step, work.invariant)
        while len(chosen) > 1:
            needed = {*output, *(x for term in (*left, *chosen[2:]) for x in term.labels)}
            final = number == len(path) - 1 and len(chosen) == 2
            made = work.product(chosen[0], chosen[1], needed, result if final else work.between,
                                place if final else None, output)
            chosen = [made._replace(first=chosen[0].first), *chosen[2:]]
        left.append(chosen[0])
    return work.summed(left[0], {*output})


class Work:
    """Products of pairs, with results in between of dtype `between`."""

    def __init__(self, between: np.dtype[Any], threads: int | None, invariant: str = "") -> None:
        self.between, self.threads, self.invariant = between, threads, invariant

    def summed(self, term: Term, needed: set[Any]) -> Term:
        """Without the labels that are not needed."""
        axes = tuple(axis for axis, label in enumerate(term.labels) if label not in needed)
        if not axes:
            return term
        if self.invariant == "rows":
            raise ValueError(f"label {term.labels[axes[0]]!r} is summed over in one operand alone, which NumPy does in "
                             "an order that depends on all sizes: batch_invariant must be False with it")
        kept = tuple(label for label in term.labels if label in needed)
        with np.errstate(all="ignore"):
            if self.between.kind == "b":
                return Term(program.computed(partial(np.any, axis=axes), term.array), kept)
            return Term(program.computed(partial(np.sum, axis=axes, dtype=self.between), term.array), kept)

    def product(self, a: Term, b: Term, needed: set[Any], dtype: np.dtype[Any], place: Term | None,
                output: Labels) -> Term:
        """The product of a and b in a dtype, with the labels that are needed later; at this place, if it can be written
        there."""
        a, b = self.summed(a, needed | {*b.labels}), self.summed(b, needed | {*a.labels})
        kept = tuple(dict.fromkeys(x for x in (*a.labels, *b.labels) if x in needed))
        if place is not None and not shapes.writes_in_place(place.array, a.array, b.array, dtype):
            place = None
        found = contraction.layout(a, b, kept, place, output, self.invariant == "rows")
        if found.elementwise:
            return self.elementwise(a, b, kept, dtype)
        c = place or Term(program.empty(found.sizes, dtype), found.of_c)
        left, right = (b, a) if found.exchanged else (a, b)
        self.multiply(left, right, c, found)
        return c

    def multiply(self, a: Term, b: Term, c: Term, found: contraction.Layout) -> None:
        x = found.views(a.array, b.array, c.array)
        host.contract(x, self.threads, self.invariant)
        if tensor_repeats.recording:
            forks.imported("tilewright.api.record").contracted(x, self.threads)

    def elementwise(self, a: Term, b: Term, kept: Labels, dtype: np.dtype[Any]) -> Term:
        between, by_parts = self.between, self.invariant == "rows" and self.between.kind == "c"

        def multiplied(x: Array, y: Array) -> Array:
            with np.errstate(all="ignore"):
                if between.kind == "b":
                    return np.asarray(x & y)
                x, y = x.astype(between, copy=False), y.astype(between, copy=False)
                return np.asarray(_complex_product(x, y) if by_parts else x * y).astype(dtype, copy=False)
        return Term(program.computed(multiplied, *(contraction.arranged(term, kept) for term in (a, b))), kept)


def _complex_product(x: Array, y: Array) -> Array:
    """Each part with the same roundings for all elements, which NumPy's vectors and its scalars have not."""
    found = np.empty(np.broadcast_shapes(x.shape, y.shape), x.dtype)
    found.real = x.real*y.real - x.imag*y.imag
    found.imag = x.real*y.imag + x.imag*y.real
    return found
