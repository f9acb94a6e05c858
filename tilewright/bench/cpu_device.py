"""A CPU as child.Bench measures on it: operands in memory, answers compared, calls taken in turns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tilewright.bench.cases import REAL, Case
from tilewright.bench.child import Job, Left, States, attempt
from tilewright.bench.peer import OURS, Way
from tilewright.bench.results import ABSENT
from tilewright.measure import machine, measure, operands, quiet
from tilewright.measure.check import Reference
from tilewright.measure.measure import Call, Clock, Sample
from tilewright.measure.operands import Operands
from tilewright.measure.quiet import Watch

FEWEST = 8  # rows of A per thread: the least that a slow peer is given
SLOW = 10e9  # operations a second: less is a loop without vectors or blocks, whose rows of A all cost the same


class Cpu:
    """Device of a job on this machine's CPUs."""

    def __init__(self, job: Job, clock: Clock) -> None:
        self.job, self.clock, self.isa = job, clock, job.isa

    @property
    def target(self) -> Any:
        from tilewright.targets import detect

        return detect()

    def operands(self, case: Case) -> list[Operands]:
        return operands.make_sets(case.problem, case.cold, machine.last_level_bytes(), gap=case.gap)

    def reference(self, case: Case, first: Operands) -> list[tuple[int, Reference]]:
        """Of a batch, its first and its last product."""
        batch = case.problem.batch
        if batch == 1:
            return [(-1, Reference(first, case.algorithm))]
        return [(i, Reference(_single(first, i), case.algorithm)) for i in {0, batch - 1}]

    def absent(self, way: Way, case: Case) -> str | None:
        if case.product.key in REAL:
            return None
        fn, args = way.bind(operands.make(case.product.gemm(8, 8, 8)))
        try:
            fn(*args)
        except (TypeError, ValueError, NotImplementedError) as error:
            return f"{ABSENT}: {' '.join(str(error).split())}"
        return None

    def checked(self, way: Way, sets: list[Operands],
                reference: list[tuple[int, Reference]]) -> tuple[list[Call], int, float | None]:
        part, (fn, args) = attempt(lambda: self._part(way, sets[0]))
        part.poison()
        returned = attempt(lambda: fn(*args))
        c = part.c if way.returns is None else way.returns(returned)
        ours, deviation = way.name == OURS, 0.0
        for i, expected in reference:
            one = c if i < 0 else c[i]
            if wrong := expected.wrong(one, rounded_once=ours):
                raise Left(f"wrong result: {wrong}")
            deviation = max(deviation, expected.error(one))
        calls = [(fn, args), *(attempt(partial(way.bind, o)) for o in sets[1:])]
        for other, arguments in calls[1:]:
            other(*arguments)
        rows = part.problem.m
        return calls, rows if rows < sets[0].problem.m else 0, deviation

    def time(self, case: Case, calls: dict[str, list[Call]], reference: Any,
             sets: list[Operands]) -> tuple[dict[str, Sample], States, dict[str, str]]:
        samples = measure.interleave(
            calls, self.job.rules, clock=self.clock, settle=quiet.settle, disturbed=Watch().disturbed
        )
        return samples, {}, {}

    # ---- slow peers are given fewer rows of A

    def _part(self, way: Way, given: Operands) -> tuple[Operands, Call]:
        """All of A; but for a peer that is a slow loop over its rows, no more of them than it does in `call_s`."""
        rows = given.problem.m
        if self.job.call_s is not None and way.name != OURS and given.problem.batch == 1:
            rows = self._rows(way, given, self.job.call_s)
        part = given.first(rows) if rows < given.problem.m else given
        return part, way.bind(part)

    def _rows(self, way: Way, given: Operands, call_s: float) -> int:
        """How many rows of A, from what a few cost beyond what any number costs: a library that packs or converts B
        does so once.

        A library that has a few rows done slowly and many fast is given all: only below SLOW it is a loop.
        """
        m, few = given.problem.m, FEWEST * self.job.threads
        if m <= 2 * few:
            return m
        per_row = (self._seconds(way, given.first(2 * few)) - self._seconds(way, given.first(few))) / few
        one = Case("", given.problem).operations(1)
        if per_row * m <= call_s or one > SLOW * per_row:
            return m
        fixed = max(0.0, self._seconds(way, given.first(few)) - few * per_row)
        rows = max(few, math.floor(max(call_s, 20 * fixed) / per_row))
        if rows >= m or one * rows > SLOW * self._seconds(way, given.first(rows)):
            return m
        return rows

    def _seconds(self, way: Way, part: Operands) -> float:
        """Of one call, after a short one for what it does but once."""
        fn, args = way.bind(part.first(1))
        fn(*args)
        fn, args = way.bind(part)
        start = self.clock()
        fn(*args)
        return self.clock() - start


def _single(o: Operands, i: int) -> Operands:
    """One product of a batch."""
    p = o.problem
    return Operands(type(p)(p.m, p.n, p.k, p.a, p.b, p.out, p.layout), o.a[i], o.b[i], o.c[i])
