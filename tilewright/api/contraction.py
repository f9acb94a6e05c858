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
from numpy.typing import ArrayLike, NDArray

from tilewright import forks
from tilewright.api import as_matmul, host, pairs, tensor_repeats, tensors
from tilewright.formats.scaled import Decodable
from tilewright.plans import invariant as invariants
from tilewright.rules import arguments, contraction, numpy_products, paths, shapes, subscripts
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call
from tilewright.rules.signature import signature, substituted
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool, program
from tilewright.runtime.gpu.arrays import library_of
from tilewright.runtime.repeats import HOST

MOST_LETTERS = 52        # labels of einsum's texts
ORDERS = ("K", "C", "F", "A")
CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


def einsum(
    *given: Any,
    out: NDArray[Any] | tuple[NDArray[Any] | None, ...] | None = None,
    out_dtype: Any = None,
    alpha: complex = 1,
    beta: complex = 0,
    c: ArrayLike | None = None,
    epilogue: Any = None,
    operands: dict[str, Any] | None = None,
    optimize: Any = True,
    order: str | None = "K",
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int | None = None,
    dtype: Any = None,
    casting: Any = None,
) -> Any:
    """The sum of products that subscripts name, as numpy.einsum computes it: each pair of operands is one product. In
    general epilogue(alpha * sums + beta * c), evaluated inside the last product's kernel.

    given       `einsum("ij,jk->ik", a, b)`, or `einsum(a, [0, 1], b, [1, 2], [0, 2])`: a label for each axis, letters
                or integers from 0. Without "->", or the last list, the result has the labels that occur once, in
                order. `...`, or Ellipsis, stands for the axes without a label, which are broadcast. A label that occurs
                twice in an operand takes its diagonal; a label that is not in the result is summed over; axes of size
                1 are broadcast. Any number of operands, of any shapes, strides and formats that matmul takes.
    out         where to write the result: an array of its shape, any strides, any dtype to which it can be cast by
                NumPy's rule same_kind. It may overlap operands. It is returned.
    out_dtype   a format or dtype instead of NumPy's choice, as in matmul. Products in between are kept in the format of
                the sums, so that a result is rounded once.
    alpha, beta, c, epilogue, operands  as in matmul: c and operands broadcast to the result. Rows and columns of an
                epilogue are the result's last two axes. Where the last product has other rows and columns, or there is
                no product, reductions and tw.pairs take a second pass over the sums; on GPUs they are refused there,
                and so is an epilogue of one operand alone.
    optimize    the order of products of three or more operands. True: that of the fewest operations (writing an element
                of a product in between counts as 16) for up to 8 operands; for more a greedy search, or
                opt_einsum where it is installed. "greedy" and "optimal" name a search, False multiplies from the left;
                or a path, as numpy.einsum_path returns it. (name, N) allows products in between of at most N elements.
    order       the layout of a new result: "K" or None: the one that is fastest to write, with axes in any order in
                memory; "C" and "F" as in NumPy; "A": "F" if all operands are Fortran-contiguous, else "C"
    deterministic  True: the same bits for any number of threads, and before and after tilewright.tune; see
                docs/reproducibility.md.
    batch_invariant  True: deterministic, and an element of the product of two operands does not depend on the sizes
                of free or batch axes of the first operand, nor on its strides. With more operands optimize= must give
                the order, and this holds for the first of all; labels of one operand alone must not be summed over.
    threads     the most threads that this call may use; by default tilewright.get_num_threads()
    dtype, casting  as in numpy.einsum, for NumPy's arrays: operands are converted to dtype by the rule casting ("safe"
                by default), and the result has this dtype

    Operands are not copied if their axes can be merged into those of matrices. With a single operand and no sum,
    and without `out`, the result is a view of it, as in NumPy. Arrays on a GPU, of one library and on one
    device, are multiplied there into a new array in C order; sums over labels of one operand alone are refused there.

    Raises TypeError and ValueError where numpy.einsum does.
    """
    bare = c is epilogue is operands is None and type(alpha) is int and alpha == 1 and type(beta) is int and beta == 0
    plain = bare and optimize is True and dtype is casting is out_dtype is threads is None and order == "K" and (
        deterministic is batch_invariant is False and len(given) > 1 and type(given[0]) is str)
    how = None
    if plain and len(given) > 2 and {*map(type, given[1:])} <= tensors.known and (
            out is None or type(out) in tensors.known) and not given[1].is_cuda:
        how = einsum, given[0]
        if (result := tensor_repeats.run_recorded(how, given[1:], out)) is not None:
            return result
    elif plain and len(given) < 4:
        result = as_matmul.by_matmul(*given, out) if len(given) == 3 else (
            as_matmul.by_numpy(*given) if out is None else None)
        if result is not None:
            return result
    alike = None
    invariant = "" if deterministic is batch_invariant is False else checked(deterministic, batch_invariant)
    outs = out if type(out) is tuple and not bare else (out,)
    if given and dtype is casting is None and (
            extras := () if bare else repeats.beside(alpha, beta, c, epilogue, operands)) is not None:
        options = out_dtype, order, threads, invariant
        alike = asked(given, outs, extras, *options, *(() if optimize is True else _known_by(optimize)))
    if alike is not None:
        again = partial(repeats.again, *alike, outs)
        result = again() if how is None else tensor_repeats.watched(again, how, alike[2], out)
        if result is not None:
            return result[()] if type(result) is np.ndarray and not result.ndim and out is None else result
    arrays, labels, output = subscripts.read(given)
    order = _checked_order(order)
    library = library_of(*arrays, *outs)
    call = Call.checked(None, None, out, out_dtype=out_dtype, alpha=alpha, beta=beta, c=c, epilogue=epilogue,
                        operands=operands, deterministic=deterministic, batch_invariant=batch_invariant,
                        threads=threads)
    if dtype is not None or casting is not None:
        if library is not None or tensors.present(*arrays, *outs) or not bare:
            raise TypeError("dtype and casting must be None for arrays of other libraries than NumPy, and with alpha, "
                            "beta, c or an epilogue: out_dtype= names the format of the result")
        return _converted(arrays, out, dtype, casting, lambda arrays: _einsum(
            arrays, labels, output, call._replace(out=None), optimize, order))
    if library is not None:
        engine = forks.imported("tilewright.runtime.gpu.contraction")
        return engine.einsum(library, arrays, labels, output, call, optimize, alike and alike[1])

    def prepared(*arrays: Any, out: Any, c: Any = None, operands: Any = None) -> Any:
        complete = call._replace(operands=operands, c=c, out=out)
        if alike is None:
            return _einsum(arrays, labels, output, complete, optimize, order)
        shown, (more, _) = {f"operand {i}": x for i, x in enumerate(arrays)}, signature(None, None, operands, c=c)
        more = {name: repeats.array_of(x) for name, x in more.items() if x is not None}

        def compute(now: Mapping[str, Any], outs: Sequence[Any]) -> Any:
            return _einsum([now[x] for x in shown], labels, output, substituted(complete, now, outs), optimize, order)
        return program.recorded(alike[1], shown | more, out if type(out) is tuple else (out,), compute, epilogue)
    if tensors.present(*arrays, *outs):
        return tensors.through(prepared, arrays, call.out, c=tensors.array(c, "c"), operands=operands)
    return prepared(*arrays, out=call.out, c=c, operands=operands)


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    out: NDArray[Any] | tuple[NDArray[Any] | None, ...] | None = None,
    out_dtype: Any = None,
    alpha: complex = 1,
    beta: complex = 0,
    c: ArrayLike | None = None,
    epilogue: Any = None,
    operands: dict[str, Any] | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int | None = None,
) -> Any:
    """The sum of products over axes of a and b, as numpy.tensordot computes it, without copying large operands.

    a, b        arrays of any shapes, strides and formats that matmul takes
    axes        a number N: the last N axes of a with the first N of b; or (axes of a, axes of b), each an integer or a
                list, both of the same length, in corresponding order. Negative axes count from the end.
    out, out_dtype, alpha, beta, c, epilogue, operands, deterministic, batch_invariant, threads  as in einsum

    The result has the other axes of a, then those of b. Raises TypeError and ValueError where numpy.tensordot does.
    """
    extras = {"alpha": alpha, "beta": beta, "c": c, "epilogue": epilogue, "operands": operands}
    if out is out_dtype is threads is None and deterministic is batch_invariant is False and (
            c is epilogue is operands is None and type(alpha) is type(beta) is int and (alpha, beta) == (1, 0)):
        if (product := as_matmul.by_matrices(a, b, axes)) is not None:
            return product
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
                           "batch_invariant": batch_invariant, "threads": threads, **extras}
    if len(x.shape) + len(y.shape) <= MOST_LETTERS:
        return einsum(as_matmul.subscripts_of(tuple(of_a), tuple(of_b), len(x.shape), len(y.shape)), a, b, **how)
    labels_a = list(range(len(x.shape)))
    labels_b = [of_a[of_b.index(j)] if j in of_b else len(labels_a) + j for j in range(len(y.shape))]
    output = [x for x in labels_a if x not in of_a] + [x for x in labels_b if x >= len(labels_a)]
    return einsum(a, labels_a, b, labels_b, output, **how)


def _known_by(optimize: Any) -> tuple[Any, ...]:
    """The part of a record's key that depends on `optimize`, if it is not True."""
    if type(optimize) is list or type(optimize) is tuple:
        return (tuple(tuple(x) if type(x) is tuple or type(x) is list else x for x in optimize),)
    return type(optimize), optimize


def _checked_order(order: Any) -> str:
    letter = "K" if order is None else order.upper() if isinstance(order, str) else order
    if letter not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    return str(letter)


def checked(deterministic: Any, batch_invariant: Any) -> str:
    """What must not change an element's bits: see plans/invariant.py."""
    arguments.check_flag(deterministic, "deterministic")
    arguments.check_flag(batch_invariant, "batch_invariant")
    return invariants.asked(deterministic, batch_invariant)


# ---- calls like earlier ones

def asked(given: Sequence[Any], outs: Sequence[Any], beside: Sequence[Any], *options: Any
          ) -> tuple[Any, repeats.Asked, Sequence[Any]] | None:
    """The library of the call's arrays, what the call may be remembered as, and its arrays; None for calls that are not
    remembered, among them those of one array, and of arrays and tensors together. beside: what `repeats.beside` says.
    """
    subscripts: Any
    if type(given[0]) is str:
        subscripts, arrays = given[0], given[1:]
    else:
        pairs = len(given) // 2 * 2
        lists = *given[1:pairs:2], *given[pairs:]
        if not all(type(labels) in (list, tuple) and bool not in map(type, labels) for labels in lists):
            return None                     # True is as good a key as 1, and no label
        subscripts, arrays = tuple(map(tuple, lists)), given[:pairs:2]
    if len(arrays) < 2 or tensor_repeats.recording:
        return None
    where: Any = HOST
    how: tuple[Any, ...] = subscripts, options, pool.get_num_threads()
    if beside:
        how, arrays = (*how, beside[1]), (*arrays, *beside[0])
    known_as = where.asked((*arrays, *outs), *how)
    if known_as is None:
        where = library_of(*arrays, *outs) or (tensors.HOST if type(arrays[0]) in tensors.known else None)
        known_as = where and where.asked((*arrays, *outs), *how)
    if known_as is not None and beside and outs[0] is not None:
        known_as = (*known_as[0], repeats.same_memory(known_as[1], len(arrays))), known_as[1]
    return None if known_as is None else (where, known_as, arrays)


# ---- arrays in the host's memory


def _einsum(given: Sequence[Any], labels: Any, output: Any, call: Call, optimize: Any, order: Any) -> Any:
    arrays = [_array(x, f"operand {i}") for i, x in enumerate(given)]
    terms, path = paths.resolved(labels, output, [x.shape for x in arrays], optimize)
    out, threads, invariant = call.out, call.threads, call.invariant
    if order == "A":
        order = "F" if all(x.flags.f_contiguous for x in arrays) else "C"
    if call.scaled:
        last_product = forks.imported("tilewright.api.last_product")
        paths.check_given(optimize, len(arrays), invariant)
        last = last_product.Last(call, arrays, terms, order)
        return last.delivered(pairs.pairwise(last, arrays, terms, path, last.between, None))
    target = arguments.output(arguments.single(out, "out"))
    shape = tuple(terms.sizes[label] for label in terms.output)
    if target is not None and target.shape != shape:
        raise ValueError(f"out must have the result's shape {shape}, but its shape is {target.shape}")
    if numpy_products.takes(*arrays):
        program.not_repeated()
        return _by_numpy(given, labels, output, out, order)
    sums, result = contraction.dtypes(arrays, call.out_dtype)
    if target is not None:
        arguments.check_cast(result, target.dtype, "out")

    if len(arrays) == 1 and target is None and result == arrays[0].dtype:
        one = contraction.diagonal(arrays[0], terms.inputs[0], terms.sizes)
        if set(one.labels) <= set(terms.output):
            view = contraction.arranged(one, terms.output)      # which NumPy gives, too, whatever the order
            return view if view.ndim else view[()]
    between = result if all(x.dtype.kind == "b" for x in arrays) else sums
    into = target
    if target is None and order in ("C", "F") and len(arrays) > 1:  # written there, and not laid out afterwards
        into = program.empty(shape, result, order)
    place = pairs.place_of(into, terms.output) if into is not None and into.dtype == result else None
    paths.check_given(optimize, len(arrays), invariant)
    last = pairs.pairwise(pairs.Work(between, threads, invariant), arrays, terms, path, result, place)
    result_array = contraction.arranged(last, terms.output)
    if into is not None:
        if not shapes.same(result_array, into):
            program.do(host.store, into, program.rounded(result_array, result))
        return (out[0] if isinstance(out, tuple) else out) if into is target else program.scalar(into)[()]
    result_array = program.rounded(result_array, result)
    result_array = program.copied(np.asarray(result_array, order=order), result_array)
    if len(arrays) == 1 and np.may_share_memory(result_array, arrays[0]):
        result_array = result_array.copy()
    return program.scalar(result_array)[()]


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
        result = call(arrays if dtype is None else [x.astype(dtype, copy=False) for x in arrays])
    if target is None:
        return result
    if target.shape != np.shape(result):
        raise ValueError(f"out must have the result's shape {np.shape(result)}, but its shape is {target.shape}")
    if not np.can_cast(result.dtype, target.dtype, rule):
        raise TypeError(f"out is {target.dtype}, to which the rule {rule!r} does not cast a result in {result.dtype}")
    np.copyto(target, result, casting=rule)
    return out[0] if isinstance(out, tuple) else out


def _array(x: Any, name: str) -> Array:
    if isinstance(x, Decodable):
        raise TypeError(f"{name} is quantized, and its scales belong to axes of a matrix: tilewright.matmul multiplies "
                        "it, and tilewright.dequantize makes an array of it")
    return arguments.operand(x, name, least=0)


def _by_numpy(given: Sequence[Any], labels: Any, output: Any, out: Any, order: str) -> Any:
    """Long doubles and objects."""
    def term(listed: Any) -> list[Any]:
        return [Ellipsis if x == subscripts.DOTS else subscripts.LETTERS.index(x) if isinstance(x, str) else x
                for x in listed]
    pairs = [part for x, of in zip(given, labels) for part in (x, term(of))]
    numpys: Any = numpys_einsum
    return numpys(*pairs, *([] if output is None else [term(output)]), out=out, order=order)
