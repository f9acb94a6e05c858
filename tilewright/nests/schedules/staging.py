"""`stage`: a buffer for what a loop uses of an array, copied in before the loop, and back after it if it is written.

The buffer has an axis for each loop that is named, in this order: `("jr", "p", "jv", "jl")` is a packed panel of B. Its
elements beyond the array are 0.
"""
from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tilewright.nests.nest import Access, leaves
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import Range, distances, span
from tilewright.nests.schedules.operations import Done, independent
from tilewright.nests.schedules.scheduled import Illegal, Scheduled, illegal, widest
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
    _place(s, array, space, axes, written, inner, threads, outside, loop)
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

    def copy(to: Access, source: Access, fill: bool) -> tuple[Node, ...]:
        beyond = tuple([c.replaced(names) for c in conditions])
        body = _copied(to.replaced(names), source.replaced(names), beyond, fill, loop)
        for x, size in zip(reversed(axes), reversed(shape)):
            body = (For(names[x], polynomial(0), polynomial(size), 1, body, loop.line),)
        return body

    first: tuple[Node, ...] = () if written and _set_first(region, use, axes) else copy(new, use, True)
    filled = next(n for n, _ in walk(region) if isinstance(n, Do) and use in [a for a, _ in n.accesses()])
    if first and written and array in s.buffers and filled.target == use and not filled.reduce:
        illegal(filled.line, f"{array} is a buffer, which is filled in {around}")
    back: tuple[Node, ...] = copy(use, new, False) if written else ()
    if space == "shared":
        first = (Sync(), *[_together(x) for x in first], Sync())
    buffers = {name: Buffer(tuple(shape), space, s.element(array), (0, pad))}

    def rewrite(n: Any) -> tuple[Node, ...]:
        if not isinstance(n, For) or n.index != around:
            return (n,)
        return (replace(n, body=_merged((*first, *here, *back))),) if inside else (*first, *here, *back)
    s = s.changed(rewrite, buffers)
    s = replace(s, nodes=_merged_everywhere(s.nodes))
    bound = [x.index for x in s.loops if x.mark.startswith(("block", "thread", "worker"))]
    if written:
        independent(s, bound)
    numbers = " x ".join(map(str, shape)) + (f" = {prod(shape)} numbers" if len(shape) > 1 else " numbers")
    why = f"stage {array} around {around} in {space} as {name}, {numbers if shape else '1 number'}: " + (
        "nothing else accesses it meanwhile; " if written else "") + (
        "only read" if not written else "set there and copied back" if not first else "copied in and back")
    return s, why


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


def _place(s: Scheduled, array: str, space: str, axes: tuple[str, ...], written: bool, inner: dict[str, For],
           threads: dict[str, For], outside: list[Any], loop: For) -> None:
    """Refuses memory where it cannot be."""
    if any(x.mark.startswith(("block", "thread")) for x in inner.values()):
        illegal(loop.line, f"{loop.index} has the launch's CTAs or threads in it: buffers are inside of these")
    lanes = next((x.index for x in outside if isinstance(x, For) and x.mark == "vector"), None)
    if lanes:
        illegal(loop.line, f"{loop.index} is in the vector loop {lanes}: stage first, then vectorize")
    anew = [x for x in inner if x in s.privates().get(array, ())]
    if anew:
        illegal(loop.line, f"{array} is set anew in each round of {anew[0]}: nothing of it is kept longer")
    if space == "memory" and threads:
        illegal(loop.line, f"{loop.index} is inside of threads, and memory is of a CTA: registers are of a thread")
    if space != "shared":
        return
    if not axes:
        illegal(loop.line, f"{array} is one element for all threads: registers are for that")
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
    result: list[Node] = []
    for n in nodes:
        if isinstance(n, Sync) and result and isinstance(result[-1], Sync):
            continue
        result.append(n)
    return tuple([n for at, n in enumerate(result) if not (
        isinstance(n, Sync) and 0 < at < len(result) - 1 and _copies(result[at - 1]) and _copies(result[at + 1]))])


def _copies(n: Node) -> bool:
    return isinstance(n, For) and n.mark == "together"


def _merged_everywhere(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return rewritten(_merged(nodes), lambda n: (replace(n, body=_merged(n.body)),) if isinstance(n, For) else (n,))
