"""Starts a measuring process per thread count and ISA, listens to it, and gathers its results into a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tilewright.bench import child
from tilewright.bench.peers import AVX2, NATIVE
from tilewright.bench.results import Report, Result, Session
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

# Every library's own way of being held to AVX2.  TILEWRIGHT_TARGET is what tilewright.detect() heeds.
ISA_ENVIRONMENT = {
    NATIVE: {},
    AVX2: {
        "TILEWRIGHT_TARGET": "x86-avx2",
        "OPENBLAS_CORETYPE": "Haswell",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
}
THREAD_VARIABLES = ("TILEWRIGHT", "OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR")
# What a shell or a container tells the libraries (OPENBLAS_CORETYPE=Haswell, say) must not narrow them unseen.
NOT_INHERITED = ("OPENBLAS_", "MKL_", "BLIS_", "ONEDNN_", "DNNL_", "ATEN_", "NPY_", "TILEWRIGHT_TARGET")

Listener = Callable[[dict[str, Any]], None]


class Job(Protocol):
    """What every measuring process is told: child.Job and its like."""

    @property
    def threads(self) -> int: ...

    @property
    def isa(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


AnyJob = TypeVar("AnyJob", bound=Job)


def environment(threads: int, isa: str) -> dict[str, str]:
    """The child's environment: `threads` for every library, the ISA they may use, and nothing else that steers them."""
    if isa not in ISA_ENVIRONMENT:
        raise ValueError(f"isa must be one of {', '.join(ISA_ENVIRONMENT)}, got {isa!r}")
    counts = {f"{library}_NUM_THREADS": str(threads) for library in THREAD_VARIABLES}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    return {**inherited, **counts, **ISA_ENVIRONMENT[isa]}


def measure(
    job: Job,
    report: Report,
    listen: Listener = lambda event: None,
    module: str = child.__name__,
    pin: bool = True,
) -> Session:
    """Run one job in a child process, `module`.main(), and add what it finds to `report`.

    `pin` keeps a process on as many CPUs as it has threads.

    A child that dies leaves its results so far, and a note saying what it was doing.  KeyboardInterrupt ends the child.
    """
    session = Session(job.threads, job.isa)
    report.sessions.append(session)
    cpus = quiet.fastest_cpus(job.threads) if pin and hasattr(os, "sched_setaffinity") else []
    root = str(Path(__file__).resolve().parents[2])
    doing = "starting"
    finished = False
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, ",".join(map(str, cpus)), root, module],
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
            for event in child.events(process.stdout):
                _note(event, session, report)
                listen(event)
                doing = f"timing {event['label']}" if event["event"] == "case" else doing
                finished = finished or event["event"] == "done"
        except BaseException:
            process.terminate()
            raise
        finally:
            process.stdout.close()
            code = process.wait()
        if not finished:
            errors.seek(0)
            session.notes.append(f"the measuring process ended early while {doing}: {_why(code, errors.read())}")
    return session


def _note(event: dict[str, Any], session: Session, report: Report) -> None:
    kind = event["event"]
    if kind == "contenders":
        session.contenders, session.left_out = event["contenders"], event["left_out"]
        session.load_before = event["load"]
    elif kind == "result":
        report.results.append(Result.from_json(event["result"]))
    elif kind == "left_out":
        session.notes.append(f"{event['label']} was left out: {event['reason']}")
    elif kind == "done":
        session.load_after, session.stolen, session.others = event["load"], event["stolen"], event["others"]


def _why(code: int, errors: str) -> str:
    last = errors.strip().splitlines()[-1:] or ["it said nothing"]
    if code < 0:
        return f"{signal.Signals(-code).name} ({last[0]})"
    return last[0]


def run(
    kind: str,
    jobs: Iterable[AnyJob],
    listen: Callable[[AnyJob, dict[str, Any]], None],
    module: str = child.__name__,
    **options: Any,
) -> Report:
    """All jobs, one process after the other.  Ctrl-C keeps what was found until then and says so in a note."""
    report = Report.start(kind, **options)
    for job in jobs:
        try:
            measure(job, report, lambda event, job=job: listen(job, event), module)  # type: ignore[misc]
        except KeyboardInterrupt:
            report.sessions[-1].notes.append("interrupted: the cases after this point are missing")
            break
    return report
