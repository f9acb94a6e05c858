"""Products of groups of unequal size, prepared once and run for any offsets: one list of pieces for all threads.

The plan of a group is that of its size rounded up (`rounded_up`), for one thread, so that few plans serve all sizes,
and neither threads nor other groups change a bit of it: it is what engine.gemm by that plan computes. Groups are cut
into pieces of about equal work, at the boundaries of tiles of C, which changes no bit either; threads claim pieces, the
largest first (grouped_jobs.py, kernels/cpu/pieces.py).
"""
from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.cpu.jobs import PIECE, PIECES
from tilewright.plans.prologues import MOST
from tilewright.rules import grouping
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu import workspace
from tilewright.runtime.cpu.grouped_jobs import Jobs, Partials, reduce
from tilewright.runtime.cpu.grouped_ways import Coordinates, Place, Side, Work, leaves_sums, place_of
from tilewright.runtime.cpu.recipe import FORK_FLOPS, SHARES, woken

Array = NDArray[Any]
Numbers = NDArray[np.int64]
LEAST = 1 << 20         # operations in a piece, at the least, unless there are so few in a group


class Sources(NamedTuple):
    """How a program reads a call's arrays: a; b, or its elements, scales and zero points; operands; ends of groups.

    left, few, right    make a, a for groups of few rows, and b as they are multiplied of a and b as they are given;
                        None: they are
    made                makes the right operands of some groups of their elements and, if `scaled`, scales
    beside, operands    which of the arrays the prologue and the epilogue read, or arrays of their own
    """
    left: Callable[[Array], Array] | None = None
    few: Callable[[Array], Array] | None = None
    right: Callable[[Array], Array] | None = None
    made: Callable[..., Array] | None = None
    scaled: bool = False
    beside: tuple[int | Array, ...] = ()
    operands: tuple[int | Array, ...] = ()


class Program:
    """A product of groups, prepared: a repeats.Run of arrays of these formats, shapes and strides.

    few         operands of groups of up to MOST rows, which read b once
    many        operands of the other groups; None: sources.made makes their right operands
    made        what goes with these: a, and their prologue
    """

    def __init__(self, work: Work, many: Side | None, few: Side | None = None,
                 made: tuple[Place, Prepared | None] | None = None, sources: Sources | None = None) -> None:
        self.work, self.made, self.sources = work, made, sources or Sources()
        row = work.n * work.sums.itemsize
        steps = Coordinates(start=row, row=row, column=work.sums.itemsize)
        sums = Place(work.sums, row, work.sums.itemsize, steps)
        after = few is not None and leaves_sums(work)
        self.few = None if few is None else Jobs(work, few, sums, after)
        self.finishing = Jobs(work, None, sums) if after else None
        self.many: dict[Any, Jobs] = {} if many is None else {None: Jobs(work, many)}
        self.zeros = np.zeros(work.n, work.sums)
        self.zero = work.on.address_of(self.zeros)
        self.nothing = Jobs(work, None, Place(work.sums, 0, 0, Coordinates()))        # is multiplied
        self.function = work.on.address("pieces:emit_pieces", work.target)
        self.call = work.on.callable(self.function)
        self.columns = [x.reduced.startswith("column") for x in work.epilogue.expression.results]
        self.others = [None if x is None else i for i, x in enumerate(work.results) if i != work.epilogue.main]

    def run(self, at: list[int], arrays: Sequence[Any], results: Sequence[Array], alpha: float = 1, stream: int = 0
            ) -> None:
        """Into the results, reductions among them. arrays: as `sources` says; the last one are the ends of groups. at:
        addresses of arrays and results."""
        work, sources, count = self.work, self.sources, len(arrays)
        ends = grouping.checked(arrays[-1], *work.divided)
        alive: list[Array] = []

        def address(make: Callable[..., Array], x: Any) -> int:
            alive.append(make(x))
            return work.on.address_of(alive[-1])
        left = at[0] if sources.left is None else address(sources.left, arrays[0])
        right = at[1] if sources.right is None else address(sources.right, arrays[1])
        scales = [at[x] if isinstance(x, int) else work.on.address_of(x) for x in sources.beside]
        beside = [*[at[x] if isinstance(x, int) else work.on.address_of(x) for x in sources.operands],
                  *[0 if x is None else at[count + x] for x in self.others]]
        c = 0 if work.epilogue.main is None else at[count + work.epilogue.main]
        lengths = ends.copy()
        lengths[1:] -= ends[:-1]
        by_rows = work.along == "m"
        groups, none = np.flatnonzero(lengths), np.flatnonzero(lengths == 0)
        parts: list[tuple[Jobs, Numbers, list[int]]] = []
        last: list[tuple[Jobs, Numbers, list[int]]] = []        # which are run when those are done
        if not work.k:
            none, groups = groups if by_rows else np.arange(len(ends)), groups[:0]
        elif by_rows:
            none = none[:0]
        if work.sums.kind == "c":                               # whose zeros need no epilogue
            results[0][... if by_rows and len(none) else none] = 0
        elif len(none):
            parts.append((self.nothing, none, [self.zero, 0, c or self.zero, *beside]))
        if self.few is not None and len(some := groups[lengths[groups] <= MOST]):
            few = at[0] if sources.few is None else address(sources.few, arrays[0])
            if self.finishing is None:
                parts.append((self.few, some, [few, at[1], c, *scales, *beside]))
            else:
                sums = address(partial(workspace.scratch, dtype=work.sums), (int(ends[-1]), work.n))
                parts.append((self.few, some, [few, at[1], sums, *scales]))
                last.append((self.finishing, some, [sums, 0, c or self.zero, *beside]))
            groups = groups[lengths[groups] > MOST]
        if len(groups):
            jobs = self.many.get(None)
            if jobs is None:
                assert sources.made is not None
                b = sources.made(*[x[groups] if len(x) == len(ends) else x for x in arrays[1:2 + sources.scaled]])
                alive.append(b)
                right, jobs = work.on.address_of(b), self.many.get((b.dtype, b.strides)) or self._made(b)
            parts.append((jobs, groups, [left, right, c, *scales[:len(jobs.prologue)], *beside]))
        if parts:
            self._run(parts, last, results, lengths, ends)
        for x, columns in zip(results, self.columns):
            if by_rows and columns:
                x[lengths == 0] = 0
            elif by_rows:
                x[ends[-1]:] = 0

    def _made(self, b: Array) -> Jobs:
        """Of groups whose right operands are these."""
        assert self.made is not None
        jobs = self.many[b.dtype, b.strides] = Jobs(self.work, Side(self.made[0], place_of(b, "place"), self.made[1]))
        return jobs

    def _run(self, parts: list[Any], last: list[Any], results: Sequence[Array], lengths: Numbers, ends: Numbers
             ) -> None:
        """Jobs of all parts, and of those that come last; threads claim them."""
        work, by_rows, two = self.work, self.work.along == "m", self.work.two
        starts = ends - lengths
        k = lengths if not by_rows and work.k else np.full(len(ends), work.k)
        m = lengths if by_rows else np.full(len(ends), work.m)
        flops = 2 * work.n * m * k
        total = int(flops.sum())
        team = work.threads if total >= FORK_FLOPS else 1
        share = max(total // (team * SHARES), LEAST) if team > 1 else total + 1
        wake = woken(total, work.threads) if team > 1 else 0
        drawn, words, each = [], 0, 0
        for jobs, groups, bases in (*parts, *last):
            sizes, number = lengths[groups] * (jobs.side is not None), np.arange(len(groups))
            known = jobs.sizes
            place = known.sizes.searchsorted(sizes)
            if (known.sizes.take(place, mode="clip") != sizes).any():
                known = jobs.learn(sizes)
                place = known.sizes.searchsorted(sizes)
            templates, which, depth = jobs.templates, known.which[place], known.depth[place]
            at = np.zeros((5, len(groups)), np.int64)           # i0, i1, j0, j1, and the panel of rows
            at[1], at[3] = m[groups], work.n
            if team > 1 and jobs.side is not None and (wanted := -(-flops[groups] // share)).max() > 1:
                number, *at = jobs.cut(templates, which, sizes, wanted)
                groups, which, depth = groups[number], which[number], depth[number]
            i0, i1, j0, j1, _ = at
            coordinates = np.stack((np.ones_like(i0), groups, starts[groups], i0, j0, j0 // 2, number))
            extents = i1 - i0, (j1 - j0) * two, depth, k[groups] * two
            drawn.append((jobs, templates, which, at, groups, coordinates, extents, bases))
            each = max(each, jobs.each)
            words += len(which) * (len(PIECE) + templates.rows.shape[1] + jobs.table)
        memory, end, kept = np.empty(words, np.int64), 0, list[Partials]()
        address = work.on.of_table(memory)
        for some in (drawn[:len(parts)], drawn[len(parts):]):
            first, count, done = end, 0, 0
            for x in some:
                count += len(x[2])
            pieces, order = np.empty((count, len(PIECE)), np.int64), np.empty(count, np.int64)
            end += pieces.size
            for jobs, templates, which, at, groups, coordinates, extents, bases in some:
                own = slice(done, done := done + len(which))
                reduced: list[Any] = []
                if jobs.reductions:
                    partials, reduced = jobs.partials(templates, which, at, groups, m)
                    kept += partials
                jobs.fill(templates, which, coordinates, extents, bases, memory[end:], address + 8*end, pieces[own],
                          reduced)
                order[own] = -extents[0] * (at[3] - at[2]) * (k[groups] + 1)
                end += len(which) * (templates.rows.shape[1] + jobs.table)
            if count:
                memory[first:first + pieces.size] = pieces[np.argsort(order, kind="stable")].ravel()
                self._claimed(address + 8*first, count, each, team, wake)
        for y in kept:
            reduce(y, work, results[y.result], starts, ends)

    def _claimed(self, pieces: int, count: int, each: int, team: int, wake: int) -> None:
        """All pieces, by so many threads, each with so many bytes of panels."""
        on, team = self.work.on, min(team, count)
        if team > 1:
            team = on.reserve(team)
        space = on.take(team * each)
        try:
            fields = {"pieces": pieces, "count": count, "space": space.address, "space_step": each, "claimed": 0}
            job = array("q", [fields[name] for name in PIECES])
            if team > 1:
                on.run_parts(self.function, on.job(job), team, team, wake)
            else:
                self.call(on.job(job), 0)
        finally:
            on.give(space)
