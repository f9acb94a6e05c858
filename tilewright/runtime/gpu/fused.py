"""Products with an epilogue of arrays in a GPU's memory: one launch, and copies of what kernels cannot take.

Leading axes are folded into m where B has none and every operand allows it, else merged into one axis, else all but the
longest are taken one by one. c, if there is one, is an operand of the expression, like any other. Of a reduction the
kernel stores all numbers, as they are computed, and a second one combines those of each row or column
(kernels/gpu/reduce.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.expressions import DEFAULT
from tilewright.expressions.composed import ADDED, BETA, with_scalars
from tilewright.expressions.function import Aux, Epilogue
from tilewright.expressions.program import INDICES
from tilewright.formats.quantization import scale_of_all
from tilewright.plans import gpu_lowering, gpu_shape, semirings
from tilewright.plans.epilogues import kinds as computed
from tilewright.rules import arguments, fusing, shapes
from tilewright.rules import prologues as prologue_rules
from tilewright.rules.call import Call, Product
from tilewright.runtime.gpu import arrays, blocks, epilogues, prologues, scales
from tilewright.runtime.gpu.operands import address, format_of, letter

if TYPE_CHECKING:
    from tilewright.rules.prologues import Prepared
    from tilewright.runtime.gpu.arrays import Library
    from tilewright.runtime.gpu.product import Prologues, Run

Array = NDArray[Any]
# What kernels read as operands; other integers are converted before.
READ = gpu_lowering.WRITTEN


def named(call: Call) -> dict[str, Any]:
    """Arrays that may be on a GPU, by the names of messages."""
    found = {f"operands[{name!r}]": x for name, x in (call.operands or {}).items()} if isinstance(
        call.operands, Mapping) else {}
    return {name: x for name, x in found.items() if arrays.library_of(x) is not None} | {
        f"{call.out_name}[{i}]": x for i, x in enumerate(call.out if isinstance(call.out, tuple) else ())}


def product(run: Run, library: Library, call: Call, looks: Mapping[str, Any], a: Array, b: Array) -> Any:
    """The results of the call, an array of the library or a tuple of them. a and b are as they are multiplied."""
    functions = call.epilogue, call.prologue_a, call.prologue_b
    c = looks["c"].shadow if "c" in looks else call.c
    asked = call.out_dtype if isinstance(call.out_dtype, tuple) else (call.out_dtype,)
    wide = "f64" if any(x is not None and formats.find(x) is formats.get("f64") for x in asked) else None
    given = {name: looks[f"operands[{name!r}]"].shadow if f"operands[{name!r}]" in looks else x
             for name, x in (call.operands or {}).items()} if isinstance(call.operands, Mapping) else call.operands
    host = frozenset(x for x in given or () if f"operands[{x!r}]" not in looks)
    shares = prologue_rules.shared_out(call, fusing.given_of(given))
    before = prologue_rules.all_of(call, a, b, shares)
    call, factors = scales.of_call(run, call, looks, a, b)
    of_sums: dict[str, Array] = {}
    if factors:
        if any(x.shape[axis] > 1 for x, axis in zip(factors, (-1, -2))):
            raise ValueError("scale_a and scale_b must have one scale for each row and column with an epilogue, and "
                             "here they are of blocks along k")
        call, of_sums = fusing.beside_scales(call, dict(zip(fusing.SCALES, factors)))
        host |= {fusing.SCALES[2]}
    p = prologue_rules.decided(call._replace(out=None), a, b, c, wide, before)
    p = p._replace(result=p.sums) if factors else p
    f = fusing.fused(call._replace(operands=shares.get("epilogue")), p, of_sums)
    check_results(f, run.engine.platform is arrays.CUDA)
    dtypes = [of_reduced(p, kind) if x is None else x for x, kind in zip(f.dtypes, f.epilogue.expression.kinds)]
    if call.algorithm is not None:
        arguments.check_algorithm(call.algorithm, a.dtype, b.dtype, p.sums, call.plan, run.on.target)
    given_outs = call.out if isinstance(call.out, tuple) else (call.out,) + (None,) * (len(f.shapes) - 1)
    if len(given_outs) != len(f.shapes):
        raise ValueError(f"{call.out_name} must have an array or None for each of the epilogue's {len(f.shapes)} "
                         f"results, not {len(given_outs)} of them")
    results, targets = list[Any](), list[Array]()
    for i, (x, shape, dtype, block) in enumerate(zip(given_outs, f.shapes, dtypes, f.blocks)):
        name = f"{call.out_name}[{i}]" if isinstance(call.out, tuple) else call.out_name
        if block is not None:
            if x is not None:
                raise ValueError(f"{name} must be None for a result in {block.name}, which is a new Quantized")
            results.append(None)
            targets.append(run.temporary(shape, arguments.F32))
            continue
        if x is None:
            results.append(library.empty(shape, dtype, run.on.index, run.stream))
            targets.append(library.look(results[-1], "the result", run.stream, write=True).shadow)
            continue
        results.append(x)
        targets.append(checked(looks[name].shadow, name, shape, dtype))
    if all(x.size for x in targets):
        inside = prologues.inside(run, p, before)
        x, y = (prologues.prepared(run, one, role, before[role], host) if role in before and role not in inside else one
                for role, one in zip("ab", (p.a, p.b)))
        p = p._replace(a=x, b=y)
        _compute(run, p, f, targets, host, {role: before[role] for role in inside})
    results = [quantized(run, library, x, block) if block else y for x, y, block in zip(targets, results, f.blocks)]
    run.remember(targets, functions, any_alpha=not factors)
    delivered = tuple(library.result(x, call.a) if y is None and block is None else x for x, y, block in zip(
        results, given_outs, f.blocks))
    return delivered if len(delivered) > 1 else delivered[0]


def quantized(run: Run, library: Library, x: Array, f: formats.BlockFormat) -> Any:
    """A contiguous array of f32 along its rows. The scale that nvfp4 has for all numbers is the host's, which waits
    for it."""
    if f.mx or not x.size:
        return blocks.quantized(run, library, x, f)
    by_block = blocks.largest(run, x, f)
    of_rows = reduced_by(run, by_block, "row_max", by_block.shape[:1])
    found = np.empty((), np.float32)
    run.download(reduced_by(run, of_rows[None], "row_max", (1,)), found)
    return blocks.quantized_nv(run, library, x, f, by_block, scale_of_all(float(found), f))


def of_reduced(p: Product, kind: str) -> np.dtype[Any]:
    """Of a reduction of this kind."""
    return np.dtype(f"{kind[0]}{max(p.sums.itemsize, 4)}")


def checked(out: Array, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if out.shape != shape:
        raise ValueError(f"{name} must have the result's shape {shape}, but its shape is {out.shape}")
    if any(n > 1 and s == 0 for n, s in zip(out.shape, out.strides)):
        raise ValueError(f"{name} has elements that share memory: its strides are {out.strides} bytes")
    arguments.check_cast(dtype, out.dtype, name)
    return out


def check_results(f: fusing.Fused, on_cuda: bool) -> None:
    """TypeError or ValueError for those that GPUs do not give."""
    expression = f.epilogue.expression
    for result, block, shape in zip(expression.results, f.blocks, f.shapes):
        if block is not None and not on_cuda:
            raise TypeError(f"out_dtype is {block.name}: epilogues give block-scaled results on NVIDIA's GPUs alone")
        if result.reduced and 0 in f.shapes[0] and 0 not in shape:
            raise ValueError(f"epilogue returns {result.reduced} of a product of shape {f.shapes[0]}, which has no "
                             "elements")


def _compute(run: Run, p: Product, f: fusing.Fused, targets: list[Array], host: frozenset[str],
             before: Mapping[str, Prepared]) -> None:
    """Into arrays of the results' shapes, anywhere. `before`: the prologues that the kernel evaluates, by operand."""
    epilogue, arrays_of = _with_c(run, p, f, host)
    reduced = [x.reduced for x in epilogue.expression.results]
    plain = tuple(replace(x, reduced="") for x in epilogue.expression.results)
    epilogue = replace(epilogue, expression=replace(epilogue.expression, results=plain))
    main, shape = 0, (*p.shape[:-1], p.shape[-1] // (1 + epilogue.paired))
    kinds = [gpu_shape.RESULTS[computed(format_of(p.sums), epilogue.state)[kind == "float"]]
             for kind in epilogue.expression.kinds]
    of_a, of_b = (before[role].prologue.result if role in before else format_of(x.dtype)
                  for role, x in zip("ab", (p.a, p.b)))
    given = {"a": of_a, "b": of_b,
             "result": kinds[main][0] if reduced[main] else format_of(stored(targets[main]).dtype)}
    taken_a, taken_b, kept = (formats.FORMATS[x].dtype for x in gpu_lowering.taken(
        run.on.target, given, format_of(p.sums), True, "", replace(
            epilogue, results=tuple(DEFAULT if i == main else x for i, x in enumerate(epilogue.results))).text,
        p.semiring))
    a, b = p.broadcast(*(x if role in before else run.typed(x, taken)
                         for role, x, taken in zip("ab", (p.a, p.b), (taken_a, taken_b))))
    texts, beside = prologues.placed(run, before, dict(zip("ab", (taken_a, taken_b))), a, b, host)
    semiring = p.semiring
    if not p.a.shape[-1]:                       # nothing to add up: a product of zeros
        semiring = semirings.products(semiring)
        a, b = run.zeros((*a.shape[:-1], 1), a.dtype), run.zeros((*b.shape[:-2], 1, b.shape[-1]), b.dtype)
    outs: list[Array] = []
    for i, target in enumerate(targets):
        x, wide = stored(target), formats.FORMATS[kinds[i][0]].dtype
        wanted = kept if i == main else x.dtype if format_of(x.dtype) in kinds[i] and not reduced[i] else wide
        free = not reduced[i] and x.dtype == wanted and epilogues.ready(x, "full") and not any(
            shapes.overlap(x, y) for y in (a, b, *arrays_of, *outs))
        outs.append(x if free else run.temporary(shape, wanted))
    names = tuple(DEFAULT if i == main else format_of(x.dtype) for i, x in enumerate(outs))
    final = replace(epilogue, results=names)
    for pa, pb, *rest in _parts(a, b, [*outs, *arrays_of]):
        for matrices in zip(pa, pb, *rest) if before and pa.ndim > 2 else ((pa, pb, *rest),):
            mb, rest = matrices[1], list(matrices[2:])
            _multiply(run, matrices[0], mb, p.alpha, final, rest[len(outs):], rest[:len(outs)], semiring,
                      (texts, [x for _, x in beside]) if before else None)
    for x, target, how in zip(outs, targets, reduced):
        if how:
            x = reduced_by(run, x, how, target.shape)
        if x is not stored(target) and address(x) != address(target):
            run.copy(x, stored(target))


def reduced_by(run: Run, x: Array, how: str, shape: tuple[int, ...], offsets: Array | None = None) -> Array:
    """Rows or columns of contiguous matrices, in a new array. offsets: the columns are those of groups of rows."""
    along, _, combined = how.partition("_")
    found = run.temporary(shape, np.dtype(f"i{x.itemsize}") if combined in INDICES else x.dtype)
    rows, columns = x.shape[-2:]
    function = run.engine.reduce_kernel(run.on, format_of(x.dtype), combined, along, offsets is not None)
    args: dict[str, Any] = {"rows": rows, "columns": columns, "source": x, "target": found}
    batch = math.prod(x.shape[:-2])
    if offsets is not None:
        args["offsets"], batch = offsets, len(offsets)
    run.launch(function, (rows if along == "row" else -(-columns // 32), batch), args)
    return found


def stored(x: Array) -> Array:
    """Truth values are bytes."""
    return x.view(np.int8) if x.dtype == bool else x


def _with_c(run: Run, p: Product, f: fusing.Fused, host: frozenset[str]) -> tuple[Epilogue, list[Array]]:
    """The epilogue with beta and c as operands, and all operands in the GPU's memory, as kernels read them. `host`: the
    names of those that are NumPy's."""
    epilogue, found = f.epilogue, list(f.operands)
    read = list(epilogue.reads)
    if p.beta:
        expression = with_scalars(epilogue.expression, False, True)
        kind, c = formats.get(p.sums).name, p.c if p.c.ndim else np.broadcast_to(run.number(p.c, p.sums), p.shape)
        c = np.broadcast_to(c, p.shape)
        halves = ((f"{ADDED}0", c[..., 0::2]), (f"{ADDED}1", c[..., 1::2])) if epilogue.paired else ((ADDED, c),)
        read += [Aux(BETA, kind, "scalar"), *(Aux(name, format_of(x.dtype), "full") for name, x in halves)]
        found += [np.broadcast_to(run.number(np.array(p.beta), p.sums), halves[0][1].shape), *(x for _, x in halves)]
        epilogue = replace(epilogue, expression=expression)
    return readable(run, replace(epilogue, reads=tuple(read)), found, host)


def readable(run: Run, epilogue: Epilogue, given: list[Array], host: frozenset[str]) -> tuple[Epilogue, list[Array]]:
    """The epilogue and its operands, which are broadcast, as kernels read them: in the GPU's memory, in formats and
    places that they take."""
    read, found = list(epilogue.reads), list(given)
    for i, x in enumerate(found):
        own = x[tuple(slice(None) if stride else slice(0, 1) for stride in x.strides)]
        if read[i].name in host:
            own = run.uploaded(np.ascontiguousarray(own)) if own.size > 1 else run.number(
                own.reshape(()), own.dtype, read[i].name).reshape(own.shape)
        if format_of(own.dtype) not in READ:
            wide = np.dtype(np.float32 if isinstance(formats.get(own.dtype), formats.Float) else np.int32)
            own = run.copied(own, wide)
            read[i] = replace(read[i], format=format_of(wide))
        elif not epilogues.ready(np.broadcast_to(own, x.shape), read[i].place):
            own = run.copied(own, own.dtype)
        found[i] = np.broadcast_to(own, x.shape)
    return replace(epilogue, reads=tuple(read)), found


def final(epilogue: Epilogue, results: list[str]) -> Epilogue:
    """The epilogue with results in these formats."""
    return replace(epilogue, results=tuple(results))


def _parts(a: Array, b: Array, others: list[Array]) -> Iterator[list[Array]]:
    """Operands with one leading axis at most, in as few products as their strides allow."""
    lead = a.ndim - 2
    if not lead:
        yield [a, b, *others]
        return
    if not any(b.strides[:-2]):
        folded = [x for x in (shapes.merged(x, 0, lead + 1) for x in (a, *others)) if x is not None]
        if len(folded) == 1 + len(others):
            yield [folded[0], b[(0,) * lead], *folded[1:]]
            return
    merged = [shapes.merged(x, 0, lead) for x in (a, b, *others)]
    one = [x for x in merged if x is not None]
    if len(one) == len(merged) and math.prod(a.shape[:-2]) <= gpu_shape.MOST_BATCH:
        yield [x[0] if len(x) == 1 else x for x in one]
        return
    longest = int(np.argmax(a.shape[:-2]))
    for index in np.ndindex(a.shape[:longest] + a.shape[longest + 1:-2]):
        at = (*index[:longest], slice(None), *index[longest:])
        for first in range(0, a.shape[longest], gpu_shape.MOST_BATCH):
            stacks = [x[at][first:first + gpu_shape.MOST_BATCH] for x in (a, b, *others)]
            yield [x[0] if len(x) == 1 else x for x in stacks]


def _multiply(run: Run, a: Array, b: Array, alpha: Any, epilogue: Epilogue, read: list[Array], outs: list[Array],
              semiring: str, before: Prologues | None) -> None:
    """One launch. Results are by rows; main is C."""
    a, b = (x if letter(x) else run.copied(x, x.dtype) for x in (a, b))
    c = outs[epilogue.main or 0]
    others = [x for i, x in enumerate(outs) if i != epilogue.main]
    fused = epilogue.text, tuple(read), tuple(others)
    recipe = run.recipe(a, b, c, fused=fused, semiring=semiring, prologues=before)
    beside = recipe.beside((), (*read, *others, *(before[1] if before else ())))
    run.by_recipe(recipe, (a, b, c, *beside), alpha, 0.0)
