"""Run a recorded function in both readings, as machine code and in the simulator, and compare every bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import simulator
from tilewright.compiler import llvm, loader
from tilewright.ir import Function, Pointer
from tilewright.simulator.memory import extent
from tilewright.targets import detect


def native(functions: Sequence[Function]) -> loader.Loaded:
    return loader.load(llvm.object_code(functions, detect()), detect())


def c_type(t: Any) -> Any:
    if t is None:
        return None
    return ctypes.c_void_p if isinstance(t, Pointer) else np.ctypeslib.as_ctypes_type(t.numpy)


def same_bits(x: Any, y: Any) -> bool:
    """Equal, with 0 and -0 told apart, and every NaN like every other."""
    x, y = np.atleast_1d(x), np.atleast_1d(y)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind != "f":
        return bool((x == y).all())
    return bool((((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))).all())


def both(function: Function, *args: Any, arrays: dict[str, np.ndarray] | None = None, also: Sequence[Function] = (),
         externals: dict[str, Callable] | None = None, memory: simulator.AddressSpace | None = None,
         code: loader.Loaded | None = None) -> tuple[simulator.Report, dict[str, Any]]:
    """(report, arguments and `arrays` by name, as both readings left them).

    Arrays are copied for each reading. An argument that is a Python function makes an array of pointers: each reading
    calls it with `address`, which tells where an argument or one of `arrays` is, by name, or a recorded function.
    """
    code = code or native([function, *also])
    memory = memory or simulator.AddressSpace()
    names = [name for name, _ in function.params]
    given = (arrays or {}) | dict(zip(names, args, strict=True))
    readings = []
    for simulated in (False, True):
        held = {name: _aligned(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}

        def address(x: str | Function, held=held, simulated=simulated) -> int:
            if isinstance(x, Function):
                return memory.address(x) if simulated else code.address(x.name)
            if callable(held[x]):
                held[x] = held[x](address)
            return memory.address(held[x], x) if simulated else held[x].ctypes.data
        for name, x in held.items():
            if callable(x):
                address(name)
        operands = [held[name] for name in names]
        if simulated:
            report = simulator.run(function, *operands, memory=memory, externals=externals)
        else:
            types = [c_type(value.type) for _, value in function.params]
            call = code.function(function.name, c_type(function.result), *types)
            result = call(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in operands))
        readings.append(held)
    for name, x in given.items():
        if isinstance(x, np.ndarray):
            ours, theirs = readings[1][name], readings[0][name]
            assert same_bits(ours, theirs), f"{name} differs; simulated:\n{ours}\nnative:\n{theirs}"
    if function.result is not None and not isinstance(function.result, Pointer):
        assert same_bits(function.result.numpy.type(result), report.result), (result, report.result)
    return report, readings[1]


def _aligned(x: np.ndarray) -> np.ndarray:
    """A copy with the same strides in a buffer of its own, its first byte 64-byte aligned."""
    low, high = extent(x)
    buffer = np.zeros(high - low + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    copy = np.ndarray(x.shape, x.dtype, buffer, start + x.ctypes.data - low, x.strides)
    copy[...] = x
    return copy
