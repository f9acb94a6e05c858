"""What all fuzzers share: a case drawn from a seed, workers that may crash or hang, reports that reproduce a failure.

A case is a dict of plain Python values. It is drawn from the seed, the fuzzer's name and a number alone, so that a seed
means the same cases everywhere, and it can be written on a command line: `python -m tests.fuzz --only NAME --case
"{...}"` checks it again. Cases run in a worker process, one after another. A worker that ends or that is silent for
longer than the fuzzer's limit has found a failure of the case that it had begun; another one goes on behind it.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 300.0  # that a worker may take for its imports
NAMES = ("products", "beside", "isa", "forks", "caches", "plans", "kernels", "cli", "environments", "promises", "nests",
         "online", "attention", "mpi")
Case = dict[str, Any]


@dataclass(frozen=True)
class Fuzzer:
    """`check` raises for a case that fails. `plain` are the values that a failing case is simplified to, key by key,
    as far as it goes on failing. A case that takes longer than `limit_s` seconds hangs: a generous limit, for busy
    machines. Its worker has `memory` bytes of addresses; who wants more is refused, instead of bringing the machine
    down. None: as many as there are."""

    name: str
    draw: Callable[[Random], Case]
    check: Callable[[Case], None]
    plain: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 120.0
    memory: int | None = 16 << 30
    share: float = 1.0  # of the time that `--seconds` gives to all


@dataclass
class Failure:
    fuzzer: str
    case: Case
    what: str  # a traceback, or how the worker ended

    @property
    def command(self) -> str:
        return f'python -m tests.fuzz --only {self.fuzzer} --case "{self.case}"'

    def __str__(self) -> str:
        return f"FAILED {self.fuzzer}\n{self.what.rstrip()}\n{self.command}\n"


@dataclass
class Outcome:
    fuzzer: str
    cases: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.cases / self.seconds if self.seconds else 0.0
        return f"{self.fuzzer:12} {self.cases:7} cases {len(self.failures):4} failures {rate:8.1f} cases/s"


def find(name: str) -> Fuzzer:
    """One of NAMES, or the FUZZER of another module; "module:argument": what its function `fuzzer` makes of that."""
    where, _, argument = name.partition(":")
    module = import_module(where if "." in where else f"tests.fuzz.{where}")
    found: Fuzzer = module.fuzzer(argument) if argument else module.FUZZER
    return found


def draw(fuzzer: Fuzzer, seed: int, number: int) -> Case:
    return fuzzer.draw(Random(f"{seed} {fuzzer.name} {number}"))


def failure(fuzzer: Fuzzer, case: Case) -> str | None:
    """What is wrong with a case, in this process: a traceback, or None."""
    try:
        fuzzer.check(case)
    except Exception:
        return traceback.format_exc(limit=-4)
    return None


def simplified(fuzzer: Fuzzer, case: Case) -> Case:
    """The case with as many plain values as leave it failing in the same way."""
    def way(case: Case) -> str:
        return re.sub(r"[\d.e+-]+|nan|inf", "#", (failure(fuzzer, case) or "").rstrip().rpartition("\n")[2])[:60]

    wanted = way(case)
    for key, value in fuzzer.plain.items():
        if key in case and case[key] != value and way(case | {key: value}) == wanted:
            case = case | {key: value}
    return case


def here(fuzzer: Fuzzer, seed: int, cases: int) -> list[Failure]:
    """The failures of the first cases of a seed, in this process: for tests that plant a fault."""
    found = []
    for number in range(cases):
        case = draw(fuzzer, seed, number)
        if (what := failure(fuzzer, case)) is not None:
            found.append(Failure(fuzzer.name, case, what))
    return found


def run(name: str, seed: int = 0, cases: int | None = None, seconds: float | None = None, most: int = 10,
        case: Case | None = None, tell: Callable[[Failure], None] = lambda _: None) -> Outcome:
    """So many cases of a fuzzer, or as many as there is time for, in workers; at most `most` failures."""
    fuzzer, outcome, began, number = find(name), Outcome(name), time.monotonic(), 0
    stop = cases if cases is not None else sys.maxsize
    while number < stop and len(outcome.failures) < most:
        left = None if seconds is None else seconds - (time.monotonic() - began)
        if left is not None and left <= 0:
            break
        number = _work(name, fuzzer, seed, number, stop, left, most, case, outcome, tell)
    outcome.seconds = time.monotonic() - began
    return outcome


def _work(name: str, fuzzer: Fuzzer, seed: int, start: int, stop: int, seconds: float | None, most: int,
          case: Case | None, outcome: Outcome, tell: Callable[[Failure], None]) -> int:
    """One worker's cases, until it is done or has failed; the number of the next case."""
    reading, writing = os.pipe()
    task = json.dumps([name, seed, start, stop, seconds, most - len(outcome.failures), case])
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.worker", str(writing), task]
    with tempfile.TemporaryFile() as noise, os.fdopen(reading, "rb", buffering=0) as lines:
        process = subprocess.Popen(command, cwd=ROOT, env=_environment(), pass_fds=(writing,),
                                   stdout=noise, stderr=noise)
        os.close(writing)
        begun, now, buffer, limit = start - 1, start, b"", START_S
        try:
            while True:
                if not select.select([lines], [], [], limit)[0]:
                    what = f"no answer in {limit:.0f} s"
                    process.send_signal(signal.SIGABRT)  # faulthandler shows where
                    break
                chunk = os.read(lines.fileno(), 1 << 16)
                if not chunk:
                    what = f"the worker ended with status {process.wait()}"
                    break
                *whole, buffer = (buffer + chunk).split(b"\n")
                for line in map(json.loads, whole):
                    if "begin" in line:
                        begun, limit = line["begin"], fuzzer.limit_s
                        continue
                    if "done" in line:
                        process.wait()
                        return int(line["done"])
                    now, outcome.cases = line["end"] + 1, outcome.cases + 1
                    if line["what"] is not None:
                        outcome.failures.append(Failure(fuzzer.name, line["case"], line["what"]))
                        tell(outcome.failures[-1])
            process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        noise.seek(0)
        what += "\n" + "\n".join(noise.read().decode(errors="replace").splitlines()[-40:])
    failing = case if case is not None else draw(fuzzer, seed, max(begun, start))
    outcome.cases += 1
    outcome.failures.append(Failure(fuzzer.name, failing, what))
    tell(outcome.failures[-1])
    return max(begun, now) + 1


def _environment() -> dict[str, str]:
    """Without the user's kernels and tuning results; kernels go where the tests' do, if this is a test."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "TILEWRIGHT_TUNE_DB": "off"}
