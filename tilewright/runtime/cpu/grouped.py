"""Products of groups of unequal size, prepared once and run for any offsets: one list of pieces for all threads.

The plan of a group is that of its size rounded up (`rounded_up`), for one thread, so that few plans serve all sizes,
and neither threads nor other groups change a bit of it: it is what engine.gemm by that plan computes. Groups are cut
into pieces of about equal work, at the boundaries of tiles of C, which changes no bit either; threads claim pieces, the
largest first (grouped_jobs.py, kernels/cpu/pieces.py).
"""
from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.kernels.cpu.jobs import PIECE
from tilewright.plans.prologues import MOST
from tilewright.rules import grouping
from tilewright.rules.arguments import F32, Array
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu import workspace
from tilewright.runtime.cpu.grouped_jobs import Jobs, Numbers, Partials, reduce
from tilewright.runtime.cpu.grouped_ways import COORDINATES, Coordinates, Place, Side, Work, leaves_sums, place_of
from tilewright.runtime.cpu.program import places_of
from tilewright.runtime.cpu.recipe import FORK_FLOPS, SHARES, woken
from tilewright.runtime.program import Run
from tilewright.runtime.repeats import View

LEAST = 1 << 20         # operations in a piece, at the least, unless there are so few in a group


class Program:
    """A product of groups, prepared, for any offsets and for arrays of these formats, shapes and strides.

    few         operands of groups of up to MOST rows, which read b once
    many        operands of the other groups; None: `decode` makes their right operands
    made        what goes with these: a, and their prologue
    decode      of the elements of some groups, and of their scales, if it takes them
    """

    def __init__(self, work: Work, many: Side | None, few: Side | None = None,
                 made: tuple[Place, Prepared | None] | None = None, decode: Callable[..., Array] | None = None) -> None:
        self.work, self.made, self.decode = work, made, decode
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
        self.others = [i for i in range(len(work.results)) if i != work.epilogue.main]

    def step(self, scales: int, views: Sequence[View], numbers: tuple[int, ...]) -> Run:
        """`run` for the addresses that have these numbers: of a as it is multiplied, b, `scales` of what its prologue
        reads, and operands of the epilogue; then of the arrays that are looked at: a as it is given, weights to be
        decoded, ends and results."""
        count, first = len(numbers) - len(views), len(views) - len(self.work.results)
        places, order = places_of(views, numbers[count:]), (numbers[count], *numbers[:count])

        def run(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> None:
            x = [np.ndarray(shape, dtype, memory(at[i] - first), first, strides)
                 for i, shape, dtype, memory, first, strides in places]
            self.run([at[i] for i in order], scales, [at[i] for i, *_ in places[first:]], x[0], x[1:first - 1],
                     x[first - 1], x[first:])
        return run

    def run(self, at: Sequence[int], scales: int, outs: Sequence[int], a: Array, weights: Sequence[Array],
            offsets: Array, results: Sequence[Array]) -> None:
        """Into the results, which are at `outs`, reductions among them. at: of a as it is given, and the rest."""
        work = self.work
        ends = grouping.checked(offsets, *work.divided)
        own, left, right, *finish = at
        before = finish[:scales]                # of the prologue
        finish[:scales] = []
        finish += [0 if work.results[i] is None else outs[i] for i in self.others]
        c = 0 if work.epilogue.main is None else outs[work.epilogue.main]
        lengths = ends.copy()
        lengths[1:] -= ends[:-1]
        by_rows = work.along == "m"
        groups, = lengths.nonzero()
        parts: list[tuple[Jobs, Numbers, list[int]]] = []
        last: list[tuple[Jobs, Numbers, list[int]]] = []        # which are run when those are done
        alive: list[Array] = []
        none = groups[:0] if by_rows or len(groups) == len(ends) else (lengths == 0).nonzero()[0]
        if not work.k:
            none, groups = groups if by_rows else np.arange(len(ends)), groups[:0]
        if work.sums.kind == "c":                               # whose zeros need no epilogue
            results[0][... if by_rows and len(none) else none] = 0
        elif len(none):
            parts.append((self.nothing, none, [self.zero, 0, c or self.zero, *finish]))
        if self.few is not None and len(some := groups[lengths[groups] <= MOST]):
            alive.append(np.ascontiguousarray(a, F32))
            few = own if alive[0] is a else work.on.address_of(alive[0])
            if self.finishing is None:
                parts.append((self.few, some, [few, right, c, *before, *finish]))
            else:
                alive.append(workspace.scratch((int(ends[-1]), work.n), work.sums))
                sums = work.on.address_of(alive[1])
                parts.append((self.few, some, [few, right, sums, *before]))
                last.append((self.finishing, some, [sums, 0, c or self.zero, *finish]))
            groups = groups[lengths[groups] > MOST]
        if len(groups):
            jobs = self.many.get(None)
            if jobs is None:
                assert self.decode is not None
                b = self.decode(*[x[groups] if len(x) == len(ends) else x for x in weights])
                alive.append(b)
                right, jobs = work.on.address_of(b), self.many.get(how := (b.dtype, b.strides))
                if jobs is None:
                    assert self.made is not None
                    jobs = self.many[how] = Jobs(work, Side(self.made[0], place_of(b, "place"), self.made[1]))
            parts.append((jobs, groups, [left, right, c, *before[:len(jobs.prologue)], *finish]))
        if parts:
            self._run(parts, last, results, lengths, ends)
        for x, columns in zip(results, self.columns):
            if by_rows and columns:
                x[lengths == 0] = 0
            elif by_rows:
                x[ends[-1]:] = 0

    def _run(self, parts: list[Any], last: list[Any], results: Sequence[Array], lengths: Numbers, ends: Numbers
             ) -> None:
        """Jobs of all parts, and of those that come last; threads claim them."""
        work, by_rows, two = self.work, self.work.along == "m", self.work.two
        starts, each_size = ends - lengths, 2 * work.n * (work.k if by_rows else work.m)       # operations
        total = each_size * int(ends[-1])
        team = work.threads if total >= FORK_FLOPS else 1
        share = max(total // (team * SHARES), LEAST) if team > 1 else total + 1
        wake = woken(total, work.threads) if team > 1 else 0
        drawn, words, space = [], 0, 0
        for jobs, groups, bases in (*parts, *last):
            own, at, known = lengths[groups], None, jobs.sizes
            sizes = own if jobs.side is not None else np.zeros_like(own)
            place = known.sizes.searchsorted(sizes)
            if known.sizes[place].tolist() != sizes.tolist():
                known = jobs.learn(sizes)
                place = known.sizes.searchsorted(sizes)
            templates, which, depth = jobs.templates, known.which[place], known.depth[place]
            if team > 1 and jobs.side is not None and each_size * int(own.max()) > share:
                number, *at = jobs.cut(templates, which, sizes, -(-own * each_size // share))
                groups, own, which, depth = groups[number], own[number], which[number], depth[number]
            coordinates = np.zeros((1 + len(COORDINATES), len(groups)), np.int64)
            coordinates[0], coordinates[1], coordinates[2] = 1, groups, starts[groups]
            m, k = (own, work.k) if by_rows else (work.m, own)
            coordinates[6], extents = np.arange(len(groups)), (m, work.n * two, depth, k * two)
            if at is not None:
                i0, i1, j0, j1, _ = at
                coordinates[3:], extents = (i0, j0, j0 // 2, number), (i1 - i0, (j1 - j0) * two, depth, k * two)
            drawn.append((jobs, templates, which, at, groups, coordinates, extents, bases))
            space = max(space, jobs.each)
            words += len(which) * (len(PIECE) + templates.rows.shape[1] + jobs.table)
        memory, end, kept = np.empty(words, np.int64), 0, list[Partials]()
        address = work.on.of_table(memory)
        for some in (drawn[:len(parts)], drawn[len(parts):]):
            first, count, done = end, 0, 0
            for x in some:
                count += len(x[2])
            end += count * len(PIECE)
            pieces, order = memory[first:end].reshape(count, len(PIECE)), np.empty(count, np.int64)
            for jobs, templates, which, at, groups, coordinates, extents, bases in some:
                own = slice(done, done := done + len(which))
                reduced: list[Any] = []
                if jobs.reductions:
                    rows = lengths if by_rows else np.full(len(ends), work.m)
                    if at is None:
                        at = np.zeros((5, len(groups)), np.int64)
                        at[1], at[3] = rows[groups], work.n
                    partials, reduced = jobs.partials(templates, which, at, groups, rows)
                    kept += partials
                jobs.fill(templates, which, coordinates, extents, bases, memory[end:], address + 8*end, pieces[own],
                          reduced)
                if count > team > 1:                            # those with the most work first
                    order[own] = -extents[0] * extents[1] * (extents[3] + 1)
                end += len(which) * (templates.rows.shape[1] + jobs.table)
            if count > team > 1:
                pieces[:] = pieces[order.argsort(kind="stable")]
            if count:
                self._claimed(address + 8*first, count, space, team, wake)
        for y in kept:
            reduce(y, work, results[y.result], starts, ends)

    def _claimed(self, pieces: int, count: int, each: int, team: int, wake: int) -> None:
        """All pieces, by so many threads, each with so many bytes of panels."""
        on, team = self.work.on, min(team, count)
        if team > 1:
            team = on.reserve(team)
        space = on.take(team * each)
        try:
            job = array("q", (pieces, count, space.address, each, 0))          # jobs.PIECES
            if team > 1:
                on.run_parts(self.function, on.job(job), team, team, wake)
            else:
                self.call(on.job(job), 0)
        finally:
            on.give(space)
