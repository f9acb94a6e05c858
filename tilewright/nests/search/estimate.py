"""What a scheduled tree costs on a CPU, by counting: `estimate(scheduled, target)`. It ranks, and no more.

A statement takes issue slots of its arithmetic and of its loads and stores, those of vectors once for all lanes, those
that unrolled rounds share once. Sums wait for each other. Each level of the memory gives what the outermost loop whose
two rounds fit in the level before touches, as often as that loop runs (the rule of lab/tuner/bound.py).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from tilewright.nests.nest import LEAVES, Access, Term
from tilewright.nests.schedules.dependences import ranges, span
from tilewright.nests.schedules.scheduled import Scheduled
from tilewright.nests.tree import Do, For, Node, When, walk

ROOM = 0.75                     # of a cache that data stay in
LINE = 64                       # bytes
LATENCY = 4                     # clocks of an addition or a multiply-add
UNITS, PORTS = 2.0, 2.0         # arithmetic instructions and loads in a clock
WIDTH = 5.0                     # instructions in a clock
LOOP = 1.5                      # clocks that a round of a loop takes beside its body
BRANCH = 1.5                    # a condition
CLOCK = 3.5e9
RATES = {"l2": 100e9, "l3": 35e9, "memory": 20e9}      # bytes a second, as plans/model.py's
OVERLAP = 0.2                   # of what is not the longest
STARTING = 12e-6                # seconds to share a loop among threads
CROWDED = 0.6                   # of the rate of memory that each of two threads has
SLOW = {"div": 4.0, "sqrt": 6.0, "exp": 14.0, "log": 18.0, "tanh": 18.0, "erf": 20.0, "sigmoid": 18.0, "gelu": 22.0,
        "gelu_tanh": 22.0, "rsqrt": 6.0}
SPILL = 1.0                     # clocks for each vector beyond the registers, in each round


class Estimate(NamedTuple):
    seconds: float
    parts: dict[str, float]     # seconds by cause


def estimate(s: Scheduled, target: object, threads: int = 1) -> Estimate:
    """The time of all statements, one after the other."""
    groups: dict[int, tuple[list[Do], tuple[For | When, ...]]] = {}
    for d, around in s.statements:
        inner = next((x for x in reversed(around) if isinstance(x, For)), None)
        groups.setdefault(id(inner), ([], around))[0].append(d)
    parts, ways = {"issue": 0.0}, 1
    for statements, around in groups.values():
        loops = [x for x in around if isinstance(x, For)]
        mine = min(threads, loops[0].extent or 1) if loops and loops[0].mark == "worker" else 1
        parts["issue"] += _clocks(s, statements, around, _extents(loops), target) / CLOCK / mine
        ways = max(ways, mine)
    parts |= _traffic(s, target, ways)
    longest = max(parts.values())
    return Estimate(longest + OVERLAP * (sum(parts.values()) - longest) + STARTING * (ways > 1), parts)


def unrolled_statements(s: Scheduled) -> int:
    """Statements that the code has: loops that are unrolled make some of each."""
    return sum(prod([x.extent or 1 for x in _unrolled(s, [d], [y for y in around if isinstance(y, For)])])
               for d, around in s.statements)


def _extents(loops: Sequence[For]) -> dict[str, float]:
    """Rounds of each; those whose bound depends on another loop have half of the most."""
    within = ranges(loops)
    return {x.index: float(x.extent) if x.extent is not None else max((within[x.index][1] + 1) / 2, 1.0) for x in loops}


# ---- instructions

def _clocks(s: Scheduled, statements: Sequence[Do], around: Sequence[For | When], extents: Mapping[str, float],
            target: object) -> float:
    """Clocks of the statements in one loop's body, all rounds."""
    loops = [x for x in around if isinstance(x, For)]
    unrolled = _unrolled(s, statements, loops)
    lane = next((x for x in loops if x.mark == "vector"), None)
    runs = prod([extents[x.index] for x in loops if x not in unrolled and x is not lane])
    copies = [x for x in unrolled if x is not lane]
    times = prod([extents[x.index] for x in copies])
    split = 1.0
    if lane is not None:                    # vectors that are wider than a register are several
        item = max(s.element(a.array).bytes for d in statements for a, _ in d.accesses())
        split = max(1.0, extents[lane.index] * item / getattr(target, "vector_bytes", 64))
    arithmetic, scattered = 0.0, 0.0
    loads, stores = set[object](), set[object]()
    waits = 0.0
    for d in statements:
        arithmetic += times * split * (_operations(d.value, lane is not None) + _adds(d))
        for a, writes in d.accesses():
            if s.space(a.array) == "registers":
                continue
            step = s.stride(a, lane.index) if lane is not None else 1
            if step not in (0, 1):
                scattered += times * extents[lane.index] if lane is not None else 0.0
            (stores if writes else loads).update(_places(a, copies, extents))
        waits = max(waits, _chain(s, d, loops, unrolled, lane, extents))
    moved = max(len(loads) * split / PORTS, len(stores) * split)
    slots = (arithmetic + (len(loads) + len(stores)) * split + 2 * scattered) / WIDTH
    tests = sum(isinstance(x, When) for x in around) * BRANCH * (times if lane is None else 1.0)
    body = max(arithmetic / UNITS, moved, slots, waits) + scattered + tests
    body += SPILL * max(0.0, _registers(s, statements, copies, extents, split) - getattr(target, "registers", 32))
    inner = next((x for x in reversed(loops) if x not in unrolled and x is not lane), None)
    return runs * (body + LOOP * (inner is not None))


def _unrolled(s: Scheduled, statements: Sequence[Do], loops: Sequence[For]) -> list[For]:
    """Loops whose rounds are code; those that are axes of registers are, too."""
    axes = {name for d in statements for a, _ in d.accesses() if s.space(a.array) == "registers"
            for p in a.subscripts for name in p.names}
    return [x for x in loops if x.mark == "unroll" or (x.index in axes and not x.mark)]


def _operations(term: Term, vector: bool) -> float:
    """Instructions of a term, those of its loads not counted."""
    if term[0] in LEAVES:
        return 1.0 if term[0] == "index" else 0.0
    return (SLOW.get(term[0], 1.0) + sum(_operations(x, vector) for x in term[1:]))


def _adds(d: Do) -> float:
    """A reduction's own operation, which a product is part of."""
    if not d.reduce:
        return 0.0
    value = d.value[1] if d.value[0] == "neg" else d.value
    return 0.0 if d.reduce == "add" and value[0] == "mul" else 1.0


def _places(a: Access, copies: Sequence[For], extents: Mapping[str, float]) -> set[object]:
    """The different elements, in terms of the loops that are no code, that unrolled rounds access."""
    mine = [x for x in copies if any(x.index in p.names for p in a.subscripts)]
    if prod([extents[x.index] for x in mine]) > 4096:
        return {(a, n) for n in range(4096)}
    places: set[object] = set()
    for values in product(*[range(int(extents[x.index])) for x in mine]):
        places.add(a.replaced(dict(zip([x.index for x in mine], values))))
    return places


def _chain(s: Scheduled, d: Do, loops: Sequence[For], unrolled: Sequence[For], lane: For | None,
           extents: Mapping[str, float]) -> float:
    """Clocks that one round of the innermost loop waits for sums: those of a chain that is not independent."""
    inner = next((x for x in reversed(loops) if x not in unrolled and x is not lane), None)
    if not d.reduce or inner is None or any(inner.index in p.names for p in d.target.subscripts):
        return 0.0
    steps = prod([extents[x.index] for x in unrolled if not any(x.index in p.names for p in d.target.subscripts)])
    stored = 0 if s.space(d.target.array) == "registers" else 5
    return (LATENCY + stored) * steps


def _registers(s: Scheduled, statements: Sequence[Do], copies: Sequence[For], extents: Mapping[str, float],
               split: float) -> float:
    """Vectors that are live at once: targets in registers, and one row of operands."""
    kept = set[object]()
    for d in statements:
        for a, _ in d.accesses():
            if s.space(a.array) == "registers":
                kept |= _places(a, copies, extents)
    return len(kept) * split + 2.0


# ---- memory

Touches = list[tuple[Access, bool, Mapping[str, tuple[int, int]]]]      # an access, whether it writes, loops inside


def _traffic(s: Scheduled, target: object, ways: int) -> dict[str, float]:
    """Seconds that each level takes to give and take what the level before has lost."""
    bytes_of = {}
    levels = {"l2": getattr(target, "l1d", 32 << 10), "l3": getattr(target, "l2", 1 << 20),
              "memory": getattr(target, "l3", 32 << 20)}
    measures: dict[int, tuple[float, float]] = {}
    for level, cache in levels.items():
        room = ROOM * cache
        bytes = 0.0
        if cache and _touched(s, [x for n in s.nodes for x in _touches(n)])[0] > room:
            bytes = sum(_beyond(s, n, room, measures) for n in s.nodes)
        bytes_of[level] = bytes / RATES[level] / (ways * (CROWDED if level == "memory" and ways > 1 else 1.0))
    return bytes_of


def _beyond(s: Scheduled, node: Node, room: float, measures: dict[int, tuple[float, float]]) -> float:
    """Bytes that a part of the tree gets from beyond a cache."""
    if not isinstance(node, (For, When)):
        return 0.0
    if isinstance(node, When):
        return sum(_beyond(s, x, room, measures) for x in node.body)
    inner = [x for x in node.body if isinstance(x, For)]
    if id(node) not in measures:
        once = _touched(s, [x for n in node.body for x in _touches(n)])[0]
        measures[id(node)] = once, _touched(s, _touches(node))[1]
    once, all_ = measures[id(node)]
    if not inner or 2 * once <= room:
        return all_
    rounds = float(node.extent) if node.extent is not None else max(span(node.stop, _within((node,)))[1] / 2, 1.0)
    return rounds * sum(_beyond(s, x, room, measures) for x in node.body)


def _within(loops: Sequence[For]) -> dict[str, tuple[int, int]]:
    """Ranges of the indices, and 0 for those of loops that are not among these."""
    known: dict[str, tuple[int, int]] = {}
    for x in loops:
        known |= {name: (0, 1 << 10) for name in x.stop.names if name not in known}
        known[x.index] = 0, max(span(x.stop, known)[1] - 1, 0)
    return known


def _touches(node: Node) -> Touches:
    touches: Touches = []
    for d, around in walk((node,)):
        if isinstance(d, Do):
            loops = _within([x for x in around if isinstance(x, For)])
            touches += [(a, writes, loops) for a, writes in d.accesses()]
    return touches


def _touched(s: Scheduled, accesses: Touches) -> tuple[float, float]:
    """(bytes of lines that these touch, the same with what is written twice)."""
    boxes: dict[str, list[tuple[list[tuple[int, int]], bool]]] = {}
    for a, writes, loops in accesses:
        if s.space(a.array) == "registers":
            continue
        box = [span(p.replaced({x: 0 for x in p.names if x not in loops}), loops) for p in a.subscripts]
        boxes.setdefault(a.array, []).append((box, writes))
    once = twice = 0.0
    for array, every in boxes.items():
        strides, item = s.strides(array), s.element(array).bytes
        rows, width = 1.0, float(item)
        for axis, stride in enumerate(strides):
            low = min(box[axis][0] for box, _ in every)
            high = max(box[axis][1] for box, _ in every)
            covered = min(high - low + 1, sum(box[axis][1] - box[axis][0] + 1 for box, _ in every))
            if abs(stride) == 1:
                width = max(covered * item, float(min(LINE, s.shape(array)[axis] * item)))
            else:
                rows *= covered
        bytes = rows * max(width, float(min(LINE, rows * item * 8)) if 1 not in map(abs, strides) else width)
        once += bytes
        twice += bytes * (1 + any(writes for _, writes in every))
    return once, twice
