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
from tilewright.runtime.parametric import THREADS, Parametric, of_chip


def kernel(emit: Callable[..., Any] | None = None, /, **given: Any) -> Any:
    """A decorator for an emitter, a function that records a kernel and returns it (`return k.function`).

    `tw.kernel(emit)`, or `@tw.kernel` without parameters, is a function to call with arrays: `add = tw.kernel(emit)`,
    `add(n, x, y, z)`. With NumPy's arrays it runs on this machine's CPU (a kernel of `each` on up to
    `tilewright.get_num_threads()` threads); with arrays in a GPU's memory (torch, CuPy, DLPack,
    __cuda_array_interface__) on that GPU, on their library's stream. The emitter's parameter `threads` is None for a
    CPU, and for a GPU the number of threads of a CTA: 256, or the number in `tw.kernel(emit, threads=128)`. Its
    parameter `warp` is the number of lanes of a warp; other parameters need default values. `grid=` of a call is the
    number of CTAs. By default it is one, or for a kernel of `each` so many that each thread, or each row, has one
    iteration. TypeError, ValueError or OverflowError for arguments that do not fit the kernel's parameters.

    a*b + c of floats in a kernel is one operation with one rounding, on all targets and in the simulator; `with
    k.exact():` keeps operations apart.

    Keywords in UPPER case are parameters of the emitter that may vary, each with a list of values; `tune` finds the
    best. The emitter may also have `threads` and `warp`, as above, and `target`, which gets the chip's record. The
    other keywords are functions that describe launches. Their arguments are taken by name from the parameters, the
    arguments of the call (by the names in the recorded kernel; only the shape, dtype and device of an array may be
    used) and `target`:

    grid        the number of CTAs along x, y and z; not for a function of a CPU
    check       a sentence, or several, on what is wrong with a configuration, or None
    shared      bytes of shared memory, if they must be known before the kernel is recorded
    tile        the extent of one tile along each size that is an argument of the call: {"m": L, "n": L, "k": S}. With
                it counts for large sizes follow from simulated launches of one and two tiles; without it the whole call
                is simulated
    arrays      the other arguments of a call with small sizes: shapes of arrays, and numbers. By default those
                of the call
    reference   the right results: arrays by the names of arguments. Without it, results of all configurations
                are compared with those of the first
    tolerance   the largest error of a result, as a share of the reference's largest number; by default 1000 units of
                the format's last place, for integers 0

    The decorated emitter is a Parametric. TypeError or ValueError for keywords that the emitter does not have, and
    parameters without values.
    """
    def decorate(emit: Callable[..., Any]) -> Parametric:
        return Parametric(emit, given)
    if emit is None:
        return decorate
    if more := [word for word in given if word != "threads"]:
        raise TypeError(f"tilewright.kernel(emit) takes threads=, not {', '.join(more)}: an emitter with parameters is "
                        f"decorated by @tilewright.kernel({more[0]}=...)")
    return Emitted(emit, **given)


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
            emitted = self.emit(**{name: own[name] for name in own.keys() & self._taken.keys()})
            self._functions[key] = arguments.recorded(emitted)
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
