"""The one script for an NVIDIA GPU: checks, sanitizes and times, in processes of their own, and writes JSON.

    python bench/h200.py JOB[:ARGUMENT]... [--out DIR] [--limit SECONDS] [--quick] [--dtype LIST] [--peers LIST]

check      random calls of every kind for 9 minutes (check:N for N seconds): `python -m tests.fuzz.device`
sanitize   compute-sanitizer's memcheck and racecheck over every family of tests/fuzz/sanitized.py
squares odd skinny f64 tensor tensor_odd tensor_skinny terms tf32 scaled mx
           suites of `tilewright bench gpu`, together in DIR/gpu.json, with --dtype in DIR/gpu-DTYPE.json
overhead emission         the host's time of a call, and of emitting a kernel (bench/gpu_costs.py): DIR/costs.json
article    the article's sweep, every 256 (article:128 for all of it): DIR/article.json and .png
ladder     the teaching steps: DIR/ladder.json
tune       the plans of --plans FILE, a line each, on its lines "case MxNxK:LAYOUT[:FORMATS]", beside cuBLAS:
           DIR/tune.json

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
WIDTH, GRACE = "180", 15      # of tables; seconds that an interrupted process has to write its results
SUITES = {"squares": "square", **{name: name for name in (
    "odd", "skinny", "f64", "tensor", "tensor_odd", "tensor_skinny", "terms", "tf32", "scaled", "mx")}}
Job = tuple[str, list[str]]


def child(arguments: list[str], limit: float) -> tuple[int, str]:
    """Exit status and output of a process. At the limit it is interrupted, as by Ctrl-C, upon which `tilewright bench`
    writes what it has measured."""
    done = subprocess.run(["timeout", "--signal=INT", f"--kill-after={GRACE}", str(limit), *arguments], cwd=ROOT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={
                              "COLUMNS": WIDTH, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1" if "--tool" in arguments else "",
                              **os.environ})
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


def jobs(asked: argparse.Namespace) -> Iterator[Job]:
    """(Name, command) of every job that was asked for, in the order in which they run."""
    python, out = sys.executable, asked.out
    dirty = [results.ALLOW_DIRTY] if asked.allow_dirty else []
    bench = [python, "-m", "tilewright", "bench", *dirty]
    gpu, quick = [*bench, "gpu"], ["--quick"] * asked.quick
    given = [*(["--dtype", asked.dtype] if asked.dtype else []), *(["--peers", asked.peers] if asked.peers else [])]
    wanted = dict((*job.split(":"), "")[:2] for job in asked.jobs)
    if "check" in wanted:
        yield "check", [python, "-m", "tests.fuzz.device", *(["--seconds", wanted["check"]] if wanted["check"] else [])]
    if suites := [SUITES[name] for name in wanted if name in SUITES]:
        name = f"gpu{'-'.join(['', *filter(None, asked.dtype.split(','))])}.json"
        yield " ".join(suites), [*gpu, "-s", ",".join(suites), *quick, *given, "--json", str(out / name)]
    if costs := [name for name in wanted if name in ("overhead", "emission")]:
        yield " ".join(costs), [python, str(ROOT / "bench/gpu_costs.py"), *costs, *dirty, "--out",
                                str(out / "costs.json")]
    if "article" in wanted:
        sizes = ",".join(map(str, range(1024, 12801, int(wanted["article"] or 256))))
        yield "article", [*gpu, *(quick or ["--sizes", sizes]), "--json", str(out / "article.json"), "--plot",
                          str(out / "article.png")]
    if "ladder" in wanted:
        sizes = wanted["ladder"]
        yield "ladder", [*bench, "ladder", "--device", "cuda", *(["--sizes", sizes] if sizes else []), "--json",
                         str(out / "ladder.json")]
    if "tune" in wanted:
        lines = [line.strip() for line in asked.plans.read_text().splitlines() if line.strip() and line[0] != "#"]
        chosen = [word for line in lines for word in
                  (("--case", line[5:]) if line.startswith("case ") else ("--plan", line))]
        yield "tune", [*gpu, "--peers", "cuBLAS", "--quick", *given[:2], *chosen, "--json", str(out / "tune.json")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--limit", type=float, default=570, help="seconds for all jobs together")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and fewer squares")
    parser.add_argument("--plans", type=Path, help="for tune: a file with a plan or a case on each line")
    parser.add_argument("--dtype", default="", help="formats of the suites and of tune, with commas between them")
    parser.add_argument("--peers", default="", help="of the suites, with commas between them: all that are installed")
    asked = results.options(parser, "out")
    known = {*SUITES, "overhead", "emission", "check", "sanitize", "article", "ladder", "tune"}
    if unknown := {job.partition(":")[0] for job in asked.jobs} - known:
        parser.error(f"there is no job {', '.join(sorted(unknown))}")
    if "tune" in asked.jobs and not asked.plans:
        parser.error("tune needs --plans FILE")
    began, checks, table = time.monotonic(), {}, []

    def run(job: Job) -> tuple[str, int, str]:
        return job[0], *child(job[1], max(10.0, asked.limit - (time.monotonic() - began)))
    with ThreadPoolExecutor(4) as pool:
        side_by_side = pool.map(run, sanitized()) if "sanitize" in asked.jobs else ()
        for name, status, said in chain(side_by_side, map(run, jobs(asked))):
            print(f"\n== {name}\n{said}", flush=True)
            table.append(f"{name}: {'ok' if status == 0 else f'exit status {status}'}")
            checks[name] = {"ok": status == 0, "status": status, "said": "\n".join(said.splitlines()[-25:])}
    results.write(checks, asked.out / "checks.json")
    print("\n" + "\n".join(table))
    return 1 if any("exit status" in line for line in table) else 0


if __name__ == "__main__":
    sys.exit(main())
