"""One runner for what is timed in this process: sides that are checked, take turns, and are rows of a result file.

Studies are suites of this package with a table of their own (`records`), and scripts of bench/ (`main`). Each case has
its sides, of each a call for each set of operands that take turns, more of them than a cache holds where that matters.
On a GPU they are recorded in CUDA graphs (`measure.gpu_rules`); on a CPU turns begin when other threads sleep, and
disturbed rounds are repeated (`measure.quiet`).
"""
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench import peer, results
from tilewright.lab.bench.cases import CPU, GPU
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.bench.tables import quoted
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack
from tilewright.lab.measure.measure import Call, Rules, interleave, ratios, rotated, spread
from tilewright.lab.measure.quiet import Watch, settle

Launch = Callable[[], Any]
Record = Mapping[str, Any]
Column = tuple[str, Callable[[Record], str]]            # heading, and the cell of a record
OURS = "tilewright"
ALONE = "product alone"         # a side that computes something else: it is not checked


@dataclass
class Case:
    """What takes turns: by side a call for each set of operands, or a launch, which is a function without arguments.

    about       stands in its row of the result file
    wrong       (side, result of its first call) -> why that is not right; "" if it is
    given       what `Library.studies` of the peers make their sides of, by name
    bytes       of a call, as flops: for the rate that is shown
    """
    about: dict[str, Any]
    sides: dict[str, list[Any]]
    wrong: Callable[[str, Any], str] = lambda side, result: ""
    given: dict[str, Any] = field(default_factory=dict)
    bytes: float = 0.0
    flops: float = 0.0


def with_peers(kind: str, case: Case, device: str) -> dict[str, list[Any]]:
    """The case's own sides, and those of all peers on this device that have the study."""
    sides = dict(case.sides)
    for library in peer.libraries():
        if library.device == device and kind in library.studies and not library.missing:
            sides |= library.studies[kind](**case.given)
    return sides


def close_to(exact: np.ndarray, tolerance: float, rows: Any = slice(None)) -> Callable[[str, Any], str]:
    """`wrong` of a case whose results begin with `exact`, or have it in these places."""
    def wrong(side: str, result: Any) -> str:
        chosen = np.asarray(result)[rows]
        chosen = chosen[:len(exact)]
        right = side == ALONE or np.allclose(chosen, exact, rtol=tolerance, atol=tolerance)
        return "" if right else "its result is wrong"
    return wrong


def failure(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def near(found: Any, wanted: Any, tolerance: float) -> str:
    """Why `found` is not right; "" if the norm of its error is within `tolerance` of that of `wanted`, of tensors or
    arrays."""
    found, wanted = (x.double() if hasattr(x, "double") else x.astype("f8") for x in (found, wanted))
    error = float(((found - wanted)**2).sum() / (wanted**2).sum()) ** 0.5
    return "" if error <= tolerance else f"error {error:.1e}, at most {tolerance:.0e} allowed"


def gpu_rules(quick: bool) -> GpuRules:
    return GpuRules(max_rounds=7 if quick else 15, budget_s=1.5 if quick else 3.0)


def seconds(sides: Mapping[str, Sequence[Any]], rules: Rules, on: TorchDevice | None = None,
            despite_load: bool = False) -> dict[str, list[float]]:
    """One interleaved run of these: of each, seconds for a launch, a figure for each round. `despite_load`: by the CPU
    time of the process."""
    calls: dict[str, list[Call]] = {
        side: [(x, ()) if callable(x) else x for x in launches] for side, launches in sides.items()}
    if despite_load:
        samples = interleave(calls, rules, clock=time.process_time)
    elif on is None:
        samples = interleave(calls, rules, settle=settle, disturbed=Watch().disturbed)
    else:
        samples = interleave(calls, rules, track=lambda calls: GraphTrack(
            on, [partial(launch, *given) for launch, given in calls]))
    return {side: list(sample.seconds) for side, sample in samples.items()}


# ---- suites

def records(suite: Any, cases: Sequence[tuple[str, int]], threads: Iterable[int] = (1,), quick: bool = False,
            step: Callable[[str], None] = lambda what: None, on: TorchDevice | None = None, despite_load: bool = False,
            **more: Any) -> Iterator[dict[str, Any]]:
    """The record of each case, (name, n), of which `suite.make(name, n, threads, **more)` has the calls, with the
    device where there is `more`; `step` is called before it is measured. RuntimeError for a wrong result, unless the
    suite has `means`, of what is right."""
    before = tw.get_num_threads()
    try:
        for count, (name, n) in product(threads, cases):
            tw.set_num_threads(count)
            step(f"{name}, {n:,}, {count} threads")
            case = suite.make(name, n, count, **(more | {"on": on} if more else {}))
            rules = gpu_rules(quick) if on else Rules.choose(count, quick)
            measured = row(case, rules, on, suite.__name__.rpartition(".")[2], despite_load and count == 1)
            for side, why in measured.pop("failed").items() if not hasattr(suite, "means") else ():
                raise RuntimeError(f"{name} of {n} by {side}: {why}")
            yield {"case": name, "n": n, "threads": count, "bytes": case.bytes, "memory": None, **measured}
    finally:
        tw.set_num_threads(before)


def table(suite: Any, found: Iterable[Record]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows of the suite's COLUMNS, of records."""
    return tuple(head for head, _ in suite.COLUMNS), [tuple(cell(x) for _, cell in suite.COLUMNS) for x in found]


def setting(heading: str, size: Callable[[Record], str] = lambda x: str(x["n"])) -> tuple[Column, ...]:
    """The columns that say which case it is, with this heading of its size."""
    return ("case", lambda x: x["case"]), (heading, size), ("threads", lambda x: str(x["threads"]))


def median(x: Record, name: str = OURS) -> float:
    """Seconds of a call."""
    return spread(x["seconds"][name]).median


def microseconds(heading: str, name: str = OURS) -> Column:
    """The median time of a call; "" if it was not measured."""
    return heading, lambda x: f"{median(x, name) * 1e6:.1f}" if name in x["seconds"] else ""


def compared(heading: str, other: str, name: str = OURS) -> Column:
    """How many times as long `other` takes as `name` in the same rounds; "" if either was not measured."""
    def cell(x: Record) -> str:
        times = x["seconds"]
        return quoted(spread(ratios(times[other], times[name]))) if {name, other} <= times.keys() else ""
    return heading, cell


# ---- scripts

def row(case: Case, rules: Rules, on: TorchDevice | None, kind: str = "", despite_load: bool = False
        ) -> dict[str, Any]:
    """What is known of a case, with the sides that failed and why, and the seconds of the others."""
    failed: dict[str, str] = {}
    sides = with_peers(kind, case, GPU if on else CPU)
    for side, launches in sides.items():
        try:
            results = [launch() if callable(launch) else launch[0](*launch[1]) for launch in launches]
            if why := case.wrong(side, results[0]):
                failed[side] = why
        except Exception as error:              # a function that torch cannot compile, say
            failed[side] = failure(error)
    if on is not None:
        on.wait()
    right = {side: launches for side, launches in sides.items() if side not in failed}
    return case.about | {"failed": failed, "seconds": seconds(right, rules, on, despite_load)}


def described(found: dict[str, Any], case: Case) -> str:
    label = " ".join(str(x) for key, x in case.about.items() if key not in ("plan", "kernels"))
    if OURS not in found["seconds"]:
        return f"{label}: {found['failed']}"
    ours = found["seconds"][OURS]
    median = statistics.median(ours)
    rates = "".join(f", {value / median / 1e9:.1f} G{unit}/s"
                    for value, unit in ((case.bytes, "B"), (case.flops, "FLOP")) if value)
    others = "".join(f", {side} {spread(ratios(times, ours)).median:.3f}" for side, times in found["seconds"].items()
                     if side != OURS)
    plan = case.about.get("plan", "")
    return f"{label}: {median*1e6:.1f} us{rates}; times of it{others} {found['failed'] or ''} {plan}"


def host_cost(calls: Mapping[str, Launch], wait: Launch, rounds: int = 15, burst: int = 200,
              clock: Callable[[], float] = time.perf_counter) -> dict[str, list[float]]:
    """Seconds that a call takes to come back, in bursts that fit into the device's queue, in turns.

    `wait` lets the device finish before the next burst, untimed: a full queue would time the kernel.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in rotated(list(calls), number):
            call, count = calls[name], range(burst)
            for _ in range(burst // 10):
                call()
            wait()
            start = clock()
            for _ in count:
                call()
            times[name].append((clock() - start) / burst)
            wait()
    return times


def parsed(doc: str, file: str, *more: Callable[[argparse.ArgumentParser], Any]) -> argparse.Namespace:
    """The options of a study: --quick, --out, by default `file`, and `more`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--out", type=Path, default=Path(file))
    for add in more:
        add(parser)
    return results.options(parser, "out")


def device(options: argparse.Namespace) -> TorchDevice | None:
    """The GPU, or None and the number of threads set if the study is of the CPU."""
    if getattr(options, "cpu", True):
        tw.set_num_threads(options.threads)
        return None
    return TorchDevice()


def main(kind: str, cases: Iterable[Case], options: argparse.Namespace, on: TorchDevice | None,
         host: tuple[str, Mapping[str, Launch]] | None = None) -> int:
    """Times all cases, and what calls cost the host; the result file is written after each."""
    report = results.Report.start(kind)
    rules = gpu_rules(options.quick) if on else Rules.choose(options.threads, options.quick)
    if on is not None:
        report.machine["gpu"] = on.describe()
    if host and on is not None:
        report.extra[host[0]] = host_cost(host[1], on.wait)
        for name, times in report.extra[host[0]].items():
            print(f"host: {name:20} {statistics.median(times)*1e6:6.2f} us", flush=True)
    report.extra[kind] = rows = []
    for case in cases:
        rows.append(row(case, rules, on, kind))
        print(described(rows[-1], case), flush=True)
        results.save(report, options.out)
        case.sides.clear()                      # the next one has their memory
        if on is not None:
            on.torch.cuda.empty_cache()
    results.save(report, options.out)
    return int(any(x["failed"].get(OURS) for x in rows))


def partials(function: Callable[..., Any], every: Iterable[tuple[Any, ...]], **options: Any) -> list[Launch]:
    """A launch of `function` for each set of operands."""
    return [partial(function, *x, **options) for x in every]
