"""What rules do to a band: a `Move` as data, and its operations on a schedule."""
from __future__ import annotations

from typing import Any, NamedTuple

from tilewright.nests.schedules.schedule import Schedule
from tilewright.nests.schedules.scheduled import Illegal
from tilewright.nests.search.bands import Band
from tilewright.nests.tree import For


class Move(NamedTuple):
    """What is done to a band; loops by their places in it, -1 for none."""
    lane: int = -1
    vectors: int = 1
    row: int = -1
    rows: int = 1
    depth: int = 0              # rounds of the first summing loop that are a block, around all others
    lane_first: bool = False    # the loop over vectors stands around that over rows
    tail: str = "predicate"     # of the lanes
    tile: tuple[int, int, int] = (-1, -1, 0)    # two loops, and the rounds of a tile of both
    partial: bool = False       # the lane adds up: each of its lanes is a part of the sum

    def __str__(self) -> str:
        words = []
        if self.tile[2]:
            words.append(f"tiles of {self.tile[2]} x {self.tile[2]}")
        if self.row >= 0 and self.rows > 1:
            words.append(f"{self.rows} rows")
        if self.lane >= 0:
            words.append(f"{self.vectors} vector{'s' * (self.vectors > 1)}" + " of partial sums" * self.partial)
        if self.depth:
            words.append(f"sums in blocks of {self.depth}")
        if self.lane_first:
            words.append("columns outside")
        if self.tail == "cut":
            words.append("the rest apart")
        return ", ".join(words) or "as written"


def lanes_of(b: Band, lane: str, target: Any) -> int:
    """Elements of a vector: of a register's size, or for shorter loops a power of two."""
    lanes: int = target.lanes(b.itemsize)
    return min(lanes, 1 << (b.extents[b.loops.index(lane)].bit_length() - 1))


def moved(s: Schedule, b: Band, move: Move, target: Any) -> Schedule:
    """The schedule after a move; Illegal where it is not."""
    if move.tile[2]:
        return _tiled(s, b, move)
    if move.partial:
        return _in_parts(s, b, move, target)
    lane, row = (b.loops[x] if x >= 0 else None for x in (move.lane, move.row))
    lanes = lanes_of(b, lane, target) if lane is not None else 1
    sums = list(b.sums)
    outs = [x for x in b.loops if x not in sums]
    before, blocks = list[str](), {x: x for x in outs}
    points: list[str] = []
    if move.depth:
        k = sums[0]
        s = s.split(k, move.depth, f"{k}.b", k)
        before.append(f"{k}.b")
    if lane is not None:
        width = min(move.vectors, -(-b.extents[move.lane] // lanes)) * lanes
        s, blocks[lane] = _split(s, b, lane, width, move.tail)
        points.append(f"{lane}.l")
    tails = [""]
    if row is not None and move.rows > 1:
        n = b.extents[move.row]
        tail = "divide" if n % move.rows == 0 else "cut"
        s, blocks[row] = _split(s, b, row, move.rows, tail)
        points.insert(0, f"{row}.r")
        tails += [".tail"] if tail == "cut" else []
    order = [blocks[x] for x in outs if x not in (lane, row) and blocks[x]]
    two = [blocks[x] for x in ((lane, row) if move.lane_first else (row, lane)) if x is not None and blocks[x]]
    if row is None:
        order = [blocks[x] for x in outs if blocks[x]]
    else:
        order += two
    for tail in tails:
        s = _finished(s, b, before, order, sums, points, row, lane, lanes, tail)
    return s


def _split(s: Schedule, b: Band, loop: str, factor: int, tail: str) -> tuple[Schedule, str]:
    """The loop's points are loop.l or loop.r; (the schedule, the loop around them)."""
    suffix = ".l" if loop in b.lanes[:1] else ".r"
    n = s.now.loop(loop).extent
    tail = "divide" if n is not None and n % factor == 0 else tail
    return s.split(loop, factor, f"{loop}.o", loop + suffix, tail=tail), f"{loop}.o"


def _finished(s: Schedule, b: Band, before: list[str], order: list[str], sums: list[str], points: list[str],
              row: str | None, lane: str | None, lanes: int, tail: str) -> Schedule:
    """The loops in their order, targets in registers, vectors and rows unrolled: of whole tiles, or of the rest of
    rows."""
    def named(x: str) -> str:
        """The name of a loop in the rest: of those that stood in the loop over rows."""
        if not tail:
            return x
        if row is not None and x in (f"{row}.o", f"{row}.r"):
            return f"{row}{tail}" if x.endswith(".r") else ""
        return x + tail if any(y.index == x + tail for y in s.now.loops) else x
    inner = [named(x) for x in points]
    whole = [x for x in map(named, (*before, *order, *sums, *points)) if x]
    present = [x.index for x in s.now.loops if x.index in whole]
    if len(whole) > 1 and whole != present:
        s = s.reorder(*whole)
    copies: list[str] = []
    if sums:
        for access in dict.fromkeys([d.target for d in b.statements]):
            if s.now.space(access.array) == "global":
                s, new = _kept(s, access.array, named(sums[0]), inner)
                copies += new
    vector = named(f"{lane}.l") if lane is not None else None
    if vector is not None:
        s = s.vectorize(vector, lanes=lanes)
        for x in dict.fromkeys(x.index for x in s.now.loops):
            if x in [f"{c}.{vector}" for c in copies]:
                s = s.vectorize(x, lanes=lanes)
    rows = [x for x in inner if x != vector]
    rows += [x for x in dict.fromkeys(y.index for y in s.now.loops) if x in [f"{c}.{y}" for c in copies for y in rows]]
    return s.unroll(*rows) if rows else s


def _kept(s: Schedule, array: str, around: str, points: list[str]) -> tuple[Schedule, list[str]]:
    uses = [a for d, loops in s.now.statements if any(isinstance(x, For) and x.index == around for x in loops)
            for a, _ in d.accesses() if a.array == array]
    axes = tuple([x for x in points if any(x in p.names for p in uses[0].subscripts)])
    return s.stage(array, around, axes, "registers"), [array]


def _in_parts(s: Schedule, b: Band, move: Move, target: Any) -> Schedule:
    """Partial sums: vectors of them along the loop that adds up, for several rows at once."""
    lane, row = b.loops[move.lane], b.loops[move.row] if move.row >= 0 else None
    lanes = lanes_of(b, lane, target)
    width, n = move.vectors * lanes, b.extents[move.lane]
    outer, point = f"{lane}.o", f"{lane}.l"
    outs, sums = [x for x in b.loops if x not in b.sums], [x for x in b.sums if x != lane]
    if len(b.loops) > 1:
        s = s.reorder(*[x for x in outs if x != row], *[x for x in (row,) if x], *sums, lane)
    s = s.split(lane, width, outer, point, tail="divide" if n % width == 0 else "cut")
    points = [point]
    if row is not None:
        s = s.split(row, move.rows, f"{row}.o", f"{row}.r")
        points.insert(0, f"{row}.r")
        if n % width and sums:
            raise Illegal(f"{lane} has a rest in loops that add up, too")
        if n % width:
            s = s.fission(f"{row}.r", 1)
        s = s.reorder(*sums, outer, f"{row}.r", point)
    elif n % width and sums:
        s = s.fission(sums[-1], 1)
    array = b.statements[0].target.array
    s = s.partial(array, ([outer] if n % width and not row else [*sums, outer])[0], tuple(points))
    return s.vectorize(point, f"{array}.{point}", lanes=lanes)


def _tiled(s: Schedule, b: Band, move: Move) -> Schedule:
    one, two = (b.loops[x] for x in move.tile[:2])
    for x in (one, two):
        n = s.now.loop(x).extent or 0
        tail = "divide" if n % move.tile[2] == 0 else "predicate"
        s = s.split(x, min(move.tile[2], n), f"{x}.o", f"{x}.t", tail=tail)
    others = [x for x in b.loops if x not in (one, two)]
    return s.reorder(*others, f"{two}.o", f"{one}.o", f"{one}.t", f"{two}.t")
