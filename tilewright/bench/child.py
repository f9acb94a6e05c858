"""The process that measures: one thread count, one ISA, every contender; started and listened to by session.py.

A process of its own, because thread counts, CPU affinity and the instruction sets of the peers are settled when their
libraries are loaded, and because a library that crashes must not take the results of the others with it.

It reads one JSON object from standard input and writes one JSON object a line: {"event": "contenders" | "case" |
"result" | "left_out" | "done", ...}.  What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.bench import peers
from tilewright.bench.results import BESIDE, OURS, Result, Row
from tilewright.bench.shapes import Case
from tilewright.measure import check, machine, measure, operands, quiet
from tilewright.measure.disturbance import Load, Watch
from tilewright.measure.measure import Call, Rules

Emit = Callable[..., None]


@dataclass(frozen=True)
class Job:
    """What the parent asks for."""

    threads: int
    isa: str
    cases: list[Case]
    rules: Rules
    contenders: str = "peers"  # or "ladder"
    peers: list[str] | None = None  # None: all that are installed
    max_call_s: float = 60.0  # a contender that would need longer for one call sits the case out
    max_case_s: float | None = None  # the slowest sit a case out that would take longer, down to three contenders
    deadline_s: float | None = None  # no case is begun that would end after this

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "cases": [case.to_json() for case in self.cases], "rules": self.rules.__dict__}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        cases = [Case.from_json(case) for case in data["cases"]]
        return cls(**{**data, "cases": cases, "rules": Rules(**data["rules"])})


class Forecast:
    """How long a call will take, from the last case timed: time grows with the flops, or stays if they shrink."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[str, int, float]] = {}

    def seen(self, name: str, case: Case, seconds: float) -> None:
        self.last[name] = (case.suite, case.problem.flops, seconds)

    def seconds(self, name: str, case: Case) -> float:
        suite, flops, seconds = self.last.get(name, ("", 1, 0.0))
        return seconds * max(1.0, case.problem.flops / max(flops, 1)) if suite == case.suite else 0.0


class Bench:
    """Times one case after the other."""

    def __init__(self, job: Job, contenders: list[peers.Contender], clock: measure.Clock = time.perf_counter):
        self.job, self.contenders, self.clock = job, contenders, clock
        self.began = clock()
        self.forecast = Forecast()

    def seated(self, case: Case) -> tuple[list[peers.Contender], dict[str, str]]:
        """Who takes part in a case, and why the others do not.  tilewright and NumPy leave only if far too slow."""
        expected = {c.name: self.forecast.seconds(c.name, case) for c in self.contenders}
        limits = {c.name: min(c.max_call_s, self.job.max_call_s) for c in self.contenders}
        out = {name: f"one call would take about {s:.0f} s" for name, s in expected.items() if s > limits[name]}
        stays = [name for name in expected if name not in out]
        slowest = sorted((name for name in stays if name not in (OURS, "numpy")), key=expected.__getitem__)
        limit = min(self.job.max_case_s or math.inf, self._left())
        while len(stays) > 3 and slowest and self._need(stays, expected) > limit:
            name = slowest.pop()
            stays.remove(name)
            out[name] = "slower than others at the size before, and time is short"
        return [c for c in self.contenders if c.name in stays], out

    def _need(self, names: list[str], expected: dict[str, float]) -> float:
        """Seconds for a case of long calls: each is made once for the check, then once per round."""
        return (1 + self.job.rules.min_rounds) * sum(expected[name] for name in names)

    def _left(self) -> float:
        """Seconds until the deadline."""
        return (math.inf if self.job.deadline_s is None else self.job.deadline_s) - (self.clock() - self.began)

    def too_late(self, case: Case) -> str | None:
        """A sentence if this case would end after the deadline."""
        if self.job.deadline_s is None:
            return None
        names = [c.name for c in self.seated(case)[0]]
        need = self._need(names, {name: self.forecast.seconds(name, case) for name in names})
        left = self._left()
        if need <= left:
            return None
        return f"about {need:.0f} s more, and {max(left, 0):.0f} s are left of the {self.job.deadline_s:.0f} s planned"

    def run(self, case: Case) -> Result:
        sets = operands.make_sets(case.problem, case.cold, machine.last_level_bytes())
        calls: dict[str, list[Call]] = {}
        seated, out = self.seated(case)
        errors = {name: f"left out: {reason}" for name, reason in out.items()}
        for contender in seated:
            bound, error = self._checked(contender, sets)
            if error:
                errors[contender.name] = error
            else:
                calls[contender.name] = bound
        if case.beside is not None and OURS in calls:
            ours = next(c for c in self.contenders if c.name == OURS)
            bound, error = self._checked(ours, [operands.make(case.beside)])
            if error:
                errors[BESIDE] = error
            else:
                calls[BESIDE] = bound
        samples = measure.interleave(
            calls, self.job.rules, clock=self.clock, settle=quiet.settle, disturbed=Watch().disturbed
        )
        for name, sample in samples.items():
            self.forecast.seen(name, case, sample.spread.median)
        names = [*(c.name for c in self.contenders), BESIDE]
        rows = [Row(name, samples.get(name), errors.get(name)) for name in names if name in samples or name in errors]
        return Result(case, self.job.threads, self.job.isa, tuple(rows))

    def _checked(self, contender: peers.Contender, sets: list[operands.Operands]) -> tuple[list[Call], str | None]:
        """The contender's calls, each made once, the first result compared with float64."""
        first = sets[0]
        try:
            calls = [contender.bind(o) for o in sets]
            first.c.fill(float("nan"))
            for fn, args in calls:
                fn(*args)
        except Exception as error:
            return [], f"{type(error).__name__}: {error}"
        wrong = check.wrong(first.a, first.b, first.c)
        return calls, wrong and f"wrong result: {wrong}"


def run(job: Job, emit: Emit) -> None:
    """Measure everything the job asks for, an event for each step."""
    before = Load.now()
    contenders, left_out = _contenders(job)
    described = [{"name": c.name, "version": c.version, "how": c.how} for c in contenders]
    emit("contenders", contenders=described, left_out=left_out, load=before.average)
    bench = Bench(job, contenders)
    for number, case in enumerate(job.cases):
        late = bench.too_late(case)
        if late:
            emit("left_out", number=number, label=case.label, reason=late)
            continue
        emit("case", number=number, label=case.label)
        emit("result", number=number, result=bench.run(case).to_json())
    after = Load.now()
    emit("done", load=after.average, stolen=after.stolen_since(before), others=after.others_since(before))


def _contenders(job: Job) -> tuple[list[peers.Contender], dict[str, str]]:
    if job.contenders == "ladder":
        from tilewright.bench import ladder

        return ladder.contenders(job.threads, job.peers, job.isa)
    return peers.find(job.threads, job.peers, job.isa)


def events(stream: Any) -> Iterator[dict[str, Any]]:
    """The parent's side: the events of a child's output, as they come."""
    for line in stream:
        yield json.loads(line)


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's chatter must not end up between the events

    def emit(event: str, **details: Any) -> None:
        out.write(json.dumps({"event": event, **details}) + "\n")

    job = Job.from_json(json.load(sys.stdin))
    run(job, emit)
