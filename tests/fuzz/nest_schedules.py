"""Random sequences of a schedule's operations: each is done or Illegal, and what is left computes what loops do."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tilewright.nests.nest import Refused
from tilewright.nests.schedules.schedule import Schedule
from tilewright.nests.schedules.scheduled import Illegal
from tilewright.nests.tree import Do, For, When, walk

MOST = 400          # statements of a tree, above which loops are not unrolled further


def chain(loop: For) -> list[str]:
    """Loops that stand directly one in the other, from this one on."""
    found, node = [loop.index], loop
    while len(node.body) == 1 and isinstance(node.body[0], (For, When)):
        inner: Any = node.body[0]
        if isinstance(inner, For):
            found.append(inner.index)
        node = inner
    return found


def step(r: Random, s: Schedule) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A method, its arguments and options."""
    loops = s.now.loops
    loop = r.choice(loops)
    inside = chain(loop)
    many = sum(1 for _ in s.now.statements) > MOST
    kind = r.choices(["split", "reorder", "fuse", "fission", "unroll", "vectorize", "stage", "bind", "threads"],
                     [5, 4, 1, 1.5, 0 if many else 1, 1.5, 4, 0.3, 0.3])[0]
    if kind == "split":
        return "split", (loop.index, r.choice([1, 2, 2, 3, 4, 4, 5, 8])), {
            "tail": r.choice(["divide", "predicate", "predicate", "cut"])}
    if kind == "reorder":
        return "reorder", tuple(r.sample(inside, len(inside))), {}
    if kind == "fuse":
        return "fuse", (loop.index, r.choice(inside[1:] or [r.choice(loops).index])), {}
    if kind == "fission":
        return "fission", (loop.index, r.choice([1, 1, 2, r.choice(loops).index])), {}
    if kind == "unroll":
        return "unroll", (r.choice([loop.index, loops[-1].index]),), {}
    if kind == "vectorize":
        return "vectorize", (r.choice([inside[-1], loop.index]),), {"lanes": r.choice([None, None, 2, 4, 8])}
    if kind == "stage":
        place = "around" if r.random() < 0.8 else "inside"
        ours = {x.index for x, _ in walk((loop,) if place == "around" else loop.body) if isinstance(x, For)}
        every = [a for x, _ in walk((loop,)) if isinstance(x, Do) for a, _ in x.accesses()]
        access = r.choice(every)
        axes = [x for p in access.subscripts for x in p.names if x in ours or r.random() < 0.02]
        space = r.choice(["registers", "memory", "memory", "shared"])
        return "stage", (access.array,), {place: loop.index, "axes": tuple(r.sample(axes, len(axes))), "space": space,
                                          "pad": r.choice([0, 0, 0, 1])}
    if kind == "bind":
        return "bind", ({loop.index: "worker"},), {}
    places = r.sample(["block.x", "block.y", "thread.x", "thread.y"], min(len(inside), r.choice([1, 2, 4])))
    return "bind", (dict(zip(inside, sorted(places))),), {}


def scheduled(s: Schedule, seed: int, counts: Counter[str]) -> Schedule:
    """The schedule after some operations, of which those that are Illegal are left out."""
    r = Random(seed)
    for _ in range(r.choice([1, 2, 3, 5, 8, 12])):
        if not s.now.loops:
            return s
        method, arguments, options = step(r, s)
        try:
            s = getattr(s, method)(*arguments, **options)
        except (Illegal, Refused):
            counts[f"schedule: {method} illegal"] += 1
        else:
            counts[f"schedule: {method} done"] += 1
    if r.random() < 0.3 and s.now.loops and not any(x.mark for x in s.now.loops):
        outer = chain(s.now.loops[0])[:r.choice([1, 1, 2])]
        try:
            s = s.bind(dict(zip(outer, r.choice([("block.x", "block.y"), ("thread.y", "block.x")])))).lanes(
                r.choice([32, 32, 64]), hold=r.random() < 0.4)
        except (Illegal, Refused):
            counts["schedule: lanes illegal"] += 1
        else:
            counts["schedule: lanes done"] += 1
    return s
