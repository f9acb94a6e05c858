"""Compile a recorded function for this machine and call it: the way to run a kernel of your own.

    run(function, n, x, y, z)                       # a CPU function on NumPy arrays
    run(function, n, x, y, z, grid=(4,))            # the CTAs of a GPU on arrays in its memory

The arguments are those of simulator.run, which runs the same function where every access is checked.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright import forks, targets
from tilewright.ir import Function, Pointer, TensorMap, Texture, arguments
from tilewright.ir.program import written
from tilewright.ir.vectors import ctas
from tilewright.runtime import repeats
from tilewright.runtime.gpu import arrays
from tilewright.targets.tensor_maps import TiledMap


def run(function: Function, *args: Any, grid: int | Sequence[int] | None = None) -> Any:
    """Call `function` with numbers for its number parameters and arrays, or addresses as int, for its pointers.

    A CPU function of `kernels.elementwise.each` runs on up to as many threads as `tilewright.get_num_threads()` says.

    What is recorded for the CTAs of a GPU is launched once for each CTA of `grid` ((x, y, z), fewer of them, or a
    number; unless given one, and of a kernel of `each` so many that each thread, or row, has a round), a CPU's block
    program once for each program of it, on the threads of the pool. A GPU's runs on the NVIDIA or AMD GPU that has the
    arrays and on the stream that their library (torch, CuPy, anything with DLPack or __cuda_array_interface__) works
    on, and may not be over when this returns.
    Nothing is copied or converted: arrays are contiguous and of the parameters' element types, and writable where the
    function writes; those for tensor maps may be views whose last dimension is contiguous. What the function does with
    them is not checked: run it in the simulator first. TypeError, ValueError or OverflowError for arguments that do not
    fit the parameters; RuntimeError if this machine cannot run the function.
    """
    arguments.recorded(function)
    if function.threads is not None and again(function, args, grid):
        return None
    from tilewright.runtime.cpu import calls

    extents = arguments.grid(function, grid)
    if function.programs:
        return calls.programs(function, args, extents)
    arguments.count(function, args)
    if function.threads is None:
        return calls.compiled(function).builtin(*args)
    return _on_gpu(function, args, None if grid is None and function.independent else extents, grid)


def _on_gpu(function: Function, args: Sequence[Any], grid: tuple[int, int, int] | None, asked: Any) -> None:
    """`asked`: the caller's `grid`."""
    from tilewright.runtime.cpu import calls

    key = _alike(function, args, asked)[1]
    platform, device, stream, looks, places = arrays.CUDA, None, 0, [], list[int]()
    given: list[Any] = []
    for place, ((name, value), x) in enumerate(zip(function.params, args)):
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
            raise TypeError(f"{name} must be an array in a GPU's memory, not {calls.kind(x)}")
        if device is None:
            platform = library.platform
            device = platform.driver.device(library.device(x))
            stream = library.stream(x, device.index)
        looks.append(library.look(x, name, stream, name in written(function)))  # which keep what they look at
        if isinstance(value.type, TensorMap):
            described = TiledMap.from_array(value.type.tile, looks[-1].shadow)
            given.append(platform.driver.tensor_map(described, looks[-1].pointer))
            key = None
            continue
        arguments.array(name, value.type, looks[-1].shadow)
        if over := looks[-1].pointer % function.align:
            raise ValueError(f"{name} must begin at a multiple of {function.align} bytes, as {function.name} is "
                             f"recorded for, and begins {over} bytes after one")
        places.append(place)
        given.append(looks[-1].pointer)
    driver = platform.driver
    device = device or driver.device()
    code = _gpu_code(function, device.target)
    extents = grid or (ctas(function, given) or _whole(function, device.target), 1, 1)
    prepared = driver.Prepared(driver.load(code.image, device).function(code.manifest), extents, given)
    prepared(stream)
    if key is not None and places:
        words = [prepared.function.parameters[place].offset // 8 for place in places]
        launch = forks.imported("tilewright.runtime.gpu.program").Kernel(prepared, words, range(len(words)))
        repeats.keep(key, repeats.Record(launch, (), (), device.index, None, None, ()), [given[i] for i in places])


atexit.register(repeats.forget)         # while the driver is there to be given the code back


def again(function: Function, args: Sequence[Any], grid: Any) -> bool:
    """Launch as a call like this one was launched, if there was one."""
    first, key, pointers = _alike(function, args, grid)
    record = None if key is None else repeats.records.get(key)
    if record is None:
        return False
    library: Any = arrays.library_of(first)
    record.run(pointers, (), (), 1, library.stream(first, record.device))
    if repeats.watch.ran is not None:
        repeats.watch.ran.append((record, pointers))
    return True


def _alike(function: Function, args: Sequence[Any], grid: Any) -> tuple[Any, Any, list[int]]:
    """(the first array, what calls have in common that differ in addresses only, addresses); None for the second where
    arrays are not plain."""
    what: list[Any] = [function, tuple(grid) if isinstance(grid, list) else grid]
    library, first, pointers = None, None, list[int]()
    for x in args:
        if isinstance(x, (int, float)):
            what.append(x or str(x))        # -0.0 is not 0.0
            continue
        if library is None:
            library, first = arrays.library_of(x), x
        plain = library.plain((x,))[0] if library is not None else None
        if plain is None or plain[1] % function.align:
            return first, None, pointers
        what.append(plain[0])
        pointers.append(plain[1])
    return first, tuple(what), pointers


def _whole(function: Function, target: Any) -> int:
    """CTAs that a GPU holds at once, if registers and shared memory allow."""
    assert function.threads is not None
    x, y = function.threads
    if isinstance(target, targets.GpuTarget):
        return int(target.sms) * max(target.threads_sm // (x*y), 1)
    return int(target.cus) * max(target.simds * target.waves_simd * target.warp // (x*y), 1)


@cache
def _gpu_code(function: Function, target: Any) -> Any:
    from tilewright.compiler import artefact

    return artefact.compiled(function, target)


def device_of(args: Sequence[Any]) -> Any:
    """The GPU that has the first of these arrays that is in a GPU's memory; None if none is."""
    for x in args:
        if not isinstance(x, (np.ndarray, np.generic, int, float)):
            library = arrays.library_of(x)
            if library is not None:
                return library.platform.driver.device(library.device(x))
    return None
