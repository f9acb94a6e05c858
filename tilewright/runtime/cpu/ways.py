"""How a product with an epilogue is computed: by which plan, and what takes finished sums to C and further results."""
from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks, formats
from tilewright.expressions.function import Epilogue
from tilewright.expressions.numerics import PLAIN, HasNumerics, Numerics
from tilewright.expressions.program import INDICES, Result
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import Finish
from tilewright.plans import few_rows, invariant as invariants, lowering, semirings
from tilewright.plans.cpu_shape import Strides
from tilewright.plans.cpu_tiles import STREAMED
from tilewright.plans.lowering import Product
from tilewright.plans.prologues import read_once
from tilewright.plans.words import TILE_WORDS
from tilewright.rules.arguments import Array
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu import engine, packed, preparation, workspace
from tilewright.runtime.cpu.engine import Planned, format_of, strides
from tilewright.runtime.cpu.host import Host, host
from tilewright.runtime.cpu.recipe import FORK_FLOPS, Prepares, Recipe
from tilewright.targets import CpuTarget, detect

Prologues = Mapping[str, Prepared]

WORK = 16               # operations on an element of C, of which a pass has threads share those of a matrix


class Way(NamedTuple):
    """How a product and its epilogue are computed. Without a recipe: the sums first, then the tiles of a matrix;
    `after`: the same with a recipe for the sums."""
    finish: Finish
    exchanged: bool                     # whether rows of C are columns to `emit_finish`
    tall: int                           # rows and columns of the tiles, as it meets them
    wide: int
    recipe: Recipe | None = None
    swapped: bool = False
    after: bool = False


class _Sums(NamedTuple):
    """What an epilogue is of: a [m, k], b [k, n] of formats that the engine takes, or both with a leading axis."""
    a: Array
    b: Array
    dtype: np.dtype[Any]                # in which products are added up
    threads: int
    plan: Any = None
    target: CpuTarget | None = None
    word: str | None = None
    b_packed: packed.Packed | None = None      # of which b is a view of the stand-in
    beside: bool = False                # whether C is among the operands, so that sums are not added up there
    numerics: Numerics = PLAIN          # without the epilogue
    prepare: Prepares = (None, None)    # the prologues as they are recorded
    counts: tuple[int, ...] = ()        # how many axes batch, m, n and k have, if a and b have more than matrices


class Sums(HasNumerics, _Sums):
    """Operands of which an epilogue makes results."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        if self.counts:
            nb, nm, _, nk = self.counts
            return prod(self.a.shape[nb : nb + nm]), prod(self.b.shape[nb + nk :]), prod(self.b.shape[nb : nb + nk])
        return self.a.shape[-2], self.b.shape[-1], self.a.shape[-1]

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axis, if there is one."""
        return self.a.shape[: self.counts[0] if self.counts else -2]


def with_prologues(of: Sums, prologues: Prologues) -> Sums:
    a, b = (prologues.get(role) for role in "ab")
    texts = {f"prologue_{role}": x.prologue.text for role, x in prologues.items()}
    return of.with_numerics(**texts)._replace(prepare=(preparation.recorded("a", a), preparation.recorded("b", b)))


def main_of(results: list[Array | None], epilogue: Epilogue) -> Array | None:
    """C."""
    return None if epilogue.main is None else results[epilogue.main]


def way_for(of: Sums, results: list[Array | None], operands: list[Array], epilogue: Epilogue) -> Way:
    first = -2 * (not of.counts)
    lie = [(x.shape, x.strides) for x in (of.a, of.b, *results) if x is not None] if of.counts else []
    key = ("epilogue", of.sizes, *lie, of.a.strides[first:], of.b.strides[first:], of.a.dtype, of.b.dtype, *of[2:],
           epilogue.text, *[(x.strides[-2:], x.dtype) for x in (*results, *operands) if x is not None])
    way: Way = forks.looked_up(engine.prepared, key, lambda: way_of(of, results, operands, epilogue))
    return way


def way_of(of: Sums, results: list[Array | None], operands: list[Array], epilogue: Epilogue, on: Host = host,
           make: type[Recipe] = Recipe) -> Way:
    """The way for such operands; only their formats and strides are read."""
    if of.counts:
        return _by_tables(of, results, operands, epilogue, on, make)
    m, n, k = of.sizes
    main = main_of(results, epilogue)
    target = of.target or detect()
    sums = format_of(of.dtype)
    kind = sums if main is None else format_of(main.dtype)
    by_columns = (main is not None and not epilogue.paired and strides_of(main)[1] != 1 and strides_of(main)[0] == 1
                  and of.invariant not in invariants.ROWS)
    c = (n, 1) if main is None else strides_of(main)
    # stored without an expression
    bare = epilogue.nothing and not of.semiring and (kind == sums or lowering.rounds(kind, sums))
    product = Product(m, n, k, format_of(of.a.dtype), format_of(of.b.dtype), kind,
                      Strides(*strides_of(of.a), *strides_of(of.b), *c), of.threads,
                      of.numerics._replace(epilogue="" if bare else epilogue.text), sums, of.beside)
    rows, columns = invariants.sizes(m, n, of.invariant)
    states = semirings.state(of.semiring) > 0           # which only panels' loops keep
    aside = kind != sums or of.beside or lowering.aside(epilogue.text)
    alike = of.a.dtype == of.b.dtype
    decoded = of.prologues != "" or (lowering.converting_pays(rows, columns, k, alike) and sums != "i64")
    wide = jobs.WIDE * target.lanes(of.dtype.itemsize)
    once = read_once(of.prologue_a, of.prologue_b, rows, columns, sums)
    plain = not (of.prologues or of.semiring or (aside and not of.beside) or bare)
    if k and not of.b_packed and (once or (plain and min(m, n) <= STREAMED)):
        direct = bare and kind == sums
        alone = product.with_numerics(epilogue="")._replace(out=sums, beside=False)
        if not direct:
            rsc, csc = strides_of(beside_c(of, by_columns))
            alone = alone._replace(strides=product.strides._replace(rsc=rsc, csc=csc))
        planned = _planned(of, alone, target)
        if of.prepare[1] is not None:
            planned = engine.decoding(planned, few_rows.Aside.of_job(of.prepare[1].READ))
        if planned.plan.algorithm in ("stream", "dots"):
            recipe = engine.ready(planned, make=make, host=on, prepare=of.prepare)
            finish = finish_of(epilogue, results, operands, sums, by_columns)
            way = Way(finish, by_columns, jobs.TALL, wide, recipe, planned.plan.swap, not direct)
            return way if direct else at_once(of, main, way, on)
    if k and (decoded or not aside or of.b_packed or states):
        prepare = of.prepare
        if by_columns and not of.b_packed:
            product, prepare = product.swapped, (prepare[1], prepare[0])
        planned = _planned(of, product, target)
        shape, plan = planned.shape, planned.plan
        if plan.algorithm in ("packed", "in_place") and not (shape.tiles and TILE_WORDS[shape.dtype].wider):
            swapped = (by_columns and not of.b_packed) != plan.swap
            exchanged = swapped != shape.tiles
            finish = finish_of(epilogue, results, operands, sums, exchanged)
            recipe = engine.ready(planned, prepacked="b" if of.b_packed else "", make=make, host=on,
                                  finish=None if bare else finish, prepare=prepare)
            return Way(finish, exchanged, *recipe.tile, recipe, swapped)
    finish = finish_of(epilogue, results, operands, sums, by_columns)
    return Way(finish, by_columns, jobs.TALL, wide)


def _by_tables(of: Sums, results: list[Array | None], operands: list[Array], epilogue: Epilogue, on: Host,
               make: type[Recipe]) -> Way:
    """The way of operands that are packed by tables."""
    tables, sums = forks.imported("tilewright.runtime.cpu.contraction"), format_of(of.dtype)
    main = main_of(results, epilogue)
    c = np.empty((*of.lead, *of.sizes[:2]), of.dtype) if main is None else main
    kind = format_of(c.dtype)
    bare = epilogue.nothing and (kind == sums or lowering.rounds(kind, sums))
    problem, splits = tables.fused(of.a, of.b, c, of.counts, of.threads, of.target or detect(), of.numerics._replace(
        epilogue="" if bare else epilogue.text), sums, of.beside)
    finish = finish_of(epilogue, results, operands, sums, False)
    recipe: Recipe = tables.recipe(problem, splits, of.plan, make, on, None if bare else finish)
    return Way(finish, False, *recipe.tile, recipe)


def as_matrix(of: Sums, c: Array) -> Array:
    """A result as a matrix, or a stack of them: of one with more axes the first elements."""
    extra = c.ndim - len(of.lead) - 2
    return c[(..., *(0,) * (extra + 2), None, None)] if extra > 0 else c


def at_once(of: Sums, main: Array | None, way: Way, on: Host) -> Way:
    """A way by passes after a product that adds up beside C: as one job, if C is written along its rows, or columns, as
    the passes are, and the product may leave the sums so."""
    assert way.recipe is not None
    if not way.recipe.takes_c or (main is not None and strides_of(main)[not way.exchanged] != 1):
        return way
    m, n, _ = of.sizes
    rows, cols = (n, m) if way.exchanged else (m, n)
    finishing, address = passes(of, main, way, on)
    ldc = cols if main is None else strides_of(main)[way.exchanged]
    row_parts, col_parts = shares(rows, cols, of.threads)
    fields = {"m": rows, "n": cols, "lds": cols, "ldc": ldc, "finish": address, "row_parts": row_parts,
              "col_parts": col_parts}
    recipe = way.recipe.finished(way.finish, finishing, rows * cols * of.dtype.itemsize, fields)
    return way._replace(recipe=recipe, after=False)


def passes(of: Sums, main: Array | None, way: Way, on: Host) -> tuple[int, int]:
    """What finishes all tiles, and one of them."""
    kind, target = format_of(of.dtype), of.target or detect()
    out = "" if main is None or main.dtype == of.dtype else format_of(main.dtype)
    return (on.address("finish:emit_finishing", target, kind, way.wide, out),
            on.address("finish:emit_finish", target, kind, way.wide, out, *way.finish))


def shares(rows: int, cols: int, threads: int) -> tuple[int, int]:
    """In how many parts the rows and the columns of C are finished."""
    parts = threads if rows * cols * WORK >= FORK_FLOPS else 1
    row_parts = min(parts, -(-rows // jobs.TALL))
    return row_parts, -(-parts // row_parts)


def beside_c(of: Sums, exchanged: bool) -> Array:
    """A matrix for sums that are finished by passes, which read it as they write C."""
    m, n, _ = of.sizes
    sums = workspace.scratch((*of.a.shape[:-2], *((n, m) if exchanged else (m, n))), of.dtype)
    return sums.swapaxes(-1, -2) if exchanged else sums


def partials(word: str, result: Result, rows: int, row_panels: int, columns: int, wide: int, halves: int = 1,
             lead: tuple[int, ...] = ()) -> Array:
    """An array for the numbers that tiles of C leave of a reduction, as Finish's `word` has them and finish.py's `_put`
    stores them: [rows, panels of columns, fields], or [panels of rows, fields, columns]. The fields are a number, and
    its index if that is kept. `halves`: columns of sums for one of C."""
    format, _, along = word.partition(":")
    fields = 1 + (result.how in INDICES)
    size = (rows, -(-columns // wide), fields) if along == "rows" else (row_panels, fields, columns // halves)
    return workspace.scratch((*lead, *size), formats.FORMATS[format].dtype)


def _planned(of: Sums, product: Product, target: CpuTarget) -> Planned:
    if of.b_packed is not None:
        return of.b_packed.planned(product)
    lowered = lowering.lower(product, target, of.word)
    return Planned(*lowered, of.plan) if of.plan else engine.planned(lowered)


def strides_of(x: Array) -> tuple[int, int]:
    return strides(x[0] if x.ndim == 3 else x)


def finish_of(epilogue: Epilogue, results: list[Array | None], operands: list[Array], sums: str, exchanged: bool
              ) -> Finish:
    """How operands and results lie, for emit_finish."""
    wide = (sums in ("f64", "i64") or epilogue.reads_wide
            or any(x is not None and format_of(x.dtype) == "f64" for x in results))
    wide_integers = any(format_of(x.dtype) in ("i64", "u64", "u32") for x in operands)
    float_format, int_format = "f64" if wide else "f32", "i64" if sums in ("f64", "i64") or wide_integers else "i32"
    kinds = epilogue.expression.computed
    read = tuple(f"{format_of(x.dtype)}:{_how(x, exchanged)}" for x in operands)
    written = []
    for at, (x, result, kind) in enumerate(zip(results, epilogue.expression.results, kinds, strict=True)):
        if at == epilogue.main:
            written.append("-")
        elif x is None:
            written.append(f"{float_format if kind == 'float' else int_format}:{along(result.reduced, exchanged)}")
        else:
            how = _how(x, exchanged)
            written.append(f"{format_of(x.dtype)}:{'vector' if how == 'vector' else 'any'}")
    return Finish(epilogue.expression.text, read, tuple(written), wide)


def _how(x: Array, exchanged: bool) -> str:
    (rows, cols), (row, column) = x.shape[-2:], x.strides[-2:]
    if exchanged:
        rows, cols, row, column = cols, rows, column, row
    if column == 0 or cols == 1:
        return "scalar" if row == 0 or rows == 1 else "column"
    return "vector" if column == x.itemsize else "any"


def along(reduced: str, exchanged: bool) -> str:
    return "rows" if reduced.startswith("row") != exchanged else "columns"
