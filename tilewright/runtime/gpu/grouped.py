"""grouped_matmul of arrays in a GPU's memory: one launch, which reads the offsets there.

The kernel is that of a batch with offsets (compiled/grouped.py). Rows of A and of C, and what an epilogue has beside
them, are counted from the beginning of the arrays, so that these are batches with a stride of 0; what each group has of
its own is a batch with a stride. Nothing waits, so that offsets cannot be checked.

Weights of few bits [groups, k, n] are decoded by the kernel on its copies (`_inside`), or all of them by a pass before
the launch (kernels/gpu/copy.py), as one matrix where their groups of k allow it: which groups have rows only the
device knows.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import forks
from tilewright.expressions.numerics import Numerics
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Decodable, Scaled
from tilewright.plans import gpu_lowering, gpu_shape, prologues as of_plans
from tilewright.problem import Gemm
from tilewright.rules import arguments, fusing, grouped_weights as rules, grouping, prologues as prologue_rules, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call, decide
from tilewright.rules.grouping import Axes
from tilewright.rules.prologues import Prepared
from tilewright.rules.signature import signature
from tilewright.runtime import repeats
from tilewright.runtime.gpu import arrays, auxiliary, fused as fused_products, operands, prologues
from tilewright.runtime.gpu.operands import address, format_of, leading, letter
from tilewright.runtime.gpu.recipe import Recipe
from tilewright.runtime.gpu.results import Results, stored_as, unreduced
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

WIDEST = 16             # bytes of an access
INDEX = np.dtype(np.int32)
COMPILER = "tilewright.compiled.grouped"        # a process whose recipes are there needs none


def product(engine: Any, call: Call, offsets: Any, asked: repeats.Asked | None = None) -> Any:
    """The result of the call, an array of the operands' library, or a tuple of them. `asked`: what the call is known
    by; the offsets are the last of its arrays but results."""
    if isinstance(call.b, Quantized) and call.b.format.element.bits == 6:
        raise TypeError(f"b is {call.b.format}: on GPUs elements of 6 bits are not multiplied in groups; dequantize it")
    named = {**signature(call.a, call.b, call.operands)[0], "offsets": offsets}
    for name, x in named.items():
        if not name.startswith("operands") and arrays.library_of(x) is None:
            raise TypeError(f"{name} must be on the GPU, as the others are, not {arrays.kind(x)}")
    run, looks = engine.begin(named, fused_products.outs_of(call), asked, call.alpha, plan=call.plan,
                              invariant=call.invariant)
    with run:
        return _compute(run, call, looks)


def _compute(run: Run, call: Call, looks: Mapping[str, Any]) -> Any:
    a = arguments.transposed(looks["a"].shadow, call.trans_a, "a")
    right = None
    if isinstance(call.b, Decodable):
        right = rules.right(call._replace(b=_of_shadows(run, call.b, looks)), a)
        call = rules.scaled_alpha(call)
    b = right.stand_in if right else arguments.transposed(looks["b"].shadow, call.trans_b, "b")
    ends = looks["offsets"].shadow
    of = grouping.axes(a, b, ends)
    given, host = fused_products.given_of(call, looks)
    given = fusing.given_of(given)
    per_group = grouping.per_group(given, of)
    alone = call._replace(out=None, operands=grouping.stand_ins(given, per_group) or None)
    x, y = of.as_product(a, b)
    prepared = {"b": right.prepared} if right and right.prepared else {}
    if call.epilogue is None and not prepared:
        p = decide(alone, x, y, None, looks["out"].shadow if "out" in looks else None)
    else:
        p = prologue_rules.decided(alone, x, y, None, None, prepared)
    if p.sums.kind == "c":
        raise TypeError(f"a and b must be real on GPUs, not {a.dtype} and {b.dtype}")
    decoding = None
    if prepared:
        decoding = _inside(run, of, a, b, prepared["b"], format_of(p.sums)) if of.groups else None
        b = b if decoding else _decoded(run, b, prepared["b"])
    if not p.sizes[2]:
        a, b = a[..., :0], b[..., :0, :]
    f = fusing.fused(alone, p)
    reduced = [x.reduced for x in f.epilogue.expression.results]
    if of.along == "m":
        f = f._replace(shapes=tuple((of.groups, shape[-1]) if how.startswith("column") else shape
                                    for shape, how in zip(f.shapes, reduced)))
    results = Results(run, call, looks, p, f)
    if of.groups and of.m and of.n:
        _multiply(run, of, p, f, a, b, ends, results, per_group, host, decoding)
    else:
        for x in results.targets:
            run.copy(run.zeros(x.shape, x.dtype), x)
    return results.delivered(call.epilogue)


def _multiply(run: Run, of: Axes, p: Any, f: Any, a: Array, b: Array, ends: Array, results: Results,
              per_group: Mapping[str, Array], host: frozenset[str], decoding: tuple[str, list[Array]] | None) -> None:
    """Fill the results. decoding: the text of b's prologue, if the kernel evaluates it, and what that reads."""
    bare, epilogue, read = f.epilogue.nothing, unreduced(f.epilogue), list[Array]()
    rows, columns = of.m, of.n // (1 + epilogue.paired)
    extents = (rows, columns) if of.along == "m" else (of.groups, rows, columns)
    if not bare:
        read = [np.broadcast_to(per_group[one.name], (of.groups, 1, columns)) if one.name in per_group else x
                for one, x in zip(epilogue.reads, f.operands)]
        epilogue, read = fused_products.readable(run, epilogue, read, host)
    of_b = of_plans.multiplied(format_of(b.dtype), decoding[0] if decoding else "")
    taken_a, taken_b, first = results.kernel_formats(None if bare else epilogue, format_of(a.dtype), of_b, p)
    a, b = run.typed(a, taken_a), b if decoding else run.typed(b, taken_b)
    if not of.k or not a.shape[-1]:             # nothing to add up: a product of zeros
        zeros = (of.m, 1) if of.along == "m" else (of.m, max(of.k, 1)), ((of.groups, 1, of.n) if of.along == "m" else
                                                                        (max(of.k, 1), of.n))
        a, b = (run.zeros(shape, x.dtype) for shape, x in zip(zeros, (a, b)))
    a, b = (x if letter(x) else run.copied(x, x.dtype) for x in (a, b))
    if of.along == "m" and letter(a) == "t" and run.engine.platform is arrays.HIP:
        a = run.copied(a, a.dtype)              # kernels load several rows at once there
    if of.along == "k":                         # groups begin at any step of k: rows of k have whole vectors
        a = a if leading(a.T) is not None else run.copied(a.T, a.dtype).T
        b = b if leading(b) is not None else run.copied(b, b.dtype)
    if run.invariant == "rows":                 # plans of one kind for operands wherever they lie
        a, b = (_packed(run, x) for x in (a, b))
    written = results.written(first, extents, (a, b, *read), vectors=not bare)
    offsets = ends if ends.dtype == INDEX and leading(ends[None]) is not None and (
        ends.shape[0] < 2 or ends.strides[0] == INDEX.itemsize) else run.copied(ends, INDEX)
    text = "" if bare else stored_as(epilogue, written).text
    _launch(run, of, a, b, offsets, written, text, read, p.alpha, decoding)
    results.fill(written, offsets if of.along == "m" else None)


def _packed(run: Run, x: Array) -> Array:
    """x, or a copy whose rows, or columns where these are contiguous, lie one after the other."""
    by_rows = letter(x) == "n"
    rows = x if by_rows else x.swapaxes(-1, -2)
    if rows.flags.c_contiguous and address(x) % WIDEST == 0:
        return x
    there = run.copied(rows, x.dtype)
    return there if by_rows else there.swapaxes(-1, -2)


def _launch(run: Run, of: Axes, a: Array, b: Array, offsets: Array, results: list[Array], epilogue: str,
            read: list[Array], alpha: float, decoding: tuple[str, list[Array]] | None) -> None:
    """Launch a batch of groups of the average size of those that have rows, which is two rows, or steps of k, at the
    least where there are as many: the distance from a single row to the next one would not count."""
    groups, planned, by_rows = of.groups, of.with_rows, of.along == "m"
    every = of.m if by_rows else a.shape[-1]
    average = max(-(-every // planned), min(every, 2), 1)
    m, k = (average, a.shape[-1]) if by_rows else (of.m, average)

    def rows(x: Array, extent: int) -> Array:
        """What all groups have, or each has of its own."""
        own = x if x.ndim == 3 else x[:extent]
        return np.broadcast_to(own, (groups, *own.shape[-2:]))
    stack_a = rows(a, m) if by_rows else np.broadcast_to(a[:, :k], (groups, m, k))
    stack_b = b if by_rows else rows(b, k)
    stacks = [rows(x, m) for x in results]
    factors = [np.broadcast_to(rows(x, m) if x.shape[-2] > 1 or x.ndim < 3 else x, (groups, m, x.shape[-1]))
              for x in read]
    text, of_b = decoding or ("", [])
    looks = ((x.dtype, x.shape, x.strides, address(x) % WIDEST) for x in (stack_a, stack_b, *stacks, *factors, *of_b))
    key = ("groups", run.on.index, of, m, k, *looks, epilogue, run.plan, run.invariant, text)

    def make() -> Recipe:
        compiler = forks.imported(COMPILER)
        letters = letter(a) + letter(b) if by_rows else "tn"    # of one row or column, too
        problem = Gemm(m, of.n, k, format_of(a.dtype), format_of(b.dtype), format_of(results[0].dtype), letters, groups,
                       epilogue=epilogue, prologue_b=text)
        shape = operands.shape_of(problem, run.on.target, stack_a, stack_b, stacks[0])
        shape = shape._replace(batch=planned).with_numerics(invariant=run.invariant)
        if by_rows and letters[0] == "t":           # groups begin at any element of a column
            shape = shape._replace(vector_a=1, align_a=a.itemsize)
        plan = run.plan or compiler.plan_for(shape, run.on.target, of.along)
        if run.plan and (reasons := compiler.violations(plan, shape, run.on.target, of.along)):
            raise ValueError(f"plan {plan} cannot run these groups. {' '.join(reasons)}")
        kernel = compiler.kernel(problem, run.on.target, plan, of.along, of.m)
        by = [x if way == "n" else operands.transposed(x) for x, way in zip((stack_a, stack_b, stacks[0]),
                                                                             letters + "n")]
        more = {**operands.of_batch(stack_a, stack_b, stacks[0]), "batch": groups,
                **({"m": of.m} if by_rows else {"k": a.shape[-1]}),
                **auxiliary.strides(problem, [*factors, *stacks[1:], *of_b])}
        return Recipe(run.driver, kernel, run.on, *(leading(x) or 0 for x in by), **more)
    recipe = run.engine.prepared.get(key, make)
    run.by_recipe(recipe, (a, b, results[0], *read, *results[1:], *of_b, offsets), alpha, 0.0)


# ---- weights of few bits


def _of_shadows(run: Run, b: Any, looks: Any) -> Any:
    """The record with shadows for arrays: rules read dtypes, shapes and strides."""
    shadows: Any = {part: looks[name].shadow for part in prologues.PARTS
                  if (name := "b" if part == "elements" else f"b.{part}") in looks}
    axis = b.nibbles and b.nibbles.axis if isinstance(b, Scaled) else -1 if b.format.element.bits == 4 else None
    shadows["elements"] = prologues.halves(run, shadows["elements"], axis) if axis else shadows["elements"]
    return replace(b, **shadows)


def _decoded(run: Run, x: Array, prologue: Prepared) -> Array:
    """What the prologue makes of x [groups, k, n], contiguous along the axis along which x is."""
    decoded = _along_k(run, x, prologue) if letter(x) == "t" else _across(run, x, prologue)
    return prologues.prepared(run, x, "b", prologue, frozenset()) if decoded is None else decoded


def _inside(run: Run, of: Axes, a: Array, x: Array, prologue: Prepared, sums: str) -> tuple[str, list[Array]] | None:
    """The prologue's text for a kernel that decodes x [groups, k, n] on its copies, and what it reads, with an axis of
    groups; None if a pass before the launch is expected to be faster, or kernels cannot read what there is."""
    target, letters = run.on.target, letter(a) + letter(x)
    if not isinstance(target, GpuTarget) or len(letters) < 2 or run.invariant or run.plan or letters[0] == "t":
        return None
    pair = gpu_lowering.pair_for(format_of(a.dtype), prologue.prologue.result, sums, target)
    if pair is None or pair[0] != format_of(a.dtype):
        return None
    text = of_plans.into(prologue.prologue.text, pair[1])
    by_k = letters[1] == "t"
    aligned = [y[(slice(None), *(slice(None) if stride else slice(0, 1) for stride in y.strides[1:]))]
              for y in prologue.arrays]
    if not all(auxiliary.readable(y[0], "b", not by_k and read.by_column) and (by_k or not y.strides[0] % WIDEST)
               for read, y in zip(prologue.prologue.reads, aligned)):
        return None
    m, n = max(-(-of.m // of.with_rows), 1), of.n
    rows = x if letters[1] == "n" else x.swapaxes(1, 2)
    at = [(address(a), a.strides[0] if of.m > 1 else 0, 0), (address(x), rows.strides[1], x.strides[0]), (0, 4*n, 0)]
    shape = gpu_shape.shape(*pair, gpu_shape.results(sums, "")[0], m, n, of.k, letters, at, of.with_rows,
                            numerics=Numerics(prologue_b=text))
    compiler = forks.imported(COMPILER)
    return (text, aligned) if compiler.decodes_inside(shape, target) else None


def _along_k(run: Run, x: Array, prologue: Prepared) -> Array | None:
    """The matrices as the columns of one [k, groups * n]."""
    groups, k, n = x.shape
    folded = [shapes.merged(y.swapaxes(1, 2), 0, 2) for y in (x, *prologue.arrays)]
    parts = [y.T for y in folded if y is not None]
    if len(parts) < len(folded):
        return None
    decoded = prologues.prepared(run, parts[0], "b", prologue._replace(arrays=tuple(parts[1:])), frozenset())
    return decoded.T.reshape(groups, n, k).swapaxes(1, 2)


def _across(run: Run, x: Array, prologue: Prepared) -> Array | None:
    """The matrices as the rows of one [groups * k, n], of whole groups of steps of k; what all of k shares is a
    group."""
    groups, k, n = x.shape
    parts, reads = [shapes.merged(x, 0, 2)], []
    for aux, y in zip(prologue.prologue.reads, prologue.arrays, strict=True):
        shared = y.strides[1] == 0 or y.shape[1] == 1
        group = k if shared else aux.group
        if k % group:
            return None
        parts.append(shapes.merged(y[:, :1] if shared else y, 0, 2))
        reads.append(replace(aux, group=group))
    folded = [y for y in parts if y is not None]
    if len(folded) < len(parts):
        return None
    made = replace(prologue.prologue, reads=tuple(reads))
    decoded = prologues.prepared(run, folded[0], "b", Prepared(made, tuple(folded[1:])), frozenset())
    return decoded.reshape(groups, k, n)
