"""Random calls on a GPU beside float64: python -m tests.fuzz.device [--seconds N] [--seed S] [--only KIND ...]

Every kind of call (gpu_kinds.py, gpu_weights.py, gpu_layers.py) runs in processes of its own, several at once, so that
a lost context ends one process, and another one goes on behind the failing call. A process draws from a few sets of
features (formats, orders, alignment, epilogues), so that its kernels serve many calls of other sizes; each call is made
twice, with other numbers, since the second takes another way. What fails is printed with the command that repeats it
alone; at the end there is a table, and device_fuzz.json in $OUT, if that is set.

On a machine with a GPU and torch, all kinds for nine minutes, another seed, and one kind:

    python -m tests.fuzz.device --seconds 540 --processes 14
    python -m tests.fuzz.device --seconds 540 --processes 14 --seed 1
    python -m tests.fuzz.device --seconds 120 --only groups --only layers

One case, here and under compute-sanitizer:

    python -m tests.fuzz.device --only groups --case "{...}"
    compute-sanitizer --tool memcheck python -m tests.fuzz.device --only groups --case "{...}"

Without a GPU, on the fake driver: one cheap case of each kind, any case that is given, or as many as there is time for:

    python -m tests.fuzz.device --simulate [--only KIND] [--case "{...}"] [--seconds N]

of an H200, or of the chip that TILEWRIGHT_FUZZ_CHIP names (sm_80, sm_86, sm_89, gfx942, gfx950).
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import driver
from tests.fuzz.driver import Case, Failure, Fuzzer, Outcome

LOST = 70  # the status of a process whose context is lost
SLICE_S = 75.0  # of a process
SIMULATED = "TILEWRIGHT_FUZZ_SIMULATED"  # in the environment of processes that run on the fake driver


@cache
def kinds() -> dict[str, Any]:
    from tests.fuzz import gpu_attention, gpu_kinds, gpu_layers, gpu_weights, gpu_windows  # noqa: F401  (add theirs)

    return gpu_kinds.KINDS


@cache
def machine() -> Any:
    from tests.fuzz import gpu_arrays

    return gpu_arrays.Simulated() if SIMULATED in os.environ else gpu_arrays.Device()


def fuzzer(argument: str) -> Fuzzer:
    """Of "kind/variant": the variant says which few sets of features a process has."""
    name, _, variant = argument.partition("/")
    chosen = Random(f"{name} {variant}")
    features = [kinds()[name].features(chosen) for _ in range(3)]

    def drawn(rng: Random) -> Case:
        return kinds()[name].draw(rng, rng.choice(features))
    return Fuzzer(argument, drawn, partial(check, name), memory=None, limit_s=180.0)


def check(name: str, case: Case) -> None:
    """A case, twice; a process whose context is lost ends."""
    on = machine()
    try:
        for again in range(1 if on.simulated else 2):
            kinds()[name].check(on, case | {"data": case["data"] + again})
    except Exception:
        try:
            if not on.simulated:
                on.finish()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(LOST)
        if on.simulated:                        # what is left in its queues is of the failing call
            on.patch.undo()
            machine.cache_clear()
        raise


def simulate(names: list[str], case: Case | None, seed: int) -> list[Failure]:
    """A case of each kind on the fake driver, small enough to be quick."""
    failures = list[Failure]()
    for name in names:
        given = case or small(name, seed)
        try:
            check(name, given)
        except Exception:
            failures.append(Failure(name, given, traceback.format_exc(limit=-6)))
    return failures


def small(name: str, seed: int) -> Case:
    from tests.products.arrays import read

    for number in count():
        case = driver.draw(fuzzer(f"{name}/{number % 8}"), seed, number)
        if "row" not in case:                   # convolutions, attention
            numbers = [*case["sizes"].values(), *case["window"]] if "step" in case else [
                case[x] for x in ("sequences", "kv_heads", "group", "queries", "keys")]
            if math.prod(numbers) <= 40000:
                return case
            continue
        shapes = [read(case["row"][x]).shape for x in "ab"]
        if all(max(shape) <= 40 and math.prod(shape) <= 4000 for shape in shapes):
            return case
    raise AssertionError


def tasks(names: list[str]) -> Iterator[tuple[str, int]]:
    """(kind, variant) without end: all kinds in turn."""
    for variant in count():
        for name in names:
            yield name, variant


def run(names: list[str], seconds: float, processes: int, seed: int) -> dict[str, list[Outcome]]:
    end, found = time.monotonic() + seconds, {name: list[Outcome]() for name in names}
    following = tasks(names)

    def work(_: int) -> None:
        while (left := end - time.monotonic()) > SLICE_S / 4:
            name, variant = next(following)
            outcome = driver.run(f"tests.fuzz.device:{name}/{variant}", seed, seconds=min(SLICE_S, left), most=4,
                                 tell=told)
            found[name].append(outcome)
    with ThreadPoolExecutor(processes) as pool:
        for done in [pool.submit(work, i) for i in range(processes)]:
            done.result()
    return found


def told(failure: Failure) -> None:
    print(f"FAILED {failure.fuzzer}\n{failure.what.rstrip()}\n{command(failure)}\n", flush=True)


def command(failure: Failure) -> str:
    kind = failure.fuzzer.rpartition(":")[2].partition("/")[0]
    return f'python -m tests.fuzz.device --only {kind} --case "{failure.case}"'


def table(found: dict[str, list[Outcome]]) -> list[dict[str, Any]]:
    rows = []
    for name, outcomes in found.items():
        failures = [x for outcome in outcomes for x in outcome.failures]
        rows.append({"kind": name, "calls": 2 * sum(x.cases for x in outcomes), "failures": len(failures),
                     "cases": [command(x) for x in failures]})
        first = f"  {failures[0].what.rstrip().splitlines()[-1][:120]}" if failures else ""
        print(f"{name:18} {rows[-1]['calls']:6} calls {len(failures):4} failures{first}")
    calls, failed = (sum(x[what] for x in rows) for what in ("calls", "failures"))
    print(f"{'all':18} {calls:6} calls {failed:4} failures", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.device", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="for all kinds together (default: 540)")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=[*kinds()], help="this kind (several times: these)")
    parser.add_argument("--case", type=ast.literal_eval, help="check this one case, as a failure prints it")
    parser.add_argument("--simulate", action="store_true", help="on the fake driver")
    options = parser.parse_args()
    names = options.only or [name for name, x in kinds().items() if x.cheap or not options.simulate]
    if options.case is not None and len(names) != 1:
        parser.error("--case needs the kind that it is a case of: --only KIND")
    if options.simulate:
        os.environ[SIMULATED] = "1"
    if options.simulate and options.seconds is None:
        failures = simulate(names, options.case, options.seed)
        for failure in failures:
            told(failure)
        print(f"{len(names)} kinds, {len(failures)} failures")
        return int(bool(failures))
    if options.case is not None:
        check(names[0], options.case)
        print("right")
        return 0
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as directory:
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", directory)
        rows = table(run(names, options.seconds or 540.0, options.processes, options.seed))
    if out := os.environ.get("OUT"):
        Path(out, "device_fuzz.json").write_text(json.dumps({"seed": options.seed, "kinds": rows}, indent=1))
    return int(any(x["failures"] for x in rows))


if __name__ == "__main__":
    sys.exit(main())
