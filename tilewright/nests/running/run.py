"""`loops`: plain Python loops over arrays, compiled as they are and run where the arrays are."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.ir import Function, Type
from tilewright.nests.nest import LoopNest
from tilewright.nests.reading import source
from tilewright.nests.reading.names import outside
from tilewright.nests.running.again import Calls
from tilewright.nests.running.execution import TYPES, Execution, Given, look


def loops(function: Callable[..., Any]) -> Loops:
    """A decorator for a function of nested loops over arrays, which are then compiled and run as they are written.

        @tw.loops
        def multiply(A, B, C, n, alpha):
            for i in range(n):
                for j in range(n):
                    for p in range(n):
                        C[i, j] += alpha * A[i, p] * B[p, j]

    A call takes arrays of float16, bfloat16, float32, float64, int8, int16, int32 or int64, of any strides, whole
    numbers and floats, and returns None. With arrays in the host's memory, NumPy's or torch's, the loops run on one
    thread, by vectors where rounds are independent and their elements consecutive. With arrays in a GPU's memory
    (torch, CuPy, DLPack, __cuda_array_interface__) they run there, on their library's stream. Up to three loops, one
    directly inside the other, whose rounds are independent whatever the sizes are shared by CTAs and threads, and what
    is inside of them runs in order. Each outermost loop is a launch; where only loops further inside are independent,
    each round of those around them. `explain` says which.

    Loops may contain

    for         over range(start, stop, step), bounds being sums of whole numbers, sizes and indices with whole
                coefficients, the step a positive number or -1
    =           to elements and variables, and += -= *=. Subscripts are like bounds; A.shape[0], len(A) and
                m, n = A.shape are sizes
    values      + - * / ** and min, max, abs, np.where, sqrt, exp and the other functions of epilogues; choices
    if          comparisons of indices and sizes, joined by `and`; comparisons of numbers

    Anything else is Refused, a TypeError with the line, and so are subscripts that may be outside of their array;
    nothing has run then. Arithmetic is in the format to which NumPy would promote what a statement reads, at least f32
    or i32; results are converted as NumPy does when it assigns to an array. A product of floats that is added to an
    element or a variable is rounded together with the sum. Arrays may overlap. TypeError, ValueError or OverflowError
    for arguments that do not fit.
    """
    return Loops(function)


class Loops:
    """What `tilewright.loops` makes of a function, and describes. `python` is the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not inspect.isfunction(function):
            raise TypeError(f"loops are those of a Python function, not {function!r}")
        update_wrapper(self, function)
        self.python = function
        self._signature = inspect.signature(function)
        self._names = tuple(self._signature.parameters)
        self._executions: dict[Any, Execution] = {}
        self._calls: dict[Any, Calls] = {}      # by what the function reads that is no argument

    def __repr__(self) -> str:
        return f"<loops {self.python.__name__}{self._signature}>"

    def __call__(self, *args: Any, **named: Any) -> None:
        constants = outside(self.python)
        if (calls := self._calls.get(constants)) is not None and not named and calls.again(args):
            return
        given = self._given(args, named)
        loops = self._execution(given)
        if given.gpu is None:
            loops.run(given)
        else:
            calls = self._calls.setdefault(constants, Calls())
            calls.run(given.args, given.seen, [*loops.written], lambda: loops.run(given))

    def nest(self, *args: Any, **named: Any) -> LoopNest:
        """The loops of a call with these arguments as a record, which can be printed."""
        return self._execution(self._given(args, named)).nest

    def function(self, *args: Any, gpu: str | bool | None = None, **named: Any) -> tuple[Function, ...]:
        """The recorded functions that a call with these arguments runs: on a CPU one, on a GPU one for each launch.
        `gpu`: the name of a GPU's target, or True for one of NVIDIA's, as if NumPy's arrays were there."""
        given = self._given(args, named, gpu)
        return self._execution(given).functions(given)

    def simulate(self, *args: Any, gpu: str | bool | None = None, **named: Any) -> Any:
        """The report of a call in the simulator, with copies of these arrays of NumPy's."""
        given = self._given(args, named, gpu)
        return self._execution(given).simulate(given)[0]

    def explain(self, *args: Any, gpu: str | bool | None = None, **named: Any) -> str:
        """The loops, and how they run: on a GPU, which of them are shared by CTAs and threads, and why others are not.
        """
        given = self._given(args, named, gpu)
        return self._execution(given).explain(given)

    def _given(self, args: tuple[Any, ...], named: dict[str, Any], gpu: str | bool | None = None) -> Given:
        if named or len(args) != len(self._names):
            try:
                bound = self._signature.bind(*args, **named)
            except TypeError as error:
                raise TypeError(f"{self.python.__name__}{self._signature} is given {len(args) + len(named)} arguments: "
                                f"{error}") from None
            bound.apply_defaults()
            args = tuple(bound.arguments.values())
        return look(self._names, args, gpu)

    def _execution(self, given: Given) -> Execution:
        key = (tuple([(x.dtype, x.ndim) if isinstance(x, np.ndarray) else type(x) for x in given.seen]),
               outside(self.python))
        execution = self._executions.get(key)
        if execution is None:
            with forks.building:
                nest = source.nest(self.python, [kind(*x) for x in zip(self._names, given.seen)])
                execution = self._executions[key] = Execution(nest)
        return execution


def kind(name: str, x: Any) -> tuple[str, Type | None, int]:
    """(kind, element, axes) of a parameter with this argument."""
    if not isinstance(x, np.ndarray):
        return ("number" if isinstance(x, float) else "size"), None, 0
    element = TYPES.get(x.dtype)
    if element is None:
        raise TypeError(f"{name} is an array of {x.dtype}; loops take arrays of {', '.join(map(str, TYPES))}")
    return "array", element, x.ndim
