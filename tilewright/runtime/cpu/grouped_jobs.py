"""Jobs of groups' products, filled in from templates: one for each rounded size of a group.

A piece of a group's product is rows and columns of it, at the boundaries of tiles of C. Its job (kernels/cpu/pieces.py)
is the template of the group's size with addresses and sizes of the piece, and tables of what an epilogue and a prologue
read. All addresses are linear in a few coordinates of the piece, so that a product of two small matrices gives those of
all pieces.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.expressions.program import INDICES
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu_shape import steps
from tilewright.rules.arguments import Array
from tilewright.runtime.cpu import fusion, preparation
from tilewright.runtime.cpu.engine import format_of
from tilewright.runtime.cpu.grouped_ways import COORDINATES, Place, Side, Way, Work, place_of, rounded_up, way_for
from tilewright.runtime.cpu.ways import partials

Numbers = NDArray[np.int64]

FIELDS = "a", "b", "c", "m", "n", "operands", "b_beside", "k", "kc", "depth"       # of a job, that calls fill in
SWAPPED = "b", "a", "c", "n", "m", "operands", "a_beside", "k", "kc", "depth"      # by a plan with swap
FINISHED = "sums", "", "c", "m", "n", "operands", *[""] * 4                        # of jobs.FINISH
MOST_SIZES = 4096       # of groups, of which a product of groups knows the templates
ALONE = "jc_ways", "ic_ways", "jr_ways", "row_parts", "col_parts", "parts"


class Templates(NamedTuple):
    """Templates of jobs; one object, so that threads that use it never see half of a new one."""
    rows: Numbers                       # each as wide as the widest, and a word for fields that a driver lacks
    at: Numbers                         # where a template has FIELDS
    what: Numbers                       # of PIECE: the function, and whether it needs panels
    ways: tuple[Way, ...] = ()


class Sizes(NamedTuple):
    """Sizes of groups that were met, in order, with their templates and steps of k of their jobs; one object, too."""
    sizes: Numbers
    which: Numbers
    depth: Numbers


NO_SIZES = Sizes(*(np.array([np.iinfo(np.int64).max]) for _ in Sizes._fields))       # the last of all sizes


class Partials(NamedTuple):
    """Numbers that tiles leave of a reduction, of the groups of one template."""
    result: int
    numbers: Array
    first: dict[int, int]               # row, or panel of rows, of each group
    counts: dict[int, int]              # of these
    way: Way
    pieces: tuple[Any, ...]             # group, i0, i1, j0, j1 and the first panel of rows of each piece


class Jobs:
    """The jobs of all groups that are multiplied by the same kind of operands; of no operands, what finishes sums that
    are in memory, `sums`."""

    def __init__(self, work: Work, side: Side | None, sums: Place | None = None, leaves: bool = False) -> None:
        """leaves: whether sums are left in memory, to be finished after."""
        self.work, self.side = work, side
        main = sums if leaves else work.main
        self.prologue = preparation.table(work.on, "b", side.prologue if side else None)
        left, right = (sums, None) if side is None else (
            side.a._replace(steps=side.a.steps._replace(column=0)), side.b._replace(steps=side.b.steps._replace(row=0)))
        of_prologue = [place_of(x, "group", row=0) for x in side.prologue.arrays] if side and side.prologue else []
        of_prologue = [x._replace(steps=x.steps._replace(column=int(line) * x.dtype.itemsize))
                       for x, line in zip(of_prologue, self.prologue[:, 1])]
        self.prologue[:, (0, 3)] = 0
        entries = [] if leaves else [*work.operands, *(x for i, x in enumerate(work.results)
                                                       if i != work.epilogue.main)]
        self.words = np.array([(0, x.row // x.dtype.itemsize, x.column // x.dtype.itemsize, 0) if x else (0, 0, 0, 0)
                               for x in entries], np.int64).reshape(-1, len(jobs.OPERAND))
        places = left, right, main, *of_prologue, *entries
        self.steps = np.array([(0, *x.steps) if x else (0,) * (1 + len(COORDINATES)) for x in places], np.int64)
        self.reductions = [] if leaves else [
            (len(work.operands) + entry, number) for entry, number in enumerate(
                i for i in range(len(work.results)) if i != work.epilogue.main) if work.results[number] is None]
        self.each = 0                                           # bytes of panels of a thread
        self.sizes = NO_SIZES
        self.numbers: dict[int, int] = {}                       # templates by rounded sizes
        self.templates = Templates(np.empty((0, 1), np.int64), np.empty((0, len(FIELDS)), np.int64),
                                   np.empty((0, 2), np.int64))
        self.table = 4 * (len(self.words) + len(self.prologue))     # words of a piece beside its job

    # ---- templates

    def learn(self, sizes: Numbers) -> Sizes:
        """Have templates for groups of these sizes."""
        with forks.building:
            known = self.sizes if len(self.sizes.sizes) < MOST_SIZES else NO_SIZES
            new = np.setdiff1d(sizes, known.sizes)
            rows = np.array([(size, *self._learn(size)) for size in new.tolist()], np.int64).reshape(-1, 3)
            table = np.concatenate((np.stack(known, 1), rows))
            self.sizes = Sizes(*table[table[:, 0].argsort()].T.copy())
            return self.sizes

    def _learn(self, size: int) -> tuple[int, int]:
        """The template of groups of this size, and steps of k of its job."""
        work, side, depth = self.work, self.side, 0
        rounded = 0 if side is None else size if side.once else rounded_up(size)
        number = self.numbers.get(rounded)
        if number is None:
            way = way_for(work, side, rounded)
            self._add(way)
            number = self.numbers[rounded] = len(self.numbers)
        way = self.templates.ways[number]
        if way.recipe is not None and way.planned is not None:
            m, n = (size if work.along == "m" else work.m), work.n * work.two
            if way.recipe.plan.algorithm in ("packed", "in_place"):
                way.recipe.kernels.need(*((n, m) if way.planned.plan.swap else (m, n)))
            depth = (work.k if work.along == "m" else size) * work.two
            if not way.recipe.plan.widens(way.recipe.shape):            # else its steps are elements, not words
                depth = steps(way.recipe.shape.dtype, depth)
        return number, depth

    def _add(self, way: Way) -> None:
        recipe, packs = way.recipe, False
        if recipe is None or way.planned is None:
            function, row, at, names = *self._finishing(way), FINISHED
        else:
            at, shape, plan = recipe.at, recipe.shape, recipe.plan
            function, row, packs = recipe.function, np.array(recipe.template, np.int64), plan.algorithm == "packed"
            names = SWAPPED if way.planned.plan.swap else FIELDS
            values = dict.fromkeys(ALONE, 1)
            if packs:
                a_space, values["b_space"], values["sums"] = recipe.of_one_thread()
                values["a_space"], self.each = 0, max(self.each, a_space)
            for name in values.keys() & at.keys():
                row[at[name]] = values[name]
            at = {name: x for name, x in at.items() if (name != "kc" or (plan.algorithm == "in_place" and not plan.kc))
                  and (name != "depth" or shape.depth)}
        before, spare = self.templates, len(row)
        rows = np.zeros((len(before.ways) + 1, max(before.rows.shape[1], spare + 1)), np.int64)
        rows[:-1, : before.rows.shape[1]], rows[-1, :spare] = before.rows, row
        self.templates = Templates(rows, np.vstack((before.at, [at.get(name, spare) for name in names])),
                                   np.vstack((before.what, (function, packs))), (*before.ways, way))

    def _finishing(self, way: Way) -> tuple[int, Numbers, dict[str, int]]:
        """The pass over sums: its function, job and fields."""
        work, main = self.work, self.work.main
        kind, on, target = format_of(work.sums), work.on, work.target
        out = "" if main is None or main.dtype == work.sums else format_of(main.dtype)
        fields = {"lds": int(self.steps[0].any()) * work.n,
                  "ldc": 0 if main is None else main.row // main.dtype.itemsize,
                  "finish": on.address("finish:emit_finish", target, kind, way.wide, out, *way.finish),
                  "row_parts": 1, "col_parts": 1}
        row = np.array([fields.get(name, 0) for name in jobs.FINISH], np.int64)
        return (on.address("finish:emit_finishing", target, kind, way.wide, out), row,
                {name: x for x, name in enumerate(jobs.FINISH)})

    # ---- pieces

    def cut(self, templates: Templates, which: Numbers, sizes: Numbers, wanted: Numbers) -> Numbers:
        """Each group in about so many pieces: numbers of groups, i0, i1, j0, j1 and the first panel of rows of each."""
        pieces = []
        for number, (t, size, count) in enumerate(zip(which.tolist(), sizes.tolist(), wanted.tolist())):
            way = templates.ways[t]
            m = size if self.work.along == "m" else self.work.m
            pieces += [(number, *x) for x in parts(m, self.work.n, count, way.tall, way.cut, way.cuts)]
        return np.array(pieces, np.int64).T

    def fill(self, templates: Templates, which: Numbers, coordinates: Numbers, sizes: tuple[Numbers, ...],
             bases: list[int], memory: Numbers, address: int, pieces: Numbers, reduced: list[tuple[Any, ...]]) -> None:
        """Jobs and tables in memory that begins at an address, and what `pieces` says of them. `which`: templates;
        sizes: rows, columns, the group's depth and steps of k of each piece; reduced: of each reduction its entry among
        the tables, addresses and strides."""
        count, width = len(which), templates.rows.shape[1]
        step = self.steps.copy()
        step[:, 0] = bases
        places = step.dot(coordinates)
        block = memory[:count * width].reshape(count, width)
        templates.rows.take(which, 0, block, "clip")                   # without a copy, which "raise" would make
        rows = np.zeros((count, len(FIELDS)), np.int64)
        values = rows.T
        values[:3] = places[:3]
        values[3], values[4], values[7], values[9] = sizes
        values[8] = values[7]
        number, end, first = np.arange(count), count * width, 3
        for field, words in ((6, self.prologue), (5, self.words)):
            if not len(words):
                continue
            table = memory[end:end + count * words.size].reshape(count, *words.shape)
            table[:] = words
            table[:, :, 0] = places[first:first + len(words)].T
            values[field] = address + 8 * (end + words.size * number)
            end, first = end + table.size, first + len(words)
            for entry, *by in reduced if field == 5 else ():
                table[:, entry, :3] = np.array(by).T
        memory[:count * width].put(templates.at.take(which, 0) + width * number[:, None], rows)
        pieces[:, ::2] = templates.what.take(which, 0)
        pieces[:, 1] = address + 8 * width * number

    # ---- reductions

    def partials(self, templates: Templates, which: Numbers, at: Numbers, group: Numbers, m: Numbers
                 ) -> tuple[list[Partials], list[tuple[Any, ...]]]:
        """Memory for the numbers that tiles leave; and where it is, for each of the pieces of these groups. at: i0, i1,
        j0, j1 and the first panel of each. m: rows of all groups."""
        work, sums, words = self.work, list[Partials](), []
        i0, i1, j0, j1, panel = at
        for entry, number in self.reductions:
            result, of_entry = work.epilogue.expression.results[number], np.empty((3, len(which)), np.int64)
            for t in np.unique(which).tolist():
                way, own = templates.ways[t], which == t
                word = way.finish.WRITTEN[number]
                groups = list(dict.fromkeys(group[own].tolist()))
                rows = m[groups]
                panels = -(-rows // way.tall)
                numbers = partials(word, result, int(rows.sum()), int(panels.sum()), work.n, way.wide, work.halves)
                along = word.partition(":")[2]
                counts = rows if along == "rows" else panels
                first = np.zeros(len(m), np.int64)
                first[groups] = np.cumsum(counts) - counts
                row, column = numbers.strides[0], numbers.strides[1 if along == "rows" else 2]
                start = first[group[own]] + (i0[own] if along == "rows" else panel[own])
                place = work.on.address_of(numbers) + start*row + column * (
                    j0[own] // way.wide if along == "rows" else j0[own] // work.halves)
                of_entry[:, own] = place, np.full_like(place, row // numbers.itemsize), np.full_like(
                    place, column // numbers.itemsize)
                sums.append(Partials(number, numbers, dict(zip(groups, first[groups].tolist())),
                                      dict(zip(groups, counts.tolist())), way,
                                      tuple(x[own].tolist() for x in (group, i0, i1, j0, j1)) + (start.tolist(),)))
            words.append((entry, *of_entry))
        return sums, words


def reduce(kept: Partials, work: Work, x: Array, starts: Numbers, ends: Numbers) -> None:
    """What the numbers of all tiles come to, in the result x."""
    result = work.epilogue.expression.results[kept.result]
    how, by_rows = result.how, result.reduced.startswith("row")
    if how in INDICES:
        _count_from_groups(kept, work, by_rows)
    rows = fusion.of_tiles(how, "rows", kept.numbers) if by_rows else None
    for g, first in kept.first.items():
        end = first + kept.counts[g]
        part = rows[first:end] if rows is not None else fusion.of_tiles(how, "columns", kept.numbers[first:end])
        x[slice(starts[g], ends[g]) if by_rows and work.along == "m" else g] = part


def _count_from_groups(kept: Partials, work: Work, by_rows: bool) -> None:
    """Indices that kernels counted from the first column, or row, of their piece count from those of the group."""
    x, way = kept.numbers, kept.way
    index = (x[..., 1] if by_rows else x[:, 1]).view(f"i{x.itemsize}")
    for _, i0, i1, j0, j1, start in zip(*kept.pieces):
        if by_rows:
            index[start:start + i1 - i0, j0 // way.wide:-(-j1 // way.wide)] += j0 // work.halves
        else:
            index[start:start + -(-(i1 - i0) // way.tall), j0 // work.halves:j1 // work.halves] += i0


@lru_cache(maxsize=4096)
def parts(m: int, n: int, wanted: int, tall: int, cut: int, how: tuple[bool, bool, bool]
          ) -> tuple[tuple[int, ...], ...]:
    """i0, i1, j0, j1 and the first panel of rows of about so many pieces of m x n elements; each part of the rows packs
    B again, and each part of the columns A. `how`: whether rows are divided, whether columns are, and whether panels of
    rows have equal heights, the first ones one row more, and not `tall` rows each."""
    by_rows, by_columns, even = how
    m_panels, n_panels = -(-m // tall), -(-n // cut)

    def columns(rows: int) -> int:
        return min(-(-wanted // rows), n_panels if by_columns else 1)

    def traffic(rows: int) -> float:
        return (rows*n + columns(rows)*m) * max(wanted / (rows*columns(rows)), 1)

    def first_row(q: int) -> int:
        return q*(m // m_panels) + min(q, m % m_panels) if even else min(q*tall, m)
    rows = min(range(1, (min(m_panels, wanted) if by_rows else 1) + 1), key=traffic)
    count = columns(rows)
    return tuple((first_row(m_panels*r // rows), first_row(m_panels*(r + 1) // rows),
                  min(n_panels*c // count * cut, n), min(n_panels*(c + 1) // count * cut, n), m_panels*r // rows)
                 for r in range(rows) for c in range(count))
