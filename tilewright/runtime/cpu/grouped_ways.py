"""How groups of one rounded size are multiplied: the plan, its recipe, and what finishes the sums.

Few rows by weights of few bits read these once, decode them in registers and leave sums (kernels/cpu/weights.py), which
are finished by a second list of pieces; all other groups are one run of a driver that does everything.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.expressions.epilogue import Epilogue
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import Finish
from tilewright.plans import choose, lowering, prologues
from tilewright.plans.choose import STREAMED
from tilewright.plans.cpu import COMPLEX, CpuPlan, Strides
from tilewright.plans.lowering import Product
from tilewright.rules import shapes
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu import engine, preparation, ways
from tilewright.runtime.cpu.engine import Planned, format_of
from tilewright.runtime.cpu.host import Host
from tilewright.runtime.cpu.packed import Packed
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.targets import CpuTarget

Array = NDArray[Any]
COLUMNS_AT_ONCE = 64        # of C, at multiples of which the rows of weights are divided among pieces


class Grouped(NamedTuple):
    """An array, and where in it each group begins: so many bytes after the array."""
    array: Array
    starts: NDArray[np.int64]
    row: int                    # strides in bytes
    column: int
    halves: bool = False        # whether two elements along its rows share a byte

    @classmethod
    def of(cls, x: Array, starts: NDArray[np.int64], axis: int) -> Grouped:
        """Groups begin at these places along an axis."""
        row, column = x.strides[-2:]
        return cls(x, starts * x.strides[axis], row, column)

    def at(self, on: Host, group: Any, i: Any, j: Any) -> Any:
        """Addresses of elements of groups."""
        return on.address_of(self.array) + self.starts[group] + i*self.row + (j // 2 if self.halves else j)*self.column

    def words(self, on: Host, group: Any, i: Any, j: Any) -> list[Any]:
        """Of jobs.OPERAND: addresses, and strides in elements."""
        size = self.array.itemsize
        return [self.at(on, group, i, j), self.row // size, self.column // size]


class Sizes(NamedTuple):
    """Of the products of all groups, of which `along`, "m" or "k", differs."""
    along: str
    m: NDArray[np.int64]
    n: int
    k: NDArray[np.int64]


class Side(NamedTuple):
    """What is multiplied. `prologue`: of b, its arrays [groups, rows, columns]. `once`: up to prologues.MOST rows of a,
    which are f32, read b once. `packed`: b is its stand-in."""
    a: Grouped
    b: Grouped
    prologue: Prepared | None = None
    once: bool = False
    packed: Packed | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        beside = [(x.strides, x.dtype) for x in self.prologue.arrays] if self.prologue else []
        return (*[(x.row, x.column, x.array.dtype) for x in (self.a, self.b)], self.once, self.packed,
                self.prologue.prologue.text if self.prologue else "", *beside)


class Work(NamedTuple):
    """All groups' products, apart from their sizes."""
    results: list[Grouped | None]
    operands: list[Grouped]
    epilogue: Epilogue
    n: int
    sums: np.dtype[Any]
    target: CpuTarget
    on: Host
    make: type[Recipe]
    invariant: str = ""

    @property
    def main(self) -> Grouped | None:
        return None if self.epilogue.main is None else self.results[self.epilogue.main]

    @property
    def halves(self) -> int:
        """Columns of sums for one of the results."""
        return 2 if self.epilogue.paired else 1


class Way(NamedTuple):
    """How groups of one rounded size are multiplied; without a recipe, of sums that are there: a tile at a time.
    `then`: what finishes the sums that this one leaves."""
    planned: Planned | None
    finish: Finish
    recipe: Recipe | None
    tall: int                   # rows and columns of C in the tiles that are finished
    wide: int
    cut: int                    # columns of C, at multiples of which its pieces begin
    then: Way | None = None
    once: bool = False          # whether b is read once, of so many rows


def rounded_up(size: int) -> int:
    """The size by which the plan of a group is chosen: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    if size <= STREAMED:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def way_of(work: Work, side: Side, m: int, k: int, plan: CpuPlan | None) -> Way:
    """The way for groups of up to so many rows and steps of k; of as many rows where they read b once."""
    a, b, main, epilogue, n = side.a, side.b, work.main, work.epilogue, work.n
    sums = format_of(work.sums)
    kind = sums if main is None else format_of(main.array.dtype)

    columns = n // work.halves
    finish = ways.finish_of(epilogue, [x and _like(x, m, columns) for x in work.results],
                            [_like(x, m, columns) for x in work.operands], sums, False)
    wide = 4 * work.target.lanes(work.sums.itemsize)
    finishing = Way(None, finish, None, jobs.TALL, wide, wide)
    if not k:
        return finishing
    bare = epilogue.nothing and (kind == sums or sums in COMPLEX or lowering.rounds(kind, sums))
    c = (n, 1) if main is None else engine.strides(_like(main, m, n // work.halves))
    prologue = side.prologue.prologue.text if side.prologue else ""
    strides = Strides(*engine.strides(_like(a, m, k)), *engine.strides(_like(b, k, n)), *c)
    product = Product(m, n, k, format_of(a.array.dtype), format_of(b.array.dtype), kind, strides, 1,
                      "" if bare else epilogue.text, sums, prologue_b=prologue, invariant=work.invariant)
    if side.once:
        return _reading_once(work, side, product, finishing)
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
    return Way(planned, finish, recipe, tall, wide, cut)


def _like(x: Grouped, rows: int, columns: int) -> Array:
    return shapes.strided(x.array, (rows, columns), (x.row, x.column))


def _planned(lowered: lowering.Lowered, bare: bool) -> Planned:
    """The planner's choice among plans that fit. Each element is one thread's, so that the plan may be any that this
    thread could have, whatever order of sums another number of threads keeps."""
    found = engine.planned(lowered)
    if _fits(found.plan, found, bare):
        return found
    shape, target = lowered.shape, lowered.target
    if shape.invariant == "threads":
        shape = shape._replace(invariant="")
    return Planned(*lowered, next(p for p in choose.ranked(shape, target) if _fits(p, found, bare)))


def _fits(plan: CpuPlan, planned: Planned, bare: bool) -> bool:
    """Whether the plan's driver does all there is to do for a group: no copy, no temporary, no pass after it. `stream`
    writes just as many rows as it has registers for, and a group may have fewer than the size that it is rounded to."""
    if plan.copy or plan.swap != planned.shape.tiles or (plan.algorithm == "stream" and planned.shape.m > STREAMED):
        return False
    if plan.complex_row(planned.shape) or plan.complex_in_place(planned.shape):
        return False
    return plan.algorithm in ("packed", "in_place") or (
        bare and not planned.shape.prologues and plan.algorithm in ("stream", "dots"))


# ---- weights that few rows read once

def reads_once(m: int, prologue: str, n: int, sums: str) -> bool:
    """Whether kernels for weights take so many rows of floats."""
    return m > 0 and prologues.read_once("", prologue, m, n, sums) == "b" and prologues.weights(prologue)


def _reading_once(work: Work, side: Side, product: Product, finishing: Way) -> Way:
    """Sums in f32, in C if that is all there is to do."""
    sums, main = format_of(work.sums), work.main
    direct = work.epilogue.nothing and main is not None and product.out == sums
    alone = product._replace(out=sums, epilogue="")
    if not direct:
        alone = alone._replace(strides=product.strides._replace(rsc=product.n, csc=1))
    lowered = lowering.lower(alone, work.target)
    shape, target = lowered.shape, lowered.target
    chosen = next(p for p in choose.ranked(shape, target) if (p.algorithm, p.swap) in (("stream", False),
                                                                                       ("dots", True)))
    planned = Planned(*lowered, chosen)
    recipe = engine.ready(planned, make=work.make, host=work.on, prepare=(None, preparation.recorded(
        "b", side.prologue)))
    return Way(planned, Finish("", (), ("-",)), recipe, product.m, COLUMNS_AT_ONCE, COLUMNS_AT_ONCE,
               None if direct else finishing, True)
