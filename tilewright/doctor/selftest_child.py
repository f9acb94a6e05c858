"""The process in which `tilewright doctor --selftest` tries kernels: a fault on a GPU, like an operation that LLVM
cannot select, ends the process it happens in. selftest.py starts it, listens to it and starts another for the rest.

It takes the numbers of kernels in `amd_kernels.KERNELS` as arguments, and UNTIMED if nothing is to be timed; it writes
one JSON object a line:

    {"event": "trying", "kernel"}               about to begin with the kernel of this number
    {"event": "found", "kernel", "found"}       what came of it: selftest_steps.examine, or {"failed": why}
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.doctor import selftest_steps
from tilewright.doctor.amd_kernels import KERNELS, Entry
from tilewright.runtime.hip import module

UNTIMED = "untimed"


def run(numbers: Sequence[int], emit: Callable[..., None], timed: bool = True) -> None:
    """Examine these kernels, each on the first GPU of its architecture, or without one."""
    gpus = _gpus()
    for number in numbers:
        kernel = KERNELS[number]
        emit("trying", kernel=number)
        try:
            entry = kernel if timed else replace(kernel, large=None)
            found = selftest_steps.examine(entry, gpus.get(kernel.target))
        except Exception as error:
            found = failed(kernel, f"{type(error).__name__}: {error}", traceback.format_exc())
        emit("found", kernel=number, found=found)


def failed(kernel: Entry, why: str, more: str = "") -> dict[str, Any]:
    """The record of a kernel that did not come to its end."""
    found = {"name": kernel.name, "target": kernel.target, "formats": list(kernel.formats), "right": False}
    return found | {"failed": why, **({"traceback": more} if more else {})}


def _gpus() -> dict[str, module.Device]:
    """The first GPU of each architecture."""
    found: dict[str, module.Device] = {}
    for index in range(module.count() if module.available() else 0):
        here = module.device(index)
        found.setdefault(here.arch, here)
    return found


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed must not end up between the events

    def emit(event: str, **details: Any) -> None:
        out.write(json.dumps({"event": event, **details}) + "\n")

    numbers = [int(word) for word in sys.argv[1:] if word != UNTIMED]
    run(numbers, emit, UNTIMED not in sys.argv[1:])
