"""The operations of a schedule on loops: each returns the new tree and a sentence: what was done, and why it is legal.

    split       always; what is left beyond whole tiles is a condition, or a loop of its own
    reorder     each pair of rounds that access an element keeps its order; sums may be added up in another one
    fuse        in all subscripts the two loops count on, as digits of one number do
    fission     no statement after the cut is needed by one before it in a later round
    unroll      always
    vectorize   rounds do not depend on each other, and arrays are written along them
    bind        no round depends on another one, whatever the loops around it
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.nests.nest import Access
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import ANY, Dependence, Range, dependences, loop_range, span
from tilewright.nests.schedules.scheduled import Illegal, Scheduled, illegal, simplified, widest
from tilewright.nests.tree import Do, For, Node, When, replaced, rewritten, walk

Done = tuple[Scheduled, str]
UNROLLED = 4096             # statements that unrolled loops may come to
WIDEST = 16                 # bytes of a vector on GPUs
PLACES = {f"block.{x}": 1 << 31 for x in "xyz"} | {"thread.x": 1024, "thread.y": 1024, "worker": 1 << 31}


# ---- split

def split(s: Scheduled, name: str, factor: int, outer: str, inner: str, tail: str) -> Done:
    if tail not in ("divide", "cut", "predicate"):
        raise Illegal(f'tail is "divide", "cut" or "predicate", not {tail!r}')
    if not isinstance(factor, int) or factor < 1:
        raise Illegal(f"tiles have a whole number of rounds, 1 or more, not {factor!r}")
    loops = s.named(name)
    for new in {outer, inner} - {name}:
        if any(x.index == new for x in s.loops):
            raise Illegal(f"there is a loop {new} already")
    if outer == inner:
        raise Illegal("the two new loops need two names")
    for loop in loops:
        if loop.step != 1:
            illegal(loop.line, f"{name} goes in steps of {loop.step} from a bound that other loops move")
        if loop.mark.partition(".")[0] not in ("", "together") or loop.rings:
            illegal(loop.line, f"{name} is {loop.mark or 'pipelined'} already: split it first")
        if loop.extent is None and tail != "predicate":
            illegal(loop.line, f'{name} has {loop.stop} rounds: tail="predicate" splits loops of any length')
        if tail == "divide" and loop.extent is not None and loop.extent % factor:
            illegal(loop.line, f'{name} has {loop.extent} rounds, which {factor} does not divide: tail="predicate" '
                    'makes the rest a condition, tail="cut" a loop of its own')
    by = {name: polynomial(outer) * factor + inner}

    def rewrite(n: For, around: dict[str, Range]) -> tuple[Node, ...]:
        rounds = max(span(n.stop, around)[1], 0)
        tiles_inside, rest = divmod(rounds, factor)
        body = replaced(n.body, by)
        if n.extent is None or (rest and tail == "predicate"):
            body = (When((n.stop - 1 - by[name],), body),)
            tiles_inside, rest = -(-rounds // factor), 0
        tiles = For(outer, polynomial(0), polynomial(tiles_inside), 1, (
            For(inner, polynomial(0), polynomial(factor), 1, body, n.line),), n.line, n.mark)
        return (tiles, _tail(n, f"{name}.tail", tiles_inside * factor, rest)) if rest else (tiles,)

    why = "the same rounds in the same order"
    if all(x.extent is not None and x.extent % factor == 0 for x in loops):
        pass
    elif tail == "predicate":
        why += ", those beyond the last skipped by a condition"
    else:
        why += f", the last {(loops[0].extent or 0) % factor} in {name}.tail"
    s = replace(s, nodes=simplified(_split(s.nodes, name, rewrite, {})))
    return s, f"split {name} = {factor} {outer} + {inner}: {why}"


def _tail(n: For, name: str, first: int, rounds: int) -> For:
    """The last rounds of a loop as another one, whose inner loops have names of their own."""
    names = {x.index: f"{x.index}.tail" for x, _ in walk(n.body) if isinstance(x, For)}
    body = rewritten(n.body, lambda x: (replace(x, index=names[x.index]),) if isinstance(x, For) else (x,))
    by = {n.index: polynomial(name) + first} | {a: polynomial(b) for a, b in names.items()}
    return For(name, polynomial(0), polynomial(rounds), 1, replaced(body, by), n.line)


def _split(nodes: tuple[Node, ...], name: str, rewrite: Callable[[For, dict[str, Range]], tuple[Node, ...]],
           around: dict[str, Range]) -> tuple[Node, ...]:
    result: list[Node] = []
    for n in nodes:
        if isinstance(n, For):
            n = replace(n, body=_split(n.body, name, rewrite, {**around, **loop_range(n, around)}))
            result += rewrite(n, around) if n.index == name else (n,)
        elif isinstance(n, When):
            result.append(replace(n, body=_split(n.body, name, rewrite, around)))
        else:
            result.append(n)
    return tuple(result)


# ---- reorder, fuse, fission

def perfect(s: Scheduled, names: tuple[str, ...]) -> list[For]:
    """These loops, which stand directly one in the other, outermost first."""
    for name in names:
        s.loop(name)
    top = next(x for x in s.loops if x.index in names)
    nest, node = [top], top
    while len(nest) < len(names) and len(node.body) == 1 and isinstance(node.body[0], For):
        node = node.body[0]
        nest.append(node)
    if {x.index for x in nest} != {*names}:
        have = " ".join(x.index for x in nest)
        between = [x for x, _ in walk(nest[-1].body) if isinstance(x, Do)]
        illegal(between[0].line if between else top.line, f"{' '.join(names)} do not stand directly one in the other, "
                f"{have} do; fission takes statements between loops apart")
    return nest


def reorder(s: Scheduled, names: tuple[str, ...]) -> Done:
    if len({*names}) != len(names) or len(names) < 2:
        raise Illegal("reorder takes two or more different loops, in their new order, the outermost first")
    nest = perfect(s, names)
    for x in nest:
        if x.mark.startswith(("block", "thread", "worker")):
            illegal(x.line, f"{x.index} is bound to {x.mark}: reorder loops before they are bound")
    sums = False
    for d in dependences(s.nodes, s.privates()):
        if not {*names} & {*d.loops}:
            continue
        for signs in d.signs():
            by = dict(zip(d.loops, signs))
            moved = iter([x for x in names if x in by])
            order = [next(moved) if x in names else x for x in d.loops]
            if next((by[x] for x in order if by[x]), 1) < 0:
                if not d.own:
                    _would_come_first(s, d)
                sums = True
    wide, body, by_name = widest(s.nodes, {}), nest[-1].body, {x.index: x for x in nest}
    if nest[0].mark.startswith("together"):             # which the outermost loop of a copy is
        by_name[nest[0].index] = replace(nest[0], mark="")
        by_name[names[0]] = replace(by_name[names[0]], mark=nest[0].mark)
    for name in reversed(names):
        body = (replace(by_name[name], body=body),)
    top = nest[0]
    nodes = rewritten(s.nodes, lambda n: body if isinstance(n, For) and n.index == top.index else (n,))
    s = replace(s, nodes=simplified(_bounds_known(nodes, {}, wide)))
    why = "sums are added up in another order" if sums else "every element meets its terms in the same order"
    return s, f"reorder {' '.join(names)}: {why}"


def _would_come_first(s: Scheduled, d: Dependence) -> None:
    illegal(d.second.line, f"{d.array} is written in one round and accessed in a later one (distances {d}), which "
            "would come first")


def _bounds_known(nodes: tuple[Node, ...], around: dict[str, Range], wide: dict[str, Range]) -> tuple[Node, ...]:
    """Bounds that have come to stand outside of the loops that they depend on, at their widest, and as conditions."""
    result: list[Node] = []
    for n in nodes:
        if isinstance(n, For):
            body = n.body
            if not n.stop.names <= around.keys():
                body = (When((n.stop - 1 - n.index,), body),)
                n = replace(n, stop=polynomial(max(span(n.stop, wide)[1], 0)))
            n = replace(n, body=_bounds_known(body, {**around, **loop_range(n, around)}, wide))
        elif isinstance(n, When):
            n = replace(n, body=_bounds_known(n.body, around, wide))
        result.append(n)
    return tuple(result)


def fuse(s: Scheduled, outer: str, inner: str, name: str) -> Done:
    if outer == inner:
        raise Illegal(f"fuse takes two loops, and {outer} is one")
    first, second = perfect(s, (outer, inner))
    if first.index != outer:
        illegal(first.line, f"{inner} stands around {outer}, not in it")
    rounds = second.extent
    if rounds is None or first.extent is None:
        illegal(second.line, f"{outer} and {inner} have {first.stop} and {second.stop} rounds, no constant numbers")
    if name not in (outer, inner) and any(x.index == name for x in s.loops):
        raise Illegal(f"there is a loop {name} already")

    def joined(p: Polynomial, line: Any) -> Polynomial:
        factors = p.linear().factors
        if factors.get(outer, 0) != rounds * factors.get(inner, 0):
            illegal(line, f"{p} is no sum over {rounds} {outer} + {inner}: these loops are no digits of one index here")
        return p.replaced({outer: 0, inner: name})

    for n, _ in walk(second.body):
        if isinstance(n, For):
            joined(n.stop, n.line)
    body = rewritten(second.body, lambda n: (
        n.mapped(lambda a: Access(a.array, tuple([joined(x, n.line) for x in a.subscripts])),
                 lambda p: joined(p, n.line)) if isinstance(n, Do) else
        replace(n, conditions=tuple([joined(c, first.line) for c in n.conditions])) if isinstance(n, When) else
        replace(n, stop=joined(n.stop, n.line)) if isinstance(n, For) else n,))
    new = For(name, polynomial(0), polynomial(first.extent * rounds), 1, body, first.line)
    s = s.changed(lambda n: (new,) if isinstance(n, For) and n.index == outer else (n,))
    return s, f"fuse {name} = {rounds} {outer} + {inner}: the same rounds in the same order"


def fission(s: Scheduled, name: str, after: str | int) -> Done:
    """`after`: how many parts of the loop's body come first, or the last loop of them."""
    loop = s.loop(name)
    if loop.mark.startswith(("block", "thread", "worker")) or loop.rings:
        illegal(loop.line, f"{name} is {loop.mark or 'pipelined'} already: cut it first")
    names = [x.index if isinstance(x, For) else "" for x in loop.body]
    if isinstance(after, str) and after not in names:
        illegal(loop.line, f"{name} has no loop {after} directly in it but {' '.join(filter(None, names)) or 'none'}")
    at = after if isinstance(after, int) else names.index(after) + 1
    if not 0 < at < len(loop.body):
        illegal(loop.line, f"{name} has {len(loop.body)} parts, and is cut after 1 to {len(loop.body) - 1} of them")
    crossing = {a.array for n, _ in walk(loop.body[at:]) if isinstance(n, Do) for a, _ in n.accesses()} & {
        a.array for n, _ in walk(loop.body[:at]) if isinstance(n, Do) for a, _ in n.accesses()}
    s = _widened(s, name, crossing)
    loop, private = s.loop(name), s.privates()
    for x in sorted(crossing & s.buffers.keys()):
        every = [a for n, _ in s.statements for a, _ in n.accesses() if a.array == x]
        if name in private.get(x, ()) and not any(name in p.names for a in every for p in a.subscripts):
            illegal(loop.line, f"{x} has numbers of one round of {name}, and the rounds after the cut need those of "
                    "all: stage after fission")
    inner = [{id(n) for n, _ in walk(part) if isinstance(n, Do)} for part in (loop.body[:at], loop.body[at:])]
    for d in dependences(s.nodes, s.privates()):
        if id(d.first) in inner[0] and id(d.second) in inner[1]:
            here = d.loops.index(name)
            later = d.distances[here] == ANY or int(d.distances[here]) < 0
            if later and all(x in (0, ANY) for x in d.distances[:here]):
                illegal(d.second.line, f"{d.array} is accessed before the cut in a later round of {name} than after it "
                        f"(distances {d}), which would come first")
    taken, number, base = {x.index for x in s.loops}, 2, re.sub(r"\.\d+$", "", name)
    while f"{base}.{number}" in taken:
        number += 1
    second = replace(loop, index=f"{base}.{number}", body=replaced(loop.body[at:], {name: f"{base}.{number}"}))
    parts = replace(loop, body=loop.body[:at]), second
    s = s.changed(lambda n: parts if isinstance(n, For) and n.index == name else (n,))
    return s, f"fission {name} after {after} into {name} and {second.index}: nothing before the cut needs what an " \
        "earlier round does after it"


# ---- how rounds run

def unroll(s: Scheduled, names: tuple[str, ...]) -> Done:
    for name in names:
        for loop in s.named(name):
            if loop.extent is None:
                illegal(loop.line, f"{name} has {loop.stop} rounds, and only a constant number can be unrolled")
            _free(loop)
        s = s.marked(name, "unroll")
    for node, around in s.statements:
        copies = prod(x.extent or 1 for x in around if isinstance(x, For) and x.mark == "unroll")
        if copies > UNROLLED:
            illegal(node.line, f"{copies} copies of this statement are more than {UNROLLED}")
    return s, f"unroll {' '.join(names)}"


def _free(loop: For) -> None:
    if loop.mark not in ("", "unroll"):
        illegal(loop.line, f"{loop.index} is {loop.mark} already")


def vectorize(s: Scheduled, names: tuple[str, ...], lanes: int | None) -> Done:
    said: list[str] = []
    for name in names:
        if lanes is not None and any((x.extent or 0) > lanes for x in s.named(name)):
            shared = {x.index for x, around in walk(s.nodes) if isinstance(x, For) and any(
                y.mark.startswith("together") for y in (*around, x) if isinstance(y, For))}
            s = split(s, name, lanes, f"{name}.v", name, "divide")[0]
            s = s if name in shared else s.marked(f"{name}.v", "unroll")
        for loop in s.named(name):
            if loop.extent is None:
                illegal(loop.line, f"{name} has {loop.stop} rounds, and a vector has a constant number of lanes")
            _free(loop)
            if any(isinstance(x, For) for x, _ in walk(loop.body)):
                inner = " ".join(x.index for x, _ in walk(loop.body) if isinstance(x, For))
                illegal(loop.line, f"{name} has loops in it, {inner}: only an innermost loop is a vector")
        arrays = {a.array for x in s.named(name) for n, _ in walk(x.body) if isinstance(n, Do) for a, _ in n.accesses()}
        s = _widened(s, name, {x for x in arrays if s.space(x) == "registers"})
        loops = {id(x) for x in s.named(name)}
        for d in dependences(s.nodes, s.privates()):
            if d.distance(name) != 0:
                here = d.loops.index(name)
                if any(x not in (0, ANY) for x in d.distances[:here]):
                    continue                    # rounds of a loop around it, which stay one after the other
                what = "is added to in" if d.own else "is written in one and accessed in another of"
                illegal(d.first.line, f"{d.array} {what} several rounds of {name} (distances {d}), which would run at "
                        "once" + ("; split it, and make a loop that does not add up the innermost" if d.own else ""))
        for node, around in s.statements:
            for x in around:
                said += _along(s, node, x, around) if isinstance(x, For) and id(x) in loops else []
        s = s.marked(name, "vector")
    by = f" by {lanes}" if lanes else ""
    return s, "; ".join([f"vectorize {' '.join(names)}{by}: rounds are independent", *dict.fromkeys(said)])


def _along(s: Scheduled, node: Do, loop: For, around: tuple[For | When, ...]) -> list[str]:
    """What is read element by element."""
    said, name = [], loop.index
    for c in [c for x in around if isinstance(x, When) for c in x.conditions]:
        if c.linear().factors.get(name, 0) not in (0, -1):
            illegal(node.line, f"lanes of {name} are off where {c} < 0, not the last ones only")
    gpu = any(x.mark.startswith(("block", "thread")) for x in s.loops)
    for access, writes in node.accesses():
        step, size = s.stride(access, name), (loop.extent or 0) * s.element(access.array).bytes
        if gpu and size > WIDEST:
            illegal(node.line, f"{loop.extent} elements of {access.array} are {size} bytes, and a thread of a GPU has "
                    f"vectors of {WIDEST}: vectorize with fewer lanes=")
        if writes and step != 1:
            illegal(node.line, f"{access} moves by {step} elements from round to round of {name}, not by 1: reorder "
                    f"loops, or stage {access.array} with {name} as its last axis")
        if step not in (0, 1):
            said.append(f"{access} is read element by element, since they are {step} apart")
    return said


def _widened(s: Scheduled, name: str, arrays: set[str]) -> Scheduled:
    """With an axis for the loop in those of these buffers and scalars that each of its rounds has for itself."""
    private, rounds = s.privates(), widest(s.nodes, {})[name][1] + 1
    wide = {x for x in arrays if x in s.buffers and s.buffers[x].space == "registers" and name in private.get(x, ())
            and not any(name in p.names for n, _ in s.statements for a, _ in n.accesses() if a.array == x
                        for p in a.subscripts)}
    if not wide or any(x.extent is None for x in s.named(name)):     # axes of registers are unrolled
        return s

    def access(a: Access) -> Access:
        return a._replace(subscripts=(*a.subscripts, polynomial(name))) if a.array in wide else a
    new = {x: replace(s.buffers[x], shape=(*s.buffers[x].shape, rounds)) for x in wide}
    return s.changed(lambda n: (n.mapped(access, lambda p: p) if isinstance(n, Do) else n,), new)


def bind(s: Scheduled, places: dict[str, str]) -> Done:
    for name, place in places.items():
        loop = s.loop(name)
        _free(loop)
        if place not in PLACES:
            raise Illegal(f"{name} can be bound to {', '.join(PLACES)}, not to {place!r}")
        held = [a.array for d, _ in s.statements for a, _ in d.accesses()
                if s.space(a.array) == "registers" and any(name in p.names for p in a.subscripts)]
        if held:
            illegal(loop.line, f"{name} is an axis of {held[0]}, which is in the registers of one thread")
        if any(x.mark == place for x in s.loops):
            illegal(loop.line, f"{place} is bound to {next(x.index for x in s.loops if x.mark == place)} already")
        if loop.extent is None or loop.extent > PLACES[place]:
            illegal(loop.line, f"{name} has {loop.stop} rounds; {place} takes a constant number, up to {PLACES[place]}")
        s = s.marked(name, place)
        independent(s, (name,))
        for x, own in s.privates().items():
            if place.startswith("thread") and name in own and s.space(x) == "memory":
                illegal(loop.line, f"{x} is memory of a CTA, in which each round of {name} has numbers of its own")
    _outermost(s)
    threads = prod(x.extent or 1 for x in s.loops if x.mark.startswith("thread"))
    if threads > 1024:
        raise Illegal(f"{threads} threads are more than the 1024 of a CTA")
    where = ", ".join(f"{name} to {place}" for name, place in places.items())
    return s, f"bind {where}: no round accesses what another one writes"


def independent(s: Scheduled, names: Iterable[str]) -> None:
    """Refuses loops of which one round accesses what another one writes; barriers stand around shared memory's use."""
    for d in dependences(s.nodes, s.privates()):
        for name in names:
            if d.distance(name) != 0 and s.space(d.array) != "shared":
                what = "is added to in" if d.own else "is written in one round and accessed in another of"
                illegal(d.first.line, f"{d.array} {what} several rounds of {name} (distances {d}), which run in any "
                        "order")


def _outermost(s: Scheduled) -> None:
    nodes, bound = s.nodes, {x.index for x in s.loops if x.mark.startswith(("block", "thread", "worker"))}
    while bound:
        if len(nodes) != 1 or not isinstance(nodes[0], For) or nodes[0].index not in bound:
            first = next(n for n, _ in walk(nodes) if isinstance(n, (For, Do)))
            illegal(first.line, f"{' '.join(sorted(bound))} must be outermost, directly one in the other: all that a "
                    "launch does is done by its CTAs and threads, and all that is shared by workers")
        bound.discard(nodes[0].index)
        nodes = nodes[0].body
