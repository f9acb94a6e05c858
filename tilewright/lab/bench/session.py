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
from collections.abc import Callable, Iterable, Iterator
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
            for event in measure(job, report):
                listen(job, event)
        except KeyboardInterrupt:
            report.sessions[-1].notes.append(f"{INTERRUPTED}: the cases after this point are missing")
            break
    return report


def measure(job: Job, report: Report) -> Iterator[dict[str, Any]]:
    """Run one job in a process: its events, when what they say has been added to `report`.

    A process that dies leaves its results so far, and a note saying what it was doing; the case that broke it is an
    error row, and another process goes on with the case after.  KeyboardInterrupt ends the process.
    """
    left, began = job, time.monotonic()
    for _ in range(MOST_STARTS):
        session = Session(job.threads, job.isa)
        report.sessions.append(session)
        at, over, done = -1, False, False  # the case it is at, whether that one is over, and whether all is
        for event in _process(left, session):
            for name, value in event.get("session", {}).items():
                setattr(session, name, value)
            report.machine |= event.get("machine", {})
            report.extra |= event.get("extra", {})
            match event["event"]:
                case "case":
                    at, over = event["number"], False
                case "result":
                    report.results.append(Result.from_json(event["result"]))
                    over = True
                case "left_out":
                    session.notes.append(f"{event['label']} was left out: {event['reason']}")
                case "done":
                    done = True
            yield event
        if done or at < 0:
            return
        if not over:
            target = report.machine.get("gpu", {}).get("target", job.isa) if job.device == GPU else job.isa
            row = Row(OURS, error=f"the process ended: {session.notes[-1]}")
            report.results.append(Result(left.cases[at], job.threads, target, (row,)))
        deadline = None if job.deadline_s is None else job.deadline_s - (time.monotonic() - began)
        left = replace(left, cases=left.cases[at + 1 :], deadline_s=deadline)
        if not left.cases:
            return
    session.notes.append(f"{len(left.cases)} cases were not tried: {MOST_STARTS} processes broke")


def _process(job: Job, session: Session) -> Iterator[dict[str, Any]]:
    """The events of one process, kept on as many CPUs as it has threads, unless it measures on a GPU."""
    pin = job.device == CPU and hasattr(os, "sched_setaffinity")
    cpus = quiet.fastest_cpus(job.threads) if pin else []
    doing, last = "starting", ""
    with Child(__name__, job, cpus=cpus, environment=environment(job.threads, job.isa)) as child:
        for event in child.events():
            last = event["event"]
            doing = f"timing {event['label']}" if last == "case" else doing
            yield event
        if last != "done":
            session.notes.append(f"the measuring process ended early while {doing}: {child.why()}")


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
    if job.steps:
        from tilewright.lab.bench.suites import ladders

        peers[1:1] = ladders.gpu_steps(job.steps)
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
