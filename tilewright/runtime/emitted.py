"""An emitter as a Python function: called with arrays, it is recorded, compiled and run where they are."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from tilewright import targets
from tilewright.ir import Function, arguments
from tilewright.runtime import run
from tilewright.runtime.cpu import calls
from tilewright.runtime.parametric import THREADS, of_chip


class Emitted:
    """What `tilewright.kernel(emit)` makes, and describes. It records and compiles when it is first called."""

    def __init__(self, emit: Callable[..., Function], threads: int = THREADS) -> None:
        if not callable(emit):
            raise TypeError(f"an emitter is a function that records a kernel and returns it, not {emit!r}")
        update_wrapper(self, emit)
        self.emit, self.threads = emit, threads
        self._taken = inspect.signature(emit).parameters
        self._functions: dict[Any, Function] = {}
        self._on_gpus: list[Function] = []
        self._here: Callable[..., Any] = self._anywhere

    def __call__(self, *args: Any, grid: int | Sequence[int] | None = None) -> Any:
        return self._here(*args) if grid is None else self._anywhere(*args, grid=grid)

    def function(self, target: Any = None) -> Function:
        """The recorded kernel for a target, a record or its name; default: this machine's CPU."""
        chip = targets.coerce(target)
        cpu = isinstance(chip, targets.CpuTarget)
        key = chip if "target" in self._taken else None if cpu else chip.warp
        if key not in self._functions:
            own = of_chip(chip, self.threads)
            found = self.emit(**{name: own[name] for name in own.keys() & self._taken.keys()})
            self._functions[key] = arguments.recorded(found)
        return self._functions[key]

    def _anywhere(self, *args: Any, grid: Any = None) -> Any:
        for function in self._on_gpus:
            if run.again(function, args, grid):
                return None
        device = run.device_of(args)
        if device is not None:
            function = self.function(device.target)
            self._on_gpus = list(dict.fromkeys([*self._on_gpus, function]))
            return run.run(function, *args, grid=grid)
        function = self.function()
        if function.programs:
            return run.run(function, *args, grid=grid)
        arguments.grid(function, grid)
        call = calls.compiled(function)
        if isinstance(call, calls.Shared):
            call.otherwise, self._here = self._anywhere, call.builtin
        return call(*args)
