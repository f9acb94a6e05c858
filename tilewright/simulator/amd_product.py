"""A whole product by a kernel for one of AMD's GPUs, its arguments found by the names of its parameters."""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.formats import Quantized
from tilewright.simulator.launches import _rows
from tilewright.simulator.machine import SECTOR, Machine
from tilewright.simulator.memory import Memory, uninitialised
from tilewright.simulator.report import Report

Array = NDArray[Any]


def multiply(kernel: Any, a: Any, b: Any, out: Array | None, alpha: float, beta: float) -> Report:
    """alpha * A @ B + beta * out by a compiled kernel (compiler.amd_gemm); `result` of the report is the product.

    a, b    arrays [m, k] and [k, n] of the problem's formats; of a block-scaled one Quantized, blocks along k
    out     [m, n], or None for a new one. TypeError and ValueError for anything else.
    """
    p = kernel.problem
    if beta and out is None:
        raise ValueError(f"beta = {beta} needs an out to multiply")
    dtype = formats.FORMATS[p.out].dtype
    for name, x, shape in ("a", a, (p.m, p.k)), ("b", b, (p.k, p.n)), ("out", out, (p.m, p.n)):
        if x is not None:
            _check(name, x, shape, getattr(p, name))
    c = np.empty((p.m, p.n), dtype) if out is None else out
    report = Report(SECTOR)
    if not kernel.launches:
        c[...] = c * dtype.type(beta) if beta else 0
        report.result = c
        return report
    target, ldc = _rows(c)
    values: dict[str, Any] = {"m": p.m, "n": p.n, "k": p.k, "alpha": alpha, "beta": beta, "ldc": ldc}
    arrays: dict[str, Any] = {"c": target if beta else uninitialised(target)}
    if isinstance(a, Quantized):
        values["k"] = a.scales.shape[-1] * a.format.block
        for name, x in ("a", a), ("b", b):
            for key, part in (name, x.elements), (f"scale_{name}", x.scales):
                arrays[key] = np.ascontiguousarray(part).view(np.int8)
                values[f"ld{name}" if key == name else f"ld_{key}"] = part.shape[-1]
    else:
        for name, x, letter in zip("ab", (a, b), p.layout):
            rows, values[f"ld{name}"] = _rows(x.T if letter == "t" else x)
            arrays[name] = rows.view(np.int8) if rows.itemsize == 1 else rows
    memory = Memory()
    (launch,) = kernel.launches
    if launch.workspace:
        arrays["workspace"] = uninitialised(np.zeros(launch.workspace, np.uint8))
        arrays["counters"] = np.zeros(launch.counters, np.uint8)
    at = {name: memory.address(x, name) for name, x in arrays.items()}
    args = [at[name] if name in at else values[name] for name, _ in launch.function.params]
    Machine(launch.function, memory, {}, report, target=kernel.target.name).run_grid(args, launch.grid)
    if target is not c:
        c[...] = target
    report.result = c
    return report


def _check(name: str, x: Any, shape: tuple[int, int], format: str) -> None:
    if format in formats.BLOCK_FORMATS:
        if not isinstance(x, Quantized):
            raise TypeError(f"{name} must be Quantized ({format}), not {type(x).__name__}")
        if x.format.name != format or x.shape != shape or x.axis != (-1 if name == "a" else -2):
            raise ValueError(f"{name} must be {format} of shape {shape} with blocks along k, not {x!r}")
        return
    dtype = formats.FORMATS[format].dtype
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be an array, not {type(x).__name__}")
    if x.shape != shape or x.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} of shape {shape}, not {x.dtype} of {x.shape}")
