"""The process that measures: one thread count, one ISA, every peer; started and listened to by session.py.

A process of its own, because thread counts, CPU affinity and the instruction sets of the peers are settled when their
libraries are loaded, because a library that crashes must not take the results of the others with it, and because one
illegal access by a kernel makes a GPU unusable for the process it happened in.

It reads one JSON object, the Job, from standard input and writes one JSON object a line: {"event": "peers" | "device" |
"case" | "result" | "left_out" | "clocks" | "done", ...}.  What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tilewright.bench import peer
from tilewright.bench.cases import Case
from tilewright.bench.peer import CPU, GPU, OURS, Peer, Setting, Unfit, Way
from tilewright.bench.results import BESIDE, Result, Row
from tilewright.bench.suites import never_lose
from tilewright.measure.gpu_rules import GpuRules
from tilewright.measure.measure import Call, Clock, Rules, Sample
from tilewright.measure.operands import Operands
from tilewright.measure.quiet import Load

Emit = Callable[..., None]
States = dict[str, dict[str, Any]]  # of a GPU while a peer ran alone


@dataclass(frozen=True)
class Job:
    """What the parent asks for."""

    threads: int
    isa: str
    cases: list[Case]
    rules: Rules
    device: str = CPU
    number: int = 0  # of the GPU
    ladder: bool = False  # the teaching steps too
    peers: list[str] | None = None  # None: all that are installed
    plans: list[str] = field(default_factory=list)  # on a GPU: tilewright by these plans too
    prepared: bool = False  # peers that find B packed beforehand too
    bounds: bool = False  # say what bounds our plans, by the cost model
    flush: bool = False  # in the article's protocol: empty the GPU's L2 before every launch
    call_s: float | None = None  # a slow peer is given as many rows of A as it does in that time
    max_call_s: float = 60.0  # a peer that would need longer for one call sits the case out
    max_case_s: float | None = None  # the slowest sit a case out that would take longer, down to three peers
    deadline_s: float | None = None  # no case is begun that would end after this

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "cases": [case.to_json() for case in self.cases], "rules": self.rules.__dict__}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        cases = [Case.from_json(case) for case in data["cases"]]
        rules: Rules = (GpuRules if "watch_s" in data["rules"] else Rules)(**data["rules"])
        return cls(**{**data, "cases": cases, "rules": rules})


class Left(Exception):
    """Why a peer does not take part in a case."""


class Lost(Left):
    """Likewise; and nothing more can be measured in this process."""


class Device(Protocol):
    """Where the multiplications run: cpu_device.Cpu or gpu_device.Gpu."""

    isa: str

    @property
    def target(self) -> Any:
        """The target that tilewright plans for."""

    def operands(self, case: Case) -> list[Operands]:
        """One set, or as many as keep a cache cold."""

    def reference(self, case: Case, first: Operands) -> Any:
        """What the product of the first set is, for `checked`."""

    def absent(self, way: Way, case: Case) -> str | None:
        """The sentence with which this version, or this machine, refuses a product; None if it does not."""

    def checked(self, way: Way, sets: list[Operands], reference: Any) -> tuple[list[Call], int, float | None]:
        """A way's calls, each made once, the first result compared; the rows of A that it was given, 0 for all; its
        deviation.  Left if it cannot, or is wrong."""

    def time(self, case: Case, calls: dict[str, list[Call]], reference: Any,
             sets: list[Operands]) -> tuple[dict[str, Sample], States, dict[str, str]]:
        """Samples, the state of the device, and what was wrong after timing."""


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
        from tilewright.bench.cpu_device import Cpu

        self.job, self.peers, self.clock = job, peers, clock
        self.device: Device = device or Cpu(job, clock)
        self.began = clock() if began is None else began
        self.forecast = Forecast(mixed=job.call_s is not None)
        self.beside: tuple[Any, list[Call]] | None = None  # the last one, which several cases share

    def seated(self, case: Case) -> tuple[list[Peer], dict[str, str]]:
        """The peers that take part in a case, and why the others do not.  tilewright and NumPy leave only if far too
        slow."""
        expected = {p.name: self.forecast.seconds(p.name, case) for p in self.peers}
        limits = {p.name: min(p.max_call_s, self.job.max_call_s) for p in self.peers}
        out = {name: f"one call would take about {s:.0f} s" for name, s in expected.items() if s > limits[name]}
        if self.job.call_s is not None:
            out = {}  # they are given rows instead
        stays = [name for name in expected if name not in out]
        slowest = sorted((name for name in stays if name not in (OURS, "numpy")), key=expected.__getitem__)
        limit = min(self.job.max_case_s or math.inf, self._left())
        while len(stays) > 3 and slowest and self._need(stays, expected) > limit:
            name = slowest.pop()
            stays.remove(name)
            out[name] = "slower than the others at the previous size, and little time is left"
        return [p for p in self.peers if p.name in stays], out

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
        names = [p.name for p in self.seated(case)[0]]
        need = self._need(names, {name: self.forecast.seconds(name, case) for name in names})
        left = self._left()
        if need <= left and left > 0:
            return None
        return f"about {need:.0f} s more, and {max(left, 0):.0f} s are left of the {self.job.deadline_s:.0f} s planned"

    def run(self, case: Case) -> Result:
        """Check tilewright and its peers, time those that are right, in turns.  If the device is lost, what there is so
        far."""
        sets = self.device.operands(case)
        reference = self.device.reference(case, sets[0])
        _, out = self.seated(case)
        rows: dict[str, Row] = {}
        calls: dict[str, list[Call]] = {}
        for each in self.peers:
            if each.name in out:
                rows[each.name] = Row(each.name, error=f"left out: {out[each.name]}")
                continue
            for way in self._ways(each, case):
                row = Row(way.name, how="" if way.how == each.how else way.how, prepared=way.prepared)
                try:
                    if each.name == OURS and (reason := self.device.absent(way, case)):
                        raise Left(reason)
                    calls[way.name], m, deviation = self.device.checked(way, sets, reference)
                    row = replace(row, m=m, deviation=deviation)
                except Left as reason:
                    row = replace(row, error=str(reason))
                    if isinstance(reason, Lost):
                        kept = {name: r for name, r in rows.items() if r.error}
                        return self._result(case, kept | {way.name: row}, {}, {})
                rows[way.name] = row
        if case.beside is not None and OURS in calls:
            try:
                calls[BESIDE] = self._beside(case)
                rows[BESIDE] = Row(BESIDE)
            except Left as reason:
                rows[BESIDE] = Row(BESIDE, error=str(reason))
        samples, states, errors = self.device.time(case, calls, reference, sets)
        for name, sample in samples.items():
            self.forecast.seen(name, case, sample.spread.median)
        rows |= {name: Row(name, error=error) for name, error in errors.items()}
        return self._result(case, rows, samples, states)

    def _ways(self, each: Peer, case: Case) -> list[Way]:
        return [way for way in each.ways(case.product) if self.job.prepared or not way.prepared]

    def _beside(self, case: Case) -> list[Call]:
        """Our calls of the case's other problem, on matrices that are kept for the next case."""
        assert case.beside is not None
        if self.beside is None or self.beside[0] != case.beside:
            other = Case(case.suite, case.beside)
            ours = next(p for p in self.peers if p.name == OURS)
            (way,) = self._ways(ours, other)
            sets = self.device.operands(other)
            found, _, _ = self.device.checked(way, sets, self.device.reference(other, sets[0]))
            self.beside = case.beside, found
        return self.beside[1]

    def _result(self, case: Case, rows: dict[str, Row], samples: dict[str, Sample], states: States) -> Result:
        found = []
        for name, row in rows.items():
            if row.error:
                found.append(row)
            elif sample := samples.get(name):
                ask = name == OURS and self.job.bounds
                bound = never_lose.bound(case, self.device.target, self.job.threads) if ask else None
                found.append(replace(row, sample=sample, gpu=states.get(name), bound=bound))
        return Result(case, self.job.threads, self.device.isa, tuple(found))


def attempt(work: Callable[[], Any]) -> Any:
    """What `work` returns; whatever a library raises is a line of the report, not the end of it."""
    try:
        return work()
    except Left:
        raise
    except Unfit as reason:
        raise Left(f"left out: {reason}") from None
    except Exception as error:
        raise Left(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def find(job: Job, setting: Setting) -> tuple[list[Peer], dict[str, str]]:
    """tilewright and the peers that take part, and why the others do not."""
    if job.ladder:
        from tilewright.bench.suites import ladders

        return ladders.peers(setting, job.peers, job.device)
    found, left_out = peer.find(setting, job.peers, job.device)
    if job.plans:
        found[1:1] = map(peer.planned, job.plans)
    return found, left_out


def run(job: Job, emit: Emit) -> None:
    """Measure everything the job asks for, an event for each step."""
    began, before = time.perf_counter(), Load.now()
    device, setting = None, Setting(job.threads, job.isa)
    if job.device == GPU:
        from tilewright.bench.gpu_device import Gpu

        device = Gpu(job)
        setting = Setting(job.threads, job.isa, device.on)
    peers, left_out = find(job, setting)
    described = [{"name": p.name, "version": p.version, "how": p.how} for p in peers]
    emit("peers", peers=described, left_out=left_out, load=before.average)
    if device is not None:
        emit("device", **device.describe())
    bench = Bench(job, peers, device, began=began)
    for number, case in enumerate(job.cases):
        late = bench.too_late(case)
        if late:
            emit("left_out", number=number, label=case.label, reason=late)
            continue
        emit("case", number=number, label=case.label)
        emit("result", number=number, result=bench.run(case).to_json())
        if device is not None:
            device.on.wait()  # RuntimeError if the device is lost: this process ends here
    if device is not None:
        emit("clocks", setting=device.close())
    after = Load.now()
    emit("done", load=after.average, stolen=after.stolen_since(before), others=after.others_since(before))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's chatter must not end up between the events

    def emit(event: str, **details: Any) -> None:
        out.write(json.dumps({"event": event, **details}) + "\n")

    run(Job.from_json(json.load(sys.stdin)), emit)
