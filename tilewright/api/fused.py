"""Products with an epilogue or prologues, of arrays in the host's memory: checked arguments become matrices for the
engine.

Leading axes are folded into m where B has none and every operand allows it, else merged into one axis, else all but the
longest are taken one by one. alpha, beta and c are operands of the expression like any others.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from tilewright import forks, formats, targets
from tilewright.api import dispatch, host, scaled
from tilewright.expressions.function import Epilogue
from tilewright.expressions.semiring import Semiring
from tilewright.formats.table import NARROW
from tilewright.plans import few_rows, prologues as plans
from tilewright.plans.invariant import sizes as sizes_of
from tilewright.rules import arguments, fusing, numpy_products, prologues, scaling, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call, Product
from tilewright.rules.fusing import Fused
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu import program


def product(call: Call) -> Any:
    """The results of a product with an epilogue or prologues on this processor: an array, or a tuple of them."""
    if call.plan is not None and dispatch.platform_of(call.plan):
        arguments.refuse(f"{dispatch.where(call.plan)} for arrays in the host's memory", epilogue=call.epilogue,
                         prologue_a=call.prologue_a, prologue_b=call.prologue_b)
    scales: dict[str, Array] = {}
    if scaled.present(call):
        call, factors = scaled.without_scales(call)
        if factors:
            call, scales = fusing.beside_scales(call, dict(zip(fusing.SCALES, factors)))
            if fusing.SCALES[2] in scales:
                program.constant(scales[fusing.SCALES[2]])
    a = arguments.transposed(arguments.operand(call.a, "a"), call.trans_a, "a")
    packed, b = host.operand_b(call)
    c = arguments.addend(call.c)
    if packed is None and numpy_products.takes(a, b, c, None):
        raise TypeError(f"epilogue must be None for products that NumPy multiplies, of {a.dtype} and {b.dtype}")
    shares = prologues.shared_out(call, fusing.given_of(call.operands))
    prepared = prologues.all_of(call, a, b, shares)
    if prepared and (packed is not None or call.algorithm is not None):
        if packed is not None:
            raise ValueError("prologue_a and prologue_b must be None where b is packed")
        arguments.refuse("with a prologue", algorithm=call.algorithm)
    p = decided(call, a, b, c, prepared, bool(scales))
    f = fusing.fused(call._replace(operands=shares.get("epilogue")), p, scales)
    outs = fusing.outs_of(call, f)
    f = f._replace(dtypes=tuple(map(result_dtype, f.dtypes, outs)))
    if call.algorithm is not None:
        arguments.check_algorithm(call.algorithm, a.dtype, b.dtype, p.sums, call.plan)
    arguments.check_batch_invariant(call.batch_invariant, call.plan, call.algorithm)
    scattered = call.scattered if p.sizes[2] else None
    if packed is not None:
        a, b = host.operand_a_for(packed, p.a, p.sums, call.trans_a), p.b
    elif scattered is not None:
        a, b = host.packed_by_tables(scattered, p.sums)
    else:
        a, b = _taken(p, prepared, call.invariant)
    a, b = (a, b) if scattered is not None else p.broadcast(a, b)
    before = {role: x._replace(arrays=tuple(map(readable, p.broadcast(*x.arrays)))) for role, x in prepared.items()}
    fusion = forks.imported("tilewright.runtime.cpu.fusion")
    if p.beta and not isinstance(c, np.ndarray):
        program.constant(p.c)
    added = readable(np.broadcast_to(p.c, p.shape)) if p.beta else None
    epilogue, operands = fusing.with_factors(f.epilogue, [readable(x) for x in f.operands], p.sums, p.alpha, p.beta,
                                             added, p.shape, program.constant)
    auxiliary = [y for x in before.values() for y in x.arrays]
    results, stored = results_of(f, p, outs, (a, b), operands, auxiliary, scattered and scattered.c)
    how = {"threads": call.threads, "plan": call.plan, "algorithm": call.algorithm, "b_packed": packed,
           "semiring": call.semiring.text if call.semiring else "", "invariant": call.invariant}
    if call.semiring and not p.sizes[2]:
        _of_no_terms(call.semiring, f, p, results)
    elif any(x.size for x in results):
        if scattered is not None:
            how["counts"] = (min(scattered.counts[0], 1), *scattered.counts[1:])
        for part in _parts(a, b, stored, operands, results, epilogue, before, how.get("counts", ())):
            pa, pb, arrays, more, reduced, now = part
            fusion.gemm(pa, pb, arrays, reduced, more, epilogue, p.sums, prologues=now, **how)
    return delivered(call, f, results, outs)


def decided(call: Call, a: Array, b: Array, c: Any, prepared: dict[str, Prepared] | None = None,
            scales: bool = False) -> Product:
    """What rules.prologues.decided gives; products are added up in f64 if a result is asked for in it. With `scales` of
    sums the result is in the format of these, and integers' sums are exact."""
    wide = fusing.wide_of(call)
    if scales and formats.integral(*map(formats.get, (a.dtype, b.dtype))):
        wide = fusing.name_of(scaling.sums_of(a, b))
    p = prologues.decided(call._replace(out=None), a, b, c, wide, {} if prepared is None else prepared)
    return p._replace(result=p.sums) if scales else p


def _of_no_terms(semiring: Semiring, f: Fused, p: Product, results: list[Array]) -> None:
    """Results of the state before the first term."""
    program.not_repeated()
    expression = f.epilogue.expression
    state = [np.full(p.shape, x) for x in semiring.first(8 * p.sums.itemsize)]
    names = [name for name, _ in expression.parameters]
    for x, value in zip(results, expression.evaluate(dict(zip(names, (*state, *f.operands), strict=True)))):
        x[...] = value


def _taken(p: Product, prepared: Mapping[str, Prepared], invariant: str) -> list[Array]:
    """Operands in dtypes that the engine takes: with a prologue any."""
    m, n, k = p.sizes
    m, n = sizes_of(m, n, invariant)
    sizes = m, n, k, p.a.dtype == p.b.dtype or bool(prepared)
    a, b = (prepared[role].prologue.text if role in prepared else "" for role in "ab")
    if plans.read_once(a, b, m, n, fusing.name_of(p.sums)):
        # kernels for weights take rows of bf16, where there are instructions for them
        rows = plans.weights(a or b) and any(map(targets.detect().has, few_rows.NEEDS.values()))
        return [program.converted(x, x.dtype.newbyteorder("=") if role in prepared or (
            rows and fusing.name_of(x.dtype) == "bf16") else p.sums) for role, x in zip("ab", (p.a, p.b))]
    return [program.converted(x, x.dtype.newbyteorder("=") if role in prepared else
                              host.taken_dtype(x, p.sums, *sizes)) for role, x in zip("ab", (p.a, p.b))]


def readable(x: Array) -> Array:
    """An operand that is broadcast, with aligned numbers in this machine's order of bytes; a short one contiguous."""
    axes = [slice(None) if stride and extent > 1 else slice(0, 1) for stride, extent in zip(x.strides, x.shape)]
    own = x[tuple(axes)]
    if not own.dtype.isnative or not arguments.ready(own, own.dtype) or (own.ndim and own.size == own.shape[-1]):
        own = program.copied(np.ascontiguousarray(own, own.dtype.newbyteorder("=")), own)
    return np.broadcast_to(own, x.shape)


# ---- results

def result_dtype(dtype: np.dtype[Any] | None, out: Array | None) -> np.dtype[Any] | None:
    """A result of f32 in an `out` of ml_dtypes' formats is rounded as it is stored: a cast would give the same bits."""
    rounded = out is not None and dtype == arguments.F32 and out.dtype.kind == "V" and out.dtype.isnative
    return out.dtype if out is not None and rounded else dtype


def results_of(f: Fused, p: Product, outs: list[Array | None], factors: tuple[Array, Array], operands: list[Array],
             beside: list[Array], scattered: Array | None = None) -> tuple[list[Array], list[Array | None]]:
    """Arrays for all results, and those that the engine writes, None for reductions. `beside`: what prologues read;
    scattered: where the first one may be written by tables, if it is of the kind of the sums."""
    results: list[Array] = []
    stored: list[Array | None] = []
    epilogue, wide = f.epilogue, p.sums.itemsize == 8 or f.epilogue.reads_wide
    for at, (shape, dtype, kind) in enumerate(zip(f.shapes, f.dtypes, epilogue.expression.kinds)):
        if dtype is None:
            results.append(program.empty(shape, _computed(p.sums.itemsize == 8, kind)))
            stored.append(None)
            continue
        kept = dtype if storable(fusing.format_of(dtype), kind, wide) else _computed(wide, kind)
        out = outs[at]
        narrow = kind == "float" and p.sums == arguments.F32 and not wide and fusing.name_of(kept) in NARROW
        if (scattered is not None and at == epilogue.main and scattered.dtype == kept and not epilogue.paired
                and (kept == p.sums or narrow) and shapes.writes_in_place(scattered, *factors, kept)
                and not any(shapes.overlap(scattered, x) for x in (*results, *operands))):
            results.append(scattered)
            stored.append(scattered)
            continue
        by_rows = out is not None and (out.strides[-1] == out.itemsize or not epilogue.paired)
        if (out is not None and by_rows and shapes.writes_in_place(out, *factors, kept)
                and not any(shapes.overlap(out, x) for x in (*results, *beside))
                and not any(shapes.overlap(out, x) and not shapes.same(out, x) for x in operands)):
            results.append(out)
        else:
            results.append(program.empty(shape, kept))
        stored.append(results[-1])
    return results, stored


def _computed(wide: bool, kind: str) -> np.dtype[Any]:
    """In which a result of this kind is computed."""
    return np.dtype({"float": "f8" if wide else "f4", "int": "i8" if wide else "i4", "bool": "?"}[kind])


def storable(f: formats.Format | None, kind: str, wide: bool) -> bool:
    """Whether the engine rounds to this format as it stores: once. `wide`: from f64."""
    if f is None:
        return False
    if isinstance(f, formats.Integer):
        return f.bits >= 8
    if kind == "float" and not wide:
        return f.name in ("f32", "f64", *NARROW)
    return f.name in ("f32", "f64", "bool") and (f.name != "bool" or kind == "bool")


def delivered(call: Call, f: Fused, results: list[Array], outs: list[Array | None]) -> Any:
    arrays: list[Any] = []
    for x, out, dtype, block in zip(results, outs, f.dtypes, f.blocks):
        if block is not None:
            arrays.append(formats.quantize(x, block))
            continue
        last = x if dtype is None else program.rounded(x, dtype)
        if out is None:
            arrays.append(arguments.wrap(last, call.a, call.b))
            continue
        if x is not out:
            program.do(host.store, out, last)
        arrays.append(out)
    if len(arrays) > 1:
        return tuple(arrays)
    return call.out if outs[0] is not None and not isinstance(call.out, tuple) else arrays[0]


# ---- leading axes

def _parts(a: Array, b: Array, stored: list[Array | None], operands: list[Array], results: list[Array],
           epilogue: Epilogue, before: Mapping[str, Prepared], counts: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """(a, b, results or None, operands, reductions, prologues) with one leading axis at most, as few as their strides
    allow. counts: of operands that are packed by tables."""
    reduced = [x.reduced for x in epilogue.expression.results]
    sums = [x for x, how in zip(results, reduced) if how]
    hows = [how for how in reduced if how]
    lead = a.ndim - 2
    if counts:
        for index in np.ndindex(a.shape[: max(a.ndim - counts[1] - counts[3] - 1, 0)]):
            yield (a[index], b[index], [None if x is None else x[index] for x in stored], [x[index] for x in operands],
                   [x[index] for x in sums], before)
        return
    if not lead:
        yield a, b, stored, operands, sums, before
        return
    of_a, of_b = (before[role].arrays if role in before else () for role in "ab")
    arrays, right = [a, *of_a, *(x for x in stored if x is not None), *operands], [b, *of_b]
    like = partial(_like, stored, before)
    if not any(any(x.strides[:-2]) for x in right) and not any(how.startswith("column") for how in hows):
        folded = [shapes.merged(x, 0, lead + 1) for x in arrays]
        if all(x is not None for x in folded):
            m = math.prod(a.shape[:-1])
            yield like(folded, [x[(0,) * lead] for x in right], [x.reshape(m) for x in sums])
            return
    merged = [shapes.merged(x, 0, lead) for x in (*arrays, *right)]
    if all(x is not None for x in merged):
        batch = math.prod(a.shape[:-2])
        yield like(merged[:len(arrays)], merged[len(arrays):], [x.reshape(batch, x.shape[-1]) for x in sums])
        return
    longest = int(np.argmax(a.shape[:-2]))
    for index in np.ndindex(a.shape[:longest] + a.shape[longest + 1:-2]):
        at = (*index[:longest], slice(None), *index[longest:])
        yield like([x[at] for x in arrays], [x[at] for x in right], [x[at] for x in sums])


def _like(stored: list[Array | None], before: Mapping[str, Prepared], left: list[Any], right: list[Any],
          sums: list[Array]) -> tuple[Any, ...]:
    """Views of a and its prologue's arrays, results and operands; of b and its prologue's; and reductions."""
    (a, *others), (b, *of_b) = left, right
    count = len(before["a"].arrays) if "a" in before else 0
    now = {role: x._replace(arrays=tuple(others[:count] if role == "a" else of_b)) for role, x in before.items()}
    given = iter(others[count:])
    return a, b, [None if x is None else next(given) for x in stored], list(given), sums, now
