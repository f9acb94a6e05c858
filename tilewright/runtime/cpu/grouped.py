"""Products of groups of unequal size: one list of pieces for all threads, whatever the groups are.

The plan of a group is that of its size rounded up (`rounded_up`), for one thread, so that few plans serve all sizes,
and neither threads nor other groups change a bit of it: it is what engine.gemm by that plan computes. Groups are cut
into pieces of about equal work, at the boundaries of tiles of C, which changes no bit either; threads claim pieces, the
largest first (grouped_pieces.py, kernels/cpu/pieces.py).
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.expressions.epilogue import Epilogue
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.prologues import MOST
from tilewright.runtime.cpu import amx, engine, grouped_repeats, pool
from tilewright.runtime.cpu.grouped_pieces import Pieces
from tilewright.runtime.cpu.grouped_ways import Grouped, Side, Sizes, Way, Work, reads_once, rounded_up, way_of
from tilewright.runtime.cpu.host import Host, host
from tilewright.runtime.cpu.recipe import FORK_FLOPS, SHARES, Recipe, woken
from tilewright.targets import CpuTarget, detect

Array = NDArray[Any]
LEAST = 1 << 20         # operations in a piece, at the least, unless there are so few in a group

_ways: dict[tuple[Any, ...], Way] = {}
engine.chosen.append(_ways)


def gemm(side: Side, results: list[Grouped | None], operands: list[Grouped], epilogue: Epilogue, sizes: Sizes,
         sums: np.dtype[Any], *, few: Side | None = None, threads: int | None = None, plan: CpuPlan | None = None,
         invariant: str = "", target: CpuTarget | None = None, on: Host = host, make: type[Recipe] = Recipe
         ) -> list[list[Array]]:
    """The results of each group's product: those given as arrays in these; of each reduction a list of new arrays, one
    for each group: of its rows, or of the columns.

    side: a [m, k], b [k, n] of formats that fusion.gemm takes; results and operands as there, the rows of the first
    result contiguous; sums may be complex, of operands and results that are, too, without an epilogue (its text is
    empty). few: the same operands for groups of few rows, by kernels that read weights once. invariant: see
    plans/invariant.py.
    """
    target = target or (side.packed.target if side.packed is not None else amx.permitted(detect()))
    threads = threads or pool.get_num_threads()
    text = few.prologue.prologue.text if few is not None and few.prologue else ""
    format = engine.format_of(sums)
    once = {m for m in range(1, MOST + 1) if few is not None and reads_once(m, text, sizes.n, format)}
    of_way: dict[tuple[int, bool], list[int]] = {}
    for g, (m, k) in enumerate(zip(sizes.m.tolist(), sizes.k.tolist())):
        if m:
            size = m if m in once or sizes.along == "m" else k
            of_way.setdefault((0 if not k else m if m in once else rounded_up(size), m in once), []).append(g)
    flops = 2 * sizes.n * int(sizes.m @ sizes.k)
    team = threads if flops >= FORK_FLOPS else 1
    share = max(flops // (team * SHARES), LEAST) if team > 1 else flops + 1
    work = Work(results, operands, epilogue, sizes.n, sums, target, on, make, invariant)
    pieces = Pieces(work, sizes)
    for (size, reading_once), groups in of_way.items():
        of = few if few is not None and reading_once else side
        pieces.add(_way(work, of, sizes, size, plan), of, groups, share)
    pieces.run(team, woken(flops, threads))
    return pieces.reduced()


def repeated(side: Side, c: Array, epilogue: Epilogue, sums: np.dtype[Any], k: int, *, threads: int | None,
             invariant: str) -> grouped_repeats.Repeated | None:
    """What makes calls with other offsets of rows, of arrays like these; None where none does."""
    target = amx.permitted(detect())

    def kept(x: Grouped) -> Grouped:                # of arrays formats and strides alone
        return x._replace(array=np.empty((1, 1), x.array.dtype), starts=np.zeros(1, np.int64))
    of_c = kept(Grouped.of(c, np.zeros(1, np.int64), 0))
    work = Work([of_c], [], epilogue, c.shape[1], sums, target, host, Recipe, invariant)
    return grouped_repeats.of(work, side._replace(a=kept(side.a), b=kept(side.b)), k, c.shape[0], threads, LEAST)


def _way(work: Work, side: Side, sizes: Sizes, size: int, plan: CpuPlan | None) -> Way:
    m = size if sizes.along == "m" and size else int(sizes.m.max())
    k = size if sizes.along == "k" else int(sizes.k.max())
    key = (m, sizes.n, k, size == 0, side.key, work.sums, work.epilogue.text, plan, work.target, work.invariant,
           *[None if x is None else (x.row, x.column, x.array.dtype) for x in (*work.results, *work.operands)])
    keep = work.on is host and side.packed is None
    found = _ways.get(key) if keep else None
    if found is None:
        with forks.building:
            found = way_of(work, side, m, k if size else 0, plan)
            if keep:
                if len(_ways) >= engine.MOST_RECIPES:
                    _ways.clear()
                _ways[key] = found
    return found
