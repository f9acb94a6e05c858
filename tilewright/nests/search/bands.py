"""Bands, and what rules do to them. A band is loops that stand directly one in the other around statements; it is where
a rule of rules.py applies. Which of its loops can be lanes of a vector, which ones only add up, which rows share what
they load: all of it is read from strides. A `Move` is what is done to a band, as data, and `moved` its operations on a
schedule."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright.nests.nest import Access, arithmetic
from tilewright.nests.schedules.schedule import Schedule
from tilewright.nests.schedules.scheduled import Illegal, Scheduled
from tilewright.nests.tree import Do, For, When, walk

NEIGHBOURS = 4              # rounds by which two accesses of a stencil differ


@dataclass(frozen=True)
class Band:
    """`loops`, the outermost first, all without a mark; `outer`, those around them, which have other things in them."""
    scheduled: Scheduled
    loops: tuple[str, ...]
    outer: tuple[str, ...]
    extents: tuple[int, ...]            # at their widest
    statements: tuple[Do, ...]

    def stride(self, access: Access, loop: str) -> int:
        return self.scheduled.stride(access, loop)

    @property
    def accesses(self) -> Iterator[tuple[Access, bool]]:
        for d in self.statements:
            yield from d.accesses()

    @property
    def itemsize(self) -> int:
        """Bytes of the widest elements that are accessed or computed."""
        element = self.scheduled.element
        computed = [arithmetic(d.value, [element(a.array) for a, writes in d.accesses() if not writes])
                    for d in self.statements if d.reduce or d.value[0] != "number"]
        return max(t.bytes for t in (*computed, *[element(a.array) for a, _ in self.accesses]))

    @property
    def signature(self) -> Any:
        """Equal for bands to which the same rule applies in the same way."""
        return self.extents, tuple((d.reduce, tuple(tuple([self.stride(a, x) for x in self.loops])
                                                    for a, _ in d.accesses())) for d in self.statements)

    @property
    def sums(self) -> tuple[str, ...]:
        """Loops in which each statement adds to one element."""
        return tuple([x for x in self.loops if all(d.reduce and not _depends(d.target, x) for d in self.statements)])

    @property
    def lanes(self) -> list[str]:
        """Loops along which arrays are read and written with stride 1, or stand still, best first."""
        weight = {x: sum(self.scheduled.element(a.array).bytes for a, _ in self.accesses if self.stride(a, x) == 1)
                  for x in self.loops if all(self.stride(a, x) in ((1,) if writes else (0, 1))
                                             for a, writes in self.accesses)}
        return sorted(weight, key=lambda x: -weight[x])

    @property
    def summed_lanes(self) -> list[str]:
        """Loops that only add up, along which operands are read with stride 1 or stand still: lanes of partial sums."""
        reads = [a for d in self.statements for a, writes in d.accesses() if not writes and a != d.target]
        return [x for x in self.sums if {self.stride(a, x) for a in reads} in ({1}, {0, 1})]

    def rows(self, lane: str | None) -> list[str]:
        """Loops several rounds of which may be unrolled together, since they share loads: those that most bytes of
        operands do not depend on, or that neighbours of a stencil differ in; best first."""
        weight = {x: self._shared(x) for x in self.loops if x != lane and x not in self.sums}
        return [x for x in sorted(weight, key=lambda x: -weight[x]) if weight[x]]

    def _shared(self, loop: str) -> int:
        element = self.scheduled.element
        reads = list(dict.fromkeys([a for a, writes in self.accesses if not writes and a.subscripts]))
        still = sum(element(a.array).bytes for a in reads if not _depends(a, loop) and
                    self.scheduled.space(a.array) != "registers")
        near = sum(element(a.array).bytes for a in reads for b in reads if a.array == b.array and a != b
                   and any(a.replaced({loop: _later(loop, d)}) == b for d in range(1, NEIGHBOURS)))
        return still + near

    def __str__(self) -> str:
        return " ".join(f"{x}<{n}" for x, n in zip(self.loops, self.extents))


def _later(loop: str, rounds: int) -> Any:
    from tilewright.nests.polynomial import polynomial
    return polynomial(loop) + rounds


def _depends(access: Access, loop: str) -> bool:
    return any(loop in p.names for p in access.subscripts)


def bands(s: Scheduled) -> list[Band]:
    """The bands of a tree in which no loop is unrolled or a vector yet."""
    result = []
    box = _extents(s)
    for node, around in walk(s.nodes):
        if not isinstance(node, For) or any(isinstance(x, For) for x, _ in walk(node.body)):
            continue
        path = [*[x for x in around if isinstance(x, For)], node]
        chain = [node]
        for x in reversed(path[:-1]):
            if len(x.body) > 1 or x.mark:
                break
            chain.insert(0, x)
        if any(x.mark for x in chain):
            continue
        names = tuple([x.index for x in chain])
        result.append(Band(s, names, tuple([x.index for x in path[:len(path) - len(chain)]]),
                          tuple([box[x] for x in names]), tuple([d for d, _ in walk(node.body) if isinstance(d, Do)])))
    return result


def _extents(s: Scheduled) -> dict[str, int]:
    from tilewright.nests.schedules.scheduled import widest
    return {name: last - first + 1 for name, (first, last) in widest(s.nodes, {}).items()}


def imperfect(s: Scheduled) -> list[tuple[str, int]]:
    """(a loop, parts of its body) of loops that have more than one part, a loop among them; the innermost first."""
    pairs = [(n.index, len(n.body)) for n, _ in walk(s.nodes) if isinstance(n, For) and len(n.body) > 1
             and any(isinstance(x, For) for x in n.body)]
    return pairs[::-1]


def conditions(s: Scheduled, loop: str) -> bool:
    """Whether conditions stand in the loop."""
    return any(isinstance(x, When) for x, _ in walk(s.loop(loop).body))


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
    names = [x for x in map(named, (*before, *order, *sums, *points)) if x]
    present = [x.index for x in s.now.loops if x.index in names]
    if len(names) > 1 and names != present:
        s = s.reorder(*names)
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
