"""`tilewright doctor --selftest`: all kernels for AMD's GPUs on this machine, as one JSON file for an issue.

With a GPU they are compiled, linked, run, compared with float64 and timed against torch, whose products are those of
hipBLASLt. Elsewhere they are compiled, linked if there is a linker, and simulated; every record says which it was.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tilewright.runtime import doctor
from tilewright.runtime.amd_kernels import KERNELS
from tilewright.runtime.selftest_child import failed

PATIENCE_S = 600.0  # for one kernel: its simulation may take a minute
PACKAGES = ("tilewright", "numpy", "llvmlite", "ml_dtypes", "hip-python", "torch", "ziglang")
_START = """
import sys
sys.path.append(sys.argv.pop(1))
from tilewright.runtime.selftest_child import main
main()
"""
Listener = Callable[[dict[str, Any]], object]


def _silent(_: object) -> None: ...


def report(listen: Listener = _silent, say: Callable[[str], object] = _silent, start: str = _START,
           patience: float = PATIENCE_S) -> dict[str, Any]:  # fmt: skip
    """Try every kernel. `say` gets lines about the machine, then `listen` the record of each kernel when it is there.
    Nothing is raised for what fails.

    `start` is the Python code of the processes in which they are tried.
    """
    found: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": _versions(),
        "processor": platform.machine(),
        **doctor.amd(),
        "kernels": [],
    }
    for about in heading(found):
        say(about)
    left = list(range(len(KERNELS)))
    while left:
        trying, why = -1, ""
        for event in _events(left, start, patience):
            if event["event"] == "trying":
                trying = event["kernel"]
            elif event["event"] == "ended":
                why = event["why"]
            else:
                left.remove(event["kernel"])
                found["kernels"].append(event["found"])
                listen(event["found"])
        if left:  # the process ended in the middle of one, or before the first
            ended = trying if trying in left else left[0]
            left.remove(ended)
            found["kernels"].append(failed(KERNELS[ended], f"its process ended: {why}"))
            listen(found["kernels"][-1])
    return found


def _events(numbers: Sequence[int], start: str, patience: float) -> Iterator[dict[str, Any]]:
    """What a process says about these kernels, as it comes, and at last why it ended."""
    root = str(Path(__file__).resolve().parents[2])
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read(stream: Any) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([sys.executable, "-c", start, root, *map(str, numbers)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=errors)  # fmt: skip
        threading.Thread(target=read, args=(process.stdout,), daemon=True).start()
        try:
            while (line := lines.get(timeout=patience)) is not None:
                yield json.loads(line)
            code = process.wait(patience)
        except (queue.Empty, subprocess.TimeoutExpired):
            yield {"event": "ended", "why": f"it was silent for {patience:.0f} s"}
            return
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["it said nothing"])[-1]
        yield {"event": "ended", "why": f"{signal.Signals(-code).name} ({last})" if code < 0 else last}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    from tilewright import __version__

    return found | {"tilewright": __version__}


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
    said = f"WRONG in {len(wrong)} of {len(cases)} cases" if wrong else f"{len(cases)} cases right, {exact} exact"
    spilled = max(each["compiled"]["vgpr_spills"] for each in code)
    spills = f" and {spilled} SPILLED" if spilled else ""
    linked = "linked" if all("bytes" in each["linked"] for each in code) else "not linked"
    registers = code[-1]["compiled"]["registers"]
    first = f"{name}  {kernel['ran']}: {said}; {registers} registers{spills}, {linked}"
    return f"{first}\n{'':<40} {_time(kernel['time'])}" if "time" in kernel else first


def _time(time: dict[str, Any]) -> str:
    shape = "x".join(map(str, time["shape"]))
    rates = f"{time['operations_per_second'] / 1e12:.1f} TFLOP/s, {time['bytes_per_second'] / 1e12:.2f} TB/s"
    torch = f", {time['torch_over_ours']:.2f} x torch" if "torch_over_ours" in time else ""
    why_not = f"; torch: {time['torch']}" if "torch" in time else ""
    return f"{time['seconds'] * 1e6:.1f} us at {shape}: {rates}{torch}{why_not}"


def summary(found: dict[str, Any]) -> str:
    kernels = found["kernels"]
    right = sum(kernel["right"] for kernel in kernels)
    ran = sum(kernel.get("ran") == "on hardware" for kernel in kernels)
    return f"{right} of {len(kernels)} kernels right; {ran} ran on hardware, {len(kernels) - ran} did not."
