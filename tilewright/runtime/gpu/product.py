"""The engine for arrays in GPUs' memory: matmul's semantics over shadows, each product by a recipe found in a table.

Operands are used where they lie if one of their two axes is contiguous; C too, by rows, or by columns as C^T = B^T A^T.
Anything else, formats that no kernel takes together, and an output that overlaps an operand go through temporaries and
a copy kernel. Everything is given to one stream and nothing waits, so that all of it can be recorded into a graph.

engine.py completes it with what recipes and drivers do, nvidia.py and amd.py with what differs between makers.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.api import products
from tilewright.rules import arguments, batch
from tilewright.runtime.gpu import dlpack, fast_path, operands
from tilewright.runtime.gpu.arrays import Library, Platform, shadow
from tilewright.runtime.gpu.operands import leading

Array = NDArray[Any]


class Engine:
    """`matmul` for the arrays of one platform."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def run(self, device: int, stream: int, plan: Any) -> Run:
        raise NotImplementedError

    def matmul(self, a_in: Any, b_in: Any, out_in: Any = None, out_dtype: Any = None, alpha: Any = 1, beta: Any = 0,
               c_in: Any = None, trans_a: bool = False, trans_b: bool = False, threads: Any = None, plan: Any = None,
               out_name: str = "out") -> Any:
        """tilewright.matmul for arrays of one library on one device: same shapes, dtypes, errors, as api.products says.

        It runs on the stream that is the caller's at the moment, and the result is an array of the caller's library.
        c may be a number. `threads` has no meaning here.
        """
        if isinstance(out_in, tuple):
            if len(out_in) != 1:
                raise ValueError(f"{out_name} must be an array or a tuple of one array, not a tuple of {len(out_in)}")
            (out_in,) = out_in
        asked = None
        plain = type(alpha) in (int, float) and abs(alpha) < 2.0**31  # as it is, a number of any format of sums
        if c_in is out_dtype is threads is None and not (beta or trans_a or trans_b) and plain:
            asked = fast_path.signature(a_in, b_in, out_in, plan)
            if asked is not None and alpha:
                done = fast_path.multiply(asked, a_in, out_in, float(alpha))
                if done is not None:
                    return done
        c_array = None if c_in is None or isinstance(c_in, (bool, int, float, np.number)) else c_in
        named = {"a": a_in, "b": b_in, "c": c_array, out_name: out_in}  # gemm's output is c
        library = operands.library_of_all(**named)
        assert library is not None
        device = operands.same_device(library, **named)
        stream = library.stream(a_in if out_in is None else out_in, device)
        arguments.thread_count(threads)
        arguments.number(alpha, "alpha")
        if arguments.number(beta, "beta") and c_in is None:
            raise ValueError(f"beta = {beta} needs a c to multiply")
        looks = {name: library.look(x, name, stream, name == out_name) for name, x in named.items() if x is not None}
        run = self.run(device, stream, plan)
        try:
            a, b = (_at_least_1d(looks[name].shadow, name) for name in "ab")
            a, b = arguments.transposed(a, trans_a, "a"), arguments.transposed(b, trans_b, "b")
            out = looks[out_name].shadow if out_in is not None else None
            c = looks["c"].shadow if "c" in looks else c_in
            new = _product(run, library, a, b, c, out, out_dtype, (alpha, beta), out_name)
            if library.waits:
                run.synchronize()
            if asked is not None and len(run.steps) == 1 and run.steps[0] and a.ndim == b.ndim == 2:
                fast_path.remember(asked.key, *run.steps[0])
        finally:
            run.free()
        return out_in if new is None else library.result(new, a_in)


def _product(run: Run, library: Library, a: Array, b: Array, c: Any, out: Array | None, out_dtype: Any,
             scalars: tuple[Any, Any], out_name: str) -> Any:
    """The steps of products._general on shadows. The new array, if there is no out. `scalars`: alpha and beta."""
    compute, result = arguments.dtypes(a, b, c, out_dtype, out, out_name == "c")
    allowed = library.platform.dtypes
    if result not in allowed.values():
        raise TypeError(f"out_dtype must be one of {', '.join(allowed)} in {library.platform.memory}, not {result}")
    alpha, beta = (arguments.factor(x, name, compute) for x, name in zip(scalars, ("alpha", "beta")))
    taken_a, taken_b, kept = run.takes(a, b, c if beta else None, compute, result)
    if out is not None and out_dtype is not None and out.dtype != result:
        raise TypeError(f"{out_name} has dtype {out.dtype}, but out_dtype asks for {result}")
    if out is not None:
        arguments.check_cast(result, out.dtype, out_name)
    vectors = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    a, b = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    shape = products._result_shape(a, b, out, vectors, out_name)
    public = tuple(n for i, n in enumerate(shape) if i - len(shape) not in vectors)
    if beta:
        c = c if isinstance(c, np.ndarray) else run.number(c, kept)
        try:
            c = products._as_matrices(np.broadcast_to(c, public), vectors)
        except ValueError:
            raise ValueError(f"c must broadcast to the result's shape {public}, but its shape is {c.shape}") from None
    if out is not None and any(n > 1 and s == 0 for n, s in zip(out.shape, out.strides)):
        raise ValueError(f"{out_name} has elements that share memory: its strides are {out.strides} bytes")

    new, target = None, None
    if out is None:
        new = library.empty(public, result, run.on.index, run.stream)
        target = products._as_matrices(library.look(new, "the result", run.stream, write=True).shadow, vectors)
    else:
        target = products._as_matrices(out, vectors)
    if 0 in shape:
        return new
    a, b = (np.broadcast_to(run.typed(x, taken), (*shape[:-2], *x.shape[-2:]))
            for x, taken in ((a, taken_a), (b, taken_b)))
    direct = out is None or out.dtype == result  # else the sums become a result before they are cast
    straight = direct and arguments.ready(target, kept) and not any(
        np.may_share_memory(target, x, max_work=products.EFFORT) for x in (a, b)
    )
    product = target if straight else run.temporary(shape, kept)
    if beta and not products._same(product, c):
        if np.may_share_memory(product, c, max_work=products.EFFORT):
            c = run.copied(c, kept)
        run.copy(c, product)
    run.multiply(a, b, product, alpha, beta)
    if product is not target:
        run.copy(product if direct else run.typed(product, result), target)
    return new


def _at_least_1d(x: Array, name: str) -> Array:
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least 1 axis, but it is a scalar; to scale a matrix use *")
    return x


class Run:
    """What one call does on one stream: products, copies, and temporaries that go when it ends. A maker's own are the
    methods that are not implemented here."""

    def __init__(self, on: Any, stream: int, plan: Any) -> None:
        self.on, self.stream, self.plan = on, stream, plan
        self.blocks: list[Any] = []
        self.steps: list[Any] = []  # products and copies: for a product what `fast_path.remember` wants to know

    def free(self) -> None:
        """While the stream is the caller's, who may end it afterwards."""
        with ExitStack() as stack:  # all of them, whatever goes wrong with one
            for block in self.blocks:
                stack.callback(block.free)

    # ---- temporaries

    def temporary(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self.blocks.append(self.block(size))
        return shadow(self.blocks[-1].pointer, shape, dlpack.contiguous(shape, dtype.itemsize), dtype)

    def number(self, x: Any, dtype: np.dtype[Any]) -> Array:
        """A number in device memory. It travels in the command, so that a graph that is recorded keeps it."""
        there = self.temporary((), dtype)
        with np.errstate(all="ignore"):
            whole = arguments.added(x, dtype).astype(dtype).reshape(1).view(np.uint8)
        for i, word in enumerate(np.resize(whole, max(whole.size, 4)).view(np.uint32)):
            self.fill(address(there) + 4 * i, int(word))
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
            if address(x) % x.itemsize or any(stride % x.itemsize for stride in x.strides):
                raise ValueError(
                    f"{name} does not lie at whole elements: its address is {address(x):#x}, its strides are "
                    f"{x.strides} bytes"
                )
        source, target = (x.reshape((1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x for x in (source, target))
        for i in np.ndindex(target.shape[:-2]):
            self._copy(source[i], target[i], scale)

    def _copy(self, source: Array, target: Array, scale: float) -> None:
        self.steps.append(None)
        if abs(target.strides[0]) < abs(target.strides[1]):  # lanes go along what lies closer
            source, target = source.T, target.T
        self.copy_matrix(source, target, scale)

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
        transposed_c = leading(c) is None
        if transposed_c:
            a, b, c = b.T, a.T, c.T
            m, n = n, m
        a, b = (x if letter(x) else self.copied(x, x.dtype) for x in (a, b))
        at_a, at_b, at_c = map(address, (a, b, c))
        recipe = self.recipe(a, b, c)
        recipe.run(at_a, at_b, at_c, alpha, beta, self.stream)
        self.steps.append((recipe, transposed_c, self.on.index, *((b.T, a.T, c.T) if transposed_c else (a, b, c))))

    # ---- a maker's own

    def takes(self, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        """The dtypes in which kernels take A and B and leave the product: sums in `compute`, of which the result is
        `result`. `c` will be multiplied by beta and added; None: nothing will."""
        raise NotImplementedError

    def block(self, size: int) -> Any:
        """Memory in the order of the stream, with a `pointer`; `free()` gives it back. It is a multiple of 4 bytes."""
        raise NotImplementedError

    def fill(self, at: int, word: int) -> None:
        """Write 32 bits there."""
        raise NotImplementedError

    def copy_matrix(self, source: Array, target: Array, scale: float) -> None:
        raise NotImplementedError

    def recipe(self, a: Array, b: Array, c: Array) -> Any:
        """For c = alpha * a @ b + beta * c with operands like these, c by rows."""
        raise NotImplementedError

    def synchronize(self) -> None:
        raise NotImplementedError


def letter(x: Array) -> str:
    """ "n" if rows are contiguous, "t" if columns are, "" if neither; of rows or columns of one element, the other."""
    by_rows, by_columns = leading(x) is not None, leading(x.T) is not None
    return "n" if by_rows and not (by_columns and x.shape[1] == 1) else "t" if by_columns else ""


def address(x: Array) -> int:
    """Of the first element."""
    return int(x.__array_interface__["data"][0])
