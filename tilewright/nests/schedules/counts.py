"""How many elements of each array a tree loads and stores, from the bounds of its loops: nothing is run.

An access is made as often as its statement runs. All lanes of a vector load one element where it is the same for all,
and a copy that a CTA's threads share is made once for all of them.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright import text
from tilewright.nests.nest import Access
from tilewright.nests.polynomial import Polynomial
from tilewright.nests.schedules.conditions import narrowed
from tilewright.nests.schedules.dependences import ranges
from tilewright.nests.schedules.scheduled import Scheduled
from tilewright.nests.tree import For, When

MOST = 1 << 24              # rounds that are looked at one by one; more are taken to run all


class Count(NamedTuple):
    """Elements. `level`: "global" (of a GPU), "memory" (of a CPU), "shared" or "registers"."""
    level: str
    loads: int
    stores: int
    bytes: int


def counts(s: Scheduled) -> dict[str, Count]:
    gpu, s = any(x.mark.startswith(("block", "thread")) for x in s.loops), narrowed(s)
    by_array: dict[str, Count] = {}
    for node, around in s.statements:
        together = any(isinstance(x, For) and x.mark.startswith("together") for x in around)
        loops = tuple([x for x in around if not (together and isinstance(x, For) and x.mark.startswith("thread"))])
        for access, writes in node.accesses():
            n = rounds(loops, _same(s, access, loops))
            old = by_array.get(access.array, Count(_level(s, access.array, gpu), 0, 0, 0))
            by_array[access.array] = Count(old.level, old.loads + n * (not writes), old.stores + n * writes,
                                        old.bytes + n * s.element(access.array).bytes)
    return by_array


def _level(s: Scheduled, array: str, gpu: bool) -> str:
    space = s.space(array)
    return space if space in ("shared", "registers") else "global" if gpu else "memory"


def _same(s: Scheduled, access: Access, loops: Sequence[For | When]) -> str | None:
    """The vector loop whose lanes all access one element."""
    return next((x.index for x in loops if isinstance(x, For) and x.mark == "vector"
                 and not any(x.index in p.names for p in access.subscripts)), None)


def rounds(around: Sequence[For | When], once: str | None = None) -> int:
    """How often what stands in these loops and conditions runs; `once`: a loop whose rounds count as one."""
    loops = {x.index: x for x in around if isinstance(x, For)}
    within = ranges(around)
    needed: list[Polynomial] = [c for x in around if isinstance(x, When) for c in x.conditions]
    needed += [x.stop - 1 - x.index for x in loops.values() if x.extent is None]
    other = {name: (x.index, shift, d, n) for x in loops.values() for name, shift, d, n in x.rings}
    groups: list[set[str]] = []
    named = [{other[x][0] if x in other else x for x in c.names} for c in needed]
    for names in named:
        mine = names.union(*[g for g in groups if g & names])
        groups = [g for g in groups if not g & names] + [mine]
    free = loops.keys() - set[str]().union(*groups)
    total = prod((loops[x].extent or 0) for x in free if x != once)
    for group in groups:
        inner = [x for x in loops if x in group]
        sizes = [within[x][1] + 1 for x in inner]
        if prod(sizes) > MOST:
            total *= prod(n for x, n in zip(inner, sizes) if x != once)
            continue
        grid = dict(zip(inner, np.indices(sizes, sparse=True)))
        grid |= {x: (grid[i] // d + shift) % n for x, (i, shift, d, n) in other.items() if i in grid}
        on = np.ones(sizes, bool)
        for c, names in zip(needed, named):
            if names <= group:
                constant, factors = c.linear()
                on &= sum((f * grid[x] for x, f in factors.items()), np.int64(constant)) >= 0
        if once in inner:
            on = np.any(on, axis=inner.index(once), keepdims=True)
        total *= int(on.sum())
    return total


def simulated(s: Scheduled, report: Any) -> dict[str, Count]:
    """What the simulator has counted; it sees no registers."""
    by_array = {}
    for name, c in counts(s).items():
        if c.level != "registers":
            loads, stores = (report.of(array=name, verb=verb) for verb in ("load", "store"))
            by_array[name] = Count(c.level, loads.elements, stores.elements, loads.bytes + stores.bytes)
    return by_array


def table(found: dict[str, Count]) -> str:
    rows = [(name, c.level, str(c.loads), str(c.stores), str(c.bytes)) for name, c in found.items()]
    return text.table([("", "level", "loads", "stores", "bytes"), *rows], (2, 3, 4))
