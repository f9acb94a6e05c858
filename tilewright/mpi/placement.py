"""Where a product is computed: the layouts that it reads and leaves, and its panels of k in order. Plain arithmetic.

Process (i, j, layer) of the grid computes rows i of C and columns j, over its layer's range of k. It needs the layer's
panels of A for its rows, which processes (i, ..., layer) have, and those of B for its columns, which (..., j, layer)
have. With several layers their sums are added up, and each layer keeps a part of the columns of a tile of C.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from tilewright.mpi.layouts import Axis, Cyclic, Grid, Indices, Layout, Ranges, even

PANELS = 16         # at least so many, if panels have LEAST steps of k: the first one is not hidden behind a product
LEAST, MOST = 64, 512
WIDE = 4096         # steps of k in a panel on a GPU, which reads and writes all sums for each panel
SEGMENT = 2048      # steps of k that are summed one after the other in reproducible order, at least
SEGMENTS = 16       # not more than so many sums are combined as a tree


@dataclass(frozen=True)
class Placement:
    """What a product needs where. a, b: operands; c: where the result is; rows, cols: of tiles; depth: of layers."""

    grid: Grid
    a: Layout
    b: Layout
    c: Layout
    rows: Axis
    cols: Axis
    depth: Ranges

    def tile(self, rank: int) -> tuple[int, int]:
        """The size of the tile that a rank computes."""
        at = self.grid.place(rank)
        return (0, 0) if at is None else (self.rows.count(at[0]), self.cols.count(at[1]))


def natural(layout: Layout, grid: Grid) -> bool:
    """Does it lie on this grid, row after row?"""
    return grid.layers == 1 and layout.grid == grid[:2] and layout.ranks == tuple(range(grid.size))


def place(grid: Grid, a: Layout, b: Layout, c: Layout | None = None, unit: int = 1) -> Placement:
    """Where to compute a @ b so that as much as possible stays where it is. c: where the result will be.
    unit: layers begin at multiples of so many steps of k."""
    (m, k), n = a.shape, b.shape[1]
    if grid.layers > 1:
        return layered(grid, m, n, k, unit)
    at_home = {x: natural(y, grid) for x, y in (("a", a), ("b", b), ("c", c)) if y is not None}
    rows = a.rows if at_home["a"] else c.rows if c is not None and at_home["c"] else block(m, grid.rows)
    cols = b.cols if at_home["b"] else c.cols if c is not None and at_home["c"] else block(n, grid.cols)
    return Placement(grid, Layout(rows, a.cols if at_home["a"] else block(k, grid.cols)),
                     Layout(b.rows if at_home["b"] else block(k, grid.rows), cols), Layout(rows, cols), rows, cols,
                     Ranges((k,)))


def block(length: int, parts: int) -> Cyclic:
    return Cyclic(length, max(1, -(-length // parts)), parts)


def layered(grid: Grid, m: int, n: int, k: int, unit: int = 1) -> Placement:
    """With more than one layer everything lies by ranges: k by layers and then by the columns (of A) or rows (of B) of
    the grid, the columns of a tile of C by layers."""
    rows, cols, depth = even(m, grid.rows), even(n, grid.cols), even(k, grid.layers, unit)
    of_a = [end for layer in range(grid.layers) for end in _split(depth, layer, grid.cols)]
    of_b = [end for layer in range(grid.layers) for end in _split(depth, layer, grid.rows)]
    of_c = [end for j in range(grid.cols) for end in _split(cols, j, grid.layers)]
    positions = [(i, j, layer) for i in range(grid.rows) for layer in range(grid.layers) for j in range(grid.cols)]
    every = [(i, j, layer) for i in range(grid.rows) for j in range(grid.cols) for layer in range(grid.layers)]
    return Placement(grid, Layout(rows, Ranges(tuple(of_a)), tuple(grid.rank(*x) for x in positions)),
                     Layout(Ranges(tuple(of_b)), cols),
                     Layout(rows, Ranges(tuple(of_c)), tuple(grid.rank(*x) for x in every)), rows, cols, depth)


def _split(axis: Ranges, part: int, parts: int) -> list[int]:
    """The ends of the ranges into which one range is divided."""
    begin, end = axis.range(part)
    return [begin + (end - begin) * (p + 1) // parts for p in range(parts)]


# ---- panels


def panel_width(k: int, most: int = MOST) -> int:
    """Steps of k in a panel, by k alone: in reproducible order it may depend on nothing else."""
    return min(most, max(LEAST, ceil(k / PANELS / LEAST) * LEAST))


def segments(k: int) -> int:
    """How many sums are combined as a tree in reproducible order: a power of two, by k alone."""
    return min(SEGMENTS, 1 << max(0, (k // SEGMENT).bit_length() - 1))


def segment_length(k: int, width: int) -> int:
    """Steps of k of a segment: whole panels."""
    return max(width, ceil(ceil(k / segments(k)) / width) * width)


class Piece(NamedTuple):
    """The part of a panel that one process has: its row or column of the grid, from which to which of its own indices,
    and where they are in the panel."""

    owner: int
    begin: int
    end: int
    at: Indices


class Panel(NamedTuple):
    """Steps begin ... end - 1 of k, and whose they are. first: of a segment, whose sum begins with it."""

    begin: int
    end: int
    a: tuple[Piece, ...]
    b: tuple[Piece, ...]
    first: bool


def panels(placement: Placement, layer: int, width: int, fixed: bool, unit: int = 1) -> list[Panel]:
    """The panels of a layer, in the order in which they are multiplied. fixed: they begin at multiples of `width`, in
    order of k, and segments of the reproducible order are marked. Else they also begin where another process has k,
    unless such parts are narrow, and processes take turns: all links carry panels at all times. unit: they begin at
    multiples of it, as the parts of k must."""
    width = -(-width // unit) * unit
    if placement.grid.rows == placement.grid.cols == 1 and not fixed:
        width = max(width, placement.depth.length)     # nothing travels
    begin, end = placement.depth.range(layer)
    k = placement.depth.length
    axes = placement.a.cols, placement.b.rows
    segment = segment_length(k, width) if fixed else max(1, k)
    cuts = set(range(begin, end, width))
    if not fixed and all(narrowest(x) >= LEAST for x in axes):
        limits = sorted({begin, end} | {x for axis in axes for x in axis.bounds() if begin < x < end})
        cuts = {x for b, e in pairwise(limits) for x in even_cuts(b, e, width, unit)}
    ends = sorted(cuts | {end} if end > begin else set())
    grid = placement.grid
    sequence = [Panel(b, e, _pieces(axes[0], layer * grid.cols, grid.cols, b, e),
                   _pieces(axes[1], layer * grid.rows, grid.rows, b, e), b == begin or (fixed and b % segment == 0))
             for b, e in pairwise(ends)]
    return sequence if fixed else in_turns(sequence)


def in_turns(found: list[Panel]) -> list[Panel]:
    """One panel of each pair of owners after the other."""
    queues: dict[tuple[int, int], list[Panel]] = {}
    for panel in found:
        queues.setdefault((panel.a[0].owner, panel.b[0].owner), []).append(panel)
    every = [queue[i] for i in range(max(map(len, queues.values()), default=0)) for queue in queues.values()
             if i < len(queue)]
    return [panel._replace(first=i == 0) for i, panel in enumerate(every)]


def even_cuts(begin: int, end: int, width: int, unit: int = 1) -> list[int]:
    parts = max(1, -(-(end - begin) // width))
    return [begin + (end - begin) * p // parts // unit * unit for p in range(parts)]


def narrowest(axis: Axis) -> int:
    """The length of the shortest part that is no remainder."""
    return axis.block if isinstance(axis, Cyclic) else max(axis.count(p) for p in range(axis.parts))


def _pieces(axis: Axis, first: int, parts: int, begin: int, end: int) -> tuple[Piece, ...]:
    pieces = []
    for owner in range(parts):
        indices = axis.indices(first + owner)
        lo, hi = (int(x) for x in indices.searchsorted((begin, end)))
        if hi > lo:
            pieces.append(Piece(owner, lo, hi, indices[lo:hi] - begin))
    return tuple(pieces)
