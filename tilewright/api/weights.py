"""x @ w for few rows of x and weights of few bits, which are read once, as large arrays of bf16 and f16 are; with an
epilogue, too.

Calls with other options, more rows or other layouts go the way of prologues (rules/weights.py), to the same kernels.
"""
from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.api import dispatch, fused
from tilewright.expressions.numerics import Numerics
from tilewright.formats.quantized import Quantized
from tilewright.formats.table import get
from tilewright.kernels.cpu import jobs
from tilewright.plans import lowering
from tilewright.plans import prologues as prologues_of_plans
from tilewright.plans.cpu import CpuPlan, Strides
from tilewright.plans.words import BY_NAME
from tilewright.rules import arguments, fusing, prologues, signature, weights
from tilewright.rules.arguments import F32
from tilewright.rules.call import Call
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool, program

Array = Any
BF16 = get("bf16").dtype
# Rows for which a large array of 16 bits is read once, by registers, [k, n] and [n, k]: more are packed. On a Zen 4 6
# and 8 rows took 0.4 and 1.06 of the time of packing on AVX2 [k, n], 0.5 and 0.8 [n, k], 0.35 and 0.45 and 0.85 and 1.2
# with AVX-512. 4 is what was never slower elsewhere.
FEW = {16: {"rows": 6, "columns": 8}, 32: {"rows": 8, "columns": 6}}
MANY = 64                   # the same of bf16, where an instruction multiplies it, [n, k]
# Rows from which weights of few bits are decoded for all of them at once. On a Zen 4 4 rows by i8 took 0.7 of the time
# of decoding in registers, by 4 bits 1.1; 8 rows 0.4, 16 0.5.
DECODED = {"i8": 4}
# Rows from which tiles multiply what has to be decoded, or interleaved, for them. On a Xeon with one thread one row and
# four rows by i8, i4, u4 and mxfp4 of 4096 x 11008 took 2.0 to 2.5 and 5.5 to 7.3 ms without tiles, i4 by look-ups of
# f32 1.9 where by pairs 2.6; with tiles 2.6 to 5, as 16 rows do; and bf16 [k, n] 4.2 and 6.0, with tiles 5.5 to 7.
IN_TILES = 3
LARGE = 1 << 20             # numbers of such
HALF = tuple(get(name).dtype for name in ("bf16", "f16"))
PAIRED = 128                # weights in a block of kernels/cpu/weight_pairs.py


class Ready(NamedTuple):
    """What multiplies by some weights, for shapes, strides and formats of x and w."""

    recipe: Any             # runtime.cpu.recipe.Recipe
    table: Array            # of what is beside the elements, of which addresses differ from call to call
    swapped: bool
    shape: tuple[int, ...]  # of the result
    result: np.dtype[Any]
    factor: float
    kernel: str             # that takes bf16: "pairs", of rearranged rows, "plain", "tiles" or "stream"; "": f32
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
    kind = BF16 if ready.kernel else F32
    view = None if ready.kernel != "pairs" and a.dtype == kind and a.flags.c_contiguous else repeats.View.of(a)
    program.take(partial(_step, ready, view, len(beside)), (a, *beside, *given.values(), c))
    if direct or epilogue is not None:
        return c
    c = program.rounded(c, ready.result)
    if out is None:
        return c
    program.do(program.cast, out, c)
    return out


def taken(b: Any) -> bool:
    """Whether this is a right operand for `product`."""
    large = type(b) is np.ndarray and b.dtype in HALF and b.ndim == 2 and b.size >= LARGE
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
            a = view.at(left)
            x = (arranged(a.reshape(-1, a.shape[-1])) if ready.kernel == "pairs" else
                 np.ascontiguousarray(a, BF16 if ready.kernel else F32))
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
    return (b.elements, b.scales) if type(b) is Quantized or b.zeros is None else (b.elements, b.scales, b.zeros)


def arranged(x: Array) -> Array:
    """Rows of bf16 as kernels/cpu/weight_pairs.py reads them: [m, blocks, shift, lane, half], with zeros beyond k."""
    m, k = x.shape
    blocks = -(-k // PAIRED)
    if k % PAIRED:
        whole = np.zeros((m, blocks * PAIRED), np.uint16)
        whole[:, :k] = x.view(np.uint16)
    else:
        whole = np.ascontiguousarray(x).view(np.uint16)
    return np.ascontiguousarray(whole.reshape(m, blocks, 16, 2, 4).transpose(0, 1, 4, 2, 3))


def _of(b: Any, a: Array, trans: str, threads: int, epilogue: Any, operands: dict[str, Array]) -> Ready | None:
    one = np.broadcast_to(np.empty((1, a.shape[-1]), a.dtype), (a.size // max(a.shape[-1], 1), a.shape[-1]))
    call = Call(one, b, trans_b=trans, threads=threads)
    engine, preparation = (forks.imported(f"tilewright.runtime.cpu.{x}") for x in ("engine", "preparation"))
    plain = type(b) is np.ndarray
    if not (one.size and one.shape[0] <= MANY and min(b.strides) == b.itemsize if plain else weights.few(call, "b")):
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
    m, (k, n) = one.shape[0], w.shape
    host = dispatch.cpu().host
    rsb, csb = engine.strides(call.b)
    # a job does not say how many rows there are: kernels for bf16 take more of them than others do
    made = lowering.Product(min(m, prologues_of_plans.MOST), n, k, "f32",
                            of.prologue.source.removesuffix(weights.HALVES), "f32", Strides(k, 1, rsb, csb, n, 1),
                            threads, Numerics(prologue_b=of.prologue.text), "f32")
    prepare = preparation.recorded("b", of)
    lowered = lowering.lower(made, engine.amx.permitted(engine.detect()))
    kernel = by_bf16(lowered, prepare, a.dtype)
    most = FEW.get(lowered.target.tile_registers, {}).get(lowered.shape.b, 4)
    if plain and m > most and (not kernel or (kernel == "plain" and 2*m*k > lowered.target.l2 // 2)):
        return None
    planned = engine.Planned(*lowered, _plan(kernel, lowered)) if kernel in FIXED else engine.planned(lowered)
    if planned.plan.algorithm not in ("stream", "dots") or (w.factor != 1 and planned.plan.algorithm == "stream"):
        return None
    recipe = engine.ready(planned, prepare=(None, prepare))
    source, target = of.prologue.source, planned.target.extended
    if kernel == "pairs" and planned.plan.algorithm != "dots":
        kernel = ""
    elif kernel == "pairs":
        recipe = recipe.instead(host.address("weight_pairs:emit_pairs", target, recipe.plan.mr, m, source,
                                             tuple(prepare)), ldb=-(-k // PAIRED) * PAIRED // 2)
    elif kernel:
        emitter, args, words = FIXED[kernel](m, k, source, tuple(prepare))
        recipe = recipe.instead(host.address(emitter, target, *args), tiles=words)
    table = preparation.table(host, "b", of)
    swapped = planned.plan.swap
    _, dtype = arguments.dtypes(one, np.empty(0, get(of.prologue.result).dtype), None, None)
    ready = Ready(recipe, table, swapped, (*a.shape[:-1], n), dtype, w.factor, kernel)
    return ready if epilogue is None else _fused(ready, call, of, threads, epilogue, operands)


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


# Kernels whose plan is that they are taken: emitter, arguments, and words for rows of x as each thread rearranges them,
# for m rows by weights of this format, and how they are decoded.
FIXED: dict[str, Callable[[int, int, str, tuple[Any, ...]], tuple[str, tuple[Any, ...], int]]] = {
    "plain": lambda m, k, source, how: ("weight_pairs:emit_plain_pairs", (m,), 0),
    "decoded": lambda m, k, source, how: ("decoded_pairs:emit_decoded_pairs", (m, source, how), m*jobs.row_pitch(k)),
    "tiles": lambda m, k, source, how: ("weight_tiles:emit_tiles", (m, source, how), jobs.tile_words(k, m)),
    "stream": lambda m, k, source, how: ("stream_tiles:emit_stream_tiles", (m,), jobs.tile_words(k, m))}


def _plan(kernel: str, lowered: Any) -> CpuPlan:
    if kernel == "stream":
        return CpuPlan("stream", lowered.shape.m, 1, jc_ways=lowered.shape.threads)
    return CpuPlan("dots", 1, lowered.shape.m, ic_ways=lowered.shape.threads, swap=True)


def by_bf16(lowered: Any, prepare: Any, dtype: Any) -> str:
    """Which kernel multiplies bf16 by these weights: with AMX "tiles", [n, k], or "stream", of bf16 [k, n]; [n, k] by
    the instruction for pairs of bf16 "plain", of bf16, and "pairs" and "decoded", of others, for few rows of x and for
    more; "": none."""
    shape, target = lowered.shape, lowered.target.extended
    if dtype != BF16 or target.lanes(4) != 16:
        return ""
    if shape.b != "columns":
        return "stream" if shape.source_b == "bf16" and target.has("amx-bf16") and shape.m >= IN_TILES else ""
    source = prologues_of_plans.read(shape.prologue_b).source
    tiles, pairs, blocks = (forks.imported(f"tilewright.kernels.cpu.weight_{x}") for x in ("tiles", "pairs", "blocks"))
    taken, paired = blocks.takes(source, tuple(prepare)), target.has("avx512bf16")
    fast = paired and not target.model.startswith(BY_NAME["bf16x2"].slow)
    few = shape.m < (2 if source == "bf16" else IN_TILES)
    if taken and target.has("amx-bf16") and shape.n >= tiles.LEAST and not few:
        return "tiles"
    if source == "bf16":
        return "plain" if fast else ""
    if taken and fast and shape.m >= DECODED.get(source, 5) and shape.n >= 4:
        return "decoded"
    if paired and not fast and shape.m == 1 and source == "i4x2" and len(prepare.READ) < 2:
        return ""                                   # look-ups of f32 are faster
    return "pairs" if paired and source.endswith(weights.HALVES) and pairs.takes(tuple(prepare)) else ""
