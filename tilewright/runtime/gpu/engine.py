"""The engine for arrays in GPUs' memory: matmul's semantics over shadows, each product by a recipe found in a table.

nvidia.py and amd.py say what differs: the formats that kernels take, and what compiles them. Arrays in the host's
memory are multiplied by `gemm`, which copies them to the first GPU.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.compiler import artefact
from tilewright.plans import gpu as plans
from tilewright.problem import Gemm
from tilewright.rules import arguments, shapes
from tilewright.rules.call import Call, Product, decide
from tilewright.runtime.gpu import fast_path, operands
from tilewright.runtime.gpu.arrays import Library
from tilewright.runtime.gpu.driver import Kept
from tilewright.runtime.gpu.launch import Function
from tilewright.runtime.gpu.operands import format_of, leading, letter
from tilewright.runtime.gpu.product import Run
from tilewright.runtime.gpu.recipe import Maker, Recipe

Array = NDArray[Any]
MOST_RECIPES, MOST_COPIES = 1024, 1024
COPY = "tilewright.kernels.gpu.copy:emit_copy"


class Engine:
    """`matmul` on the GPUs of one maker."""

    compiler: ClassVar[str]  # the module whose `compile` makes kernels; a process whose recipes are there needs none

    def __init__(self, maker: Maker) -> None:
        self.maker, self.platform = maker, maker.platform
        self.recipes: Kept[Recipe] = Kept(MOST_RECIPES)
        self.copy_kernels: Kept[Function] = Kept(MOST_COPIES)

    def run(self, device: int, stream: int, plan: Any) -> Run:
        return Run(self, self.maker.driver.device(device), stream, plan)

    def forget(self) -> None:
        """Choose plans anew."""
        self.recipes.forget()
        fast_path.forget()

    # ---- arrays in the GPUs' memory

    def repeated(self, a: Any, b: Any, out: Any, alpha: Any, plan: Any) -> Any:
        """alpha * a @ b, into out or a new array, if it differs from an earlier product in addresses only; else None,
        and nothing is done."""
        if not alpha or not _is_plain(alpha):
            return None
        asked = fast_path.signature(a, b, out, plan)
        return None if asked is None else fast_path.multiply(asked, a, out, float(alpha))

    def matmul(self, call: Call) -> Any:
        """The call's product, for arrays of one library on one device: the shapes, dtypes and errors of matmul.

        It runs on the stream that is the caller's at the moment, and the result is an array of the caller's library.
        c may be a number. `threads` has no meaning here.
        """
        arguments.refuse(f"on {self.platform.name}s", epilogue=call.epilogue, scale_a=call.scale_a,
                         scale_b=call.scale_b, algorithm=call.algorithm)
        is_number = isinstance(call.c, (bool, int, float, np.number))
        named = {"a": call.a, "b": call.b, "c": None if is_number else call.c, call.out_name: call.out}
        library = operands.library_of_all(**named)
        assert library is not None
        device = operands.same_device(library, **named)
        stream = library.stream(call.a if call.out is None else call.out, device)
        looks = {name: library.look(x, name, stream, name == call.out_name)
                 for name, x in named.items() if x is not None}
        run = self.run(device, stream, call.plan)
        try:
            a, b = (_at_least_1d(looks[name].shadow, name) for name in "ab")
            a, b = arguments.transposed(a, call.trans_a, "a"), arguments.transposed(b, call.trans_b, "b")
            out = looks[call.out_name].shadow if call.out is not None else None
            c = looks["c"].shadow if "c" in looks else call.c
            new = _product(run, library, decide(call, a, b, c, out), call.out_name)
            if library.waits:
                run.synchronize()
            if call.plain and not call.beta and _is_plain(call.alpha) and a.ndim == b.ndim == 2:
                asked = fast_path.signature(call.a, call.b, call.out, call.plan)
                if asked is not None and len(run.steps) == 1 and run.steps[0]:
                    fast_path.remember(asked.key, *run.steps[0])
        finally:
            run.free()
        return call.out if new is None else library.result(new, call.a)

    # ---- NumPy's arrays, by a plan for the first GPU

    def formats_for(self, p: Product, plan: Any) -> tuple[np.dtype[Any], ...]:
        """The dtypes in which `gemm` takes a and b and stores the product."""
        self._check_sums(p.sums)
        run = self.run(0, self.platform.default_stream, plan)
        return self.takes(run.on, p.a, p.b, p.c if p.beta else None, p.sums, p.result)

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *, threads: int | None = None,
             plan: Any = None) -> None:
        """As tilewright.runtime.cpu.engine.gemm, for stacks of matrices too: operands are copied to the first GPU, and
        the product is copied back."""
        if a.shape[-1] == 0 or alpha == 0:
            c[...] = c * c.dtype.type(beta) if beta else 0
            return
        self._check_sums(c.dtype)
        run = self.run(0, self.platform.default_stream, plan)
        try:
            on_device = run.uploaded(c) if beta else run.temporary(c.shape, c.dtype)
            run.multiply(run.uploaded(a), run.uploaded(b), on_device, alpha, beta)
            product = np.empty(c.shape, c.dtype)
            run.download(on_device, product)
        finally:
            run.free()
        c[...] = product

    gemm_batched = gemm

    def _check_sums(self, dtype: np.dtype[Any]) -> None:
        allowed = self.platform.dtypes
        if dtype not in allowed.values():
            raise TypeError(f"products that are added up in {dtype} are not supported on {self.platform.name}s, which "
                            f"multiply {', '.join(allowed)}")

    # ---- recipes and kernels that copy

    def recipe(self, on: Any, a: Array, b: Array, c: Array, plan: Any) -> Recipe:
        """For c = alpha * a @ b + beta * c with operands like these, c by rows."""
        (m, k), n, letters = a.shape, b.shape[1], letter(a) + letter(b)
        problem = Gemm(m, n, k, format_of(a.dtype), format_of(b.dtype), format_of(c.dtype), letters)
        rows = a if letters[0] == "n" else a.T, b if letters[1] == "n" else b.T, c
        if plan is None:
            plan = plans.choose(operands.shape_of(problem, on.target, a, b, c), on.target)
        kernel = self.compile(problem, on.target, plan)
        operands.check(kernel, (a, b, c))
        return Recipe(self.maker.driver, kernel, on, *(leading(x) or 1 for x in rows))

    def compile(self, problem: Gemm, target: Any, plan: Any) -> Any:
        """The kernel of this plan, as tilewright.compile gives it."""
        return forks.imported(self.compiler).compile(problem, target, plan)

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
        """The dtypes in which kernels of this device take A and B and leave the product: sums in `compute`, of which
        the result is `result`. `c` will be multiplied by beta and added; None: nothing will."""
        raise NotImplementedError


def _is_plain(alpha: Any) -> bool:
    """Is it a number of any format of sums as it is?"""
    return type(alpha) in (int, float) and abs(alpha) < 2.0**31


def _product(run: Run, library: Library, p: Product, out_name: str) -> Any:
    """The product of shadows. The new array, if there is no out."""
    allowed = library.platform.dtypes
    if p.result not in allowed.values():
        raise TypeError(f"out_dtype must be one of {', '.join(allowed)} in {library.platform.memory}, not {p.result}")
    taken_a, taken_b, stored = run.engine.takes(run.on, p.a, p.b, p.c if p.beta else None, p.sums, p.result)
    new, target = None, p.out
    if target is None:
        new = library.empty(p.user_shape, p.result, run.on.index, run.stream)
        target = shapes.as_matrices(library.look(new, "the result", run.stream, write=True).shadow, p.vectors)
    elif any(n > 1 and s == 0 for n, s in zip(target.shape, target.strides)):
        raise ValueError(f"{out_name} has elements that share memory: its strides are {target.strides} bytes")
    if 0 in p.shape:
        return new
    a, b = p.broadcast(run.typed(p.a, taken_a), run.typed(p.b, taken_b))
    direct = p.out is None or p.out.dtype == p.result  # else the sums become a result before they are cast
    in_place = stored == p.result and shapes.writes_in_place(target, a, b, stored)
    product = target if in_place else run.temporary(p.shape, stored)
    if p.beta:
        c = p.c if p.c.ndim else np.broadcast_to(run.number(p.c, stored), p.shape)
        if not shapes.same(product, c):
            run.copy(run.copied(c, stored) if shapes.overlap(product, c) else c, product)
    run.multiply(a, b, product, p.alpha, p.beta)
    if product is not target:
        run.copy(product if direct else run.typed(product, p.result), target)
    return new


def _at_least_1d(x: Array, name: str) -> Array:
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least 1 axis, but it is a scalar; to scale a matrix use *")
    return x
