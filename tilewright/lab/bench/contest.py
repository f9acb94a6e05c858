"""One case: tilewright and its peers are checked, and those that are right are timed in turns.

`Bench` does it on a `Device`: on `Cpu`, or on gpu_device.Gpu.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from tilewright.lab.bench.cases import REAL, Case, Job
from tilewright.lab.bench.peer import OURS, Peer, Unfit, Way
from tilewright.lab.bench.results import ABSENT, BESIDE, Result, Row
from tilewright.lab.bench.suites import never_lose
from tilewright.lab.measure import machine, measure, operands, quiet
from tilewright.lab.measure.check import Reference
from tilewright.lab.measure.measure import Call, Clock, Sample
from tilewright.lab.measure.operands import Operands
from tilewright.targets import detect

States = dict[str, dict[str, Any]]  # of a GPU while a peer ran alone
Checked = tuple[list[Call], int, float | None]  # calls, the rows of A that they have (0 for all), their deviation
Timed = tuple[dict[str, Sample], States, dict[str, str]]  # samples, and what was wrong after timing
FEWEST = 8  # rows of A per thread: the least that a slow peer is given
SLOW = 10e9  # operations a second: less is a loop without vectors or blocks, whose rows of A all cost the same


class Left(Exception):
    """Why a peer does not take part in a case."""


class Lost(Left):
    """Likewise; and nothing more can be measured in this process."""


class Device(Protocol):
    """Where the multiplications run."""

    isa: str
    target: Any  # that tilewright plans for

    def operands(self, case: Case) -> list[Operands]:
        """One set, or as many as keep a cache cold."""

    def reference(self, case: Case, first: Operands) -> Any:
        """What the product of the first set is, for `checked`."""

    def checked(self, way: Way, case: Case, sets: list[Operands], reference: Any) -> Checked:
        """A way's calls, each made once, the first result compared.  Left if it cannot, or is wrong."""

    def time(self, case: Case, calls: dict[str, list[Call]], reference: Any, sets: list[Operands]) -> Timed: ...


class Forecast:
    """How long a call will take, from the last case timed: time grows with the flops.  If they shrink it stays, to be
    safe; where cases come in any order (`mixed`), it shrinks with them."""

    def __init__(self, mixed: bool = False) -> None:
        self.least = 0.0 if mixed else 1.0
        self.last: dict[str, tuple[str, int, float]] = {}

    def seen(self, name: str, case: Case, seconds: float) -> None:
        self.last[name] = (case.suite + case.product.key, case.problem.flops, seconds)

    def seconds(self, name: str, case: Case) -> float:
        kind, flops, seconds = self.last.get(name, ("", 1, 0.0))
        alike = kind == case.suite + case.product.key
        return seconds * max(self.least, case.problem.flops / max(flops, 1)) if alike else 0.0


class Bench:
    """Times one case after the other."""

    def __init__(self, job: Job, peers: list[Peer], device: Device | None = None, clock: Clock = time.perf_counter,
                 began: float | None = None):
        self.job, self.peers, self.clock = job, peers, clock
        self.device: Device = device or Cpu(job, clock)
        self.began = clock() if began is None else began
        self.forecast = Forecast(mixed=job.call_s is not None)
        self.beside: tuple[Any, list[Call]] | None = None  # the last one, which several cases share

    def seated(self, case: Case) -> tuple[list[Peer], dict[str, str]]:
        """The peers that take part in a case, and why the others do not.  tilewright and NumPy leave only if far too
        slow."""
        expected = {p.name: self.forecast.seconds(p.name, case) for p in self.peers}
        out: dict[str, str] = {}
        if self.job.call_s is None:  # else they are given rows instead
            limits = {p.name: min(p.max_call_s, self.job.max_call_s) for p in self.peers}
            out = {name: f"one call would take about {s:.0f} s" for name, s in expected.items() if s > limits[name]}
        stays = [name for name in expected if name not in out]
        slowest = sorted((name for name in stays if name not in (OURS, "numpy")), key=expected.__getitem__)
        limit = min(self.job.max_case_s or math.inf, self._left())
        while len(stays) > 3 and slowest and self._need(stays, case) > limit:
            name = slowest.pop()
            stays.remove(name)
            out[name] = "slower than the others at the previous size, and little time is left"
        return [p for p in self.peers if p.name in stays], out

    def _need(self, names: list[str], case: Case) -> float:
        """Seconds for a case of long calls: each is made once for the check, then once per round."""
        return (1 + self.job.rules.min_rounds) * sum(self.forecast.seconds(name, case) for name in names)

    def _left(self) -> float:
        """Seconds until the deadline."""
        return (math.inf if self.job.deadline_s is None else self.job.deadline_s) - (self.clock() - self.began)

    def too_late(self, case: Case) -> str | None:
        """A sentence if this case would end after the deadline."""
        if self.job.deadline_s is None:
            return None
        need, left = self._need([p.name for p in self.seated(case)[0]], case), self._left()
        if left <= 0:
            return f"the {self.job.deadline_s:.0f} s planned are over"
        if need <= left:
            return None
        return f"about {need:.0f} s more, and {left:.0f} s are left of the {self.job.deadline_s:.0f} s planned"

    def run(self, case: Case) -> Result:
        """A row for each way of each peer.  If the device is lost, what there is so far."""
        sets = self.device.operands(case)
        reference = self.device.reference(case, sets[0])
        _, out = self.seated(case)
        rows: dict[str, Row] = {}
        calls: dict[str, list[Call]] = {}
        for library in self.peers:
            if library.name in out:
                rows[library.name] = Row(library.name, error=f"left out: {out[library.name]}")
                continue
            for way in self._ways(library, case):
                row = Row(way.name, how="" if way.how == library.how else way.how, prepared=way.prepared)
                try:
                    calls[way.name], m, deviation = self.device.checked(way, case, sets, reference)
                    rows[way.name] = replace(row, m=m, deviation=deviation)
                except Left as reason:
                    rows[way.name] = replace(row, error=str(reason))
                    if isinstance(reason, Lost):
                        return self._result(case, rows, {}, {})
        if case.beside is not None and OURS in calls:
            try:
                calls[BESIDE] = self._beside(case)
                rows[BESIDE] = Row(BESIDE)
            except Left as reason:
                rows[BESIDE] = Row(BESIDE, error=str(reason))
        samples, states, errors = self.device.time(case, calls, reference, sets)
        for name, sample in samples.items():
            self.forecast.seen(name, case, sample.spread.median)
        return self._result(case, rows | {name: Row(name, error=e) for name, e in errors.items()}, samples, states)

    def _ways(self, each: Peer, case: Case) -> list[Way]:
        if case.subscripts:
            return [each.einsum] if each.einsum else []
        return [way for way in each.ways(case.product) if self.job.prepared or not way.prepared]

    def _beside(self, case: Case) -> list[Call]:
        """Our calls of the case's other problem, on matrices that are kept for the next case."""
        assert case.beside is not None
        if self.beside is None or self.beside[0] != case.beside:
            other = Case(case.suite, case.beside)
            ours = next(p for p in self.peers if p.name == OURS)
            (way,) = self._ways(ours, other)
            sets = self.device.operands(other)
            calls, _, _ = self.device.checked(way, other, sets, self.device.reference(other, sets[0]))
            self.beside = case.beside, calls
        return self.beside[1]

    def _result(self, case: Case, rows: dict[str, Row], samples: dict[str, Sample], states: States) -> Result:
        """What has a sample or an error."""
        measured = []
        for name, row in rows.items():
            if row.error:
                measured.append(row)
            elif sample := samples.get(name):
                ask = name == OURS and self.job.bounds
                bound = never_lose.bound(case, self.device.target, self.job.threads) if ask else None
                measured.append(replace(row, sample=sample, gpu=states.get(name), bound=bound))
        return Result(case, self.job.threads, self.device.isa, tuple(measured))


def attempt(work: Callable[[], Any]) -> Any:
    """What `work` returns; an exception in a library is a line of the report, not the end of it."""
    try:
        return work()
    except Left:
        raise
    except Unfit as reason:
        raise Left(f"left out: {reason}") from None
    except Exception as error:
        raise Left(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


class Cpu:
    """This machine's CPUs: operands in memory, calls taken in turns; slow peers are given fewer rows of A."""

    def __init__(self, job: Job, clock: Clock) -> None:
        self.job, self.clock, self.isa, self.target = job, clock, job.isa, detect()

    def operands(self, case: Case) -> list[Operands]:
        if case.subscripts:
            return [operands.contraction(case.problem, case.subscripts, case.sizes)]
        return operands.make_sets(case.problem, case.cold, machine.last_level_bytes(), gap=case.gap)

    def reference(self, case: Case, first: Operands) -> dict[Any, Reference]:
        """By which part of C they are for."""
        return {at: Reference(one, case.algorithm) for at, one in first.compared.items()}

    def checked(self, way: Way, case: Case, sets: list[Operands], reference: dict[Any, Reference]) -> Checked:
        ours, m = way.name == OURS, case.problem.m
        if ours and case.product.key not in REAL:
            self._refused(way, case)
        rows = m if ours or self.job.call_s is None or case.problem.batch > 1 or case.subscripts else attempt(
            lambda: self._rows(way, sets[0], self.job.call_s or 0.0))
        part = sets[0] if rows == m else sets[0].first(rows)
        fn, args = attempt(lambda: way.bind(part))
        part.poison()
        returned = attempt(lambda: fn(*args))
        if case.subscripts:
            part.c[...] = returned
        c = part.matrices.c if way.returns is None else way.returns(returned)
        deviation = 0.0
        for at, expected in reference.items():
            if wrong := expected.wrong(c[at], rounded_once=ours):
                raise Left(f"wrong result: {wrong}")
            deviation = max(deviation, expected.error(c[at]))
        calls = [(fn, args), *(attempt(partial(way.bind, o)) for o in sets[1:])]
        for other, arguments in calls[1:]:
            other(*arguments)
        return calls, rows if rows < m else 0, deviation

    def _refused(self, way: Way, case: Case) -> None:
        """Left with the sentence with which this version, or this machine, refuses a product."""
        fn, args = way.bind(operands.make(case.product.gemm(8, 8, 8)))
        try:
            fn(*args)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise Left(f"{ABSENT}: {' '.join(str(error).split())}") from None

    def time(self, case: Case, calls: dict[str, list[Call]], reference: Any, sets: list[Operands]) -> Timed:
        if self.job.despite_load and self.job.threads == 1:
            return measure.interleave(calls, self.job.rules, clock=time.process_time), {}, {}
        return measure.interleave(calls, self.job.rules, clock=self.clock, settle=quiet.settle,
                                  disturbed=quiet.Watch().disturbed), {}, {}

    def _rows(self, way: Way, given: Operands, call_s: float) -> int:
        """How many rows of A a peer is given: all; but if it is a slow loop over them, as many as it does in `call_s`.

        From what a few rows cost beyond what any number costs: a library that packs or converts B does so once.  A
        library that has a few rows done slowly and many fast is given all: only below SLOW it is a loop.
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
        """Seconds of one call, after a short one for what a first call does."""
        fn, args = way.bind(part.first(1))
        fn(*args)
        fn, args = way.bind(part)
        start = self.clock()
        fn(*args)
        return self.clock() - start
