"""Simulated ranks that run schedules of tilewright.torch.distributed: streams in any order that their waits allow,
memory of NumPy, and vector clocks that find two accesses of which neither comes before the other."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import product

import numpy as np

from tilewright.torch.distributed.schedules import (
    COMPUTE,
    Add,
    Await,
    Copy,
    Flag,
    Follow,
    Multiply,
    Part,
    Post,
    schedule,
)

LANDINGS = "landing", "whole", "final"


class Race(AssertionError):
    pass


class Group:
    """`ranks` devices that make `calls` calls in a row, each (kind, form, pieces); results are sums of integers. The
    caller writes rows, and over the last result, before each call, and reads the result after it. `one_queue`: a
    device takes steps of both streams in the order in which they were given."""

    def __init__(self, ranks, calls, seed, slots=2, one_queue=False):
        self.ranks, self.calls, self.random = ranks, calls, random.Random(seed)
        self.one_queue, self.slots = one_queue, slots
        self.memory = {}                        # (rank, slot or call, buffer, block, piece) → numbers
        self.slot_of = defaultdict(list)        # accesses of each slot of each rank
        self.written, self.read = {}, defaultdict(dict)     # by cell: (stream, its count) that wrote; of each that read
        self.flags = {(rank, slot, Flag("free", peer)): (1, {}) for rank, slot, peer in product(
            range(ranks), range(slots), range(ranks))}
        self.clocks = {(rank, stream): {} for rank, stream in product(range(ranks), (0, 1))}
        self.queues = {place: [] for place in ([(r, None) for r in range(ranks)] if one_queue else self.clocks)}
        numbers = np.random.default_rng(seed)
        self.inputs = {}
        for call, (kind, form, pieces) in enumerate(calls):
            for rank in range(ranks):
                blocks = 1 if kind == "gather" else ranks
                self.inputs[call, rank] = numbers.integers(-9, 9, (blocks, pieces))
                self.give(rank, COMPUTE, (call, "write"))
                for number, step in enumerate(schedule(kind, form, rank, ranks, pieces)):
                    if isinstance(step, Follow):            # a mark in the other stream, until which it must have come
                        self.give(rank, 1 - step.stream, ("mark", (call, number)))
                        self.give(rank, step.stream, ("until", (call, number)))
                    else:
                        self.give(rank, step.stream, (call, step))
                self.give(rank, COMPUTE, (call, "read"))
        self.marks = {}

    def give(self, rank, stream, item):
        self.queues[rank, None if self.one_queue else stream].append(((rank, stream), item))

    def cells(self, rank, call, part):
        kind, _, pieces = self.calls[call]
        where = rank if part.rank is None else part.rank
        assert (part.rank is not None) == (part.buffer in LANDINGS), part
        count = 1 if part.buffer == "rows" and kind == "gather" else self.ranks
        blocks = range(count) if part.block is None else [part.block]
        turn = call % self.slots if part.buffer in LANDINGS else call if part.buffer == "result" else None
        inner = range(self.ranks) if part.buffer == "whole" else [None]
        return [(where, turn, part.buffer, block, k, piece) for block in blocks for k in inner
                for piece in (range(pieces) if part.piece is None else [part.piece])]

    def value(self, rank, call, part):
        if part.buffer == "rows":
            rows = self.inputs[call, rank]
            return [rows[b, p] * (rank + 2) for *_, b, _, p in self.cells(rank, call, part)]
        return [self.memory.get(cell) for cell in self.cells(rank, call, part)]

    def touch(self, place, call, cells, write):
        clock = self.clocks[place]
        for where, turn in {cell[:2] for cell in cells if cell[2] in LANDINGS}:     # landings of calls overlap
            for other, count, earlier in self.slot_of[where, turn] if write else ():
                if earlier < call and other != place and clock.get(other, 0) < count:
                    raise Race(f"{place} writes to the slot {turn} of rank {where}, and {other} may use it")
            self.slot_of[where, turn].append((place, clock[place], call))
        for cell in cells:
            for other, count in [*([self.written[cell]] if cell in self.written else []),
                                 *(self.read[cell].items() if write else ())]:
                if other != place and clock.get(other, 0) < count:
                    raise Race(f"{place} {'writes' if write else 'reads'} {cell}, and {other} may use it")
            if write:
                self.written[cell], self.read[cell] = (place, clock[place]), {}
            else:
                self.read[cell][place] = clock[place]

    def ready(self, place, item):
        if item[0] == "until":
            return item[1] in self.marks[place[0]] if place[0] in self.marks else False
        call, step = item
        return isinstance(step, str) or not isinstance(step, Await) or all(
            self.flags.get((place[0], call % self.slots, flag), (0, {}))[0] for flag in step.flags)

    def do(self, place, item):
        rank, clock = place[0], self.clocks[place]
        clock[place] = clock.get(place, 0) + 1
        if item[0] == "mark":
            self.marks.setdefault(rank, {})[item[1]] = dict(clock)
            return
        if item[0] == "until":
            self.join(place, self.marks[rank][item[1]])
            return
        call, step = item
        slot = call % self.slots
        if isinstance(step, str):       # of the caller
            for number, buffer in ((call, "rows" if step == "write" else "result"),
                                   *[(call - 1, "result")] * (step == "write" and call > 0)):
                own = self.calls[number][0] == "scatter" and buffer == "result"
                cells = self.cells(rank, number, Part(buffer, 0 if own else None))
                self.touch(place, number, cells, write=step == "write")
        elif isinstance(step, Await):
            for flag in step.flags:
                self.join(place, self.flags[rank, slot, flag][1])
                self.flags[rank, slot, flag] = 0, {}
        elif isinstance(step, Post):
            for to, flag in step.flags:
                if self.flags.get((to, slot, flag), (0,))[0]:
                    raise Race(f"{place} posts {flag} of rank {to} before that took the last one")
                self.flags[to, slot, flag] = 1, dict(clock)
        else:
            self.compute(place, rank, call, step)

    def join(self, place, other):
        clock = self.clocks[place]
        for who, count in other.items():
            clock[who] = max(clock.get(who, 0), count)

    def compute(self, place, rank, call, step):
        if isinstance(step, Copy):
            parts, value = [step.source], self.value(rank, call, step.source)
            if step.source.buffer == "rows":
                value = [x // (rank + 2) for x in value]          # rows themselves
        elif isinstance(step, Add):
            parts = list(step.parts)
            value = [sum(x) for x in zip(*(self.value(rank, call, part) for part in parts))]
        else:
            assert isinstance(step, Multiply)
            parts, value = [step.rows], self.value(rank, call, step.rows)
            if step.rows.buffer != "rows":
                value = [x * (rank + 2) for x in value]
            if step.plus:
                parts.append(step.plus)
                value = [x + y for x, y in zip(value, self.value(rank, call, step.plus))]
        for part in parts:
            self.touch(place, call, self.cells(rank, call, part), write=False)
        to = self.cells(rank, call, step.to)
        self.touch(place, call, to, write=True)
        assert len(to) == len(value), step
        self.memory.update(zip(to, value))

    def run(self):
        while any(self.queues.values()):
            heads = [queue for queue in self.queues.values() if queue and self.ready(*queue[0])]
            if not heads:
                raise Race(f"all wait: {[queue[0] for queue in self.queues.values() if queue]}")
            self.do(*self.random.choice(heads).pop(0))
        return self

    def check(self):
        for call, (kind, _, pieces) in enumerate(self.calls):
            for rank in range(self.ranks):
                got = {(cell[3], cell[5]): x for cell, x in self.memory.items()
                       if cell[:3] == (rank, call, "result")}
                if kind == "gather":
                    wanted = {(b, p): self.inputs[call, b][0, p] * (rank + 2) for b in range(self.ranks)
                              for p in range(pieces)}
                elif kind == "exchange":
                    wanted = {(b, p): self.inputs[call, rank][b, p] * (b + 2) for b in range(self.ranks)
                              for p in range(pieces)}
                else:
                    sums = sum(self.inputs[call, r] * (r + 2) for r in range(self.ranks))
                    wanted = ({(0, p): sums[rank, p] for p in range(pieces)} if kind == "scatter" else
                              {(b, p): sums[b, p] for b in range(self.ranks) for p in range(pieces)})
                assert got == wanted, (kind, rank, got, wanted)
