"""Loops whose rounds lanes share though each needs what earlier ones have found: running sums, and extrema.

    for j: s += x[j]; y[j] = s      of 32 lanes, each the j of its number and every 32nd one from there on takes the sum
                                    of its element and of those of the lanes before it:

    part = total = x[j]
    for bit in 1, 2, 4, 8, 16: other = total of lane ^ bit; part += other where the lane has the bit; total += other
    part += s; y[j] = part; s += total

y[j] = y[j - 1] + x[j] is the same with a running sum in a register.

    for j: if x[j] > best: best = x[j]; at = j      each lane does so for its own rounds, and notes which was the last;
                                                    then lanes compare: a larger one wins, of equal ones the first

`best = max(best, x[j])` behind `at = where(x[j] > best, j, at)` is the same; with >= the last one of equal ones wins.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tilewright.nests.nest import Access, Term, leaves
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
    divides, turns = extent % threads == 0, -(-extent // threads)
    count = unrolled if divides and turns % unrolled == 0 else 1
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
        asked = asked if divides else (*asked, loop.stop - 1 - index(turn))
        nodes = replaced(nodes, {loop.index: index(turn)})
        return (When(asked, nodes),) if asked else nodes
    body: list[Node] = []
    for turn, part in enumerate(parts):
        if found.asked or not divides:
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


COMPARED = ("lt", "le")
FOLDED = {("fmax", True), ("fmin", False)}     # of floats that are no NaN; whether the best one is compared first


class Extremum(NamedTuple):
    """`best` and `beside` it registers that change where `taken`; `do` changes the best one."""
    best: Access
    beside: tuple[Access, ...]
    do: Do
    taken: Term
    largest: bool


def extremum(s: Scheduled, loop: For) -> Extremum | None:
    """What the rounds of a loop find; None if they do anything else for each other."""
    if (loop.extent or 0) < 2 or loop.step != 1 or loop.below or loop.mark:
        return None
    carried = {d.array for d in dependences(s.nodes, s.privates()) if loop.index in d.loops and d.distance(loop.index)}
    inside = [(n, [x.index if isinstance(x, For) else x.conditions for x in around])
              for n, around in walk(loop.body) if isinstance(n, Do)]
    changes = [(at, n, around) for at, (n, around) in enumerate(inside) if n.target.array in carried]
    if len(changes) < 2 or len(changes) > len(carried) or any(
            n.target.subscripts or s.space(n.target.array) != "registers" or around != changes[0][2]
            or any(isinstance(x, str) for x in around) for _, n, around in changes):
        return None
    masks = {n.target: (at, n.value[1]) for at, (n, around) in enumerate(inside)
             if n.value[0] == "where" and not n.reduce and n.value[1][0] in COMPARED
             and [x[1:] for x in n.value[2:]] == [(1,), (0,)] and around == changes[0][2]}
    compared_with = [*masks.values(), *[(-1, n.value[1]) for _, n, _ in changes if n.value[0] == "where"]]
    for at, do, _ in changes:
        best = _best(do, masks, compared_with if s.element(do.target.array).is_float else [])
        if best is None:
            continue
        compared, largest, set_at = best
        others = [x for x in changes if x[1] is not do]
        if max(set_at, 0) > at or not all(_beside(n, do, compared, masks, before < at) for before, n, _ in others):
            return None
        reads = {n.target for _, n, _ in changes}
        free = [a for _, n, _ in changes for x in _chosen(n) for a in leaves(x)]
        rest = [a for n, _ in inside if n not in [x for _, x, _ in changes] and n.value[1:2] != (compared,)
                for a, _ in n.accesses()]
        if reads & {*free, *rest} or any(a in reads and a != do.target for a in leaves(compared)):
            return None
        return Extremum(do.target, tuple([n.target for _, n, _ in others]), do, compared, largest)
    return None


def _condition(term: Term, masks: dict[Access, tuple[int, Term]]) -> tuple[Term, int] | None:
    """The comparison that decides, and where the mask is set that has it, -1 if it stands here."""
    if term[0] == "ne" and term[1][0] == "load" and term[1][1] in masks and term[2][1:] == (0,):
        at, condition = masks[term[1][1]]
        return condition, at
    return (term, -1) if term[0] in COMPARED else None


def _chosen(do: Do) -> tuple[Term, ...]:
    """What a change assigns."""
    return (do.value,) if do.reduce else do.value[2:3]


def _best(do: Do, masks: dict[Access, tuple[int, Term]], known_by: Sequence[tuple[int, Term]]
          ) -> tuple[Term, bool, int] | None:
    """(the comparison, whether the largest is kept, where its mask is set) of a statement that keeps an extremum, for
    one that folds numbers a comparison of these."""
    own = ("load", do.target)
    if do.reduce:
        for at, pair in known_by:
            if pair[0] in COMPARED and {*pair[1:]} == {own, do.value} and (do.reduce, pair[1] == own) in FOLDED:
                return pair, pair[1] == own, at
        return None
    if do.value[0] != "where" or do.value[3] != own or (known := _condition(do.value[1], masks)) is None:
        return None
    compared, at = known
    if compared[1:] == (own, do.value[2]):
        return compared, True, at
    return (compared, False, at) if compared[1:] == (do.value[2], own) else None


def _beside(do: Do, best: Do, compared: Term, masks: dict[Access, tuple[int, Term]], before: bool) -> bool:
    """Whether a statement changes its register where the comparison is true of the best one until then."""
    if do.reduce or do.value[0] != "where" or do.value[3] != ("load", do.target):
        return False
    known = _condition(do.value[1], masks)
    return known is not None and known[0] == compared and (before or known[1] >= 0)


def combined(best: Extremum, own: Sequence[Access], place: Access, other: Callable[[Access], Access],
             flags: Sequence[Access], values: Sequence[Term]) -> Iterator[Node]:
    """Registers take what another lane has where that wins. `own`: the best one, and those beside it; `place`: rounds;
    `other`: registers for another lane's; `values`: these, in the order of own and place; `flags`: three registers."""
    line, (tie, later, taken), first = best.do.line, flags, own[0]
    for x, value in zip((*own, place), values):
        yield Do(other(x), "", value, line)

    def chosen(target: Access, condition: Term, yes: Term, no: Term) -> Do:
        return Do(target, "", ("where", condition, yes, no), line)

    def load(x: Access) -> Term:
        return "load", x
    one, zero = ("number", 1), ("number", 0)
    earlier = load(other(place)), load(place)
    larger = load(first), load(other(first))
    yield chosen(tie, ("eq", *larger), one, zero)
    yield chosen(later, ("lt", *(earlier if best.taken[0] == "lt" else earlier[::-1])), load(tie), zero)
    yield chosen(taken, ("lt", *(larger if best.largest else larger[::-1])), one, load(later))
    for x in (*own, place):
        yield chosen(x, ("ne", load(taken), zero), load(other(x)), load(x))
