"""Products of groups of unequal size: one list of pieces for all threads, whatever the groups are.

The plan of a group is that of its size rounded up (`rounded_up`), for one thread, so that few plans serve all sizes,
and neither threads nor other groups change a bit of it: it is what engine.gemm by that plan computes. Groups are cut
into pieces of about equal work, at the boundaries of tiles of C, which changes no bit either; threads claim pieces, the
largest first (kernels/cpu/pieces.py).
"""
from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks, formats
from tilewright.expressions.epilogue import Epilogue
from tilewright.expressions.program import INDICES
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import Finish
from tilewright.plans import choose, lowering
from tilewright.plans.cpu import COMPLEX, CpuPlan, Strides, steps
from tilewright.plans.lowering import Product
from tilewright.rules import shapes
from tilewright.runtime.cpu import amx, engine, fusion, pool, ways
from tilewright.runtime.cpu.engine import Planned, format_of
from tilewright.runtime.cpu.host import Host, host
from tilewright.runtime.cpu.recipe import FORK_FLOPS, SHARES, Recipe, woken
from tilewright.targets import CpuTarget, detect

Array = NDArray[Any]
LEAST = 1 << 20         # operations in a piece, at the least, unless there are so few in a group

_ways: dict[tuple[Any, ...], Way] = {}
engine.chosen.append(_ways)


class Grouped(NamedTuple):
    """An array, and where in it each group begins: so many bytes after the array."""
    array: Array
    starts: NDArray[np.int64]
    row: int                    # strides in bytes
    column: int

    @classmethod
    def of(cls, x: Array, starts: NDArray[np.int64], axis: int) -> Grouped:
        """Groups begin at these places along an axis."""
        row, column = x.strides[-2:]
        return cls(x, starts * x.strides[axis], row, column)

    def at(self, on: Host, group: Any, i: Any, j: Any) -> Any:
        """Addresses of elements of groups."""
        return on.address_of(self.array) + self.starts[group] + i*self.row + j*self.column

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


class Way(NamedTuple):
    """How groups of one rounded size are multiplied; without a recipe, of which there is no k: a tile at a time."""
    planned: Planned | None
    finish: Finish
    recipe: Recipe | None
    tall: int                   # tiles, in rows and columns of C
    wide: int


class Piece(NamedTuple):
    """Rows and columns of the products of groups; of many, arrays of these numbers."""
    group: Any
    i0: Any
    i1: Any
    j0: Any
    j1: Any
    row_panel: Any              # of the panels of all groups of the way, one after the other


def rounded_up(size: int) -> int:
    """The size by which the plan of a group is chosen: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    if size <= 4:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def gemm(a: Grouped, b: Grouped, results: list[Grouped | None], operands: list[Grouped], epilogue: Epilogue,
         sizes: Sizes, sums: np.dtype[Any], *, threads: int | None = None, plan: CpuPlan | None = None,
         target: CpuTarget | None = None, on: Host = host, make: type[Recipe] = Recipe) -> list[list[Array]]:
    """The results of each group's product: those given as arrays in these; of each reduction a list of new arrays, one
    for each group: of its rows, or of the columns.

    a [m, k], b [k, n] of formats that fusion.gemm takes; results and operands as there, the rows of the first result
    contiguous; sums may be complex, of operands and results that are, too, without an epilogue (its text is empty).
    """
    target = target or amx.permitted(detect())
    threads = threads or pool.get_num_threads()
    of_way: dict[int, list[int]] = {}
    for g, (m, k) in enumerate(zip(sizes.m.tolist(), sizes.k.tolist())):
        if m:
            of_way.setdefault(0 if not k else rounded_up(m if sizes.along == "m" else k), []).append(g)
    flops = 2 * sizes.n * int(sizes.m @ sizes.k)
    team = threads if flops >= FORK_FLOPS else 1
    share = max(flops // (team * SHARES), LEAST) if team > 1 else flops + 1
    work = _Work(a, b, results, operands, epilogue, sizes, sums, target, on, make)
    for size, groups in of_way.items():
        way = _way(work, size, plan)
        work.add(way, groups, share)
    work.run(team, woken(flops, threads))
    return work.reduced()


class _Work:
    """The pieces of all ways, and what keeps their memory alive."""

    def __init__(self, a: Grouped, b: Grouped, results: list[Grouped | None], operands: list[Grouped],
                 epilogue: Epilogue, sizes: Sizes, sums: np.dtype[Any], target: CpuTarget, on: Host,
                 make: type[Recipe]) -> None:
        self.a, self.b, self.results, self.operands, self.epilogue = a, b, results, operands, epilogue
        self.sizes, self.sums, self.target, self.on, self.make = sizes, sums, target, on, make
        self.main = None if epilogue.main is None else results[epilogue.main]
        self.halves = 2 if epilogue.paired else 1
        self.pieces: list[NDArray[np.int64]] = []
        self.flops: list[NDArray[np.int64]] = []
        self.alive: list[Any] = []
        self.each = 0                           # bytes of panels of a thread
        self.kept: list[tuple[int, Array, list[int], list[int], Way]] = []

    def add(self, way: Way, groups: list[int], share: int) -> None:
        """The pieces of these groups."""
        at = self._cut(way, groups, share)
        beside = self._tables(way, groups, at)
        if way.recipe is None:
            function, block, packs = self._of_no_terms(way, at, beside)
        else:
            function, block, packs = self._jobs(way, way.recipe, at, beside)
        first = self.on.of_table(block)
        count, width = block.shape
        self.alive += [block, beside]
        pieces = np.empty((count, len(jobs.PIECE)), np.int64)
        pieces[:, 0], pieces[:, 1], pieces[:, 2] = function, first + 8*width*np.arange(count), packs
        self.pieces.append(pieces)
        self.flops.append((at.i1 - at.i0) * (at.j1 - at.j0) * (self.sizes.k[at.group] + 1))

    def _cut(self, way: Way, groups: list[int], share: int) -> Any:
        """A Piece of arrays: what is more than a share is cut where tiles end."""
        n, of = self.sizes.n, np.array(groups)
        m, k = self.sizes.m[of], self.sizes.k[of]
        panels = -(-m // way.tall)
        first = np.cumsum(panels) - panels
        wanted = -(-2*n*m*k // share)
        if way.recipe is None or wanted.max() <= 1:
            none = np.zeros_like(of)
            return Piece(of, none, m, none, np.full_like(of, n), first)
        found = [piece for each in zip(*(x.tolist() for x in (of, m, panels, first, wanted)))
                 for piece in self._parts(way, way.recipe.plan.algorithm, *each)]
        return Piece(*np.array(found).T)

    def _parts(self, way: Way, algorithm: str, g: int, m: int, m_panels: int, panel: int, wanted: int
               ) -> Iterator[tuple[int, ...]]:
        """Of one group, about so many; each part of the rows packs B again, and each part of the columns A."""
        n = self.sizes.n
        n_panels = -(-n // way.wide)
        most_rows = 1 if algorithm == "stream" else min(m_panels, wanted)
        most_columns = 1 if algorithm == "dots" else n_panels

        def columns(rows: int) -> int:
            return min(-(-wanted // rows), most_columns)

        def traffic(rows: int) -> float:
            return (rows*n + columns(rows)*m) * max(wanted / (rows*columns(rows)), 1)
        rows = min(range(1, most_rows + 1), key=traffic)
        for r in range(rows):
            q0, q1 = m_panels*r // rows, m_panels*(r + 1) // rows
            i0, i1 = (_first_row(way, m, m_panels, q) for q in (q0, q1))
            for c in range(columns(rows)):
                j0, j1 = (min(n_panels*x // columns(rows) * way.wide, n) for x in (c, c + 1))
                yield g, i0, i1, j0, j1, panel + q0

    def _tables(self, way: Way, groups: list[int], at: Piece) -> NDArray[np.int64]:
        """OPERAND of each operand and result but C, for each piece."""
        on, j = self.on, at.j0 // self.halves
        table: list[list[Any]] = []
        for read in self.operands:
            table.append(read.words(on, at.group, at.i0, j))
        given = zip(self.results, self.epilogue.expression.results, way.finish.WRITTEN, strict=True)
        for number, (x, result, word) in enumerate(given):
            if word == "-":
                continue
            if x is not None:
                table.append(x.words(on, at.group, at.i0, j))
                continue
            # a number for each row or column of each tile, or one and its index
            kind, _, along = word.partition(":")
            count = 1 + (result.how in INDICES)
            firsts, end = [], 0
            for g in groups:
                firsts.append(end)
                m = int(self.sizes.m[g])
                end += m if along == "rows" else -(-m // way.tall)
            kept = np.empty((end, -(-self.sizes.n // way.wide), count) if along == "rows" else
                            (end, count, self.sizes.n // self.halves), formats.FORMATS[kind].dtype)
            self.kept.append((number, kept, groups, [*firsts, end], way))
            row, column = kept.strides[0], kept.strides[1 if along == "rows" else 2]
            if along == "rows":
                of_group = np.zeros(len(self.sizes.m), np.int64)
                of_group[groups] = firsts
                address = on.address_of(kept) + (of_group[at.group] + at.i0)*row + at.j0 // way.wide * column
            else:
                address = on.address_of(kept) + at.row_panel*row + j*column
            table.append([address, row // kept.itemsize, column // kept.itemsize])
        block = np.zeros((len(at.group), len(table), len(jobs.OPERAND)), np.int64)
        for entry, words in enumerate(table):
            for field, value in enumerate(words):
                block[:, entry, field] = value
        return block

    def _beside(self, beside: NDArray[np.int64]) -> Any:
        """Addresses of each piece's table."""
        if not beside.size:
            return 0
        return self.on.of_table(beside) + beside[0].nbytes * np.arange(len(beside))

    def _jobs(self, way: Way, recipe: Recipe, at: Piece, beside: NDArray[np.int64]) -> tuple[int, Any, bool]:
        """The driver, a job for each piece, and whether it needs space for panels."""
        on, plan, shape = self.on, recipe.plan, recipe.shape
        assert way.planned is not None
        block = np.tile(np.array(recipe.template, np.int64), (len(at.group), 1))
        field = {name: block[:, x] for name, x in recipe.at.items()}
        two = 2 if shape.complex else 1
        m, n, k = at.i1 - at.i0, (at.j1 - at.j0)*two, self.sizes.k[at.group]*two
        a, b = self.a.at(on, at.group, at.i0, 0), self.b.at(on, at.group, 0, at.j0)
        if way.planned.plan.swap:
            a, b, m, n = b, a, n, m
        nowhere = np.zeros(len(m), np.int64)
        field["a"][:], field["b"][:] = a, b
        field["c"][:] = nowhere if self.main is None else self.main.at(on, at.group, at.i0, at.j0 // self.halves)
        for name, value in (("m", m), ("n", n)):
            if name in field:
                field[name][:] = value
        for depth in {int(k[0])} if self.sizes.along == "m" else {int(x) for x in k}:
            words = steps(shape.dtype, depth)
            field["k"][k == depth] = words
            if plan.algorithm == "in_place" and not plan.kc:
                field["kc"][k == depth] = words
        if shape.depth:
            field["depth"][:] = k
        if "operands" in field:
            field["operands"][:] = self._beside(beside)
        for name in ("jc_ways", "ic_ways", "jr_ways", "row_parts", "col_parts", "parts"):
            if name in field:
                field[name][:] = 1
        if plan.algorithm == "packed" or plan.algorithm == "in_place":
            for height in set(self.sizes.m[at.group].tolist()):
                recipe.kernels.need(*((self.sizes.n*two, height) if way.planned.plan.swap
                                      else (height, self.sizes.n*two)))
        if plan.algorithm != "packed":
            return recipe.function, block, False
        each, b_at, sums_at = recipe.of_one_thread()
        field["a_space"][:], field["b_space"][:], field["sums"][:] = 0, b_at, sums_at
        self.each = max(self.each, each)
        return recipe.function, block, True

    def _of_no_terms(self, way: Way, at: Piece, beside: NDArray[np.int64]) -> tuple[int, Any, bool]:
        """The same where sums are 0."""
        on, n = self.on, self.sizes.n
        zeros = np.zeros(n, self.sums)
        self.alive.append(zeros)
        kind = format_of(self.sums)
        main = self.main
        out = "" if main is None or main.array.dtype == self.sums else format_of(main.array.dtype)
        function = on.address("finish:emit_finishing", self.target, kind, way.wide, out)
        fields: dict[str, Any] = {
            "m": at.i1 - at.i0, "n": at.j1 - at.j0, "sums": on.address_of(zeros), "lds": 0,
            "c": on.address_of(zeros) if main is None else main.at(on, at.group, at.i0, at.j0 // self.halves),
            "ldc": 0 if main is None else main.row // main.array.itemsize,
            "finish": on.address("finish:emit_finish", self.target, kind, way.wide, out, *way.finish),
            "operands": self._beside(beside), "index": 0, "row_parts": 1, "col_parts": 1}
        block = np.zeros((len(at.group), len(jobs.FINISH)), np.int64)
        for x, name in enumerate(jobs.FINISH):
            block[:, x] = fields[name]
        return function, block, False

    def run(self, team: int, wake: int) -> None:
        """All pieces, those with the most work first."""
        if not self.pieces:
            return
        order = np.argsort(-np.concatenate(self.flops), kind="stable")
        pieces = np.ascontiguousarray(np.concatenate(self.pieces)[order])
        on, team = self.on, min(team, len(pieces))
        if team > 1:
            team = on.reserve(team)
        space = on.take(team * self.each)
        try:
            fields = {"pieces": on.of_table(pieces), "count": len(pieces), "space": space.address,
                      "space_step": self.each, "claimed": 0}
            job = array("q", [fields[name] for name in jobs.PIECES])
            function = on.address("pieces:emit_pieces", self.target)
            if team > 1:
                on.run_parts(function, on.job(job), team, team, wake)
            else:
                on.callable(function)(on.job(job), 0)
        finally:
            on.give(space)

    def reduced(self) -> list[list[Array]]:
        """Of each reduction, in order: an array for each group."""
        found: dict[int, list[Array]] = {}
        results = self.epilogue.expression.results
        for number, kept, groups, firsts, _ in self.kept:
            of_group = found.setdefault(number, [np.empty(0)] * len(self.sizes.m))
            how = results[number].how
            if results[number].reduced.startswith("row"):
                whole = fusion.of_tiles(how, "rows", kept)
                for g, lo, hi in zip(groups, firsts, firsts[1:]):
                    of_group[g] = whole[lo:hi]
            else:
                for g, lo, hi in zip(groups, firsts, firsts[1:]):
                    of_group[g] = fusion.of_tiles(how, "columns", kept[lo:hi])
        return [found[number] for number in sorted(found)]


def _first_row(way: Way, m: int, m_panels: int, q: int) -> int:
    """Of panel q: panels have equal heights, the first ones one row more, but tiles of AMX and of no terms are
    whole."""
    if way.recipe is None or way.recipe.shape.tiles or way.recipe.plan.algorithm in ("stream", "dots"):
        return min(q*way.tall, m)
    return q*(m // m_panels) + min(q, m % m_panels)


# ---- ways

def _way(work: _Work, size: int, plan: CpuPlan | None) -> Way:
    a, b, sizes = work.a, work.b, work.sizes
    m = size if sizes.along == "m" and size else int(sizes.m.max())
    k = size if sizes.along == "k" else int(sizes.k.max())
    key = (m, sizes.n, k, size == 0, a.row, a.column, b.row, b.column, a.array.dtype, b.array.dtype, work.sums,
           work.epilogue.text, plan, work.target,
           *[None if x is None else (x.row, x.column, x.array.dtype) for x in (*work.results, *work.operands)])
    keep = work.on is host
    found = _ways.get(key) if keep else None
    if found is None:
        with forks.building:
            found = way_of(work, m, k if size else 0, plan)
            if keep:
                if len(_ways) >= engine.MOST_RECIPES:
                    _ways.clear()
                _ways[key] = found
    return found


def way_of(work: Any, m: int, k: int, plan: CpuPlan | None) -> Way:
    """The way for groups of up to so many rows and steps of k."""
    a, b, main, target, epilogue, n = work.a, work.b, work.main, work.target, work.epilogue, work.sizes.n
    sums = format_of(work.sums)
    kind = sums if main is None else format_of(main.array.dtype)

    def like(x: Grouped, rows: int, columns: int) -> Array:
        return shapes.strided(x.array, (rows, columns), (x.row, x.column))

    def finish_of(out: str) -> Finish:
        columns = n // work.halves
        return ways.finish_of(epilogue, [x and like(x, m, columns) for x in work.results],
                                [like(x, m, columns) for x in work.operands], sums, out, False, m, n)

    if not k:
        wide = 4 * target.lanes(work.sums.itemsize)
        out = kind if kind != sums or lowering.aside(epilogue.text) else ""
        return Way(None, finish_of(out), None, jobs.TALL, wide)
    bare = epilogue.nothing and (kind == sums or sums in COMPLEX or lowering.rounds(kind, sums))
    c = (n, 1) if main is None else engine.strides(like(main, m, n // work.halves))
    strides = Strides(*engine.strides(like(a, m, k)), *engine.strides(like(b, k, n)), *c)
    product = Product(m, n, k, format_of(a.array.dtype), format_of(b.array.dtype), kind, strides, 1,
                      "" if bare else epilogue.text, sums)
    lowered = lowering.lower(product, target)
    planned = Planned(*lowered, plan) if plan else _planned(lowered, bare)
    shape, chosen = planned.shape, planned.plan
    if plan and not _fits(chosen, planned, bare):
        raise ValueError(f"plan must read operands where they are and write C by rows, for groups of rows or of k, and "
                         f"{plan} does not")
    finish = Finish("", (), ("-",)) if bare else finish_of(shape.out)
    recipe = engine.ready(planned, make=work.make, host=work.on, finish=None if bare else finish)
    tall, wide = (recipe.plan.nr, recipe.plan.mr) if shape.tiles else (recipe.plan.mr, recipe.plan.nr)
    if chosen.algorithm == "stream":
        wide = 4 * target.lanes(shape.itemsize)
    elif chosen.algorithm == "dots":
        wide = n
    return Way(planned, finish, recipe, tall, wide // (2 if shape.complex else 1))


def _planned(lowered: lowering.Lowered, bare: bool) -> Planned:
    """The planner's choice among plans that fit."""
    found = engine.planned(lowered)
    if _fits(found.plan, found, bare):
        return found
    shape, target = lowered.shape, lowered.target
    return Planned(*lowered, next(p for p in choose.ranked(shape, target) if _fits(p, found, bare)))


def _fits(plan: CpuPlan, planned: Planned, bare: bool) -> bool:
    """Whether the plan's driver does all there is to do for a group: no copy, no temporary, no pass after it."""
    if plan.copy or plan.swap != planned.shape.tiles:
        return False
    return plan.algorithm in ("packed", "in_place") or (bare and plan.algorithm in ("stream", "dots"))


def extents(ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where groups begin, and how long they are."""
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if ends.size else ends
    return starts, ends - starts
