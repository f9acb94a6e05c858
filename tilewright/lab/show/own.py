"""Kernels of users: FILE.py:KERNEL with shapes of arrays and numbers, as `tilewright loops` takes them."""
from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import simulator
from tilewright.ir import Function, Pointer
from tilewright.ir.lines import callers
from tilewright.lab.show.runs import Launch
from tilewright.targets import CpuTarget, Target


def named(text: str, what: str) -> Any:
    """What a file of Python has by a name, FILE.py:NAME. ValueError where there is none."""
    path, _, name = text.rpartition(":")
    if not path or not Path(path).is_file():
        raise ValueError(f"FILE.py:{what} must name a file that is there, not {text!r}")
    value = runpy.run_path(path).get(name)
    if value is None:
        raise ValueError(f"{path} has no {name}")
    return value


def of_file(text: str, arguments: Sequence[str], target: Target, grid: str | None) -> Launch:
    """The launch of an emitter, or what `tilewright.kernel` made of one. ValueError for what cannot be shown."""
    kernel, name = named(text, "KERNEL"), text.rpartition(":")[2]
    with callers():
        emit = getattr(kernel, "emit", kernel)
        function = kernel.function(target) if hasattr(kernel, "function") and emit is kernel else emit()
    if not isinstance(function, Function):
        raise ValueError(f"{name} must return the recorded kernel, k.function, not {function!r}")
    return launch(function, arguments, target, tuple(int(x) for x in grid.split(",")) if grid else (1, 1))


def launch(function: Function, arguments: Sequence[str], target: Target, grid: tuple[int, ...]) -> Launch:
    """A recorded kernel on arrays of these shapes: what it reads first is A, what it reads else is B if C = A B or
    A B^T, and what it writes is C."""
    if len(arguments) != len(function.params):
        names = ", ".join(f"{name} ({value.type})" for name, value in function.params)
        raise ValueError(f"{function.name} takes {names}: give {len(function.params)} arguments, shapes such as 64x32 "
                         f"for arrays, not {len(arguments)}")
    shapes: dict[str, tuple[int, int]] = {}
    numbers: dict[str, Any] = {}
    for (name, value), text in zip(function.params, arguments):
        if isinstance(value.type, Pointer):
            extents = [int(x) for x in text.split("x") if x]
            if not 1 <= len(extents) <= 2:
                raise ValueError(f"{name} is an array: give its shape, such as 64x32 or 128x, not {text!r}")
            shapes[name] = (1, *extents) if len(extents) == 1 else (extents[0], extents[1])    # type: ignore[assignment]
        else:
            numbers[name] = float(text) if value.type.is_float else int(text)
    kinds = {name: value.type.element.numpy for name, value in function.params if name in shapes}

    def call(arrays: dict[str, Any]) -> Any:
        args = [numbers[name] if name in numbers else arrays[name] for name, _ in function.params]
        return simulator.run(function, *args, grid=None if function.threads is None else grid, target=target.name)
    draw = np.random.default_rng(1)
    arrays = {name: draw.integers(-4, 5, shape).astype(kinds[name]) for name, shape in shapes.items()}
    events: list[Any] = []
    with simulator.observed(events.append):
        call({name: x.copy() for name, x in arrays.items()})
    touched = [(e.what if e.what != "copy" else e.name, e.array) for e in events if e.array in shapes]
    read, written = (list(dict.fromkeys(name for verb, name in touched if verb == what)) for what in ("load", "store"))
    if len(written) != 1 or not (read := [name for name in read if name not in written]):
        raise ValueError(f"{function.name} reads {', '.join(read) or 'no array'} and writes "
                         f"{', '.join(written) or 'none'}: what is shown are kernels that write one array, from others")
    a, c, rest = read[0], written[0], read[1:]
    (rows, depth), (m, n) = shapes[a], shapes[c]
    b, turned = next(((name, turn) for name in rest for turn in (False, True)
                      if (shapes[name][::-1] if turn else shapes[name]) == (depth, n) and rows == m), ("", False))
    others = {name: x for name, x in arrays.items() if name not in (a, b, c)}

    def run(x: Any, y: Any, z: Any) -> Any:
        given = dict(others) | {a: np.asarray(x, kinds[a]), c: z}
        if b:
            given[b] = np.ascontiguousarray((y.T if turned else y).astype(kinds[b]))
        return call(given)
    gpu = not isinstance(target, CpuTarget) and function.threads is not None
    return Launch((m, n, depth), (kinds[a], kinds[b or a], kinds[c]), (a, b or "-", c), [function], run, target.name,
                  function.threads if gpu else None, function.warp if gpu else 1, grid,
                  chosen=dict(numbers.items()), rows=rows)
