"""Tables of offsets for scattered operands: kernels/cpu/scattered.py says what they hold.

An operand's lines (rows of A, columns of B) and steps of k are groups of axes, each with extents and strides in
elements. Where a group has one stride it needs no table; where one of an operand's two groups has none, both get one.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.cpu import jobs

Axes = Sequence[tuple[int, int]]            # (extent, stride) of a group, the outermost first
Offsets = NDArray[np.int64]

TILE = 32               # elements along each of two axes
MOST_PIECES = 3         # runs of lines in a vector, above which lines are read one by one


@dataclass(frozen=True, eq=False)
class Scattered:
    """An operand's tables, and how packing reads it: KIND and PIECES of its emitter."""
    lines: Offsets
    steps: Offsets
    kind: str
    pieces: int


@dataclass(frozen=True, eq=False)
class ScatteredC:
    """Tables of C's rows and columns, and how its rows are stored."""
    rows: Offsets
    columns: Offsets
    kind: str
    pieces: int


class Tables(NamedTuple):
    """Tables of operands that have no strides; None for those that have."""
    a: Scattered | None = None
    b: Scattered | None = None
    c: ScatteredC | None = None


def single_stride(axes: Axes) -> int | None:
    """The stride of all of a group; None if it has no one stride."""
    axes = [axis for axis in axes if axis[0] != 1]
    if any(outer != extent * inner for (_, outer), (extent, inner) in pairwise(axes)):
        return None
    return axes[-1][1] if axes else 1


def offsets(axes: Axes) -> Offsets:
    """Offsets of every element of a group from the first one, the last axis fastest."""
    distances = (np.arange(extent, dtype=np.int64) * stride for extent, stride in axes)
    return reduce(lambda x, y: np.add.outer(x, y).ravel(), distances, np.zeros(1, np.int64))


def tiled(first: Axes, second: Axes, side: int = 0) -> Offsets | None:
    """An order of a group's elements in which both of two operands with these strides have runs: blocks of TILE x TILE
    of the axes along which they are contiguous. None: the axes' own order has them, or one operand has none.

    side: strips of so many elements of the first operand follow each other along the second one's axis, so that `side`
    such strips are a square; shorter ones come last.
    """
    along = [_along_axis(axes) for axes in (first, second)]
    if None in along or along[0] == along[1]:
        return None
    extents = [extent for extent, _ in first]
    index = np.unravel_index(np.arange(prod(extents)), extents)
    x, y = (index[at] for at in along if at is not None)
    rest = [index[at] for at in reversed(range(len(first))) if at not in along]
    number, place, length = _strip(x, x.max(initial=0) + 1, side or TILE)
    last = [length < side] if side else []
    keys = place, y % TILE, number * side % TILE, number * (side or TILE) // TILE, y // TILE, *rest, *last
    return np.lexsort(keys).astype(np.int64)


def strips(first: Axes, order: Offsets, side: int) -> Offsets:
    """For each element in `tiled`'s order how many elements its strip of the first operand has left."""
    at = _along_axis(first)
    assert at is not None
    _, place, length = _strip(np.unravel_index(order, [extent for extent, _ in first])[at], first[at][0], side)
    return length - place


def _along_axis(axes: Axes) -> int | None:
    """Along which of its axes a group is contiguous."""
    return next((at for at, (extent, stride) in enumerate(axes) if stride == 1 and extent > 1), None)


def _strip(x: Any, extent: int, side: int) -> tuple[Offsets, Offsets, Offsets]:
    """For each place x of an axis the number of its strip, its place there, and the strip's length: `side`, or at the
    end less, but not less than half of it if the axis is as long."""
    lengths, rest = [side] * (extent // side), extent % side
    if lengths and 0 < 2 * rest < side:
        rest += lengths.pop()
        lengths.append(-(-rest // 2))
        rest //= 2
    lengths += [rest] * bool(rest)
    starts = np.cumsum([0, *lengths[:-1]])
    number = np.searchsorted(starts, x, "right") - 1
    return number, x - starts[number], np.asarray(lengths, np.int64)[number]


def square_side(width: int, lanes: int, extent: int) -> int:
    """The side of squares, as large as a panel of this width has room for most of one, and half of it has elements in
    an axis of this extent."""
    return next(side for side in (16, 8, 4, 2) if side <= lanes and 3 * side * side <= 4 * width and side <= 2 * extent)


def scattered(lines: Offsets, steps: Offsets, depth: int, lanes: int, whole: bool, masked: bool,
              strip: Offsets | None = None, side: int = 0) -> Scattered:
    """The tables of an operand that is packed in vectors of `lanes`, in blocks of `depth` steps of k. whole: panels are
    whole vectors wide. masked: parts of vectors can be loaded fast. strip, side: of squares, whose order
    lines are in.
    """
    if strip is not None:
        row = np.arange(len(steps)) % depth
        return Scattered(_lines(lines, _strips(lines, strip)), _table(steps, _runs(steps), row, np.ones_like(row)),
                         "squares", side)
    together, pieces = _runs(lines), 0
    if masked or together[0] == len(lines):
        pieces = _pieces(together, lanes)
    order, apart = np.arange(len(steps)), np.ones(len(steps), np.int64)
    kind, run = "across" if pieces else "any", np.ones(len(steps), np.int64)
    if not pieces:
        in_order = _runs(steps)
        visited, further, runs = (np.concatenate(parts) for parts in zip(*(
            _along(steps[at : at + depth]) for at in range(0, len(steps), depth))))
        if whole and (runs >= lanes).sum() > (in_order >= lanes).sum():
            order = visited + order // depth * depth
            apart, run, kind = further, runs, "along"
        elif (in_order >= lanes).any():
            run, kind = in_order, "along"
    row = order % depth
    return Scattered(_lines(lines, together), _table(steps[order], run, row, apart), kind, pieces)


def scattered_c(rows: Offsets, columns: Offsets, lanes: int, side: int = 0) -> ScatteredC:
    together = _runs(columns)
    kind, pieces = ("squares", side) if side else ("across", _pieces(together, lanes))
    return ScatteredC(_lines(rows, _runs(rows)), _table(columns, together), kind if pieces else "any", pieces)


def _lines(offsets: Offsets, runs: Offsets) -> Offsets:
    """With more entries than there are lines, for prefetches."""
    more = jobs.MOST_ROWS
    return _table(np.append(offsets, np.full(more, offsets[-1])), np.append(runs, np.ones(more, np.int64)))


def _table(*fields: Any) -> Offsets:
    rows = np.ascontiguousarray(np.stack(fields, axis=1), dtype=np.int64)
    assert rows.shape[1] in (jobs.LINE_FIELDS, jobs.STEP_FIELDS)
    return rows


def _ahead(holds: NDArray[np.bool_]) -> Offsets:
    """For each place how many places from there on hold, without a gap."""
    number = np.arange(len(holds))
    gaps = np.where(holds, len(holds), number)
    return np.minimum.accumulate(gaps[::-1])[::-1] - number


def _runs(x: Offsets) -> Offsets:
    """For each element how many, it and those after it, follow each other at a distance of 1."""
    return np.append(_ahead(np.diff(x) == 1), 0) + 1


def _strips(lines: Offsets, left: Offsets) -> Offsets:
    """For each line the runs of `squares`. left: of each line how many its strip has left; a panel may begin within."""
    limits, firsts = left + jobs.STRIP, np.flatnonzero(np.append(True, left[:-1] == 1))
    lengths, offsets = left[firsts], lines[firsts]
    alike = (np.diff(offsets) == 1) & (np.diff(lengths) == 0)
    limits[firsts] = lengths + jobs.STRIP*(1 + np.append(_ahead(alike), 0)[: len(firsts)])
    return limits


def _pieces(runs: Offsets, lanes: int) -> int:
    """The most runs that a vector of lines meets; 0 if that is too many."""
    ends = np.flatnonzero(runs == 1)                        # of runs
    first = np.arange(len(runs))
    last = np.minimum(first + lanes - 1, len(runs) - 1)
    most = int((np.searchsorted(ends, last) - np.searchsorted(ends, first)).max(initial=0)) + 1
    return most if most <= MOST_PIECES else 0


def _along(steps: Offsets) -> tuple[NDArray[Any], Offsets, Offsets]:
    """The steps of a block in the order of the operand's memory; of each the distance in rows to the next one, and how
    many from there on lie side by side and are as far apart."""
    order = np.argsort(steps, kind="stable")
    adjacent, apart = np.diff(steps[order]) == 1, np.diff(order)
    alike = np.zeros(len(adjacent) + 1, np.bool_)           # this distance and the one before
    alike[1:-1] = adjacent[1:] & adjacent[:-1] & (apart[1:] == apart[:-1])
    run = np.append(np.where(adjacent, 2 + _ahead(alike)[1:], 1), 1)
    return order, np.append(apart, 1), run
