"""The engine for arrays on CUDA devices: matmul's semantics over shadows, each product by a recipe found in a table.

Operands are used where they lie if one of their two axes is contiguous; C too, by rows, or by columns as C^T = B^T A^T.
Anything else, a change between f32 and f64, and an output that overlaps an operand go through temporaries and the copy
kernel. Everything is given to one stream and nothing waits, so that all of it can be recorded into a CUDA graph.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import api, arguments, batch
from tilewright.arguments import F32, F64
from tilewright.compiler import ptx
from tilewright.compiler.kernel import compile
from tilewright.kernels.nvidia import copy
from tilewright.problem import Gemm
from tilewright.runtime import arrays, bound, cuda, known, operands
from tilewright.runtime.arrays import Library, shadow
from tilewright.runtime.bound import Recipe
from tilewright.runtime.cuda import Device, Prepared
from tilewright.runtime.device_memory import Block
from tilewright.runtime.driver import call
from tilewright.runtime.operands import leading
from tilewright.runtime.streams import synchronize

Array = NDArray[Any]
FORMAT = {F32: "f32", F64: "f64"}
MOST_RECIPES = 1024
WIDEST = 16  # bytes that a thread moves at once; what addresses and strides are multiples of decides how kernels load


def matmul(a_in: Any, b_in: Any, out_in: Any = None, out_dtype: Any = None, alpha: Any = 1, beta: Any = 0,
           c_in: Any = None, trans_a: bool = False, trans_b: bool = False, threads: Any = None, plan: Any = None,
           out_name: str = "out") -> Any:  # fmt: skip
    """tilewright.matmul for CUDA arrays of one library on one device: same shapes, dtypes, errors, as api.matmul says.

    It runs on the stream that is the caller's at the moment, and the result is an array of the caller's library. c may
    be a number. `threads` has no meaning here.
    """
    if isinstance(out_in, tuple):
        if len(out_in) != 1:
            raise ValueError(f"{out_name} must be an array or a tuple of one array, not a tuple of {len(out_in)}")
        (out_in,) = out_in
    asked = None
    if c_in is out_dtype is threads is None and not (beta or trans_a or trans_b) and type(alpha) in (int, float):
        asked = known.question(a_in, b_in, out_in, plan)
        if asked is not None and alpha:
            done = known.multiply(asked, a_in, out_in, float(alpha))
            if done is not None:
                return done
    c_array = None if c_in is None or isinstance(c_in, (bool, int, float, np.number)) else c_in
    named = {"a": a_in, "b": b_in, "c": c_array, out_name: out_in}  # gemm's output is c
    library = operands.common(**named)
    assert library is not None
    device = operands.same_device(library, **named)
    stream = library.stream(a_in if out_in is None else out_in, device)
    arguments.thread_count(threads)
    alpha, beta = arguments.scalar(alpha, "alpha"), arguments.scalar(beta, "beta")
    if beta and c_in is None:
        raise ValueError(f"beta = {beta} needs a c to multiply")
    looks = {name: library.look(x, name, stream, write=name == out_name) for name, x in named.items() if x is not None}
    run = _Run(cuda.device(device), stream, plan)
    try:
        a, b = (_at_least_1d(looks[name].shadow, name) for name in "ab")
        a, b = arguments.transposed(a, trans_a, "a"), arguments.transposed(b, trans_b, "b")
        out = looks[out_name].shadow if out_in is not None else None
        c = looks["c"].shadow if "c" in looks else c_in
        new = _product(run, library, a, b, c, out, out_dtype, alpha, beta, out_name)
        if library.waits:
            synchronize(run.on, stream)
        if asked is not None and len(run.steps) == 1 and run.steps[0] and a.ndim == b.ndim == 2:
            known.learn(asked.key, *run.steps[0])
    finally:
        run.free()
    return out_in if new is None else library.result(new, a_in)


def _at_least_1d(x: Array, name: str) -> Array:
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least 1 axis, but it is a scalar; to scale a matrix use *")
    return x


def _product(run: _Run, library: Library, a: Array, b: Array, c: Any, out: Array | None, out_dtype: Any, alpha: float,
             beta: float, out_name: str) -> Any:  # fmt: skip
    """The steps of api._general on shadows. The new array, if there is no out."""
    compute, result = arguments.dtypes(a, b, c, out_dtype)
    if result not in arrays.CUDA.dtypes.values():
        raise TypeError(f"out_dtype must be one of {', '.join(arrays.CUDA.dtypes)} on a CUDA device, not {result}")
    if out is not None and out_dtype is not None and out.dtype != result:
        raise TypeError(f"{out_name} has dtype {out.dtype}, but out_dtype asks for {result}")
    vectors = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    a, b = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    shape = api._result_shape(a, b, out, vectors, out_name)
    public = tuple(n for i, n in enumerate(shape) if i - len(shape) not in vectors)
    if beta:
        c = c if isinstance(c, np.ndarray) else run.number(c, compute)
        try:
            c = api._as_matrices(np.broadcast_to(c, public), vectors)
        except ValueError:
            raise ValueError(f"c must broadcast to the result's shape {public}, but its shape is {c.shape}") from None
    if out is not None and any(n > 1 and s == 0 for n, s in zip(out.shape, out.strides)):
        raise ValueError(f"{out_name} has elements that share memory: its strides are {out.strides} bytes")

    new, target = None, None
    if out is None:
        new = library.empty(public, result, run.on.index, run.stream)
        target = api._as_matrices(library.look(new, "the result", run.stream, write=True).shadow, vectors)
    else:
        target = api._as_matrices(out, vectors)
    if 0 in shape:
        return new
    a, b = (np.broadcast_to(run.typed(x, compute), (*shape[:-2], *x.shape[-2:])) for x in (a, b))
    straight = arguments.ready(target, compute) and not any(
        np.may_share_memory(target, x, max_work=api.EFFORT) for x in (a, b)
    )
    product = target if straight else run.temporary(shape, compute)
    if beta and not api._same(product, c):
        if np.may_share_memory(product, c, max_work=api.EFFORT):
            c = run.copied(c, compute)
        run.copy(c, product)
    run.multiply(a, b, product, alpha, beta)
    if product is not target:
        run.copy(product, target)
    return new


class _Run:
    """What one call does on one stream: products, copies, and temporaries that go when it ends."""

    def __init__(self, on: Device, stream: int, plan: Any) -> None:
        self.on, self.stream, self.plan = on, stream, plan
        self.blocks: list[Block] = []
        self.steps: list[Any] = []  # products and copies: for a product what `known.learn` wants to know

    def free(self) -> None:
        """While the stream is the caller's, who may end it afterwards."""
        with ExitStack() as stack:  # all of them, whatever goes wrong with one
            for block in self.blocks:
                stack.callback(block.free)

    # ---- temporaries

    def temporary(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self.blocks.append(Block(self.on, size, self.stream))
        return shadow(self.blocks[-1].pointer, shape, arrays.dlpack.contiguous(shape, dtype.itemsize), dtype)

    def number(self, x: Any, dtype: np.dtype[Any]) -> Array:
        """A number in device memory. It travels in the command, so that a graph that is recorded keeps it."""
        there = self.temporary((), dtype)
        for i, word in enumerate(np.array(x, dtype).reshape(1).view(np.uint32)):
            with self.on.current():
                call("cuMemsetD32Async", there.ctypes.data + 4 * i, int(word), 1, self.stream)
        return there

    def typed(self, x: Array, dtype: np.dtype[Any]) -> Array:
        return x if arguments.ready(x, dtype) else self.copied(x, dtype)

    def copied(self, x: Array, dtype: np.dtype[Any]) -> Array:
        there = self.temporary(x.shape, dtype)
        self.copy(x, there)
        return there

    def copy(self, source: Array, target: Array, scale: float = 1.0) -> None:
        """target = scale * source, element by element; scale = 0 writes zeros."""
        if 0 in target.shape:
            return
        for x, name in ((source, "an operand"), (target, "out")):
            if x.ctypes.data % x.itemsize or any(stride % x.itemsize for stride in x.strides):
                raise ValueError(
                    f"{name} does not lie at whole elements: its address is {x.ctypes.data:#x}, its strides are "
                    f"{x.strides} bytes"
                )
        source, target = (x.reshape((1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x for x in (source, target))
        for i in np.ndindex(target.shape[:-2]):
            self._copy(source[i], target[i], scale)

    def _copy(self, source: Array, target: Array, scale: float) -> None:
        self.steps.append(None)
        if abs(target.strides[0]) < abs(target.strides[1]):  # lanes go along what lies closer
            source, target = source.T, target.T
        rows, columns = target.shape
        function = _copy_function(self.on, FORMAT[source.dtype], FORMAT[target.dtype])
        strides = [[s // x.itemsize for s in x.strides] for x in (source, target)]
        arguments_ = (rows, columns, scale, source.ctypes.data, *strides[0], target.ctypes.data, *strides[1])
        Prepared(function, copy.grid(rows, columns), (copy.COLUMNS, copy.ROWS), 0, arguments_)(self.stream)

    # ---- products

    def multiply(self, a: Array, b: Array, c: Array, alpha: float, beta: float) -> None:
        """c = alpha * a @ b + beta * c for operands broadcast to the same leading axes."""
        if c.ndim > 2:
            a, b, c = batch.collapse(a, b, c)
        for i in np.ndindex(c.shape[:-2]):
            self._multiply(a[i], b[i], c[i], alpha, beta)

    def _multiply(self, a: Array, b: Array, c: Array, alpha: float, beta: float) -> None:
        (m, k), n = a.shape, b.shape[1]
        if k == 0 or alpha == 0:  # as BLAS: not even a nan in a or b is looked at
            if beta != 1:
                self.copy(c, c, beta)
            return
        if leading(c) is None and leading(c.T) is None:
            rows = self.temporary(c.shape, c.dtype)
            if beta:
                self.copy(c, rows)
            self._multiply(a, b, rows, alpha, beta)
            self.copy(rows, c)
            return
        turned = leading(c) is None
        if turned:
            a, b, c = b.T, a.T, c.T
            m, n = n, m
        a, b = (x if _letter(x) else self.copied(x, x.dtype) for x in (a, b))
        at_a, at_b, at_c = (x.ctypes.data for x in (a, b, c))
        key = (
            self.on.index,
            m,
            n,
            k,
            c.dtype,
            a.strides,
            b.strides,
            c.strides,
            _alignment(at_a, at_b, at_c),
            self.plan,
        )
        recipe = _recipes.get(key)
        if recipe is None:
            if len(_recipes) >= MOST_RECIPES:
                _recipes.clear()
            recipe = _recipes[key] = _recipe(self.on, a, b, c, self.plan)
        recipe.run(at_a, at_b, at_c, alpha, beta, self.stream)
        self.steps.append((recipe, turned, self.on.index, *((b.T, a.T, c.T) if turned else (a, b, c))))


# ---- the engine for NumPy arrays, if somebody asks for it by a plan


def gemm(a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *, threads: int | None = None,
         plan: Any = None) -> None:  # fmt: skip
    """As tilewright.runtime.cpu.gemm, on the first CUDA device: operands are copied there, and the result back."""
    (m, k), n = a.shape, b.shape[1]
    if k == 0 or alpha == 0:
        c[...] = c * c.dtype.type(beta) if beta else 0
        return
    letters = [_letter(x) for x in (a, b)]
    target: Any = cuda.target()
    problem = Gemm(m, n, k, FORMAT[c.dtype], layout="".join(letter or "n" for letter in letters))
    bound.call(compile(problem, target, plan), a, b, c, alpha=alpha, beta=beta)


def gemm_batched(a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, **options: Any) -> None:
    """The same for a [batch, m, k], b [batch, k, n] and c [batch, m, n]."""
    for i in range(c.shape[0]):
        gemm(a[i], b[i], c[i], alpha, beta, **options)


# ---- recipes


_recipes: dict[tuple[Any, ...], Recipe] = {}


def forget() -> None:
    """Choose plans anew."""
    _recipes.clear()
    known.forget()


def _recipe(on: Device, a: Array, b: Array, c: Array, plan: Any) -> Recipe:
    (m, k), n = a.shape, b.shape[1]
    format = FORMAT[c.dtype]
    problem = Gemm(m, n, k, format, layout=_letter(a) + _letter(b))
    ld = [leading(x if by_rows else x.T) for x, by_rows in ((a, _letter(a) == "n"), (b, _letter(b) == "n"), (c, True))]
    target: Any = on.target
    kernel: Any = compile(problem, target, plan)
    vector = operands.together(a, b, c)
    if plan is None and operands.moved_at_once(kernel) > vector:
        kernel = compile(problem, target, replace(kernel.plan, vector=vector))
    operands.lies(kernel, vector)
    return Recipe(kernel, on, *(x or 1 for x in ld))


def _letter(x: Array) -> str:
    """ "n" if rows are contiguous, "t" if columns are, "" if neither; of rows or columns of one element, the other."""
    by_rows, by_columns = leading(x) is not None, leading(x.T) is not None
    return "n" if by_rows and not (by_columns and x.shape[1] == 1) else "t" if by_columns else ""


def _alignment(*numbers: int) -> int:
    """The largest power of two, up to what a thread moves at once, that divides them all."""
    together = WIDEST
    for x in numbers:
        together |= x
    return together & -together


_copies: dict[tuple[int, str, str], cuda.CudaFunction] = {}


def _copy_function(on: Device, source: str, target: str) -> cuda.CudaFunction:
    key = int(on.context), source, target
    found = _copies.get(key)
    if found is None:
        text = ptx.emitted_ptx("tilewright.kernels.nvidia.copy:emit_copy", on.target, source, target)
        found = _copies[key] = cuda.load(text, on).function(f"copy_{source}_{target}")
    return found
