"""The engine for arrays in GPUs' memory, completed by recipes and drivers: what product.py asks of a maker.

nvidia.py and amd.py say what differs: the formats that kernels take, and how a plan is found for operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.compiler import artefact
from tilewright.plans import gpu as plans
from tilewright.problem import Gemm
from tilewright.runtime.gpu import fast_path, operands, product
from tilewright.runtime.gpu.launch import Function, Kept
from tilewright.runtime.gpu.operands import leading
from tilewright.runtime.gpu.product import address, letter
from tilewright.runtime.gpu.recipe import Maker, Recipe

Array = NDArray[Any]
MOST_RECIPES, MOST_COPIES = 1024, 1024
COPY = "tilewright.kernels.gpu.copy:emit_copy"


class Engine(product.Engine):
    """`matmul` for arrays on the GPUs of one maker."""

    def __init__(self, maker: Maker) -> None:
        super().__init__(maker.platform)
        self.maker = maker
        self.recipes: Kept[Recipe] = Kept(MOST_RECIPES)
        self.copy_kernels: Kept[Function] = Kept(MOST_COPIES)

    def run(self, device: int, stream: int, plan: Any) -> Run:
        return Run(self, self.maker.driver.device(device), stream, plan)

    def forget(self) -> None:
        """Choose plans anew."""
        self.recipes.forget()
        fast_path.forget()

    def recipe(self, on: Any, a: Array, b: Array, c: Array, plan: Any) -> Recipe:
        """For c = alpha * a @ b + beta * c with operands like these, c by rows."""
        (m, k), n, letters = a.shape, b.shape[1], letter(a) + letter(b)
        problem = Gemm(m, n, k, format_of(a.dtype), format_of(b.dtype), format_of(c.dtype), letters)
        rows = a if letters[0] == "n" else a.T, b if letters[1] == "n" else b.T, c
        if plan is None:
            plan = plans.choose(operands.shape_of(problem, on.target, a, b, c), on.target)
        kernel = self.compiled(problem, on.target, plan)
        operands.check(kernel, (a, b, c))
        return Recipe(self.maker.driver, kernel, on, *(leading(x) or 1 for x in rows))

    def copy_kernel(self, on: Any, source: str, target: str) -> Function:
        """What copies a matrix from one format to another."""

        def loaded() -> Function:
            code = artefact.code(COPY, on.target, SOURCE=source, TARGET=target, WARP=on.target.warp)
            function: Function = self.maker.driver.load(code.image, on).function(code.manifest)
            return function

        return self.copy_kernels.get((on.index, source, target), loaded)

    # ---- a maker's own

    def takes(self, on: Any, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        """As product.Run.takes, on this device."""
        raise NotImplementedError

    def compiled(self, problem: Gemm, target: Any, plan: Any) -> Any:
        """The kernel of this plan."""
        raise NotImplementedError


class Run(product.Run):
    """One call."""

    def __init__(self, engine: Engine, on: Any, stream: int, plan: Any) -> None:
        super().__init__(on, stream, plan)
        self.engine, self.driver = engine, engine.maker.driver

    def takes(self, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        return self.engine.takes(self.on, a, b, c, compute, result)

    def block(self, size: int) -> Any:
        return self.driver.Block(self.on, size, self.stream)

    def upload(self, source: Array) -> int:
        self.blocks.append(self.driver.upload(self.on, source, None))
        pointer: int = self.blocks[-1].pointer
        return pointer

    def download(self, source: Array, target: Array) -> None:
        self.synchronize()
        self.driver.download(next(block for block in self.blocks if block.pointer == address(source)), target)

    def fill(self, at: int, word: int) -> None:
        with self.on.current():
            self.driver.fill(at, word, 4, self.stream)

    def copy_matrix(self, source: Array, target: Array, scale: float) -> None:
        function = self.engine.copy_kernel(self.on, format_of(source.dtype), format_of(target.dtype))
        (rows, columns), (x, y) = target.shape, function.threads  # lanes go along the columns
        (rss, css), (rst, cst) = ([s // x.itemsize for s in x.strides] for x in (source, target))
        whole = any(p.name == "scale" and p.type.startswith("i") for p in function.parameters)
        args = {"rows": rows, "columns": columns, "scale": int(scale) if whole else scale, "source": address(source),
                "rss": rss, "css": css, "target": address(target), "rst": rst, "cst": cst}
        self.driver.Prepared(function, (-(-columns // x), min(-(-rows // y), 65535)), args)(self.stream)

    def recipe(self, a: Array, b: Array, c: Array) -> Recipe:
        key = (self.on.index, *a.shape, b.shape[1], a.dtype, b.dtype, c.dtype, a.strides, b.strides, c.strides,
               operands.alignment(a, b, c), self.plan)
        return self.engine.recipes.get(key, lambda: self.engine.recipe(self.on, a, b, c, self.plan))

    def synchronize(self) -> None:
        self.driver.synchronize(self.on, self.stream)


def format_of(dtype: np.dtype[Any]) -> str:
    return formats.get(dtype).name
