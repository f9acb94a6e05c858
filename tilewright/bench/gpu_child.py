"""The process that measures on a GPU: started and listened to as child.py is, with the same events.

A process of its own, because one illegal access by a kernel makes CUDA unusable for the process it happened in: what
was measured before is kept, and gpu.py starts the next process with the case after.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from tilewright.bench import gpu_check, gpu_device, gpu_measure, gpu_peers, gpu_state
from tilewright.bench.child import Emit, Forecast
from tilewright.bench.gpu_device import Operands, TorchDevice
from tilewright.bench.gpu_measure import GpuRules, Launch
from tilewright.bench.gpu_shapes import ARTICLE
from tilewright.bench.results import OURS, Result, Row
from tilewright.bench.shapes import Case
from tilewright.measure.disturbance import Load
from tilewright.measure.measure import Sample

Timed = tuple[dict[str, Sample], dict[str, dict[str, Any]], dict[str, list[Launch]]]


@dataclass(frozen=True)
class GpuJob:
    """What the parent asks for."""

    cases: list[Case]
    rules: GpuRules = field(default_factory=GpuRules)
    peers: list[str] | None = None  # None: all that are installed
    plans: list[str] = field(default_factory=list)
    flush: bool = False
    device: int = 0
    max_call_s: float = 10.0
    threads: int = 1  # of the host, for the environment of the process
    isa: str = "native"

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "cases": [case.to_json() for case in self.cases], "rules": self.rules.__dict__}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GpuJob:
        cases = [Case.from_json(case) for case in data["cases"]]
        return cls(**{**data, "cases": cases, "rules": GpuRules(**data["rules"])})


class Bench:
    """Times one case after the other."""

    def __init__(
        self, job: GpuJob, on: TorchDevice, contenders: list[gpu_peers.Contender], source: gpu_state.Source | None
    ) -> None:
        self.job, self.on, self.contenders, self.source = job, on, contenders, source
        self.forecast = Forecast()
        self.readings: list[gpu_state.Reading] = []  # under load, of all cases

    def run(self, case: Case) -> Result:
        """Check, time, watch, and check what the timed launches write.  If the device is lost, what there is so far."""
        sets = gpu_device.make_sets(self.on, case.problem)
        reference = gpu_check.Reference(self.on, sets[0])
        calls: dict[str, list[Launch]] = {}
        errors: dict[str, str] = {}
        for contender in self.contenders:
            try:
                calls[contender.name] = self._seated(contender, case, sets, reference)
            except _Left as reason:
                errors[contender.name] = str(reason)
                if not self._alive():
                    return self._result(case, {}, errors, {})
        timed = self._article if case.suite in ARTICLE else self._median
        samples, states, again = timed(case, calls)
        for name, sample in samples.items():
            self.forecast.seen(name, case, sample.spread.median)
            if wrong := self._wrong(again[name], sets, reference):
                errors[name] = f"wrong result after timing: {wrong}"
        return self._result(case, {n: s for n, s in samples.items() if n not in errors}, errors, states)

    def _seated(
        self, contender: gpu_peers.Contender, case: Case, sets: list[Operands], reference: gpu_check.Reference
    ) -> list[Launch]:
        """The contender's launches, each made once, the first result compared with float64."""
        expected = self.forecast.seconds(contender.name, case)
        if expected > self.job.max_call_s:
            raise _Left(f"left out: one call would take about {expected:.0f} s")
        try:
            calls = [contender.bind(o) for o in sets]
            wrong = self._wrong(calls, sets, reference)
        except gpu_peers.Unfit as reason:
            raise _Left(f"left out: {reason}") from None
        except Exception as error:
            raise _Left(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        if wrong:
            raise _Left(f"wrong result: {wrong}")
        return calls

    def _wrong(self, launches: list[Launch], sets: list[Operands], reference: gpu_check.Reference) -> str | None:
        """Every C poisoned, everything launched: is the first C right, and is no nan left in the others?"""
        for o in sets:
            o.c.fill_(float("nan"))
        for launch in launches:
            launch()
        self.on.wait()
        if wrong := reference.wrong(sets[0].c):
            return wrong
        unwritten = [i for i, o in enumerate(sets) if bool(o.c.isnan().any())]
        return f"C of operands {unwritten[0]} is not written everywhere" if unwritten else None

    def _alive(self) -> bool:
        try:
            self.on.wait()
        except RuntimeError:
            return False
        return True

    def _median(self, case: Case, calls: dict[str, list[Launch]]) -> Timed:
        rules = self.job.rules
        tracks = {name: gpu_measure.track(self.on, made, rules) for name, made in calls.items()}
        samples, states = gpu_measure.interleave(self.on, tracks, rules), {}
        for name, t in tracks.items():
            with gpu_state.Watch(self.source) as watch:
                sustained = gpu_measure.sustain(self.on, t, rules.watch_s)
            states[name] = {**self._state(watch, sustained), "sustained_s": sustained}
        # A graph of long calls has only the first: the others are launched as before.
        again = {name: [*calls[name][t.launches :], t.run] for name, t in tracks.items()}
        return samples, states, again

    def _article(self, case: Case, calls: dict[str, list[Launch]]) -> Timed:
        p = case.problem
        count = gpu_measure.replays(gpu_measure.size(p.m, p.n, p.k))
        samples, states = {}, {}
        for name, made in calls.items():
            with gpu_state.Watch(self.source) as watch:
                samples[name] = gpu_measure.replay(self.on, made, count, self.job.flush)
                once = samples[name].seconds[0]
                # Small sizes are over before the power has been read: go on, untimed.
                more = int((self.job.rules.watch_s - count * once) / once)
                if more > 0:
                    gpu_measure.replay(self.on, made, more)
            states[name] = self._state(watch, once)
        return samples, states, calls

    def _state(self, watch: gpu_state.Watch, seconds: float) -> dict[str, Any]:
        readings = watch.later_half()
        self.readings += readings
        return gpu_state.summary(readings, seconds, self.source.name if self.source else None)

    def _result(self, case: Case, samples: dict[str, Sample], errors: dict[str, str], states: dict[str, Any]) -> Result:
        target = self.on.on.target
        plan = gpu_peers.plan_of(case.problem, target)
        rows = []
        for contender in self.contenders:
            name, gpu = contender.name, states.get(contender.name)
            if name == OURS and gpu is not None:
                gpu = {**gpu, "plan": plan}
            if name in samples or name in errors:
                rows.append(Row(name, samples.get(name), errors.get(name), gpu))
        return Result(case, self.job.threads, target.name, tuple(rows))


class _Left(Exception):
    """A contender does not take part."""


def run(job: GpuJob, emit: Emit) -> None:
    """Measure everything the job asks for, an event for each step."""
    before = Load.now()
    on = TorchDevice(job.device)
    source, why = gpu_state.find(on.bus_id)
    contenders, left_out = gpu_peers.find(on, job.peers, job.plans)
    described = [{"name": c.name, "version": c.version, "how": c.how} for c in contenders]
    emit("contenders", contenders=described, left_out=left_out, load=before.average)
    settings = source.describe() if source else {"why": why}
    emit("device", gpu=on.describe(), state=settings)
    bench = Bench(job, on, contenders, source)
    for number, case in enumerate(job.cases):
        emit("case", number=number, label=case.label)
        emit("result", number=number, result=bench.run(case).to_json())
        on.wait()  # RuntimeError if the device is lost: this process ends here
    emit("clocks", setting=gpu_state.clock_setting(bench.readings, settings))
    if source:
        source.close()
    after = Load.now()
    emit("done", load=after.average, stolen=after.stolen_since(before), others=after.others_since(before))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's chatter must not end up between the events

    def emit(event: str, **details: Any) -> None:
        out.write(json.dumps({"event": event, **details}) + "\n")

    run(GpuJob.from_json(json.load(sys.stdin)), emit)
