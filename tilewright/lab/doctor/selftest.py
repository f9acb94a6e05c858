"""`tilewright doctor --selftest`: all kernels for AMD's GPUs on this machine, as one JSON file for an issue.

With a GPU they are compiled, linked, run, compared with float64 and timed against torch, whose products are those of
hipBLASLt. Elsewhere they are compiled, linked if there is a linker, and simulated; every record says which it was.

What has been found so far is handed on after every kernel, with the names of those that are missing, so that a file of
it is whole whenever the command is stopped.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.lab.doctor import doctor
from tilewright.lab.doctor.amd_kernels import KERNELS
from tilewright.lab.doctor.selftest_steps import failed
from tilewright.lab.measure.machine import now
from tilewright.lab.measure.process import Child
from tilewright.text import plural

PATIENCE_S = 600.0  # for one kernel: its simulation may take a minute
Listener = Callable[[dict[str, Any]], object]
SECONDS = 1.0  # that a kernel takes on an idle machine, in the mean of all 107: compiled and simulated, on a Xeon


def _silent(_: object) -> None: ...


def quick() -> list[int]:
    """The numbers in KERNELS of those that `--quick` tries: axpy, reciprocals, the ladder, and of products those of two
    operands of one format in layout nt, without a split of k and with the usual result."""
    found = []
    for number, kernel in enumerate(KERNELS):
        first = kernel.name.split("_")[0]
        a, b, *_ = (*kernel.formats, "", "")
        plain = {f"mfma_gemm_{a}_nt", f"scaled_mfma_gemm_{a}_{b}", f"emulated_mx_gemm_{a}_{b}"}
        if first in ("axpy", "reciprocal", "amd") or (kernel.name in plain and a == b):
            found.append(number)
    return found


@dataclass
class Progress:
    """How far a report is: what `watch` gets whenever a kernel is about to be tried."""

    of: int  # kernels in all
    done: int = 0
    name: str = ""  # of the kernel that is tried
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the end, if the rest takes as long as what is done; at first by SECONDS."""
        elapsed = time.monotonic() - self.began
        return (self.of - self.done) * (elapsed / self.done if self.done else SECONDS)

    def __str__(self) -> str:
        elapsed = time.monotonic() - self.began
        return f"kernel {self.done + 1} of {self.of}, {self.name}: {clock(elapsed)} so far, {clock(self.left)} left"


def clock(seconds: float) -> str:
    """125 → 2:05"""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def report(listen: Listener = _silent, say: Callable[[str], object] = _silent,
           patience: float = PATIENCE_S, chosen: Sequence[int] | None = None, timed: bool = True,
           keep: Listener = _silent, watch: Callable[[Progress], object] = _silent) -> dict[str, Any]:
    """Try every kernel, or those with the numbers `chosen`. `say` gets lines about the machine, then `listen` the
    record of each kernel when it is there, `keep` the report so far at the start and after each, and `watch` the
    progress. Nothing is raised for what fails. Without `timed`, hardware is not timed.
    """
    left = list(range(len(KERNELS)) if chosen is None else chosen)
    found: dict[str, Any] = {
        "date": now(),
        "versions": doctor.versions("hip-python", "torch", "ziglang")
        | {"system": f"{platform.system()} {platform.release()}"},
        "processor": platform.machine(),
        **doctor.amd(),
        "missing": [_title(number) for number in left],
        "kernels": [],
    }
    progress = Progress(len(left))
    for about in heading(found):
        say(about)
    say(f"{plural(len(left), 'kernel')}: {clock(progress.left)} minutes on an idle machine, more on a busy one")
    keep(found)

    def add(number: int, record: dict[str, Any]) -> None:
        left.remove(number)
        progress.done += 1
        found["kernels"].append(record)
        found["missing"] = [_title(each) for each in left]
        keep(found)
        listen(record)

    while left:
        trying, why = -1, ""
        for event in _events(left, patience, timed):
            if event["event"] == "trying":
                trying = event["kernel"]
                progress.name = _title(trying)
                watch(progress)
            elif event["event"] == "ended":
                why = event["why"]
            else:
                add(event["kernel"], event["found"])
        if left:  # the process ended in the middle of one, or before the first
            ended = trying if trying in left else left[0]
            add(ended, failed(KERNELS[ended], f"its process ended: {why}"))
    return found


def _title(number: int) -> str:
    return f"{KERNELS[number].name} {KERNELS[number].target}"


def _events(numbers: Sequence[int], patience: float, timed: bool = True) -> Iterator[dict[str, Any]]:
    """What a process says about these kernels, as it comes, and at last why it ended."""
    with Child("tilewright.lab.doctor.selftest_steps", (list(numbers), timed)) as child:
        try:
            yield from child.events(patience)
            why = child.why(patience)
        except TimeoutError as late:
            why = str(late)
    yield {"event": "ended", "why": why}


# ---- text


def heading(found: dict[str, Any]) -> Iterator[str]:
    for gpu in found["devices"]:
        yield f"{gpu['name']} ({gpu['arch']}): {doctor.amd_words(gpu)}"
    if not found["devices"]:
        yield f"No AMD GPU: {found['without']}."
        yield "What follows is compiled, linked where a linker is installed, and simulated, not run on hardware."


def line(kernel: dict[str, Any]) -> str:
    """One kernel in a line, or two with its time."""
    name = f"{kernel['name']:<40} {kernel['target']}"
    if "failed" in kernel:
        return f"{name}  FAILED: {kernel['failed']}"
    cases, code = kernel["cases"], kernel["code"]
    wrong = [case for case in cases if not case["right"]]
    exact = sum(case["exact"] for case in cases)
    all_of_them = plural(len(cases), "case")
    said = f"WRONG in {len(wrong)} of {all_of_them}" if wrong else f"{all_of_them} right, {exact} exact"
    spilled = max(each["compiled"]["vgpr_spills"] for each in code)
    spills = f" and {spilled} SPILLED" if spilled else ""
    linked = "linked" if all("bytes" in each["linked"] for each in code) else "not linked"
    registers = code[-1]["compiled"]["registers"]
    first = f"{name}  {kernel['ran']}: {said}; {registers} registers{spills}, {linked}"
    return f"{first}\n{'':<40} {_time(kernel['time'])}" if "time" in kernel else first


def _time(found: dict[str, Any]) -> str:
    shape = "x".join(map(str, found["shape"]))
    rates = f"{found['operations_per_second'] / 1e12:.1f} TFLOP/s, {found['bytes_per_second'] / 1e12:.2f} TB/s"
    torch = f", {found['torch_over_ours']:.2f} x torch" if "torch_over_ours" in found else ""
    why_not = f"; torch: {found['torch']}" if "torch" in found else ""
    return f"{found['seconds'] * 1e6:.1f} us at {shape}: {rates}{torch}{why_not}"


def summary(found: dict[str, Any]) -> str:
    kernels = found["kernels"]
    right = sum(kernel["right"] for kernel in kernels)
    ran = sum(kernel.get("ran") == "on hardware" for kernel in kernels)
    return f"{right} of {plural(len(kernels), 'kernel')} right; {ran} ran on hardware, {len(kernels) - ran} did not."
