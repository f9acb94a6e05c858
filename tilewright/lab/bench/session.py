"""Measuring processes: one per thread count and instruction set, started, listened to, and what runs in it.

A process of its own, because thread counts, CPU affinity and the instruction sets of the peers are settled when their
libraries are loaded, because a library that crashes must not take the results of the others with it, and because one
illegal access by a kernel makes a GPU unusable for the process it happened in.

The process (measure/process.py) is given its Job, and its events are "peers", "device", "case", "result", "left_out",
"clocks" and "done".  Their "session", "machine" and "extra" are fields of the report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tilewright.lab.bench import peer
from tilewright.lab.bench.cases import AVX2, CPU, GPU, NATIVE, Job
from tilewright.lab.bench.peer import OURS, Setting
from tilewright.lab.bench.results import INTERRUPTED, Report, Result, Row, Session
from tilewright.lab.measure import quiet
from tilewright.lab.measure.process import Child, Emit, serve

# OpenMP's variable is torch's.  What steers a peer is in its own file (peer.Library).
THREAD_VARIABLES = ("TILEWRIGHT", "OMP")
MOST_STARTS = 6  # of processes, if cases keep breaking them

Listener = Callable[[dict[str, Any]], None]


def environment(threads: int, isa: str) -> dict[str, str]:
    """The process's environment: `threads` for every library, the ISA they may use, and nothing else that steers them:
    a variable of a shell or a container (OPENBLAS_CORETYPE=Haswell, say) must not narrow them unseen."""
    if isa not in (NATIVE, AVX2):
        raise ValueError(f"target must be {NATIVE} or {AVX2}, got {isa!r}")
    libraries = peer.libraries()
    names = [*THREAD_VARIABLES, *(x.threads for x in libraries if x.threads)]
    counts = {f"{name}_NUM_THREADS": str(threads) for name in names}
    steering = ("TILEWRIGHT_TARGET", *(beginning for x in libraries for beginning in x.steered_by))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    narrow = {"TILEWRIGHT_TARGET": "x86-avx2"} if isa == AVX2 else {}  # which tilewright.detect() heeds
    for library in libraries if isa == AVX2 else ():
        narrow |= library.avx2
    return {**inherited, **counts, **narrow}


# ---- the parent


def run(kind: str, jobs: Iterable[Job], listen: Callable[[Job, dict[str, Any]], None], **options: Any) -> Report:
    """All jobs, one process after the other.  Ctrl-C keeps what was found until then and says so in a note."""
    report = Report.start(kind, **options)
    for job in jobs:
        try:
            measure(job, report, lambda event, job=job: listen(job, event))  # type: ignore[misc]
        except KeyboardInterrupt:
            report.sessions[-1].notes.append(f"{INTERRUPTED}: the cases after this point are missing")
            break
    return report


def measure(job: Job, report: Report, listen: Listener = lambda event: None) -> Session:
    """Run one job in a process and add what it finds to `report`; returns the last process's session.

    A process that dies leaves its results so far, and a note saying what it was doing; the case that broke it is an
    error row, and another process goes on with the case after.  KeyboardInterrupt ends the process.
    """
    left, began = job, time.monotonic()
    for _ in range(MOST_STARTS):
        session = Session(job.threads, job.isa)
        report.sessions.append(session)
        heard = _Heard(session, report, listen)
        _process(left, heard)
        if heard.done or heard.at < 0:
            return session
        if not heard.over:
            target = report.machine.get("gpu", {}).get("target", job.isa) if job.device == GPU else job.isa
            row = Row(OURS, error=f"the process ended: {session.notes[-1]}")
            report.results.append(Result(left.cases[heard.at], job.threads, target, (row,)))
        deadline = None if job.deadline_s is None else job.deadline_s - (time.monotonic() - began)
        left = replace(left, cases=left.cases[heard.at + 1 :], deadline_s=deadline)
        if not left.cases:
            return session
    session.notes.append(f"{len(left.cases)} cases were not tried: {MOST_STARTS} processes broke")
    return session


class _Heard:
    """Puts one process's events into the report: the case it is at, whether that one is over, and whether all is."""

    def __init__(self, session: Session, report: Report, listen: Listener) -> None:
        self.session, self.report, self.listen = session, report, listen
        self.at, self.label, self.over, self.done = -1, "", False, False

    def __call__(self, event: dict[str, Any]) -> None:
        kind, session, report = event["event"], self.session, self.report
        for name, value in event.get("session", {}).items():
            setattr(session, name, value)
        report.machine |= event.get("machine", {})
        report.extra |= event.get("extra", {})
        if kind == "case":
            self.at, self.label, self.over = event["number"], event["label"], False
        elif kind == "result":
            report.results.append(Result.from_json(event["result"]))
            self.over = True
        elif kind == "left_out":
            session.notes.append(f"{event['label']} was left out: {event['reason']}")
        self.done = kind == "done"
        self.listen(event)


def _process(job: Job, heard: _Heard) -> None:
    """One process, kept on as many CPUs as it has threads, unless it measures on a GPU."""
    pin = job.device == CPU and hasattr(os, "sched_setaffinity")
    cpus = quiet.fastest_cpus(job.threads) if pin else []
    with Child(__name__, job, cpus=cpus, environment=environment(job.threads, job.isa)) as child:
        for event in child.events():
            heard(event)
        if not heard.done:
            doing = f"timing {heard.label}" if heard.label else "starting"
            heard.session.notes.append(f"the measuring process ended early while {doing}: {child.why()}")


# ---- the process


def main() -> None:
    serve(work)


def work(job: Job, emit: Emit) -> None:
    """Measure everything the job asks for, an event for each step."""
    from tilewright.lab.bench.contest import Bench

    began, before = time.perf_counter(), quiet.Load.now()
    device, setting = None, Setting(job.threads, job.isa)
    if job.device == GPU:
        from tilewright.lab.bench.gpu_device import Gpu

        device = Gpu(job)
        setting = Setting(job.threads, job.isa, device.on)
    if job.ladder:
        from tilewright.lab.bench.suites import ladders

        peers, left_out = ladders.peers(setting, job.peers, job.device)
    else:
        peers, left_out = peer.find(setting, job.peers, job.device)
        peers[1:1] = map(peer.planned, job.plans)
    described = [{"name": p.name, "version": p.version, "how": p.how} for p in peers]
    emit("peers", session={"peers": described, "left_out": left_out, "load_before": before.average})
    if device is not None:
        emit("device", machine={"gpu": device.describe()})
    bench = Bench(job, peers, device, began=began)
    for number, case in enumerate(job.cases):
        if late := bench.too_late(case):
            emit("left_out", number=number, label=case.label, reason=late)
            continue
        emit("case", number=number, label=case.label)
        emit("result", number=number, result=bench.run(case).to_json())
        if device is not None:
            device.on.wait()  # RuntimeError if the device is lost: this process ends here
    if device is not None:
        emit("clocks", extra={"clocks": device.close()})
    emit("done", session=quiet.Load.now().beside(before))
