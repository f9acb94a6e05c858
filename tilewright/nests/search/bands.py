"""Bands: loops that stand directly one in the other around statements, and what their accesses allow.

A band is where a rule of rules.py applies. Which of its loops can be lanes of a vector, which ones only add up, which
rows share what they load: all of it is read from strides.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.nests.nest import Access
from tilewright.nests.schedules.scheduled import Scheduled
from tilewright.nests.tree import Do, For, When, walk

NEIGHBOURS = 4              # rounds by which two accesses of a stencil differ


@dataclass(frozen=True)
class Band:
    """`loops`, the outermost first, all without a mark; `outer`, those around them, which have other things in them."""
    scheduled: Scheduled
    loops: tuple[str, ...]
    outer: tuple[str, ...]
    extents: tuple[int, ...]            # at their widest
    statements: tuple[Do, ...]

    def stride(self, access: Access, loop: str) -> int:
        return self.scheduled.stride(access, loop)

    @property
    def accesses(self) -> Iterator[tuple[Access, bool]]:
        for d in self.statements:
            yield from d.accesses()

    @property
    def itemsize(self) -> int:
        """Bytes of the widest elements that are accessed."""
        return max(self.scheduled.element(a.array).bytes for a, _ in self.accesses)

    @property
    def signature(self) -> Any:
        """Equal for bands to which the same rule applies in the same way."""
        return self.extents, tuple((d.reduce, tuple(tuple([self.stride(a, x) for x in self.loops])
                                                    for a, _ in d.accesses())) for d in self.statements)

    @property
    def sums(self) -> tuple[str, ...]:
        """Loops in which each statement adds to one element."""
        return tuple([x for x in self.loops if all(d.reduce and not _depends(d.target, x) for d in self.statements)])

    @property
    def lanes(self) -> list[str]:
        """Loops along which arrays are read and written with stride 1, or stand still, best first."""
        weight = {x: sum(self.scheduled.element(a.array).bytes for a, _ in self.accesses if self.stride(a, x) == 1)
                  for x in self.loops if all(self.stride(a, x) in ((1,) if writes else (0, 1))
                                             for a, writes in self.accesses)}
        return sorted(weight, key=lambda x: -weight[x])

    @property
    def summed_lanes(self) -> list[str]:
        """Loops that only add up, along which operands are read with stride 1 or stand still: lanes of partial sums."""
        reads = [a for d in self.statements for a, writes in d.accesses() if not writes and a != d.target]
        return [x for x in self.sums if {self.stride(a, x) for a in reads} in ({1}, {0, 1})]

    def rows(self, lane: str | None) -> list[str]:
        """Loops several rounds of which may be unrolled together, since they share loads: those that most bytes of
        operands do not depend on, or that neighbours of a stencil differ in; best first."""
        weight = {x: self._shared(x) for x in self.loops if x != lane and x not in self.sums}
        return [x for x in sorted(weight, key=lambda x: -weight[x]) if weight[x]]

    def _shared(self, loop: str) -> int:
        element = self.scheduled.element
        reads = list(dict.fromkeys([a for a, writes in self.accesses if not writes and a.subscripts]))
        still = sum(element(a.array).bytes for a in reads if not _depends(a, loop) and
                    self.scheduled.space(a.array) != "registers")
        near = sum(element(a.array).bytes for a in reads for b in reads if a.array == b.array and a != b
                   and any(a.replaced({loop: _later(loop, d)}) == b for d in range(1, NEIGHBOURS)))
        return still + near

    def __str__(self) -> str:
        return " ".join(f"{x}<{n}" for x, n in zip(self.loops, self.extents))


def _later(loop: str, rounds: int) -> Any:
    from tilewright.nests.polynomial import polynomial
    return polynomial(loop) + rounds


def _depends(access: Access, loop: str) -> bool:
    return any(loop in p.names for p in access.subscripts)


def bands(s: Scheduled) -> list[Band]:
    """The bands of a tree in which no loop is unrolled or a vector yet."""
    found = []
    box = _extents(s)
    for node, around in walk(s.nodes):
        if not isinstance(node, For) or any(isinstance(x, For) for x, _ in walk(node.body)):
            continue
        path = [*[x for x in around if isinstance(x, For)], node]
        chain = [node]
        for x in reversed(path[:-1]):
            if len(x.body) > 1 or x.mark:
                break
            chain.insert(0, x)
        if any(x.mark for x in chain):
            continue
        names = tuple([x.index for x in chain])
        found.append(Band(s, names, tuple([x.index for x in path[:len(path) - len(chain)]]),
                          tuple([box[x] for x in names]), tuple([d for d, _ in walk(node.body) if isinstance(d, Do)])))
    return found


def _extents(s: Scheduled) -> dict[str, int]:
    from tilewright.nests.schedules.scheduled import widest
    return {name: last - first + 1 for name, (first, last) in widest(s.nodes, {}).items()}


def imperfect(s: Scheduled) -> list[tuple[str, int]]:
    """(a loop, parts of its body) of loops that have more than one part, a loop among them; the innermost first."""
    found = [(n.index, len(n.body)) for n, _ in walk(s.nodes) if isinstance(n, For) and len(n.body) > 1
             and any(isinstance(x, For) for x in n.body)]
    return found[::-1]


def conditions(s: Scheduled, loop: str) -> bool:
    """Whether conditions stand in the loop."""
    return any(isinstance(x, When) for x, _ in walk(s.loop(loop).body))
