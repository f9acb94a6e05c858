"""`tilewright doctor --selftest`: all kernels for AMD's GPUs on this machine, as one JSON file for an issue.

With a GPU they are compiled, linked, run, compared with float64 and timed beside torch. Elsewhere they are compiled,
linked if there is a linker, and simulated; every record says which it was. Kernels are tried in a child process: a
fault on a GPU, like an operation that LLVM cannot select, ends the process it happens in, and another tries the rest.

What was found so far is handed on after every kernel, with the names of those that are missing, so that a file of it is
complete whenever the command is stopped.
"""
from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tilewright.compiler import lld
from tilewright.lab.doctor import doctor
from tilewright.lab.doctor.amd_kernels import KERNELS, Entry, Product
from tilewright.lab.measure.gpu_rules import GpuRules
from tilewright.lab.measure.machine import now
from tilewright.lab.measure.measure import Call, interleave
from tilewright.lab.measure.process import Child, Emit, serve
from tilewright.lab.tuner.on_gpu import OnDevice
from tilewright.runtime.hip import module
from tilewright.targets import target
from tilewright.text import plural

PATIENCE_S = 600.0              # for one kernel: its simulation may take a minute
SECONDS = 1.0                   # that a kernel takes on an idle machine, in the mean of all, compiled and simulated
RULES = GpuRules(turn_s=0.01, min_rounds=9, max_rounds=9)


def clock(seconds: float) -> str:
    """125 → 2:05"""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def begun(quick: bool = False) -> dict[str, Any]:
    """The report before any kernel has been tried. `quick`: of a few of them."""
    return {
        "date": now(),
        "versions": doctor.versions("hip-python", "torch", "ziglang")
        | {"system": f"{platform.system()} {platform.release()}"},
        "processor": platform.machine(),
        **doctor.amd(),
        "missing": [_title(number) for number in numbers(quick)],
        "kernels": [],
    }


def tries(found: dict[str, Any], quick: bool = False, timed: bool = True, patience: float = PATIENCE_S
          ) -> Iterator[str | dict[str, Any]]:
    """Try every kernel: of each what is tried, in words, and then its record, which the report `found` has by then.
    Nothing is raised for what fails. Without `timed`, hardware is not timed."""
    left, began = numbers(quick), time.monotonic()
    of = len(left)
    while left:
        trying, why = left[0], ""
        for event in _events(left, patience, timed):
            if event["event"] == "trying":
                trying, done = event["kernel"], of - len(left)
                # as if the rest took as long as what is done; at first by SECONDS
                rest = len(left) * ((time.monotonic() - began) / done if done else SECONDS)
                yield f"{_title(trying)}, {clock(rest)} left"
                continue
            if event["event"] == "ended":
                if not left:
                    continue
                why = f"its process ended: {event['why']}"      # in the middle of one, or before the first
            record = failed(KERNELS[trying], why) if why else event["found"]
            left.remove(trying)
            found["kernels"].append(record)
            found["missing"] = [_title(number) for number in left]
            yield record


def numbers(quick: bool) -> list[int]:
    """Places in KERNELS of all kernels, or of the few of `quick`."""
    return [number for number, kernel in enumerate(KERNELS) if kernel.quick or not quick]


def _title(number: int) -> str:
    return f"{KERNELS[number].name} {KERNELS[number].target}"


def _events(wanted: Sequence[int], patience: float, timed: bool = True) -> Iterator[dict[str, Any]]:
    """What a process says about these kernels, as it comes, and at last why it ended."""
    with Child(__name__, (list(wanted), timed)) as child:
        try:
            yield from child.events(patience)
            why = child.why(patience)
        except TimeoutError as late:
            why = str(late)
    yield {"event": "ended", "why": why}


# ---- the process

def main() -> None:
    serve(lambda job, emit: run(job[0], emit, job[1]))


def run(wanted: Sequence[int], emit: Emit, timed: bool = True) -> None:
    """Examine these kernels, each on the first GPU of its architecture, or without one. Events:

        {"event": "trying", "kernel"}       about to begin with the kernel of this number
        {"event": "found", "found"}         what came of it: `examine`, or {"failed": why}
    """
    gpus = {here.arch: here for here in reversed([
        module.device(index) for index in range(module.count() if module.available() else 0)])}
    for number in wanted:
        kernel = KERNELS[number]
        emit("trying", kernel=number)
        try:
            outcome = examine(kernel if timed else replace(kernel, large=None), gpus.get(kernel.target))
        except Exception as error:
            outcome = failed(kernel, f"{type(error).__name__}: {error}") | {"traceback": traceback.format_exc()}
        emit("found", found=outcome)


def failed(kernel: Entry, why: str) -> dict[str, Any]:
    """The record of a kernel that did not come to its end."""
    return {"name": kernel.name, "target": kernel.target, "right": False, "failed": why}


def examine(entry: Entry, on: module.Device | None) -> dict[str, Any]:
    """Everything that can be done here to this kernel. `on`: a GPU that can run it, or None.

    "right" says whether each result was within its bound, and is what counts; an exception is the caller's.
    """
    chip, linker = on.target if on else target(entry.target), True
    try:
        lld.find()
    except lld.Missing:
        linker = False
    hardware = on is not None and linker
    outcome: dict[str, Any] = {"name": entry.name, "target": entry.target, "cases": [],
                             "ran": "on hardware" if hardware else "simulated, not run on hardware"}
    for case in (*entry.small, *([entry.large] if entry.large and hardware else [])):
        began = time.perf_counter()
        kernel: Any = case.kernel(chip)
        said = {"case": str(case), "plan": str(getattr(kernel, "plan", "")), "uses": kernel.manifest["uses"],
                "linked_bytes": len(kernel.binary) if linker else None}
        said["compile_seconds"] = time.perf_counter() - began
        if hardware:
            by, name = case.placed(kernel)
            calls, wrong = by.tried(name), by.wrong()
            if case is entry.large and not wrong:
                outcome["time"] = _timed(case, by, calls)
        else:
            wrong = case.simulated(kernel)
        outcome["cases"].append(said | {"right": not wrong, "wrong": wrong or ""})
    return outcome | {"right": all(case["right"] for case in outcome["cases"])}


def _timed(case: Product, by: OnDevice, calls: Sequence[Call]) -> dict[str, Any]:
    """Turns of at least 10 ms, one after the other on one stream, and torch's beside them where it has the product."""
    sample = interleave({"ours": calls}, RULES, track=by.track)["ours"]
    seconds = sample.spread.median
    outcome = {"case": str(case), "seconds": seconds, "seconds_of_turns": list(sample.seconds),
             "operations_per_second": case.problem.flops / seconds,
             "bytes_per_second": case.problem.min_bytes / seconds}

    def hear(event: str, **details: Any) -> None:
        if event == "vendor":
            outcome.update(torch=details["name"], torch_over_ours=details["ratio"])
    try:
        by.compare(SimpleNamespace(vendor=True), calls, hear)   # type: ignore[arg-type]
    except Exception as error:          # torch is not for ROCm, or has no such product
        outcome["torch"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return outcome


# ---- text

def heading(found: dict[str, Any]) -> Iterator[str]:
    for gpu in found["devices"]:
        yield f"{gpu['name']} ({gpu['arch']}): {doctor.amd_words(gpu)}"
    if not found["devices"]:
        yield f"No AMD GPU: {found['without']}."
        yield "What follows is compiled, linked where a linker is installed, and simulated, not run on hardware."
    count = len(found["missing"])
    yield f"{plural(count, 'kernel')}: {clock(count * SECONDS)} minutes on an idle machine, more on a busy one"


def line(kernel: dict[str, Any]) -> str:
    """One kernel in a line, or two with its time."""
    name = f"{kernel['name']:<40} {kernel['target']}"
    if "failed" in kernel:
        return f"{name}  FAILED: {kernel['failed']}"
    cases = kernel["cases"]
    wrong = [f"{case['case']}: {case['wrong']}" for case in cases if not case["right"]]
    said = f"WRONG in {len(wrong)} of {plural(len(cases), 'case')}: {wrong[0]}" if wrong else \
        f"{plural(len(cases), 'case')} right"
    spilled = max(case["uses"]["vgpr_spills"] for case in cases)
    spills = f" and {spilled} SPILLED" if spilled else ""
    linked = "linked" if all(case["linked_bytes"] for case in cases) else "not linked"
    first = f"{name}  {kernel['ran']}: {said}; {cases[-1]['uses']['registers']} registers{spills}, {linked}"
    return f"{first}\n{'':<40} {_time(kernel['time'])}" if "time" in kernel else first


def _time(found: dict[str, Any]) -> str:
    rates = f"{found['operations_per_second'] / 1e12:.1f} TFLOP/s, {found['bytes_per_second'] / 1e12:.2f} TB/s"
    torch = f", {found['torch_over_ours']:.2f} x {found['torch']}" if "torch_over_ours" in found else \
        f"; torch: {found['torch']}" if "torch" in found else ""
    return f"{found['seconds'] * 1e6:.1f} us for {found['case']}: {rates}{torch}"


def summary(found: dict[str, Any]) -> str:
    kernels = found["kernels"]
    right = sum(kernel["right"] for kernel in kernels)
    ran = sum(kernel.get("ran") == "on hardware" for kernel in kernels)
    return f"{right} of {plural(len(kernels), 'kernel')} right; {ran} ran on hardware, {len(kernels) - ran} did not."
