"""How groups of one rounded size are multiplied: the plan, its recipe, and what finishes the sums.

Few rows by weights of few bits read these once, decode them in registers and leave sums (kernels/cpu/weights.py), which
are finished by a second list of pieces; all other groups are one run of a driver that does everything.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.expressions.function import Epilogue
from tilewright.expressions.numerics import Numerics
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import Finish
from tilewright.plans import choose, lowering, prologues
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import COMPLEX, Strides
from tilewright.plans.cpu_tiles import STREAMED
from tilewright.plans.lowering import Product
from tilewright.rules import shapes
from tilewright.rules.arguments import Array
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu import amx, engine, preparation, ways
from tilewright.runtime.cpu.engine import Planned, format_of
from tilewright.runtime.cpu.host import Host, host
from tilewright.runtime.cpu.packed import Packed
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.targets import CpuTarget, detect

COLUMNS_AT_ONCE = 64        # of C, at multiples of which the rows of weights are divided among pieces


class Coordinates(NamedTuple):
    """The place of a piece of a group's product: the group, its first row of a, or step of k, in the whole array, the
    piece's row and column in the product, half its column, and the group's place among those whose matrices are made in
    a call. Or how many bytes further an address is for each of these."""
    group: int = 0
    start: int = 0
    row: int = 0
    column: int = 0
    half: int = 0
    place: int = 0


COORDINATES = Coordinates._fields


class Place(NamedTuple):
    """How the elements of an array lie: strides of rows and columns in bytes, and how addresses depend on a piece."""
    dtype: np.dtype[Any]
    row: int
    column: int
    steps: Coordinates


def place_of(x: Array, by: str, halves: bool = False, row: int | None = None) -> Place:
    """How an array lies. by: along which axis groups follow each other: "group", "place", "rows" or "columns". halves:
    whether two columns of sums have one address. row: instead of the stride of rows."""
    own, column = x.strides[-2:]
    row = own if row is None else row
    along = {"start": row if by == "rows" else column} if by in ("rows", "columns") else {by: x.strides[0]}
    return Place(x.dtype, row, column, Coordinates(row=row, **{"half" if halves else "column": column}, **along))


class Side(NamedTuple):
    """What is multiplied. `prologue`: of b, its arrays [groups, rows, columns], of which dtypes and strides count.
    `once`: up to prologues.MOST rows of a, which are f32, read b once. `packed`: b is its stand-in."""
    a: Place
    b: Place
    prologue: Prepared | None = None
    once: bool = False
    packed: Packed | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        arrays = [(x.shape[1:], x.strides, x.dtype) for x in self.prologue.arrays] if self.prologue else []
        return (self.a[:3], self.b[:3], self.once, self.packed,
                self.prologue.prologue.text if self.prologue else "", *arrays)


class Work(NamedTuple):
    """All groups' products, apart from what is multiplied and from the sizes along the axis that is divided, "m" or
    "k"."""
    along: str
    m: int                      # rows of a
    n: int
    k: int                      # steps of k; 0: no element is read
    divided: tuple[str, int]    # what the axis that is divided is called, and its extent
    results: list[Place | None]         # None: a reduction
    operands: list[Place]
    epilogue: Epilogue
    sums: np.dtype[Any]
    target: CpuTarget
    threads: int
    plan: CpuPlan | None = None
    invariant: str = ""
    on: Host = host
    make: type[Recipe] = Recipe
    two: int = 1                # reals of an element

    @property
    def main(self) -> Place | None:
        return None if self.epilogue.main is None else self.results[self.epilogue.main]

    @property
    def halves(self) -> int:
        """Columns of sums for one of the results."""
        return 2 if self.epilogue.paired else 1


class Way(NamedTuple):
    """How groups of one rounded size are multiplied; without a recipe, of sums that are there: a tile at a time."""
    planned: Planned | None
    finish: Finish
    recipe: Recipe | None
    tall: int                   # rows and columns of C in the tiles that are finished
    wide: int
    cut: int                    # columns of C, at multiples of which its pieces begin
    cuts: tuple[bool, bool, bool] = (False, False, False)       # how pieces are cut: grouped_jobs.parts


def target() -> CpuTarget:
    """This processor."""
    return amx.permitted(detect())


def way_for(work: Work, side: Side | None, size: int) -> Way:
    """The way of groups of one rounded size; of none the pass over sums."""
    m = size if work.along == "m" and size else work.m
    k = 0 if side is None else work.k if work.along == "m" else size
    key = ("groups", m if side else m == 1, work.n, k, side and side.key, work.sums, work.epilogue.text, work.plan,
           work.target, work.invariant, *[None if x is None else x[:3] for x in (*work.results, *work.operands)])
    keep = work.on is host and (side is None or side.packed is None)
    return forks.looked_up(engine.prepared if keep else {}, key, lambda: _way(work, side, m, k))


def rounded_up(size: int) -> int:
    """The size by which the plan of a group is chosen: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    if size <= STREAMED:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def _way(work: Work, side: Side | None, m: int, k: int) -> Way:
    """The way for groups of up to so many rows and steps of k; of as many rows where they read b once."""
    main, epilogue, n, plan = work.main, work.epilogue, work.n, work.plan
    sums = format_of(work.sums)
    kind = sums if main is None else format_of(main.dtype)
    columns = n // work.halves
    finish = ways.finish_of(epilogue, [x and _like(x, m, columns) for x in work.results],
                            [_like(x, m, columns) for x in work.operands], sums, False)
    wide = 4 * work.target.lanes(work.sums.itemsize)
    if side is None:
        return Way(None, finish, None, jobs.TALL, wide, wide)
    a, b = side.a, side.b
    bare = epilogue.nothing and (kind == sums or sums in COMPLEX or lowering.rounds(kind, sums))
    c = (n, 1) if main is None else engine.strides(_like(main, m, n // work.halves))
    prologue = side.prologue.prologue.text if side.prologue else ""
    strides = Strides(*engine.strides(_like(a, m, k)), *engine.strides(_like(b, k, n)), *c)
    product = Product(m, n, k, format_of(a.dtype), format_of(b.dtype), kind, strides, 1,
                      Numerics("" if bare else epilogue.text, prologue_b=prologue, invariant=work.invariant), sums)
    if side.once:
        return _reading_once(work, side, product)
    if side.packed is not None:
        planned = side.packed.planned(product)
    else:
        lowered = lowering.lower(product, work.target)
        planned = Planned(*lowered, plan) if plan else _planned(lowered, bare)
    shape, chosen = planned.shape, planned.plan
    if not _fits(chosen, planned, bare):
        raise ValueError(f"plan must read operands where they are and write C by rows, for groups of rows or of k, and "
                         f"{chosen} does not")
    finish = Finish("", (), ("-",)) if bare else finish
    recipe = engine.ready(planned, prepacked="b" if side.packed is not None else "", make=work.make, host=work.on,
                          finish=None if bare else finish, prepare=(None, preparation.recorded("b", side.prologue)))
    tall, wide = recipe.tile
    cut = wide // (2 if shape.complex else 1)
    if chosen.algorithm == "stream":
        cut = 4 * work.target.lanes(shape.itemsize)
    elif chosen.algorithm == "dots" or side.packed is not None:         # panels of all columns lie together
        cut = n
    by_panels = chosen.algorithm in ("packed", "in_place")
    return Way(planned, finish, recipe, tall, wide, cut, (
        chosen.algorithm != "stream", chosen.algorithm != "dots", by_panels and not shape.tiles))


def _like(x: Place, rows: int, columns: int) -> Array:
    return shapes.strided(np.empty(1, x.dtype), (rows, columns), (x.row, x.column))


def _planned(lowered: lowering.Lowered, bare: bool) -> Planned:
    """The planner's choice among plans that fit. Each element is one thread's, so that the plan may be any that this
    thread could have, whatever order of sums another number of threads keeps."""
    known = engine.planned(lowered)
    if _fits(known.plan, known, bare):
        return known
    shape, target = lowered.shape, lowered.target
    if shape.invariant == "threads":
        shape = shape.with_numerics(invariant="")
    return Planned(*lowered, next(p for p in choose.ranked(shape, target) if _fits(p, known, bare)))


def _fits(plan: CpuPlan, planned: Planned, bare: bool) -> bool:
    """Whether the plan's driver does all there is to do for a group: no copy, no temporary, no pass after it. `stream`
    and `dots` by rows of B write just as many rows as they have registers for, and a group may have fewer than the size
    that it is rounded to."""
    if plan.copy or plan.word or plan.dot_tiles or plan.swap != planned.shape.tiles:
        return False
    if plan.algorithm == "stream" and planned.shape.m > STREAMED:
        return False
    if plan.complex_row(planned.shape) or plan.complex_in_place(planned.shape) or (
            planned.shape.m > 1 and plan.by_rows(planned.shape)):
        return False
    return plan.algorithm in ("packed", "in_place") or (
        bare and not planned.shape.prologues and plan.algorithm in ("stream", "dots"))


# ---- weights that few rows read once

def reads_once(prologue: Prepared, n: int, sums: np.dtype[Any]) -> bool:
    """Whether kernels for weights take few rows of floats: up to prologues.MOST."""
    text = prologue.prologue.text
    return prologues.read_once("", text, 1, n, format_of(sums)) == "b" and prologues.weights(text)


def leaves_sums(work: Work) -> bool:
    """Whether such kernels leave sums beside C."""
    main = work.main
    return not work.epilogue.nothing or main is None or main.dtype != work.sums


def _reading_once(work: Work, side: Side, product: Product) -> Way:
    """Sums in f32, in C if that is all there is to do."""
    sums = format_of(work.sums)
    alone = product.with_numerics(epilogue="")._replace(out=sums)
    if leaves_sums(work):
        alone = alone._replace(strides=product.strides._replace(rsc=product.n, csc=1))
    lowered = lowering.lower(alone, work.target)
    shape, target = lowered.shape, lowered.target
    chosen = next(p for p in choose.ranked(shape, target) if (p.algorithm, p.swap) in (("stream", False),
                                                                                       ("dots", True)))
    planned = Planned(*lowered, chosen)
    recipe = engine.ready(planned, make=work.make, host=work.on, prepare=(None, preparation.recorded(
        "b", side.prologue)))
    return Way(planned, Finish("", (), ("-",)), recipe, product.m, COLUMNS_AT_ONCE, COLUMNS_AT_ONCE,
               (False, True, False))
