"""The engine for arrays on CUDA devices: what product.py asks of a maker, in CUDA's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.compiled.cpu import compile
from tilewright.compiler import artefact
from tilewright.kernels.gpu import copy
from tilewright.problem import Gemm
from tilewright.rules.arguments import F32, F64
from tilewright.runtime.cuda import module
from tilewright.runtime.cuda.driver import call
from tilewright.runtime.cuda.memory import Block
from tilewright.runtime.cuda.module import Device, Prepared
from tilewright.runtime.cuda.stream import synchronize
from tilewright.runtime.gpu import fast_path, operands
from tilewright.runtime.gpu.arrays import CUDA
from tilewright.runtime.gpu.nvidia_recipe import Recipe
from tilewright.runtime.gpu.operands import leading
from tilewright.runtime.gpu.product import Engine, Run, address, letter

Array = NDArray[Any]
FORMAT = {F32: "f32", F64: "f64"}
MOST_RECIPES = 1024
WIDEST = 16  # bytes that a thread moves at once; what addresses and strides are multiples of decides how kernels load


class _Cuda(Engine):
    def run(self, device: int, stream: int, plan: Any) -> _Run:
        return _Run(module.device(device), stream, plan)


class _Run(Run):
    def takes(self, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        return compute, compute, compute

    def block(self, size: int) -> Block:
        return Block(self.on, size, self.stream)

    def fill(self, at: int, word: int) -> None:
        with self.on.current():
            call("cuMemsetD32Async", at, word, 1, self.stream)

    def upload(self, source: Array, at: int) -> None:
        with self.on.current():
            call("cuMemcpyHtoDAsync", at, source.ctypes.data, source.nbytes, self.stream)
        self.synchronize()  # pageable memory has been read when the call returns; pinned memory may be read later

    def download(self, at: int, target: Array) -> None:
        with self.on.current():
            call("cuMemcpyDtoHAsync", target.ctypes.data, at, target.nbytes, self.stream)
        self.synchronize()

    def copy_matrix(self, source: Array, target: Array, scale: float) -> None:
        rows, columns = target.shape
        function = _copy_function(self.on, FORMAT[source.dtype], FORMAT[target.dtype])
        strides = [[s // x.itemsize for s in x.strides] for x in (source, target)]
        arguments = (rows, columns, scale, address(source), *strides[0], address(target), *strides[1])
        Prepared(function, copy.grid(rows, columns), (copy.COLUMNS, copy.ROWS), 0, arguments)(self.stream)

    def recipe(self, a: Array, b: Array, c: Array) -> Recipe:
        key = (self.on.index, *a.shape, b.shape[1], c.dtype, a.strides, b.strides, c.strides,
               _alignment(*map(address, (a, b, c))), self.plan)
        found = _recipes.get(key)
        if found is None:
            if len(_recipes) >= MOST_RECIPES:
                _recipes.clear()
            found = _recipes[key] = _recipe(self.on, a, b, c, self.plan)
        return found

    def synchronize(self) -> None:
        synchronize(self.on, self.stream)


ENGINE = _Cuda(CUDA)


# ---- recipes


_recipes: dict[tuple[Any, ...], Recipe] = {}


def forget() -> None:
    """Choose plans anew."""
    _recipes.clear()
    fast_path.forget()


def _recipe(on: Device, a: Array, b: Array, c: Array, plan: Any) -> Recipe:
    (m, k), n = a.shape, b.shape[1]
    format = FORMAT[c.dtype]
    problem = Gemm(m, n, k, format, layout=letter(a) + letter(b))
    ld = [leading(x if by_rows else x.T) for x, by_rows in ((a, letter(a) == "n"), (b, letter(b) == "n"), (c, True))]
    target: Any = on.target
    kernel: Any = compile(problem, target, plan)
    vector = operands.together(a, b, c)
    if plan is None and operands.moved_at_once(kernel) > vector:
        kernel = compile(problem, target, replace(kernel.plan, vector=vector))
    operands.lies(kernel, vector)
    return Recipe(kernel, on, *(x or 1 for x in ld))


def _alignment(*numbers: int) -> int:
    """The largest power of two, up to what a thread moves at once, that divides them all."""
    together = WIDEST
    for x in numbers:
        together |= x
    return together & -together


_copies: dict[tuple[int, str, str], module.CudaFunction] = {}


def _copy_function(on: Device, source: str, target: str) -> module.CudaFunction:
    key = int(on.context), source, target
    found = _copies.get(key)
    if found is None:
        code = artefact.code("tilewright.kernels.gpu.copy:emit_copy", on.target, source, target)
        found = _copies[key] = module.load(code.text, on).function(f"copy_{source}_{target}")
    return found
