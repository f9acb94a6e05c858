"""Recorded functions of a CPU, compiled for this machine and called from Python; those of `kernels.elementwise.each` by
a builtin of their own and on several threads (kernels/cpu/emitted.py).
"""
from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright import forks, targets
from tilewright.compiler import artefact, loader, sources
from tilewright.ir import Function, Pointer, Type, arguments
from tilewright.ir.program import written
from tilewright.ir.vectors import width
from tilewright.kernels.cpu import emitted, pieces
from tilewright.kernels.cpu.pieces import FIELD
from tilewright.runtime.cpu import layout
from tilewright.runtime.cpu.pool import get_num_threads, pool

NUMBERS = {"i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
           "f32": ctypes.c_float, "f64": ctypes.c_double}
INTEGERS = "?bBhHiIlLqQ"        # NumPy's letters; bool is an i8


class Plain:
    """One function, called by ctypes."""

    def __init__(self, function: Function) -> None:
        for name, t in [*((name, value.type) for name, value in function.params), ("the result", function.result)]:
            if not (t is None or isinstance(t, Pointer) or str(t) in NUMBERS):
                raise TypeError("parameters and results of functions that Python calls must be pointers or numbers of "
                                f"type {', '.join(NUMBERS)}, but {name} is of type {t}")
        self.function, self.target = function, targets.detect().extended
        self.types = [_ctype(value.type) for _, value in function.params]
        self.code = self.compile()
        self.call = self.code.function(function.name, self.result, *self.types)
        self.builtin: Callable[..., Any] = self

    def compile(self) -> Any:
        return _placed(self.function, self.target, lambda: [self.function])

    @property
    def result(self) -> Any:
        return None if self.function.result is None else _ctype(self.function.result)

    def __call__(self, *args: Any) -> Any:
        arguments.count(self.function, args)
        return self.call(*(_host(self.function, name, value.type, x)
                           for (name, value), x in zip(self.function.params, args)))


class Shared(Plain):
    """A function of `each`. `builtin` is the call for arguments that need no conversion, and calls `otherwise` with
    others, and while there are no workers."""

    def compile(self) -> Any:
        header = object.__basicsize__
        return _placed(self.function, self.target,
                       lambda: emitted.emit_calls(self.function, width(self.target), header), emitted.__name__, header)

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        name, number, pointer = function.name, ctypes.c_int64, ctypes.c_void_p
        self._context = (ctypes.c_int64 * (emitted.DTYPES // 8 + emitted.KINDS * len(function.params)))()
        self._rounds = self.code.function(f"{name}_rounds", number, *self.types)
        self._part, self._address = self.code.function(f"{name}_part", None, pointer, number), \
            self.code.address(f"{name}_part")

        self.otherwise: Callable[..., Any] = self.__call__      # what the builtin leaves to Python

        def python(*args: Any) -> Any:
            return self.otherwise(*args)
        words = ((emitted.PYTHON, id(python)), (emitted.VECTORCALL, layout.vectorcall()),
                 (emitted.NDARRAY, id(np.ndarray)), (emitted.INT, id(int)), (emitted.FLOAT, id(float)),
                 (emitted.NONE, id(None)), (emitted.POOL, pool().address), (emitted.RUN_PARTS, pool().parts_address),
                 (emitted.PART, self._address))
        for offset, word in words:
            self._context[offset // 8] = word
        for e, (_, value) in enumerate(function.params):
            dtypes = _dtypes(value.type.element) if isinstance(value.type, Pointer) else []
            for place, dtype in enumerate(dtypes, emitted.DTYPES // 8 + emitted.KINDS*e):
                self._context[place] = id(dtype)
            self._python = python, dtypes           # what the context points to
        entry, context = self.code.address(f"{name}_entry"), ctypes.addressof(self._context)
        if layout.agrees():
            self.builtin = layout.builtin(name, entry, self, context)

    def __call__(self, *args: Any) -> None:
        function, threads = self.function, get_num_threads()
        arguments.count(function, args)
        given = [_host(function, name, value.type, x) for (name, value), x in zip(function.params, args)]
        count = self._rounds(*given)
        shared = threads > 1 and count > emitted.ALONE
        parts = max(min(threads * emitted.SHARES, count // emitted.GRAIN), 1) if shared else 1
        job = struct.pack("q", parts)
        for t, x in zip(self.types, given):
            job += struct.pack("q" if t is ctypes.c_void_p else t._type_, x).ljust(8, b"\0")
        block = ctypes.create_string_buffer(job)
        if parts > 1:
            team = pool().reserve(threads)
            pool().run_parts(self._address, ctypes.addressof(block), parts, team, team)
        else:
            self._part(ctypes.addressof(block), 0)


@cache
def compiled(function: Function) -> Plain:
    """The function as something to be called with NumPy's arrays and Python's numbers."""
    with forks.building:
        return (Shared if function.independent and function.result is None else Plain)(function)


PARTS = 4                       # of the programs for each thread: the first to be done takes another


def programs(function: Function, args: Sequence[Any], grid: tuple[int, int, int]) -> None:
    """Each program of a grid once, in parts that the pool's threads claim."""
    arguments.count(function, args)
    job = (ctypes.c_char * (FIELD * (len(args) + 4)))()
    for n, ((name, value), x) in enumerate(zip(function.params, args)):
        _ctype(value.type).from_buffer(job, FIELD*n).value = _host(function, name, value.type, x)
    threads, count = get_num_threads(), math.prod(grid)
    share = -(-count // min(threads * PARTS, count))
    for n, x in enumerate((grid[0], grid[1], count, share), len(args)):
        ctypes.c_int64.from_buffer(job, FIELD*n).value = x
    code, parts = _task(function), -(-count // share)
    team = pool().reserve(min(threads, parts))
    pool().run_parts(code.address(f"{function.name}_task"), ctypes.addressof(job), parts, team, team)


@cache
def _task(function: Function) -> Any:
    return _placed(function, targets.detect().extended, lambda: [function, pieces.emit_task(function)],
                   pieces.__name__)


def _placed(function: Function, target: Any, functions: Callable[[], list[Function]], by: str = sources.COMPILER,
            *asked: Any) -> Any:
    """The code of `functions`, which module `by` makes of a recorded one, in this process."""
    def build() -> bytes:
        from tilewright.compiler import llvm
        return llvm.object_code(functions(), target)
    return loader.load(artefact.cached_code([function], target, build, by, *asked), target)


def _dtypes(element: Type) -> list[Any]:
    """The dtypes of arrays that a pointer to these may be given, as far as the builtin knows them: integers of either
    sign."""
    exact = element.numpy
    if element.is_float:
        return [exact]
    return list({id(d): d for d in map(np.dtype, INTEGERS) if d.itemsize == exact.itemsize}.values())[:emitted.KINDS]


def _ctype(t: Any) -> Any:
    return ctypes.c_void_p if isinstance(t, Pointer) else NUMBERS[str(t)]


def _host(function: Function, name: str, t: Any, x: Any) -> Any:
    """x as ctypes takes it."""
    if not isinstance(t, Pointer):
        return arguments.number(name, t, x).item()
    if isinstance(x, int):
        return x
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array of {t.element.numpy}, not {kind(x)}")
    arguments.array(name, t, x)
    line = written(function).get(name)
    if line is not None and not x.flags.writeable:
        raise ValueError(f"{name} is read-only, and {function.name} writes it at {line}\n    {line.text}")
    return layout.address(x)


def kind(x: Any) -> str:
    """What an argument is, for errors."""
    return f"{type(x).__name__} of {x.dtype}" if hasattr(x, "dtype") else type(x).__name__
