"""x @ w for few rows of x and weights of few bits, which are read once, as large arrays of bf16 and f16 are; with an
epilogue, too.

Calls with other options, more rows or other layouts go the way of prologues (rules/weights.py), to the same kernels.
"""
from __future__ import annotations

from array import array
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.api import dispatch, fused
from tilewright.expressions.numerics import Numerics
from tilewright.formats import Quantized, get
from tilewright.kernels.cpu import jobs
from tilewright.plans import few_rows, lowering
from tilewright.plans.cpu_shape import Strides
from tilewright.rules import arguments, fusing, prologues, signature, weights
from tilewright.rules.arguments import F32
from tilewright.rules.call import Call
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool, program

Array = Any
HALF = tuple(get(name).dtype for name in ("bf16", "f16"))


class Ready(NamedTuple):
    """What multiplies by some weights, for shapes, strides and formats of x and w."""

    recipe: Any             # runtime.cpu.recipe.Recipe
    table: Array            # of what is beside the elements, of which addresses differ from call to call
    swapped: bool
    shape: tuple[int, ...]  # of the result
    result: np.dtype[Any]
    factor: float
    fused: Any = None       # the table of an epilogue's operands; `result` is stored then
    order: tuple[int, ...] = ()     # which of those that are given each of them is


def product(a: Any, b: Any, out: Any, trans_b: str, threads: int | None, epilogue: Any = None, operands: Any = None
            ) -> Array | None:
    """matmul(a, b, out) with no other option but an epilogue, b being a Scaled, a Quantized or an array of 16 bits;
    None, and nothing done, where no kernel for few rows computes it."""
    beside = _arrays(b)
    given = {name: np.asarray(x) for name, x in (operands or {}).items()} if type(operands) in (dict, NoneType) else {}
    if (type(a) is not np.ndarray or not a.ndim or a.dtype not in weights.FLOATS or len(given) < len(operands or ())
            or not all(type(x) is np.ndarray and x.flags.aligned for x in (*beside, *given.values()))):
        return None
    if epilogue is not None and (a.ndim < 2 or (a.ndim > 2 and any(x.ndim > 1 for x in given.values()))):
        return None
    with forks.building:
        ready = _of(b, a, trans_b, threads or pool.get_num_threads(), epilogue, given)
    if ready is None:
        return None
    stored = F32 if epilogue is None else ready.result
    direct = (out is not None and type(out) is np.ndarray and out.dtype == stored == ready.result
              and out.shape == ready.shape and out.flags.c_contiguous and out.flags.behaved
              and not any(np.may_share_memory(out, x) for x in (a, *beside, *given.values())))
    cast = (epilogue is None and type(out) is np.ndarray and out.shape == ready.shape and out.flags.behaved
            and out.dtype in weights.FLOATS)
    if out is not None and not direct and not cast:
        return None
    c = out if direct else program.empty(ready.shape, stored)
    view = None if ready.recipe.reads(a) else repeats.View.of_array(a)
    program.take(partial(_step, ready, view, len(beside)), (a, *beside, *given.values(), c))
    if direct or epilogue is not None:
        return c
    c = program.rounded(c, ready.result)
    if out is None:
        return c
    program.assign(out, c)
    return out


def taken(b: Any) -> bool:
    """Whether this is a right operand for `product`."""
    large = type(b) is np.ndarray and b.dtype in HALF and b.ndim == 2 and b.size >= few_rows.LARGE
    return large or type(b) in signature.DECODED


def _step(ready: Ready, view: repeats.View | None, count: int, numbers: tuple[int, ...]) -> repeats.Run:
    """`numbers`: of the addresses of a, `count` arrays of b, operands, the result; `view`: of a, if it is copied."""
    recipe, c = ready.recipe, numbers[-1]
    (of_a, of_b), scales, order = numbers[:2], numbers[2:1 + count], [*numbers[1 + count:-1]]
    rows = [order[i] for i in ready.order]
    table = array("q", ready.table.tobytes())
    template = recipe.job(0, 0, 0, ready.factor, 0.0)
    i_left, i_right = (recipe.i_b, recipe.i_a) if ready.swapped else (recipe.i_a, recipe.i_b)
    i_table, i_fused = (recipe.at.get(name, 0) for name in ("a_beside" if ready.swapped else "b_beside", "operands"))

    def run(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> None:
        job, left = template[:], at[of_a]
        if view is not None:
            x = np.ascontiguousarray(view.array(left), recipe.rows_dtype)
            left = recipe.address(x)
        if rows:
            words = repeats.filled(ready.fused, rows, at)
            job[i_fused] = words.buffer_info()[0]
        if scales:
            words_of_b = table[:]
            for row, i in enumerate(scales):
                words_of_b[row * len(jobs.BESIDE)] = at[i]
            job[i_table] = words_of_b.buffer_info()[0]
        job[i_left], job[i_right], job[recipe.i_c] = left, at[of_b], at[c]
        recipe.run_job(job)
    return run


def _arrays(b: Any) -> tuple[Any, ...]:
    """The elements, and the arrays beside them in the order of prologues."""
    if type(b) is np.ndarray:
        return (b,)
    more = () if type(b) is Quantized else (b.zeros, b.minima)
    return b.elements, b.scales, *(x for x in more if x is not None)


def _of(b: Any, a: Array, trans: str, threads: int, epilogue: Any, operands: dict[str, Array]) -> Ready | None:
    one = np.broadcast_to(np.empty((1, a.shape[-1]), a.dtype), (a.size // max(a.shape[-1], 1), a.shape[-1]))
    call = Call(one, b, trans_b=trans, threads=threads)
    engine, preparation = (forks.imported(f"tilewright.runtime.cpu.{x}") for x in ("engine", "preparation"))
    plain = type(b) is np.ndarray
    if not (one.size and one.shape[0] <= few_rows.MANY and min(b.strides) == b.itemsize
            if plain else weights.few(call, "b")):
        return None
    w = weights.weights_of(b, trans, "b")
    if w is None or w.shape[0] != a.shape[-1]:
        return None
    if plain:
        result = prologues.multiplied({"a": prologues.format_of(a.dtype, "a"), "b": w.source}, {"b": "float"})["b"]
        call = call._replace(b=w.elements, trans_b="n", prologue_b=weights.decoding_of(w, "b", result))
    else:
        call = weights.without(call)
    of = prologues.all_of(call, one, call.b, prologues.shared_out(call, call.operands or {}))["b"]
    of = of._replace(arrays=tuple(map(fused.readable, of.arrays)))
    address = dispatch.cpu().host.address_of
    if any(address(x) != address(y) for x, y in zip(of.arrays, _arrays(b)[1:], strict=True)):
        return None         # a copy was read
    _, dtype = arguments.dtypes(one, np.empty(0, get(of.prologue.result).dtype), None, None)
    host, prepare = dispatch.cpu().host, preparation.recorded("b", of)
    planned = _planned(engine, call.b, one, "" if not plain else engine.format_of(dtype), of.prologue, threads)
    if not plain:
        planned = engine.decoding(planned, few_rows.Aside.of_job(prepare.READ))
    fits = planned.plan.word if plain else planned.plan.algorithm in ("stream", "dots")
    if not fits or (w.factor != 1 and planned.plan.algorithm == "stream"):
        return None
    recipe = engine.ready(planned, prepare=(None, prepare))
    table = preparation.table(host, "b", of)
    swapped = planned.plan.swap
    ready = Ready(recipe, table, swapped, (*a.shape[:-1], w.shape[1]), dtype, w.factor)
    return ready if epilogue is None else _fused(ready, call, of, threads, epilogue, operands)


def _planned(engine: Any, b: Array, rows: Array, out: str, prologue: Any, threads: int) -> Any:
    """The product as it is multiplied: of a matrix of 16 bits, whose results are in the format `out`, or of weights."""
    (m, k), n, (rsb, csb) = rows.shape, b.shape[1], engine.strides(b)
    kind, source = engine.format_of(rows.dtype), prologue.source.removesuffix(weights.HALVES)
    at = Strides(k, 1, rsb, csb, n, 1)
    if out:
        sizes = m, n, k, kind == source
        kind, source = (lowering.taken(x, "f32", *sizes) for x in (kind, source))
        product = lowering.Product(m, n, k, kind, source, lowering.stored(out, "f32", *sizes), at, threads)
    else:
        kind = kind if kind == "bf16" else "f32"
        product = lowering.Product(m, n, k, kind, source, "f32", at, threads, Numerics(prologue_b=prologue.text), "f32")
    return engine.planned(lowering.lower(product, engine.amx.permitted(engine.detect())))


def _fused(ready: Ready, call: Call, of: Any, threads: int, epilogue: Any, operands: dict[str, Array]) -> Ready | None:
    """`ready` with an epilogue, as one job; None for several results, reductions, and results that are rounded or
    quantized after the job."""
    fusion, ways = (forks.imported(f"tilewright.runtime.cpu.{x}") for x in ("fusion", "ways"))
    p = fused.decided(call, call.a, call.b, None, {"b": of})
    f = fusing.fused(call._replace(epilogue=epilogue, operands=operands), p)
    (dtype, *more), kind = f.dtypes, f.epilogue.expression.kinds[0]
    wide = f.epilogue.reads_wide
    if more or dtype is None or f.blocks != (None,) or not fused.storable(fusing.format_of(dtype), kind, wide):
        return None
    arrays, host = [fused.readable(x) for x in f.operands], dispatch.cpu().host
    if any(host.address_of(x) != host.address_of(operands[y.name]) for x, y in zip(arrays, f.epilogue.reads)):
        return None         # a copy was read
    c = np.empty(f.shapes[0], dtype)
    sums = ways.Sums(call.a, call.b, F32, threads, target=ready.recipe.target)
    finish = ways.finish_of(f.epilogue, [c], arrays, "f32", False)
    way = ways.at_once(sums, c, ways.Way(finish, False, jobs.TALL, jobs.WIDE * ready.recipe.target.lanes(4),
                                         ready.recipe, ready.swapped, True), host)
    if way.after:
        return None
    order = tuple(list(operands).index(y.name) for y in f.epilogue.reads)
    table = array("q", [word for x in arrays for word in fusion.entry(host, x, False)])
    return ready._replace(recipe=way.recipe, fused=table, order=order, result=dtype,
                          shape=(*ready.shape[:-1], c.shape[-1]))
