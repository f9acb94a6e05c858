"""`tilewright.simulate`: a whole product by a compiled kernel, on NumPy.

`run_cpu` has a CPU kernel's product, `launches` a GPU kernel's.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.formats.operands import check_operand
from tilewright.ir.program import Function
from tilewright.simulator.launches import Launches
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.report import Report
from tilewright.simulator.run_cpu import CpuProduct
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, coerce

Array = NDArray[Any]


def simulate(kernel: Any, *args: Any, out: Array | None = None, alpha: float = 1.0, beta: float = 0.0,
             grid: int | Sequence[int] | None = None, target: GpuTarget | AmdTarget | str | None = None) -> Report:
    """Run a kernel in NumPy, and report the traffic and instructions of each of its lines; a Fault if it is incorrect.

    simulate(kernel, a, b[, out])               what `compile` made, for a CPU or a GPU: alpha * A @ B + beta * out as
                                                `kernel(a, b, out)` computes it, to the last bit; `report.result`.
                                                a and b: arrays [m, k] and [k, n] of the problem's formats; of
                                                a block-scaled one Quantized, with blocks along k
    simulate(function, *args, grid=(x, y, z))   a kernel as it is recorded, on arguments in the order of its parameters;
                                                with a `target`, a GPU or its name, the report has the
                                                occupancy, and counts conflicts over that chip's banks

    Threads, warps and CTAs run as on the machine, and a race between them is a Fault, as is any access outside the
    arrays or of unwritten elements. For any target, on any machine. For problems of a few hundred rows and
    columns: a CPU kernel takes about a second for a million multiply-adds, a GPU kernel for some ten million.
    """
    if isinstance(kernel, Function):
        if out is not None or (alpha, beta) != (1.0, 0.0):
            raise TypeError("a recorded function takes its arguments in order: out, alpha and beta are among them")
        return simulate_function(kernel, args, grid, None if target is None else coerce(target, GpuTarget | AmdTarget))
    if not hasattr(kernel, "problem"):
        raise TypeError("kernel must be what tilewright.compile made, or a recorded function, not "
                        f"{type(kernel).__name__} {kernel!r}")
    if grid is not None or target is not None:
        raise TypeError("grid and target are for recorded functions: a compiled kernel has its own")
    if not 2 <= len(args) <= 3 or (len(args) == 3 and out is not None):
        raise TypeError(f"a compiled kernel is simulated on a, b and optionally out, not on {len(args)} arrays"
                        + " and out" * (out is not None))
    a, b, out = (*args, out)[:3]
    return simulate_kernel(kernel, a, b, out, alpha, beta)


def simulate_kernel(kernel: Any, a: Any, b: Any, out: Array | None = None, alpha: float = 1.0,
                    beta: float = 0.0) -> Report:
    """A product by a compiled kernel: see `simulate`."""
    p = kernel.problem
    if out is None:
        if beta:
            raise ValueError(f"out must be given if beta is not 0, and beta is {beta}")
        out = np.empty(p.shapes["out"], formats.FORMATS[p.out].dtype)
    for name, x in ("a", a), ("b", b), ("out", out):
        check_operand(name, x, getattr(p, name), p.shapes[name])
    on_cpu = isinstance(kernel.target, CpuTarget)
    product = CpuProduct(kernel, alpha, beta) if on_cpu else Launches(kernel, alpha, beta)
    for x, y, z in zip(a, b, out) if p.batch != 1 and on_cpu else ((a, b, out),):       # GPUs have one launch for all
        product.run(x, y, z)
    product.report.result = out
    return product.report


def simulate_function(function: Function, args: Sequence[Any], grid: int | Sequence[int] | None,
                      target: GpuTarget | AmdTarget | None) -> Report:
    """A kernel as it is recorded, on its arguments in order: see `simulate`."""
    report = Machine(function, AddressSpace(), {}, target=target.name if target else None).run_grid(args, grid)
    if target is not None:
        from tilewright.simulator.occupancy import assembled
        report.occupancy = assembled(function, target)
    return report
