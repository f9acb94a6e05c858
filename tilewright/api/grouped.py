"""grouped_matmul: products of groups of unequal size in one piece of work."""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright import forks
from tilewright.api import dispatch, fused, host, tensors
from tilewright.compiled.packed_weights import PackedWeights
from tilewright.expressions import HALVES, remembered
from tilewright.expressions.function import Epilogue
from tilewright.formats import Quantized, Scaled
from tilewright.formats.scaled import apart
from tilewright.plans import invariant as invariants
from tilewright.rules import arguments, fusing, grouped_weights as rules, grouping, numpy_products, shapes, weights
from tilewright.rules.arguments import F32, Array
from tilewright.rules.call import Call, Product, decide
from tilewright.rules.grouped_weights import Right
from tilewright.rules.grouping import Axes
from tilewright.rules.prologues import Prepared
from tilewright.rules.signature import signature, substituted
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool, program
from tilewright.runtime.gpu.arrays import library_of

PACKED = "tilewright.runtime.cpu.packed"
NUMBERS = int, float, list      # of Python, which are arrays to the host


def grouped_matmul(
    a: ArrayLike,
    b: ArrayLike,
    offsets: ArrayLike,
    out: NDArray[Any] | tuple[NDArray[Any] | None, ...] | None = None,
    *,
    out_dtype: Any = None,
    alpha: float = 1,
    trans_a: bool | str = False,
    trans_b: bool | str = False,
    epilogue: Any = None,
    operands: dict[str, Any] | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int | None = None,
    plan: Any = None,
) -> Any:
    """Products of G groups of unequal size, such as the experts of a mixture: groups of rows of a, or of steps of k.

    a, b        Groups of rows, [M, k] and [G, k, n]: rows offsets[g-1] to offsets[g] of a are multiplied by b[g]; the
                result is [M, n].
                Groups of k, [m, K] and [K, n]: columns offsets[g-1] to offsets[g] of a are multiplied by the same rows
                of b; the result is [G, m, n] (gradients of weights, for example). Any strides, and any real or complex
                format that tilewright.matmul takes; both may have the same or two. With groups of rows b may be a
                result of tilewright.quantize, with scales along k, or of tilewright.pack: groups of up to 16 rows of
                floats then read weights of few bits once and decode them in registers.
    offsets     [G] integers that do not descend: where each group ends, as torch._grouped_mm takes them; the first one
                begins at 0. A group may be empty. Rows, or steps of k, from the last offset on belong to no group; the
                result's rows without a group are 0.
    out         where to write the result: an array of its shape and of any dtype to which it can be cast by NumPy's
                rule same_kind. It may overlap a and b.
    out_dtype, alpha, trans_a, trans_b, threads  as in tilewright.matmul. trans_b swaps the last two axes of b.
    epilogue, operands  as in tilewright.matmul. Operands broadcast to the result, [M, n] or [G, m, n]. With groups of
                rows, operands of shape [G, 1, n] or [G, 1, 1] have their own numbers for each group; so have those
                of shape [G, n] or [G, 1], unless G is 1 or M. Reductions of rows have the shape [M] or [G, m], those of
                columns [G, n]; for a group without rows they are 0.
    deterministic  True: the same bits for any number of threads, and before and after tilewright.tune; see
                docs/reproducibility.md.
    batch_invariant  True: deterministic, and with groups of rows a row of the result depends only on its row of a and
                on its group's matrix, neither on the number of rows nor on other groups. With groups of k an element
                depends only on its group's steps, not on the number of rows of a. plan must be None then.
    plan        the plan to run for every group, or its text. By default each group has the planner's plan for one
                thread and the number of its rows rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24 ...

    Arrays on a CUDA device or an AMD GPU are multiplied there, in one launch that reads the offsets, which must be
    there, too. They are not checked then: offsets that descend or exceed the axis are undefined behaviour. Complex
    products are an error there. An epilogue's operands may be NumPy's.

    Threads share the work of all groups, whatever their sizes. A group has the same bits as tilewright.matmul of the
    group alone by the same plan; they depend neither on other groups nor on threads.

    Raises TypeError and ValueError where matmul does, and for offsets that descend or exceed the axis.
    """
    library = None if type(a) is np.ndarray else library_of(a, b, offsets)
    asked: repeats.Asked | None = None
    number = type(alpha) in (int, float) and alpha == alpha
    packed: Any = b if type(b).__module__ == PACKED else None
    named: dict[str, Any] = {}
    outs: Any = out if type(out) is tuple else (out,)
    if type(deterministic) is type(batch_invariant) is bool and (number if library is None else threads is None):
        where: Any = library or repeats.HOST
        known_by = () if epilogue is operands is None else remembered.keys((epilogue,))
        if known_by is not None and (operands is None or type(operands) is dict):
            named, described = signature(a, b.weights if type(b) is PackedWeights else b, operands)
            named["offsets"] = offsets
            if library is None:
                if packed is not None:
                    del named["b"]
                named = {name: np.asarray(x) if type(x) in NUMBERS else x for name, x in named.items()}
                described += (type(trans_a), type(trans_b), type(threads), packed,
                              pool.get_num_threads() if threads is None else threads)
            arrays = [*named.values()]
            asked = where.asked((*arrays, *outs), "groups", known_by, out_dtype, type(alpha), alpha, trans_a, trans_b,
                                type(b) is PackedWeights, deterministic, batch_invariant, plan, *described)
            if asked is not None and (result := repeats.again(where, asked, arrays, outs, alpha)) is not None:
                return result
    if type(a) is np.ndarray:
        library = library_of(b, offsets)
    if library is None and tensors.present(a, b, out):
        return tensors.through(grouped_matmul, (a, b, offsets), out, out_dtype=out_dtype, alpha=alpha, trans_a=trans_a,
                               trans_b=trans_b, epilogue=epilogue, operands=operands, deterministic=deterministic,
                               batch_invariant=batch_invariant, threads=threads, plan=plan)
    call = Call.checked(a, b, out, out_dtype=out_dtype, alpha=alpha, trans_a=trans_a, trans_b=trans_b,
                        epilogue=epilogue, operands=operands, deterministic=deterministic,
                        batch_invariant=batch_invariant, threads=threads, plan=plan)
    arguments.check_batch_invariant(call.batch_invariant, call.plan, None)
    call = _unwrapped(call)
    if library is not None:
        return forks.imported("tilewright.runtime.gpu.grouped").product(library.platform.engine, call, offsets, asked)
    if call.plan is not None and dispatch.platform_of(call.plan):
        arguments.refuse(f"{dispatch.where(call.plan)} for arrays in the host's memory", plan=call.plan)
    return program.recorded(asked, named, outs, lambda arrays, outs: product(
        substituted(call, arrays, outs), arrays["offsets"]), epilogue) if asked else product(call, offsets)


def product(call: Call, offsets: Any) -> Any:
    """The result of arrays in the host's memory."""
    a = arguments.transposed(grouping.operand(call.a, "a"), call.trans_a, "a")
    right = rules.right(call, a)
    if right is None:
        b = arguments.transposed(grouping.operand(call.b, "b"), call.trans_b, "b")
        a, b = (program.computed(np.conj, x) if trans == "c" and x.dtype.kind == "c" else x
                for x, trans in ((a, call.trans_a), (b, call.trans_b)))
        right = Right(b)
    right = _readable(right)
    b = right.stand_in
    if right.packed is not None:
        program.constant(b)
    if numpy_products.takes(a, b, None, call.out_dtype):
        raise TypeError(f"a and b must be of integers or floating-point formats, not {a.dtype} and {b.dtype}")
    ends = arguments.operand(offsets, "offsets")
    of = grouping.axes(a, b, ends)
    given = fusing.given_of(call.operands)
    per_group = grouping.per_group(given, of)
    alone = rules.scaled_alpha(call)._replace(operands=grouping.stand_ins(given, per_group) or None)
    x, y = of.as_product(a, b)
    prepared = {} if right.prepared is None else {"b": right.prepared}
    if call.epilogue is None and not prepared:
        p = decide(alone._replace(out_dtype=arguments.single(call.out_dtype, "out_dtype")), x, y, None,
                   arguments.output(arguments.single(call.out, "out")))
        if p.sums.kind == "c":
            return _complex(call, p, of, ends, a, b)
    else:
        p = fused.decided(alone, x, y, None, prepared)
    f = fusing.fused(alone, p)
    if of.along == "m":
        f = f._replace(shapes=tuple((of.groups, shape[-1]) if result.reduced.startswith("column") else shape
                                    for shape, result in zip(f.shapes, f.epilogue.expression.results)))
    outs = fusing.outs_of(call, f)
    f = f._replace(dtypes=tuple(map(fused.result_dtype, f.dtypes, outs)))
    numbers, right = _taken(p, of, a, right, call.invariant)
    columns = p.shape[-1] // 2 if f.epilogue.paired else p.shape[-1]
    read = [fused.readable(np.broadcast_to(per_group[of_one.name], (of.groups, 1, columns))
                           if of_one.name in per_group else x)
            for of_one, x in zip(f.epilogue.reads, f.operands)]
    epilogue, read = fusing.with_factors(f.epilogue, read, p.sums, p.alpha, 0, None, p.shape, program.constant)
    results, stored = fused.results_of(f, p, outs, (numbers, right.stand_in), [], read)
    main = epilogue.main
    if main is not None and columns > 1 and results[main].strides[-1] != results[main].itemsize:
        results[main] = stored[main] = program.empty(results[main].shape, results[main].dtype)
    if not (of.groups and of.m and of.n):
        grouping.checked(ends, *of.divided)
        for x in results:
            x[...] = 0
        return fused.delivered(call, f, results, outs)
    once = bool(prepared) and p.sizes[2] > 0 and b.itemsize in b.strides[-2:] and _few(call, right, a)
    sides, decoded = _sides(right, a, numbers, of, once, p.sums, call.batch_invariant)
    _run(call, of, p, sides, (a, numbers, right, decoded), stored, read, epilogue, ends, results)
    return fused.delivered(call, f, results, outs)


def _run(call: Call, of: Axes, p: Product, sides: tuple[Any, ...], given: tuple[Array, Array, Right, list[Array]],
         stored: list[Array | None], read: list[Array], epilogue: Epilogue, ends: Array, results: list[Array]) -> None:
    """The runtime.cpu.grouped.Program of such arrays, as a step. Operands that have as many axes as b's groups are per
    group. `given`: a, a as it is multiplied, b, and weights that are decoded."""
    ways = forks.imported("tilewright.runtime.cpu.grouped_ways")

    def place(x: Array) -> Any:
        by_group = x.ndim == 3
        return ways.place_of(x, "group" if by_group else "rows", epilogue.paired,
                             0 if by_group and of.along == "m" else None)
    a, numbers, right, decoded = given
    work = ways.Work(
        of.along, of.m, of.n, of.k if p.sizes[2] else 0, of.divided, [None if x is None else place(x) for x in stored],
        [place(x) for x in read], epilogue, p.sums, right.packed.target if right.packed else ways.target(),
        call.threads or pool.get_num_threads(), call.plan, call.invariant, two=1 + (p.sums.kind == "c"))
    groups = forks.imported("tilewright.runtime.cpu.grouped").Program(work, *sides)
    scales = right.prepared.arrays if right.prepared else ()
    seen = a, *decoded, ends, *results
    program.take(partial(groups.step, len(scales), [*map(repeats.View.of_array, seen)]),
                 (numbers, right.stand_in, *scales, *read, *seen))


def _taken(p: Product, of: Axes, a: Array, right: Right, invariant: str) -> tuple[Array, Right]:
    """Operands in dtypes that the engine takes."""
    if right.packed is not None:
        return host.operand_a_for(right.packed, a, p.sums, "n"), right
    k = of.k
    m, n = invariants.sizes(of.m, of.n, invariant)
    if invariant == "rows" and of.along == "k":         # other groups have the rest of the steps
        k = max(k, invariants.MANY)
    decoded, b = right.prepared is not None, right.stand_in
    alike = a.dtype == b.dtype or decoded
    taken = [program.converted(x, host.taken_dtype(x, p.sums, m, n, k, alike))
             for x in ((a,) if decoded else (a, b))]
    return taken[0], right if decoded else right._replace(stand_in=taken[1])


def _complex(call: Call, p: Product, of: Axes, ends: Array, a: Array, b: Array) -> Any:
    """Complex products, which have no epilogue."""
    if call.epilogue is not None:
        raise TypeError(f"epilogue must be None for complex products, whose sums here are {p.sums}")
    a, b = (program.converted(x, p.sums) for x in (a, b))
    direct = (p.out is not None and p.alpha == 1 and shapes.writes_in_place(p.out, a, b, p.sums) and p.result == p.sums
              and p.out.strides[-1] == p.out.itemsize)
    target = p.out if p.out is not None and direct else program.empty(p.shape, p.sums)
    if of.groups and of.m and of.n:
        sides, _ = _sides(Right(b), a, a, of, False, p.sums, False)
        _run(call, of, p, sides, (a, a, Right(b), []), [target], [], fusing.bare(), ends, [target])
    else:
        grouping.checked(ends, *of.divided)
        target[...] = 0
    if p.alpha != 1:
        program.do(partial(_scale, p.alpha), target)
    return call.out if target is p.out else host.delivered(call, p, target)


def _scale(alpha: Any, x: Array) -> None:
    with np.errstate(all="ignore"):
        x *= alpha


# ---- right operands that are no arrays: weights of few bits, [groups, k, n], and packed ones
#
# Groups of few rows read their weights once, decoded in registers; those of more rows have theirs in memory as elements
# of a byte or more, of which packing makes numbers: two to a byte are taken apart before, and block-scaled ones
# decoded, of these groups alone.

def _unwrapped(call: Call) -> Call:
    """With what tilewright.pack has arranged as the weights that it holds."""
    b = call.b
    if not isinstance(b, PackedWeights):
        return call
    if call.trans_b != "n":
        raise ValueError(f"b is packed, and packed operands cannot be transposed: pass trans_b={call.trans_b!r} to "
                         "pack instead of grouped_matmul")
    return call._replace(b=b.weights, trans_b="t")


def _readable(of: Right) -> Right:
    """With arrays beside the elements as kernels read them."""
    if of.prepared is None:
        return of
    return of._replace(prepared=of.prepared._replace(arrays=tuple(map(fused.readable, of.prepared.arrays))))


def _few(call: Call, of: Right, a: Array) -> bool:
    """Whether groups of few rows may read their weights once."""
    one = np.broadcast_to(a[:1], (1, a.shape[1])) if len(a) else a
    return of.w is not None and len(of.q) > 0 and weights.few(call._replace(a=one, b=of.q[0]), "b")


def _sides(of: Right, a: Array, numbers: Array, axes: Axes, reads_once: bool, sums: np.dtype[Any], alone: bool
          ) -> tuple[tuple[Any, ...], list[Array]]:
    """The operands of groups of many rows, and of few, None where there are none, for runtime.cpu.grouped.Program; and
    the arrays of which it decodes b's matrices of some groups in each call, if it has to. `numbers`: a as it is
    multiplied by numbers. `alone`: whether no group may depend on another one."""
    ways = forks.imported("tilewright.runtime.cpu.grouped_ways")
    by_rows, few = axes.along == "m", None
    left = ways.place_of(numbers, "rows" if by_rows else "columns")
    q, w = of.q, of.w
    if w is None:
        b = ways.place_of(of.stand_in, "group" if by_rows else "rows")
        return (ways.Side(left, b, packed=of.packed),), []
    b = ways.place_of(of.stand_in, "group", w.halves == -1)
    if reads_once and of.prepared and ways.reads_once(of.prepared, axes.n, sums):
        few = ways.Side(ways.place_of(np.ascontiguousarray(a, F32), "rows"), b, _shadows(of.prepared), True)
    if isinstance(q, Scaled) and q.nibbles is None:
        return (ways.Side(left, b, _shadows(of.prepared)), few), []
    if isinstance(q, Quantized):
        return (None, few, (left, None), partial(_decoded, q.shape[1:], q.format, q.axis, alone, sums, of.trans)), [
            q.elements, q.scales]
    both = w._replace(source=w.source.removesuffix(HALVES), elements=of.stand_in)
    elements = of._replace(prepared=rules.prepared(both, a))
    return (None, few, (left, _shadows(_readable(elements).prepared)), partial(
        apart, q.nibbles, q.format.dtype, q.nibbles.axis if of.trans == "n" else -3 - q.nibbles.axis)), [q.elements]


def _shadows(x: Prepared | None) -> Prepared | None:
    """With arrays of which only dtypes, shapes and strides mean anything, and which take no memory."""
    return x and x._replace(arrays=tuple(shapes.strided(np.empty(1, y.dtype), y.shape, y.strides) for y in x.arrays))


def _decoded(shape: tuple[int, ...], format: Any, axis: int, alone: bool, sums: np.dtype[Any], trans: str,
             elements: Array, scales: Array) -> Array:
    """Matrices of some groups as numbers, in the format of sums in f64, to which packing brings none."""
    x = rules.numbers(Quantized(elements, scales, (len(elements), *shape), format, axis), alone)
    x = x.astype(sums) if sums.itemsize == 8 else x
    return x if trans == "n" else x.swapaxes(-1, -2)
