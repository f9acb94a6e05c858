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

from tilewright.nests.schedules.joining import joinable
from tilewright.nests.schedules.schedule import Schedule
from tilewright.nests.schedules.scheduled import Illegal
from tilewright.nests.search.bands import Band, Move, bands, imperfect, lanes_of, moved
from tilewright.nests.search.estimate import estimate, unrolled_statements
from tilewright.nests.search.gpu_rules import gpu_candidates
from tilewright.nests.tree import For
from tilewright.targets import CpuTarget

DEPTHS = (256, 192, 320, 384, 128, 512)     # rounds of a sum for which its operands' panels stay in a cache
TILES = (8, 16, 32, 64)
POINTS = (8, 16, 12, 10, 9, 7, 6, 5, 4)     # rounds of a loop that are cut apart, so that registers keep scalars
JOINED = (8, 16, 6, 4, 12, 10, 7, 5, 11, 3, 1)  # rounds of loops that are joined
ALONE = 1.0                                 # seconds, of loops that no rule puts on a GPU's threads
SHAPES = 4                                  # of register tiles that are tried
COPIES = 400                                # statements of unrolled code; LLVM takes seconds for twice as many


class Candidate(NamedTuple):
    schedule: Schedule
    words: str
    seconds: float              # as estimated


def candidates(s: Schedule, target: Any, threads: int = 1) -> list[Candidate]:
    """The schedules that are legal, the loops as written among them, best first."""
    if not isinstance(target, CpuTarget):
        ranked = [Candidate(x, words, seconds) for x, words, seconds in gpu_candidates(s, target)]
        return [*ranked, Candidate(s, "as written", max([ALONE, *[2 * c.seconds for c in ranked]]))]
    schedules = {"as written": s}
    for start, words in _separated(s):
        for x, said in _moved(start, target):
            if unrolled_statements(x.now) <= COPIES:
                schedules.setdefault(", ".join(filter(None, (words, said))), x)
    if threads > 1:
        schedules = {words: _shared(x, threads) for words, x in schedules.items()}
    every = [Candidate(x, words, estimate(x.now, target, threads).seconds) for words, x in schedules.items()]
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
    for joined, rows in _joined(s):
        yield joined, f"loops joined by {rows} rows"
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


def _joined(s: Schedule) -> Iterator[tuple[Schedule, int]]:
    """With loops that follow each other joined, several of their rounds at once."""
    def tiled(s: Schedule, one: str, two: str, rows: int) -> Schedule:
        s = s.split(one, rows, f"{one}.j", f"{one}.p").split(two, rows, f"{two}.j", f"{two}.p")
        return s.join(f"{one}.j", f"{two}.j")
    for one, two in joinable(s.now)[:1]:
        n = s.now.loop(one).extent or 0
        for rows in [x for x in JOINED if n % x == 0 and n > x][:2]:
            schedule = _tried(s, partial(tiled, one=one, two=two, rows=rows))
            if schedule is not None and 4 * (schedule.now.loop(f"{one}.j").extent or 0) * rows >= 3 * n:
                yield schedule, rows


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
        if min(b.extents) > 0:
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
        if min(b.extents) < 1 or b.extents[place(lane)] < 2:
            break
        lanes = lanes_of(b, lane, target)
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
        most = b.extents[place(lane)] // lanes_of(b, lane, target)
        shapes_of_parts = [(1, v) for v in (4, 8, 2) if v <= most]
        if rows:
            n = b.extents[place(rows[0])]
            shapes = (4, 1), (4, 2), (8, 1), (2, 4), (2, 2), (3, 2), (5, 1)
            shapes_of_parts = [(r, v) for r, v in shapes if n % r == 0 and v <= most][:3] + shapes_of_parts[:1]
        for r, v in shapes_of_parts:
            yield Move(place(lane), v, place(rows[0]) if r > 1 else -1, r, partial=True)


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
    costs = {}
    for v in (1, 2, 3, 4, 6, 8):
        for r in (1, 2, 3, 4, 6, 8, 12, 14):
            if v > most or r > high or len(targets)*r*v + v*len(along) + 1 > registers:
                continue
            loads = (len(along) - len(both)) * v + (len(down) - len(both)) * r + len(both) * r * v
            clocks = max(r * v / 2, loads / 2, 4.0) / (r * v)
            waste = (-(-wide // (v * lanes)) * v * lanes / wide) * (1 if high % r == 0 else 1.05)
            costs[r, v] = (clocks + 0.02 * loads / (r * v)) * waste
    return sorted(costs, key=lambda x: costs[x])[:SHAPES]


# ---- threads of a CPU

def _shared(s: Schedule, threads: int) -> Schedule:
    """With the outermost loop's rounds shared by threads, if it is one loop and they are independent."""
    if len(s.now.nodes) != 1 or not isinstance(s.now.nodes[0], For):
        return s
    top = s.now.nodes[0]
    return _tried(s, lambda x: x.bind({top.index: "worker"})) or s
