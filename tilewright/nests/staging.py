"""`stage`: a buffer for what a loop uses of an array, copied in before the loop, and back after it if it is written.

The buffer has an axis for each loop that is named, in this order: `("jr", "p", "jv", "jl")` is a packed panel of B. Its
elements beyond the array are 0, and statements lose the conditions that this makes needless (`relaxed`).
"""
from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tilewright.nests.dependences import Range, distances, span
from tilewright.nests.nest import Access, leaves
from tilewright.nests.operations import Done, independent
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.scheduled import Illegal, Scheduled, illegal, simplified, widest
from tilewright.nests.tree import Buffer, Do, For, Node, Sync, When, rewritten, walk

SUFFIX = {"registers": "reg", "shared": "shared", "memory": "buf"}


def stage(s: Scheduled, array: str, around: str, axes: tuple[str, ...], space: str, inside: bool, pad: int,
          name: str | None) -> Done:
    if space not in SUFFIX:
        raise Illegal(f"a buffer is in registers, shared or memory, not in {space!r}")
    loop = s.loop(around)
    region: tuple[Node, ...] = loop.body if inside else (loop,)
    outside = [*s.around(loop), *((loop,) if inside else ())]
    use, written = _use(region, array, loop)
    inner = {x.index: x for x, _ in walk(region) if isinstance(x, For)}
    threads = {x.index: x for x in outside if isinstance(x, For) and x.mark.startswith("thread")}
    ours = inner | (threads if space == "shared" else {})
    _axes(array, use, axes, ours, loop)
    _place(s, array, space, written, inner, threads, outside, loop)
    box = widest(s.nodes, {})
    name = name or _unused(s, f"{array.split('_')[0]}_{SUFFIX[space]}")
    if name in s.buffers or name in s.arrays:
        raise Illegal(f"there is an array {name} already")
    shape = [box[x][1] + 1 for x in axes]
    if written:
        _different(use, axes, outside, box, loop)
    conditions = _conditions(region, use, {*axes} | {x.index for x in outside if isinstance(x, For)})
    conditions += [c for c in _bounds(use, s.shape(array), box) if c not in conditions]
    new = Access(name, tuple(map(polynomial, axes)))
    here = rewritten(region, lambda n: (
        n.mapped(lambda a: new if a == use else a, lambda p: p) if isinstance(n, Do) else n,))
    names = {x: f"{array}.{x}" for x in axes}

    def copy(to: Access, source: Access, fill: bool) -> Node:
        beyond = tuple([c.replaced(names) for c in conditions])
        body = _copied(to.replaced(names), source.replaced(names), beyond, fill, loop)
        for x, size in zip(reversed(axes), reversed(shape)):
            body = (For(names[x], polynomial(0), polynomial(size), 1, body, loop.line),)
        return body[0]

    first: tuple[Node, ...] = () if written and _set_first(region, use, axes) else (copy(new, use, True),)
    back: tuple[Node, ...] = (copy(use, new, False),) if written else ()
    if space == "shared":
        first = (Sync(), *[_together(x) for x in first], Sync())
    buffers = {name: Buffer((*shape[:-1], shape[-1] + pad) if shape else (), space, s.element(array))}

    def rewrite(n: Any) -> tuple[Node, ...]:
        if not isinstance(n, For) or n.index != around:
            return (n,)
        return (replace(n, body=_merged((*first, *here, *back))),) if inside else (*first, *here, *back)
    s = s.changed(rewrite, buffers)
    s = replace(s, nodes=_merged_everywhere(s.nodes))
    bound = [x.index for x in s.loops if x.mark.startswith(("block", "thread", "worker"))]
    if written:
        independent(s, bound)
    s, dropped = relaxed(s)
    numbers = " x ".join(map(str, shape)) + (f" = {prod(shape)} numbers" if len(shape) > 1 else " numbers")
    why = f"stage {array} around {around} in {space} as {name}, {numbers if shape else '1 number'}: " + (
        "nothing else accesses it meanwhile; " if written else "") + (
        "only read" if not written else "set there and copied back" if not first else "copied in and back")
    return s, "; ".join([why, *dropped])


def _copied(to: Access, source: Access, beyond: tuple[Polynomial, ...], fill: bool, loop: For) -> tuple[Node, ...]:
    """An element's copy; with zeros for those beyond the array, if a buffer is filled."""
    move = Do(to, "", ("load", source), loop.line)
    if not beyond:
        return (move,)
    zero = (Do(to, "", ("number", 0), loop.line),) if fill else ()
    return (*zero, When(beyond, (move,)))


def _different(use: Access, axes: tuple[str, ...], outside: list[Any], box: dict[str, Range], loop: For) -> None:
    fixed = frozenset(x.index for x in outside if isinstance(x, For)) - {*axes}
    if any(any(d) for d in distances(use, use, [*fixed, *axes], box, box, fixed)):
        illegal(loop.line, f"several elements of the buffer would be one element of {use.array}, which is written")


def _use(region: tuple[Node, ...], array: str, loop: For) -> tuple[Access, bool]:
    """The one way in which the region uses the array, and whether it writes it."""
    uses: dict[Access, int] = {}
    written, line = False, loop.line
    for n, _ in walk(region):
        if isinstance(n, Do):
            for a, writes in n.accesses():
                if a.array == array:
                    uses[a] = 1
                    written, line = written or writes, n.line
    if not uses:
        illegal(loop.line, f"{array} is not used in {loop.index}")
    if len(uses) > 1:
        illegal(line, f"{loop.index} uses {array} in {len(uses)} ways, {', '.join(map(str, uses))}: one can be staged")
    return next(iter(uses)), written


def _axes(array: str, use: Access, axes: tuple[str, ...], ours: dict[str, For], loop: For) -> None:
    depends = [x for x in dict.fromkeys(name for p in use.subscripts for name in p.linear().factors) if x in ours]
    if missing := [x for x in depends if x not in axes]:
        illegal(loop.line, f"{use} depends on {' '.join(missing)}, which the buffer then has axes for")
    if more := [x for x in axes if x not in depends]:
        illegal(loop.line, f"{use} does not depend on {' '.join(more)} there: axes are for {' '.join(depends)}")
    if len({*axes}) != len(axes):
        raise Illegal("an axis for each loop, once")


def _place(s: Scheduled, array: str, space: str, written: bool, inner: dict[str, For], threads: dict[str, For],
           outside: list[Any], loop: For) -> None:
    """Refuses memory where it cannot be."""
    if any(x.mark.startswith(("block", "thread")) for x in inner.values()):
        illegal(loop.line, f"{loop.index} has the launch's CTAs or threads in it: buffers are inside of these")
    if space != "shared":
        return
    if written:
        illegal(loop.line, f"{array} is written inside {loop.index}, by single threads: shared memory is for what is "
                "only read")
    if not threads:
        illegal(loop.line, f"{loop.index} is not inside of threads, which would share the memory")
    for x in outside:
        names = x.stop.names if isinstance(x, For) else {name for c in x.conditions for name in c.names}
        if names & threads.keys() and not (isinstance(x, For) and x.mark):
            illegal(loop.line, f"not every thread comes by here: {min(names & threads.keys())} decides how often")


def _unused(s: Scheduled, name: str) -> str:
    n = 1
    while (name if n == 1 else f"{name}{n}") in {**s.buffers, **s.arrays}:
        n += 1
    return name if n == 1 else f"{name}{n}"


def _conditions(region: tuple[Node, ...], use: Access, names: set[str]) -> list[Polynomial]:
    """The conditions of all statements that use the element."""
    every = [[c for x in around if isinstance(x, When) for c in x.conditions] for n, around in walk(region)
             if isinstance(n, Do) and use in [a for a, _ in n.accesses()]]
    return [c for c in every[0] if c.names <= names and all(c in other for other in every)]


def _bounds(use: Access, shape: tuple[int, ...], box: dict[str, Range]) -> list[Polynomial]:
    """What must be >= 0 for the element to be in the array, and may not be."""
    every = [(p, span(p, box), n) for p, n in zip(use.subscripts, shape)]
    return [c for p, (low, high), n in every for c in ([p] if low < 0 else []) + ([n - 1 - p] if high >= n else [])]


def _set_first(region: tuple[Node, ...], use: Access, axes: tuple[str, ...]) -> bool:
    """Whether all of the buffer is set before any of it is read."""
    for n, around in walk(region):
        if isinstance(n, Do) and use in [a for a, _ in n.accesses()]:
            loops = [x for x in around if isinstance(x, For)]
            return (n.target == use and not n.reduce and use not in leaves(n.value) and len(loops) == len(around)
                    and all(x.extent is not None for x in loops) and {x.index for x in loops} <= {*axes})
    return False


# ---- shared memory

def _together(copy: Node) -> Node:
    assert isinstance(copy, For)
    return replace(copy, mark="together")


def _merged(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """One barrier where several are, and none between two copies into buffers."""
    found: list[Node] = []
    for n in nodes:
        if isinstance(n, Sync) and found and isinstance(found[-1], Sync):
            continue
        found.append(n)
    return tuple([n for at, n in enumerate(found) if not (
        isinstance(n, Sync) and 0 < at < len(found) - 1 and _copies(found[at - 1]) and _copies(found[at + 1]))])


def _copies(n: Node) -> bool:
    return isinstance(n, For) and n.mark == "together"


def _merged_everywhere(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return rewritten(_merged(nodes), lambda n: (replace(n, body=_merged(n.body)),) if isinstance(n, For) else (n,))


# ---- conditions that buffers make needless

def relaxed(s: Scheduled) -> tuple[Scheduled, list[str]]:
    """Without the conditions of a statement on buffers alone outside of which it adds zeros, or changes elements that
    nobody reads; and sentences about it."""
    said: list[str] = []
    private = s.privates()
    zeros = _zeros(s)
    drop: dict[int, tuple[Polynomial, ...]] = {}
    for node, around in s.statements:
        conditions = [c for x in around if isinstance(x, When) for c in x.conditions]
        arrays = {a.array for a, _ in node.accesses()}
        if not conditions or not arrays <= s.buffers.keys() or not node.reduce:
            continue
        for c in conditions:
            if _unread(s, node, c, private):
                said.append(f"what {node.target.array} has where {c} < 0 is never read")
            elif node.reduce == "add" and _adds_zero(node, c, zeros):
                said.append(f"where {c} < 0 zeros are added")
            else:
                continue
            drop[id(node)] = (*drop.get(id(node), ()), c)
    if not drop:
        return s, []

    def rewrite(n: Any) -> tuple[Node, ...]:
        if isinstance(n, When) and id(n.body[0]) in drop:
            left = tuple([c for c in n.conditions if c not in drop[id(n.body[0])]])
            return (replace(n, conditions=left),) if left else n.body
        return (n,)
    return replace(s, nodes=simplified(rewritten(s.nodes, rewrite))), [*dict.fromkeys(said)]


def _unread(s: Scheduled, node: Do, c: Polynomial, private: dict[str, frozenset[str]]) -> bool:
    """Whether every other statement that reads the target's element does so under the same condition."""
    target = node.target
    axes = [p.linear() for p in target.subscripts]
    names = [next(iter(x.factors)) for x in axes if x.constant == 0 and [*x.factors.values()] == [1]]
    if len(names) != len(axes) or not c.names <= {*names} | private.get(target.array, frozenset()):
        return False
    for other, around in s.statements:
        if other is node:
            continue
        for a in [*leaves(other.value), *([other.target] if other.reduce else [])]:
            if a.array == target.array:
                asked = [x for w in around if isinstance(w, When) for x in w.conditions]
                if c.replaced(dict(zip(names, a.subscripts))) not in asked:
                    return False
    return True


def _zeros(s: Scheduled) -> dict[str, tuple[Access, tuple[Polynomial, ...]]]:
    """Buffers that are zeroed, and then set by one statement under conditions: its target, and the conditions."""
    writes: dict[str, list[tuple[Do, tuple[Any, ...]]]] = {}
    for node, around in s.statements:
        writes.setdefault(node.target.array, []).append((node, around))
    found = {}
    for name, every in writes.items():
        if name in s.buffers and len(every) == 2 and every[0][0].value == ("number", 0) and not every[1][0].reduce:
            (zero, _), (move, around) = every
            if zero.target == move.target:
                found[name] = move.target, tuple([c for x in around if isinstance(x, When) for c in x.conditions])
    return found


def _adds_zero(node: Do, c: Polynomial, zeros: dict[str, tuple[Access, tuple[Polynomial, ...]]]) -> bool:
    """Whether all factors of a product are 0 where the condition fails."""
    if node.value[0] not in ("mul", "load") or any(x[0] != "load" for x in node.value[1:] if isinstance(x, tuple)
                                                   and node.value[0] == "mul"):
        return False
    for a in leaves(node.value):
        if a.array not in zeros:
            return False
        target, conditions = zeros[a.array]
        by = {next(iter(p.names)): x for p, x in zip(target.subscripts, a.subscripts) if len(p.names) == 1}
        if c not in [x.replaced(by) for x in conditions]:
            return False
    return True
