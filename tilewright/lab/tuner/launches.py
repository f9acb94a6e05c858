"""The configurations of a user's kernel as calls that take turns, on this CPU or a GPU, in the tuner's process.

The process is given compiled code: it needs neither the emitter nor LLVM.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler import loader
from tilewright.lab.measure import measure
from tilewright.lab.measure.measure import Rules
from tilewright.lab.tuner.contenders import REFERENCE, Contenders, OnProcessor
from tilewright.lab.tuner.on_gpu import OnDevice
from tilewright.lab.tuner.trial import differs


@dataclass(frozen=True)
class KernelJob:
    """A child's job, as child.Job: `plans` are configurations, the model's first."""
    kernel: str
    target: Any
    plans: tuple[str, ...]
    time_limit: float
    in_use: str                         # the configuration that REFERENCE stands for
    codes: Mapping[str, Any]            # of every configuration: artefact.Code, or a CPU's object code
    grids: Mapping[str, tuple[int, ...]]
    arguments: tuple[tuple[str, Any, Any], ...]         # name, ctypes' type of a CPU's, and NumPy's array or number
    wrote: tuple[str, ...]              # names of arrays that the kernel writes
    tolerance: float | None
    symbols: Mapping[str, str]          # of a CPU's functions
    flops: int
    threads: int = 1

    def __str__(self) -> str:
        return self.kernel


class Configurations(Contenders):
    """What both have: results are compared with those of the configuration in use, which is tried first."""
    job: KernelJob
    results: dict[str, Any]
    first: dict[str, Any] | None = None

    def wrong(self) -> str | None:
        if self.first is None:
            self.first = {name: x.copy() for name, x in self.results.items()}
        return differs(self.results, self.first, self.job.tolerance) or None


class OnCpu(OnProcessor, Configurations):
    rules = Rules()

    def __init__(self, job: KernelJob) -> None:
        job.target.require_runnable()
        self.job = job
        self.given = {name: x.copy() for name, _, x in job.arguments if name in job.wrote}
        self.results = {name: x for name, _, x in job.arguments if name in job.wrote}

    def tried(self, name: str) -> list[measure.Call]:
        text = self.job.in_use if name == REFERENCE else name
        code = loader.load(self.job.codes[text], self.job.target)
        call = code.function(self.job.symbols[text], None, *(kind for _, kind, _ in self.job.arguments))
        args = tuple(x.ctypes.data if isinstance(x, np.ndarray) else x for _, _, x in self.job.arguments)
        for array, before in self.given.items():
            self.results[array][...] = before
        call(*args)
        return [(lambda *xs, _keep=code: call(*xs), args)]      # the code lives as long as the call


class OnGpu(OnDevice, Configurations):
    def __init__(self, job: KernelJob) -> None:
        super().__init__(job.target)
        self.job, self.kept = job, []   # type: ignore[var-annotated]
        arrays = {name: x for name, _, x in job.arguments if isinstance(x, np.ndarray)}
        count = self.sets_of(sum(x.nbytes for x in arrays.values()))
        self.sets = [{name: self.driver.Memory.upload(self.on, x) for name, x in arrays.items()} for _ in range(count)]
        self.results = {name: np.empty_like(arrays[name]) for name in job.wrote}
        self.arrays = arrays

    def tried(self, name: str) -> list[measure.Call]:
        text = self.job.in_use if name == REFERENCE else name
        code = self.job.codes[text]
        function = self.driver.load(code.image, self.on).function(code.manifest)
        calls: list[measure.Call] = []
        for memories in self.sets:
            args = [memories[argument].pointer if argument in memories else x for argument, _, x in self.job.arguments]
            calls.append((self.driver.Prepared(function, self.job.grids[text], args), (self.stream.handle,)))
        with self.on.current():
            for argument in self.job.wrote:
                x, memory = self.arrays[argument], self.sets[0][argument]
                memory.library.copy(memory.pointer, np.ascontiguousarray(x).ctypes.data, x.nbytes, back=False)
        run, on_stream = calls[0]
        run(*on_stream)
        self.stream.synchronize()
        for argument in self.job.wrote:
            self.sets[0][argument].download(self.results[argument])
        return calls
