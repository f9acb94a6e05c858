"""The process in which `tilewright doctor --selftest` tries kernels for AMD's GPUs: compiled, linked, and run, on
hardware where there is some and in the simulator elsewhere. A fault on a GPU, like an operation that LLVM cannot
select, ends the process it happens in: selftest.py starts it, listens to it and starts another for the rest.

Its job (measure/process.py) is a list of numbers of kernels in `amd_kernels.KERNELS`, and whether they are timed. Its
events:

    {"event": "trying", "kernel"}               about to begin with the kernel of this number
    {"event": "found", "kernel", "found"}       what came of it: `examine`, or {"failed": why}
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats, simulator
from tilewright.compiled.base import Launch
from tilewright.compiler import lld
from tilewright.lab.doctor import selftest_peer
from tilewright.lab.doctor.amd_cases import DATA, Case, Data, Shape
from tilewright.lab.doctor.amd_kernels import KERNELS, Entry
from tilewright.lab.measure.gpu_rules import Events, GpuRules
from tilewright.lab.measure.measure import Call, interleave
from tilewright.lab.measure.process import Emit, serve
from tilewright.runtime.hip import module
from tilewright.targets import target

GUARD = 4096  # bytes before and behind every array on the device, which no kernel may touch
PATTERN = 0xA5
RULES = GpuRules(turn_s=0.01, min_rounds=9, max_rounds=9)  # of ours and of torch's, in turn


def run(numbers: Sequence[int], emit: Emit, timed: bool = True) -> None:
    """Examine these kernels, each on the first GPU of its architecture, or without one."""
    gpus = _gpus()
    for number in numbers:
        kernel = KERNELS[number]
        emit("trying", kernel=number)
        try:
            entry = kernel if timed else replace(kernel, large=None)
            found = examine(entry, gpus.get(kernel.target))
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


def examine(entry: Entry, on: module.Device | None) -> dict[str, Any]:
    """Everything that can be done here to this kernel. `on`: a GPU that can run it, or None.

    "right" says whether each result was within its bound, and is what counts; an exception is the caller's.
    """
    chip, hardware = on.target if on else target(entry.target), on
    try:
        lld.find()
    except lld.Missing:
        hardware = None
    found: dict[str, Any] = {
        "name": entry.name, "target": entry.target, "formats": list(entry.formats),
        "ran": "on hardware" if hardware else "simulated, not run on hardware", "code": [], "cases": [],
    }
    for shape in dict.fromkeys((*entry.small, *([entry.large] if entry.large and hardware else []))):
        launch = entry.launch(chip, shape)
        code, image = _compiled(launch, shape)
        found["code"].append(code)
        if hardware is None or image is None:
            for case, what in _cases(entry, launch, shape, entry.simulated):
                simulator.run(launch.function, *case.args, grid=case.grid)
                found["cases"].append(what | _compared(case, case.args[case.output]))
            continue
        loaded = module.Module(image, hardware).function(launch.kernel.manifest)
        code["loaded"] = {"registers": loaded.registers, "lds": loaded.shared, "scratch": loaded.stack}
        found["cases"] += [_on_hardware(loaded, case, what) for case, what in _cases(entry, launch, shape, DATA)]
        if shape == entry.large:
            found["time"] = _timed(loaded, entry.case(launch, shape, "random", np.random.default_rng(0)), shape)
    found["right"] = all(case["right"] for case in found["cases"])
    return found


def _compiled(launch: Launch, shape: Shape) -> tuple[dict[str, Any], bytes | None]:
    """What there is to say of a kernel's code, and the code object if there is a linker."""
    began, kernel = time.perf_counter(), launch.kernel
    code = {"shape": list(shape), "plan": str(getattr(kernel, "plan", "")), "compiled": kernel.manifest["uses"]}
    image: bytes | None = None
    try:
        image = kernel.binary
        code["linked"] = {"bytes": len(image)}
    except lld.Missing as missing:
        code["linked"] = {"not": str(missing)}
    return code | {"compile_seconds": time.perf_counter() - began}, image


def _cases(entry: Entry, launch: Launch, shape: Shape, data: Sequence[Data]) -> Iterator[tuple[Case, dict[str, Any]]]:
    for each in data:
        case = entry.case(launch, shape, each, np.random.default_rng(0))
        yield case, {"shape": list(shape), "data": each} | ({} if case.rows is None else {"rows": len(case.rows)})


def _compared(case: Case, got: NDArray[Any]) -> dict[str, Any]:
    """How far the result is from float64's: `of_bound` is 1 where an element errs by as much as it may."""
    dtype = formats.get(case.format).dtype
    found = np.asarray(got).view(dtype) if dtype.isbuiltin == 2 else np.asarray(got)
    got = (found if case.rows is None else found[case.rows]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - case.expected)
    error[(got == case.expected) | (np.isnan(got) & np.isnan(case.expected))] = 0  # inf, and what is beyond a format
    bound = np.broadcast_to(np.asarray(case.bound, np.float64), error.shape)
    right = bool(np.all(error <= bound))  # a nan is not
    worst = float(error.max(initial=0.0))
    shares = error[bound > 0] / bound[bound > 0]
    said: dict[str, Any] = {"right": right, "exact": bool(np.all(error == 0))}
    said["worst"] = worst if np.isfinite(worst) else None
    if shares.size and right:
        said["of_bound"] = float(shares.max())
    if not right:
        wrong = np.argwhere(~(error <= bound))
        at = tuple(int(i) for i in wrong[0])
        said["wrong"] = {"elements": len(wrong), "of": int(error.size), "first": list(at),
                         "got": _number(got[at]), "expected": _number(case.expected[at])}
    return said


def _number(x: Any) -> float | str:
    return float(x) if np.isfinite(float(x)) else str(float(x))  # JSON has neither nan nor inf


# ---- on hardware


class _Guarded:
    """An array on the device with a pattern on both sides."""

    def __init__(self, on: module.Device, array: NDArray[Any]) -> None:
        content = np.ascontiguousarray(array)
        self.like = content
        whole = np.full(content.nbytes + 2 * GUARD, PATTERN, np.uint8)
        whole[GUARD : GUARD + content.nbytes] = content.reshape(-1).view(np.uint8)
        self.memory = module.Memory.upload(on, whole)
        self.pointer = self.memory.pointer + GUARD

    def read(self) -> tuple[NDArray[Any], bool]:
        """What is there now, and whether the pattern around it is as it was."""
        whole = np.empty(self.memory.size, np.uint8)
        self.memory.download(whole)
        inside = whole[GUARD : self.memory.size - GUARD].copy()
        intact = bool(np.all(whole[:GUARD] == PATTERN) and np.all(whole[self.memory.size - GUARD :] == PATTERN))
        return inside.view(self.like.dtype).reshape(self.like.shape), intact


def _placed(function: module.HipFunction, case: Case) -> tuple[module.Prepared, dict[int, _Guarded]]:
    arrays = {i: _Guarded(function.device, x) for i, x in enumerate(case.args) if isinstance(x, np.ndarray)}
    args = [arrays[i].pointer if i in arrays else x for i, x in enumerate(case.args)]
    return module.Prepared(function, case.grid, args), arrays


def _on_hardware(function: module.HipFunction, case: Case, what: dict[str, Any]) -> dict[str, Any]:
    launch, arrays = _placed(function, case)
    stream = module.Stream(function.device)
    launch(stream)
    stream.synchronize()
    result, intact = arrays.pop(case.output).read()
    found = what | _compared(case, result)
    names = [argument["name"] for argument in function.manifest["arguments"]]
    outside, changed = [] if intact else [names[case.output]], []
    for place, array in arrays.items():
        now, intact = array.read()
        if not intact:
            outside.append(names[place])
        if place not in case.scratch and now.tobytes() != array.like.tobytes():
            changed.append(names[place])
    broken = {what: those for what, those in (("outside", outside), ("changed", changed)) if those}
    return found | broken | {"right": found["right"] and not broken}


def _timed(function: module.HipFunction, case: Case, shape: Shape) -> dict[str, Any]:
    """Turns of ours and of torch's, each of at least 10 ms, one after the other on one stream. Data is random, since
    zeros would let clocks rise."""
    launch, _arrays = _placed(function, case)
    stream = module.Stream(function.device)
    contenders: dict[str, Any] = {"seconds": launch}
    found: dict[str, Any] = {"shape": list(shape)}
    if case.peer is not None:
        try:
            contenders["torch_seconds"], found["torch_result"] = selftest_peer.launch(case.peer, stream)
        except Exception as error:  # not installed, not for ROCm, or it has no such product
            found["torch"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    calls: dict[str, list[Call]] = {name: [(each, (stream,))] for name, each in contenders.items()}
    turns = interleave(calls, RULES, track=Events(stream).track)
    for name, sample in turns.items():
        found[name], found[f"{name}_of_turns"] = sample.spread.median, list(sample.seconds)
    found["operations_per_second"] = case.operations / found["seconds"]
    found["bytes_per_second"] = case.bytes / found["seconds"]
    if "torch_seconds" in found:
        found["torch_over_ours"] = found["torch_seconds"] / found["seconds"]
    return found


def main() -> None:
    serve(lambda job, emit: run(job[0], emit, job[1]))
