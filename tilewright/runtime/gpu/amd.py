"""The engine for arrays on AMD's GPUs: see engine.py.

A kernel multiplies operands of two formats, adds up in a third and stores a fourth: `takes` chooses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import forks, formats
from tilewright.formats.quantized import Quantized
from tilewright.plans import amd as plans
from tilewright.problem import Gemm
from tilewright.rules import arguments
from tilewright.runtime.gpu import engine
from tilewright.runtime.gpu.arrays import HIP, DeviceArray
from tilewright.runtime.gpu.engine import format_of
from tilewright.runtime.gpu.recipe import AMD

Array = NDArray[Any]
FP8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")


class _Engine(engine.Engine):
    def takes(self, on: Any, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        format_a, format_b = multiplied(format_of(a.dtype), format_of(b.dtype), format_of(compute), on)
        sums = plans.SUMS.get(format_a, "f32")
        exact = c is None or getattr(c, "dtype", None) == result  # else c would be rounded before it is added
        kept = format_of(result) if exact and format_of(result) in plans.RESULTS[sums] else sums
        return tuple(formats.FORMATS[name].dtype for name in (format_a, format_b, kept))

    def compiled(self, problem: Gemm, target: Any, plan: Any) -> Any:
        return compile(problem, target, plan)


ENGINE = _Engine(AMD)
matmul, forget = ENGINE.matmul, ENGINE.forget


def compile(problem: Gemm, target: Any, plan: Any = None) -> Any:
    """tilewright.compiled.amd.compile, which is imported by the first product that needs it."""
    return forks.imported("tilewright.compiled.amd").compile(problem, target, plan)


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


# ---- for operands in the host's memory, if somebody asks for it by a plan


def copied(a: Any, b: Any, out_in: Any = None, out_dtype: Any = None, alpha: Any = 1, beta: Any = 0, c: Any = None,
           trans_a: Any = False, trans_b: Any = False, threads: Any = None, plan: Any = None,
           out_name: str = "out") -> Any:
    """matmul for NumPy arrays and Quantized operands on the first GPU: they are copied there, and the result back."""
    if isinstance(a, Quantized) or isinstance(b, Quantized):
        return _quantized(a, b, out_in, out_dtype, alpha, beta, c, trans_a or trans_b, plan, out_name)
    on, out = HIP.driver.device(0), arguments.output(out_in, out_name)
    a, b = (arguments.operand(x, name) for x, name in ((a, "a"), (b, "b")))
    added = c if c is None or isinstance(c, (bool, int, float, np.number)) else arguments.operand(c, "c", least=0)
    there = [_there(on, x) if isinstance(x, np.ndarray) else x for x in (a, b, added)]
    to = None if out is None else there[2] if c is out_in else DeviceArray(HIP, on, out.shape, out.dtype)
    found = matmul(there[0], there[1], to, out_dtype, alpha, beta, there[2], trans_a, trans_b, threads, plan, out_name)
    result = np.empty(found.shape, found.dtype)
    HIP.driver.download(found.memory, result)
    if out is None:
        return arguments.wrap(result, a, b)
    np.copyto(out, result)
    return out_in[0] if isinstance(out_in, tuple) else out_in


def _there(on: Any, x: Array) -> DeviceArray:
    array = DeviceArray(HIP, on, x.shape, x.dtype)
    array.memory = HIP.driver.upload(on, x)
    return array


def _quantized(a: Any, b: Any, out_in: Any, out_dtype: Any, alpha: Any, beta: Any, c: Any, trans: Any, plan: Any,
               out_name: str) -> Any:
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Quantized) or x.ndim != 2:
            raise TypeError(f"{name} must be a Quantized matrix, as the other operand is one and the plan is for an "
                            f"AMD GPU, not {x!r}" if isinstance(x, Quantized) else
                            f"{name} must be Quantized, as the other operand is, not {type(x).__name__}")
    if trans:
        raise ValueError("trans_a and trans_b must be False with Quantized operands and a plan for an AMD GPU, whose "
                         "kernels read both along k")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a and b must agree in k, but a has {a.shape[1]} columns and b has {b.shape[0]} rows")
    alpha, beta = (arguments.factor(x, name, arguments.F32) for x, name in ((alpha, "alpha"), (beta, "beta")))
    if beta and c is None:
        raise ValueError(f"beta = {beta} needs a c to multiply")
    format = formats.get("f32" if out_dtype is None else out_dtype, "out_dtype")
    out, shape = arguments.output(out_in, out_name), (a.shape[0], b.shape[1])
    if out is not None and out.shape != shape:
        raise ValueError(f"{out_name} must have the result's shape {shape}, but its shape is {out.shape}")
    if out is not None:
        arguments.check_cast(format.dtype, out.dtype, out_name)
    problem = Gemm(*shape, a.shape[1], a.format.name, b.format.name, format.name, "nt")
    kernel = compile(problem, HIP.driver.device(0).target, plan)
    product = np.broadcast_to(c, shape).astype(format.dtype) if beta else np.empty(shape, format.dtype)
    AMD.call(kernel, a, b, product, alpha=alpha, beta=beta)
    if out is None:
        return product
    np.copyto(out, product, casting="same_kind")
    return out_in[0] if isinstance(out_in, tuple) else out_in
