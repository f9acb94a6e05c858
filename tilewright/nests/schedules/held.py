"""Rows that a CTA's threads hold in registers while several loops read them: `lanes(threads, hold=True)`.

    for j: m = max with x[i, j]             x_row[o, v] = x[i, 4 (threads o + lane) + v]    for o, v < 4, as vectors
    for j: s += exp(x[i, j] - m)            for o, v: m_part = max with x_row[o, v]; ...
    for j: y[i, j] = exp(x[i, j] - m) / s   for o, v: y[i, 4 (threads o + lane) + v] = exp(x_row[o, v] - m) / s

So x is read once, by vectors of 16 bytes if rows have whole ones, and y is written by such vectors.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tilewright.ir.program import Line
from tilewright.nests.nest import Access, arithmetic
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.scheduled import Scheduled
from tilewright.nests.tree import Do, For, Node, When, replaced, rewritten, walk

WIDEST = 16             # bytes of a vector
AT = "<at>"             # the name of the place in a row
MOST = 32, 64           # numbers of 4 bytes that a thread holds: one of 1024, one of fewer


class Held(NamedTuple):
    """`row`: the array and its subscripts, AT for the place in the row, which has `size` elements. `loops`: those that
    read it, and the place of their first rounds. It is in `buffer`, whose axes are a thread's turns and the elements of
    a vector."""
    row: Access
    size: int
    loops: dict[str, int]
    line: Line
    buffer: str
    conditions: tuple[Polynomial, ...]      # that there is such a row
    threads: int
    turns: int
    lanes: int

    def place(self, lane: Polynomial, turn: str, element: str) -> tuple[Polynomial, Polynomial]:
        """(a vector's first element of the row, the element)."""
        first = (polynomial(turn) * self.threads + lane) * self.lanes
        return first, first + polynomial(element)

    def inside(self, first: Polynomial) -> tuple[Polynomial, ...]:
        """The condition that a vector is in the row, unless all are."""
        divides = self.threads * self.turns * self.lanes == self.size
        return () if divides else (polynomial(self.size - self.lanes) - first,)

    def copied(self, lane: Polynomial) -> Node:
        """The loads of a thread."""
        turn, element = f"{self.buffer}.o", f"{self.buffer}.v"
        first, at = self.place(lane, turn, element)
        do = Do(Access(self.buffer, (polynomial(turn), polynomial(element))), "",
                ("load", self.row.replaced({AT: at})), self.line)
        asked = (*self.conditions, *self.inside(first))
        body: Node = When(asked, (do,)) if asked else do
        body = For(element, polynomial(0), polynomial(self.lanes), 1, (body,), self.line,
                   "vector" if self.lanes > 1 else "unroll")
        return For(turn, polynomial(0), polynomial(self.turns), 1, (body,), self.line, "unroll")


def held_rows(s: Scheduled, loops: Sequence[For], threads: int, buffer: Callable[[str, tuple[int, ...]], str]
              ) -> list[Held]:
    """The rows that at least two of these loops read, each element by its round, and that nothing writes."""
    written = {d.target.array for d, _ in s.statements}
    rows: dict[tuple[Access, int, tuple[Polynomial, ...]], dict[str, int]] = {}
    for loop in loops:
        inner = any(isinstance(n, For) for n, _ in walk(loop.body))
        if loop.extent is None or loop.start.constant != 0 or inner:
            continue
        for d, around in walk(loop.body):
            asked = tuple([c for x in around if isinstance(x, When) for c in x.conditions])
            for a, _ in d.accesses() if isinstance(d, Do) else ():
                own = [n for n, p in enumerate(a.subscripts) if loop.index in p.names]
                first = (a.subscripts[own[0]] - loop.index).constant if len(own) == 1 else None
                if a.array not in s.arrays or a.array in written or first is None or first < 0 or any(
                        loop.index in c.names for c in asked):
                    continue
                key = a.replaced({loop.index: polynomial(AT) - first}), loop.extent + first, asked
                rows.setdefault(key, {}).setdefault(loop.index, first)
    held, room = list[Held](), MOST[threads < 1024] * 4
    for (row, size, asked), by in rows.items():
        item = s.element(row.array).bytes
        widths = [n for n in (8, 4, 2, 1) if n * item <= WIDEST and size % n == 0]
        lanes = next((n for n in widths if size % (threads * n) == 0), widths[0])       # no conditions, if possible
        turns = -(-size // (threads * lanes))
        alike = all((x.size, x.lanes) == (size, lanes) for x in held)       # a loop is divided in one way
        if len(by) > 1 and alike and turns * lanes * item <= room:
            room -= turns * lanes * item
            line = next(x.line for x in loops if x.index in by)
            held.append(Held(row, size, by, line, buffer(row.array, (turns, lanes)), asked, threads, turns, lanes))
    return held


def over_held(s: Scheduled, loop: For, body: tuple[Node, ...], held: Sequence[Held], lane: Polynomial) -> Node:
    """A thread's rounds of a loop that reads held rows."""
    one, start = held[0], held[0].loops[loop.index]
    turn, element = f"{loop.index}.o", f"{loop.index}.v"
    first, at = one.place(lane, turn, element)
    places = {x.row.replaced({AT: polynomial(loop.index) + x.loops[loop.index]}): Access(
        x.buffer, (polynomial(turn), polynomial(element))) for x in held}
    vector = one.lanes > 1 and not start and _alongside(s, loop, body, one.lanes)
    body = rewritten(body, lambda n: (n.mapped(lambda a: places.get(a, a), lambda p: p) if isinstance(n, Do) else n,))
    body = replaced(body, {loop.index: at - start})
    asked = (*one.inside(first), *([at - start] if start else []))
    body = (When(asked, body),) if asked else body
    body = (For(element, polynomial(0), polynomial(one.lanes), 1, body, loop.line, "vector" if vector else "unroll"),)
    return For(turn, polynomial(0), polynomial(one.turns), 1, body, loop.line, "unroll")


def _alongside(s: Scheduled, loop: For, body: tuple[Node, ...], lanes: int) -> bool:
    """Whether a loop's rounds can be elements of a vector: they store to memory, one beside the other."""
    for n, _ in walk(body):
        if isinstance(n, When) and any(loop.index in c.names for c in n.conditions):
            return False
        if not isinstance(n, Do):
            continue
        if n.target.array not in s.arrays or s.stride(n.target, loop.index) != 1:
            return False
        every = [(s.element(a.array), a) for a, _ in n.accesses()]
        if lanes * max(arithmetic(n.value, [t for t, _ in every]).bytes, *[t.bytes for t, _ in every]) > WIDEST:
            return False
    return True
