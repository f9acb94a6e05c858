"""Calls of grouped_matmul like an earlier one, with other offsets: a job for each group from the template of its
rounded size, by a few operations on arrays of all groups, without rules and plans.

They are those without an epilogue, of groups of rows, in formats that the engine takes as they are, and none of whose
groups is large enough to be divided among threads; the jobs are those that grouped_pieces.py makes.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.plans.cpu import steps
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.grouped_pieces import ALONE, run_pieces
from tilewright.runtime.cpu.grouped_ways import Side, Way, Work, rounded_up, way_of
from tilewright.runtime.cpu.host import host
from tilewright.runtime.cpu.recipe import FORK_FLOPS, SHARES, woken

Array = NDArray[Any]
MOST_ROWS = 1 << 16                 # of a, for each number of which there is an entry
FIELDS = "a", "b", "c", "m"         # of a job, that calls fill in


class Repeated:
    """For operands of the shapes, formats and strides of those of `side` and `work`."""

    def __init__(self, work: Work, side: Side, k: int, most: int, threads: int | None, least: int) -> None:
        """k: steps; most: rows of a; least: operations of a piece, which is not divided."""
        self.work, self.side, self.k, self.threads, self.least = work, side, k, threads, least
        self.of_rows = np.full(most + 1, -1, np.int64)          # which template serves so many rows
        self.numbers: dict[int, int] = {}                       # of templates, by rounded sizes
        self.each = 0                                           # bytes of panels of a thread
        self.keeps: list[Way] = []
        self.templates = np.empty((0, 0), np.int64)
        self.at = np.empty((0, len(FIELDS)), np.int64)          # where a template has FIELDS
        self.what = np.empty((0, 2), np.int64)                  # function, and whether it needs panels

    def run(self, a: Array, b: Array, c: Array, starts: NDArray[np.int64], rows: NDArray[np.int64]) -> bool:
        """False, and nothing done, where a group has to be divided."""
        work, on = self.work, host
        groups = np.flatnonzero(rows)
        m = rows[groups]
        each = 2 * work.n * self.k
        flops, threads = each * int(m.sum()), self.threads or pool.get_num_threads()
        team = threads if flops >= FORK_FLOPS else 1
        if not len(groups):
            return True
        if team > 1 and each * int(m.max()) > max(flops // (team * SHARES), self.least):
            return False
        which = self.of_rows[m]
        if which.min() < 0:
            with forks.building:
                for size in np.unique(m[which < 0]).tolist():
                    self._prepare(size)
            which = self.of_rows[m]
        block, at, number = self.templates[which], self.at[which], np.arange(len(groups))
        at_row = starts[groups]
        values = (on.address_of(a) + at_row*a.strides[0], on.address_of(b) + groups*b.strides[0],
                  on.address_of(c) + at_row*c.strides[0], m)
        for field, value in enumerate(values):
            block[number, at[:, field]] = value
        pieces = np.empty((len(groups), 3), np.int64)
        pieces[:, ::2] = self.what[which]
        pieces[:, 1] = on.of_table(block) + block.strides[0]*number
        run_pieces(on, work.target, pieces, m, self.each, team, woken(flops, threads))
        return True

    def _prepare(self, m: int) -> None:
        """A template for groups of so many rows."""
        size = rounded_up(m)
        found = self.numbers.get(size)
        if found is None:
            found = self.numbers[size] = len(self.keeps)
            self._add(way_of(self.work, self.side, size, self.k, None))
        way = self.keeps[found]
        if way.recipe is not None and way.recipe.plan.algorithm in ("packed", "in_place"):
            swap = way.planned is not None and way.planned.plan.swap
            way.recipe.kernels.need(*((self.work.n, m) if swap else (m, self.work.n)))
        self.of_rows[m] = found

    def _add(self, way: Way) -> None:
        recipe, planned = way.recipe, way.planned
        assert recipe is not None
        assert planned is not None
        at, shape, swap = recipe.at, recipe.shape, planned.plan.swap
        row = np.array(recipe.template, np.int64)
        values = {"k": steps(shape.dtype, self.k), **dict.fromkeys(ALONE, 1)}
        values["m" if swap else "n"] = self.work.n
        if shape.depth:
            values["depth"] = self.k
        if recipe.plan.algorithm == "in_place" and not recipe.plan.kc:
            values["kc"] = values["k"]
        packs = recipe.plan.algorithm == "packed"
        if packs:
            each, values["b_space"], values["sums"] = recipe.of_one_thread()
            values["a_space"], self.each = 0, max(self.each, each)
        spare = len(row)                            # for fields that the driver has not
        for name, value in values.items():
            if name in at:
                row[at[name]] = value
        names = ("b", "a", "c", "n") if swap else FIELDS
        width = max(self.templates.shape[1], spare + 1)
        whole = np.zeros((len(self.keeps) + 1, width), np.int64)
        whole[:-1, : self.templates.shape[1]] = self.templates
        whole[-1, :spare] = row
        self.templates = whole
        self.at = np.vstack((self.at, [at.get(name, spare) for name in names]))
        self.what = np.vstack((self.what, [recipe.function, packs]))
        self.keeps.append(way)


def of(work: Work, side: Side, k: int, most: int, threads: int | None, least: int) -> Repeated | None:
    """None for calls that cannot be repeated so."""
    bare = work.epilogue.nothing and len(work.results) == 1 and work.main is not None and work.sums.kind != "c"
    plain = side.packed is None and side.prologue is None and work.on is host
    if not (bare and plain and 0 < most <= MOST_ROWS and k):
        return None
    return Repeated(work, side, k, most, threads, least)
