"""Checks everything on an NVIDIA GPU, in processes of their own, and writes JSON. `tilewright bench gpu` times it.

    python bench/h200.py [check[:SECONDS]] [sanitize] [--out DIR] [--limit SECONDS]

check      random calls of every kind for 9 minutes, or so many seconds: `python -m tests.fuzz.device`
sanitize   compute-sanitizer's memcheck and racecheck over every family of tests/fuzz/sanitized.py

DIR is $OUT, or the working directory. A kernel that reads where it must not takes only its own job with it. A short
table of everything comes last.
"""
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tilewright.lab.bench import results

# Asking the driver for a parameter that does not exist is how parameters are counted: no error of ours.
SANITIZERS = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
Job = tuple[str, list[str]]


def child(arguments: list[str], limit: float) -> tuple[int, str]:
    """Exit status and output of a process, which is interrupted at the limit, as by Ctrl-C."""
    done = subprocess.run(["timeout", "--signal=INT", "--kill-after=15", str(limit), *arguments], cwd=ROOT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={
                              "PYTORCH_NO_CUDA_MEMORY_CACHING": "1" if "--tool" in arguments else "", **os.environ})
    late = f"\nstopped after {limit:.0f} s" * (done.returncode in (124, 137))
    return done.returncode, done.stdout.strip() + late


def sanitized() -> Iterator[Job]:
    from tests.fuzz.sanitized import families
    places = map(str, Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    tool = shutil.which("compute-sanitizer") or next(iter(sorted(places)), None)
    if tool is None:
        print("sanitize: left out: compute-sanitizer is not installed")
        return
    for family in families():
        for check, options in SANITIZERS.items():
            yield f"{check} {family}", [tool, "--tool", check, *options, "--error-exitcode", "9", "--print-limit", "10",
                                        sys.executable, "-m", "tests.fuzz.sanitized", family]


def jobs(asked: list[str]) -> Iterator[Job]:
    """(Name, command) of the random calls, if they were asked for."""
    for job in asked:
        name, _, seconds = job.partition(":")
        if name == "check":
            yield name, [sys.executable, "-m", "tests.fuzz.device", *(["--seconds", seconds] if seconds else [])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["check", "sanitize"])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--limit", type=float, default=570, help="seconds for all jobs together")
    asked = results.options(parser, "out")
    if unknown := {job.partition(":")[0] for job in asked.jobs} - {"check", "sanitize"}:
        parser.error(f"there is no job {', '.join(sorted(unknown))}")
    began, checks = time.monotonic(), {}

    def run(job: Job) -> tuple[str, int, str]:
        return job[0], *child(job[1], max(10.0, asked.limit - (time.monotonic() - began)))
    with ThreadPoolExecutor(4) as pool:
        side_by_side = pool.map(run, sanitized()) if "sanitize" in asked.jobs else ()
        for name, status, said in chain(side_by_side, map(run, jobs(asked.jobs))):
            print(f"\n== {name}\n{said}", flush=True)
            checks[name] = {"ok": status == 0, "status": status, "said": "\n".join(said.splitlines()[-25:])}
    results.write(checks, asked.out / "checks.json")
    print(*(f"{name}: {x['status'] or 'ok'}" for name, x in checks.items()), sep="\n")
    return int(not all(x["ok"] for x in checks.values()))


if __name__ == "__main__":
    sys.exit(main())
