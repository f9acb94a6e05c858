"""Compile a recorded function for this machine and call it: the way to run a kernel of your own.

    run(function, n, x, y, z)                       # a CPU function on NumPy arrays
    run(function, n, x, y, z, grid=(4,))            # the CTAs of a GPU on arrays in its memory

The arguments are those of simulator.run, which runs the same function where every access is checked.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright import targets
from tilewright.ir import Function, Pointer, TensorMap, Texture, arguments
from tilewright.ir.program import written
from tilewright.targets.tensor_maps import TiledMap

_NUMBERS = {"i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
            "f32": ctypes.c_float, "f64": ctypes.c_double}


def run(function: Function, *args: Any, grid: int | Sequence[int] | None = None) -> Any:
    """Call `function` with numbers for its number parameters and arrays, or addresses as int, for its pointers.

    What is recorded for the CTAs of a GPU is launched once for each CTA of `grid` ((x, y, z), fewer of them, or a
    number; one CTA unless given), a CPU's block program once for each program of it, on the threads of the pool. A
    GPU's runs on the NVIDIA or AMD GPU that has the arrays and on the stream that their library (torch, CuPy, anything
    with DLPack or __cuda_array_interface__) works on, and may not be over when this returns.
    Nothing is copied or converted: arrays are contiguous and of the parameters' element types, and writable where the
    function writes; those for tensor maps may be views whose last dimension is contiguous. What the function does with
    them is not checked: run it in the simulator first. TypeError, ValueError or OverflowError for arguments that do not
    fit the parameters; RuntimeError if this machine cannot run the function.
    """
    extents = arguments.grid(arguments.recorded(function), grid)
    if function.programs:
        return _programs(function, args, extents)
    arguments.count(function, args)
    return _on_cpu(function, args) if function.threads is None else _on_gpu(function, args, extents)


def _on_cpu(function: Function, args: Sequence[Any]) -> Any:
    for name, t in [*((name, value.type) for name, value in function.params), ("the result", function.result)]:
        if not (t is None or isinstance(t, Pointer) or str(t) in _NUMBERS):
            raise TypeError("parameters and results of functions that Python calls must be pointers or numbers of type "
                            f"{', '.join(_NUMBERS)}, but {name} is of type {t}")
    given = [_host(function, name, value.type, x) for (name, value), x in zip(function.params, args)]
    return _compiled(function)(*given)


@cache
def _compiled(function: Function) -> Callable[..., Any]:
    from tilewright.compiler import llvm, loader

    target = targets.detect().extended
    code = loader.load(llvm.object_code(function, target), target)
    result = None if function.result is None else _ctype(function.result)
    call: Callable[..., Any] = code.function(function.name, result, *(_ctype(v.type) for _, v in function.params))
    call.code = code  # type: ignore[attr-defined]
    return call


PARTS = 4                       # of the programs for each thread: the first to be done takes another


def _programs(function: Function, args: Sequence[Any], grid: tuple[int, int, int]) -> None:
    """Each program of a grid once, in parts that the pool's threads claim."""
    from tilewright.kernels.cpu.programs import FIELD, HIDDEN
    from tilewright.runtime.cpu import pool

    arguments.count(function, [*args, *[0] * HIDDEN])
    job = (ctypes.c_char * (FIELD * (len(args) + 4)))()
    for n, ((name, value), x) in enumerate(zip(function.params, args)):
        _ctype(value.type).from_buffer(job, FIELD*n).value = _host(function, name, value.type, x)
    threads, count = pool.get_num_threads(), math.prod(grid)
    share = -(-count // min(threads * PARTS, count))
    for n, x in enumerate((grid[0], grid[1], count, share), len(args)):
        ctypes.c_int64.from_buffer(job, FIELD*n).value = x
    code, parts = _task(function), -(-count // share)
    team = pool.pool().reserve(min(threads, parts))
    pool.pool().run_parts(code.address(f"{function.name}_task"), ctypes.addressof(job), parts, team, team)


@cache
def _task(function: Function) -> Any:
    from tilewright.compiler import llvm, loader
    from tilewright.kernels.cpu.programs import emit_task

    target = targets.detect().extended
    return loader.load(llvm.object_code([function, emit_task(function)], target), target)


def _ctype(t: Any) -> Any:
    return ctypes.c_void_p if isinstance(t, Pointer) else _NUMBERS[str(t)]


def _host(function: Function, name: str, t: Any, x: Any) -> Any:
    """x as ctypes takes it."""
    if not isinstance(t, Pointer):
        return arguments.number(name, t, x).item()
    if isinstance(x, int):
        return x
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array of {t.element.numpy}, not {_kind(x)}")
    arguments.array(name, t, x)
    line = written(function).get(name)
    if line is not None and not x.flags.writeable:
        raise ValueError(f"{name} is read-only, and {function.name} writes it at {line}\n    {line.text}")
    return x.ctypes.data


def _kind(x: Any) -> str:
    return f"{type(x).__name__} of {x.dtype}" if hasattr(x, "dtype") else type(x).__name__


def _on_gpu(function: Function, args: Sequence[Any], grid: tuple[int, int, int]) -> None:
    from tilewright.runtime.gpu import arrays

    platform, device, stream, looks = arrays.CUDA, None, 0, []
    given: list[Any] = []
    for (name, value), x in zip(function.params, args):
        if isinstance(value.type, Texture):
            raise TypeError(f"{name} is a {value.type}, which only kernels made by tilewright.compile can have")
        if not isinstance(value.type, (Pointer, TensorMap)):
            given.append(arguments.number(name, value.type, x).item())
            continue
        if isinstance(x, int) and isinstance(value.type, Pointer):
            given.append(x)
            continue
        library = arrays.library_of(x)
        if library is None:
            raise TypeError(f"{name} must be an array in a GPU's memory, not {_kind(x)}")
        if device is None:
            platform = library.platform
            device = platform.driver.device(library.device(x))
            stream = library.stream(x, device.index)
        looks.append(library.look(x, name, stream, name in written(function)))  # which keep what they look at
        if isinstance(value.type, TensorMap):
            described = TiledMap.of(value.type.tile, looks[-1].shadow)
            given.append(platform.driver.tensor_map(described, looks[-1].pointer))
            continue
        arguments.array(name, value.type, looks[-1].shadow)
        given.append(looks[-1].pointer)
    driver = platform.driver
    device = device or driver.device()
    code = _gpu_code(function, device.target)
    driver.Prepared(driver.load(code.image, device).function(code.manifest), grid, given)(stream)


@cache
def _gpu_code(function: Function, target: Any) -> Any:
    from tilewright.compiler import artefact

    return artefact.compiled(function, target)
