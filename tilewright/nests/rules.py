"""Schedules that rules find for a tree of loops: `candidates(schedule, target, threads)`.

    a band          loops directly one in the other (bands.py), after fission where statements stand between loops
    lanes           the loop along which arrays are read with stride 1, or stand still, becomes a vector, innermost
    sums            the tile of targets stays in registers while loops add to it: rows x vectors of it, or rows alone
    neighbours      rows of a stencil are unrolled together, so that they share loads
    tiles           where no loop has lanes, as in a transposition, blocks of two loops stay in the first cache
    workers         the outermost loop is shared by the threads of a CPU, if its rounds are independent

Each rule is a few operations of a Schedule; what an operation refuses is no candidate. Rules that suit a GPU are in
gpu_rules.py. Sizes are those for which the registers suffice.
"""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from tilewright.nests.bands import Band, bands, imperfect
from tilewright.nests.estimate import estimate
from tilewright.nests.schedule import Schedule
from tilewright.nests.scheduled import Illegal
from tilewright.nests.tree import For

DEPTHS = (256, 192, 320, 384, 128, 512)     # rounds of a sum for which its operands' panels stay in a cache
TILES = (8, 16, 32, 64)
POINTS = (8, 16, 12, 10, 9, 7, 6, 5, 4)     # rounds of a loop that are cut apart, so that registers keep scalars
SHAPES = 4                                  # of register tiles that are tried


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


class Candidate(NamedTuple):
    schedule: Schedule
    words: str
    seconds: float              # as estimated


def candidates(s: Schedule, target: Any, threads: int = 1) -> list[Candidate]:
    """The schedules that are legal, the loops as written among them, best first."""
    found = {"as written": s}
    for start, words in _separated(s):
        for x, said in _moved(start, target):
            found.setdefault(", ".join(filter(None, (words, said))), x)
    if threads > 1:
        found = {words: _shared(x, threads) for words, x in found.items()}
    every = [Candidate(x, words, estimate(x.now, target, threads).seconds) for words, x in found.items()]
    return sorted(every, key=lambda c: c.seconds)


def _tried(s: Schedule, *steps: Any) -> Schedule | None:
    """After these steps, functions of a schedule; None if one is illegal."""
    try:
        for step in steps:
            s = step(s)
        return s
    except Illegal:
        return None


# ---- fission

def _separated(s: Schedule) -> Iterator[tuple[Schedule, str]]:
    """The loops as they stand; with statements beside loops cut off; and this within tiles of the outermost loop."""
    yield s, ""
    if not imperfect(s.now):
        return
    apart = _apart(s)
    if apart is not None:
        yield apart, "cut apart"
    outer = imperfect(s.now)[-1][0]
    extent = s.now.loop(outer).extent or 0
    if extent > POINTS[0]:
        rounds, tail = next(((n, "divide") for n in POINTS if extent % n == 0), (POINTS[0], "predicate"))
        tiled = _tried(s, lambda x: x.split(outer, rounds, f"{outer}.o", f"{outer}.p", tail=tail))
        if tiled is not None and (apart := _apart(tiled, {f"{outer}.p"})) is not None:
            yield apart, f"cut apart in tiles of {rounds}"


def _apart(s: Schedule, among: set[str] | None = None) -> Schedule | None:
    """With loops that have several parts cut, the innermost first; None where none can be."""
    changed = False
    refused: set[str] = set()
    while True:
        open = [x for x, _ in imperfect(s.now) if x not in refused and (
            among is None or any(x == y or x.startswith(f"{y}.") for y in among))]
        if not open:
            return s if changed else None
        wide = any(a.array in s.now.buffers for d, around in s.now.statements for a, _ in d.accesses()
                   if any(isinstance(x, For) and x.index == open[0] for x in around))
        rounds = s.now.loop(open[0]).extent or 0
        cut = None if wide and rounds > max(POINTS) else _tried(s, partial(Schedule.fission, loop=open[0], after=1))
        if cut is None:
            refused.add(open[0])
        else:
            s, changed = cut, True


# ---- bands

def _moved(s: Schedule, target: Any) -> Iterator[tuple[Schedule, str]]:
    """Every move of the costliest kind of band, with the best moves of the others."""
    kinds: dict[Any, Band] = {}
    for b in bands(s.now):
        kinds.setdefault(b.signature, b)
    heavy = sorted(kinds.values(), key=lambda b: -_rounds(b))
    if not heavy:
        return
    for b in heavy[1:]:
        best, least = s, estimate(s.now, target).seconds
        for move in moves(b, target):
            x = _everywhere(s, b.signature, move, target)
            if x is not None and (seconds := estimate(x.now, target).seconds) < least:
                best, least = x, seconds
        s = best
    if len(heavy) > 1:
        yield s, "the outer parts"
    for move in moves(heavy[0], target):
        x = _everywhere(s, heavy[0].signature, move, target)
        if x is not None:
            yield x, str(move)


def _rounds(b: Band) -> int:
    total = len(b.statements)
    for n in (*b.extents, *[b.scheduled.loop(x).extent or 1 for x in b.outer]):
        total *= n
    return total


def _everywhere(s: Schedule, signature: Any, move: Move, target: Any) -> Schedule | None:
    for b in bands(s.now):
        if b.signature == signature:
            x = _tried(s, lambda s, b=b: moved(s, b, move, target))
            if x is None:
                return None
            s = x
    return s


def moves(b: Band, target: Any) -> Iterator[Move]:
    """What rules say of a band, sizes that registers allow."""
    place = b.loops.index
    for lane in b.lanes[:1]:
        if b.extents[place(lane)] < 2:
            break
        lanes = _lanes(b, lane, target)
        tails: tuple[str, ...] = ("predicate", "cut") if b.extents[place(lane)] % lanes else ("predicate",)
        if any(b.scheduled.space(a.array) == "registers" for a, _ in b.accesses):
            tails = tails[-1:]              # registers have no elements beyond the last one
        row = next(iter(b.rows(lane)), None)
        for rows, vectors in _shapes(b, lane, row, lanes, target):
            at = -1 if row is None or rows == 1 else place(row)
            for tail in tails:
                move = Move(place(lane), vectors, at, rows, tail=tail)
                yield move
                if b.sums and at >= 0:
                    yield move._replace(lane_first=True)
                    if depth := _depth(b):
                        yield move._replace(lane_first=True, depth=depth)
    if not b.lanes:
        others = [x for x in b.loops if x not in b.sums and b.extents[place(x)] > 1]
        if b.sums:
            yield from _partial_moves(b, target, (b.rows(None) or others)[:1])
            for row in (b.rows(None) or others)[:1]:
                for rows in (4, 8, 16):
                    if rows <= b.extents[place(row)]:
                        yield Move(row=place(row), rows=rows)
        elif len(others) > 1:
            along = {x: [writes for a, writes in b.accesses if abs(b.stride(a, x)) == 1] for x in others}
            first = [x for x in others if True in along[x]]
            second = [x for x in others if False in along[x] and x not in first[:1]]
            if first and second:
                for n in TILES:
                    yield Move(tile=(place(second[0]), place(first[0]), n))


def _partial_moves(b: Band, target: Any, rows: list[str]) -> Iterator[Move]:
    place = b.loops.index
    for lane in b.summed_lanes[:1]:
        most = b.extents[place(lane)] // _lanes(b, lane, target)
        found = [(1, v) for v in (4, 8, 2) if v <= most]
        if rows:
            n = b.extents[place(rows[0])]
            shapes = (4, 1), (4, 2), (8, 1), (2, 4), (2, 2), (3, 2), (5, 1)
            found = [(r, v) for r, v in shapes if n % r == 0 and v <= most][:3] + found[:1]
        for r, v in found:
            yield Move(place(lane), v, place(rows[0]) if r > 1 else -1, r, partial=True)


def _lanes(b: Band, lane: str, target: Any) -> int:
    """Elements of a vector: of a register's size, or for shorter loops a power of two."""
    lanes: int = target.lanes(b.itemsize)
    return min(lanes, 1 << (b.extents[b.loops.index(lane)].bit_length() - 1))


def _depth(b: Band) -> int:
    """Rounds of a block of the first summing loop: a divisor; 0 where it is short."""
    n = b.extents[b.loops.index(b.sums[0])]
    return next((d for d in DEPTHS if n >= 2 * d and n % d == 0), 0)


def _shapes(b: Band, lane: str, row: str | None, lanes: int, target: Any) -> list[tuple[int, int]]:
    """(rows, vectors) of tiles, the best first: few loads for each multiply-add, enough sums at once, little waste."""
    wide, registers = b.extents[b.loops.index(lane)], target.tile_registers
    high = b.extents[b.loops.index(row)] if row is not None else 1
    most = max(1, -(-wide // lanes))
    if not b.sums:
        near = (1, 2, 4) if row is not None else (1,)
        return [(r, v) for v in (1, 2, 4) for r in near if v <= most and r <= high]
    assert b.sums
    reads = list(dict.fromkeys([a for a, writes in b.accesses if not writes]))
    targets = {d.target for d in b.statements}
    operands = [a for a in reads if a not in targets and a.subscripts]
    along = [a for a in operands if any(lane in p.names for p in a.subscripts)]
    down = [a for a in operands if row is not None and any(row in p.names for p in a.subscripts)]
    both = [a for a in along if a in down]
    found = {}
    for v in (1, 2, 3, 4, 6, 8):
        for r in (1, 2, 3, 4, 6, 8, 12, 14):
            if v > most or r > high or len(targets)*r*v + v*len(along) + 1 > registers:
                continue
            loads = (len(along) - len(both)) * v + (len(down) - len(both)) * r + len(both) * r * v
            clocks = max(r * v / 2, loads / 2, 4.0) / (r * v)
            waste = (-(-wide // (v * lanes)) * v * lanes / wide) * (1 if high % r == 0 else 1.05)
            found[r, v] = (clocks + 0.02 * loads / (r * v)) * waste
    return sorted(found, key=lambda x: found[x])[:SHAPES]


# ---- a move

def moved(s: Schedule, b: Band, move: Move, target: Any) -> Schedule:
    """The schedule after a move; Illegal where it is not."""
    if move.tile[2]:
        return _tiled(s, b, move)
    if move.partial:
        return _in_parts(s, b, move, target)
    lane, row = (b.loops[x] if x >= 0 else None for x in (move.lane, move.row))
    lanes = _lanes(b, lane, target) if lane is not None else 1
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
    lanes = _lanes(b, lane, target)
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


# ---- threads of a CPU

def _shared(s: Schedule, threads: int) -> Schedule:
    """With the outermost loop's rounds shared by threads, if it is one loop and they are independent."""
    if len(s.now.nodes) != 1 or not isinstance(s.now.nodes[0], For):
        return s
    top = s.now.nodes[0]
    return _tried(s, lambda x: x.bind({top.index: "worker"})) or s
