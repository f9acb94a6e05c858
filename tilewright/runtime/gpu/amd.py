"""The engine for arrays on AMD's GPUs: what product.py asks of a maker, in HIP's terms and by AMD's plans.

A kernel multiplies operands of two formats, adds up in a third and stores a fourth: `_Run.takes` chooses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.compiled.amd import compile
from tilewright.compiler import artefact
from tilewright.formats.quantized import Quantized
from tilewright.kernels.gpu import copy
from tilewright.plans import amd as plans
from tilewright.problem import Gemm
from tilewright.rules.arguments import F32
from tilewright.runtime.gpu import amd_recipe, fast_path
from tilewright.runtime.gpu.amd_recipe import Recipe, aligned
from tilewright.runtime.gpu.arrays import ROCM
from tilewright.runtime.gpu.operands import leading
from tilewright.runtime.gpu.product import Engine, Run, address, letter
from tilewright.runtime.hip import memory, module
from tilewright.runtime.hip.driver import api, call
from tilewright.runtime.hip.module import Device, HipFunction, Prepared

Array = NDArray[Any]
MOST_RECIPES = 1024
FP8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")


class _Amd(Engine):
    def run(self, device: int, stream: int, plan: Any) -> _Run:
        return _Run(module.device(device), stream, plan)

    # ---- two block-scaled matrices in the host's memory

    def scaled_result(self, result: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in which `multiply_scaled` stores products that become `result`."""
        return result if _format(result) in plans.RESULTS["f32"] else F32

    def multiply_scaled(self, a: Quantized, b: Quantized, c: Array, alpha: float, beta: float, plan: Any) -> None:
        """c = alpha * a @ b + beta * c by the plan, with blocks along k in both: on the first GPU."""
        m, n = c.shape
        problem = Gemm(m, n, a.shape[1], a.format.name, b.format.name, _format(c.dtype), "nt")
        amd_recipe.call(compile(problem, module.device(0).target, plan), a, b, c, alpha=alpha, beta=beta)


class _Run(Run):
    def takes(self, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        format_a, format_b = multiplied(_format(a.dtype), _format(b.dtype), _format(compute), self.on)
        sums = plans.SUMS.get(format_a, "f32")
        exact = c is None or getattr(c, "dtype", None) == result  # else c would be rounded before it is added
        kept = _format(result) if exact and _format(result) in plans.RESULTS[sums] else sums
        return tuple(formats.FORMATS[name].dtype for name in (format_a, format_b, kept))

    def block(self, size: int) -> memory.Block:
        return memory.Block(self.on, size, self.stream)

    def fill(self, at: int, word: int) -> None:
        with self.on.current():
            memory.fill(at, word, 4, self.stream)

    def upload(self, source: Array, at: int) -> None:
        with self.on.current():
            call("hipMemcpy", at, source.ctypes.data, source.nbytes, api().hipMemcpyKind.hipMemcpyHostToDevice)

    def download(self, at: int, target: Array) -> None:
        self.synchronize()
        with self.on.current():
            call("hipMemcpy", target.ctypes.data, at, target.nbytes, api().hipMemcpyKind.hipMemcpyDeviceToHost)

    def copy_matrix(self, source: Array, target: Array, scale: float) -> None:
        rows, columns = target.shape
        names = _format(source.dtype), _format(target.dtype)
        function = _copy_function(self.on, *names)
        strides = [[s // x.itemsize for s in x.strides] for x in (source, target)]
        factor = scale if copy.computed_in(*names).is_float else int(scale)
        args = (rows, columns, factor, address(source), *strides[0], address(target), *strides[1])
        Prepared(function, copy.grid(rows, columns), args)(self.stream)

    def recipe(self, a: Array, b: Array, c: Array) -> Recipe:
        straight = aligned(a, b)
        key = (self.on.index, *a.shape, b.shape[1], a.dtype, b.dtype, c.dtype, a.strides, b.strides, c.strides,
               straight, self.plan)
        found = _recipes.get(key)
        if found is None:
            if len(_recipes) >= MOST_RECIPES:
                _recipes.clear()
            found = _recipes[key] = _recipe(self.on, a, b, c, straight, self.plan)
        return found

    def synchronize(self) -> None:
        module.synchronize(self.on, self.stream)


ENGINE = _Amd(ROCM)


def multiplied(a: str, b: str, compute: str, on: Device) -> tuple[str, str]:
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


# ---- recipes


_recipes: dict[tuple[Any, ...], Recipe] = {}


def forget() -> None:
    """Choose plans anew."""
    _recipes.clear()
    fast_path.forget()


def _recipe(on: Device, a: Array, b: Array, c: Array, straight: bool, plan: Any) -> Recipe:
    (m, k), n = a.shape, b.shape[1]
    letters = letter(a) + letter(b)
    problem = Gemm(m, n, k, _format(a.dtype), _format(b.dtype), _format(c.dtype), letters)
    ld = [leading(x if by_rows else x.T) for x, by_rows in ((a, letters[0] == "n"), (b, letters[1] == "n"), (c, True))]
    target = on.target
    kernel = compile(problem, target, plan)
    if plan is None and kernel.plan.copy == "direct" and not straight:
        fitting = (p for p in plans.ranked(problem, target) if p.copy != "direct")
        kernel = compile(problem, target, next(fitting))
    amd_recipe.lies(kernel, (a, b))
    return Recipe(kernel, on, *(x or 1 for x in ld))


_copies: dict[tuple[int, str, str], HipFunction] = {}


def _copy_function(on: Device, source: str, target: str) -> HipFunction:
    key = on.index, source, target
    found = _copies.get(key)
    if found is None:
        code = artefact.code("tilewright.kernels.gpu.copy:emit_copy", on.target, SOURCE=source, TARGET=target, WARP=64)
        found = _copies[key] = module.load(code.image, on).function(code.manifest)
    return found


def _format(dtype: np.dtype[Any]) -> str:
    return formats.get(dtype).name
