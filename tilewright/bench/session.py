"""Starts a measuring process per thread count and ISA, listens to it, and gathers its results into a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.bench import child, peer
from tilewright.bench.child import Job
from tilewright.bench.peer import AVX2, CPU, GPU, NATIVE, OURS
from tilewright.bench.results import Report, Result, Row, Session
from tilewright.measure import quiet

# The affinity is set before anything is imported: OpenMP and OpenBLAS count their CPUs when they are loaded, and the
# CPUs are all that keeps MKL under TBB to its number of threads.
_START = """
import os, sys
cpus, root, module = sys.argv[1:]
if cpus:
    os.sched_setaffinity(0, map(int, cpus.split(",")))
sys.path.append(root)
from importlib import import_module
import_module(module).main()
"""

# OpenMP's variable is torch's.  What steers a peer is in its own file (peer.Library).
THREAD_VARIABLES = ("TILEWRIGHT", "OMP")
MOST_STARTS = 6  # of processes, if cases keep breaking them

Listener = Callable[[dict[str, Any]], None]


def environment(threads: int, isa: str) -> dict[str, str]:
    """The child's environment: `threads` for every library, the ISA they may use, and nothing else that steers them:
    what a shell or a container tells the libraries (OPENBLAS_CORETYPE=Haswell, say) must not narrow them unseen."""
    if isa not in (NATIVE, AVX2):
        raise ValueError(f"isa must be one of {NATIVE}, {AVX2}, got {isa!r}")
    libraries = peer.libraries()
    names = [*THREAD_VARIABLES, *(x.threads for x in libraries if x.threads)]
    counts = {f"{name}_NUM_THREADS": str(threads) for name in names}
    steering = ("TILEWRIGHT_TARGET", *(beginning for x in libraries for beginning in x.steered_by))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    narrow = {"TILEWRIGHT_TARGET": "x86-avx2"} if isa == AVX2 else {}  # which tilewright.detect() heeds
    for library in libraries if isa == AVX2 else ():
        narrow |= library.avx2
    return {**inherited, **counts, **narrow}


class _Heard:
    """What one measuring process has said, into the report: the case it is at, whether that one is over, and whether
    all is."""

    def __init__(self, session: Session, report: Report, listen: Listener) -> None:
        self.session, self.report, self.listen = session, report, listen
        self.at, self.label, self.over, self.done = -1, "", False, False

    def __call__(self, event: dict[str, Any]) -> None:
        kind, session = event["event"], self.session
        if kind == "peers":
            session.peers, session.left_out, session.load_before = event["peers"], event["left_out"], event["load"]
        elif kind == "device":
            self.report.machine["gpu"] = {**event["gpu"], **event["state"]}
        elif kind == "case":
            self.at, self.label, self.over = event["number"], event["label"], False
        elif kind == "result":
            self.report.results.append(Result.from_json(event["result"]))
            self.over = True
        elif kind == "left_out":
            session.notes.append(f"{event['label']} was left out: {event['reason']}")
        elif kind == "clocks":
            self.report.extra["clocks"] = event["setting"]
        elif kind == "done":
            session.load_after, session.stolen, session.others = event["load"], event["stolen"], event["others"]
            self.done = True
        self.listen(event)


def measure(job: Job, report: Report, listen: Listener = lambda event: None) -> Session:
    """Run one job in a child process and add what it finds to `report`; returns the last process's session.

    A process that dies leaves its results so far, and a note saying what it was doing; the case that broke it is an
    error row, and another process goes on with the case after.  KeyboardInterrupt ends the child.
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


def _process(job: Job, heard: _Heard) -> None:
    """One child process, kept on as many CPUs as it has threads, unless it measures on a GPU."""
    pin = job.device == CPU and hasattr(os, "sched_setaffinity")
    cpus = quiet.fastest_cpus(job.threads) if pin else []
    root = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, ",".join(map(str, cpus)), root, child.__name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment(job.threads, job.isa),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            try:
                json.dump(job.to_json(), process.stdin)
                process.stdin.close()
            except BrokenPipeError:
                pass  # it died before it read its job; its exit status says why
            for line in process.stdout:
                heard(json.loads(line))
        except BaseException:
            process.terminate()
            raise
        finally:
            process.stdout.close()
            code = process.wait()
        if not heard.done:
            errors.seek(0)
            doing = f"timing {heard.label}" if heard.label else "starting"
            why = _why(code, errors.read())
            heard.session.notes.append(f"the measuring process ended early while {doing}: {why}")


def _why(code: int, errors: str) -> str:
    last = errors.strip().splitlines()[-1:] or ["it said nothing"]
    if code < 0:
        return f"{signal.Signals(-code).name} ({last[0]})"
    return last[0]


def run(kind: str, jobs: Iterable[Job], listen: Callable[[Job, dict[str, Any]], None], **options: Any) -> Report:
    """All jobs, one process after the other.  Ctrl-C keeps what was found until then and says so in a note."""
    report = Report.start(kind, **options)
    for job in jobs:
        try:
            measure(job, report, lambda event, job=job: listen(job, event))  # type: ignore[misc]
        except KeyboardInterrupt:
            report.sessions[-1].notes.append("interrupted: the cases after this point are missing")
            break
    return report
