"""Loads of shared memory as the loads that were stored there: `forwarded(items, memories, ...)`.

    sA[tid // S, tid % S] = A[i0 + tid // S, p0 + tid % S]      each thread its elements, in turns
    barrier
    acc += sA[row, p] * ...                                     →  acc += A[i0 + row, p0 + p] * ...

A CTA's threads and turns are enumerated: which element of the buffer each of them writes, and with which subscripts it
has loaded what it stores there. Each element is written once, so an element that is read has known subscripts, and if
those are sums of the reader's indices with whole coefficients the load stands in the statement itself. Divisions of
thread indices are thereby numbers, and need no algebra. Refused: buffers without barriers around their use, with other
elements in each round of a loop (two stages), and global arrays that threads exchange data through.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.ir import Type
from tilewright.ir.program import Line
from tilewright.nests.nest import Access, Loop, Statement, Term, accesses_mapped, leaves, mapped, promoted, refuse
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.reading.known import Operations, holds, names_below, places, resolved, with_places

MOST_POINTS = 1 << 20           # rounds of threads and turns that are enumerated


class Barrier(NamedTuple):
    """Where all threads of the CTA meet."""
    loops: tuple[Loop, ...]
    line: Line


class Memory(NamedTuple):
    """A shared array."""
    size: int
    element: Type


Item = Statement | Barrier


def forwarded(items: list[Item], memories: Mapping[str, Memory], operations: Operations, elements: Mapping[str, Type]
              ) -> list[Statement]:
    """The statements without shared memory and without barriers."""
    _exchanged(items, memories)
    left = {name for x in items for name in _shared(x, memories)}
    while left:
        ready = [name for name in sorted(left) if not any(
            a.array in left for x in items if isinstance(x, Statement) and x.target.array == name
            for a in leaves(x.value))]
        if not ready:
            line = next(x.line for x in items if _shared(x, memories))
            refuse(line, f"{min(left)} is stored from what is loaded of shared memory")
        for name in ready:
            items = _Buffer(name, memories[name], items, operations, elements).without()
        left -= {*ready}
    return [x for x in items if isinstance(x, Statement)]


def checked(s: Statement, operations: Operations) -> None:
    """Refused, if a division is left in the statement."""
    of_loops = [p for loop in s.loops for p in (loop.start, loop.stop)]
    for p in [*places(s.value), *s.target.subscripts, *s.conditions, *of_loops]:
        for name in p.names & operations.quotients.keys():
            refuse(s.line, f"{name[1:-1]} is no sum of loop indices and sizes with whole coefficients")


def _shared(x: Item, memories: Mapping[str, Memory]) -> set[str]:
    arrays = [x.target.array, *(a.array for a in leaves(x.value))] if isinstance(x, Statement) else []
    return {a for a in arrays if a in memories}


def _exchanged(items: Sequence[Item], memories: Mapping[str, Memory]) -> None:
    """Refused, if a global array may carry data across a barrier, from thread to thread."""
    meeting = {loop.index for x in items if isinstance(x, Barrier) for loop in x.loops if loop.kind == "loop"}
    written = {x.target.array for x in items if isinstance(x, Statement) and x.target.subscripts} - memories.keys()
    phase, seen = 0, dict[str, int]()
    for x in items:
        if isinstance(x, Barrier):
            phase += 1
            continue
        for array in written & {x.target.array, *(a.array for a in leaves(x.value))}:
            if seen.setdefault(array, phase) != phase or (meeting & {loop.index for loop in x.loops}):
                refuse(x.line, f"{array} is written, and is accessed before and after a barrier: threads may exchange "
                       "data through it")


def _shape(term: Term) -> Term:
    return accesses_mapped(term, lambda a: Access(a.array, tuple([polynomial(0)] * len(a.subscripts))),
                           lambda _: polynomial(0))


class _Buffer:
    """One shared array: its stores, the barriers, and its loads."""

    def __init__(self, name: str, memory: Memory, items: list[Item], operations: Operations,
                 elements: Mapping[str, Type]) -> None:
        self.name, self.memory, self.items = name, memory, items
        self.operations, self.elements = operations, elements
        self.writes = [(n, x) for n, x in enumerate(items) if isinstance(x, Statement) and x.target.array == name]
        self.reads = [(n, x) for n, x in enumerate(items) if isinstance(x, Statement)
                      and any(a.array == name for a in leaves(x.value))]
        self.fits: dict[Any, list[Polynomial]] = {}

    def without(self) -> list[Item]:
        """The items in which its loads are what was stored, and its stores are not."""
        if self.reads:
            if not self.writes:
                refuse(self.reads[0][1].line, f"{self.name} is read, and nothing is stored there")
            self._ordered()
            self._written()
        stores, loads = {n for n, _ in self.writes}, {n for n, _ in self.reads}
        return [self._read(x) if n in loads and isinstance(x, Statement) else x
                for n, x in enumerate(self.items) if n not in stores]

    def _ordered(self) -> None:
        """Stores, a barrier, loads, and before they come again another barrier."""
        users = [x for _, x in (*self.writes, *self.reads)]
        common = users[0].loops
        for x in users:
            shared = 0
            while shared < min(len(common), len(x.loops)) and common[shared] == x.loops[shared]:
                shared += 1
            common = common[:shared]
        self.common = common
        met = [n for n, x in enumerate(self.items) if isinstance(x, Barrier) and x.loops == common]
        first, last = min(n for n, _ in self.writes), max(n for n, _ in self.writes)
        read, end = min(n for n, _ in self.reads), max(n for n, _ in self.reads)
        line = self.reads[0][1].line
        if not any(last < n < read for n in met):
            refuse(line, f"{self.name} is read, and no barrier is between all its stores and this")
        if any(x.kind == "loop" for x in common) and not any(n < first or n > end for n in met):
            refuse(line, f"{self.name} is stored to again in the next round, and no barrier is between this and that")
        threads = {x.index for x in common if x.kind == "thread"}
        for loop in common:
            if threads & (names_below(loop.start, self.operations.quotients)
                          | names_below(loop.stop, self.operations.quotients)):
                refuse(loop.line, "threads have other rounds of a loop in which they share memory")

    # ---- what is written

    def _points(self, s: Statement, needed: set[str]) -> dict[str, np.ndarray]:
        """The threads and rounds of the loops of a statement below the common ones, as numbers: of those whose indices
        are needed, and those that its conditions on them admit."""
        own = [x for x in s.loops if x.kind == "thread" or x not in self.common]
        needed, quotients = set(needed), self.operations.quotients
        for x in reversed(own):
            if x.index in needed:
                needed |= names_below(x.start, quotients) | names_below(x.stop, quotients)
        points: dict[str, np.ndarray] = {}
        for x in own:
            if x.index not in needed:
                continue
            unknown = (names_below(x.start, quotients) | names_below(x.stop, quotients)) - points.keys()
            if unknown:
                refuse(s.line, f"{self.name} is accessed at {x.index}, whose rounds depend on {min(unknown)}")
            start, stop = (np.asarray(resolved(p, points, quotients)) for p in (x.start, x.stop))
            rounds = max(int((-(-(stop - start) // x.step)).max(initial=0)), 0)
            count = len(next(iter(points.values()))) if points else 1
            if count * rounds > MOST_POINTS:
                refuse(s.line, f"{self.name} is accessed in more than {MOST_POINTS} rounds")
            grown = {name: np.repeat(v, rounds) for name, v in points.items()}
            index = np.repeat(np.broadcast_to(start, count), rounds) + np.tile(np.arange(rounds), count) * x.step
            admitted = index < np.repeat(np.broadcast_to(stop, count), rounds)
            points = {name: v[admitted] for name, v in {**grown, x.index: index}.items()}
        for c in s.conditions:
            if names_below(c, quotients) <= points.keys():
                admitted = np.asarray(resolved(c, points, quotients)) >= 0
                points = {name: v[np.broadcast_to(admitted, v.shape)] for name, v in points.items()}
        return points

    def _written(self) -> None:
        """For each element of the buffer the row of `tables` that has the subscripts of what is stored there."""
        self.pattern = self.writes[0][1].value
        quotients, threads = self.operations.quotients, set[str]()
        changed = {x.target.array for x in self.items if isinstance(x, Statement)}
        elements, columns = [], list[list[dict[tuple[str, ...], Any]]]()
        for _, s in self.writes:
            if s.reduce or _shape(s.value) != _shape(self.pattern):
                refuse(s.line, f"{self.name} is stored to in more than one way")
            for a in leaves(s.value):
                if a.array in changed:
                    refuse(s.line, f"what is stored in {self.name} is read from {a.array}, which is written, too")
            self._held(s)
            own = {x.index for x in s.loops if x.kind == "thread" or x not in self.common}
            threads |= own
            for c in s.conditions:
                if not names_below(c, quotients) <= own:
                    refuse(s.line, f"{self.name} is stored to under a condition: what it holds elsewhere is not known")
            points = self._points(s, own)
            count = len(next(iter(points.values()))) if points else 1
            place = s.target.subscripts[0]
            if not names_below(place, quotients) <= own:
                refuse(s.line, f"{self.name} is stored to at {place}, which differs between rounds or blocks")
            elements.append(np.broadcast_to(resolved(place, points, quotients), count))
            columns.append([{u: np.broadcast_to(resolved(p, points, quotients), count)
                             for u, p in self._parts(q, own, s.line).items()} for q in places(s.value)])
        at = np.concatenate(elements)
        line = self.writes[0][1].line
        if len(at) and (at.min() < 0 or at.max() >= self.memory.size):
            refuse(line, f"{self.name} is stored to at {at.min()} ... {at.max()}, and has {self.memory.size} elements")
        self.rows = np.full(self.memory.size, -1)
        self.rows[at] = np.arange(len(at))
        if (self.rows >= 0).sum() < len(at):
            refuse(line, f"an element of {self.name} is stored to twice between two barriers")
        self.tables: list[dict[tuple[str, ...], np.ndarray]] = []
        for q in range(len(columns[0])):
            units = {u for column in columns for u in column[q]}
            self.tables.append({u: np.concatenate([column[q].get(u, np.zeros(len(e), int))
                                                   for column, e in zip(columns, elements)]) for u in units})

    def _parts(self, p: Polynomial, own: set[str], line: Line) -> dict[tuple[str, ...], Polynomial]:
        """A polynomial as a sum of (product of names that all threads share) * (polynomial of the threads' own)."""
        parts: dict[tuple[str, ...], Polynomial] = {}
        for names, c in p.terms:
            of = {name: names_below(polynomial(name), self.operations.quotients) for name in names}
            for name, below in of.items():
                if below & own and not below <= own:
                    refuse(line, f"{name} is no sum of loop indices and sizes with whole coefficients")
            shared = tuple([name for name in names if not of[name] & own])
            rest = tuple([name for name in names if of[name] & own])
            parts[shared] = parts.get(shared, Polynomial(())) + Polynomial([(rest, c)])
        return parts

    def _held(self, s: Statement) -> None:
        """Refused, if the buffer's format rounds what is stored there."""
        reads = [self.elements[a.array] for a in leaves(s.value)]
        computed = promoted(reads) if any(x not in ("load", "number", "where", "index") for x in _operations(s.value)
                                          ) else None
        if any(not a.subscripts for a in leaves(s.value)):
            refuse(s.line, f"a register is stored in {self.name}, and not what was loaded")
        for t in reads:
            if not holds(self.memory.element, t) or computed not in (None, self.memory.element):
                refuse(s.line, f"{self.name} holds {self.memory.element}, and what is stored there is {computed or t}")

    # ---- what is read

    def _read(self, s: Statement) -> Statement:
        """A statement with the stored terms in place of loads of the buffer."""
        def leaf(x: Term) -> Term:
            if x[0] != "load" or x[1].array != self.name:
                return x
            return with_places(self.pattern, self._fit(s, x[1].subscripts[0]))
        before = [self.elements[a.array] for a in leaves(s.value)]
        value = mapped(s.value, leaf)
        after = [self.elements[a.array] for a in leaves(value)]
        own = [self.elements[s.target.array]] * bool(s.reduce)
        if value[0] not in ("load", "number") and before and promoted(before + own) != promoted(after + own):
            refuse(s.line, f"the kernel computes in {promoted(before + own)}, and loops over what is stored in "
                   f"{self.name} in {promoted(after + own)}")
        return s._replace(value=value)

    def _fit(self, s: Statement, place: Polynomial) -> list[Polynomial]:
        """The stored term's subscripts, in the reader's indices."""
        quotients = self.operations.quotients
        key = place, tuple([x.index for x in s.loops]), s.conditions
        if key in self.fits:
            return self.fits[key]
        own = {x.index for x in s.loops if x.kind == "thread" or x not in self.common}
        if not names_below(place, quotients) <= own:
            refuse(s.line, f"{self.name} is read at {place}, which differs between rounds or blocks")
        points = self._points(s, names_below(place, quotients))
        names = [*points]
        count = len(points[names[0]]) if names else 1
        at = np.broadcast_to(resolved(place, points, quotients), count)
        rows = self.rows[np.clip(at, 0, self.memory.size - 1)]
        if count and (at.min() < 0 or at.max() >= self.memory.size or rows.min() < 0):
            refuse(s.line, f"{self.name} is read at elements that nothing was stored to since the barrier before")
        matrix = np.stack([np.ones(count, int), *(points[name] for name in names)], axis=1)
        fits = []
        for table in self.tables:
            total = Polynomial(())
            for unit, numbers in table.items():
                wanted = numbers[rows]
                solved = np.rint(np.linalg.lstsq(matrix.astype(float), wanted.astype(float), rcond=None)[0]).astype(int)
                if not (matrix @ solved == wanted).all():
                    refuse(s.line, f"{self.name}[{place}] holds what was loaded at no sum of this statement's indices "
                           "with whole coefficients")
                fit = sum((polynomial(name) * int(c) for name, c in zip(names, solved[1:])), polynomial(int(solved[0])))
                total = total + fit * Polynomial([(unit, 1)])
            fits.append(total)
        self.fits[key] = fits
        return fits


def _operations(term: Term) -> list[str]:
    if term[0] in ("load", "number", "parameter", "index"):
        return [term[0]]
    inner = term[1:] if term[0] != "where" else term[2:]
    return [term[0], *(x for part in inner for x in _operations(part))]
