"""What `tilewright doctor --selftest` does to one kernel for an AMD GPU: compile, link, and run it, on hardware where
there is some and in the simulator elsewhere. Everything ends up in a dict, as JSON has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import simulator
from tilewright.compiler import amd, lld
from tilewright.ir import Function
from tilewright.runtime import hip, selftest_peer
from tilewright.runtime.amd_cases import DATA, Case, Shape
from tilewright.runtime.amd_kernels import AmdKernel
from tilewright.targets import target

GUARD = 4096  # bytes before and behind every array on the device, which no kernel may touch
PATTERN = 0xA5
TURNS = 9  # of ours and of torch's, in turn


def examine(kernel: AmdKernel, on: hip.Device | None) -> dict[str, Any]:
    """Everything that can be done here to this kernel. `on`: a GPU that can run it, or None.

    "right" says whether each result was within its bound, and is what counts; an exception is the caller's.
    """
    record = on.target if on else target(kernel.target)
    found: dict[str, Any] = {"name": kernel.name, "target": kernel.target, "formats": list(kernel.formats)}
    began = time.perf_counter()
    function = kernel.emit(record)
    text = amd.assembly(function, record)
    found["compiled"] = asdict(amd.usage(function, record, text))
    found["compile_seconds"] = time.perf_counter() - began
    code: bytes | None = None
    try:
        code = amd.code_object(function, record)
        found["linked"] = {"bytes": len(code)}
    except lld.Missing as missing:
        found["linked"] = {"not": str(missing)}
    if on and code:
        loaded = hip.Module(code, on).function(amd.manifest(function, record, text=text))
        found["ran"] = "on hardware"
        found["loaded"] = {"registers": loaded.registers, "lds": loaded.lds, "scratch": loaded.scratch}
        shapes = kernel.small if kernel.large is None else (*kernel.small, kernel.large)
        found["cases"] = [_on_hardware(loaded, case, what) for case, what in _cases(kernel, shapes)]
        if kernel.large is not None:
            found["time"] = _timed(loaded, kernel, kernel.large)
    else:
        found["ran"] = "simulated, not run on hardware"
        found["cases"] = [_simulated(function, case, what) for case, what in _cases(kernel, kernel.small)]
    found["right"] = all(case["right"] for case in found["cases"])
    return found


def _cases(kernel: AmdKernel, shapes: Sequence[Shape]) -> Iterator[tuple[Case, dict[str, Any]]]:
    for shape in shapes:
        for data in DATA:
            yield kernel.case(shape, data, np.random.default_rng(0)), {"shape": list(shape), "data": data}


def _simulated(function: Function, case: Case, what: dict[str, Any]) -> dict[str, Any]:
    simulator.run(function, *case.args, grid=case.grid)
    return what | _compared(case, case.args[case.output])


def _compared(case: Case, got: NDArray[Any]) -> dict[str, Any]:
    """How far the result is from float64's: `of_bound` is 1 where an element errs by as much as it may."""
    error = np.abs(np.asarray(got).astype(np.float64) - case.expected)
    bound = np.broadcast_to(np.asarray(case.bound, np.float64), error.shape)
    right = bool(np.all(error <= bound))  # a nan is not
    worst = float(error.max(initial=0.0))
    shares = error[bound > 0] / bound[bound > 0]
    found: dict[str, Any] = {"right": right, "exact": bool(np.all(error == 0))}
    found["worst"] = worst if np.isfinite(worst) else None
    if shares.size and right:
        found["of_bound"] = float(shares.max())
    if not right:
        wrong = np.argwhere(~(error <= bound))
        at = tuple(int(i) for i in wrong[0])
        found["wrong"] = {"elements": len(wrong), "of": int(error.size), "first": list(at),
                          "got": _number(got[at]), "expected": _number(case.expected[at])}  # fmt: skip
    return found


def _number(x: Any) -> float | str:
    return float(x) if np.isfinite(float(x)) else str(float(x))  # JSON has neither nan nor inf


# ---- on hardware


class _Guarded:
    """An array on the device with a pattern on both sides."""

    def __init__(self, on: hip.Device, array: NDArray[Any]) -> None:
        content = np.ascontiguousarray(array)
        self.like = content
        whole = np.full(content.nbytes + 2 * GUARD, PATTERN, np.uint8)
        whole[GUARD : GUARD + content.nbytes] = content.reshape(-1).view(np.uint8)
        self.memory = hip.upload(on, whole)
        self.pointer = self.memory.pointer + GUARD

    def read(self) -> tuple[NDArray[Any], bool]:
        """What is there now, and whether the pattern around it is as it was."""
        whole = np.empty(self.memory.size, np.uint8)
        hip.download(self.memory, whole)
        inside = whole[GUARD : self.memory.size - GUARD].copy()
        intact = bool(np.all(whole[:GUARD] == PATTERN) and np.all(whole[self.memory.size - GUARD :] == PATTERN))
        return inside.view(self.like.dtype).reshape(self.like.shape), intact


def _placed(function: hip.HipFunction, case: Case) -> tuple[hip.Prepared, dict[int, _Guarded]]:
    arrays = {i: _Guarded(function.device, x) for i, x in enumerate(case.args) if isinstance(x, np.ndarray)}
    args = [arrays[i].pointer if i in arrays else x for i, x in enumerate(case.args)]
    return hip.Prepared(function, case.grid, args), arrays


def _on_hardware(function: hip.HipFunction, case: Case, what: dict[str, Any]) -> dict[str, Any]:
    launch, arrays = _placed(function, case)
    stream = hip.Stream(function.device)
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


def _timed(function: hip.HipFunction, kernel: AmdKernel, shape: Shape) -> dict[str, Any]:
    """Turns of ours and of torch's, each of at least 10 ms, one after the other on one stream."""
    case = kernel.case(shape, "random", np.random.default_rng(0))  # zeros would let clocks rise
    launch, _arrays = _placed(function, case)
    stream = hip.Stream(function.device)
    contenders: dict[str, Any] = {"seconds": launch}
    found: dict[str, Any] = {"shape": list(shape)}
    if case.peer is not None:
        try:
            contenders["torch_seconds"] = selftest_peer.launch(case.peer, stream)
        except Exception as error:  # not installed, not for ROCm, or it has no such product
            found["torch"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    turns = hip.in_turn(contenders, stream, TURNS)
    for name, seconds in turns.items():
        found[name], found[f"{name}_of_turns"] = float(np.median(seconds)), seconds
    found["operations_per_second"] = case.operations / found["seconds"]
    found["bytes_per_second"] = case.bytes / found["seconds"]
    if "torch_seconds" in found:
        found["torch_over_ours"] = found["torch_seconds"] / found["seconds"]
    return found
