"""Products with an epilogue: the expression is evaluated on tiles of finished sums, where the plan's loops store them.

    packed, in_place    after the last block of k each tile goes through `emit_finish`, while it is in L1
    stream, dots        they add up beside C until the end, and the same job finishes the tiles then (`emit_finished`)
    others              a pass of its own does that, on all threads, after a product that adds up in C or beside it:
                        products too small for panels whose C has another format than the sums, and where k is 0

Operands and further results are found in a table of addresses and strides. Of a reduction every tile leaves the numbers
of its rows, or columns, and these are combined in the order of the tiles at the end: 1/16 of C or less, by NumPy. The
order depends on the plan's tiles, not on threads.
"""
from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from tilewright.expressions.function import Epilogue
from tilewright.expressions.numerics import Numerics
from tilewright.expressions.program import REDUCED, REDUCTIONS
from tilewright.kernels.cpu import jobs
from tilewright.plans import lowering
from tilewright.rules.arguments import Array
from tilewright.runtime import repeats
from tilewright.runtime.cpu import amx, engine, packed, pool, preparation, program, ways, workspace
from tilewright.runtime.cpu.engine import Planned, format_of
from tilewright.runtime.cpu.host import SWAPPED, Host, host
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.runtime.program import Make, Run
from tilewright.targets import CpuTarget, detect


def gemm(a: Array, b: Array, results: list[Array | None], reduced: Sequence[Array], operands: list[Array],
         epilogue: Epilogue, sums: np.dtype[Any], *, threads: int | None = None, plan: Any = None,
         target: CpuTarget | None = None, algorithm: str | None = None, b_packed: packed.Packed | None = None,
         semiring: str = "", prologues: ways.Prologues | None = None, invariant: str = "",
         counts: tuple[int, ...] = ()) -> None:
    """The results of the epilogue.

    results     [m, n] ([m, n/2] of pairs) for each result that is no reduction, None for those that are. They share
                nothing with a and b, nor with operands that are not read at the same elements only
    reduced     [m] or [n] for each reduction
    operands    broadcast to that, with strides of 0 where they have but one number
    prologues   by role, "a" or "b": what packing makes of elements, and arrays beside them that are broadcast to [m, k]
                or [k, n], along k with one number for each of their blocks
    counts      of a and b that are packed by tables how many axes batch, m, n and k have
    sums        the dtype in which products are added up; a, b, threads, plan, target, semiring, invariant and
                algorithm are those of engine.gemm and gemm_by

    All may have a leading axis.
    """
    main = ways.main_of(results, epilogue)
    shared = main is not None and any(np.may_share_memory(main, x) for x in operands)
    of = ways.with_prologues(ways.Sums(
        a, b, sums, threads or pool.get_num_threads(), plan, amx.permitted(target or detect()), None, b_packed, shared,
        Numerics(semiring=semiring, invariant=invariant), counts=counts), prologues or {})
    if algorithm is not None:
        assert of.target is not None
        of = of._replace(word=lowering.algorithm_word(algorithm, format_of(a.dtype), format_of(b.dtype), *of.sizes,
                                                      1 if invariant else of.threads, of.target))
    recorder, program.preparing.recorder = program.preparing.recorder, None         # it is one step
    try:
        reductions = compute(of, results, operands, epilogue, prologues=prologues)
        special = reductions is None            # an element is none of those that the algorithm's words hold
        if reductions is None:
            reductions = compute(of._replace(word=""), results, operands, epilogue, prologues=prologues)
    finally:
        program.preparing.recorder = recorder
    _store(reduced, reductions)
    if special or not all(x.size for x in (a, b, *(y for y in results if y is not None))[2 * (not of.sizes[2]):]):
        program.not_repeated()
    elif recorder is not None:
        _note(recorder, of, results, reduced, operands, epilogue, prologues or {})


def _store(reduced: Sequence[Array], numbers: list[Array] | None) -> None:
    for x, y in zip(reduced, numbers or (), strict=True):
        x[...] = y.reshape(x.shape)


def compute(of: ways.Sums, results: list[Array | None], operands: list[Array], epilogue: Epilogue, on: Host = host,
            make: type[Recipe] = Recipe, prologues: ways.Prologues | None = None) -> list[Array] | None:
    """What `gemm` says; None, and results that mean nothing, if an element has no such terms as the word stands for."""
    m, n, _ = of.sizes
    lead = of.lead if of.counts else of.a.shape[:-2]    # of matrices without a call
    if not (m and n and all(lead)):                     # as NumPy reduces nothing
        nothing = np.empty((*lead, m, n // (1 + epilogue.paired)), of.dtype)
        return [REDUCED[x.reduced][1](nothing, axis=REDUCED[x.reduced][0]) for x in epilogue.expression.results
                if x.reduced]
    way = (ways.way_for if on is host else partial(ways.way_of, on=on, make=make))(of, results, operands, epilogue)
    table = [entry(on, x, way.exchanged) for x in operands]
    return _by_way(of, way, results, table, epilogue, on, make, prologues)


def _by_way(of: ways.Sums, way: ways.Way, results: list[Array | None], entries: Sequence[tuple[int, ...]],
            epilogue: Epilogue, on: Host = host, make: type[Recipe] = Recipe,
            prologues: ways.Prologues | None = None) -> list[Array] | None:
    """`compute` for operands with these entries."""
    m, n, _ = of.sizes
    rows, cols = (n, m) if way.exchanged else (m, n)
    lead = of.lead if of.counts else of.a.shape[:-2]
    main, table = ways.main_of(results, epilogue), [*entries]
    kept: list[tuple[str, str, Array]] = []
    for x, result, word in zip(results, epilogue.expression.results, way.finish.WRITTEN, strict=True):
        if word == "-":
            continue
        if x is None:
            along = word.partition(":")[2]
            x = ways.partials(word, result, rows, -(-rows // way.tall), cols, way.wide, 1 + epilogue.paired, lead)
            kept.append((result.how, along, x))
            table.append(entry(on, x[..., 0] if along == "rows" else x[..., 0, :], False))
        else:
            table.append(entry(on, x, way.exchanged))
    words = np.array(table, np.int64).reshape(-1, len(jobs.OPERAND))
    tables = [preparation.table(on, role, (prologues or {}).get(role)) for role in "ab"]       # kept as long as it runs
    job = jobs.Beside(*[on.of_table(x) if x.size else 0 for x in (words, *tables)])
    if _run(of, main, way, job, on, make):
        return None
    return [of_tiles(*tiles) for tiles in kept]


def of_tiles(how: str, along: str, x: Array) -> Array:
    """What the numbers of all tiles come to, along their axis."""
    parts = (x[..., i] if along == "rows" else x[..., i, :] for i in range(x.shape[-1 if along == "rows" else -2]))
    axis, numbers, *indices = -1 if along == "rows" else -2, *parts
    reduced: Array = REDUCTIONS[how](numbers, axis=axis)
    if indices:
        positions = indices[0].view(f"i{x.itemsize}")
        reduced = np.take_along_axis(positions, np.expand_dims(reduced, axis), axis).squeeze(axis)
    return reduced


def _run(of: ways.Sums, main: Array | None, way: ways.Way, beside: jobs.Beside, on: Host, make: type[Recipe]) -> bool:
    """Whether results mean nothing, as in `compute`."""
    if way.recipe is None:
        _by_passes(of, main, way, beside.operands, on, make)
        return False
    c = workspace.scratch((*of.lead, 1, 1), of.dtype) if main is None else main
    if of.counts:
        c = ways.as_matrix(of, c)
    operands, beside = beside.operands, beside.swapped if way.swapped else beside
    if not way.after:
        return engine.run(way.recipe, way.swapped, of.a, of.b, c, 1.0, 0.0, beside)
    sums = ways.beside_c(of, way.exchanged)
    engine.run(way.recipe, way.swapped, of.a, of.b, sums, 1.0, 0.0, beside._replace(operands=0))
    finish_passes(of, sums, main, way, operands, on)
    return False


def entry(on: Host, x: Array, exchanged: bool) -> tuple[int, int, int, int]:
    """OPERAND: address and strides, as emit_finish meets rows and columns."""
    row, column = [stride // x.itemsize for stride in (x.strides[:-3:-1] if exchanged else x.strides[-2:])]
    return on.address_of(x), row, column, x.strides[0] // x.itemsize if x.ndim == 3 else 0


# ---- again, for other arrays of the same formats, sizes and strides

def _note(recorder: program.Recorder, of: ways.Sums, results: list[Array | None], reduced: Sequence[Array],
          operands: list[Array], epilogue: Epilogue, prologues: ways.Prologues) -> None:
    """Take all that `gemm` has done as one step of the call."""
    way, stored = ways.way_for(of, results, operands, epilogue), [x for x in results if x is not None]
    recipe, arrays = way.recipe, [*stored, *reduced, *(y for x in prologues.values() for y in x.arrays)]
    after = way.after or len(results) > 1 or reduced
    x, y = (of.b.swapaxes(-1, -2), of.a.swapaxes(-1, -2)) if way.swapped else (of.a, of.b)
    alone = recipe is not None and recipe.takes_c and not after and (not recipe.rows or (recipe.rounds(stored[0]) and
                                                                     recipe.reads(engine.few(recipe, x, y))))
    many = of.a.ndim == 3 or bool(of.counts)
    if recipe is not None and alone and not (recipe.plan.copy and of.a.ndim == 3) and not (
            prologues and (many or recipe.plan.copy)):
        c = ways.as_matrix(of, stored[0])
        rows: dict[str, Any] = {"operands": [entry(host, z, way.exchanged)[1:] for z in operands]} if operands else {}
        for role, prepared in prologues.items():
            rows[f"{role.translate(SWAPPED) if way.swapped else role}_beside"] = preparation.rows(role, prepared)
        read = [*operands, *(z for prepared in prologues.values() for z in prepared.arrays)]
        engine.note(recipe, way.swapped, x, y, c, 1.0, 0.0, engine.steps_of(x, y, c), read, rows,
                    tuple(z.name for z in epilogue.reads))
        return
    make = _by_views(of, way, results, reduced, arrays, operands, epilogue, prologues)
    # an operand without elements is nowhere: it may stand for one that is where the result is
    recorder.step(make, (*[x if x.size else arrays[0] for x in (of.a, of.b)], *operands, *arrays))


def _by_views(of: ways.Sums, way: ways.Way, results: list[Array | None], reduced: Sequence[Array],
              arrays: Sequence[Array], operands: list[Array], epilogue: Epilogue, prologues: ways.Prologues) -> Make:
    """By all of the way. `arrays`: results, reductions, and what prologues read."""
    none, count, numbers = np.empty((0, 0), of.dtype), 2 + len(operands), len(reduced)
    alone = of._replace(a=none, b=none)                 # which keeps no memory
    written = [x is not None for x in results]
    before = {role: (x._replace(arrays=()), len(x.arrays)) for role, x in prologues.items()}
    strides = [entry(host, x, way.exchanged)[1:] for x in operands]
    views = [*map(repeats.View.of_array, (of.a, of.b, *arrays))]

    def make(order: tuple[int, ...]) -> Run:
        places = program.places_of(views, (*order[:2], *order[count:]))

        def run(at: list[int], arrays: Any, outs: Any, alpha: float, stream: int) -> bool:
            a, b, *others = [np.ndarray(shape, dtype, memory(at[i] - first), first, steps)
                             for i, shape, dtype, memory, first, steps in places]
            left = iter(others)
            stored = [next(left) if x else None for x in written]
            into = [*islice(left, numbers)]
            now = {role: x._replace(arrays=(*islice(left, n),)) for role, (x, n) in before.items()}
            table = [(at[i], *steps) for i, steps in zip(order[2:count], strides)]
            result = _by_way(alone._replace(a=a, b=b), way, stored, table, epilogue, prologues=now)
            if result is not None:
                _store(into, result)
            return result is None
        return run
    return make


# ---- passes

def _by_passes(of: ways.Sums, main: Array | None, way: ways.Way, operands: int, on: Host, make: type[Recipe]) -> None:
    """The sums, in C where they can be, and then all of its tiles, each product by itself."""
    m, n, _ = of.sizes
    in_c = (main is not None and not of.beside and main.dtype == of.dtype and main.shape == (*of.a.shape[:-2], m, n)
            and main.strides[-1 - way.exchanged] == main.itemsize)
    sums = main if in_c and main is not None else ways.beside_c(of, way.exchanged)
    how: dict[str, Any] = {"threads": of.threads, "plan": of.plan, "target": of.target, "semiring": of.semiring,
                           "invariant": of.invariant}
    if of.b_packed is not None:
        engine.gemm(of.a, of.b, sums, packed=of.b_packed, threads=of.threads)
    elif not of.sizes[2]:
        sums[...] = 0
    elif on is not host:
        recipe, swapped = recipe_of_sums(of, sums, on, make)
        engine.run(recipe, swapped, of.a, of.b, sums, 1.0, 0.0)
    elif engine.gemm(of.a, of.b, sums, word=of.word, **how):        # an element has no such terms
        engine.gemm(of.a, of.b, sums, word="", **how)
    finish_passes(of, sums, main, way, operands, on)


def recipe_of_sums(of: ways.Sums, sums: Array, on: Host, make: type[Recipe]) -> tuple[Recipe, bool]:
    """For the sums by themselves; and whether it takes the operands in exchanged roles."""
    chip = of.target or detect()
    lowered, transposed, _ = engine.lowered(of.a, of.b, sums, of.threads, chip, of.word,
                                            numerics=of.numerics._replace(prologue_a="", prologue_b=""))
    planned = Planned(*lowered, of.plan) if of.plan else engine.planned(lowered)
    return engine.ready(planned, make=make, host=on), transposed != planned.plan.swap


def finish_passes(of: ways.Sums, sums: Array, main: Array | None, way: ways.Way, operands: int, on: Host) -> None:
    """The results of sums, tile by tile: of a C that passes cannot write, because nothing is contiguous along their
    tiles' rows, through another matrix."""
    if main is not None and ways.strides_of(main)[not way.exchanged] != 1:
        passed = workspace.scratch(main.shape, main.dtype)
        finish_passes(of, sums, passed, way, operands, on)
        main[...] = passed
        return
    c = sums if main is None else main
    function, address = ways.passes(of, main, way, on)
    m, n, _ = of.sizes
    rows, cols = (n, m) if way.exchanged else (m, n)
    row_parts, col_parts = ways.shares(rows, cols, of.threads)
    for index, (s, x) in enumerate(zip(sums, c) if sums.ndim == 3 else ((sums, c),)):
        s, x = (s.T, x.T) if way.exchanged else (s, x)
        fields = {"m": rows, "n": cols, "sums": on.address_of(s), "lds": s.strides[0] // s.itemsize,
                  "c": on.address_of(x), "ldc": x.strides[0] // x.itemsize, "finish": address, "operands": operands,
                  "index": index, "row_parts": row_parts, "col_parts": col_parts}
        job = array("q", [fields[name] for name in jobs.FINISH])
        count = row_parts * col_parts
        if count > 1:
            on.reserve(min(count, of.threads))
            on.run_parts(function, on.job(job), count, min(count, of.threads), 0)
        else:
            on.callable(function)(on.job(job), 0)
