"""Groups' products cut into pieces of about equal work, at the boundaries of tiles of C: jobs that threads claim.

Each piece is one job of a driver (kernels/cpu/pieces.py) with addresses of its own: of its rows and columns of C, and,
in tables, of what an epilogue and a prologue read beside them. Pieces of groups whose sums are finished by a pass are
in two lists, of which the second one is run after the first.
"""
from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.expressions.program import INDICES
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import steps
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu import fusion, preparation, workspace
from tilewright.runtime.cpu.engine import format_of
from tilewright.runtime.cpu.grouped_ways import Grouped, Side, Sizes, Way, Work
from tilewright.runtime.cpu.host import Host
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.runtime.cpu.ways import partials
from tilewright.targets import CpuTarget

Array = NDArray[Any]


ALONE = "jc_ways", "ic_ways", "jr_ways", "row_parts", "col_parts", "parts"


class Piece(NamedTuple):
    """Rows and columns of the products of groups; of many, arrays of these numbers."""
    group: Any
    i0: Any
    i1: Any
    j0: Any
    j1: Any
    row_panel: Any              # of the panels of all groups of the way, one after the other


class Pieces:
    """The pieces of all ways, and what keeps their memory alive."""

    def __init__(self, work: Work, sizes: Sizes) -> None:
        self.work, self.sizes, self.on = work, sizes, work.on
        self.main, self.halves = work.main, work.halves
        self.lists: tuple[list[Any], list[Any]] = [], []        # of pieces and their operations; the second one after
        self.alive: list[Any] = []                              # the first
        self.each = 0                           # bytes of panels of a thread
        self.kept: list[tuple[int, Array, list[int], list[int], Way, Piece]] = []
        self.sums: Grouped | None = None        # of rows that weights are read once for, until they are finished

    def add(self, way: Way, side: Side, groups: list[int], share: int, after: bool = False) -> None:
        """The pieces of these groups."""
        if way.then is not None and self.sums is None:
            starts = np.cumsum(self.sizes.m) - self.sizes.m
            sums = workspace.scratch((int(self.sizes.m.sum()), self.sizes.n), self.work.sums)
            self.sums = Grouped.of(sums, starts, 0)
        at = self._cut(way, groups, share)
        if way.recipe is None:
            function, block, packs = self._finishing(way, at, self._tables(way, groups, at), after)
        else:
            beside = None if way.then is not None else self._tables(way, groups, at)
            function, block, packs = self._jobs(way, way.recipe, side, at, beside)
        first = self.on.of_table(block)
        count, width = block.shape
        self.alive.append(block)
        pieces = np.empty((count, len(jobs.PIECE)), np.int64)
        pieces[:, 0], pieces[:, 1], pieces[:, 2] = function, first + 8*width*np.arange(count), packs
        self.lists[after].append((pieces, (at.i1 - at.i0) * (at.j1 - at.j0) * (self.sizes.k[at.group] + 1)))
        if way.then is not None:
            self.add(way.then, side, groups, share, True)

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
        n_panels = -(-n // way.cut)
        most_rows = 1 if algorithm == "stream" or way.once else min(m_panels, wanted)
        most_columns = 1 if algorithm == "dots" and not way.once else n_panels

        def columns(rows: int) -> int:
            return min(-(-wanted // rows), most_columns)

        def traffic(rows: int) -> float:
            return (rows*n + columns(rows)*m) * max(wanted / (rows*columns(rows)), 1)
        rows = min(range(1, most_rows + 1), key=traffic)
        for r in range(rows):
            q0, q1 = m_panels*r // rows, m_panels*(r + 1) // rows
            i0, i1 = (_first_row(way, m, m_panels, q) for q in (q0, q1))
            for c in range(columns(rows)):
                j0, j1 = (min(n_panels*x // columns(rows) * way.cut, n) for x in (c, c + 1))
                yield g, i0, i1, j0, j1, panel + q0

    def _tables(self, way: Way, groups: list[int], at: Piece) -> NDArray[np.int64]:
        """OPERAND of each operand and result but C, for each piece."""
        on, j = self.on, at.j0 // self.halves
        table: list[list[Any]] = []
        for read in self.work.operands:
            table.append(read.words(on, at.group, at.i0, j))
        given = zip(self.work.results, self.work.epilogue.expression.results, way.finish.WRITTEN, strict=True)
        for number, (x, result, word) in enumerate(given):
            if word == "-":
                continue
            if x is not None:
                table.append(x.words(on, at.group, at.i0, j))
                continue
            along, rows = word.partition(":")[2], self.sizes.m[groups]
            panels = -(-rows // way.tall)
            firsts, end = [], 0
            for count in (rows if along == "rows" else panels).tolist():
                firsts.append(end)
                end += count
            kept = partials(word, result, int(rows.sum()), int(panels.sum()), self.sizes.n, way.wide, self.halves)
            self.kept.append((number, kept, groups, [*firsts, end], way, at))
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

    def _kept(self, tables: NDArray[np.int64] | None) -> Any:
        """Addresses of each piece's table."""
        if tables is None or not tables.size:
            return 0
        self.alive.append(tables)
        return self.on.of_table(tables) + tables[0].nbytes * np.arange(len(tables))

    def _prologue(self, prologue: Prepared, at: Piece) -> NDArray[np.int64]:
        """BESIDE of each array beside b, for each piece."""
        table = np.repeat(preparation.table(self.on, "b", prologue)[None], len(at.group), 0)
        for entry, x in enumerate(prologue.arrays):
            table[:, entry, 0] += at.group*x.strides[0] + at.j0 * table[:, entry, 1] * x.itemsize
        table[..., 3] = 0
        return table

    def _jobs(self, way: Way, recipe: Recipe, side: Side, at: Piece, beside: NDArray[np.int64] | None
              ) -> tuple[int, Any, bool]:
        """The driver, a job for each piece, and whether it needs space for panels."""
        on, plan, shape = self.on, recipe.plan, recipe.shape
        assert way.planned is not None
        block = np.tile(np.array(recipe.template, np.int64), (len(at.group), 1))
        field = {name: block[:, x] for name, x in recipe.at.items()}
        two = 2 if shape.complex else 1
        m, n, k = at.i1 - at.i0, (at.j1 - at.j0)*two, self.sizes.k[at.group]*two
        a, b = side.a.at(on, at.group, at.i0, 0), side.b.at(on, at.group, 0, at.j0)
        main = self.main if way.then is None else self.sums
        if way.planned.plan.swap:
            a, b, m, n = b, a, n, m
        nowhere = np.zeros(len(m), np.int64)
        field["a"][:], field["b"][:] = a, b
        field["c"][:] = nowhere if main is None else main.at(on, at.group, at.i0, at.j0 if main is self.sums
                                                                  else at.j0 // self.halves)
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
            field["operands"][:] = self._kept(beside)
        if side.prologue is not None:
            name = "a_beside" if way.planned.plan.swap else "b_beside"
            field[name][:] = self._kept(self._prologue(side.prologue, at))
        for name in ALONE:
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

    def _finishing(self, way: Way, at: Piece, beside: NDArray[np.int64], after: bool) -> tuple[int, Any, bool]:
        """The same for sums that are there, or are 0."""
        on, n, sums = self.on, self.sizes.n, self.work.sums
        zeros = np.zeros(n, sums)
        self.alive.append(zeros)
        there = self.sums.at(on, at.group, at.i0, at.j0) if after and self.sums else on.address_of(zeros)
        kind, target = format_of(sums), self.work.target
        main = self.main
        out = "" if main is None or main.array.dtype == sums else format_of(main.array.dtype)
        function = on.address("finish:emit_finishing", target, kind, way.wide, out)
        fields: dict[str, Any] = {
            "m": at.i1 - at.i0, "n": at.j1 - at.j0, "sums": there, "lds": n if after else 0,
            "c": on.address_of(zeros) if main is None else main.at(on, at.group, at.i0, at.j0 // self.halves),
            "ldc": 0 if main is None else main.row // main.array.itemsize,
            "finish": on.address("finish:emit_finish", target, kind, way.wide, out, *way.finish),
            "operands": self._kept(beside), "index": 0, "row_parts": 1, "col_parts": 1}
        block = np.zeros((len(at.group), len(jobs.FINISH)), np.int64)
        for x, name in enumerate(jobs.FINISH):
            block[:, x] = fields[name]
        return function, block, False

    def run(self, team: int, wake: int) -> None:
        """All pieces, those with the most work first."""
        for each in self.lists:
            if each:
                pieces, work = (np.concatenate(x) for x in zip(*each))
                run_pieces(self.on, self.work.target, pieces, work, self.each, team, wake)

    def reduced(self) -> list[list[Array]]:
        """Of each reduction, in order: an array for each group."""
        found: dict[int, list[Array]] = {}
        results = self.work.epilogue.expression.results
        for number, kept, groups, firsts, way, at in self.kept:
            of_group = found.setdefault(number, [np.empty(0)] * len(self.sizes.m))
            how, by_rows = results[number].how, results[number].reduced.startswith("row")
            if how in INDICES:
                self._count_from_groups(kept, by_rows, dict(zip(groups, firsts)), way, at)
            if by_rows:
                whole = fusion.of_tiles(how, "rows", kept)
                for g, lo, hi in zip(groups, firsts, firsts[1:]):
                    of_group[g] = whole[lo:hi]
            else:
                for g, lo, hi in zip(groups, firsts, firsts[1:]):
                    of_group[g] = fusion.of_tiles(how, "columns", kept[lo:hi])
        return [found[number] for number in sorted(found)]

    def _count_from_groups(self, kept: Array, by_rows: bool, first: dict[int, int], way: Way, at: Piece) -> None:
        """Indices that kernels counted from the first column, or row, of their piece count from those of the group."""
        index = (kept[..., 1] if by_rows else kept[:, 1]).view(f"i{kept.itemsize}")
        for g, i0, i1, j0, j1, panel in zip(*(x.tolist() for x in at)):
            if by_rows:
                index[first[g] + i0:first[g] + i1, j0 // way.wide:-(-j1 // way.wide)] += j0 // self.halves
            else:
                index[panel:panel + -(-(i1 - i0) // way.tall), j0 // self.halves:j1 // self.halves] += i0


def run_pieces(on: Host, target: CpuTarget, pieces: NDArray[np.int64], work: NDArray[np.int64], each: int, team: int,
               wake: int) -> None:
    """Those with the most work first, by so many threads, each with so many bytes of panels."""
    pieces = pieces[np.argsort(-work, kind="stable")]
    team = min(team, len(pieces))
    if team > 1:
        team = on.reserve(team)
    space = on.take(team * each)
    try:
        fields = {"pieces": on.of_table(pieces), "count": len(pieces), "space": space.address, "space_step": each,
                  "claimed": 0}
        job = array("q", [fields[name] for name in jobs.PIECES])
        function = on.address("pieces:emit_pieces", target)
        if team > 1:
            on.run_parts(function, on.job(job), team, team, wake)
        else:
            on.callable(function)(on.job(job), 0)
    finally:
        on.give(space)


def _first_row(way: Way, m: int, m_panels: int, q: int) -> int:
    """Of panel q: panels have equal heights, the first ones one row more, but tiles of AMX and of no terms are
    whole."""
    if way.recipe is None or way.recipe.shape.tiles or way.recipe.plan.algorithm in ("stream", "dots"):
        return min(q*way.tall, m)
    return q*(m // m_panels) + min(q, m % m_panels)
