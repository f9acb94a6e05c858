"""x @ w for few rows of x and weights of few bits, again and again: what the first call of a kind has chosen is kept,
so that a call costs some ten microseconds beside the product, with an epilogue, too. So are large arrays of bf16 and
f16 multiplied, which are read once, too.

Calls with other options, more rows or other layouts go the way of prologues (rules/weights.py), to the same kernels.
"""
from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.api import dispatch, fused
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Scaled
from tilewright.formats.table import get
from tilewright.kernels.cpu import jobs
from tilewright.plans import few_rows, lowering
from tilewright.plans.cpu import Strides
from tilewright.rules import arguments, fusing, prologues, weights
from tilewright.rules.arguments import F32
from tilewright.rules.call import Call
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool

Array = Any
HALF = tuple(get(name).dtype for name in ("bf16", "f16"))
MOST = 1024                 # kinds of calls that are kept


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
    kept: Any = None        # the epilogue, of whose function a key has the id


_ready: dict[Any, Ready | None] = {}


def product(a: Any, b: Any, out: Any, trans_b: Any, threads: Any, epilogue: Any = None, operands: Any = None
            ) -> Array | None:
    """matmul(a, b, out) with no other option but an epilogue, b being a Scaled, a Quantized or an array of 16 bits;
    None, and nothing done, where it is not one of the calls that are kept."""
    if type(a) is not np.ndarray or not a.ndim or a.dtype not in weights.FLOATS or not isinstance(trans_b, (bool, str)):
        return None
    arrays = _arrays(b)
    if not all(type(x) is np.ndarray and x.flags.aligned for x in arrays):
        return None
    threads = pool.get_num_threads() if threads is None else threads
    key: tuple[Any, ...] = (a.shape, a.dtype, trans_b, threads, type(b),
                            *[word for x in arrays for word in (x.dtype, x.shape, x.strides)])
    if type(b) is Scaled:
        key = (*key, b.zeros is None, b.group, b.nibbles)
    elif type(b) is Quantized:
        key = (*key, b.format.name, b.axis, b.shape, b.tensor_scale)
    given: list[Array] = []
    if epilogue is not None:
        known = repeats.functions((epilogue,), operands)
        given = [np.asarray(x) if type(x) in (int, float) else x for x in (operands or {}).values()] if known else []
        if known is None or a.ndim < 2 or not all(type(x) is np.ndarray and x.flags.aligned for x in given):
            return None
        if a.ndim > 2 and any(x.ndim > 1 for x in given):
            return None
        key = (*key, known, *[word for x in given for word in (x.dtype, x.shape, x.strides)])
    try:
        found = _ready[key]
    except KeyError:
        found = _make(key, b, a, trans_b, threads, epilogue, dict(zip(operands or (), given)))
    except TypeError:       # threads that cannot be hashed
        return None
    if found is None:
        return None
    stored = F32 if epilogue is None else found.result
    direct = (out is not None and type(out) is np.ndarray and out.dtype == stored == found.result
              and out.shape == found.shape and out.flags.c_contiguous and out.flags.behaved
              and not any(np.may_share_memory(out, x) for x in (a, *arrays, *given)))
    cast = (epilogue is None and type(out) is np.ndarray and out.shape == found.shape and out.flags.behaved
            and out.dtype in weights.FLOATS)
    if out is not None and not direct and not cast:
        return None
    x = dispatch.cpu().rows.read(found.recipe, a.reshape(-1, a.shape[-1]))
    c = out if direct else np.empty(found.shape, stored)
    recipe, table = found.recipe, found.table.copy()
    for row, beside in zip(table, arrays[1:]):
        row[0] = recipe.address(beside)
    left, right = recipe.address(x), recipe.address(arrays[0])
    if found.swapped:
        left, right = right, left
    words = repeats.filled(found.fused, found.order, [recipe.address(x) for x in given]) if given else None
    of_b = recipe.address(table)
    addresses = jobs.Beside(words.buffer_info()[0] if words else 0, *((of_b, 0) if found.swapped else (0, of_b)))
    recipe.run(left, right, recipe.address(c), found.factor, 0.0, addresses)
    if direct or epilogue is not None:
        return c
    with np.errstate(all="ignore"):
        c = c if found.result == F32 else arguments.rounded(c, found.result)
        if out is None:
            return c
        np.copyto(out, c, casting="same_kind")
    return out


def _arrays(b: Any) -> tuple[Any, ...]:
    """The arrays of elements, and what is beside them in the order of prologues."""
    if type(b) is np.ndarray:
        return (b,)
    return (b.elements, b.scales) if type(b) is Quantized or b.zeros is None else (b.elements, b.scales, b.zeros)


def _make(key: Any, b: Any, a: Array, trans_b: Any, threads: Any, epilogue: Any, operands: Any) -> Ready | None:
    with forks.building:
        engine = forks.imported("tilewright.runtime.cpu.engine")
        if not any(x is _ready for x in engine.chosen):
            engine.chosen.append(_ready)
        if len(_ready) >= MOST:
            _ready.clear()
        found = _of(b, a, arguments.layout(trans_b, "b"), arguments.thread_count(threads) or 1, epilogue, operands)
        _ready[key] = found
        return found


def _of(b: Any, a: Array, trans: str, threads: int, epilogue: Any, operands: dict[str, Array]) -> Ready | None:
    one = np.broadcast_to(np.empty((1, a.shape[-1]), a.dtype), (a.size // max(a.shape[-1], 1), a.shape[-1]))
    call = Call(one, b, trans_b=trans, threads=threads)
    engine, preparation = (forks.imported(f"tilewright.runtime.cpu.{x}") for x in ("engine", "preparation"))
    plain = type(b) is np.ndarray
    if not (one.size and one.shape[0] <= few_rows.MANY and min(b.strides) == b.itemsize
            if plain else weights.few(call, "b")):
        return None
    w = weights.of(b, trans, "b")
    if w is None or w.shape[0] != a.shape[-1]:
        return None
    if plain:
        result = prologues.multiplied({"a": prologues.format_of(a.dtype, "a"), "b": w.source}, {"b": "float"})["b"]
        call = call._replace(b=w.elements, trans_b="n", prologue_b=weights.made(w, "b", result))
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
        product = lowering.Product(m, n, k, kind, source, "f32", at, threads, added_in="f32",
                                   prologue_b=prologue.text)
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
    if any(host.address_of(x) != host.address_of(operands[y.name]) for x, y in zip(arrays, f.epilogue.operands)):
        return None         # a copy was read
    c = np.empty(f.shapes[0], dtype)
    sums = ways.Sums(call.a, call.b, F32, threads, target=ready.recipe.target)
    finish = ways.finish_of(f.epilogue, [c], arrays, "f32", False)
    way = ways.at_once(sums, c, ways.Way(finish, False, jobs.TALL, jobs.WIDE * ready.recipe.target.lanes(4),
                                         ready.recipe, ready.swapped, True), host)
    if way.after:
        return None
    order = tuple(list(operands).index(y.name) for y in f.epilogue.operands)
    table = array("q", [word for x in arrays for word in fusion.entry(host, x, False)])
    return ready._replace(recipe=way.recipe, fused=table, order=order, result=dtype, kept=(epilogue, f.epilogue),
                          shape=(*ready.shape[:-1], c.shape[-1]))
