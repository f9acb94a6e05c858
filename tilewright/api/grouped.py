"""grouped_matmul: products of groups of unequal size in one piece of work."""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright import forks
from tilewright.api import dispatch, fused, grouped_weights, host, tensors
from tilewright.compiled.packed_weights import PackedWeights
from tilewright.expressions.epilogue import Epilogue
from tilewright.plans import invariant as invariants
from tilewright.rules import arguments, fusing, grouping, numpy_products, shapes
from tilewright.rules import grouped_weights as rules
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call, Product, decide
from tilewright.rules.grouped_weights import Right
from tilewright.rules.grouping import Axes
from tilewright.rules.signature import signature
from tilewright.runtime import repeats


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
    """Products of groups of unequal size, such as the experts of a mixture: of a's rows, or of steps of k.

    a, b        [M, k] and [G, k, n]: rows offsets[g-1] ... offsets[g] of a are multiplied by b[g]; the result is
                [M, n].
                [m, K] and [K, n]: columns offsets[g-1] ... offsets[g] of a are multiplied by the same rows of b, the
                result is [G, m, n]: gradients of weights, for example. Any strides, and any real or complex format that
                tilewright.matmul takes, both of the same or not. b of groups of rows may be a result of
                tilewright.quantize, with scales along k, or packed by tilewright.pack: groups of up to 16 rows of
                floats read weights of few bits once and decode them in registers.
    offsets     [G] integers that do not descend: where each group ends, as torch._grouped_mm takes them; the first one
                begins at 0. A group may be empty. Rows, or steps, from the last offset on belong to no group: rows of
                the result that belong to no group are 0.
    out         where to write the result: an array of its shape and of any dtype to which it can be cast by NumPy's
                rule same_kind. It may overlap a and b.
    out_dtype, alpha, trans_a, trans_b, threads  as of tilewright.matmul. trans_b swaps the last two axes of b.
    epilogue, operands  as of tilewright.matmul. Operands broadcast to the result, [M, n] or [G, m, n]; where rows are
                in groups, those of shape [G, 1, n] or [G, 1, 1] have numbers of their own for each group; so have those
                of shape [G, n] or [G, 1], unless G is 1 or M. Reductions of rows are [M] or [G, m], those of columns
                [G, n]; of a group without rows they are 0.
    deterministic  True: the same bits for any number of threads, and after tilewright.tune; see
                docs/reproducibility.md.
    batch_invariant  True: all of that, and a row of the result depends on its row of a and its group's matrix alone:
                neither on how many rows the group has nor on other groups or where they lie; an element of groups of
                steps of k on those of its group alone, and not on how many rows a has. plan must be None then.
    plan        the plan to run for every group, or its text. By default each group has the one that the planner chooses
                for one thread and the group's size rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24 ...

    Arrays on a CUDA device or an AMD GPU are multiplied there, in one launch that reads the offsets, which must be
    there, too. They are not checked then: what descends or exceeds the axis is undefined behaviour. There are no
    complex products there; operands may be NumPy's. Weights of few bits are decoded in the kernel, or by a pass before.

    Threads share the work of all groups, whatever their sizes. A group's numbers are those, to the last bit, that
    tilewright.matmul gives for the group alone by the same plan; they depend neither on other groups nor on threads.

    Raises TypeError and ValueError where matmul does, and for offsets that descend or exceed the axis.
    """
    asked: Any = None
    if out_dtype is epilogue is operands is plan is None and type(alpha) is int and alpha == 1:
        asked = _key(a, b, out, trans_a, trans_b, deterministic, batch_invariant, threads)
        if asked is not None and (found := _again(asked, a, b, offsets, out)) is not None:
            return found
    library = dispatch.library_of_arrays(a, b, offsets)
    if library is not None and threads is None and type(deterministic) is type(batch_invariant) is bool:
        known_by, outs = repeats.functions((epilogue,), operands), out if type(out) is tuple else (out,)
        weights = b.weights if type(b) is PackedWeights else b
        if known_by is not None:
            named, described = signature(a, weights, operands)
            arrays = *named.values(), offsets
            asked = library.asked((*arrays, *outs), "groups", known_by, out_dtype, type(alpha), alpha, trans_a, trans_b,
                                  type(b) is PackedWeights, deterministic, batch_invariant, plan,
                                  *described)
            if asked is not None and (found := repeats.again(library, asked, arrays, outs)) is not None:
                return found
    if library is None and tensors.present(a, b, out):
        return tensors.through(grouped_matmul, (a, b, offsets), out, out_dtype=out_dtype, alpha=alpha, trans_a=trans_a,
                               trans_b=trans_b, epilogue=epilogue, operands=operands, deterministic=deterministic,
                               batch_invariant=batch_invariant, threads=threads, plan=plan)
    call = Call.checked(a, b, out, out_dtype=out_dtype, alpha=alpha, trans_a=trans_a, trans_b=trans_b,
                        epilogue=epilogue, operands=operands, deterministic=deterministic,
                        batch_invariant=batch_invariant, threads=threads, plan=plan)
    arguments.check_batch_invariant(call.batch_invariant, call.plan, None)
    call = grouped_weights.unwrapped(call)
    if library is not None:
        return forks.imported("tilewright.runtime.gpu.grouped").product(library.platform.engine, call, offsets, asked)
    if call.plan is not None and dispatch.platform_of(call.plan):
        arguments.refuse(f"{dispatch.where(call.plan)} for arrays in the host's memory", plan=call.plan)
    return product(call, offsets, asked)


# ---- calls like earlier ones

MOST = 256                                      # kinds of calls that are kept
_repeated: dict[tuple[Any, ...], tuple[Any, Axes, np.dtype[Any]]] = {}


def _key(a: Any, b: Any, out: Any, *options: Any) -> tuple[Any, ...] | None:
    """What such calls of NumPy's plain arrays, of groups of rows, have in common; None for others."""
    if not (type(a) is type(b) is np.ndarray and (out is None or type(out) is np.ndarray)
            and b.ndim == 3 and a.ndim == 2 and a.flags.aligned and b.flags.aligned):
        return None
    at = None if out is None else (out.dtype, out.shape, out.strides, out.flags.behaved)
    try:
        hash(options)
    except TypeError:
        return None
    return (a.dtype, a.shape, a.strides, b.dtype, b.shape, b.strides, at, options, tuple(map(type, options)))


def _again(asked: tuple[Any, ...], a: Any, b: Any, offsets: Any, out: Any) -> Any:
    """The result of a call like an earlier one; None, and nothing done, if there was none."""
    found = _repeated.get(asked)
    if found is None:
        return None
    made, of, dtype = found
    ends = np.asarray(offsets)
    if type(ends) is not np.ndarray or ends.shape != (of.groups,) or ends.dtype.kind not in "iu":
        return None
    if out is not None and (np.may_share_memory(out, a) or np.may_share_memory(out, b)):
        return None
    ends = grouping.checked(ends, of)
    rows = ends.copy()
    rows[1:] -= ends[:-1]
    c = np.empty((of.m, of.n), dtype) if out is None else out
    if not made.run(a, b, c, ends - rows, rows):
        return None
    c[ends[-1]:] = 0
    return c


def _remember(asked: tuple[Any, ...], call: Call, of: Axes, side: Any, c: Array, epilogue: Epilogue,
              sums: np.dtype[Any]) -> None:
    engine = forks.imported("tilewright.runtime.cpu.grouped")
    kept = forks.imported("tilewright.runtime.cpu.engine").chosen
    made = engine.repeated(side, c, epilogue, sums, of.k, threads=call.threads, invariant=call.invariant)
    if made is None:
        return
    with forks.building:
        if not any(x is _repeated for x in kept):
            kept.append(_repeated)
        if len(_repeated) >= MOST:
            _repeated.clear()
        _repeated[asked] = made, of, c.dtype


# ---- any call

def product(call: Call, offsets: Any, asked: tuple[Any, ...] | None = None) -> Any:
    """Of arrays in the host's memory. `asked`: what the call may be remembered as."""
    a = arguments.transposed(grouping.operand(call.a, "a"), call.trans_a, "a")
    right = rules.right(call, a)
    if right is not None:
        right = grouped_weights.readable(right)
    else:
        b = arguments.transposed(grouping.operand(call.b, "b"), call.trans_b, "b")
        a, b = (x.conj() if trans == "c" and x.dtype.kind == "c" else x
                for x, trans in ((a, call.trans_a), (b, call.trans_b)))
        right = Right(b)
    b = right.stand_in
    if numpy_products.takes(a, b, None, call.out_dtype):
        raise TypeError(f"a and b must be of integer or floating-point formats, not {a.dtype} and {b.dtype}")
    ends = arguments.operand(offsets, "offsets")
    of = grouping.axes(a, b, ends)
    ends = grouping.checked(ends, of)
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
    outs = fused.outs_of(call, f)
    f = f._replace(dtypes=tuple(map(fused.kept, f.dtypes, outs)))
    sizes = _sizes(of, ends, bool(p.sizes[2]))
    numbers, right = _taken(p, of, a, right, call.invariant)
    columns = p.shape[-1] // 2 if f.epilogue.paired else p.shape[-1]
    read = [fused.readable(np.broadcast_to(per_group[of_one.name], (of.groups, 1, columns))
                           if of_one.name in per_group else x)
            for of_one, x in zip(f.epilogue.operands, f.operands)]
    fusion = forks.imported("tilewright.runtime.cpu.fusion")
    epilogue, read = fusion.with_factors(f.epilogue, read, p.sums, p.alpha, 0, None, p.shape)
    results, stored = fused.results_of(f, p, outs, (numbers, right.stand_in), read, [])
    main = epilogue.main
    if main is not None and columns > 1 and results[main].strides[-1] != results[main].itemsize:
        results[main] = stored[main] = np.empty(results[main].shape, results[main].dtype)
    starts = ends - np.diff(ends, prepend=0)
    once = bool(prepared) and p.sizes[2] > 0 and grouped_weights.few(call, right, a)
    if of.along == "m" and of.groups and of.m and of.n:
        sides = grouped_weights.sides(right, a, numbers, starts, sizes[0], once, call.batch_invariant)
    else:
        sides = None
    _multiply(call, of, ends, sizes, numbers, right.stand_in, sides, results, stored, read, epilogue, p.sums)
    delivered = fused.delivered(call, f, results, outs)
    direct = numbers is a and right.stand_in is b and delivered is results[0]
    if asked is not None and sides and sides[1] is None and direct:
        _remember(asked, call, of, sides[0], results[0], epilogue, p.sums)
    return delivered


def _sizes(of: Axes, ends: NDArray[np.int64], reads: bool = True) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and steps of k of each group; none of k where no element is read."""
    lengths = np.diff(ends, prepend=0)
    m, k = np.full(of.groups, of.m), np.full(of.groups, of.k)
    if of.along == "m":
        m = lengths
    else:
        k = lengths
    return m, k if reads else k * 0


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
    taken = [arguments.converted(x, host.taken_dtype(x, p.sums, m, n, k, alike))
             for x in ((a,) if decoded else (a, b))]
    return taken[0], right if decoded else right._replace(stand_in=taken[1])


def _multiply(call: Call, of: Axes, ends: NDArray[np.int64], sizes: tuple[NDArray[np.int64], NDArray[np.int64]],
              a: Array, b: Array, sides: Any, results: list[Array], stored: list[Array | None], read: list[Array],
              epilogue: Epilogue, sums: np.dtype[Any]) -> None:
    """Into the results. Operands that have as many axes as b's groups are per group."""
    if not (of.groups and of.m and of.n):
        for x in results:
            x[...] = 0
        return
    engine, ways = (forks.imported(f"tilewright.runtime.cpu.{x}") for x in ("grouped", "grouped_ways"))
    starts, number = np.diff(ends, prepend=0), np.arange(of.groups)
    starts = ends - starts

    def grouped(x: Array) -> Any:
        if x.ndim == 3 and x.shape[1] == 1 and of.along == "m":         # per group
            return ways.Grouped(x, number * x.strides[0], 0, x.strides[2])
        return ways.Grouped.of(x, number if x.ndim == 3 else starts, 0)

    by_rows = of.along == "m"
    side, few = sides or (ways.Side(ways.Grouped.of(a, starts, 0 if by_rows else 1),
                                    grouped(b) if by_rows else ways.Grouped.of(b, starts, 0)), None)
    found = engine.gemm(side, [x if x is None else grouped(x) for x in stored], [grouped(x) for x in read], epilogue,
                        ways.Sizes(of.along, sizes[0], of.n, sizes[1]), sums, few=few, threads=call.threads,
                        plan=call.plan, invariant=call.invariant)
    last = int(ends[-1])
    expression = epilogue.expression
    reductions = iter(found)
    for x, y, result in zip(results, stored, expression.results):
        columns = result.reduced.startswith("column")
        if by_rows and not columns:
            x[last:] = 0
        if y is not None:
            continue
        for g, part in enumerate(next(reductions)):
            if by_rows and not columns:
                x[starts[g]:ends[g]] = part
            else:
                x[g] = part if sizes[0][g] else 0


def _complex(call: Call, p: Product, of: Axes, ends: NDArray[np.int64], a: Array, b: Array) -> Any:
    """Complex products, which have no epilogue."""
    if call.epilogue is not None:
        raise TypeError(f"epilogue must be None for complex products, whose sums here are {p.sums}")
    m, k = _sizes(of, ends, bool(p.sizes[2]))
    a, b = (arguments.converted(x, p.sums) for x in (a, b))
    direct = (p.out is not None and p.alpha == 1 and shapes.writes_in_place(p.out, a, b, p.sums) and p.result == p.sums
              and p.out.strides[-1] == p.out.itemsize)
    found = p.out if p.out is not None and direct else np.empty(p.shape, p.sums)
    if of.along == "k":
        found[k == 0] = 0
    elif not k.any():
        found[...] = 0
    _multiply(call, of, ends, (m * (k > 0), k), a, b, None, [found], [found], [], fusing.bare(), p.sums)
    if p.alpha != 1:
        with np.errstate(all="ignore"):
            found *= p.alpha
    return call.out if found is p.out else host.delivered(call, p, found)
