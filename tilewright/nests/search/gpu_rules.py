"""Schedules that rules find for a GPU: `candidates(schedule, target)`.

    threads     the loop along which most elements are consecutive goes to consecutive threads; it and a loop around it
                are CTAs of threads, if their rounds are independent
    sums        an element that loops add to stays in a register; or a tile of them for each thread, rows and columns
                that share what they load
    shared      operands of such tiles go through shared memory, for all threads of the CTA
    rows        a warp, or all threads of a CTA, share the loops of each round, and add up their parts of sums: rows
                that carry a sum, as a softmax's

An estimate from counts ranks them: instructions, sectors from L2, bytes from memory, and how much of the chip is busy.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product, takewhile
from math import prod
from typing import Any

from tilewright.nests.nest import LEAVES, Access, Term
from tilewright.nests.schedules.counts import rounds
from tilewright.nests.schedules.lanes import WARP
from tilewright.nests.schedules.operations import independent
from tilewright.nests.schedules.schedule import Schedule
from tilewright.nests.schedules.scheduled import Illegal, Scheduled
from tilewright.nests.search.bands import Band, bands
from tilewright.nests.tree import Do, For

SECTOR = 32             # bytes
BANDWIDTH, L2 = 3e12, 5e12      # bytes a second, where a target's record has none
START, CTA = 4e-6, 1.2e-9       # seconds of a launch, and from one CTA's start to the next one's (an H200)
ROWS = ((32, 16), (32, 8), (32, 4), (128, 1), (256, 1), (1024, 1))   # threads of a row, rows of a CTA
FLAT = ((256, 1), (128, 1), (64, 4), (32, 8), (32, 4), (128, 2))       # threads along x and y
EACH = (4, 8)           # rounds of a thread
TILES = ((64, 4, 8), (128, 8, 8), (64, 8, 8), (32, 4, 8), (32, 2, 16))    # columns of a CTA, of a thread, depth
Ranked = tuple[Schedule, str, float]


def gpu_candidates(s: Schedule, target: Any) -> list[Ranked]:
    """The schedules that are legal, best first, with an estimate of seconds."""
    found: dict[str, Schedule] = {}
    for words, rule in _structures(s, getattr(target, "warp", WARP)):
        try:
            found.setdefault(words, rule())
        except Illegal:
            continue
    every = [(x, words, gpu_seconds(x.now, target)) for words, x in found.items()]
    return sorted(every, key=lambda x: x[2])


def _structures(s: Schedule, warp: int) -> Iterator[tuple[str, Callable[[], Schedule]]]:
    chain = _chain(s)
    if not chain:
        return
    free = [x for x in chain if _independent(s, x)]
    if not free:
        return
    outer = list(takewhile(lambda x: x in free, chain))
    longest = max([x.extent or 0 for x in s.now.loops if x.index not in outer], default=0)
    if 1 <= len(outer) <= 3:
        for threads, rows in (x for x in ROWS if x[0] % warp == 0 and x[0] <= longest):
            words = f"{threads} threads for each row" + f", {rows} rows in a CTA" * (rows > 1)
            yield words, partial(_rows, s, outer, threads, rows)
            yield f"{words}, held in registers", partial(_rows, s, outer, threads, rows, True)
    band = next((b for b in bands(s.now) if set(chain) <= set(b.loops)), None)
    order = sorted(free, key=lambda x: -_consecutive(s.now, x))
    sums = list(band.sums) if band is not None else []
    for across, down in FLAT:
        x, y = order[0], next((z for z in free if z != order[0]), None)
        if (y is None) == (down > 1):
            continue
        rest = [z for z in chain if z not in (x, y)]
        words = f"{across} x {down} threads" if y is not None else f"{across} threads"
        yield words, partial(_threads, s, x, y, across, down, rest, sums, band)
        for each in EACH if not sums else ():
            yield f"{words}, {each} {'rows' if y is not None else 'numbers'} each", partial(
                _threads, s, x, y, across, down, rest, sums, band, each)
    if band is not None and sums and len(order) > 1:
        for (wide, mine, depth), shared in product(TILES, (True, False)):
            words = f"tiles of {wide} x {wide}, {mine} x {mine} for each thread" + ", shared memory" * shared
            yield words, partial(_tiles, s, band, order[0], order[1], wide, mine, depth if shared else 0)


def _chain(s: Schedule) -> list[str]:
    """Loops directly one in the other, from the outermost on, that have constant numbers of rounds."""
    nodes, found = s.now.nodes, list[str]()
    while len(nodes) == 1 and isinstance(nodes[0], For) and nodes[0].extent is not None:
        found.append(nodes[0].index)
        nodes = nodes[0].body
    return found


def _independent(s: Schedule, loop: str) -> bool:
    try:
        independent(s.now, [loop])
        return True
    except Illegal:
        return False


def _consecutive(s: Scheduled, loop: str) -> int:
    """Bytes that consecutive threads access beside each other, less those that they do not."""
    total = 0
    for d, _ in s.statements:
        for a, writes in d.accesses():
            if a.subscripts and s.space(a.array) == "global":
                step = abs(s.stride(a, loop))
                total += s.element(a.array).bytes * (1 + writes) * (2 if step == 1 else 0 if step == 0 else -2)
    return total


def _split(s: Schedule, loop: str, factor: int, outer: str, inner: str) -> Schedule:
    extent = s.now.loop(loop).extent or 0
    return s.split(loop, factor, outer, inner, tail="divide" if extent % factor == 0 else "predicate")


def _threads(s: Schedule, x: str, y: str | None, across: int, down: int, rest: list[str], sums: list[str],
             band: Band | None, each: int = 1) -> Schedule:
    """A thread for each round of one loop, or of two; or for `each` rounds of the second one, which share loads, or of
    the only one."""
    last = [f"{x if y is None else y}.r"] * (each > 1)
    if last and y is None:
        s = _split(s, x, across * each, f"{x}.b", x).split(x, across, last[0], f"{x}.t")
    else:
        s = _split(s, x, across, f"{x}.b", f"{x}.t")
    places, order = {f"{x}.b": "block.x", f"{x}.t": "thread.x"}, [f"{x}.b", f"{x}.t"]
    if y is not None:
        if last:
            s = _split(s, y, each, f"{y}.q", last[0])
        s = _split(s, f"{y}.q" if last else y, down, f"{y}.b", f"{y}.t")
        places |= {f"{y}.b": "block.y"} | ({f"{y}.t": "thread.y"} if down > 1 else {})
        order = [f"{y}.b", f"{x}.b", f"{y}.t", f"{x}.t"]
    rest = [z for z in rest if z not in sums] + [z for z in rest if z in sums] + last
    s = s.reorder(*order, *rest) if len(order) + len(rest) > 1 else s
    s = (s.unroll(*last) if last else s).bind(places)
    if sums and band is not None and sums[0] in rest:
        for array in dict.fromkeys(d.target.array for d in band.statements):
            outs = [z for z in rest if z not in sums]
            if not outs and s.now.space(array) == "global":
                s = s.stage(array, sums[0], (), "registers")
    return s


def _rows(s: Schedule, outer: list[str], threads: int, rows: int, hold: bool = False) -> Schedule:
    """A CTA, or a row of its threads, for each round of the outer loops, whose lanes share the loops inside."""
    last = outer[-1]
    places = {last: "block.x"}
    if rows > 1:
        s = _split(s, last, rows, f"{last}.b", f"{last}.t")
        places = {f"{last}.b": "block.x", f"{last}.t": "thread.y"}
    return s.bind({**places, **dict(zip(outer[-2::-1], ("block.y", "block.z")))}).lanes(threads, hold=hold)


def _tiles(s: Schedule, b: Band, x: str, y: str, wide: int, mine: int, depth: int) -> Schedule:
    """Tiles of rows and columns for each thread, in registers; operands through shared memory if there is a depth."""
    sums = list(b.sums)
    last = sums[-1]
    if len(b.loops) != len(sums) + 2:
        raise Illegal("tiles are of two loops")
    if depth:
        if (s.now.loop(last).extent or 0) % depth:
            raise Illegal(f"{depth} does not divide {last}")
        s = s.split(last, depth, f"{last}.o", last)
    for z in (y, x):
        extent = s.now.loop(z).extent or 0
        if extent % wide:
            raise Illegal(f"{wide} does not divide {z}")
        s = s.split(z, wide, f"{z}.b", z).split(z, mine, f"{z}.t", f"{z}.r")
    outer = [f"{last}.o"] if depth else []
    s = s.reorder(f"{y}.b", f"{x}.b", f"{y}.t", f"{x}.t", *sums[:-1], *outer, last, f"{y}.r", f"{x}.r")
    s = s.bind({f"{y}.b": "block.y", f"{x}.b": "block.x", f"{y}.t": "thread.y", f"{x}.t": "thread.x"})
    first = [*sums[:-1], *outer, last][0]
    target = b.statements[0].target.array
    s = s.stage(target, first, (f"{y}.r", f"{x}.r"), "registers")
    reads = dict.fromkeys(a for d in b.statements for a, writes in d.accesses() if not writes and a.array != target)
    for a in reads:
        depends = {name for p in a.subscripts for name in p.names}
        along, down = x in depends, y in depends
        if along == down:
            continue
        z = x if along else y
        name = a.array
        if depth:
            axes = (last, f"{z}.t", f"{z}.r") if last in depends else (f"{z}.t", f"{z}.r")
            s = s.stage(name, last, axes, "shared")
            name = s.steps[-1].sentence.split(" as ")[1].split(",")[0]
        s = s.stage(name, f"{y}.r", (f"{z}.r",), "registers")
    return s.unroll(f"{y}.r", f"{x}.r")


# ---- an estimate

def gpu_seconds(s: Scheduled, target: Any) -> float:
    """The time of a launch, by counts: for ranks alone."""
    units = getattr(target, "sms", 0) or getattr(target, "cus", 0) or 100
    clock = getattr(target, "clock", 0) or 1.5e9
    loops = {x.index: x for x in s.loops}
    ctas = prod([x.extent or 1 for x in loops.values() if x.mark.startswith("block")])
    threads = prod([x.extent or 1 for x in loops.values() if x.mark.startswith("thread")])
    lane = next((x for x in loops.values() if x.mark == "thread.x"), None)
    if lane is None:
        return 1e3
    warp = getattr(target, "warp", 32)
    issued = sectors = 0.0
    arrays = set[str]()
    for d, around in s.statements:
        together = any(isinstance(x, For) and x.mark.startswith("together") for x in around)
        mine = tuple([x for x in around if not (together and isinstance(x, For) and x.mark.startswith("thread"))])
        runs = rounds(mine) / warp
        issued += runs * (1 + _operations(d.value))
        vectors = [x for x in around if isinstance(x, For) and x.mark == "vector"]
        for a, _ in d.accesses():
            space, item = s.space(a.array), s.element(a.array).bytes
            if space == "registers":
                continue
            wide = prod([x.extent or 1 for x in vectors if s.stride(a, x.index) == 1])
            issued += runs * (2 if space == "shared" else 3) * _loaded(d, a, around) / wide
            if space == "global":
                arrays.add(a.array)
                step = 1 if together else abs(s.stride(a, lane.index)) / wide
                sectors += runs * min(warp, max(1.0, step * item * min(warp, lane.extent or 1) / SECTOR))
    filled = min(1.0, ctas * max(threads, 1) / (units * 512)) if ctas < 4 * units else 1.0
    bytes = sum(prod(s.shape(x)) * s.element(x).bytes for x in arrays)
    times = (ctas * CTA, issued / (units * 4 * clock * max(filled, 1e-3)), sectors * SECTOR / L2 / max(filled, 1e-2),
             bytes / (getattr(target, "bandwidth", 0) or BANDWIDTH))
    return START + max(times) + 0.2 * (sum(times) - max(times))


def _loaded(d: Do, a: Access, around: Sequence[Any]) -> float:
    """The part of an array's loads by a statement that remains, where rounds that are code load an element once."""
    own = {name for p in a.subscripts for name in p.names}
    codes = [x for x in around if isinstance(x, For) and x.mark == "unroll" and x.index in own]
    every = [x for x, writes in d.accesses() if x.array == a.array and not writes]
    if len(codes) != 1 or len(every) < 2 or (codes[0].extent or 0) > max(EACH):
        return 1.0
    rounds = range(codes[0].extent or 1)
    return len({x.replaced({codes[0].index: n}) for x in every for n in rounds}) / (len(every) * len(rounds))


def _operations(term: Term) -> float:
    return 0.0 if term[0] in LEAVES else 1.0 + sum(_operations(x) for x in term[1:])
