"""Running sums whose rounds lanes share: each takes the sum of its element and of those of the lanes before it.

    for j: s += x[j]; y[j] = s      of 32 lanes, each the j of its number and every 32nd one from there on:

    part = total = x[j]
    for bit in 1, 2, 4, 8, 16: other = total of lane ^ bit; part += other where the lane has the bit; total += other
    part += s; y[j] = part; s += total

y[j] = y[j - 1] + x[j] is the same with a running sum in a register.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tilewright.nests.nest import Access, leaves
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import dependences
from tilewright.nests.schedules.partial import REDUCTIONS, identity, in_parts
from tilewright.nests.schedules.scheduled import Scheduled
from tilewright.nests.tree import Buffer, Do, For, Node, Sync, When, replaced, rewritten, walk

WARP = 32
BITS = {f"lane.bit{n}": 1 << n for n in range(5)}       # indices that are bits of a lane's number
Register = Callable[[str, Do], Access]


class Scan(NamedTuple):
    """`before` the loop; in each round `do` adds to a register, of which `rest` reads what it is then; `asked`: what
    `do` asks for in all rounds or in none, that its row is there for one."""
    before: tuple[Node, ...]
    do: Do
    rest: tuple[Node, ...]
    asked: tuple[Polynomial, ...] = ()


def scan(s: Scheduled, loop: For, register: Register) -> Scan | None:
    """A loop as a running sum; None if it is none."""
    inside = [n for n, _ in walk(loop.body) if isinstance(n, Do)]
    if (loop.extent or 0) < 2 or loop.step != 1 or loop.below or loop.mark or any(
            not isinstance(n, (Do, When)) for n, _ in walk(loop.body)):
        return None
    top, rest = loop.body[0], loop.body[1:]
    asked = top.conditions if isinstance(top, When) else ()
    do = top.body[0] if isinstance(top, When) and len(top.body) == 1 else top
    if not isinstance(do, Do) or any(loop.index in c.names for c in asked):
        return None
    array = do.target.array
    for d in dependences(s.nodes, s.privates()):
        if d.array != array and loop.index in d.loops and d.distance(loop.index) != 0:
            return None
    if do.reduce in REDUCTIONS and s.space(array) == "registers" and not do.target.subscripts and rest:
        alone = all(a.array != array for a in leaves(do.value)) and all(d.target.array != array for d in inside[1:])
        return Scan((), do, rest, asked) if alone else None
    previous = ("load", do.target.replaced({loop.index: polynomial(loop.index) - 1}))
    if do.reduce or rest or do.value[0] not in REDUCTIONS or previous not in do.value[1:] or loop.index not in {
            x for p in do.target.subscripts for x in p.names}:
        return None
    term = next((x for x in do.value[1:] if x != previous), previous)
    if any(a.array == array for a in leaves(term)):
        return None
    op, element = do.value[0], in_parts(s, Do(do.target, do.value[0], term, do.line))
    running = register("run", do)
    first = Do(running, "", ("load", previous[1].replaced({loop.index: loop.start})), do.line)
    before = (Do(running, "", ("number", identity(op, element)), do.line), When(asked, (first,))) if asked else (first,)
    store = Do(do.target, "", ("load", running), do.line)
    return Scan(before, Do(running, op, term, do.line), (When(asked, (store,)) if asked else store,), asked)


def shared(loop: For, found: Scan, threads: int, unrolled: int, indices: tuple[str, str, str], register: Register,
           buffers: dict[str, Buffer], meet: Sync) -> Iterator[Node]:
    """The loop for lanes, of which each has every `threads`th round. `indices`: a thread's number, and where there are
    several warps that of its warp, and its lane in that."""
    do, extent = found.do, loop.extent or 0
    op, line, of_warp = do.reduce, do.line, list[Access]()
    whole, turns = extent % threads == 0, -(-extent // threads)
    count = unrolled if whole and turns % unrolled == 0 else 1
    parts = [register("part", do) for _ in range(count)]
    total, other = register("total", do), register("other", do)
    element = buffers[total.array].element
    if threads > WARP:
        name = f"{total.array}s"
        buffers[name] = Buffer((threads // WARP,), "shared", element)
        of_warp = [Access(name, (polynomial(w),)) for w in range(threads // WARP)]

    def add(target: Access, value: Access) -> Do:
        return Do(target, op, ("load", value), line)

    def index(turn: int) -> Polynomial:
        return loop.start + (polynomial(f"{loop.index}.o") * count + turn) * threads + polynomial(indices[0])

    def inside(turn: int, nodes: tuple[Node, ...], asked: tuple[Polynomial, ...] = ()) -> tuple[Node, ...]:
        asked = asked if whole else (*asked, loop.stop - 1 - index(turn))
        nodes = replaced(nodes, {loop.index: index(turn)})
        return (When(asked, nodes),) if asked else nodes
    body: list[Node] = []
    for turn, part in enumerate(parts):
        if found.asked or not whole:
            body.append(Do(part, "", ("number", identity(op, element)), line))
        body += inside(turn, (Do(part, "", do.value, line),), found.asked)
    for turn, part in enumerate(parts):
        body.append(Do(total, "", ("load", part), line))
        for bit, distance in BITS.items():
            body += [Do(other, "", (f"lane_xor{distance}", ("load", total)), line),
                     When((polynomial(bit) - 1,), (add(part, other),)), add(total, other)]
        if of_warp:
            warp, lanes = map(polynomial, indices[1:])
            mine = Access(of_warp[0].array, (warp,))
            body += [When((polynomial(0) - lanes,), (Do(mine, "", ("load", total), line),)), meet,
                     Do(total, "", ("load", of_warp[0]), line)]
            body += [When((warp - 1 - n,), (add(part, x),)) for n, x in enumerate(of_warp[:-1])]
            body += [*[add(total, x) for x in of_warp[1:]], meet]

        def reads(n: Node, part: Access = part) -> tuple[Node, ...]:
            return (n.mapped(lambda a: part if a == do.target else a, lambda p: p) if isinstance(n, Do) else n,)
        body += [add(part, do.target), *inside(turn, rewritten(found.rest, reads)), add(do.target, total)]
    yield For(f"{loop.index}.o", polynomial(0), polynomial(turns // count), 1, tuple(body), loop.line)
