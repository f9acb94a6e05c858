"""The engine for arrays on AMD's GPUs: see engine.py.

A kernel multiplies operands of two formats, adds up in a third and stores a fourth: `takes` chooses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.formats.quantized import Quantized
from tilewright.plans import amd as plans
from tilewright.problem import Gemm
from tilewright.rules.arguments import F32
from tilewright.runtime.gpu import engine
from tilewright.runtime.gpu.operands import format_of
from tilewright.runtime.gpu.recipe import AMD

Array = NDArray[Any]
FP8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")


class _Engine(engine.Engine):
    compiler = "tilewright.compiled.amd"

    def takes(self, on: Any, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        format_a, format_b = multiplied(format_of(a.dtype), format_of(b.dtype), format_of(compute), on)
        sums = plans.SUMS.get(format_a, "f32")
        exact = c is None or getattr(c, "dtype", None) == result  # else c would be rounded before it is added
        kept = format_of(result) if exact and format_of(result) in plans.RESULTS[sums] else sums
        return tuple(formats.FORMATS[name].dtype for name in (format_a, format_b, kept))

    # ---- two block-scaled matrices in the host's memory

    def scaled_result(self, result: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in which `multiply_scaled` stores products that become `result`."""
        return result if format_of(result) in plans.RESULTS["f32"] else F32

    def multiply_scaled(self, a: Quantized, b: Quantized, c: Array, alpha: float, beta: float, plan: Any) -> None:
        """c = alpha * a @ b + beta * c by the plan, with blocks along k in both: on the first GPU."""
        m, n = c.shape
        problem = Gemm(m, n, a.shape[1], a.format.name, b.format.name, format_of(c.dtype), "nt")
        kernel = self.compile(problem, AMD.driver.device(0).target, plan)
        AMD.call(kernel, a, b, c, alpha=alpha, beta=beta)


ENGINE = _Engine(AMD)


def multiplied(a: str, b: str, compute: str, on: Any) -> tuple[str, str]:
    """The formats in which operands of these are multiplied on a GPU: their own, if matrix instructions take them and
    add up in `compute`; else the narrowest that holds both. TypeError if there is none."""
    rates, known_formats = plans.RATES[on.target.name], formats.FORMATS
    if {a, b} <= rates.keys() and (a == b or {a, b} <= set(FP8)) and plans.SUMS.get(a, "f32") == compute:
        return a, b
    meeting = formats.promote(known_formats[a], known_formats[b]).name
    for name in (meeting, "f16" if {a, b} <= {"f16", *FP8} else compute, compute):
        if name in rates and plans.SUMS.get(name, "f32") == compute:
            return name, name
    raise TypeError(f"a is {known_formats[a].numpy_name} and b is {known_formats[b].numpy_name}, which {on.name} does "
                    f"not multiply: {on.target.name} has matrix instructions for {', '.join(rates)}")
